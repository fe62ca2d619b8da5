//! The library behind the verbs: the only file that knows its interface.

use crate::daemon::Job;
use crate::error::{CliError, StoreError};
use crate::format_store::Made;
use crate::state::Entry;
use crate::status::Status;
use crate::trace::Recorder;
use crate::verbs::create::Shape;
use coulter::service::BlockService;
use coulter_device::Device;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The absolute path of the store at `path`.
///
/// # Errors
/// [`StoreError::StoreMissing`] when nothing is there.
pub(crate) fn existing(path: &Path) -> Result<PathBuf, CliError> {
    path.canonicalize().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => StoreError::StoreMissing { path: path.to_owned() }.into(),
        _ => CliError::io("open", path, error),
    })
}

pub(crate) fn open_device(path: &Path, _read_only: bool) -> Result<Box<dyn Device>, CliError> {
    Err(StoreError::StoreMissing { path: path.to_owned() }.into())
}

pub(crate) fn create(
    path: &Path,
    _device: Box<dyn Device>,
    _shape: &Shape,
    _map_memory: Option<crate::size::Size>,
) -> Result<Made, CliError> {
    Err(StoreError::StoreMissing { path: path.to_owned() }.into())
}

/// An open store. The volume does not exist yet, so neither does any value of this.
pub(crate) enum OpenStore {}

impl OpenStore {
    pub(crate) fn open(job: &Job, _trace: Option<Arc<Recorder>>) -> Result<OpenStore, CliError> {
        Err(StoreError::StoreMissing { path: job.store.clone() }.into())
    }
    pub(crate) fn service(&self, _trace: Option<&Arc<Recorder>>) -> Arc<dyn BlockService> {
        match *self {}
    }
    pub(crate) fn uuid(&self) -> String {
        match *self {}
    }
    pub(crate) fn volume_size(&self) -> u64 {
        match *self {}
    }
    pub(crate) fn read_only(&self) -> bool {
        match *self {}
    }
    pub(crate) fn status(&self, _entry: &Entry, _up: Duration) -> Status {
        match *self {}
    }
    pub(crate) fn close(self) -> Result<(), CliError> {
        match self {}
    }
}
