//! `coulter upgrade`, or `restart`: a daemon becomes this program while its hosts wait.

use crate::error::{CliError, DoorError};
use crate::interrupt::{self, Left};
use crate::terminal;
use clap::Args;
use coulter_daemon::control::{self, Request};
use coulter_daemon::points;
use coulter_daemon::state::StateDirectory;
use std::path::{Path, PathBuf};

/// Upgrade the running daemon of a volume in place to this version of the program.
///
/// Run it with the new version after an upgrade of the package. The device, its mounts and the
/// process stay; requests wait meanwhile. NBD clients are disconnected and must reconnect.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter upgrade disk                     after an upgrade of the package
  /opt/new/bin/coulter upgrade disk        any other build")]
pub(crate) struct Restart {
    /// Name, store or device of the volume
    #[arg(value_name = "NAME")]
    pub(crate) volume: String,

    /// Upgrade to this program instead
    #[arg(long, value_name = "PATH")]
    pub(crate) program: Option<PathBuf>,
}

impl Restart {
    pub(crate) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        let entry = state.find(&self.volume)?;
        if points::gives_directory(&entry) {
            let directory = entry.directory().map(Path::to_owned).unwrap_or_default();
            let (name, again) = (entry.name, entry.again.unwrap_or_default());
            return Err(DoorError::UpgradeMounted { name, directory, again }.into());
        }
        let program = match &self.program {
            Some(program) => program.clone(),
            None => std::env::current_exe()
                .map_err(|source| CliError::io("find", "this program".as_ref(), source))?,
        };
        let program =
            program.canonicalize().map_err(|source| CliError::io("run", &program, source))?;
        let (why, help) = interrupt::asked_of(&entry.name, "become this program");
        let _left = Left::take_over(why, help)?;
        let spinner = terminal::spinner("upgrading");
        let answer = control::ask(state, &entry, &Request::Restart { program });
        spinner.finish_and_clear();
        answer?;
        Ok(())
    }
}
