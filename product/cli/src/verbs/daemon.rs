//! `coulter daemon` (hidden): the process behind `attach`.
//!
//! It leaves the session of the terminal, tells the command that started it over its standard
//! output, in one line of JSON, whether the volume is served, and then logs to a file.

use crate::error::CliError;
use crate::verbs::attach::Options;
use crate::verbs::fs::DaemonMount;
use clap::Args;
use coulter_daemon::logging;
use coulter_daemon::state::StateDirectory;
use coulter_daemon::{launch::Readiness, service};
use std::path::PathBuf;

/// Serve a volume in a process of its own (used by `attach`).
#[derive(Debug, Args)]
pub(crate) struct Daemon {
    /// Store to attach
    pub(crate) path: PathBuf,

    #[command(flatten)]
    pub(crate) options: Options,

    #[command(flatten)]
    pub(crate) mount: DaemonMount,
}

impl Daemon {
    pub(crate) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        let mut readiness = Readiness::on_standard_output();
        let result = self.serve(state, &mut readiness);
        if let Err(error) = &result {
            readiness.tell_failure(&error.report());
        }
        result
    }

    fn serve(&self, state: &StateDirectory, readiness: &mut Readiness) -> Result<(), CliError> {
        service::leave_session();
        let job = self.mount.put_into(self.options.job(&self.path)?);
        service::run(state, job, &mut |entry| {
            logging::move_to_file(state, &entry.name)?;
            readiness.tell_success(entry)
        })?;
        Ok(())
    }
}
