//! The mount of a file system: mounting and unmounting.

use super::overlay;
use super::pump::Pump;
use super::watchdog::Watchdog;
use crate::mount::{FILE_SYSTEM_TYPE, require_root};
use coulter::buffer::Buffer;
use coulter::service::{BLOCK_SIZE, BlockService, Operation, Request, RequestError};
use coulter_attach::hosting::{self, Hosted, ThreadShape};
use coulter_attach::point::{AttachPoint, Detach, DetachError};
use coulter_files::{FileService, Files, Options};
use coulter_format::Corrupt;
use coulter_format::files::Superblock;
use coulter_overlay::{Figures, Shown};
use coulter_system::holders;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Name of the pump's thread, if the pump cannot run on the service's thread.
const THREAD: ThreadShape = ThreadShape { name: "files", stack_size: 1 << 20 };
/// How long a mount may stay busy after its last use; the kernel releases it a little later.
const BUSY_PATIENCE: Duration = Duration::from_secs(1);
const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// How long an end that users are not asked about waits for the kernel to write out what it keeps.
const WRITE_BACK_PATIENCE: Duration = Duration::from_secs(10);
/// Percent of dirty memory that may belong to this mount. The kernel's default for FUSE is 1.
const DIRTY_SHARE: &str = "40";

/// How far the kernel reads ahead, in KiB: one request of the largest size.
const READ_AHEAD_KIB: &str = "1024";

/// How a file system is mounted.
#[derive(Clone, Debug, Default)]
pub struct MountOptions {
    /// Refuse changes whatever the service allows.
    pub read_only: bool,
    /// Let the kernel gather writes in its page cache, and write them back later.
    pub writes_back: bool,
    /// No set-uid programs.
    pub no_suid: bool,
    /// No devices.
    pub no_dev: bool,
    /// No programs.
    pub no_exec: bool,
    /// Blocks of metadata kept in memory, 4096 bytes each; the default if it is none.
    pub cache_blocks: Option<usize>,
    /// The source in the mount table, usually the path of the store.
    pub source: String,
}

/// Why a file system could not be mounted.
#[derive(Debug)]
#[non_exhaustive]
pub enum MountError {
    /// Mounting takes privileges that this process does not have.
    NeedsRoot,
    /// The kernel has no FUSE.
    NoFuse(io::Error),
    /// The volume holds no file system that this version can mount.
    NoFileSystem(Corrupt),
    /// The file system was made for a larger volume.
    Truncated,
    /// The directory cannot be below an overlay.
    Unfit(PathBuf, coulter_overlay::OpenError),
    /// Another file system is mounted in it.
    MountBelow(PathBuf),
    /// The overlay's store cannot be opened.
    Store(coulter_overlay::RecoverError),
    /// The first block of the volume cannot be read.
    Unreadable(RequestError),
    /// The directory cannot be mounted on.
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The system refused something else.
    System {
        /// Which step.
        step: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountError::NeedsRoot => f.write_str("mounting takes root (CAP_SYS_ADMIN); use sudo"),
            MountError::NoFuse(error) => {
                write!(f, "cannot open /dev/fuse: {error}; is the module loaded (modprobe fuse)?")
            }
            MountError::NoFileSystem(corrupt) => write!(
                f,
                "the volume holds no file system of Coulter ({corrupt}); `coulter fs create` makes one"
            ),
            MountError::Truncated => {
                f.write_str("the file system was made for a larger volume than this one")
            }
            MountError::Unfit(path, error) => {
                write!(f, "{} cannot be below an overlay: {error}", path.display())
            }
            MountError::MountBelow(path) => {
                write!(f, "{} is mounted in it; an overlay is over one file system", path.display())
            }
            MountError::Store(error) => error.fmt(f),
            MountError::Unreadable(error) => write!(f, "cannot read the first block: {error}"),
            MountError::Directory { path, source } => {
                write!(f, "cannot mount on {}: {source}", path.display())
            }
            MountError::System { step, source } => write!(f, "cannot {step}: {source}"),
        }
    }
}

impl std::error::Error for MountError {}

/// What is kept of how something is mounted.
struct Kept {
    kind: &'static str,
    writes_back: bool,
    /// It sleeps in calls to other file systems, so that it must not be on the service's thread.
    blocks: bool,
    shown: Option<Shown>,
    stops: Stops,
}

/// By what the mount tells the pump to end: both ends of it. Made before the mount, so that a lack
/// of descriptors leaves no mount behind.
struct Stops {
    ours: OwnedFd,
    of_pump: OwnedFd,
}

