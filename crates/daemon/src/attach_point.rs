//! Attach points as the verbs see them: started for a job, ended, and cleared away after a death.

use crate::control::{self, Request};
use crate::error::{DaemonError, Error, StateError};
use crate::inherited;
use crate::job::{FsOptions, Job, Point};
use crate::nvme::NvmeTarget;
use crate::opening::Acknowledge;
use crate::state::{Entry, StateDirectory, Via};
use coulter::service::{BLOCK_SIZE, BlockService, Session};
use coulter_attach::fuse::FILE_NAME;
use coulter_attach::fuse::files::{FilesMount, MountOptions};
use coulter_attach::loop_device::{self, LoopDevice, LoopOptions};
use coulter_attach::nbd::{Address, Client, ClientOptions, Event, Export, Server, ServerOptions};
use coulter_attach::nbd_device::{self, NbdDevice, NbdDeviceOptions};
use coulter_attach::nvme::{Disk, TargetOptions, subsystem_name};
use coulter_attach::nvme_device::{self, NvmeDevice};
use coulter_attach::point::{AttachPoint as Inner, Detach, DetachError};
use coulter_attach::ublk::{self, UblkDevice, UblkError, UblkOptions};
use coulter_system::dead_mounts;
use coulter_system::mounts::{self, Mount};
use coulter_terminal::reason_of;
use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Something that hosts talk to, in front of one volume.
pub struct AttachPoint {
    inner: Box<dyn Inner>,
    name: String,
    store: PathBuf,
    /// Hosts see nothing of it any more.
    is_gone: bool,
}

impl AttachPoint {
    /// Offers `service` as `job` wants it.
    ///
    /// # Errors
    /// [`DaemonError::Attach`] with the system's reason; [`StateError::DeviceWaits`] if there is a
    /// device of this volume, and it is not to be taken over.
    pub fn start(
        state: &StateDirectory,
        job: &Job,
        entry: &Entry,
        service: Arc<dyn BlockService>,
    ) -> Result<AttachPoint, Error> {
        let failed = |reason: String| DaemonError::Attach { store: entry.store.clone(), reason };
        let inner: Box<dyn Inner> = match &job.point {
            Point::Ublk => ublk(job, entry, &*service)?,
            Point::Nbd => nbd(state, job, entry, service)?,
            Point::Loop => {
                let options = loop_options(entry);
                let directory = state.file(&entry.name, "mount");
                let device = LoopDevice::attach(&*service, &directory, &options);
                Box::new(device.map_err(|error| failed(error.to_string()))?)
            }
            Point::NbdInState => {
                let address = Address::Unix(state.file(&entry.name, "nbd"));
                Box::new(serve(&address, false, entry, service).map_err(failed)?)
            }
            Point::NbdInherited => {
                let (export, options) = nbd_server(entry, service);
                let socket = inherited::take_socket()?;
                let server = Server::resume(socket, false, vec![export], options);
                Box::new(server.map_err(|error| failed(error.to_string()))?)
            }
            Point::NbdAt { address, allow_remote } => {
                Box::new(serve(address, *allow_remote, entry, service).map_err(failed)?)
            }
            Point::NvmeDevice => nvme(job, entry, service)?,
            Point::Nvme(place) => {
                let target = NvmeTarget::start(state, place, entry, service);
                Box::new(target.map_err(|error| failed(error.to_string()))?)
            }
            Point::Fs { directory, options } => {
                let (overlay, options) = (options.overlay, mount_options(entry, options));
                let mount = match overlay {
                    None => FilesMount::mount(&*service, directory, &options),
                    Some(overlay) => {
                        FilesMount::mount_overlay(&*service, directory, &options, overlay)
                    }
                };
                Box::new(mount.map_err(|error| failed(error.to_string()))?)
            }
        };
        Ok(AttachPoint::new(inner, entry))
    }

    fn new(inner: Box<dyn Inner>, entry: &Entry) -> AttachPoint {
        let (name, store) = (entry.name.clone(), entry.store.clone());
        AttachPoint { inner, name, store, is_gone: false }
    }

