//! `coulter overlay detach`: taking an overlay away, with its store or without.

use super::hidden::Hidden;
use super::{Attach, marks, mount_at, report, served, settle_all, told, told_with_help};
use crate::error::CliError;
use crate::terminal;
use crate::verbs::umount::check_only_there;
use clap::Args;
use coulter_daemon::detach;
use coulter_daemon::points;
use coulter_daemon::state::{Entry, StateDirectory};
use coulter_fuse::files::overlay;
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
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        let directory = served(&self.directory).or_else(|error| self.serve_again(state, error))?;
        // Before anything is brought home, which may take long.
        check_only_there(&directory)?;
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
                terminal::word(&directory)
            );
            return Err(told_with_help("detached, but not all of", &directory, why, help));
        }
        let hidden = Hidden::of(&directory);
        if let Some(identity) = hidden.killed()? {
            // Only now are they to be seen, and changed behind nobody's back.
            marks::take_away(&directory, identity).map_err(|source| {
                CliError::io("take the marks from files in", &directory, source)
            })?;
        }
        hidden.remove(&entry.store)
    }

    /// A directory that was unmounted, with its store left in it, is served once more, to bring home what is there.
    fn serve_again(&self, state: &StateDirectory, error: CliError) -> Result<PathBuf, CliError> {
        let found = self.directory.canonicalize().ok();
        let Some(directory) = found.filter(|_| !self.keep) else { return Err(error) };
        if mount_at(&directory)?.is_some() || Hidden::of(&directory).store()?.is_none() {
            return Err(error);
        }
        Attach::again(&directory).run(state)?;
        served(&directory)
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