/// A mounted file system. Dropping it unmounts it, used or not.
pub struct FilesMount {
    kind: &'static str,
    mount_point: PathBuf,
    /// Whether the mount is still ours to undo.
    mounted: bool,
    writes_back: bool,
    stop: OwnedFd,
    /// Tells the pump that the mount is to end soon.
    hurries: Arc<AtomicBool>,
    /// What an overlay shows of itself.
    shown: Option<Shown>,
    bdi: Option<Bdi>,
    /// The pump, until it is over.
    pump: Option<Hosted>,
}

impl FilesMount {
    /// Mounts the file system on `service` over `directory`, which must exist.
    ///
    /// # Errors
    /// [`MountError`]; nothing is mounted then.
    pub fn mount(
        service: &dyn BlockService,
        directory: &Path,
        options: &MountOptions,
    ) -> Result<FilesMount, MountError> {
        require_root().map_err(|_| MountError::NeedsRoot)?;
        check_superblock(service)?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let device = rustix::fs::open("/dev/fuse", flags, Mode::empty())
            .map_err(|error| MountError::NoFuse(error.into()))?;
        let stops = stops()?;
        let failed = |source| MountError::Directory { path: directory.to_owned(), source };
        let mount_point = directory.canonicalize().map_err(failed)?;
        let read_only = options.read_only || service.read_only();
        mount(&device, &mount_point, read_only, options).map_err(failed)?;
        let block_count = service.size() / BLOCK_SIZE;
        let mut files_options = Options { read_only, ..Options::default() };
        files_options.cache_blocks = options.cache_blocks.unwrap_or(files_options.cache_blocks);
        let files =
            move || -> Box<dyn FileService> { Box::new(Files::open(files_options, block_count)) };
        let kept = Kept {
            kind: "fs",
            writes_back: options.writes_back,
            blocks: false,
            shown: None,
            stops,
        };
        // On failure the drop of the mount unmounts.
        FilesMount::serve(service, device, mount_point, kept, files)
    }

    /// Mounts an overlay with its store on `service` over `directory`, which is below it.
    ///
    /// # Errors
    /// [`MountError`]; nothing is mounted then.
    pub fn mount_overlay(
        service: &dyn BlockService,
        directory: &Path,
        options: &MountOptions,
        overlay: coulter_overlay::Options,
    ) -> Result<FilesMount, MountError> {
        require_root().map_err(|_| MountError::NeedsRoot)?;
        let failed = |source| MountError::Directory { path: directory.to_owned(), source };
        let mount_point = directory.canonicalize().map_err(failed)?;
        let files = overlay::open(service, &mount_point, overlay)?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let device = rustix::fs::open("/dev/fuse", flags, Mode::empty())
            .map_err(|error| MountError::NoFuse(error.into()))?;
        let stops = stops()?;
        mount(&device, &mount_point, service.read_only(), options).map_err(failed)?;
        let (writes_back, shown) = (options.writes_back, Some(files.shown()));
        let kept = Kept { kind: "overlay", writes_back, blocks: true, shown, stops };
        FilesMount::serve(service, device, mount_point, kept, move || Box::new(files))
    }

    fn serve(
        service: &dyn BlockService,
        device: OwnedFd,
        mount_point: PathBuf,
        kept: Kept,
        files: impl FnOnce() -> Box<dyn FileService> + Send + 'static,
    ) -> Result<FilesMount, MountError> {
        let Kept { kind, writes_back, blocks, shown, stops } = kept;
        let Stops { ours: stop, of_pump: stop_for_pump } = stops;
        let hurries = Arc::new(AtomicBool::new(false));
        let told = hurries.clone();
        let mounted = true;
        let (bdi, pump) = (None, None);
        let mut mount =
            FilesMount { kind, mount_point, mounted, writes_back, stop, hurries, shown, bdi, pump };
        let watched = blocks.then(|| mount.mount_point.clone());
        let work = move |session, place| {
            // Without a thread for it the mount is served all the same.
            let _watchdog = watched.map(Watchdog::of_this_thread);
            Pump::new(device, stop_for_pump, session, place, files(), writes_back, told).run();
        };
        let hosted = if blocks {
            hosting::apart(service, &THREAD, work)
        } else {
            hosting::host(service, &THREAD, work)
        };
        let failed = |source| MountError::System { step: "start a thread", source };
        mount.pump = Some(hosted.map_err(failed)?);
        mount.bdi = bdi_of(&mount.mount_point);
        mount.bdi.iter().for_each(|bdi| bdi.widen_share());
        Ok(mount)
    }

