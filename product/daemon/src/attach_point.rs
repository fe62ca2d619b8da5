//! Attach points as the verbs see them: started for a job, ended, and cleared away after a death.

use crate::control::{self, Request};
use crate::error::{DaemonError, Error};
use crate::job::Job;
use crate::points::{self, Ground, Point};
use crate::state::{Entry, StateDirectory};
use coulter::service::BlockService;
use coulter_attach::point::{AttachPoint as Inner, Detach, DetachError};
use coulter_system::mounts::{self, Mount};
use coulter_terminal::{self as terminal, reason_of};
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
    /// As [`Point::start`].
    pub fn start(
        state: &StateDirectory,
        job: &Job,
        entry: &Entry,
        service: Arc<dyn BlockService>,
    ) -> Result<AttachPoint, Error> {
        let ground = Ground { state, entry, recover: job.recover };
        job.point.start(&ground, service).map(|inner| AttachPoint::new(inner, entry))
    }

    fn new(inner: Box<dyn Inner>, entry: &Entry) -> AttachPoint {
        let (name, store) = (entry.name.clone(), entry.store.clone());
        AttachPoint { inner, name, store, is_gone: false }
    }

    /// Goes on with what another program has handed over: `service` at `point` as `entry` says.
    ///
    /// # Errors
    /// As [`Point::resume`].
    pub fn resume(
        state: &StateDirectory,
        point: &dyn Point,
        entry: &Entry,
        service: Arc<dyn BlockService>,
        descriptor: OwnedFd,
    ) -> Result<AttachPoint, Error> {
        let ground = Ground { state, entry, recover: false };
        let inner = point.resume(&ground, service, descriptor);
        inner.map(|inner| AttachPoint::new(inner, entry))
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
        outcome.map_err(|error| self.told(error))
    }

    /// Ends it with the daemon. A mount in use stays, dead.
    ///
    /// # Errors
    /// As [`AttachPoint::detach`] with `force`.
    pub fn end(&mut self) -> Result<(), Error> {
        let outcome = self.inner.end();
        self.is_gone = true;
        match outcome {
            Err(error @ DetachError::LeftDead { .. }) => {
                log::warn!(
                    error:%;
                    "programs that use the directory get errors from now on, so that none goes on in what lies below"
                );
                Ok(())
            }
            outcome => outcome.map_err(|error| self.told(error)),
        }
    }

    fn told(&self, error: DetachError) -> Error {
        match error {
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
        }
    }
}

/// The command that takes away a mount of a file system that lies on `device`. A partition is not ours
/// to unmount, and the device is in use by others then, perhaps.
pub fn unmount_command(mount: &Mount, device: &Path) -> String {
    let program = if mount.source == device { "coulter umount" } else { "umount" };
    format!("{program} {}", terminal::word(&mount.mount_point))
}

/// Whether the device that `entry` names is still its own: one that somebody has detached by other
/// means may lead to another store or file by now. Asks the daemon, if it is alive.
pub fn has_its_device(state: &StateDirectory, entry: &Entry) -> bool {
    let device = entry.device.as_deref().map(Path::new);
    device.is_some_and(|device| points::of(entry).has_its_device(state, entry, device))
}

/// Whether the device that this process serves for `entry` is still there and its own. Does not ask the device,
/// which would ask this process.
pub(crate) fn is_still_there(state: &StateDirectory, entry: &Entry) -> bool {
    let device = entry.device.as_deref().map(Path::new);
    device.is_none_or(|device| points::of(entry).is_still_there(state, entry, device))
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

/// The device of `entry`, whose daemon has ended, if it waits for another one.
pub fn waiting_device(entry: &Entry) -> Option<PathBuf> {
    // Until it has a store it has no device.
    if entry.uuid.is_empty() { None } else { points::of(entry).waiting_device(entry) }
}

/// True if a dead mount of `entry`, whose daemon has ended, covers a directory of the user's.
pub fn covers_a_directory(entry: &Entry) -> bool {
    points::of(entry).covers_a_directory(entry)
}

/// Takes away the device of `entry` that waits, if there is one. What uses it gets I/O errors.
///
/// # Errors
/// When the kernel refuses.
pub fn remove_waiting(entry: &Entry) -> Result<(), Error> {
    points::of(entry)
        .remove_waiting(entry)
        .map_err(|reason| DaemonError::Attach { store: entry.store.clone(), reason }.into())
}
