//! `coulter-lab daemon` (hidden): the process behind the demonstration's volume.
//!
//! What `coulter attach` starts, save that it records both sides of the volume.

use crate::error::LabError;
use crate::trace::TracedStore;
use clap::Args;
use coulter_cli::verbs::attach::Options;
use coulter_cli::via::ViaChoice;
use coulter_daemon::launch::Readiness;
use coulter_daemon::store::Store;
use coulter_daemon::{Job, StateDirectory, logging, service};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Serve a store with its writes recorded (used by `demo`).
#[derive(Debug, Args)]
pub(crate) struct Daemon {
    /// Store to attach
    path: PathBuf,

    #[command(flatten)]
    options: Options,
}

/// The words that start one for the store at `path`, behind the state directory.
pub(crate) fn words(path: &Path, via: ViaChoice) -> Vec<OsString> {
    vec!["daemon".into(), format!("--via={via}").into(), "--name=demo".into(), path.into()]
}

impl Daemon {
    pub(crate) fn run(&self, state: &StateDirectory) -> Result<(), LabError> {
        let mut readiness = Readiness::on_standard_output();
        let result = self.serve(state, &mut readiness);
        if let Err(error) = &result {
            readiness.tell_failure(&error.report());
        }
        result
    }

    fn serve(&self, state: &StateDirectory, readiness: &mut Readiness) -> Result<(), LabError> {
        service::leave_session();
        let job = self.options.job(&self.path)?;
        let source = Box::new(TracedStore(Store::at(job.source.store())));
        service::run(state, Job { source, ..job }, &mut |entry| {
            logging::move_to_file(state, &entry.name)?;
            readiness.tell_success(entry)
        })?;
        Ok(())
    }
}
