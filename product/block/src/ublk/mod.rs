//! A block device of the kernel's ublk driver: `/dev/ublkbN`, whose requests come to this process
//! through a ring.
//!
//! # What it does not do
//! Zero copy. Every block is checksummed on its way, so this process has to see the bytes; buffers
//! that only a ring may use are of no use to it. Data is copied once between the request and a
//! buffer: by the driver, or by the daemon where the kernel lets it ([`Copy`](enum@Copy)).
//!
//! # Invariants
//! - One queue, served on the service's own thread if that takes a guest, else on one of its own.
//! - Blocks of 4096 bytes; a volatile write cache and FUA in the kernel's eyes.
//! - The device survives its process: requests wait, and those under way are issued again, until a
//!   new process takes it over ([`UblkDevice::recover`]) or takes it away ([`remove`]).
//! - Teardown: block device, queue, character device. Each step begins when nothing above is left.

mod abi;
mod control;
mod error;
mod queue;
mod rehearsal;
mod stale;

pub use error::UblkError;
pub use rehearsal::Rehearsal;
pub use stale::{Waiting, identity_of, remove, remove_remnants, waiting};

use crate::block_device::{
    ForeignDevice, StepFailed, Surviving, await_end, detach, not_handed_over,
};
use crate::claim::open;
use abi::{
    ATTR_FUA, ATTR_READ_ONLY, ATTR_ROTATIONAL, ATTR_VOLATILE_CACHE, DeviceInfo, F_CMD_IOCTL_ENCODE,
    F_USER_COPY, F_USER_RECOVERY, F_USER_RECOVERY_REISSUE, PARAM_BASIC, PARAM_DISCARD,
    PARAMETERS_SIZE, Parameters, STATE_LIVE, STATE_QUIESCED,
};
use control::{Control, is_unknown};
use coulter::service::{ATOMIC_WRITE_SIZE_MAX, BlockService, SECTOR_SIZE};
use coulter_attach::hosting::{self, Hosted, ThreadShape};
use coulter_attach::point::{AttachPoint, Detach, DetachError};
use queue::{Queue, Shape};
use rustix::fs::OFlags;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

/// Request slots of the queue.
const DEPTH: u16 = 128;
/// Bytes of the largest request: the atomic unit.
const IO_SIZE_MAX: u32 = ATOMIC_WRITE_SIZE_MAX as u32;
/// Bytes of the longest discard, in which nothing is moved.
const DISCARD_SIZE_MAX: u64 = 2 << 30;
/// How long the nodes in `/dev` may take to come, and the device to go.
const NODE_PATIENCE: Duration = Duration::from_secs(10);
/// How long the kernel may take to see that the process before is dead.
const RECOVERY_PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(5);
/// The thread of a queue that cannot have the service's.
const THREAD: ThreadShape = ThreadShape { name: "ublk", stack_size: 256 << 10 };

const _: () = assert!(IO_SIZE_MAX <= abi::IO_BUFFER_SIZE_MAX);

/// Who copies the data of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copy {
    /// The driver, between the request and a buffer that belongs to its slot. Any Linux; memory
    /// for the largest request in each slot.
    ByDriver,
    /// This process, by a call for each request. Linux 6.5; a fixed amount of memory, all of it
    /// had before the device is there.
    ByDaemon,
}

/// How a ublk device is attached.
#[derive(Clone, Debug, Default)]
pub struct UblkOptions {
    /// Refuse writes whatever the service allows.
    pub read_only: bool,
    /// Kept by the kernel with the device, so that whoever takes it over knows whose it is.
    pub identity: u64,
    /// Who copies; `None` for the better one that the kernel has.
    pub copy: Option<Copy>,
    /// Whether the device ends with this process, however that ends: whoever uses it gets I/O errors.
    /// Else it waits for another process to [recover](UblkDevice::recover) it.
    pub is_mortal: bool,
}

/// An attached ublk device. Dropping it takes it away, used or not.
pub struct UblkDevice {
    id: u32,
    control: Control,
    copy: Copy,
    is_mortal: bool,
    /// Whether the device is still ours to delete.
    exists: bool,
    /// The queue's loop, until it is over.
    queue: Option<Hosted>,
}