    /// Goes on with what another program has handed over: `service` at `point` as `entry` says.
    ///
    /// # Errors
    /// [`DaemonError::Attach`] with the system's reason; the attach point is gone then.
    pub fn resume(
        state: &StateDirectory,
        point: &Point,
        entry: &Entry,
        service: Arc<dyn BlockService>,
        descriptor: OwnedFd,
    ) -> Result<AttachPoint, Error> {
        let failed = |reason: String| DaemonError::Attach { store: entry.store.clone(), reason };
        let inner: Box<dyn Inner> = match point {
            Point::Loop => {
                let device = Path::new(entry.device.as_deref().unwrap_or_default());
                let directory = state.file(&entry.name, "mount");
                let options = loop_options(entry);
                let device =
                    LoopDevice::resume(&*service, descriptor, device, &directory, &options);
                let device = device.map_err(|error| failed(error.to_string()))?;
                if let Err(error) = device.take_over_size(service.size()) {
                    log::error!(error:%; "hosts do not see the size of the volume");
                }
                Box::new(device)
            }
            // These hand nothing over: whoever is to serve them next takes them over.
            Point::Ublk | Point::Nbd | Point::Fs { .. } => {
                return Err(failed("it is taken over by `attach --recover`".to_owned()).into());
            }
            Point::NvmeDevice => {
                let (disk, options) = nvme_target(entry, service);
                let device = NvmeDevice::resume(descriptor, disk, options);
                Box::new(device.map_err(|error| failed(error.to_string()))?)
            }
            Point::Nvme(place) => {
                let target = NvmeTarget::resume(state, place, entry, service, descriptor);
                Box::new(target.map_err(|error| failed(error.to_string()))?)
            }
            Point::NbdInState | Point::NbdAt { .. } | Point::NbdInherited => {
                let owns_file = *point != Point::NbdInherited;
                let (export, options) = nbd_server(entry, service);
                let server = Server::resume(descriptor, owns_file, vec![export], options);
                Box::new(server.map_err(|error| failed(error.to_string()))?)
            }
        };
        Ok(AttachPoint::new(inner, entry))
    }

    /// Stops, and leaves what hosts see in its place for whoever resumes with the descriptor.
    ///
    /// # Errors
    /// [`DaemonError::Restart`]; it serves on.
    pub fn hand_over(&mut self) -> Result<OwnedFd, Error> {
        self.inner.hand_over().map_err(|error| {
            DaemonError::Restart { name: self.name.clone(), reason: error.to_string() }.into()
        })
    }

    /// The figures of an overlay, if it is one.
    pub fn overlay_figures(&self) -> Option<coulter_overlay::Figures> {
        self.inner.overlay_figures()
    }

    /// The block device, or the URI of the server.
    pub fn device(&self) -> String {
        self.inner.address()
    }

    /// Whether it was ended, in order or not.
    pub fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Whether it has ended by itself: somebody else has unmounted it.
    pub fn has_ended(&self) -> bool {
        self.inner.has_ended()
    }

    /// Ends it; afterwards it does nothing any more.
    ///
    /// # Errors
    /// [`DaemonError::Busy`] while somebody uses it, unless `force`; [`DaemonError::Unflushed`] when it
    /// has ended, but not in order.
    pub fn detach(&mut self, force: bool) -> Result<(), Error> {
        let how = if force { Detach::Always } else { Detach::IfIdle };
        let outcome = self.inner.detach(how);
        self.is_gone |= matches!(&outcome, Ok(()) | Err(DetachError::Unflushed { .. }));
        outcome.map_err(|error| match error {
            DetachError::Unflushed { address, source } => {
                let (name, reason) = (self.name.clone(), reason_of(&source));
                DaemonError::Unflushed { name, device: address, reason }.into()
            }
            DetachError::Busy { address, holders } => {
                let mounts = mounts::mounts_of(Path::new(&address)).unwrap_or_default();
                let command = |mount| unmount_command(mount, Path::new(&address));
                let remedy = mounts.first().map(command);
                let name = self.name.clone();
                DaemonError::Busy { name, device: address, holders, remedy }.into()
            }
            other => {
                DaemonError::Attach { store: self.store.clone(), reason: other.to_string() }.into()
            }
        })
    }
}

/// The command that takes away a mount of a file system that lies on `device`. A partition is not ours
/// to unmount, and the device is in use by others then, perhaps.
pub fn unmount_command(mount: &Mount, device: &Path) -> String {
    let program = if mount.source == device { "coulter umount" } else { "umount" };
    format!("{program} {}", mount.mount_point.display())
}

