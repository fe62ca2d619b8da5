//! Attach points: the only file that knows their crate.

use crate::daemon::Point;
use crate::error::CliError;
use crate::holders::Holder;
use crate::state::{Entry, StateDirectory};
use coulter::service::BlockService;
use std::path::Path;
use std::sync::Arc;

/// An attach point. There is none yet, so no value of this either.
pub(crate) enum AttachPoint {}

impl AttachPoint {
    pub(crate) fn start(
        _state: &StateDirectory,
        _point: &Point,
        entry: &Entry,
        _service: Arc<dyn BlockService>,
    ) -> Result<AttachPoint, CliError> {
        let (store, reason) = (entry.store.clone(), "no attach point is built in".to_owned());
        Err(crate::error::DaemonError::Attach { store, reason, help: None }.into())
    }
    pub(crate) fn device(&self) -> String {
        match *self {}
    }
    pub(crate) fn failure(&self, _store: &Path) -> Option<CliError> {
        match *self {}
    }
    pub(crate) fn detach(&mut self, _force: bool) -> Result<(), CliError> {
        match *self {}
    }
    pub(crate) fn stop(self, _force: bool) -> Result<(), CliError> {
        match self {}
    }
}

pub(crate) fn release_leftovers(_directory: &Path) -> Result<Vec<Holder>, CliError> {
    Ok(Vec::new())
}

pub(crate) fn loop_is_possible() -> bool {
    false
}

pub(crate) fn connect(uri: &str) -> Result<Box<dyn coulter::service::Session>, String> {
    Err(format!("{uri}: no client is built in"))
}
