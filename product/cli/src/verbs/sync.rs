//! `coulter sync`: what sync(1) does not do for a file system of Coulter's own.

use crate::answering;
use crate::error::{CliError, Error};
use clap::Args;
use coulter_daemon::state::StateDirectory;
use coulter_fuse::files;
use coulter_system::dead_mounts;
use coulter_terminal::fault;
use std::path::PathBuf;

/// Make durable what was written to a mounted Coulter file system.
///
/// The kernel does not tell it of sync(1): without this command it makes everything durable each second,
/// and at `fsync`. With `--cache back`, programs have to sync their own files as well.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter sync /mnt")]
pub(crate) struct Sync {
    /// Directory that the file system is mounted on, or any file on it
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl Sync {
    pub(crate) fn run(&self, known: Option<&StateDirectory>) -> Result<(), CliError> {
        known.map_or(Ok(()), |state| answering::check(state, &self.directory))?;
        files::sync(&self.directory).map_err(|source| match source.raw_os_error() {
            Some(libc::ENOTTY) => {
                let report = fault(format!("cannot sync {}", self.directory.display()))
                    .why("no Coulter file system is mounted there")
                    .help("name a directory that `coulter fs mount` has mounted; sync(1) serves others");
                Error::Told(report).into()
            }
            _ if dead_mounts::is_dead(&source) => {
                let report = fault(format!("cannot sync {}", self.directory.display()))
                    .why("its daemon was killed")
                    .help("`coulter list` tells how it is served again");
                Error::Told(report).into()
            }
            _ => CliError::io("sync", &self.directory, source),
        })
    }
}
