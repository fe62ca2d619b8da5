//! A block device of the kernel's NBD client: `/dev/nbdN`, over several connections to a server of
//! this process.
//!
//! # What it does not do
//! It does not spare the hop between the server's threads and the volume's, as ublk does; it is for
//! kernels without ublk.
//!
//! # Invariants
//! - The server listens on a unix socket all the while, so that other clients may come too.
//! - Connections that the kernel gives up, because a request took too long, are replaced.
//! - The device survives its process: requests wait, for [`DEAD_TIMEOUT`] at most, until a new
//!   process takes it over ([`NbdDevice::recover`]) or takes it away ([`remove`]). Requests that
//!   were under way are issued again [`REQUEST_TIMEOUT`] after they were issued first.
//! - Teardown: device, server. The second begins when the first is gone.

mod error;
mod keeper;
mod netlink;

pub use error::NbdDeviceError;

use crate::block_device::{
    ForeignDevice, StepFailed, Surviving, await_end, detach, not_handed_over,
};
use coulter::service::{ATOMIC_WRITE_SIZE_MAX, BLOCK_SIZE, SECTOR_SIZE};
use coulter_attach::point::{AttachPoint, Detach, DetachError};
use coulter_net::nbd::{Address, Export, Server, ServerOptions, handshake_only};
use keeper::{Keeper, Watched};
use netlink::{Netlink, Terms};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// After this long a request that is not answered is issued again, on another connection.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// For this long requests wait for a new process when there is none.
pub const DEAD_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Connections; more than one, so that one of them may be replaced while others go on.
const CONNECTION_COUNT: usize = 4;

/// How a device is attached.
pub struct NbdDeviceOptions {
    /// What the server below is to serve.
    pub export: Export,
    /// Where the server below listens; a unix socket.
    pub address: Address,
    /// The server's, but for its memory.
    pub server: ServerOptions,
    /// Kept by the kernel with the device, so that whoever takes it over knows whose it is.
    pub identity: String,
    /// [`REQUEST_TIMEOUT`], unless a test is in a hurry.
    pub request_timeout: Duration,
}

impl NbdDeviceOptions {
    /// With the usual timeouts.
    pub fn new(export: Export, address: Address, identity: String) -> NbdDeviceOptions {
        let (server, request_timeout) = (ServerOptions::default(), REQUEST_TIMEOUT);
        NbdDeviceOptions { export, address, server, identity, request_timeout }
    }
}

/// An attached NBD device. Dropping it takes it away, used or not.
pub struct NbdDevice {
    index: u32,
    netlink: Netlink,
    /// Whether the device is still ours to disconnect.
    exists: bool,
    keeper: Option<Keeper>,
    server: Server,
}

/// What a device is made of, shared by making one and taking one over.
struct Made {
    netlink: Netlink,
    server: Server,
    export: String,
    size: u64,
    flags: u16,
    sockets: Vec<OwnedFd>,
}

impl NbdDevice {
    /// Attaches the service of the export as a device.
    ///
    /// # Errors
    /// [`NbdDeviceError`]; nothing is left then.
    pub fn attach(options: NbdDeviceOptions) -> Result<NbdDevice, NbdDeviceError> {
        let (identity, request_timeout) = (options.identity.clone(), options.request_timeout);
        let mut made = make(options)?;
        let terms = terms(&made, &identity, request_timeout);
        let index =
            made.netlink.connect(&terms, &made.sockets).map_err(NbdDeviceError::of_connect)?;
        let device = NbdDevice::over(made, index, identity, request_timeout)?;
        device.tune();
        Ok(device)
    }

    /// Takes over the device `index` of a process that died. The service has to have the same
    /// content.
    ///
    /// # Errors
    /// [`NbdDeviceError::Foreign`] if it was made with another identity or size. The device goes
    /// on waiting then.
    pub fn recover(index: u32, options: NbdDeviceOptions) -> Result<NbdDevice, NbdDeviceError> {
        let (identity, request_timeout) = (options.identity.clone(), options.request_timeout);
        let device = device_path(index);
        let foreign = |what| {
            let device = device.clone();
            Err(NbdDeviceError::Foreign(ForeignDevice { device, what }))
        };
        if identity_of(index).as_deref() != Some(&identity) {
            return foreign("it was made for another store");
        }
        if size_of_device(index) != Some(options.export.service.size()) {
            return foreign("its size differs");
        }
        let mut made = make(options)?;
        let terms = terms(&made, &identity, request_timeout);
        let system = |source| {
            let (step, target) = ("give new connections to", device.clone());
            NbdDeviceError::System(StepFailed { step, target, source })
        };
        made.netlink.reconnect(index, &terms, &made.sockets).map_err(system)?;
        NbdDevice::over(made, index, identity, request_timeout)
    }

    fn over(
        made: Made,
        index: u32,
        identity: String,
        request_timeout: Duration,
    ) -> Result<NbdDevice, NbdDeviceError> {
        let Made { netlink, server, export, size, flags, sockets } = made;
        let address = server.address().clone();
        let mut device = NbdDevice { index, netlink, exists: true, keeper: None, server };
        let watched = Watched { index, identity, request_timeout, address, export, size, flags };
        let started = Keeper::start(watched, sockets);
        device.keeper = Some(started.map_err(|source| {
            let (step, target) = ("watch the connections of", device_path(index));
            NbdDeviceError::System(StepFailed { step, target, source })
        })?);
        Ok(device)
    }

    /// The block device's path.
    pub fn device(&self) -> PathBuf {
        device_path(self.index)
    }

    /// Its number.
    pub fn index(&self) -> u32 {
        self.index
    }