impl UblkDevice {
    /// Attaches `service` as a new device.
    ///
    /// # Errors
    /// [`UblkError`]; nothing is left then.
    pub fn attach(
        service: &dyn BlockService,
        options: &UblkOptions,
    ) -> Result<UblkDevice, UblkError> {
        let mut control = Control::open()?;
        let features = check_features(&mut control)?;
        let copy = options.copy.unwrap_or_else(|| preferred_copy(features));
        let mut info = DeviceInfo {
            queue_count: 1,
            queue_depth: DEPTH,
            io_size_max: IO_SIZE_MAX,
            id: u32::MAX,
            pid: std::process::id().cast_signed(),
            flags: F_CMD_IOCTL_ENCODE,
            identity: options.identity,
            ..DeviceInfo::default()
        };
        info.flags |= if copy == Copy::ByDaemon { F_USER_COPY } else { 0 };
        info.flags |= if options.is_mortal { 0 } else { F_USER_RECOVERY | F_USER_RECOVERY_REISSUE };
        control.add(&mut info).map_err(of_add)?;
        let id = info.id;
        // From here on a failure drops `device`, and with it all that was made.
        let is_mortal = options.is_mortal;
        let mut device = UblkDevice { id, control, copy, is_mortal, exists: true, queue: None };
        let parameters = parameters(service, options.read_only);
        device.control.set_parameters(id, parameters).map_err(|e| device.failed("set up", e))?;
        device.serve(service, shape_of(&info))?;
        device.control.start(id).map_err(|e| device.failed("start", e))?;
        device.await_node(&block_path(id))?;
        Ok(device)
    }

    /// Takes over the device `id` of a process that died: whoever uses it goes on as if nothing
    /// had happened. `service` has to have the same content.
    ///
    /// # Errors
    /// [`UblkError::Served`] while the other process lives; [`UblkError::Foreign`] if it was made
    /// with another identity or size. The device goes on waiting then.
    pub fn recover(
        service: &dyn BlockService,
        id: u32,
        options: &UblkOptions,
    ) -> Result<UblkDevice, UblkError> {
        let mut control = Control::open()?;
        check_features(&mut control)?;
        let info = check_recoverable(&mut control, id, service, options)?;
        let shape = shape_of(&info);
        let failed = |step, source| {
            let target = block_path(id);
            UblkError::System(StepFailed { step, target, source })
        };
        retry_while_busy(|| control.start_recovery(id)).map_err(|e| failed("take over", e))?;
        // Until the end of this function a failure leaves the device waiting for another attempt.
        let (copy, is_mortal) = (shape.copy, false);
        let mut device = UblkDevice { id, control, copy, is_mortal, exists: false, queue: None };
        device.serve(service, shape)?;
        device.control.end_recovery(id).map_err(|e| failed("resume", e))?;
        device.exists = true;
        Ok(device)
    }

