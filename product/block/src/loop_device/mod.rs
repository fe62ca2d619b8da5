//! A loop device over a file of [`coulter_fuse`]: an ordinary `/dev/loopN` for file systems, on
//! kernels with neither ublk nor nbd.
//!
//! # What it does not do
//! It does not survive the death of its process: with it the mount dies, and what is mounted on the
//! device gets I/O errors. [`cleanup_stale`] takes away what such a death leaves. A process that
//! hands it over before it ends leaves no trace: requests wait for the next one.
//!
//! # Invariants
//! - Direct I/O, blocks of 4096 bytes: nothing is cached twice, and no block is read to write a
//!   part of it.
//! - The device has a volatile write cache in the kernel's eyes, so that flushes reach the service.
//! - A device is ours as long as our file lies below it, and nothing is done to one that is not:
//!   whoever may detach it (`losetup`) may have set its number up for another file since.
//! - Nothing in this process waits for the device: such steps are taken apart (see `apart`).
//! - Teardown goes down from the top: device, mount, thread, directory. Each step only begins when
//!   nothing above is left.
//!
//! # Why there is no autoclear
//! A loop device that clears itself at its last close would vanish after the first `blkid` that
//! looks at it, unless this process held it open; and a process that dies with the device open
//! writes the device's dirty pages at its end, to itself. So the device stays until it is cleared.

mod control;
mod stale;

pub use control::name_of;
pub use coulter_system::loop_devices::{all, path_below};
pub use stale::{Stale, cleanup_stale};

/// Whether `file`, which some process has mounted as a [`FuseFile`], lies below the loop device.
/// It asks that process, so it waits while the process lives and does not answer.
pub fn lies_over(device: &Path, file: &Path) -> bool {
    let expected = open(file, OFlags::RDONLY).and_then(|file| BackingFile::of_file(&file));
    let found = open(device, OFlags::RDONLY).and_then(|device| BackingFile::below(&device));
    match (expected, found) {
        (Ok(expected), Ok(found)) => found == Some(expected),
        // Its process has ended, or it is not to be seen from here: the name has to do.
        _ => path_below(device).is_some_and(|path| path == file) || is_named(device, file),
    }
}

use crate::apart;
use crate::claim::{claim, open};
use control::{BackingFile, LoopSetup, clear, configure, is_named, take_over_size};
use coulter::service::BlockService;
use coulter_attach::point::{AttachPoint, Detach, DetachError};
use coulter_fuse::{FuseError, FuseFile, FuseOptions};
use coulter_system::holders;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the kernel may take to let go of a device that nobody uses.
const CLEAR_PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// KiB of one request of the device. With the kernel's own 1280 a write of 1 MiB and a bit would
/// go out in two uneven messages; so the atomic unit is also the largest request.
const REQUEST_KIB_MAX: u32 = 1024;

/// Bytes of the unit in which the kernel tells sizes.
const SECTOR: u64 = 512;

/// How a loop device is attached.
#[derive(Clone, Debug, Default)]
pub struct LoopOptions {
    /// Refuse writes whatever the service allows.
    pub read_only: bool,
    /// The source in the mount table, usually the path of the store.
    pub source: String,
    /// Look for partitions on the device.
    pub partitions: bool,
}

/// Why a loop device could not be attached.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoopError {
    /// The file below it could not be mounted.
    Fuse(FuseError),
    /// There is no free loop device, or no loop driver.
    NoDevice(io::Error),
    /// `/sys` is not mounted, as in a bare chroot.
    NoSysfs,
    /// The system refused a step.
    System {
        /// Which step.
        step: &'static str,
        /// On what.
        target: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl fmt::Display for LoopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoopError::Fuse(error) => error.fmt(f),
            LoopError::NoDevice(error) => write!(
                f,
                "no free loop device: {error}; is the module loaded (modprobe loop), and is \
                 /dev/loop-control there?"
            ),
            LoopError::NoSysfs => write!(
                f,
                "a loop device needs /sys, which is not mounted here: mount it with \
                 `mount -t sysfs sysfs /sys`"
            ),
            LoopError::System { step, target, source } => {
                write!(f, "cannot {step} {}: {source}", target.display())
            }
        }
    }
}

impl std::error::Error for LoopError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LoopError::Fuse(source) => Some(source),
            LoopError::NoDevice(source) | LoopError::System { source, .. } => Some(source),
            LoopError::NoSysfs => None,
        }
    }
}

