//! A block device of the kernel's own NVMe/TCP initiator, over the loopback: `/dev/nvmeXn1`, connected to a
//! target of this process. For kernels without ublk that have nvme-tcp.
//!
//! # Invariants
//! - The target listens where the device was made, for as long as there is the device: the initiator
//!   connects there again by itself, every [`RECONNECT_DELAY_S`], and never gives up.
//! - The device survives its process: requests wait until a new process takes it over
//!   ([`NvmeDevice::recover`]) or takes it away ([`remove`]). What was under way is issued again.
//! - Only root may listen at the port: the initiator connects there again after the target has
//!   died, and takes what it finds for the disk.
//! - Only the kernel and root are let in, by the kernel's own table of sockets. Nothing is
//!   discoverable.
//!
//! Keys (DH-HMAC-CHAP) would give neither: Linux shows the key of a host to every user
//! (`dhchap_secret` in sysfs can be read by all), and it goes on without a proof when a target asks
//! for none, so that an impostor need not know the key of the controller.
//!
//! # Contract
//! - Teardown: device, target. The second begins when the first is gone.

mod error;
mod fabrics;

pub use error::NvmeDeviceError;
pub use fabrics::{WaitingController, find};

use crate::block_device::{ForeignDevice, StepFailed, Surviving, await_end, detach};
use coulter::service::SECTOR_SIZE;
use coulter_attach::point::{AttachPoint, Detach, DetachError};
use coulter_net::{Address, ServeError};
use coulter_nvme_target::{Disk, Target, TargetOptions, host_name};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Seconds between attempts to connect again.
pub const RECONNECT_DELAY_S: u32 = 1;
/// Ports that are tried: those below the ports that NFS and `bindresvport` take which are assigned
/// to no service.
const PORTS: [std::ops::Range<u16>; 4] = [272..280, 288..308, 325..333, 335..344];
/// I/O queues: each is a connection and a thread.
const QUEUE_COUNT: u16 = 2;
/// Time for the block device to appear.
const DEVICE_PATIENCE: Duration = Duration::from_secs(10);

/// An attached device. Dropping it takes it away, used or not.
pub struct NvmeDevice {
    controller: WaitingController,
    /// Whether the device is still ours to delete.
    exists: bool,
    target: Target,
}

impl NvmeDevice {
    /// Attaches `disk` as a device.
    ///
    /// # Errors
    /// [`NvmeDeviceError`]; nothing is left then.
    pub fn attach(disk: Disk, options: TargetOptions) -> Result<NvmeDevice, NvmeDeviceError> {
        check()?;
        let host_id = disk.service.describe().identity.uuid;
        let size = disk.service.size();
        let target = listen(&disk, &options)?;
        let name = target.names().remove(0);
        let Address::Tcp { port, .. } = *target.address() else { unreachable!("it is TCP") };
        let words = format!(
            "transport=tcp,traddr=127.0.0.1,trsvcid={port},nqn={name},hostnqn={host},\
             hostid={id},nr_io_queues={QUEUE_COUNT},reconnect_delay={RECONNECT_DELAY_S},\
             ctrl_loss_tmo=-1,keep_alive_tmo=5",
            host = host_name(&host_id),
            id = coulter_nvme_target::uuid_text(&host_id),
        );
        fabrics::connect(&words).map_err(|source| {
            let (step, target) =
                ("connect the kernel's initiator to", target.address().to_string());
            NvmeDeviceError::System(StepFailed { step, target: target.into(), source })
        })?;
        let gone = || NvmeDeviceError::NoDevice;
        let controller = find(&name).ok_or_else(gone)?;
        let mut device = NvmeDevice { controller, exists: true, target };
        device.await_device(&name, size)?;
        device.tune();
        Ok(device)
    }

    /// Takes over the device of a process that died: `waiting` is what [`find`] has found.
    ///
    /// # Errors
    /// [`NvmeDeviceError::Foreign`] if its size differs. The device goes on waiting then.
    pub fn recover(
        waiting: WaitingController,
        disk: Disk,
        options: TargetOptions,
    ) -> Result<NvmeDevice, NvmeDeviceError> {
        check()?;
        if waiting.port >= fabrics::unprivileged_ports() {
            let what = "it connects to a port at which any user may listen";
            let device = waiting.device().unwrap_or_default();
            return Err(NvmeDeviceError::Foreign(ForeignDevice { device, what }));
        }
        if waiting.size().is_some_and(|size| size != disk.service.size()) {
            let what = "its size differs";
            let device = waiting.device().unwrap_or_default();
            return Err(NvmeDeviceError::Foreign(ForeignDevice { device, what }));
        }
        let host = "127.0.0.1".to_owned();
        let address = Address::Tcp { host, port: waiting.port };
        let options = TargetOptions { own_kernel: true, ..options };
        let target =
            Target::start(&address, vec![disk], options).map_err(NvmeDeviceError::Target)?;
        Ok(NvmeDevice { controller: waiting, exists: true, target })
    }

