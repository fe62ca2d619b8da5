//! Looking at a daemon from outside: gathers the signs from which its state is decided.

use crate::life::daemon_state::{DaemonState, Pulse, Remains, Signs};
use crate::life::device;
use crate::life::entry::Entry;
use crate::life::state::StateDirectory;
use crate::life::store_fate::StoreFate;
use crate::points;
use std::path::PathBuf;

impl DaemonState {
    /// The state of the daemon of `entry`, by the state directory, the processes and the mounts. It
    /// asks no daemon and no file system, which might not answer; so it never says what became of
    /// the store's file.
    pub fn look(state: &StateDirectory, entry: &Entry) -> DaemonState {
        DaemonState::of(signs(state, entry))
    }

    /// The same, with what became of the store's file.
    pub fn look_closely(state: &StateDirectory, entry: &Entry) -> DaemonState {
        DaemonState::of(Signs { store: StoreFate::of(entry), ..signs(state, entry) })
    }
}

fn signs(state: &StateDirectory, entry: &Entry) -> Signs {
    let pulse = state.pulse(entry);
    let is_unmounted =
        || entry.directory().is_some_and(|directory| !points::is_mounted(entry, directory));
    let lives = pulse == Pulse::Lives;
    Signs {
        pulse,
        has_device: entry.device.is_some(),
        tells_its_end: entry.ending,
        is_dying: lives && entry.process.is_dying(),
        is_unmounted: lives && is_unmounted(),
        store: None,
        remains: if pulse == Pulse::Killed { remains(state, entry) } else { Remains::Files },
    }
}

/// Looks for what the killed daemon of `entry` left on the host's side.
fn remains(state: &StateDirectory, entry: &Entry) -> Remains {
    if let Some(device) = device::waiting_device(entry) {
        return Remains::WaitingDevice(device);
    }
    // Where it is still there it is dead.
    match &entry.device {
        Some(device) if points::gives_device(entry) && device::has_its_device(state, entry) => {
            Remains::DeadDevice(PathBuf::from(device))
        }
        _ if device::covers_a_directory(entry) => Remains::DeadMount,
        _ => Remains::Files,
    }
}
