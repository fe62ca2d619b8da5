//! `coulter bench`: measures, side by side in one run.

use crate::error::CliError;
use crate::size::Size;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Measure; each figure is a ratio of two sides that took turns in one run.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter bench volume --json
  coulter bench engine
  coulter bench recovery --mapped 256G --json")]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) what: What,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum What {
    /// Random writes through a volume against the same writes straight to the file
    Volume(VolumeBench),
    /// The engine alone on a memory device, one core
    Engine(EngineBench),
    /// From a crash to the first I/O
    Recovery(RecoveryBench),
}

/// Arguments of `bench volume`.
#[derive(Debug, Args)]
pub(crate) struct VolumeBench {
    /// File or disk to measure on; a file is made and removed [default: a file in the temporary
    /// directory]
    #[arg(long)]
    pub(crate) backing: Option<PathBuf>,

    /// Bytes to write to on either side
    #[arg(long, default_value = "2G")]
    pub(crate) size: Size,

    /// Measured seconds per side
    #[arg(long, default_value = "10")]
    pub(crate) seconds: u64,

    /// Most memory that the map may take [default: the whole map]
    #[arg(long, value_name = "SIZE")]
    pub(crate) map_memory: Option<Size>,

    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `bench engine`.
#[derive(Debug, Args)]
pub(crate) struct EngineBench {
    /// Size of the volume in memory
    #[arg(long, default_value = "4G")]
    pub(crate) size: Size,

    /// Measured seconds of each kind
    #[arg(long, default_value = "5")]
    pub(crate) seconds: u64,

    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `bench recovery`.
#[derive(Debug, Args)]
pub(crate) struct RecoveryBench {
    /// Bytes that are mapped, in random blocks of 4 KiB
    #[arg(long, default_value = "256G")]
    pub(crate) mapped: Size,

    /// Most memory that the map may take while recovering [default: 1/16 of the full map]
    #[arg(long, value_name = "SIZE")]
    pub(crate) map_memory: Option<Size>,

    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl Bench {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        Ok(())
    }
}
