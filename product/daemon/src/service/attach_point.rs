//! Attach points as the verbs see them: started for a job, ended, and cleared away after a death.

use crate::error::{DaemonError, Error};
use crate::job::Job;
pub use crate::life::device::{has_its_device, unmount_command, waiting_device};
use crate::life::state::{Entry, StateDirectory};
use crate::points::{Ground, Point};
use crate::service::control::{self, Request};
use coulter::service::BlockService;
use coulter_attach::point::{AttachPoint as Inner, Detach, DetachError};
use coulter_system::mounts;
use coulter_terminal::reason_of;
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
        assert!(!self.is_gone, "hosts see nothing that could be handed over");
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
        let address = self.inner.address();
        assert!(!address.is_empty(), "hosts reach it nowhere");
        address
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
    /// [`DaemonError::Busy`] while somebody uses it, unless `force`; [`DaemonError::Unflushed`]
    /// when it has ended, but not in order.
    pub fn detach(&mut self, force: bool) -> Result<(), Error> {
        assert!(!self.is_gone, "it was detached before");
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
