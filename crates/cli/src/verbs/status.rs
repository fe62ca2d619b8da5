//! `coulter status`: what a volume is doing.

use crate::control::{self, Reply, Request};
use crate::error::{CliError, DaemonError};
use crate::state::{Entry, StateDirectory};
use crate::status::{Facts, Rates};
use crate::terminal;
use clap::Args;
use serde::Serialize;
use std::time::Duration;

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

/// Time between two looks of `--watch`.
const INTERVAL: Duration = Duration::from_secs(1);

impl StatusOf {
    pub(crate) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        if self.watch {
            return self.watch(state);
        }
        let statuses = self.statuses(state)?;
        match (&self.volume, self.json) {
            (Some(_), true) => statuses.iter().try_for_each(terminal::print_json),
            (None, true) => terminal::print_json(&statuses),
            (_, false) if statuses.is_empty() => {
                terminal::note("nothing is attached");
                Ok(())
            }
            (_, false) => {
                statuses.iter().try_for_each(|status| terminal::print(&status.to_string()))
            }
        }
    }

    /// The status of the volume that was named, or of all.
    fn statuses(&self, state: &StateDirectory) -> Result<Vec<Facts>, CliError> {
        let entries = match &self.volume {
            Some(volume) => vec![state.find(volume)?],
            None => state.attached()?,
        };
        entries.iter().map(|entry| status_of(state, entry)).collect()
    }

    /// Prints rates until interrupted or until the volume is gone.
    fn watch(&self, state: &StateDirectory) -> Result<(), CliError> {
        let mut before = self.statuses(state)?;
        loop {
            std::thread::sleep(INTERVAL);
            let after = self.statuses(state)?;
            for status in &after {
                let same = |other: &&Facts| other.entry().process == status.entry().process;
                let Some(earlier) = before.iter().find(same) else { continue };
                let rates = Rates::between(earlier, status);
                if self.json {
                    terminal::print_json_line(&Watched { status, rates })?;
                } else {
                    terminal::print(&format!("{:<12} {rates}", status.entry().name))?;
                }
            }
            before = after;
        }
    }
}

/// One line of `status --watch --json`.
#[derive(Serialize)]
struct Watched<'a> {
    #[serde(flatten)]
    status: &'a Facts,
    rates: Rates,
}

fn status_of(state: &StateDirectory, entry: &Entry) -> Result<Facts, CliError> {
    match control::ask(state, entry, &Request::Status)? {
        Reply::Status(status) => Ok(*status),
        // The daemon is another build, with other answers.
        Reply::Done | Reply::Failed(_) => {
            let (name, pid) = (entry.name.clone(), entry.process.pid);
            Err(DaemonError::DaemonSilent { name, pid }.into())
        }
    }
}
