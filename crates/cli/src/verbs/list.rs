//! `coulter list`: what is attached.

use crate::error::CliError;
use crate::size::Size;
use crate::state::StateDirectory;
use crate::table::Table;
use crate::terminal;
use clap::Args;

/// List the attached volumes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter list
  coulter list --json | jq -r '.[].device'")]
pub(crate) struct List {
    /// Print an array of objects with name, store, device, via, pid, …
    #[arg(long)]
    pub(crate) json: bool,
}

impl List {
    pub(crate) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        let entries = state.attached()?;
        if self.json {
            return terminal::print_json(&entries);
        }
        if entries.is_empty() {
            terminal::note("nothing is attached");
            return Ok(());
        }
        let mut table = Table::new(&["NAME", "SIZE", "VIA", "DEVICE", "PID", "STORE"]);
        for entry in entries {
            table.row(&[
                entry.name,
                Size(entry.volume_size_bytes).to_string(),
                entry.via.to_string(),
                entry.device.unwrap_or_default(),
                entry.process.pid.to_string(),
                entry.store.display().to_string(),
            ]);
        }
        terminal::print(table.to_string().trim_end())
    }
}
