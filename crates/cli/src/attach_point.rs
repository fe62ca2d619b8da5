//! Attach points as the verbs see them: started for a job, ended, and cleared away after a death.

use crate::daemon::Point;
use crate::error::{CliError, DaemonError};
use crate::inherited;
use crate::mounts;
use crate::state::{Entry, StateDirectory};
use coulter::service::{BlockService, Session};
use coulter_attach::loop_device::{self, LoopDevice, LoopOptions};
use coulter_attach::nbd::{Address, Client, ClientOptions, Event, Export, Server, ServerOptions};
use coulter_attach::point::{AttachPoint as Inner, Detach, DetachError};
use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Something that hosts talk to, in front of one volume.
pub(crate) struct AttachPoint {
    inner: Box<dyn Inner>,
    name: String,
    store: PathBuf,
}

impl AttachPoint {
    /// Offers `service` at `point`.
    ///
    /// # Errors
    /// [`DaemonError::Attach`] with the system's reason.
    pub(crate) fn start(
        state: &StateDirectory,
        point: &Point,
        entry: &Entry,
        service: Arc<dyn BlockService>,
    ) -> Result<AttachPoint, CliError> {
        let failed = |reason: String| DaemonError::Attach { store: entry.store.clone(), reason };
        let inner: Box<dyn Inner> = match point {
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
            Point::Nbd { address, allow_remote } => {
                Box::new(serve(address, *allow_remote, entry, service).map_err(failed)?)
            }
        };
        Ok(AttachPoint { inner, name: entry.name.clone(), store: entry.store.clone() })
    }

    /// Goes on with what another program has handed over: `service` at `point` as `entry` says.
    ///
    /// # Errors
    /// [`DaemonError::Attach`] with the system's reason; the attach point is gone then.
    pub(crate) fn resume(
        state: &StateDirectory,
        point: &Point,
        entry: &Entry,
        service: Arc<dyn BlockService>,
        descriptor: OwnedFd,
    ) -> Result<AttachPoint, CliError> {
        let failed = |reason: String| DaemonError::Attach { store: entry.store.clone(), reason };
        let inner: Box<dyn Inner> = match point {
            Point::Loop => {
                let device = Path::new(entry.device.as_deref().unwrap_or_default());
                let directory = state.file(&entry.name, "mount");
                let options = loop_options(entry);
                let device =
                    LoopDevice::resume(&*service, descriptor, device, &directory, &options);
                Box::new(device.map_err(|error| failed(error.to_string()))?)
            }
            Point::NbdInState | Point::Nbd { .. } | Point::NbdInherited => {
                let owns_file = *point != Point::NbdInherited;
                let (export, options) = nbd_server(entry, service);
                let server = Server::resume(descriptor, owns_file, vec![export], options);
                Box::new(server.map_err(|error| failed(error.to_string()))?)
            }
        };
        Ok(AttachPoint { inner, name: entry.name.clone(), store: entry.store.clone() })
    }

    /// Stops, and leaves what hosts see in its place for whoever resumes with the descriptor.
    ///
    /// # Errors
    /// [`DaemonError::Restart`]; it serves on.
    pub(crate) fn hand_over(&mut self) -> Result<OwnedFd, CliError> {
        self.inner.hand_over().map_err(|error| {
            DaemonError::Restart { name: self.name.clone(), reason: error.to_string() }.into()
        })
    }

    /// The block device, or the URI of the server.
    pub(crate) fn device(&self) -> String {
        self.inner.address()
    }

    /// Ends it; afterwards it does nothing any more.
    ///
    /// # Errors
    /// [`DaemonError::Busy`] while somebody uses it, unless `force`.
    pub(crate) fn detach(&mut self, force: bool) -> Result<(), CliError> {
        let how = if force { Detach::Always } else { Detach::IfIdle };
        self.inner.detach(how).map_err(|error| match error {
            DetachError::Busy { address, holders } => {
                let mounts = mounts::mounts_of(Path::new(&address)).unwrap_or_default();
                let mount_point = mounts.into_iter().next().map(|mount| mount.mount_point);
                let name = self.name.clone();
                DaemonError::Busy { name, device: address, holders, mount_point }.into()
            }
            other => {
                DaemonError::Attach { store: self.store.clone(), reason: other.to_string() }.into()
            }
        })
    }
}

fn loop_options(entry: &Entry) -> LoopOptions {
    LoopOptions {
        read_only: entry.read_only,
        source: entry.store.display().to_string(),
        partitions: true,
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

/// Takes away the FUSE mount at `directory` and the loop device over it, whose process has ended.
/// Gives back the devices that somebody still uses; they go when their users do.
///
/// # Errors
/// When the system refuses a step.
pub(crate) fn release_leftovers(directory: &Path) -> Result<Vec<PathBuf>, CliError> {
    let stale = loop_device::cleanup_stale(Some(directory)).map_err(|error| {
        DaemonError::Attach { store: directory.to_owned(), reason: error.to_string() }
    })?;
    // The daemon may have died before it mounted anything on the directory that it had made.
    let _ = std::fs::remove_dir(directory);
    Ok(stale.into_iter().flat_map(|stale| stale.lingering).collect())
}

/// Whether this kernel has what a loop device over a FUSE file needs.
pub(crate) fn loop_is_possible() -> bool {
    ["/dev/fuse", "/dev/loop-control"]
        .iter()
        .all(|path| OpenOptions::new().read(true).write(true).open(path).is_ok())
}

/// A client of the NBD server that `attach --via nbd` has started for `entry`.
///
/// # Errors
/// When the server does not answer.
pub(crate) fn connect(state: &StateDirectory, entry: &Entry) -> Result<Box<dyn Session>, CliError> {
    let address = Address::Unix(state.file(&entry.name, "nbd"));
    let client = Client::connect(&address, &ClientOptions::default()).map_err(|error| {
        DaemonError::Attach { store: entry.store.clone(), reason: error.to_string() }
    })?;
    Ok(Box::new(client))
}
