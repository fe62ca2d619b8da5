//! What is done without being asked: flushing, forgetting, settling before the store is full.

use crate::lower::Lower;
use crate::overlay::{Overlay, SettleWhen, Work};

/// What is not durable waits so long at most for a flush, in nanoseconds.
const FLUSH_AGE_MAX_NS: u64 = 1_000_000_000;
/// What can be forgotten waits so long for others to be forgotten with.
const FORGET_AGE_NS: u64 = 5_000_000_000;
/// Without a request for so long the mount is idle.
const IDLE_AGE_NS: u64 = 10_000_000_000;
/// Sixteenths of the capacity from which on the fullest file is settled.
const HIGH_SIXTEENTHS: u64 = 13;
/// Sixteenths of the capacity that are kept for writes under way.
const RESERVE_SIXTEENTHS: u64 = 1;

impl<L: Lower> Overlay<L> {
    /// Whether so many blocks more can be mapped.
    pub(crate) fn has_room(&self, blocks: u64) -> bool {
        let reserve = self.store.superblock.capacity / 16 * RESERVE_SIXTEENTHS;
        self.store.room() >= blocks + reserve && self.store.free_windows.len() > 64
    }

    /// A write waits until something is settled. Without anything to settle there is no space.
    pub(crate) fn wait_for_room(&mut self, work: Work) {
        self.settle_fullest();
        if self.settling.backlog() == 0 {
            return self.refuse(work, libc::ENOSPC);
        }
        self.waiting_for_room.push_back(work);
    }

    /// Has the file settled that has most blocks here.
    fn settle_fullest(&mut self) {
        if self.settling.backlog() > 0 {
            return;
        }
        if let Some(record) = self.store.lists().fullest() {
            self.settling.error = None;
            self.enqueue(record);
        }
    }

    /// Does what is due; says when to ask again.
    pub(crate) fn tick(&mut self, now_ns: u64) -> Option<u64> {
        self.now_ns = now_ns;
        if self.is_ending || self.failed.is_some() {
            return None;
        }
        let mut next = None;
        let mut at = |time: u64| next = Some(next.map_or(time, |other: u64| other.min(time)));
        if !self.order.is_clean() && !self.is_flushing_by_itself {
            let since = *self.unflushed_since_ns.get_or_insert(now_ns);
            if now_ns.saturating_sub(since) >= FLUSH_AGE_MAX_NS {
                self.unflushed_since_ns = None;
                self.flush_by_itself();
            } else {
                at(since + FLUSH_AGE_MAX_NS);
            }
        } else {
            self.unflushed_since_ns = None;
        }
        if self.forgettable.is_empty() {
            self.forgettable_since_ns = None;
        } else {
            let since = *self.forgettable_since_ns.get_or_insert(now_ns);
            if now_ns.saturating_sub(since) >= FORGET_AGE_NS {
                self.forgettable_since_ns = None;
                self.forget_durably(Vec::new());
            } else {
                at(since + FORGET_AGE_NS);
            }
        }
        let capacity = self.store.superblock.capacity;
        let when = self.options.settle;
        if when != SettleWhen::Never && self.store.mapped > capacity / 16 * HIGH_SIXTEENTHS {
            self.settle_fullest();
        }
        if when == SettleWhen::Idle && self.store.mapped > 0 {
            if now_ns.saturating_sub(self.last_request_ns) >= IDLE_AGE_NS {
                self.settle_fullest();
            }
            at(now_ns + IDLE_AGE_NS);
        }
        next
    }
}
