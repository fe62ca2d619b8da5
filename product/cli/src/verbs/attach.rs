//! `coulter attach`: serves a volume to this host from a process of its own.

use crate::error::CliError;
use crate::named_store;
use crate::opening::OpeningOptions;
use crate::room;
use crate::terminal;
use crate::via::{self, ViaChoice};
use clap::Args;
use coulter_daemon::control::{self, Reply, Request};
use coulter_daemon::state::{Entry, StateDirectory};
use coulter_daemon::status::Facts;
use coulter_daemon::store::Store;
use coulter_daemon::{Job, launch, service};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Attach a store and print the block device of its volume.
///
/// A daemon serves the volume until `coulter detach`. On TERM and INT the daemon flushes, writes a
/// checkpoint and ends. If it is killed, no data acknowledged as durable is lost, and a device of
/// ublk, nbd or nvme waits for `coulter attach --recover`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter attach disk.img                  prints, for instance, /dev/ublkb0
  coulter attach /dev/sdb --name fast
  coulter attach disk.img --recover        continues after a killed daemon
  coulter attach s3://bucket/vol --cache disk.img
  coulter attach disk.img --via nbd-server prints an nbd+unix:// URI; needs no root")]
pub(crate) struct Attach {
    /// Store to attach; or, with --cache, the URL of a copy
    #[arg(value_parser = named_store::parser())]
    pub path: PathBuf,

    #[command(flatten)]
    /// How.
    pub options: Options,

    /// Stay in the foreground and log to standard error
    #[arg(long)]
    pub foreground: bool,

    /// Print on standard error which attach point was chosen, and why
    #[arg(long, short)]
    pub verbose: bool,

    /// Print the entry that `list --json` would show
    #[arg(long)]
    pub json: bool,
}

/// How to attach; shared with the hidden verb that the daemon runs as, and with `mount`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Attach point. Block devices, which need root: ublk, nbd (the kernel's NBD client), loop (a
    /// loop device over a FUSE file), nvme (the kernel's NVMe/TCP initiator). Without root:
    /// nbd-server (on a unix socket). auto uses the first available of ublk, nbd, loop and
    /// nbd-server
    #[arg(long, value_parser = via::parser(), default_value = "auto")]
    pub via: ViaChoice,

    /// Take over the device of a killed daemon, if there is one; its users continue
    #[arg(long)]
    pub recover: bool,

    #[command(flatten)]
    /// How to open the store.
    pub opening: OpeningOptions,
}

impl Options {
    /// These with a choice in place of `auto`, and in words what was chosen and passed over then.
    ///
    /// # Errors
    /// When an attach point that was asked for cannot be had.
    pub fn resolved(&self) -> Result<(Options, Option<String>), CliError> {
        let (via, why) = self.via.resolved(self.opening.acknowledge)?;
        Ok((Options { via, ..self.clone() }, why))
    }

    /// What the daemon is to do. `auto` counts as the last resort here: it is resolved before.
    ///
    /// # Errors
    /// When there is nothing at `path`.
    pub fn job(&self, path: &Path) -> Result<Job, CliError> {
        let point = self.via.point();
        let source = Box::new(Store::at(crate::store::existing_to_serve(path)?));
        Ok(Job { source, point, opening: self.opening.opening(), recover: self.recover })
    }

    /// The words that start a daemon for the store at `path`.
    pub fn words(&self, path: &Path) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["daemon".into(), format!("--via={}", self.via).into()];
        if self.recover {
            words.push("--recover".into());
        }
        words.extend(self.opening.words());
        words.push("--".into());
        // The daemon works in another directory.
        words.push(std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).into());
        words
    }
}

/// Tells what harms the copy that was just made of a volume.
pub(crate) fn note_cautions(state: &StateDirectory, entry: &Entry, is_copied: bool) {
    let asked = is_copied.then(|| control::ask(state, entry, &Request::Status).ok()).flatten();
    let Some(Reply::Status(facts)) = asked else { return };
    if let Facts::Volume(status) = *facts {
        let cautions = status.replica.map(|replica| replica.cautions).unwrap_or_default();
        cautions.iter().for_each(|caution| terminal::note(&format!("warning: {caution}")));
    }
}

impl Attach {
    pub(crate) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        let (path, opening) = self.options.opening.located(&self.path)?;
        let options = Options { opening, ..self.options.clone() };
        Attach { path, options, ..*self }.run_located(state)
    }

    fn run_located(&self, state: &StateDirectory) -> Result<(), CliError> {
        let (options, why) = self.options.resolved()?;
        // Before the note, so that what is wrong stands alone.
        let job = options.job(&self.path)?;
        if let Some(why) = why.filter(|_| self.verbose) {
            terminal::note(&why);
        }
        if !options.opening.read_only {
            room::note_if_short(&self.path);
        }
        if self.foreground {
            service::run(state, job, &mut |entry| Ok(self.tell(entry)?))?;
            return Ok(());
        }
        let entry = launch::launch(state, options.words(&self.path))?;
        note_cautions(state, &entry, options.opening.copy.replicate.is_some());
        options.opening.note_left_copy(&self.path, &entry.name);
        self.tell(&entry).inspect_err(|_| {
            let name = &entry.name;
            terminal::note(&format!(
                "'{name}' is attached all the same; `coulter detach {name}` ends it"
            ));
        })
    }

    fn tell(&self, entry: &Entry) -> Result<(), CliError> {
        if self.json {
            return terminal::print_json(entry);
        }
        if let Some(failure) = &entry.failure {
            terminal::note(&format!("'{}' is {failure}", entry.name));
        }
        terminal::print(entry.device.as_deref().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{CommandLine, Verb};
    use crate::opening::CopyOptions;
    use clap::Parser;
    use coulter_daemon::opening::{Acknowledge, DeviceChoice, Trim};
    use coulter_daemon::points::Nbd;
    use coulter_terminal::Size;

    #[test]
    fn the_daemon_understands_the_command_line_that_it_is_given() {
        let opening = OpeningOptions {
            name: Some("a".into()),
            map_memory: Some(Size(12_345_678)),
            read_cache: Some(Size(23_456_789)),
            device: DeviceChoice::NvmePassthrough,
            trim: Trim::Yes,
            acknowledge: Acknowledge::Buffered,
            read_only: true,
            degraded: coulter::Degraded::ReadWrite,
            pad_pages: true,
            tune: ["cleaning=drain", "cleaning-rate=12345678", "latency-target=1500us"]
                .map(|text| text.parse().expect("it is a setting"))
                .to_vec(),
            metrics: Some("127.0.0.1:9640".parse().expect("an address")),
            copy: CopyOptions {
                replicate: Some("s3://bucket/vol".parse().expect("a URL")),
                ack: coulter_object::Ack::Remote,
                every: std::time::Duration::from_millis(1234),
                lag_max: Size(123_456_789),
                keep_max: Size(234_567_890),
                reseed: true,
                cache: None,
                take_over: true,
                cached: true,
            },
        };
        let options = Options { via: ViaChoice::Kind(&Nbd), recover: true, opening };
        let path = Path::new("/srv/-odd name.img");
        let words = [OsString::from("coulter")].into_iter().chain(options.words(path));
        let parsed = CommandLine::try_parse_from(words).expect("the daemon understands it");
        let Verb::Daemon(daemon) = parsed.verb else { panic!("another verb: {:?}", parsed.verb) };
        assert_eq!(daemon.path, path);
        assert_eq!(daemon.options.via, options.via);
        assert!(daemon.options.recover);
        assert_eq!(daemon.options.opening, options.opening);
    }
}
