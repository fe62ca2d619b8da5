//! The state of a store's daemon as it is found from outside, decided from what was seen of it.
//!
//! Nothing here looks at anything: `look` gathers `Signs`, this decides what they mean, `verbs`
//! says what each verb does then. That is the only place where the three are put together.
//!
//! ```text
//!   Starting --> Serving, Moved, Deleted --> Ending, Unmounted --> Gone
//!        \               \                        \
//!         `-------------- `--- SIGKILL ------------`--> Dying --> Killed ..., Waits
//!                                                                   | next claim
//!                                                                   v
//!                                                             Gone, TakenOver
//! ```
//!
//! Invariants:
//! - every combination of signs has exactly one state;
//! - a daemon whose state is `Pulse::Lives` has its store: nothing of it is cleared away.

use crate::life::store_fate::StoreFate;
use std::path::PathBuf;

/// The entry that the state directory has now under the name of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnFile {
    /// That of the daemon.
    Own,
    /// None: it ended in order, what it left was cleared away, or its file was deleted.
    Missing,
    /// That of a later daemon.
    OfAnother,
}

/// Signs of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PulseSigns {
    /// Its process is seen, and runs. It is not to be seen from another PID namespace.
    pub(crate) is_seen: bool,
    /// A process holds the lock of its name. This is seen from every namespace.
    pub(crate) is_locked: bool,
    pub(crate) on_file: OnFile,
}

/// Life or end of a daemon, by its process and its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pulse {
    /// It runs, in this namespace or in another one.
    Lives,
    /// It has ended and its entry is still there: it was killed.
    Killed,
    /// It has ended, and its entry is gone.
    Gone,
    /// It has ended, and another daemon has its name.
    TakenOver,
}

impl Pulse {
    pub(crate) fn of(signs: PulseSigns) -> Pulse {
        // The next daemon of that name holds a lock there too.
        let is_lock_its_own = signs.is_locked && signs.on_file != OnFile::OfAnother;
        match (signs.is_seen || is_lock_its_own, signs.on_file) {
            (true, _) => Pulse::Lives,
            (false, OnFile::Own) => Pulse::Killed,
            (false, OnFile::Missing) => Pulse::Gone,
            (false, OnFile::OfAnother) => Pulse::TakenOver,
        }
    }
}

/// Remains of a killed daemon on the host's side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Remains {
    /// Files in the state directory at most.
    Files,
    /// A device that waits for another daemon.
    WaitingDevice(PathBuf),
    /// A device that gives errors.
    DeadDevice(PathBuf),
    /// A mount that gives errors, over a directory of the user's.
    DeadMount,
}

/// Everything that is seen of a daemon, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Signs {
    pub(crate) pulse: Pulse,
    /// Its entry names a device, an address or a directory.
    pub(crate) has_device: bool,
    /// Its entry says that it is ending.
    pub(crate) tells_its_end: bool,
    /// Its process was killed or exits, and has not ended yet.
    pub(crate) is_dying: bool,
    /// It served a directory, and nothing of it is mounted there any more.
    pub(crate) is_unmounted: bool,
    /// Fate of the store's file; `None` if it is in its place or was not looked at.
    pub(crate) store: Option<StoreFate>,
    /// Remains; looked for only if it was killed.
    pub(crate) remains: Remains,
}

/// The state of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DaemonState {
    /// It has a name, and serves nothing yet.
    Starting,
    /// It serves.
    Serving,
    /// It serves, and the path of its store leads to another file, or to none.
    StoreMoved,
    /// It serves a file that was deleted, which is gone when it ends.
    StoreDeleted,
    /// It writes out what hosts have written, and then ends.
    Ending,
    /// It was killed, and the kernel has not closed its files yet.
    Dying,
    /// It ends as soon as programs close the files of a mount that was taken away.
    Unmounted,
    /// It was killed, and its device waits for another daemon.
    Waits {
        /// The device.
        device: PathBuf,
    },
    /// It was killed, and its device gives errors.
    KilledWithDevice {
        /// The device.
        device: PathBuf,
    },
    /// It was killed, and its mount over a directory of the user's gives errors.
    KilledWithMount,
    /// It was killed, and left files in the state directory at most.
    Killed,
    /// It has ended, and nothing of it is left.
    Gone,
    /// It has ended, and its name is another daemon's.
    TakenOver,
}

impl DaemonState {
    /// The only state that `signs` allow.
    pub(crate) fn of(signs: Signs) -> DaemonState {
        assert!(
            signs.pulse == Pulse::Killed || signs.remains == Remains::Files,
            "only a killed daemon leaves something on the host's side"
        );
        match signs.pulse {
            Pulse::Lives => DaemonState::of_living(&signs),
            Pulse::Killed => match signs.remains {
                Remains::Files => DaemonState::Killed,
                Remains::WaitingDevice(device) => DaemonState::Waits { device },
                Remains::DeadDevice(device) => DaemonState::KilledWithDevice { device },
                Remains::DeadMount => DaemonState::KilledWithMount,
            },
            Pulse::Gone => DaemonState::Gone,
            Pulse::TakenOver => DaemonState::TakenOver,
        }
    }

