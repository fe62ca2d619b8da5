//! `coulter overlay detach`: taking an overlay away, with its store or without.

use super::hidden::Hidden;
use super::{Attach, marks, mount_at, report, served, settle_all, told, told_with_help};
use crate::error::CliError;
use crate::interrupt;
use crate::terminal;
use crate::verbs::umount::{check_only_there, mounted_yet};
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
        let directory = match served(&self.directory) {
            Ok(directory) => directory,
            Err(error) => match self.serve_again(state, error)? {
                Some(directory) => directory,
                None => return Ok(()),
            },
        };
        // Before anything is brought home, which may take long.
        check_only_there(&directory)?;
        let left = mounted_yet(&directory)?;
        if !self.keep {
            settle_all(&directory)?;
        }
        let is_it = |entry: &Entry| points::is_at(entry, &directory);
        let Some(entry) = state.entries()?.into_iter().find(is_it) else {
            return Err(told("cannot detach", &directory, "its daemon is not known".to_owned()));
        };
        let (why, help) = interrupt::asked_of(&entry.name, "unmount it and end");
        if self.keep {
            left.is_now(why, help);
            // What is in the store stays there.
            return self.detach_kept(state, &directory, &entry);
        }
        // Something may have been written since; then the store stays.
        let stored = report(&directory).and_then(|report| report["stored_bytes"].as_u64());
        let faults = report(&directory).and_then(|report| report["faults_total"].as_u64());
        let again = terminal::word(&directory);
        let help =
            format!("when it has ended, `coulter overlay detach {again}` takes its store away");
        left.is_now(why, help);
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
        let why = "it is unmounted, and parts of the store may be there yet".to_owned();
        left.is_now(why, "run the same command again".to_owned());
        let hidden = Hidden::of(&directory);
        if let Some(identity) = hidden.killed()? {
            // Only now are they to be seen, and changed behind nobody's back.
            marks::take_away(&directory, identity).map_err(|source| {
                CliError::io("take the marks from files in", &directory, source)
            })?;
        }
        // The note of the store goes first: with a part of it nothing would know of the rest.
        left.is_heeded_no_more();
        hidden.remove(&entry.store)
    }

    /// A directory that was unmounted, with its store left in it, is served once more, to bring home what is there.
    /// `None` if only remains were there, of a command that was killed: they are gone.
    fn serve_again(
        &self,
        state: &StateDirectory,
        error: CliError,
    ) -> Result<Option<PathBuf>, CliError> {
        let found = self.directory.canonicalize().ok();
        let Some(directory) = found.filter(|_| !self.keep) else { return Err(error) };
        let hidden = Hidden::of(&directory);
        if !directory.is_dir() || mount_at(&directory)?.is_some() || !hidden.is_there()? {
            return Err(error);
        }
        if hidden.store()?.is_none() {
            hidden.remove_remains()?;
            let directory = terminal::path(&directory);
            terminal::note(&format!("{directory}: took away what a killed command had left"));
            return Ok(None);
        }
        Attach::again(&directory).run(state)?;
        served(&directory).map(Some)
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
