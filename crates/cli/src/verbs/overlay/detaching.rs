//! `coulter overlay detach`: taking an overlay away, with its store or without.

use super::hidden::Hidden;
use super::{report, served, settle_all, told, told_with_help};
use crate::error::CliError;
use clap::Args;
use coulter_attach::fuse::files::overlay;
use coulter_daemon::detach;
use coulter_daemon::points;
use coulter_daemon::state::{Entry, StateDirectory};
use coulter_overlay::SettleWhen;
use std::path::{Path, PathBuf};

/// Bring all of it home, unmount, and take the store away.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter overlay detach /srv/data
  coulter overlay detach /srv/data --keep    only unmount; the next `coulter overlay` goes on with the store")]
pub(super) struct Detach {
    /// Directory that it is over
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Leave in the store what is there
    #[arg(long)]
    keep: bool,
}

impl Detach {
    pub(super) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        let directory = served(&self.directory)?;
        if !self.keep {
            settle_all(&directory)?;
        }
        let is_it = |entry: &Entry| points::is_at(entry, &directory);
        let Some(entry) = state.entries()?.into_iter().find(is_it) else {
            return Err(told("cannot detach", &directory, "its daemon is not known".to_owned()));
        };
        if self.keep {
            // What is in the store stays there.
            return self.detach_kept(state, &directory, &entry);
        }
        // Something may have been written since; then the store stays.
        let stored = report(&directory).and_then(|report| report["stored_bytes"].as_u64());
        let faults = report(&directory).and_then(|report| report["faults_total"].as_u64());
        detach::detach(state, &entry, false)?;
        if stored != Some(0) || faults != Some(0) {
            let why = "blocks of some files could not be brought home; the store stays, with them"
                .to_owned();
            let help = format!(
                "`coulter overlay {}` goes on with it; `coulter overlay check` then tells why",
                directory.display()
            );
            return Err(told_with_help("detached, but not all of", &directory, why, help));
        }
        Hidden::of(&directory).remove(&entry.store)
    }

    /// Unmounts it, and has nothing brought home at that.
    fn detach_kept(
        &self,
        state: &StateDirectory,
        directory: &Path,
        entry: &Entry,
    ) -> Result<(), CliError> {
        let failed = |source| CliError::io("change the overlay over", directory, source);
        let before = report(directory).unwrap_or_default();
        overlay::set_settle(directory, SettleWhen::Never).map_err(failed)?;
        detach::detach(state, entry, false).inspect_err(|_| {
            let named = SettleWhen::NAMED.iter().find(|(word, _)| before["settle"] == *word);
            if let Some((_, when)) = named {
                // It is in use, and stays as it was; the first error is the one to tell.
                let _ = overlay::set_settle(directory, *when);
            }
        })?;
        Ok(())
    }
}
