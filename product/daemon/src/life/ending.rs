//! Waiting for a daemon that is about to let its store go. umount(8) ends before the daemon has
//! written everything to the store, and the next command would be told that it is in use.

use crate::life::daemon_state::DaemonState;
use crate::life::state::{Entry, StateDirectory};
use crate::life::verbs::{Course, Verb};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How often it is looked whether it has ended.
const PAUSE: Duration = Duration::from_millis(20);

/// Waits until no daemon that is ending has the store at `path`; no longer than `patience`. Does
/// not wait for a daemon that goes on serving.
pub fn await_end(state: &StateDirectory, path: &Path, patience: Duration) {
    let deadline = Instant::now() + patience;
    let is_awaited =
        |entry: &Entry| DaemonState::look(state, entry).course(Verb::Check) == Course::Await;
    let has_it = |entry: &Entry| entry.is_of(path) == Some(true) && is_awaited(entry);
    while state.entries().unwrap_or_default().iter().any(has_it) && Instant::now() < deadline {
        thread::sleep(PAUSE);
    }
}
