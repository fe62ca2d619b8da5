//! The order of what was given to the volume, and how much of it is durable.
//!
//! Everything that changes the volume has a sequence. Since the volume keeps a prefix, a command
//! that is durable makes all earlier ones durable too.

use crate::canary::{Canary, sings};
use std::collections::VecDeque;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Order {
    /// The last sequence given.
    issued: u64,
    /// Not complete, ascending; and whether it is durable at completion.
    out: VecDeque<(u64, bool)>,
    /// All sequences up to this one are durable.
    durable: u64,
    /// The sequence that the flush which is out covers.
    flushing: Option<u64>,
}

impl Order {
    /// Gives the next sequence, to a command that is durable at completion if `fua`.
    pub fn issue(&mut self, fua: bool) -> u64 {
        self.issued += 1;
        assert!(self.durable < self.issued, "nothing is durable that was not issued");
        self.out.push_back((self.issued, fua));
        self.issued
    }

    /// The last sequence given.
    pub fn issued(&self) -> u64 {
        self.issued
    }

    /// True if a sequence and all before it are durable.
    pub fn is_durable(&self, sequence: u64) -> bool {
        self.durable >= sequence
    }

    /// True if everything is durable.
    pub fn is_clean(&self) -> bool {
        self.durable == self.issued
    }

    /// A command is complete.
    pub fn complete(&mut self, sequence: u64, succeeded: bool) {
        let place = self.out.iter().position(|(other, _)| *other == sequence);
        let place = place.expect("a command completes once");
        let (_, fua) = self.out.remove(place).expect("it was found");
        if fua && succeeded {
            self.durable = self.durable.max(sequence);
        }
        assert!(self.durable <= self.issued, "nothing is durable that was not issued");
    }

    /// Commands that are not complete.
    pub fn out_count(&self) -> usize {
        self.out.len()
    }

    fn completed(&self) -> u64 {
        if sings(Canary::FlushCoversOut) {
            return self.issued;
        }
        self.out.front().map_or(self.issued, |(oldest, _)| oldest - 1)
    }

    /// True if a flush has to begin now, for one who waits for `target`.
    pub fn begin_flush(&mut self, target: u64) -> bool {
        let comes_by_itself = self.out.iter().any(|(sequence, fua)| *fua && *sequence >= target);
        if self.flushing.is_some() || comes_by_itself || self.completed() < target {
            return false;
        }
        self.flushing = Some(self.completed());
        true
    }

    /// The flush that was out has ended.
    pub fn end_flush(&mut self, succeeded: bool) {
        let covered = self.flushing.take().expect("a flush was out");
        assert!(covered <= self.completed(), "a flush covers what had completed");
        if succeeded {
            self.durable = self.durable.max(covered);
        }
    }

    /// # Panics
    /// If the commands that are out are not those with these sequences, or the flushes are not of
    /// this number.
    pub fn assert_invariants(&self, sequences: impl Iterator<Item = u64>, flushes: usize) {
        let mut sequences: Vec<u64> = sequences.collect();
        sequences.sort_unstable();
        let out: Vec<u64> = self.out.iter().map(|(sequence, _)| *sequence).collect();
        assert_eq!(out, sequences, "each sequence that is not complete has its command");
        assert_eq!(usize::from(self.flushing.is_some()), flushes, "one flush, and its command");
        assert!(self.durable <= self.issued, "nothing is durable that was not issued");
        assert!(out.last() <= Some(&self.issued), "nothing is out that was not issued");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_durable_command_makes_earlier_ones_durable_and_a_flush_what_had_completed() {
        let mut order = Order::default();
        let (first, set) = (order.issue(false), order.issue(true));
        assert!(!order.begin_flush(set), "the set is durable when it completes");
        order.complete(set, true);
        assert!(order.is_durable(first));
        order.complete(first, true);
        let later = order.issue(false);
        assert!(!order.begin_flush(later), "it has not completed");
        order.complete(later, true);
        assert!(order.begin_flush(later));
        let latest = order.issue(false);
        order.complete(latest, true);
        order.end_flush(true);
        assert!(order.is_durable(later) && !order.is_durable(latest));
    }
}
