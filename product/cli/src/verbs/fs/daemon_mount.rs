//! How the daemon of a mount is told what to mount, and what it says of that afterwards.

use crate::opening::OpeningOptions;
use crate::terminal;
use clap::Args;
use coulter_daemon::job::Job;
use coulter_daemon::points::{FsOptions, FsPoint};
use coulter_overlay::{Remap, SettleWhen};
use coulter_terminal::Size;
use std::ffi::OsString;
use std::path::PathBuf;

/// How a daemon is told what to mount, behind the options that every daemon has.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct DaemonMount {
    /// Mount the volume's file system here
    #[arg(long, value_name = "DIR")]
    pub(crate) fs_directory: Option<PathBuf>,

    /// Gather writes in the page cache
    #[arg(long)]
    pub(crate) fs_back: bool,

    /// Memory for metadata
    #[arg(long, value_name = "SIZE")]
    pub(crate) fs_cache_size: Option<Size>,

    /// Mount options
    #[arg(long, value_name = "LIST", default_value = "")]
    pub(crate) fs_options: String,

    /// An overlay over the directory: what goes to the store, and when that comes home
    #[arg(long, value_names = ["REMAP", "SETTLE"], num_args = 2)]
    pub(crate) fs_overlay: Vec<String>,

    /// The command line that mounts it like this
    #[arg(long, value_name = "COMMAND", default_value = "")]
    pub(crate) fs_again: String,
}

impl DaemonMount {
    /// What the daemon's host shall see, if it is to be a mount.
    pub(crate) fn point(&self) -> Option<FsPoint> {
        let has = |word: &str| self.fs_options.split(',').any(|option| option == word);
        let options = FsOptions {
            writes_back: self.fs_back,
            cache_size: self.fs_cache_size.map(|size| size.0),
            no_suid: has("nosuid"),
            no_dev: has("nodev"),
            no_exec: has("noexec"),
            overlay: options_of(&self.fs_overlay),
        };
        let again = self.fs_again.clone();
        self.fs_directory.clone().map(|directory| FsPoint { directory, options, again })
    }

    /// The same job, as a mount if that is asked for.
    pub(crate) fn put_into(&self, mut job: Job) -> Job {
        if let Some(point) = self.point() {
            job.point = Box::new(point);
        }
        job
    }

    pub(crate) fn words(&self) -> Vec<OsString> {
        let mut words = Vec::new();
        if let Some(directory) = &self.fs_directory {
            words.extend(["--fs-directory".into(), directory.into()]);
        }
        if self.fs_back {
            words.push("--fs-back".into());
        }
        if let Some(size) = self.fs_cache_size {
            words.push(format!("--fs-cache-size={}", size.0).into());
        }
        words.push(format!("--fs-options={}", self.fs_options).into());
        if !self.fs_overlay.is_empty() {
            words.push("--fs-overlay".into());
            words.extend(self.fs_overlay.iter().map(OsString::from));
        }
        words.push(format!("--fs-again={}", self.fs_again).into());
        words
    }
}

/// The options of an overlay that a daemon was told with `--fs-overlay`, if it is one.
fn options_of(words: &[String]) -> Option<coulter_overlay::Options> {
    let [remap, settle] = words else { return None };
    let named = Remap::NAMED.iter().find(|(word, _)| word == remap);
    let remap = named.map_or(Remap::default(), |(_, it)| *it);
    let named = SettleWhen::NAMED.iter().find(|(word, _)| word == settle);
    let settle = named.map_or(SettleWhen::default(), |(_, it)| *it);
    Some(coulter_overlay::Options { remap, settle })
}

/// A command with options of its own, and those of opening that the mounts take.
pub(crate) fn command_line(
    command: String,
    own: impl Iterator<Item = String>,
    opening: &OpeningOptions,
) -> String {
    let shared = OpeningOptions {
        name: opening.name.clone(),
        map_memory: opening.map_memory,
        pad_pages: opening.pad_pages,
        tune: opening.tune.clone(),
        metrics: opening.metrics,
        degraded: coulter::Degraded::ReadOnly,
        ..OpeningOptions::default()
    };
    let shared = shared.words().into_iter().map(|word| word.to_string_lossy().into_owned());
    own.chain(shared).fold(command, |line, word| format!("{line} {}", terminal::quoted(&word)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{CommandLine, Verb};
    use clap::Parser;

    #[test]
    fn the_daemon_understands_what_it_is_to_mount() {
        let mount = DaemonMount {
            fs_directory: Some("/mnt/-odd name".into()),
            fs_back: true,
            fs_cache_size: Some(Size(12_345_678)),
            fs_options: "nosuid,noexec".to_owned(),
            fs_overlay: vec!["all".to_owned(), "idle".to_owned()],
            fs_again: "coulter overlay '/mnt/-odd name'".to_owned(),
        };
        let mut words: Vec<OsString> = vec!["coulter".into(), "daemon".into()];
        words.extend(mount.words());
        words.extend(["--".into(), "/srv/x.img".into()]);
        let parsed = CommandLine::try_parse_from(words).expect("the daemon understands it");
        let Verb::Daemon(daemon) = parsed.verb else { panic!("another verb: {:?}", parsed.verb) };
        let options = FsOptions {
            writes_back: true,
            cache_size: Some(12_345_678),
            no_suid: true,
            no_dev: false,
            no_exec: true,
            overlay: Some(coulter_overlay::Options {
                remap: coulter_overlay::Remap::All,
                settle: coulter_overlay::SettleWhen::Idle,
            }),
        };
        let directory = PathBuf::from("/mnt/-odd name");
        let again = mount.fs_again;
        assert_eq!(daemon.mount.point(), Some(FsPoint { directory, options, again }));
    }
}