    fn of_living(signs: &Signs) -> DaemonState {
        match signs.store {
            // First: whatever else it is at, its end would take the data along.
            Some(StoreFate::Deleted) => DaemonState::StoreDeleted,
            _ if signs.tells_its_end => DaemonState::Ending,
            _ if signs.is_dying => DaemonState::Dying,
            _ if signs.is_unmounted => DaemonState::Unmounted,
            _ if !signs.has_device => DaemonState::Starting,
            Some(StoreFate::Moved | StoreFate::Unknown) => DaemonState::StoreMoved,
            None => DaemonState::Serving,
        }
    }

    /// True if it runs, in this namespace or in another one, and so may write to its store.
    pub fn lives(&self) -> bool {
        match self {
            DaemonState::Starting
            | DaemonState::Serving
            | DaemonState::StoreMoved
            | DaemonState::StoreDeleted
            | DaemonState::Ending
            | DaemonState::Dying
            | DaemonState::Unmounted => true,
            DaemonState::Waits { .. }
            | DaemonState::KilledWithDevice { .. }
            | DaemonState::KilledWithMount
            | DaemonState::Killed
            | DaemonState::Gone
            | DaemonState::TakenOver => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Signs of a daemon that serves, and of which everything is where it was.
    fn serving() -> Signs {
        Signs {
            pulse: Pulse::Lives,
            has_device: true,
            tells_its_end: false,
            is_dying: false,
            is_unmounted: false,
            store: None,
            remains: Remains::Files,
        }
    }

    #[test]
    fn a_daemon_lives_if_it_is_seen_or_holds_the_lock_of_its_own_name() {
        use OnFile::{Missing, OfAnother, Own};
        for (is_seen, is_locked, on_file, pulse) in [
            (true, true, Own, Pulse::Lives),
            (true, false, Own, Pulse::Lives),
            (true, false, Missing, Pulse::Lives),
            (true, true, OfAnother, Pulse::Lives),
            (false, true, Own, Pulse::Lives),
            (false, true, Missing, Pulse::Lives),
            (false, true, OfAnother, Pulse::TakenOver),
            (false, false, Own, Pulse::Killed),
            (false, false, Missing, Pulse::Gone),
            (false, false, OfAnother, Pulse::TakenOver),
        ] {
            let signs = PulseSigns { is_seen, is_locked, on_file };
            assert_eq!(Pulse::of(signs), pulse, "{signs:?}");
        }
    }

    #[test]
    fn the_strongest_sign_of_a_living_daemon_decides() {
        let deleted = Some(StoreFate::Deleted);
        for (signs, state) in [
            (serving(), DaemonState::Serving),
            (Signs { has_device: false, ..serving() }, DaemonState::Starting),
            (Signs { store: Some(StoreFate::Moved), ..serving() }, DaemonState::StoreMoved),
            (Signs { store: Some(StoreFate::Unknown), ..serving() }, DaemonState::StoreMoved),
            (Signs { store: deleted, ..serving() }, DaemonState::StoreDeleted),
            (Signs { store: deleted, tells_its_end: true, ..serving() }, DaemonState::StoreDeleted),
            (Signs { store: deleted, is_unmounted: true, ..serving() }, DaemonState::StoreDeleted),
            (Signs { tells_its_end: true, is_dying: true, ..serving() }, DaemonState::Ending),
            (Signs { is_dying: true, is_unmounted: true, ..serving() }, DaemonState::Dying),
            (Signs { is_dying: true, has_device: false, ..serving() }, DaemonState::Dying),
            (Signs { is_unmounted: true, ..serving() }, DaemonState::Unmounted),
        ] {
            let text = format!("{signs:?}");
            let decided = DaemonState::of(signs);
            assert_eq!(decided, state, "{text}");
            assert!(decided.lives(), "{text}");
        }
    }

    #[test]
    fn a_killed_daemon_is_told_by_what_it_left_and_by_nothing_else() {
        let device = || PathBuf::from("/dev/nbd0");
        for (pulse, remains, state) in [
            (Pulse::Killed, Remains::Files, DaemonState::Killed),
            (
                Pulse::Killed,
                Remains::WaitingDevice(device()),
                DaemonState::Waits { device: device() },
            ),
            (
                Pulse::Killed,
                Remains::DeadDevice(device()),
                DaemonState::KilledWithDevice { device: device() },
            ),
            (Pulse::Killed, Remains::DeadMount, DaemonState::KilledWithMount),
            (Pulse::Gone, Remains::Files, DaemonState::Gone),
            (Pulse::TakenOver, Remains::Files, DaemonState::TakenOver),
        ] {
            let of_killed = Signs { pulse, remains, ..serving() };
            // Its entry is as old as its death, and may say anything.
            let stale = Signs { tells_its_end: true, has_device: false, ..of_killed.clone() };
            for signs in [of_killed, stale] {
                let decided = DaemonState::of(signs);
                assert!(!decided.lives());
                assert_eq!(decided, state);
            }
        }
    }
}