/// Makes a ublk device, or takes over the one that waits.
fn ublk(job: &Job, entry: &Entry, service: &dyn BlockService) -> Result<Box<dyn Inner>, Error> {
    let failed = |error: UblkError| DaemonError::Attach {
        store: entry.store.clone(),
        reason: error.to_string(),
    };
    let identity = ublk_identity(entry);
    let is_mortal = entry.acknowledge == Acknowledge::Buffered;
    let options = UblkOptions { read_only: entry.read_only, identity, copy: None, is_mortal };
    ublk::remove_remnants(identity).map_err(failed)?;
    let waiting = ublk::waiting().map_err(failed)?;
    let device = match waiting.into_iter().find(|waiting| waiting.identity == identity) {
        Some(waiting) if job.recover => UblkDevice::recover(service, waiting.id, &options),
        Some(waiting) => return Err(device_waits(entry, &waiting.device)),
        None => UblkDevice::attach(service, &options),
    };
    let device = device.map_err(failed)?;
    log::info!(copy:? = device.copy(); "ublk device");
    Ok(Box::new(device))
}

/// Makes a device of the kernel's NBD client, or takes over the one that waits.
fn nbd(
    state: &StateDirectory,
    job: &Job,
    entry: &Entry,
    service: Arc<dyn BlockService>,
) -> Result<Box<dyn Inner>, Error> {
    let identity = nbd_identity(entry);
    let address = Address::Unix(state.file(&entry.name, "nbd"));
    let (export, server) = nbd_server(entry, service);
    let mut options = NbdDeviceOptions::new(export, address, identity.clone());
    options.server = server;
    let device = match nbd_device::find(&identity) {
        Some(index) if job.recover => NbdDevice::recover(index, options),
        Some(index) => return Err(device_waits(entry, &nbd_device::device_path(index))),
        None => NbdDevice::attach(options),
    };
    let device = device.map_err(|error| DaemonError::Attach {
        store: entry.store.clone(),
        reason: error.to_string(),
    })?;
    Ok(Box::new(device))
}

/// Makes a device of the kernel's NVMe/TCP initiator, or takes over the one that waits.
fn nvme(job: &Job, entry: &Entry, service: Arc<dyn BlockService>) -> Result<Box<dyn Inner>, Error> {
    let name = subsystem_name(&service.describe().identity);
    let (disk, options) = nvme_target(entry, service);
    let device = match nvme_device::find(&name) {
        Some(waiting) if job.recover => NvmeDevice::recover(waiting, disk, options),
        Some(waiting) => {
            let device = waiting.device().unwrap_or(waiting.path);
            return Err(device_waits(entry, &device));
        }
        None => NvmeDevice::attach(disk, options),
    };
    let device = device.map_err(|error| DaemonError::Attach {
        store: entry.store.clone(),
        reason: error.to_string(),
    })?;
    Ok(Box::new(device))
}

/// What the target below a device shows and how it behaves.
fn nvme_target(entry: &Entry, service: Arc<dyn BlockService>) -> (Disk, TargetOptions) {
    let disk = Disk { service, read_only: entry.read_only, block_size: 4096 };
    let observer = |event| match event {
        Event::Opened(number) => log::info!(connection = number; "nvme: connected"),
        Event::Closed(number, reason) => log::info!(connection = number, reason:%; "nvme: gone"),
        other => log::warn!("nvme: {other:?}"),
    };
    let observer: Option<Arc<dyn Fn(Event) + Send + Sync>> = Some(Arc::new(observer));
    (disk, TargetOptions { observer, ..TargetOptions::default() })
}

/// The name of the subsystem that this entry's store is served as.
fn nvme_name(entry: &Entry) -> String {
    format!("nqn.2014-08.org.nvmexpress:uuid:{}", entry.uuid)
}

fn device_waits(entry: &Entry, device: &Path) -> Error {
    let (store, device) = (entry.store.clone(), device.display().to_string());
    StateError::DeviceWaits { store, name: None, device }.into()
}

fn loop_options(entry: &Entry) -> LoopOptions {
    LoopOptions {
        read_only: entry.read_only,
        source: entry.store.display().to_string(),
        partitions: true,
    }
}

fn mount_options(entry: &Entry, options: &FsOptions) -> MountOptions {
    MountOptions {
        read_only: entry.read_only,
        writes_back: options.writes_back,
        no_suid: options.no_suid,
        no_dev: options.no_dev,
        no_exec: options.no_exec,
        cache_blocks: options.cache_size.map(|size| (size / BLOCK_SIZE) as usize),
        source: entry.store.display().to_string(),
    }
}

fn serve(
    address: &Address,
    allow_remote: bool,
    entry: &Entry,
    service: Arc<dyn BlockService>,
) -> Result<Server, String> {
    let (export, options) = nbd_server(entry, service);
    let options = ServerOptions { allow_remote, ..options };
    Server::start(address, vec![export], options).map_err(|error| error.to_string())
}

