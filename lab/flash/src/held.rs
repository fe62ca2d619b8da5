//! Completions that are held back until they are due.

use crate::units::Ns;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Completions by when they are due; those of one moment in the order in which they came.
#[derive(Debug)]
pub(crate) struct HeldQueue<T> {
    heap: BinaryHeap<Held<T>>,
    count: u64,
}

#[derive(Debug)]
struct Held<T> {
    due: Ns,
    number: u64,
    completion: T,
}

impl<T> HeldQueue<T> {
    pub(crate) fn new() -> HeldQueue<T> {
        HeldQueue { heap: BinaryHeap::new(), count: 0 }
    }

    pub(crate) fn hold(&mut self, due: Ns, completion: T) {
        self.heap.push(Held { due, number: self.count, completion });
        self.count += 1;
    }

    /// When the first is due.
    pub(crate) fn due(&self) -> Option<Ns> {
        self.heap.peek().map(|held| held.due)
    }

    /// When the last is due.
    pub(crate) fn last_due(&self) -> Option<Ns> {
        self.heap.iter().map(|held| held.due).max()
    }

    /// Gives out all that is due at `now`.
    pub(crate) fn release(&mut self, now: Ns, out: &mut Vec<T>) {
        while self.due().is_some_and(|due| due <= now) {
            out.extend(self.heap.pop().map(|held| held.completion));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }
}

// The earliest is the greatest: a heap gives that out first.
impl<T> Ord for Held<T> {
    fn cmp(&self, other: &Held<T>) -> Ordering {
        (other.due, other.number).cmp(&(self.due, self.number))
    }
}

impl<T> PartialOrd for Held<T> {
    fn partial_cmp(&self, other: &Held<T>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Held<T> {
    fn eq(&self, other: &Held<T>) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Held<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_comes_out_in_time_and_then_in_order() {
        let mut held = HeldQueue::new();
        for (due, name) in [(30, 'd'), (10, 'a'), (20, 'b'), (20, 'c'), (40, 'e')] {
            held.hold(due, name);
        }
        let mut out = Vec::new();
        held.release(5, &mut out);
        assert_eq!((out.len(), held.due(), held.last_due()), (0, Some(10), Some(40)));
        held.release(30, &mut out);
        assert_eq!(out, ['a', 'b', 'c', 'd']);
        assert_eq!((held.len(), held.due()), (1, Some(40)));
    }
}
