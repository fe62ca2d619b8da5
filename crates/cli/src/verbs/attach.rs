//! `coulter attach`: serves a volume to this host from a process of its own.

use crate::daemon::{self, Job, Point, Source, launch};
use crate::error::{CliError, DaemonError};
use crate::opening::Opening;
use crate::state::{Entry, StateDirectory};
use crate::terminal;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Attach a store: print the block device by which this host reaches its volume.
///
/// A daemon serves it until `coulter detach`. Signals TERM and INT make the daemon flush, write a
/// checkpoint and end; nothing acknowledged as durable is lost if it is killed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter attach disk.img                  prints, for instance, /dev/loop0
  coulter attach /dev/sdb --name fast
  coulter attach disk.img --via nbd        prints an nbd+unix:// URI; needs no root")]
pub(crate) struct Attach {
    /// Store to attach
    pub(crate) path: PathBuf,

    #[command(flatten)]
    pub(crate) options: Options,

    /// Stay in the foreground and log to standard error
    #[arg(long)]
    pub(crate) foreground: bool,

    /// Print the entry that `list --json` would show
    #[arg(long)]
    pub(crate) json: bool,
}

/// How to attach; shared with the hidden verb that the daemon runs as, and with `mount`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// What the host sees: a loop device over a FUSE file (needs root) or an NBD server on a
    /// unix socket; auto takes the best that there is
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) via: ViaChoice,

    #[command(flatten)]
    pub(crate) opening: Opening,
}

/// What may be written behind `--via`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ViaChoice {
    Auto,
    #[value(hide = true)]
    Ublk,
    Nbd,
    Loop,
}

impl ViaChoice {
    /// The attach point that was asked for, or the best one for `auto`.
    ///
    /// # Errors
    /// When this version does not have it, or it needs root.
    pub(crate) fn point(self) -> Result<Point, CliError> {
        let root = nix::unistd::Uid::effective().is_root();
        match self {
            ViaChoice::Ublk => Err(DaemonError::ViaUnsupported { via: "ublk" }.into()),
            ViaChoice::Nbd => Ok(Point::NbdInState),
            ViaChoice::Auto if !root || !crate::attach_point::loop_is_possible() => {
                Ok(Point::NbdInState)
            }
            ViaChoice::Auto => Ok(Point::Loop),
            ViaChoice::Loop if !root => Err(CliError::needs_root(
                "a loop device",
                "run it with sudo, or use --via nbd, which needs no root",
            )),
            ViaChoice::Loop => Ok(Point::Loop),
        }
    }
}

impl std::fmt::Display for ViaChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ViaChoice::Auto => "auto",
            ViaChoice::Ublk => "ublk",
            ViaChoice::Nbd => "nbd",
            ViaChoice::Loop => "loop",
        })
    }
}

impl Options {
    /// What the daemon is to do.
    ///
    /// # Errors
    /// As [`ViaChoice::point`], and when there is nothing at `path`.
    pub(crate) fn job(&self, path: &std::path::Path) -> Result<Job, CliError> {
        let point = self.via.point()?;
        Ok(Job {
            source: Source::Store(crate::store::existing(path)?),
            point,
            opening: self.opening.clone(),
        })
    }
}

impl Attach {
    pub(crate) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        let job = self.options.job(&self.path)?;
        if self.foreground {
            return daemon::run(state, job, &mut |entry| self.tell(entry)).map(|_| ());
        }
        let entry = launch::launch(state, launch::words_for_store(&self.path, &self.options))?;
        self.tell(&entry)
    }

    fn tell(&self, entry: &Entry) -> Result<(), CliError> {
        if self.json {
            return terminal::print_json(entry);
        }
        terminal::print(entry.device.as_deref().unwrap_or_default())
    }
}
