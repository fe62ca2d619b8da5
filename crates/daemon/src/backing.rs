//! What lies behind an attach point, as the daemon sees it: a store, or an emulated drive.

use crate::daemon::{Job, Source};
use crate::emulated::EmulatedDrive;
use crate::error::CliError;
use crate::state::Entry;
use crate::status::Facts;
use crate::store::OpenStore;
use crate::trace::Recorder;
use coulter::service::BlockService;
use coulter::tuning::{Retuning, Tuning};
use coulter::{Failures, State};
use std::sync::Arc;
use std::time::Duration;

/// Something that is open in this process and serves blocks.
pub(crate) trait Backing {
    /// Its blocks, for attach points; requests are recorded in `recorder`.
    fn service(&self, recorder: Option<&Arc<Recorder>>) -> Arc<dyn BlockService>;

    /// Its identity in the usual spelling; empty if it has none.
    fn uuid(&self) -> String;

    /// Bytes that the host sees.
    fn size(&self) -> u64;

    /// What it can do at the moment.
    fn state(&self) -> State;

    /// How long requests have waited of which none was answered; `None` if none waits.
    fn unanswered_for(&self) -> Option<Duration>;

    /// What has failed so far.
    fn failures(&self) -> Failures;

    /// What it is doing. `entry` is how it is attached, for `uptime` so far.
    fn status(&self, entry: &Entry, uptime: Duration) -> Facts;

    /// Changes settings; what they are then. `None` if it has none to be changed, or has ended.
    fn tune(&self, retuning: Retuning) -> Option<Tuning>;

    /// Whether what it holds is there for the next process that opens it.
    fn outlives_the_process(&self) -> bool;

    /// Makes everything durable and closes it. Gives back what is known at the end of something that
    /// is gone then.
    ///
    /// # Errors
    /// What kept it from closing in order; it is closed all the same.
    fn close(self: Box<Self>, entry: &Entry, uptime: Duration) -> Result<Option<Facts>, CliError>;
}

/// Opens what `job` is about.
///
/// # Errors
/// Whatever keeps it from being opened.
pub(crate) fn open(
    job: &Job,
    recorder: Option<&Arc<Recorder>>,
) -> Result<Box<dyn Backing>, CliError> {
    match &job.source {
        Source::Store(path) => Ok(Box::new(OpenStore::open(path, &job.opening, recorder)?)),
        Source::Drive(emulation) => Ok(Box::new(EmulatedDrive::start(emulation)?)),
    }
}