/// What an NBD server shows and how it behaves.
fn nbd_server(entry: &Entry, service: Arc<dyn BlockService>) -> (Export, ServerOptions) {
    let mut export = Export::new(entry.name.clone(), service);
    export.description = entry.store.display().to_string();
    export.read_only = entry.read_only;
    let observer = |event| match event {
        Event::Opened(number) => log::info!(client = number; "nbd: connected"),
        Event::Closed(number, reason) => log::info!(client = number, reason:%; "nbd: gone"),
        other => log::warn!("nbd: {other:?}"),
    };
    let observer: Option<Arc<dyn Fn(Event) + Send + Sync>> = Some(Arc::new(observer));
    (export, ServerOptions { observer, ..ServerOptions::default() })
}

/// What the kernel keeps with a ublk device of this entry's store: a copy of it is another store.
fn ublk_identity(entry: &Entry) -> u64 {
    let digits: String = entry.uuid.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    let (device, inode) = entry.store_identity.map_or((0, 0), |file| (file.device, file.inode));
    let place =
        device.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ inode.wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    u64::from_str_radix(&digits, 16).unwrap_or_default() ^ place
}

/// What the kernel keeps with an NBD device of this entry's store.
fn nbd_identity(entry: &Entry) -> String {
    let (device, inode) = entry.store_identity.map_or((0, 0), |file| (file.device, file.inode));
    format!("coulter:{}:{device:x}:{inode:x}", entry.uuid)
}

/// Whether the device that `entry` names is still its own: one that somebody has detached by other
/// means may lead to another store or file by now. Asks the daemon, if it is alive.
pub fn has_its_device(state: &StateDirectory, entry: &Entry) -> bool {
    let Some(device) = entry.device.as_deref().map(Path::new) else { return false };
    match entry.via {
        Via::Loop => {
            let file = state.file(&entry.name, "mount").join(FILE_NAME);
            loop_device::lies_over(device, &file)
        }
        Via::Ublk => ublk::identity_of(device) == Some(ublk_identity(entry)),
        Via::Nbd => nbd_device::is_of(device, &nbd_identity(entry)),
        Via::Nvme => {
            let found = nvme_device::find(&nvme_name(entry));
            found.is_some_and(|found| found.device().as_deref() == Some(device))
        }
        Via::NbdServer | Via::NvmeServer => true,
        Via::Fs => is_mounted(entry, device),
    }
}

/// Whether the file system of this entry's store is what is mounted there.
fn is_mounted(entry: &Entry, directory: &Path) -> bool {
    let mount = mounts::mount_at(directory).ok().flatten();
    mount.is_some_and(|mount| mount.kind == "fuse.coulter" && mount.source == entry.store)
}

/// Whether the device that this process serves for `entry` is still there and its own. Does not ask the device,
/// which would ask this process.
pub(crate) fn is_still_there(state: &StateDirectory, entry: &Entry) -> bool {
    let Some(device) = entry.device.as_deref().map(Path::new) else { return true };
    match entry.via {
        Via::Loop => {
            let mount = state.file(&entry.name, "mount");
            // With the mount taken away, which does no harm, the path begins behind it.
            let expected = [mount.join(FILE_NAME), Path::new("/").join(FILE_NAME)];
            loop_device::path_below(device).is_some_and(|below| expected.contains(&below))
        }
        Via::Ublk | Via::Nbd | Via::Nvme => device.exists(),
        // That it was unmounted ends its daemon.
        Via::NbdServer | Via::NvmeServer | Via::Fs => true,
    }
}

/// That the device of `entry` leads to its volume, before anything is done to it.
///
/// # Errors
/// [`DaemonError::DeviceTaken`]; [`DaemonError::DaemonSilent`] when its daemon does not answer: the
/// device could not be asked either.
pub fn check_device(state: &StateDirectory, entry: &Entry) -> Result<(), Error> {
    control::ask(state, entry, &Request::Status)?;
    match &entry.device {
        Some(device) if !has_its_device(state, entry) => {
            let (name, device) = (entry.name.clone(), device.clone());
            Err(DaemonError::DeviceTaken { name, device }.into())
        }
        _ => Ok(()),
    }
}

