//! `coulter list`: what is attached.

use crate::error::CliError;
use crate::terminal;
use clap::Args;
use coulter_daemon::attach_point;
use coulter_daemon::killed::Killed;
use coulter_daemon::left_over;
use coulter_daemon::state::{Entry, StateDirectory};
use coulter_daemon::store_fate::StoreFate;
use coulter_terminal::Size;
use coulter_terminal::Table;
use serde::Serialize;

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

/// An entry as it is listed.
#[derive(Serialize)]
struct Listed {
    #[serde(flatten)]
    entry: Entry,
    /// Whether its daemon has ended, and its device waits for another one; left out if not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    waiting: bool,
    /// Left out if the store is where it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    store_fate: Option<StoreFate>,
}

impl List {
    pub(crate) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        let entries = state.entries()?;
        let dead_mounts = left_over::dead_mounts(state, &entries);
        let listed: Vec<Listed> = entries.into_iter().filter_map(listed).collect();
        if self.json {
            return terminal::print_json(&listed);
        }
        match listed.is_empty() {
            true => terminal::note("nothing is attached"),
            false => print_table(&listed)?,
        }
        for entry in state.killed()? {
            terminal::note(&Killed::new(state, &entry).to_string());
        }
        dead_mounts.iter().for_each(|told| terminal::note(told));
        Ok(())
    }
}

fn print_table(listed: &[Listed]) -> Result<(), CliError> {
    let mut table = Table::new(&["NAME", "SIZE", "VIA", "DEVICE", "PID", "STORE"]);
    for Listed { entry, waiting, store_fate } in listed {
        let (pid, store) = (entry.process.pid.to_string(), terminal::path(&entry.store));
        let device = entry.device.as_deref().unwrap_or_default();
        table.row(&[
            entry.name.clone(),
            Size(entry.volume_size_bytes).to_string(),
            entry.via.to_string(),
            format!("{device}{}", if entry.read_only { " (read-only)" } else { "" }),
            match (*waiting, entry.ending) {
                (true, _) => "ended".to_owned(),
                (false, true) => format!("{pid} (ending)"),
                (false, false) => pid,
            },
            match store_fate {
                None => store,
                Some(fate) => format!("{store} ({})", fate.word(entry)),
            },
        ]);
    }
    terminal::print(table.to_string().trim_end())?;
    for Listed { entry, store_fate, .. } in listed {
        if let Some(failure) = &entry.failure {
            let name = &entry.name;
            terminal::note(&format!(
                "'{name}' has failed, {failure}: mend that, then detach it and attach it again"
            ));
        }
        if let Some(warning) = store_fate.and_then(|fate| fate.warning(entry)) {
            terminal::note(&warning);
        }
    }
    Ok(())
}

/// What is served, or waits.
fn listed(entry: Entry) -> Option<Listed> {
    if entry.process.is_alive() {
        let store_fate = StoreFate::of(&entry);
        return entry.device.is_some().then_some(Listed { entry, waiting: false, store_fate });
    }
    let device = attach_point::waiting_device(&entry)?;
    let entry = Entry { device: Some(device.display().to_string()), ..entry };
    let store_fate = StoreFate::of(&entry);
    Some(Listed { entry, waiting: true, store_fate })
}
