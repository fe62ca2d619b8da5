//! The daemon of an overlay, started or in the foreground.

use super::hidden::{self, Hidden};
use super::{Attach, CacheChoice, RemapChoice, SettleChoice, report};
use crate::error::{CliError, Error};
use crate::opening::{CopyOptions, OpeningOptions};
use crate::terminal;
use crate::verbs::attach::Options;
use crate::verbs::fs::{DaemonMount, command_line};
use crate::via::ViaChoice;
use coulter_daemon::opening::{Acknowledge, DeviceChoice, Trim};
use coulter_daemon::state::{Entry, StateDirectory};
use coulter_daemon::{launch, service};
use coulter_overlay::SettleWhen;
use std::os::fd::OwnedFd;
use std::path::Path;

impl Attach {
    pub(super) fn serve(
        &self,
        state: &StateDirectory,
        directory: &Path,
        store: &Path,
        name: String,
    ) -> Result<(), CliError> {
        let opening = OpeningOptions {
            name: Some(name),
            map_memory: None,
            read_cache: None,
            device: DeviceChoice::Auto,
            trim: Trim::Auto,
            acknowledge: Acknowledge::Buffered,
            read_only: false,
            // The files below and what is here must agree.
            degraded: coulter::Degraded::Refused,
            pad_pages: false,
            tune: self.tune.clone(),
            metrics: self.metrics,
            copy: CopyOptions::default(),
        };
        let mount = DaemonMount {
            fs_directory: Some(directory.to_owned()),
            fs_back: self.cache == CacheChoice::Back,
            fs_cache_size: None,
            fs_options: String::new(),
            fs_overlay: vec![self.remap.remap().word().into(), self.settle.when().word().into()],
            fs_again: self.command_line(directory, &opening),
        };
        let options = Options { via: ViaChoice::Auto, recover: false, opening };
        // Once the overlay is mounted, it is not to be seen any more.
        let hidden = Hidden::of(directory).open()?;
        let mut tell = |entry: &Entry| -> Result<(), Error> {
            note_killed(directory, &hidden)?;
            if self.json { Ok(terminal::print_json(entry)?) } else { Ok(()) }
        };
        if self.foreground {
            let job = mount.put_into(options.job(store)?);
            service::run(state, job, &mut tell)?;
            return Ok(());
        }
        let mut words = options.words(store);
        words.splice(1..1, mount.words());
        Ok(tell(&launch::launch(state, words)?)?)
    }

    /// The command line that mounts it like this. The directory knows where its store is.
    fn command_line(&self, directory: &Path, opening: &OpeningOptions) -> String {
        let remap = self.remap.remap().word();
        let own = [
            (self.remap != RemapChoice::Random).then(|| format!("--remap={remap}")),
            self.settle.option(),
            (self.cache == CacheChoice::Back).then(|| "--cache=back".to_owned()),
        ];
        let command = format!("coulter overlay {}", terminal::word(directory));
        command_line(command, own.into_iter().flatten(), opening)
    }
}

impl SettleChoice {
    fn when(self) -> SettleWhen {
        match self {
            SettleChoice::Idle => SettleWhen::Idle,
            SettleChoice::Unmount => SettleWhen::Unmount,
            SettleChoice::Never => SettleWhen::Never,
        }
    }

    /// As it would be typed; `None` for the default.
    fn option(self) -> Option<String> {
        let word = match self {
            SettleChoice::Idle => "idle",
            SettleChoice::Unmount => return None,
            SettleChoice::Never => "never",
        };
        Some(format!("--settle={word}"))
    }
}

/// Notes in the hidden directory that the daemon before this one was killed, if it was: there
/// may be files with a mark that no record names, which `detach` has to find.
fn note_killed(directory: &Path, hidden: &OwnedFd) -> Result<(), Error> {
    if report(directory).is_some_and(|report| report["was_closed_in_order"] == false) {
        hidden::note_killed(hidden)
            .map_err(|errno| Error::io("note in", directory, errno.into()))?;
    }
    Ok(())
}
