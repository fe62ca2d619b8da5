//! `coulter move`: a volume goes from this host to another one.

use super::restore::CopyName;
use crate::error::{CliError, Error, StateError};
use crate::interrupt::Left;
use crate::terminal::{self, BOLD};
use clap::Args;
use coulter_daemon::detach::detach;
use coulter_daemon::moving;
use coulter_daemon::state::{Entry, StateDirectory};
use std::path::{Path, PathBuf};

/// Hand a volume over to another host: detach it, ship what is left, and fence this host.
///
/// Afterwards `coulter attach URL --cache FILE` continues on any host, without --take-over. This host's store
/// is refused as a replica from then on. If the bucket does not respond, nothing is handed over, and the
/// store stays the valid one.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter move disk.img s3://bucket/vol
  coulter attach s3://bucket/vol --cache disk.img        on the other host")]
pub(crate) struct Move {
    /// Store, or cache, of the volume on this host, or its name
    #[arg(value_name = "STORE|NAME")]
    pub(crate) path: PathBuf,

    /// The volume's copy
    #[arg(value_name = "URL", value_parser = CopyName::parse_newest)]
    pub(crate) copy: CopyName,
}

impl Move {
    pub(crate) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        let left = Left::take_over("nothing was done yet".to_owned(), "run it again".to_owned())?;
        let path = crate::store::find(&self.path, Some(state))?;
        let entry = match state.find(&path.to_string_lossy()) {
            Ok(entry) => Some(entry),
            Err(Error::State(StateError::NotAttached { .. })) => None,
            Err(error) => return Err(error.into()),
        };
        // A volume that cannot be moved stays attached.
        moving::check(&path, &self.copy.url, entry.as_ref().map(|entry| entry.name.as_str()))?;
        let url = &self.copy.url;
        let help = format!(
            "the same command hands it over; `coulter attach {} --replicate {url}` goes on here",
            terminal::word(&path)
        );
        let why = "it may be detached by now, and is this host's yet".to_owned();
        left.is_now(why, help);
        if let Some(entry) = &entry {
            detach(state, entry, false)?;
        }
        let commit = moving::hand_over(&path, &self.copy.url).inspect_err(|_| {
            if let Some(Entry { name, .. }) = &entry {
                terminal::note(&format!("'{name}' is detached"));
            }
        })?;
        self.tell(&path, &commit)
    }

    fn tell(&self, path: &Path, commit: &str) -> Result<(), CliError> {
        let url = &self.copy.url;
        terminal::print(&format!(
            "{BOLD}{url}{BOLD:#} has all of it, commit {commit}, and no host"
        ))?;
        terminal::print(&format!("On the other host: coulter attach {url} --cache FILE"))?;
        terminal::print(&format!("Here, {} is not needed any more", terminal::path(path)))
    }
}
