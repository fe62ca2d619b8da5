//! Files that are to be settled, each once, in the order in which they were asked for.

use std::collections::{HashSet, VecDeque};

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    members: HashSet<u32>,
    /// Those and some that are members no more, or stand further in front, too; a member's first place counts.
    order: VecDeque<u32>,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// Comes last, unless it is there.
    pub(crate) fn push(&mut self, record: u32) {
        if self.members.insert(record) {
            self.order.push_back(record);
        }
    }

    /// Comes next.
    pub(crate) fn push_first(&mut self, record: u32) {
        self.members.insert(record);
        if self.order.front() != Some(&record) {
            self.order.push_front(record);
        }
    }

    pub(crate) fn remove(&mut self, record: u32) {
        self.members.remove(&record);
    }

    pub(crate) fn clear(&mut self) {
        *self = Queue::default();
    }

    pub(crate) fn pop(&mut self) -> Option<u32> {
        while let Some(record) = self.order.pop_front() {
            if self.members.remove(&record) {
                return Some(record);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_comes_once_and_those_that_are_waited_for_come_first() {
        let mut queue = Queue::default();
        [1, 2, 3, 2].into_iter().for_each(|record| queue.push(record));
        queue.push_first(3);
        queue.push_first(3);
        queue.remove(1);
        assert_eq!(queue.len(), 2);
        assert_eq!(std::iter::from_fn(|| queue.pop()).collect::<Vec<_>>(), [3, 2]);
        queue.push(1);
        assert_eq!((queue.pop(), queue.pop()), (Some(1), None));
    }
}
