//! The course that a verb takes with the daemon that it finds, by the state of that daemon.
//!
//! One table for all verbs: it says what is to be done, and the verbs do it. It knows no option,
//! save that `--force` and `--recover` are the verbs' to judge where it says [`Course::Refuse`] and
//! [`Course::TakeOver`]. A verb that opens a store by itself is [`Verb::Check`]; `mount` attaches
//! what is not attached, and goes by [`Verb::Attach`] there.
//!
//! Invariant: only what has ended is cleared away.

use crate::life::daemon_state::DaemonState;

/// A verb, as far as it has to do with a daemon that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `attach` of the store that the daemon has or had.
    Attach,
    /// `attach` of another store.
    AttachOther,
    /// `check`, `grow`, `dump`, `export` and others that read or change the store themselves.
    Check,
    /// `detach`.
    Detach,
    /// `umount` of what the daemon serves.
    Umount,
    /// `list`, and `status` of all volumes.
    List,
}

/// The course that a verb takes with a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// The verb goes on as if there were no such daemon.
    PassOver,
    /// The verb waits, and looks again.
    Await,
    /// The verb asks the daemon, which answers or explains why not.
    Ask,
    /// The verb shows what the daemon serves, or what waits.
    Show,
    /// The verb tells that the daemon was killed, what it left, and what to do.
    TellKilled,
    /// The verb does nothing; the state says why.
    Refuse,
    /// The verb goes on with the device that waits.
    TakeOver,
    /// The verb takes away what the daemon left.
    ClearAway,
    /// The verb leaves what there is where it is; its name is taken.
    Leave,
}

impl DaemonState {
    /// The course of `verb` with a daemon in this state.
    pub fn course(&self, verb: Verb) -> Course {
        let course = match verb {
            Verb::Attach => self.course_of_attach(),
            Verb::AttachOther => self.course_of_attach_other(),
            Verb::Check => self.course_of_check(),
            Verb::Detach => self.course_of_detach(),
            Verb::Umount => self.course_of_umount(),
            Verb::List => self.course_of_list(),
        };
        assert!(
            course != Course::ClearAway || !self.lives(),
            "the state of a running daemon is its own"
        );
        assert!(
            course == Course::PassOver
                || !matches!(self, DaemonState::Gone | DaemonState::TakenOver),
            "there is nothing left to do anything about"
        );
        assert!(
            course != Course::TakeOver || matches!(self, DaemonState::Waits { .. }),
            "only a device that waits is taken over"
        );
        course
    }

    fn course_of_attach(&self) -> Course {
        match self {
            DaemonState::Starting | DaemonState::Ending | DaemonState::Dying => Course::Await,
            DaemonState::Serving
            | DaemonState::StoreMoved
            | DaemonState::StoreDeleted
            | DaemonState::Unmounted => Course::Refuse,
            DaemonState::Waits { .. } => Course::TakeOver,
            DaemonState::KilledWithDevice { .. }
            | DaemonState::KilledWithMount
            | DaemonState::Killed => Course::ClearAway,
            DaemonState::Gone | DaemonState::TakenOver => Course::PassOver,
        }
    }

    fn course_of_attach_other(&self) -> Course {
        match self {
            living if living.lives() => Course::Leave,
            // Programs use a device that waits; below a dead mount they would write into the bare
            // directory. Both are for the owner of that store to take away.
            DaemonState::Waits { .. } | DaemonState::KilledWithMount => Course::Leave,
            DaemonState::KilledWithDevice { .. } | DaemonState::Killed => Course::ClearAway,
            _ => Course::PassOver,
        }
    }

    fn course_of_check(&self) -> Course {
        match self {
            DaemonState::Ending | DaemonState::Dying | DaemonState::Unmounted => Course::Await,
            DaemonState::Serving | DaemonState::StoreMoved | DaemonState::StoreDeleted => {
                Course::Ask
            }
            // The lock of the store decides between the two.
            DaemonState::Starting => Course::PassOver,
            DaemonState::Waits { .. }
            | DaemonState::KilledWithDevice { .. }
            | DaemonState::KilledWithMount
            | DaemonState::Killed
            | DaemonState::Gone
            | DaemonState::TakenOver => Course::PassOver,
        }
    }

    fn course_of_detach(&self) -> Course {
        match self {
            // It would take the only copy of the data along.
            DaemonState::StoreDeleted => Course::Refuse,
            other => other.course_of_ending(),
        }
    }

    fn course_of_umount(&self) -> Course {
        match self {
            // To unmount is to write, and no daemon serves that.
            DaemonState::Waits { .. } => Course::Refuse,
            other => other.course_of_ending(),
        }
    }

    /// The course of a verb that ends a daemon.
    fn course_of_ending(&self) -> Course {
        match self {
            DaemonState::Gone | DaemonState::TakenOver => Course::PassOver,
            living if living.lives() => Course::Ask,
            _ => Course::ClearAway,
        }
    }

    fn course_of_list(&self) -> Course {
        match self {
            DaemonState::Starting | DaemonState::Gone | DaemonState::TakenOver => Course::PassOver,
            DaemonState::KilledWithDevice { .. }
            | DaemonState::KilledWithMount
            | DaemonState::Killed => Course::TellKilled,
            DaemonState::Waits { .. } => Course::Show,
            DaemonState::Serving
            | DaemonState::StoreMoved
            | DaemonState::StoreDeleted
            | DaemonState::Ending
            | DaemonState::Dying
            | DaemonState::Unmounted => Course::Show,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn every_verb_has_its_course_from_every_state() {
        use Course::{Ask, Await, ClearAway, Leave, PassOver, Refuse, Show, TakeOver, TellKilled};
        use Verb::{Attach, AttachOther, Check, Detach, List, Umount};
        let device = || PathBuf::from("/dev/nbd0");
        let verbs = [Attach, AttachOther, Check, Detach, Umount, List];
        for (state, courses) in [
            (DaemonState::Starting, [Await, Leave, PassOver, Ask, Ask, PassOver]),
            (DaemonState::Serving, [Refuse, Leave, Ask, Ask, Ask, Show]),
            (DaemonState::StoreMoved, [Refuse, Leave, Ask, Ask, Ask, Show]),
            (DaemonState::StoreDeleted, [Refuse, Leave, Ask, Refuse, Ask, Show]),
            (DaemonState::Ending, [Await, Leave, Await, Ask, Ask, Show]),
            (DaemonState::Dying, [Await, Leave, Await, Ask, Ask, Show]),
            (DaemonState::Unmounted, [Refuse, Leave, Await, Ask, Ask, Show]),
            (
                DaemonState::Waits { device: device() },
                [TakeOver, Leave, PassOver, ClearAway, Refuse, Show],
            ),
            (
                DaemonState::KilledWithDevice { device: device() },
                [ClearAway, ClearAway, PassOver, ClearAway, ClearAway, TellKilled],
            ),
            (
                DaemonState::KilledWithMount,
                [ClearAway, Leave, PassOver, ClearAway, ClearAway, TellKilled],
            ),
            (
                DaemonState::Killed,
                [ClearAway, ClearAway, PassOver, ClearAway, ClearAway, TellKilled],
            ),
            (DaemonState::Gone, [PassOver; 6]),
            (DaemonState::TakenOver, [PassOver; 6]),
        ] {
            let found = verbs.map(|verb| state.course(verb));
            assert_eq!(found, courses, "{state:?}");
        }
    }
}
