//! Where a segment is in its life, and from where to where it may go.

use crate::units::Sequence;

/// Where a segment is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing counted, in a durable checkpoint too; may be queued.
    Free,
    /// Nothing counted since this sequence; waits for a checkpoint that says so.
    Freed(Sequence),
    /// Being discarded on the device.
    Trimming,
    /// In the queue of segments to be opened.
    Queued(Trim),
    /// A stream's head.
    Open,
    /// Full.
    Closed,
    /// Full, and records are or will be written into its holes: see `holes`.
    Patching,
}

/// Whether the device was told to forget a segment that waits in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trim {
    /// It was, or need not be.
    Done,
    /// It was queued as soon as it was freed: it is told once the checkpoint is durable.
    Due,
    /// It is being told.
    UnderWay,
}

impl State {
    /// Whether a segment may go from this state to that one while the engine runs.
    pub(super) fn leads_to(self, next: State) -> bool {
        use State::{Closed, Free, Freed, Open, Patching, Queued, Trimming};
        matches!(
            (self, next),
            (Free, Queued(Trim::Done))
                | (Freed(_), Queued(Trim::Due) | Trimming | Free)
                | (Trimming, Free)
                | (Closed, Freed(_) | Patching)
                | (Patching, Closed)
                | (Queued(Trim::Due), Queued(Trim::UnderWay | Trim::Done))
                | (Queued(Trim::UnderWay), Queued(Trim::Done))
                | (Queued(Trim::Done), Open)
                | (Open, Closed)
        )
    }

    /// The same while a store is opened: a checkpoint and the log say what was.
    pub(super) fn is_restored_to(self, next: State) -> bool {
        use State::{Closed, Free, Open, Queued};
        match (self, next) {
            (Free, Open | Closed | Queued(Trim::Done)) | (Closed, Open) => true,
            _ => self == next || self.leads_to(next),
        }
    }
}
