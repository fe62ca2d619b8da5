//! `coulter list`: what is attached.

use crate::error::{CliError, DaemonError, Error};
use crate::terminal;
use clap::Args;
use coulter_daemon::daemon_state::DaemonState;
use coulter_daemon::killed::Killed;
use coulter_daemon::left_over;
use coulter_daemon::points;
use coulter_daemon::state::{Entry, StateDirectory};
use coulter_daemon::store_fate::StoreFate;
use coulter_daemon::verbs::{Course, Verb};
use coulter_system::mounts;
use coulter_terminal::Size;
use coulter_terminal::Table;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// List what is attached and mounted: volumes, file systems and overlays.
///
/// The exit code is 1 if one of them has failed or its daemon was killed.
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
#[derive(Clone, Serialize)]
struct Listed {
    #[serde(flatten)]
    entry: Entry,
    /// Whether its daemon has ended, and its device waits for another one; left out if not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    waiting: bool,
    /// Whether its daemon was killed, and nobody serves it; left out if not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    killed: bool,
    /// Left out if the store is where it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    store_fate: Option<StoreFate>,
    /// Where file systems on it are mounted.
    mount_points: Vec<PathBuf>,
}

/// Where file systems are mounted from the device of a volume.
pub(crate) fn mount_points(entry: &Entry) -> Vec<PathBuf> {
    if points::gives_directory(entry) {
        let directory = entry.device.as_deref().map(PathBuf::from);
        return directory.filter(|it| points::is_mounted(entry, it)).into_iter().collect();
    }
    let device = entry.device.as_deref().filter(|_| points::gives_device(entry));
    let found = device.and_then(|device| mounts::mounts_of(Path::new(device)).ok());
    found.unwrap_or_default().into_iter().map(|mount| mount.mount_point).collect()
}

/// Whose volumes are not seen: each user has a state directory.
fn unseen() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("volumes of other users, root included, are not seen".to_owned());
    }
    let others = fs::read_dir("/run/user").into_iter().flatten().flatten();
    let has_some =
        |user: &fs::DirEntry| user.file_name() != "0" && user.path().join("coulter").is_dir();
    let users: Vec<_> = others.filter(has_some).collect();
    let names: Vec<_> =
        users.iter().map(|user| user.file_name().to_string_lossy().into_owned()).collect();
    let names = names.join(", ");
    (!names.is_empty()).then(|| format!("volumes of other users are not seen (user IDs {names})"))
}

/// The words where nothing is attached.
pub(crate) fn nothing_attached() -> String {
    let unseen = unseen().map(|unseen| format!("; {unseen}")).unwrap_or_default();
    format!("nothing is attached{unseen}")
}

impl List {
    pub(crate) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        state.await_dying()?;
        let entries = state.entries()?;
        let dead_mounts = left_over::dead_mounts(state, &entries);
        let listed: Vec<Listed> =
            entries.into_iter().filter_map(|entry| listed(state, entry)).collect();
        let killed = state.killed()?;
        if self.json {
            let is_new = |entry: &&Entry| listed.iter().all(|it| it.entry.name != entry.name);
            let killed: Vec<Listed> =
                killed.iter().filter(is_new).map(|entry| Listed::killed(entry.clone())).collect();
            let all = [listed, killed].concat();
            terminal::print_json(&all)?;
            return end(all.iter().filter_map(|it| it.failure(state)).collect());
        }
        match listed.is_empty() {
            true => terminal::note(&nothing_attached()),
            false => print_table(&listed)?,
        }
        dead_mounts.iter().for_each(|told| terminal::note(told));
        let mut failures: Vec<_> = listed.iter().filter_map(|it| it.failure(state)).collect();
        failures.extend(killed.iter().map(|entry| Killed::new(state, entry).error()));
        end(failures)
    }
}

/// Tells all failures; the last of them is the error of the command.
fn end(mut failures: Vec<DaemonError>) -> Result<(), CliError> {
    let last = failures.pop();
    failures.iter().for_each(|failure| terminal::print_error(&failure.report()));
    last.map_or(Ok(()), |failure| Err(Error::from(failure).into()))
}

fn print_table(listed: &[Listed]) -> Result<(), CliError> {
    let mut table = Table::new(&[
        "NAME", "SIZE", "VIA", "DEVICE", "MOUNTED", "LABEL", "PID", "VERSION", "STORE", "UUID",
    ]);
    for Listed { entry, waiting, store_fate, mount_points, .. } in listed {
        let mounted: Vec<_> = mount_points.iter().map(|path| terminal::path(path)).collect();
        let or_none = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
        let (pid, store) = (entry.process.pid.to_string(), terminal::path(&entry.store));
        let device = entry.device.as_deref().unwrap_or_default();
        table.row(&[
            entry.name.clone(),
            Size(entry.told_size()).to_string(),
            entry.via.to_string(),
            format!("{device}{}", if entry.read_only { " (read-only)" } else { "" }),
            or_none(&mounted.join(",")),
            or_none(&entry.label),
            match (*waiting, entry.ending) {
                (true, _) => "ended".to_owned(),
                (false, true) => format!("{pid} (ending)"),
                (false, false) => pid,
            },
            or_none(&entry.version),
            match store_fate {
                None => store,
                Some(fate) => format!("{store} ({})", fate.word(entry)),
            },
            or_none(&entry.uuid),
        ]);
    }
    terminal::print(table.to_string().trim_end())?;
    for Listed { entry, store_fate, .. } in listed {
        if let Some(warning) = store_fate.and_then(|fate| fate.warning(entry)) {
            terminal::note(&warning);
        }
    }
    Ok(())
}

impl Listed {
    /// Why the command ends with 1: a volume that can do less than it was attached for, or that nobody
    /// serves.
    fn failure(&self, state: &StateDirectory) -> Option<DaemonError> {
        match self.killed {
            true => Some(Killed::new(state, &self.entry).error()),
            false => DaemonError::less(&self.entry),
        }
    }

    /// One that nobody serves.
    fn killed(entry: Entry) -> Listed {
        let store_fate = StoreFate::of(&entry);
        let mount_points = mount_points(&entry);
        Listed { entry, waiting: false, killed: true, store_fate, mount_points }
    }
}

/// What is served, or waits.
fn listed(state: &StateDirectory, entry: Entry) -> Option<Listed> {
    let found = DaemonState::look(state, &entry);
    if found.course(Verb::List) != Course::Show {
        return None;
    }
    let waiting = match found {
        DaemonState::Waits { device } => Some(device.display().to_string()),
        _ => None,
    };
    let is_waiting = waiting.is_some();
    let entry = Entry { device: Some(waiting.or(entry.device)?), ..entry };
    let store_fate = StoreFate::of(&entry);
    let mount_points = mount_points(&entry);
    Some(Listed { entry, waiting: is_waiting, killed: false, store_fate, mount_points })
}