/// An attached loop device. Dropping it takes it away, used or not.
pub struct LoopDevice {
    device: PathBuf,
    file: FuseFile,
    /// Our file as the driver knows it, while the device is still ours to clear.
    backing: Option<BackingFile>,
}

impl LoopDevice {
    /// Attaches `service` as a loop device, by way of a file mounted on `directory`, which is
    /// made if it is missing.
    pub fn attach(
        service: &dyn BlockService,
        directory: &Path,
        options: &LoopOptions,
    ) -> Result<LoopDevice, LoopError> {
        // How the kernel caches the device can be set there alone.
        if !Path::new("/sys/block").is_dir() {
            return Err(LoopError::NoSysfs);
        }
        let LoopOptions { read_only, ref source, partitions } = *options;
        let fuse = FuseOptions { read_only, source: source.clone() };
        let file = FuseFile::mount(service, directory, &fuse).map_err(LoopError::Fuse)?;
        let read_only = read_only || service.read_only();
        let path = file.path();
        let system = |step, target: &Path| {
            let target = target.to_owned();
            move |source| LoopError::System { step, target, source }
        };
        let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let backing = open(&path, access).map_err(system("open", &path))?;
        let identity = BackingFile::of_file(&backing).map_err(system("look at", &path))?;
        let setup = LoopSetup { backing: &backing, name: &path, read_only, partitions };
        let device = configure(&setup).map_err(LoopError::NoDevice)?;
        let attached = LoopDevice { device, file, backing: Some(identity) };
        // From here on a failure drops `attached`, and with it all that was made.
        attached.tune(read_only).map_err(system("set up", &attached.device))?;
        Ok(attached)
    }

    /// Goes on with a device that was handed over: `descriptor` is what [`AttachPoint::hand_over`]
    /// gave, `device` and `directory` are what it had been attached as. If the service has another size by now, the
    /// device does not know yet: see [`LoopDevice::take_over_size`].
    ///
    /// # Errors
    /// When there can be no thread for it; the device is dead then.
    pub fn resume(
        service: &dyn BlockService,
        descriptor: OwnedFd,
        device: &Path,
        directory: &Path,
        options: &LoopOptions,
    ) -> Result<LoopDevice, LoopError> {
        let LoopOptions { read_only, ref source, .. } = *options;
        let fuse = FuseOptions { read_only, source: source.clone() };
        let file = FuseFile::resume(service, descriptor, directory, &fuse);
        let file = file.map_err(LoopError::Fuse)?;
        let path = file.path();
        let identity = open(&path, OFlags::RDONLY).and_then(|file| BackingFile::of_file(&file));
        let identity = identity.map_err(|source| {
            let (step, target) = ("look at", path);
            LoopError::System { step, target, source }
        })?;
        Ok(LoopDevice { device: device.to_owned(), file, backing: Some(identity) })
    }

    /// Sees to it that the device has this size, which its service has taken on while the device was handed over.
    ///
    /// # Errors
    /// When the system refuses; hosts see the old size then.
    pub fn take_over_size(&self, size: u64) -> io::Result<()> {
        let name = self.device.file_name().unwrap_or_default();
        let sectors = std::fs::read_to_string(Path::new("/sys/block").join(name).join("size"))?;
        let shown = sectors.trim().parse::<u64>().map_err(io::Error::other)?.saturating_mul(SECTOR);
        if shown == size {
            return Ok(());
        }
        // The kernel keeps the file's size until it asks again.
        let path = self.file.path();
        apart::run(&[], || {
            let flags = AtFlags::STATX_FORCE_SYNC;
            rustix::fs::statx(CWD, &path, flags, StatxFlags::SIZE).map(|_| ())
        })?;
        let device = open(&self.device, OFlags::RDONLY)?;
        apart::run_and_close(device, take_over_size)?;
        Ok(())
    }

    /// The device's path.
    pub fn device(&self) -> &Path {
        &self.device
    }

    /// The directory that the file below is mounted on.
    pub fn mount_point(&self) -> &Path {
        self.file.mount_point()
    }

    fn queue(&self) -> PathBuf {
        let name = self.device.file_name().unwrap_or_default();
        Path::new("/sys/block").join(name).join("queue")
    }

