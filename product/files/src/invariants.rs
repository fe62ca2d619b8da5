//! Facts that hold between any two inputs, counted anew.
//!
//! Each part counts what it owns so that it need not look. Here every count is made again from what
//! the other parts hold.

use crate::cache::BlockMap;
use crate::parts::{Parts, Purpose};
use crate::task::Work;

impl Parts {
    /// # Panics
    /// If a part says something that another one does not.
    pub(crate) fn assert_invariants(&self) {
        self.desk.assert_invariants();
        self.assert_tasks();
        self.assert_commands();
        self.sets.assert_invariants();
        let Some(tree) = self.opened() else {
            assert!(!self.has_changes(), "nothing changes before it is open");
            return;
        };
        let mut writing = BlockMap::default();
        for (_, purpose) in self.desk.commands() {
            if let Purpose::Set { blocks, .. } = purpose {
                blocks.iter().for_each(|block| *writing.entry(*block).or_default() += 1);
            }
        }
        tree.cache.assert_invariants(&writing);
        let since = self.sets.oldest_change_ns();
        assert!(since <= Some(self.desk.now_ns()), "no change is of the future");
    }

    /// Tasks with what is noted of them elsewhere.
    fn assert_tasks(&self) {
        let wanted = |id: usize| {
            self.desk.tasks().find(|(other, _)| *other == id).map(|(_, task)| &task.work)
        };
        self.locks.assert_invariants(|owner| wanted(owner).is_some());
        let reaping = self.desk.tasks().filter_map(|(_, task)| match task.work {
            Work::Reap(inode) => Some(inode),
            _ => None,
        });
        self.nodes.assert_invariants(reaping);
        for (id, task) in self.desk.tasks() {
            let ticket = self.desk.ticket(id);
            let is_for_it = |purpose: &Purpose| match purpose {
                Purpose::Fetch { ticket: other, .. } | Purpose::Data { ticket: other, .. } => {
                    *other == ticket
                }
                _ => false,
            };
            let out = self.desk.commands().filter(|(_, purpose)| is_for_it(purpose)).count();
            assert_eq!(task.out as usize, out, "task {id} counts what is out for it");
            assert!(task.ending.is_none() || out > 0, "task {id} ends when nothing is out for it");
        }
        let sequences = self.desk.commands().filter_map(|(_, purpose)| purpose.sequence());
        let is_flush = |purpose: &Purpose| matches!(purpose, Purpose::Flush);
        let flushes = self.desk.commands().filter(|(_, purpose)| is_flush(purpose)).count();
        self.flushes.assert_invariants(sequences, flushes, |id| match wanted(id) {
            Some(Work::Sync(target)) => *target,
            _ => None,
        });
    }

    /// Commands that are out with what is noted of them elsewhere.
    fn assert_commands(&self) {
        let loads = self.desk.commands().filter_map(|(_, purpose)| match purpose {
            Purpose::Load { block, .. } => Some(*block),
            _ => None,
        });
        self.loads.assert_invariants(loads);
        let purpose =
            |id: u32| self.desk.commands().find(|(other, _)| *other == id).map(|(_, p)| p);
        let is_writing = |id| purpose(id).is_some_and(|purpose| purpose.sequence().is_some());
        let is_reading = |id| matches!(purpose(id), Some(Purpose::Fetch { .. }));
        self.traffic.assert_invariants(is_writing, is_reading);
    }
}