    fn tune(&self) {
        let queue = sysfs_path(self.index).join("queue");
        // Both only make it quicker: the atomic unit as the largest request, and no sorting of what
        // becomes sequential anyway.
        let kib = ATOMIC_WRITE_SIZE_MAX >> 10;
        let _ = std::fs::write(queue.join("max_sectors_kb"), kib.to_string());
        let _ = std::fs::write(queue.join("scheduler"), "none");
    }

    fn disconnect(&mut self) -> Result<(), DetachError> {
        // First, or it would mend what is about to be broken.
        self.keeper = None;
        let target = self.address();
        match self.netlink.disconnect(self.index) {
            // It was disconnected by somebody else.
            Err(error) if error.raw_os_error() != Some(libc::EINVAL) => {
                Err(DetachError::System { step: "disconnect", target, source: error })
            }
            _ => Ok(()),
        }
    }
}

impl Surviving for NbdDevice {
    fn path(&self) -> PathBuf {
        self.device()
    }

    fn exists(&self) -> bool {
        self.exists
    }

    fn take_away(&mut self, claim: Option<OwnedFd>) -> Result<(), DetachError> {
        self.disconnect()?;
        if claim.is_some() {
            drop(claim);
            await_end(&self.device(), || is_configured(self.index))?;
        }
        self.exists = false;
        self.server.shutdown();
        Ok(())
    }
}

impl AttachPoint for NbdDevice {
    fn kind(&self) -> &'static str {
        "nbd"
    }

    fn address(&self) -> String {
        self.device().display().to_string()
    }

    fn detach(&mut self, how: Detach) -> Result<(), DetachError> {
        detach(self, how)
    }

    fn hand_over(&mut self) -> io::Result<OwnedFd> {
        Err(not_handed_over())
    }
}

impl Drop for NbdDevice {
    fn drop(&mut self) {
        // A destructor cannot report an error.
        let _ = self.detach(Detach::Always);
    }
}

/// Whether this kernel has the client, and this process may use it.
///
/// # Errors
/// [`NbdDeviceError`] with what is missing.
pub fn check() -> Result<(), NbdDeviceError> {
    if !rustix::process::geteuid().is_root() {
        let source = io::Error::from_raw_os_error(libc::EPERM);
        return Err(NbdDeviceError::NoPermission(source));
    }
    Netlink::open().map(drop).map_err(NbdDeviceError::NoDriver)
}

/// The device that was made with this identity, if there is one. Whether it is served or waits is
/// not to be seen: a device goes on under the number of its first process.
pub fn find(identity: &str) -> Option<u32> {
    let entries = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let mut indices = entries
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("nbd")?.parse::<u32>().ok());
    indices.find(|index| is_configured(*index) && identity_of(*index).as_deref() == Some(identity))
}

/// Whether the device was made with this identity, as far as the kernel tells: one before Linux 5.14
/// says only whether it is in use.
pub fn is_of(device: &Path, identity: &str) -> bool {
    let name = device.file_name().and_then(|name| name.to_str()?.strip_prefix("nbd"));
    let Some(index) = name.and_then(|number| number.parse().ok()) else { return false };
    identity_of(index).map_or_else(|| is_configured(index), |found| found == identity)
}

/// The path of the device `index`.
pub fn device_path(index: u32) -> PathBuf {
    PathBuf::from(format!("/dev/nbd{index}"))
}

/// Takes away a device that waits. What uses it gets I/O errors, and what it was asked and had not
/// answered is lost.
///
/// # Errors
/// When the kernel refuses.
pub fn remove(index: u32) -> Result<(), NbdDeviceError> {
    let failed = |source| {
        let (step, target) = ("disconnect", device_path(index));
        NbdDeviceError::System(StepFailed { step, target, source })
    };
    let mut netlink = Netlink::open().map_err(NbdDeviceError::NoDriver)?;
    netlink.disconnect(index).map_err(failed)
}

fn make(options: NbdDeviceOptions) -> Result<Made, NbdDeviceError> {
    check()?;
    let netlink = Netlink::open().map_err(NbdDeviceError::NoDriver)?;
    let NbdDeviceOptions { export, address, server, .. } = options;
    let server = ServerOptions { own_kernel: true, ..server };
    let name = export.name.clone();
    let server = Server::start(&address, vec![export], server).map_err(NbdDeviceError::Server)?;
    let mut sockets = Vec::with_capacity(CONNECTION_COUNT);
    let (mut size, mut flags) = (0, 0);
    for _ in 0..CONNECTION_COUNT {
        let connected =
            handshake_only(server.address(), &name).map_err(NbdDeviceError::Handshake)?;
        (size, flags) = (connected.size, connected.flags);
        sockets.push(connected.socket);
    }
    Ok(Made { netlink, server, export: name, size, flags, sockets })
}

fn terms<'a>(made: &Made, identifier: &'a str, request_timeout: Duration) -> Terms<'a> {
    Terms {
        size: made.size,
        block_size: BLOCK_SIZE,
        flags: made.flags,
        request_timeout_s: request_timeout.as_secs(),
        dead_timeout_s: DEAD_TIMEOUT.as_secs(),
        identifier,
    }
}

fn sysfs_path(index: u32) -> PathBuf {
    Path::new("/sys/block").join(format!("nbd{index}"))
}

fn is_configured(index: u32) -> bool {
    sysfs_path(index).join("pid").exists()
}

fn identity_of(index: u32) -> Option<String> {
    let text = std::fs::read_to_string(sysfs_path(index).join("backend")).ok()?;
    Some(text.trim_end().to_owned())
}

fn size_of_device(index: u32) -> Option<u64> {
    let sectors = std::fs::read_to_string(sysfs_path(index).join("size")).ok()?;
    sectors.trim_end().parse::<u64>().ok()?.checked_mul(SECTOR_SIZE)
}