    /// The block device's path.
    pub fn device(&self) -> PathBuf {
        block_path(self.id)
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Who copies.
    pub fn copy(&self) -> Copy {
        self.copy
    }

    /// Starts the loop of the queue, and returns when all slots are offered.
    fn serve(&mut self, service: &dyn BlockService, shape: Shape) -> Result<(), UblkError> {
        let path = character_path(self.id);
        self.await_node(&path)?;
        let character = open(&path, OFlags::RDWR).map_err(|e| self.failed("open", e))?;
        let (offered, was_offered) = sync_channel::<io::Result<()>>(1);
        let hosted = hosting::host(service, &THREAD, move |session, place| {
            match Queue::offer(character, session, place, shape) {
                Ok(queue) => {
                    // The other end waits for it.
                    let _ = offered.send(Ok(()));
                    queue.run();
                }
                Err(error) => drop(offered.send(Err(error))),
            }
        });
        self.queue = Some(hosted.map_err(|e| self.failed("start a thread for", e))?);
        let died = |_| Err(io::Error::other("the thread that was to serve it died"));
        was_offered.recv().unwrap_or_else(died).map_err(|e| self.failed("serve", e))
    }

    /// Waits until a node is there, which the kernel or udev makes.
    fn await_node(&self, path: &Path) -> Result<(), UblkError> {
        let limit = Instant::now() + NODE_PATIENCE;
        while !path.exists() {
            if Instant::now() >= limit {
                let source = io::ErrorKind::TimedOut.into();
                let target = path.to_owned();
                return Err(UblkError::System(StepFailed { step: "find", target, source }));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn failed(&self, step: &'static str, source: io::Error) -> UblkError {
        UblkError::System(StepFailed { step, target: self.device(), source })
    }

    fn refused(&self, step: &'static str, source: io::Error) -> DetachError {
        DetachError::System { step, target: self.address(), source }
    }
}

impl Surviving for UblkDevice {
    fn path(&self) -> PathBuf {
        self.device()
    }

    fn exists(&self) -> bool {
        self.exists
    }

    /// Block device, queue and character device, in this order.
    fn take_away(&mut self, claim: Option<OwnedFd>) -> Result<(), DetachError> {
        let is_idle = claim.is_some();
        match self.control.stop(self.id) {
            Err(error) if error.raw_os_error() != Some(libc::ENODEV) => {
                return Err(self.refused("stop", error));
            }
            _ => drop(claim),
        }
        if let Some(queue) = self.queue.take() {
            queue.await_end();
        }
        match self.control.delete(self.id) {
            Err(error) if error.raw_os_error() != Some(libc::ENODEV) => {
                return Err(self.refused("delete", error));
            }
            _ => self.exists = false,
        }
        // With users it stays until the last of them lets go.
        if is_idle { await_end(&self.device(), || sysfs_path(self.id).exists()) } else { Ok(()) }
    }
}

impl AttachPoint for UblkDevice {
    fn kind(&self) -> &'static str {
        "ublk"
    }

    fn address(&self) -> String {
        self.device().display().to_string()
    }

    fn detach(&mut self, how: Detach) -> Result<(), DetachError> {
        detach(self, how)
    }

    fn hand_over(&mut self) -> io::Result<OwnedFd> {
        Err(match self.is_mortal {
            true => io::Error::new(io::ErrorKind::Unsupported, "this device ends with its process"),
            false => not_handed_over(),
        })
    }
}

impl Drop for UblkDevice {
    fn drop(&mut self) {
        // A destructor cannot report an error.
        let _ = self.detach(Detach::Always);
    }
}

/// Whether this kernel has what is needed, and this process may use it.
///
/// # Errors
/// [`UblkError`] with what is missing.
pub fn check() -> Result<(), UblkError> {
    check_features(&mut Control::open()?).map(drop)
}

/// What this cannot do without: the bit, what it stands for, and the first Linux that has it.
const NEEDED: [(u64, &str, &str); 2] = [
    (F_USER_RECOVERY, "recovery by a new process (UBLK_F_USER_RECOVERY)", "6.1"),
    (F_USER_RECOVERY_REISSUE, "re-issue after recovery (UBLK_F_USER_RECOVERY_REISSUE)", "6.1"),
];

fn check_features(control: &mut Control) -> Result<u64, UblkError> {
    let features = control.features().map_err(of_features)?;
    match missing(features) {
        Some(error) => Err(error),
        None => Ok(features),
    }
}

/// The first thing that a driver with these features lacks.
fn missing(features: u64) -> Option<UblkError> {
    let lacking = NEEDED.into_iter().find(|(bit, ..)| features & bit == 0);
    lacking.map(|(_, feature, since)| UblkError::Lacks { feature, since })
}

/// What it means that the driver does not say what it can.
fn of_features(error: io::Error) -> UblkError {
    match error {
        error if is_unknown(&error) => {
            UblkError::Lacks { feature: "a list of its features", since: "6.5" }
        }
        source => UblkError::System(StepFailed {
            step: "ask for its features",
            target: "/dev/ublk-control".into(),
            source,
        }),
    }
}

fn preferred_copy(features: u64) -> Copy {
    if features & F_USER_COPY != 0 { Copy::ByDaemon } else { Copy::ByDriver }
}

/// What it means that a device cannot be made.
fn of_add(error: io::Error) -> UblkError {
    match error.raw_os_error() {
        // The first is what the driver says at its own limit (`ublks_max`).
        Some(libc::EACCES | libc::ENOSPC | libc::ENODEV | libc::EMFILE) => {
            UblkError::NoDeviceLeft(error)
        }
        Some(libc::EPERM) => UblkError::NoPermission(error),
        _ => {
            let target = "/dev/ublk-control".into();
            UblkError::System(StepFailed { step: "make a device at", target, source: error })
        }
    }
}

fn shape_of(info: &DeviceInfo) -> Shape {
    let by_daemon = info.flags & F_USER_COPY != 0;
    Shape {
        depth: info.queue_depth,
        io_size_max: info.io_size_max,
        copy: if by_daemon { Copy::ByDaemon } else { Copy::ByDriver },
    }
}

/// The device's limits.
fn parameters(service: &dyn BlockService, read_only: bool) -> Parameters {
    let disk = service.describe();
    let read_only = read_only || disk.read_only;
    let discard_sectors_max = (DISCARD_SIZE_MAX / SECTOR_SIZE) as u32;
    // Whole blocks only: the driver would hand on smaller requests one by one.
    let block_shift = disk.block_size.trailing_zeros() as u8;
    let attributes = [(read_only, ATTR_READ_ONLY), (disk.rotational, ATTR_ROTATIONAL)];
    let attributes = attributes.iter().filter(|(is, _)| *is).map(|(_, attribute)| attribute);
    Parameters {
        length: PARAMETERS_SIZE,
        types: PARAM_BASIC | PARAM_DISCARD,
        attributes: attributes.fold(ATTR_VOLATILE_CACHE | ATTR_FUA, |all, one| all | one),
        logical_block_shift: block_shift,
        physical_block_shift: block_shift,
        io_minimal_shift: block_shift,
        io_optimal_shift: IO_SIZE_MAX.trailing_zeros() as u8,
        sectors_max: IO_SIZE_MAX / SECTOR_SIZE as u32,
        device_sectors: disk.size / SECTOR_SIZE,
        discard_granularity: disk.discard_granularity as u32,
        discard_sectors_max,
        write_zeroes_sectors_max: discard_sectors_max,
        discard_segments_max: 1,
        ..Parameters::default()
    }
}

/// Whether the device may be taken over with this service.
fn check_recoverable(
    control: &mut Control,
    id: u32,
    service: &dyn BlockService,
    options: &UblkOptions,
) -> Result<DeviceInfo, UblkError> {
    let device = block_path(id);
    let failed = |step, source| {
        let target = block_path(id);
        UblkError::System(StepFailed { step, target, source })
    };
    let info = control.info(id).map_err(|error| failed("look at", error))?;
    let size = control.parameters(id).map_err(|error| failed("look at", error))?.device_sectors;
    if info.identity != options.identity {
        let what = "it was made for another store";
        return Err(UblkError::Foreign(ForeignDevice { device, what }));
    }
    if size != service.size() / SECTOR_SIZE || info.queue_count != 1 {
        let what = "its size or its queues differ";
        return Err(UblkError::Foreign(ForeignDevice { device, what }));
    }
    let is_served = info.state == STATE_LIVE && stale::is_alive(info.pid);
    if is_served || ![STATE_LIVE, STATE_QUIESCED].contains(&info.state) {
        return Err(UblkError::Served { device, pid: info.pid });
    }
    Ok(info)
}

/// The kernel sees only after a moment that the process before is gone.
fn retry_while_busy(mut attempt: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let limit = Instant::now() + RECOVERY_PATIENCE;
    loop {
        match attempt() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < limit => {
                std::thread::sleep(PAUSE);
            }
            outcome => return outcome,
        }
    }
}

fn block_path(id: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{id}"))
}

fn character_path(id: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkc{id}"))
}

fn sysfs_path(id: u32) -> PathBuf {
    PathBuf::from(format!("/sys/class/ublk-char/ublkc{id}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_that_is_missing_alone_is_named_with_the_linux_that_has_it() {
        let all = NEEDED.iter().fold(F_USER_COPY, |features, (bit, ..)| features | bit);
        assert!(missing(all).is_none());
        assert!(missing(all & !F_USER_COPY).is_none(), "without it the driver copies");
        for (bit, feature, since) in NEEDED {
            let text = missing(all & !bit).expect("it is needed").to_string();
            assert!(text.contains(feature), "{text}");
            assert!(text.ends_with(&format!("which Linux {since} has")), "{text}");
        }
        for errno in [libc::EOPNOTSUPP, libc::EINVAL, libc::ENOTTY] {
            let text = of_features(io::Error::from_raw_os_error(errno)).to_string();
            assert!(text.contains("lacks a list of its features, which Linux 6.5 has"), "{text}");
        }
    }

    #[test]
    fn the_better_way_to_copy_is_taken_where_there_is_one() {
        assert_eq!(preferred_copy(F_USER_COPY), Copy::ByDaemon);
        assert_eq!(preferred_copy(F_USER_RECOVERY), Copy::ByDriver);
    }

    #[test]
    fn a_refusal_to_make_a_device_says_what_to_do() {
        let said = |errno| of_add(io::Error::from_raw_os_error(errno)).to_string();
        for errno in [libc::EACCES, libc::ENOSPC, libc::ENODEV, libc::EMFILE] {
            assert!(said(errno).contains("all ublk devices are taken"), "{errno}");
        }
        assert!(said(libc::EPERM).contains("root"));
        assert!(said(libc::EIO).contains("/dev/ublk-control"));
    }
}
