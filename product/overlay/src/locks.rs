//! Who may use a file of which blocks are in the store: many readers and overwriters, or one that changes more.

use crate::lower::Lower;
use crate::overlay::{Overlay, Work};
use coulter_files::Request;
use std::collections::VecDeque;

/// How a file is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Shared,
    Exclusive,
}

/// See the module's documentation. Who comes later waits behind who waits.
#[derive(Debug, Default)]
pub(crate) struct Lock {
    shared: u32,
    is_exclusive: bool,
    /// Requests; none stands for the next step of settling.
    waiting: VecDeque<(Mode, Option<Work>)>,
}

impl Lock {
    fn allows(&self, mode: Mode) -> bool {
        !self.is_exclusive && (mode == Mode::Shared || self.shared == 0)
    }

    fn take(&mut self, mode: Mode) {
        assert!(self.allows(mode), "a lock is taken when it is free");
        match mode {
            Mode::Shared => self.shared += 1,
            Mode::Exclusive => self.is_exclusive = true,
        }
    }

    fn leave(&mut self, mode: Mode) {
        match mode {
            Mode::Shared => {
                assert!(self.shared > 0, "it was taken");
                self.shared -= 1;
            }
            Mode::Exclusive => {
                assert!(self.is_exclusive, "it was taken");
                self.is_exclusive = false;
            }
        }
    }

    /// Those who wait; they are to look anew at what they want. A step of settling goes on waiting.
    pub(crate) fn take_waiting(&mut self) -> Vec<Work> {
        let mut works = Vec::with_capacity(self.waiting.len());
        for (mode, work) in std::mem::take(&mut self.waiting) {
            match work {
                Some(work) => works.push(work),
                None => self.waiting.push_back((mode, None)),
            }
        }
        works
    }

    /// How many use it shared, and whether one has it alone.
    pub(crate) fn uses(&self) -> (u32, bool) {
        assert!(!self.is_exclusive || self.shared == 0, "who has it alone is alone");
        (self.shared, self.is_exclusive)
    }

    /// Whether nobody uses the file or waits for it.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_exclusive && self.shared == 0 && self.waiting.is_empty()
    }
}

impl<L: Lower> Overlay<L> {
    /// Takes the lock for `work`, which comes back; or it waits.
    pub(crate) fn lock(&mut self, record: u32, mode: Mode, work: Work) -> Option<Work> {
        let lock = &mut self.store.adopted_mut(record).lock;
        if lock.waiting.is_empty() && lock.allows(mode) {
            lock.take(mode);
            return Some(work);
        }
        lock.waiting.push_back((mode, Some(work)));
        None
    }

    /// Takes the lock for a step of settling; or that waits in its turn.
    pub(crate) fn lock_to_settle(&mut self, record: u32, mode: Mode) -> bool {
        let lock = &mut self.store.adopted_mut(record).lock;
        let is_free = lock.waiting.is_empty() && lock.allows(mode);
        if is_free {
            lock.take(mode);
        } else {
            lock.waiting.push_back((mode, None));
        }
        is_free
    }

    /// Leaves a lock; who waits comes next.
    pub(crate) fn unlock(&mut self, record: u32, mode: Mode) {
        self.store.adopted_mut(record).lock.leave(mode);
        self.unlocked.push_back(record);
    }

    /// Lets in those who wait and may come.
    pub(crate) fn grant(&mut self, record: u32) {
        loop {
            let Some(Some(adopted)) = self.store.records.get_mut(record as usize) else { return };
            let lock = &mut adopted.lock;
            let Some((mode, _)) = lock.waiting.front() else { return };
            let mode = *mode;
            if !lock.allows(mode) {
                return;
            }
            lock.take(mode);
            match lock.waiting.pop_front() {
                Some((_, Some(work))) => self.execute_locked(record, mode, work),
                Some((_, None)) => self.settle_step(record, mode),
                None => return,
            }
        }
    }

    /// The lock for a request on a file with blocks in the store; `None`: `execute_whole` serves it.
    pub(crate) fn mode_of(&self, record: u32, request: &Request) -> Option<Mode> {
        const BLOCK: u64 = coulter_format::BLOCK_SIZE as u64;
        match request {
            Request::Read { .. } => Some(Mode::Shared),
            Request::Write { offset, buffer, .. } => {
                let end = offset.saturating_add(buffer.len() as u64);
                let size = self.store.adopted(record).record.size;
                let is_plain = offset.is_multiple_of(BLOCK)
                    && (end.is_multiple_of(BLOCK) || end == size)
                    && end <= size;
                Some(if is_plain { Mode::Shared } else { Mode::Exclusive })
            }
            Request::Change { changes, .. } if changes.size.is_some() => Some(Mode::Exclusive),
            _ => None,
        }
    }
}
