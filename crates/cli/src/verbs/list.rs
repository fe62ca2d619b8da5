//! `coulter list`: what is attached.

use crate::attach_point;
use crate::error::CliError;
use crate::killed::Killed;
use crate::left_over;
use crate::size::Size;
use crate::state::{Entry, StateDirectory};
use crate::table::Table;
use crate::terminal;
use clap::Args;
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
    for Listed { entry, waiting } in listed {
        let pid = entry.process.pid.to_string();
        let device = entry.device.as_deref().unwrap_or_default();
        table.row(&[
            entry.name.clone(),
            Size(entry.volume_size_bytes).to_string(),
            entry.via.to_string(),
            format!("{device}{}", if entry.read_only { " (read-only)" } else { "" }),
            if *waiting { "ended".to_owned() } else { pid },
            format!("{}{}", terminal::path(&entry.store), fate_of_path(entry)),
        ]);
    }
    terminal::print(table.to_string().trim_end())?;
    for Listed { entry, .. } in listed {
        if let Some(failure) = &entry.failure {
            let name = &entry.name;
            terminal::note(&format!(
                "'{name}' has failed, {failure}: mend that, then detach it and attach it again"
            ));
        }
    }
    Ok(())
}

/// What has become of the path that the store had when it was attached, if that is worth a word.
fn fate_of_path(entry: &Entry) -> &'static str {
    match entry.is_of(&entry.store) {
        None => " (replaced)",
        Some(_) if entry.store_identity.is_some() && !entry.store.exists() => " (deleted)",
        Some(_) => "",
    }
}

/// What is served, or waits.
fn listed(entry: Entry) -> Option<Listed> {
    if entry.process.is_alive() {
        return entry.device.is_some().then_some(Listed { entry, waiting: false });
    }
    let device = attach_point::waiting_device(&entry)?;
    let entry = Entry { device: Some(device.display().to_string()), ..entry };
    Some(Listed { entry, waiting: true })
}