    /// The directory that it is mounted on.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    fn unmount(&self, how: Detach) -> Result<(), DetachError> {
        let flags = match how {
            Detach::IfIdle => UnmountFlags::empty(),
            Detach::Always => UnmountFlags::DETACH,
        };
        let limit = Instant::now() + BUSY_PATIENCE;
        loop {
            let holders = match how {
                Detach::IfIdle => holders::elsewhere(&self.mount_point),
                Detach::Always => Vec::new(),
            };
            if !holders.is_empty() {
                // A namespace that is just being made, or ends, is no user.
                if Instant::now() >= limit {
                    return Err(DetachError::Busy { address: self.address(), holders });
                }
                std::thread::sleep(BUSY_PAUSE);
                continue;
            }
            match rustix::mount::unmount(&self.mount_point, flags) {
                Ok(()) => return Ok(()),
                // Another program unmounted it; lazily, if its files are in use.
                Err(Errno::INVAL | Errno::NOENT)
                    if how == Detach::Always || self.bdi.as_ref().is_none_or(Bdi::is_gone) =>
                {
                    return Ok(());
                }
                Err(Errno::INVAL | Errno::NOENT) if Instant::now() < limit => {
                    std::thread::sleep(BUSY_PAUSE);
                }
                Err(Errno::INVAL | Errno::NOENT) => {
                    let numbers = self.bdi.as_ref().map(|bdi| bdi.device);
                    let holders = holders::of_unmounted(numbers.unwrap_or_default());
                    return Err(DetachError::Busy { address: self.address(), holders });
                }
                Err(Errno::BUSY) if Instant::now() < limit => std::thread::sleep(BUSY_PAUSE),
                Err(Errno::BUSY) => {
                    let holders = holders::of_directory(&self.mount_point);
                    return Err(DetachError::Busy { address: self.address(), holders });
                }
                Err(error) => {
                    let target = self.mount_point.display().to_string();
                    let source = error.into();
                    return Err(DetachError::System { step: "unmount", target, source });
                }
            }
        }
    }

    /// Has the pump make everything durable and end, and waits for that. The kernel then answers
    /// every request with an error.
    fn stop_pump(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(pump) = self.pump.take() {
            pump.await_end();
        }
    }

    /// Waits until the kernel has released the mount, after any unmount.
    pub fn await_end(&mut self) {
        if let Some(pump) = self.pump.take() {
            pump.await_end();
        }
        self.mounted = false;
    }
}

impl AttachPoint for FilesMount {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn address(&self) -> String {
        self.mount_point.display().to_string()
    }

    fn detach(&mut self, how: Detach) -> Result<(), DetachError> {
        if !self.mounted {
            return Ok(());
        }
        if how == Detach::Always {
            self.hurries.store(true, Ordering::Release);
        }
        self.unmount(how)?;
        self.mounted = false;
        // After a plain unmount the pump ends by itself; after a lazy one a file may still be open
        // somewhere, and only the end of the pump takes it away.
        match how {
            Detach::Always => self.stop_pump(),
            Detach::IfIdle => self.await_end(),
        }
        Ok(())
    }

    /// A lazy unmount would have the next `open` of a program that works in the directory reach
    /// what lies below: old blocks, or files that are hidden as soon as it is mounted again.
    fn end(&mut self) -> Result<(), DetachError> {
        if !self.mounted {
            return Ok(());
        }
        self.hurries.store(true, Ordering::Release);
        let unmounted = self.unmount(Detach::IfIdle);
        if unmounted.is_err() && self.writes_back {
            write_back(&self.mount_point);
        }
        self.mounted = false;
        self.stop_pump();
        unmounted.map_err(|error| match error {
            DetachError::Busy { address, holders } => DetachError::LeftDead { address, holders },
            other => other,
        })
    }

    fn has_ended(&self) -> bool {
        self.pump.as_ref().is_none_or(Hosted::has_ended)
    }

    fn overlay_figures(&self) -> Option<Figures> {
        self.shown.as_ref().map(Shown::figures)
    }

    fn hand_over(&mut self) -> io::Result<OwnedFd> {
        // What the kernel knows of nodes would have to go along.
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "a mounted file system cannot go on in another program; unmount it and mount it again",
        ))
    }
}

