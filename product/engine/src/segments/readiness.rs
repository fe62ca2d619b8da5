//! How far segments are prepared for being written: see [`crate::prepare`].

use crate::canary::{Canary, sings};

/// How far a segment is prepared.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Readiness {
    /// Blocks from its start.
    pub(crate) blocks: u32,
    pub(crate) is_under_way: bool,
}

impl Readiness {
    pub(crate) const WHOLE: u32 = u32::MAX;

    /// Whether the device is preparing it.
    pub(crate) fn is_under_way(self) -> bool {
        self.is_under_way && !sings(Canary::OpenedWhilePrepared)
    }

    /// It is opened, or was before the engine was: whoever did that saw to it.
    pub(crate) fn note_opened(&mut self) {
        self.blocks = Readiness::WHOLE;
    }

    /// It was freed; `trims`: the device forgets it.
    pub(crate) fn note_trimmed(&mut self, trims: bool) {
        if trims {
            self.blocks = 0;
        }
    }

    pub(crate) fn is_whole(self, size: u32) -> bool {
        self.blocks >= size
    }
}

/// How much of the queue may be opened, where space is needed.
#[derive(Debug, Default)]
pub(crate) struct ReadyQueue {
    /// Whether only what has space may be opened.
    pub(crate) needs_space: bool,
    /// Segments at the front of the queue that are listed and have space.
    pub(crate) count: usize,
    /// Whether what is freed and queued at once stays as it is in place of being trimmed.
    pub(crate) keeps: bool,
}

impl ReadyQueue {
    /// Of so many segments that are listed, those that may be opened.
    pub(crate) fn limit(&self, listed: usize) -> usize {
        if self.needs_space { self.count.min(listed) } else { listed }
    }

    /// The front of the queue was opened.
    pub(crate) fn front_was_opened(&mut self) {
        assert!(!self.needs_space || self.count > 0, "only what has space is opened");
        self.count = self.count.saturating_sub(1);
    }

    /// Whether a segment that is queued as soon as it is freed keeps its space.
    pub(crate) fn keeps_queued(&self) -> bool {
        self.keeps
    }
}
