//! `coulter-lab flash`: the emulator of flash drives.

mod attach;
mod drive;
mod run;

use crate::error::LabError;
use attach::{FlashAttach, FlashDaemon, FlashServe};
use clap::{Args, Subcommand};
use coulter_daemon::state::StateDirectory;
use log::LevelFilter;
use run::FlashRun;

/// Emulate flash drives: the drive, its translation layer and a file system under a workload
///
/// `run` measures a workload in virtual time: the same command prints the same numbers on every
/// machine. `attach` and `serve` make a block device of a drive, for real programs. docs/flash.md
/// explains the model and what it cannot tell.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter-lab flash run --ftl page --profile sata-tlc --workload uniform --json
  coulter-lab flash run --ftl sftl --profile openssd --workload varmail --host slfs
  coulter-lab flash run --ftl dftl --profile my-drive.profile --workload zipf:0.99,reads=30
  coulter-lab flash attach --ftl dftl --pace real   prints, for instance, /dev/loop0
  coulter-lab flash attach --volume                 the same with a Coulter volume on the drive")]
pub(crate) struct Flash {
    #[command(subcommand)]
    what: What,
}

/// What to do with an emulated drive.
#[derive(Debug, Subcommand)]
enum What {
    Run(Box<FlashRun>),
    Attach(Box<FlashAttach>),
    Serve(Box<FlashServe>),
    #[command(hide = true)]
    Daemon(Box<FlashDaemon>),
}

impl Flash {
    pub(crate) fn run(
        &self,
        state: impl FnOnce() -> Result<StateDirectory, LabError>,
    ) -> Result<(), LabError> {
        match &self.what {
            What::Run(verb) => verb.run(),
            What::Attach(verb) => verb.run(&state()?),
            What::Serve(verb) => verb.run(&state()?),
            What::Daemon(verb) => verb.run(&state()?),
        }
    }

    /// How much of what happens is told.
    pub(crate) fn log_level(&self) -> LevelFilter {
        match &self.what {
            What::Serve(_) => LevelFilter::Info,
            What::Attach(attach) if attach.foreground => LevelFilter::Info,
            _ => LevelFilter::Warn,
        }
    }

    /// Whether it has told the command that started it what is wrong.
    pub(crate) fn is_daemon(&self) -> bool {
        matches!(self.what, What::Daemon(_))
    }
}