impl Drop for FilesMount {
    fn drop(&mut self) {
        // A destructor cannot report an error.
        let _ = self.detach(Detach::Always);
    }
}

fn stops() -> Result<Stops, MountError> {
    let system = |step| move |error: Errno| MountError::System { step, source: error.into() };
    let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let ours = made.map_err(system("make an event descriptor"))?;
    let of_pump = rustix::io::fcntl_dupfd_cloexec(&ours, 0);
    Ok(Stops { of_pump: of_pump.map_err(system("duplicate a descriptor"))?, ours })
}

/// Has the kernel write out what it keeps of the mount's files. A mount that does not answer is
/// not waited for.
fn write_back(mount_point: &Path) {
    let path = mount_point.to_owned();
    let (over, is_over) = std::sync::mpsc::channel();
    let work = move || {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let synced = rustix::fs::open(path, flags, Mode::empty()).and_then(rustix::fs::syncfs);
        // The other side is gone if it took too long.
        let _ = over.send(synced);
    };
    // Without a thread for it, what was not synced is lost, as at a kill.
    if std::thread::Builder::new().name("write-back".to_owned()).spawn(work).is_ok() {
        let _ = is_over.recv_timeout(WRITE_BACK_PATIENCE);
    }
}

/// Checks before mounting whether the volume holds a file system.
fn check_superblock(service: &dyn BlockService) -> Result<(), MountError> {
    let mut session = service.connect();
    let buffer = Buffer::zeroed(BLOCK_SIZE as usize);
    let (operation, length) = (Operation::Read, BLOCK_SIZE);
    session.submit(Request { tag: 0, operation, offset: 0, length, buffer });
    let mut completions = Vec::new();
    session.complete(&mut completions, None);
    let completion = completions.pop().ok_or(MountError::Unreadable(RequestError::Closed))?;
    completion.result.map_err(MountError::Unreadable)?;
    let block = completion.buffer[..].try_into();
    let block = block.map_err(|_| MountError::Unreadable(RequestError::Invalid))?;
    let superblock = Superblock::decode(block).map_err(MountError::NoFileSystem)?;
    if superblock.block_count > service.size() / BLOCK_SIZE {
        return Err(MountError::Truncated);
    }
    Ok(())
}

fn mount(
    device: &OwnedFd,
    target: &Path,
    read_only: bool,
    options: &MountOptions,
) -> io::Result<()> {
    let mut flags = MountFlags::empty();
    let wanted = [
        (read_only, MountFlags::RDONLY),
        (options.no_suid, MountFlags::NOSUID),
        (options.no_dev, MountFlags::NODEV),
        (options.no_exec, MountFlags::NOEXEC),
    ];
    for (is_wanted, flag) in wanted {
        flags.set(flag, is_wanted);
    }
    let descriptor = device.as_raw_fd();
    let data = format!(
        "fd={descriptor},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other"
    );
    let data = CString::new(data)?;
    let source = if options.source.is_empty() { "coulter" } else { &options.source };
    rustix::mount::mount(source, target, FILE_SYSTEM_TYPE, flags, data.as_c_str())?;
    Ok(())
}

/// The mount in `/sys`: the kernel shows it for as long as its files are in use.
struct Bdi {
    /// Major and minor number of its files' device.
    device: (u32, u32),
    place: PathBuf,
}

/// That of the mount on a directory, if it is shown.
fn bdi_of(mount_point: &Path) -> Option<Bdi> {
    let flags = rustix::fs::AtFlags::STATX_DONT_SYNC;
    let wanted = rustix::fs::StatxFlags::TYPE;
    let status = rustix::fs::statx(rustix::fs::CWD, mount_point, flags, wanted).ok()?;
    let device @ (major, minor) = (status.stx_dev_major, status.stx_dev_minor);
    let place = PathBuf::from(format!("/sys/class/bdi/{major}:{minor}"));
    place.exists().then_some(Bdi { device, place })
}

impl Bdi {
    fn is_gone(&self) -> bool {
        !self.place.exists()
    }

    /// The kernel limits a FUSE mount to 1 % of the dirty pages, which makes write-back slow.
    /// If the limit cannot be changed, the mount is slower but correct.
    fn widen_share(&self) {
        let _ = std::fs::write(self.place.join("strict_limit"), "0");
        let _ = std::fs::write(self.place.join("max_ratio"), DIRTY_SHARE);
        let _ = std::fs::write(self.place.join("read_ahead_kb"), READ_AHEAD_KIB);
    }
}