    fn tune(&self, read_only: bool) -> io::Result<()> {
        let queue = self.queue();
        let (largest, order) = (queue.join("max_sectors_kb"), queue.join("scheduler"));
        let cache = queue.join("write_cache");
        let is_cached = read_only || std::fs::read_to_string(&cache)?.trim_end() == "write back";
        let kib_max = REQUEST_KIB_MAX.to_string();
        // Each waits for what is on its way to the device.
        apart::run(&[], || {
            // Both only make it quicker. There is no use in sorting what becomes sequential anyway.
            let _ = set(&largest, &kib_max);
            let _ = set(&order, "none");
            if is_cached { Ok(()) } else { set(&cache, "write back") }
        })?;
        Ok(())
    }

    /// Whether our file lies below the device that is open as `handle`.
    fn is_over_our_file(&self, handle: &OwnedFd) -> bool {
        self.is_ours(&[handle.as_fd()], |backing| backing.check_below(handle))
    }

    /// Whether the device is there, and ours. Even to close it may mean to wait for it.
    fn is_set_up(&self) -> bool {
        self.is_ours(&[], |backing| {
            let handle = rustix::fs::open(&self.device, OFlags::RDONLY, Mode::empty());
            backing.check_below(&handle.map_err(|_| Errno::NODEV)?)
        })
    }

    fn is_ours(
        &self,
        kept: &[BorrowedFd<'_>],
        look: impl Fn(BackingFile) -> Result<(), Errno>,
    ) -> bool {
        let Some(backing) = self.backing else { return false };
        match apart::run(kept, || look(backing)) {
            Ok(()) => true,
            Err(Errno::NODEV) => false,
            // The file does not say what it is any more. The kernel still says where it was.
            Err(_) => path_below(&self.device).is_some_and(|path| path == self.file.path()),
        }
    }

    /// Clears the device if nobody uses it; whether what the kernel held of it could be flushed.
    fn clear_when_idle(&self) -> Result<Result<(), Errno>, DetachError> {
        let claim = claim(&self.device)?;
        if !self.is_over_our_file(&claim) {
            return Ok(Ok(()));
        }
        // It needs the thread below. Its failure must not keep a broken device for ever.
        let flushed = apart::run(&[claim.as_fd()], || rustix::fs::fsync(&claim));
        apart::run_and_close(claim, clear).map_err(|error| self.failed("clear", error.into()))?;
        let limit = Instant::now() + CLEAR_PATIENCE;
        while self.is_set_up() {
            if Instant::now() >= limit {
                let holders = holders::of_block_device(&self.device);
                return Err(DetachError::Busy { address: self.address(), holders });
            }
            std::thread::sleep(PAUSE);
        }
        Ok(flushed)
    }

    /// Clears the device now, or at its last close.
    fn clear_anyway(&self) -> Result<(), DetachError> {
        let handle = open(&self.device, OFlags::RDONLY);
        let handle = handle.map_err(|error| self.failed("open", error))?;
        if !self.is_over_our_file(&handle) {
            return Ok(());
        }
        apart::run_and_close(handle, clear).map_err(|error| self.failed("clear", error.into()))
    }

    fn failed(&self, step: &'static str, source: io::Error) -> DetachError {
        DetachError::System { step, target: self.address(), source }
    }
}

/// Writes an attribute of a device.
fn set(path: &Path, value: &str) -> Result<(), Errno> {
    let file = rustix::fs::open(path, OFlags::WRONLY, Mode::empty())?;
    rustix::io::write(&file, value.as_bytes()).map(|_| ())
}

impl AttachPoint for LoopDevice {
    fn kind(&self) -> &'static str {
        "loop"
    }

    fn address(&self) -> String {
        self.device.display().to_string()
    }

    fn detach(&mut self, how: Detach) -> Result<(), DetachError> {
        let mut flushed = Ok(());
        if self.is_set_up() {
            match (self.clear_when_idle(), how) {
                (Ok(outcome), _) => flushed = outcome,
                (Err(error), Detach::IfIdle) => return Err(error),
                (Err(_), Detach::Always) => self.clear_anyway()?,
            }
        }
        self.backing = None;
        self.file.detach(how)?;
        let address = self.address();
        flushed.map_err(|error| DetachError::Unflushed { address, source: error.into() })
    }

    fn hand_over(&mut self) -> io::Result<OwnedFd> {
        let descriptor = self.file.hand_over()?;
        self.backing = None;
        Ok(descriptor)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // A destructor cannot report an error. The file goes even if the device does not.
        let _ = self.detach(Detach::Always);
    }
}