    /// Goes on with a socket that was handed over, and the device that waits behind it.
    ///
    /// # Errors
    /// When the socket is of no use, or the device is gone.
    pub fn resume(
        socket: OwnedFd,
        disk: Disk,
        options: TargetOptions,
    ) -> Result<NvmeDevice, NvmeDeviceError> {
        let options = TargetOptions { own_kernel: true, ..options };
        let target =
            Target::resume(socket, vec![disk], options).map_err(NvmeDeviceError::Target)?;
        let controller = find(&target.names()[0]).ok_or(NvmeDeviceError::NoDevice)?;
        Ok(NvmeDevice { controller, exists: true, target })
    }

    fn await_device(&mut self, name: &str, size: u64) -> Result<(), NvmeDeviceError> {
        let limit = Instant::now() + DEVICE_PATIENCE;
        loop {
            let found = find(name).ok_or(NvmeDeviceError::NoDevice)?;
            let is_there = found.device().is_some_and(|device| device.exists());
            if is_there && found.size() == Some(size) {
                self.controller = found;
                return Ok(());
            }
            if Instant::now() >= limit {
                return Err(NvmeDeviceError::NoDevice);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The block device's path.
    pub fn device(&self) -> PathBuf {
        self.controller.device().unwrap_or_default()
    }

    fn tune(&self) {
        // It only makes it quicker: no sorting of what becomes sequential anyway.
        if let Some(name) = self.device().file_name() {
            let scheduler = Path::new("/sys/block").join(name).join("queue/scheduler");
            let _ = std::fs::write(scheduler, "none");
        }
    }
}

/// Listens on the first port that is free.
fn listen(disk: &Disk, options: &TargetOptions) -> Result<Target, NvmeDeviceError> {
    let options = TargetOptions { own_kernel: true, ..options.clone() };
    let (in_use, unprivileged) = (fabrics::ports_in_use(), fabrics::unprivileged_ports());
    let is_usable = |port: &u16| *port < unprivileged && !in_use.contains(port);
    for port in PORTS.into_iter().flatten().filter(is_usable) {
        let address = Address::Tcp { host: "127.0.0.1".into(), port };
        match Target::start(&address, vec![disk.clone()], options.clone()) {
            Err(ServeError::Bind { source, .. }) if source.kind() == io::ErrorKind::AddrInUse => {}
            outcome => return outcome.map_err(NvmeDeviceError::Target),
        }
    }
    Err(NvmeDeviceError::NoPort)
}

impl Surviving for NvmeDevice {
    fn path(&self) -> PathBuf {
        self.device()
    }

    fn exists(&self) -> bool {
        self.exists
    }

    fn take_away(&mut self, claim: Option<OwnedFd>) -> Result<(), DetachError> {
        self.controller.delete().map_err(|source| {
            let target = self.controller.path.display().to_string();
            DetachError::System { step: "delete", target, source }
        })?;
        if claim.is_some() {
            drop(claim);
            let path = self.controller.path.clone();
            await_end(&self.device(), || path.exists())?;
        }
        self.exists = false;
        self.target.shutdown();
        Ok(())
    }
}

impl AttachPoint for NvmeDevice {
    fn kind(&self) -> &'static str {
        "nvme"
    }

    fn address(&self) -> String {
        self.device().display().to_string()
    }

    fn detach(&mut self, how: Detach) -> Result<(), DetachError> {
        detach(self, how)
    }

    /// The initiator is hung up on, once what it had asked for is done, and connects again.
    fn hand_over(&mut self) -> io::Result<OwnedFd> {
        let socket = self.target.hand_over()?;
        self.exists = false;
        Ok(socket)
    }
}

impl Drop for NvmeDevice {
    fn drop(&mut self) {
        // A destructor cannot report an error.
        let _ = self.detach(Detach::Always);
    }
}

/// Whether this kernel has the initiator, and this process may use it.
///
/// # Errors
/// [`NvmeDeviceError`] with what is missing.
pub fn check() -> Result<(), NvmeDeviceError> {
    if !rustix::process::geteuid().is_root() {
        return Err(NvmeDeviceError::NoPermission);
    }
    fabrics::check().map_err(NvmeDeviceError::NoDriver)
}

/// Takes away a device that waits. What uses it gets I/O errors, and what it was asked and had not
/// answered is lost.
///
/// # Errors
/// When the kernel refuses.
pub fn remove(waiting: &WaitingController) -> Result<(), NvmeDeviceError> {
    waiting.delete().map_err(|source| {
        let target = waiting.path.clone();
        NvmeDeviceError::System(StepFailed { step: "delete", target, source })
    })
}

const _: () = assert!(SECTOR_SIZE == 512);
