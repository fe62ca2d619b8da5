//! Durability: one flush for all who wait for one.
//!
//! # Invariants
//! - One flush is out at a time, and begins when what is waited for has completed.
//! - Each task waits once, for what had been submitted when it began to.

use crate::order::Order;

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Flushes {
    order: Order,
    /// Tasks that wait, and for which sequence.
    waiting: Vec<(usize, u64)>,
    /// A task waits for a flush that has not begun.
    is_due: bool,
    /// The age of what is not durable, for the clock.
    unflushed_since_ns: Option<u64>,
}

impl Flushes {
    pub(crate) fn order(&self) -> &Order {
        &self.order
    }

    /// Something that changes the volume is given to it.
    pub(crate) fn issue(&mut self, fua: bool) -> u64 {
        self.order.issue(fua)
    }

    /// It is complete.
    pub(crate) fn complete(&mut self, sequence: u64, succeeded: bool) {
        assert!(sequence <= self.order.issued(), "what completes was issued");
        self.order.complete(sequence, succeeded);
    }

    /// A task waits until a sequence is durable.
    pub(crate) fn wait(&mut self, task: usize, wanted: u64) {
        assert!(!self.order.is_durable(wanted), "who waits, waits for something");
        if !self.waiting.iter().any(|(other, _)| *other == task) {
            self.waiting.push((task, wanted));
        }
        self.is_due = true;
    }

    /// A task waits no longer.
    pub(crate) fn stop_waiting(&mut self, task: usize) {
        self.waiting.retain(|(other, _)| *other != task);
    }

    /// True once after a task has begun to wait.
    pub(crate) fn take_due(&mut self) -> bool {
        std::mem::take(&mut self.is_due)
    }

    /// Wakes those who have what they waited for, or all if they are refused. True if a flush
    /// begins.
    pub(crate) fn pump(&mut self, is_refused: bool, mut wake: impl FnMut(usize)) -> bool {
        let order = &self.order;
        self.waiting.retain(|(task, wanted)| {
            let ends = is_refused || order.is_durable(*wanted);
            if ends {
                wake(*task);
            }
            !ends
        });
        let Some(target) = self.waiting.iter().map(|(_, wanted)| *wanted).min() else {
            return false;
        };
        assert!(!self.order.is_durable(target), "what is durable needs no flush");
        self.order.begin_flush(target)
    }

    /// The flush that was out has ended.
    pub(crate) fn end(&mut self, succeeded: bool) {
        self.order.end_flush(succeeded);
    }

    /// How long something has not been durable; there is something.
    pub(crate) fn age_ns(&mut self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(*self.unflushed_since_ns.get_or_insert(now_ns))
    }

    /// The age is counted from here on: a flush was asked for.
    pub(crate) fn begin_age(&mut self, now_ns: u64) {
        self.unflushed_since_ns = Some(now_ns);
    }

    /// Everything is durable.
    pub(crate) fn end_age(&mut self) {
        self.unflushed_since_ns = None;
    }

    /// Since when something has not been durable.
    pub(crate) fn unflushed_since_ns(&self) -> Option<u64> {
        self.unflushed_since_ns
    }

    /// # Panics
    /// If sequences and flush are not those of the commands that are out, or another waits than is
    /// noted.
    pub(crate) fn assert_invariants(
        &self,
        sequences: impl Iterator<Item = u64>,
        flushes: usize,
        wanted: impl Fn(usize) -> Option<u64>,
    ) {
        self.order.assert_invariants(sequences, flushes);
        for (place, (task, sequence)) in self.waiting.iter().enumerate() {
            assert_eq!(wanted(*task), Some(*sequence), "task {task} waits for what is noted");
            assert!(*sequence <= self.order.issued(), "task {task} waits for what was submitted");
            let again = self.waiting[..place].iter().any(|(other, _)| other == task);
            assert!(!again, "task {task} waits once");
        }
    }
}
