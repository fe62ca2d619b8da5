//! `coulter dump`: prints a structure of a store as it lies on the device.

use crate::error::CliError;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Print what lies on a store, decoded; it is only read.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter dump disk.img superblock
  coulter dump disk.img records --json | jq '.[-1]'")]
pub(crate) struct Dump {
    /// Store to read
    pub(crate) path: PathBuf,

    /// What to print
    #[arg(value_enum)]
    pub(crate) structure: Structure,

    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What can be printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Structure {
    /// Identity, geometry, format version, where the checkpoint is
    Superblock,
    /// The point from which recovery replays
    Checkpoint,
    /// Each segment with its state, stream and valid blocks
    Segments,
    /// Host address to device address, in runs
    Map,
    /// Every record of the log in the order of the device
    Records,
}

impl Dump {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        Ok(())
    }
}