/// Whether an attach point of this kind can be had on this machine, by this user.
///
/// # Errors
/// Why not, and what to do about it.
pub fn check(via: Via) -> Result<(), String> {
    match via {
        Via::Ublk => ublk::check().map_err(|error| error.to_string()),
        Via::Nbd => nbd_device::check().map_err(|error| error.to_string()),
        Via::Loop if !nix::unistd::Uid::effective().is_root() => Err("it takes root".to_owned()),
        Via::Loop => loop_is_possible(),
        Via::Nvme => nvme_device::check().map_err(|error| error.to_string()),
        Via::NbdServer | Via::NvmeServer => Ok(()),
        Via::Fs if !nix::unistd::Uid::effective().is_root() => Err("it takes root".to_owned()),
        Via::Fs => Ok(()),
    }
}

/// The device of `entry`, whose daemon has ended, if it waits for another one.
pub fn waiting_device(entry: &Entry) -> Option<PathBuf> {
    if entry.uuid.is_empty() {
        return None;
    }
    match entry.via {
        Via::Ublk => {
            let identity = ublk_identity(entry);
            let waiting = ublk::waiting().unwrap_or_default().into_iter();
            waiting
                .map(|waiting| (waiting.identity, waiting.device))
                .find_map(|(found, device)| (found == identity).then_some(device))
        }
        Via::Nbd => nbd_device::find(&nbd_identity(entry)).map(nbd_device::device_path),
        Via::Nvme => nvme_device::find(&nvme_name(entry)).and_then(|found| found.device()),
        Via::Loop | Via::NbdServer | Via::NvmeServer | Via::Fs => None,
    }
}

/// Takes away the device of `entry` that waits, if there is one. What uses it gets I/O errors.
///
/// # Errors
/// When the kernel refuses.
pub fn remove_waiting(entry: &Entry) -> Result<(), Error> {
    let failed = |reason: String| DaemonError::Attach { store: entry.store.clone(), reason };
    match entry.via {
        Via::Ublk => {
            let identity = ublk_identity(entry);
            let waiting = ublk::waiting().unwrap_or_default().into_iter();
            for waiting in waiting.filter(|waiting| waiting.identity == identity) {
                ublk::remove(waiting.id).map_err(|error| failed(error.to_string()))?;
            }
            // Without the driver there is none.
            if ublk::check().is_ok() {
                ublk::remove_remnants(identity).map_err(|error| failed(error.to_string()))?;
            }
        }
        Via::Nbd => {
            if let Some(index) = nbd_device::find(&nbd_identity(entry)) {
                nbd_device::remove(index).map_err(|error| failed(error.to_string()))?;
            }
        }
        Via::Nvme => {
            if let Some(waiting) = nvme_device::find(&nvme_name(entry)) {
                nvme_device::remove(&waiting).map_err(|error| failed(error.to_string()))?;
            }
        }
        Via::Loop | Via::NbdServer | Via::NvmeServer => {}
        Via::Fs => {
            // What is left of it answers with errors; programs in it see it go.
            let directory = entry.device.as_deref().map(Path::new);
            if let Some(directory) = directory.filter(|directory| is_mounted(entry, directory)) {
                dead_mounts::take_away(directory).map_err(|error| {
                    failed(format!("cannot unmount {}: {error}", directory.display()))
                })?;
            }
        }
    }
    Ok(())
}

/// Takes away the FUSE mount at `directory` and the loop device over it, whose process has ended.
/// Gives back the devices that somebody still uses; they go when their users do.
///
/// # Errors
/// When the system refuses a step.
pub fn release_leftovers(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let stale = loop_device::cleanup_stale(Some(directory)).map_err(|error| {
        DaemonError::Attach { store: directory.to_owned(), reason: error.to_string() }
    })?;
    // The daemon may have died before it mounted anything on the directory that it had made.
    let _ = std::fs::remove_dir(directory);
    Ok(stale.into_iter().flat_map(|stale| stale.lingering).collect())
}

/// Whether this kernel has what a loop device over a FUSE file needs.
fn loop_is_possible() -> Result<(), String> {
    for (path, module) in [("/dev/fuse", "fuse"), ("/dev/loop-control", "loop")] {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        opened.map_err(|error| format!("cannot open {path}: {error} (modprobe {module})"))?;
    }
    Ok(())
}

/// A client of the NBD server that `attach --via nbd-server` has started for `entry`.
///
/// # Errors
/// When the server does not answer.
pub fn connect(state: &StateDirectory, entry: &Entry) -> Result<Box<dyn Session>, Error> {
    let address = Address::Unix(state.file(&entry.name, "nbd"));
    let client = Client::connect(&address, &ClientOptions::default()).map_err(|error| {
        DaemonError::Attach { store: entry.store.clone(), reason: error.to_string() }
    })?;
    Ok(Box::new(client))
}
