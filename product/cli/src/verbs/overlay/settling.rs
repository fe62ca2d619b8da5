//! Bringing blocks home while a bar shows how far that is.

use super::hidden::Hidden;
use super::{report, told_with_help};
use crate::error::CliError;
use crate::terminal;
use coulter_fuse::files::overlay;
use coulter_overlay::SettleWhen;
use coulter_terminal::Size;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Files with faults that are told one by one.
const FAULTS_TOLD: usize = 8;
/// How often the bar is moved.
const PAUSE: Duration = Duration::from_millis(200);

/// Brings everything home, and waits for that. Files of which blocks have to stay in the store are
/// an error, also if that was known before.
pub(crate) fn settle_or_tell(directory: &Path) -> Result<(), CliError> {
    let settled = settle_all(directory);
    let report = report(directory).unwrap_or_default();
    let total = report["faults_total"].as_u64().unwrap_or(0);
    if total == 0 {
        return settled;
    }
    let faults = report["faults"].as_array().cloned().unwrap_or_default();
    let names = names_of(directory, &faults);
    let mut told: Vec<String> =
        faults.iter().take(FAULTS_TOLD).map(|it| tell(it, &names)).collect();
    if total > told.len() as u64 {
        told.push(format!("and {} more", total - told.len() as u64));
    }
    let help = format!(
        "`coulter overlay list-orphans {}` shows what can be done",
        terminal::word(directory)
    );
    Err(told_with_help("blocks stay in the store of", directory, told.join("; "), help))
}

/// A file that cannot come home, by its name if it has one.
fn tell(fault: &Value, names: &HashMap<u64, PathBuf>) -> String {
    let inode = fault["inode"].as_u64().unwrap_or(0);
    let name = names.get(&inode).filter(|_| fault["is_gone"] != true);
    format!(
        "{}: {}, {}",
        name.map_or_else(|| format!("inode {inode}"), |name| terminal::path(name)),
        fault["why"].as_str().unwrap_or_default(),
        Size(fault["bytes"].as_u64().unwrap_or(0)),
    )
}

/// Where files with faults are, as far as they can be found.
fn names_of(directory: &Path, faults: &[Value]) -> HashMap<u64, PathBuf> {
    let wanted: HashSet<u64> = faults.iter().filter_map(|fault| fault["inode"].as_u64()).collect();
    let mut names = HashMap::new();
    let mut places = vec![directory.to_owned()];
    while let Some(place) = places.pop().filter(|_| names.len() < wanted.len()) {
        for entry in fs::read_dir(&place).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => places.push(entry.path()),
                Ok(kind) if kind.is_file() && wanted.contains(&entry.ino()) => {
                    names.insert(entry.ino(), entry.path());
                }
                _ => {}
            }
        }
    }
    names
}

/// Brings everything home that can be, and waits for that.
pub(crate) fn settle_all(directory: &Path) -> Result<(), CliError> {
    let figures = || {
        let report = report(directory).unwrap_or_default();
        let number = |key: &str| report[key].as_u64().unwrap_or(0);
        (number("stored_bytes"), number("bytes_brought_home"))
    };
    let (total, begun) = figures();
    let bar = terminal::progress("bringing home", total);
    let (over, is_over) = channel();
    let settled = std::thread::scope(|scope| {
        let moved = bar.clone();
        scope.spawn(move || {
            while is_over.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                // What is written meanwhile comes home too.
                moved.set_position((figures().1 - begun).min(total));
            }
        });
        let settled = overlay::settle(directory);
        drop::<std::sync::mpsc::Sender<()>>(over);
        settled
    });
    bar.finish_and_clear();
    settled.map_err(|source| CliError::io("bring home the blocks of", directory, source))
}

/// Brings home what an overlay over `directory` brings home at unmounting, with a bar. The rest
/// stays in the store. True if it is an overlay.
pub(crate) fn before_unmount(directory: &Path) -> bool {
    let Some(report) = report(directory) else { return false };
    if report["settle"] == SettleWhen::Unmount.word()
        && let Err(error) = settle_or_tell(directory)
    {
        terminal::note(&format!("blocks stay in the store: {error}"));
    }
    true
}

/// Says that the store of an overlay that was unmounted is there, and what takes it away.
pub(crate) fn tell_of_store(directory: &Path) {
    if let Ok(Some(store)) = Hidden::of(directory).store() {
        terminal::note(&format!(
            "its store stays, {}; `coulter overlay detach {}` takes it away",
            terminal::path(&store),
            terminal::word(directory)
        ));
    }
}
