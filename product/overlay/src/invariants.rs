//! Invariants between two steps, counted anew for the models, which ask after each.

use crate::begun::Begun;
use crate::io::{Stage, Then};
use crate::lists::Lists;
use crate::locks::Mode;
use crate::lower::Lower;
use crate::overlay::Overlay;
use crate::store::Store;
use std::collections::HashMap;

impl<L: Lower> Overlay<L> {
    /// Panics if what is held in one place does not agree with what is held in another.
    pub fn assert_invariants(&self) {
        self.store.assert_invariants();
        self.assert_tasks();
        self.assert_locks();
        self.assert_waiting();
    }

    /// Commands that are out belong to tasks, and each task waits for something.
    fn assert_tasks(&self) {
        let mut out = vec![0; self.tasks.len()];
        let (mut changes, mut reserved, mut flushes) = (0, 0, 0);
        for found in self.pending.iter().flatten() {
            changes += usize::from(found.sequence.is_some());
            reserved += found.pending.reserved();
            flushes += usize::from(found.pending.is_flush());
            if let Some(task) = found.pending.task() {
                out[task] += 1;
            }
        }
        self.flush_waiters.iter().for_each(|(_, task)| out[*task] += 1);
        for (task, count) in self.tasks.iter().zip(&out) {
            let expected = task.as_ref().map_or(0, |task| task.outstanding);
            assert_eq!(*count, expected, "what is out for {task:?}");
            assert!(
                task.as_ref().is_none_or(|task| task.outstanding > 0),
                "{task:?} waits for nothing"
            );
        }
        assert_eq!(self.order.out_count(), changes, "the order knows what is out");
        assert_eq!(self.store.reserved, reserved, "blocks that writes under way may add");
        assert!(flushes <= 1, "a flush is out once");
        let is_sorted = self.flush_waiters.is_sorted_by_key(|(target, _)| *target);
        assert!(is_sorted, "who came later waits for more");
        let idle = self.tasks.iter().filter(|task| task.is_none()).count();
        assert_eq!(self.idle_tasks.len(), idle, "places for tasks");
        let idle = self.pending.iter().filter(|pending| pending.is_none()).count();
        assert_eq!(self.idle_pending.len(), idle, "places for commands");
    }

    /// A lock is taken by tasks, or by a step of settling that waits below.
    fn assert_locks(&self) {
        let mut shared: HashMap<u32, u32> = HashMap::new();
        let mut exclusive: HashMap<u32, u32> = HashMap::new();
        for (record, mode) in self.tasks.iter().flatten().filter_map(|task| task.lock) {
            let taken = if mode == Mode::Shared { &mut shared } else { &mut exclusive };
            *taken.entry(record).or_default() += 1;
        }
        for (record, adopted) in self.store.in_use() {
            let (readers, is_exclusive) = adopted.lock.uses();
            assert_eq!(readers, shared.remove(&record).unwrap_or(0), "who reads record {record}");
            let writers = exclusive.remove(&record).unwrap_or(0);
            let below = u32::from(writers == 0 && self.settling.is_busy_with(record));
            assert!(writers <= 1, "one at a time changes more of record {record}");
            assert!(
                !is_exclusive || writers + below == 1,
                "record {record} is locked without a user"
            );
            assert!(is_exclusive || writers == 0, "record {record} is changed without its lock");
        }
        assert!(shared.is_empty() && exclusive.is_empty(), "a lock of a record that is gone");
    }

    /// Requests that wait have something to wait for.
    fn assert_waiting(&self) {
        let is_over = self.is_ending || self.failed.is_some() || !self.is_open;
        let has_hope = is_over || self.settling.backlog() > 0;
        assert!(self.waiting_for_room.is_empty() || has_hope, "nothing makes room");
        for number in self.held_back.keys() {
            let is_marked = self.begun.values().any(|begun| match begun {
                Begun::Mark(marked) => marked.number() == *number,
                _ => false,
            });
            let goes_on = self.tasks.iter().flatten().any(|task| match &task.stage {
                Stage::Flush(Then::GoOn { number: other })
                | Stage::Then(Then::GoOn { number: other }) => other == number,
                _ => false,
            });
            assert!(is_marked || goes_on, "requests for node {number} wait for nothing");
        }
        for record in &self.forgettable {
            assert!(self.store.adopted(*record).is_forgettable, "record {record} is told twice");
        }
        self.settling.assert_invariants();
    }
}

impl Store {
    fn assert_invariants(&self) {
        let (mut lists, mut mapped, mut windows) = (Lists::default(), 0, 0);
        for (record, adopted) in self.in_use() {
            lists.add(record, adopted.standing());
            mapped += adopted.mapped;
            windows += adopted.windows.len();
            let mut present = 0;
            for (stretch, window) in &adopted.windows {
                let window = self.windows[*window as usize].as_ref().expect("it is in use");
                let owner = (window.owner.record, window.owner.stretch);
                assert_eq!(owner, (record, *stretch), "a window has the owner who has it");
                assert!(window.copied.is_within(&window.present), "what is home was here");
                present += window.present.count();
            }
            assert_eq!(adopted.mapped, present, "blocks of record {record}");
        }
        assert!(*self.lists() == lists, "lists of records: {:?} {lists:?}", self.lists());
        assert_eq!(self.mapped, mapped, "blocks of all records");
        assert_eq!(self.windows.len() - self.free_windows.len(), windows, "windows in use");
        // By their places: a look by `adopted` counts.
        let number_of = |record: u32| {
            let adopted = self.records[record as usize].as_deref();
            adopted.map(|adopted| adopted.record.number)
        };
        for (number, record) in &self.by_number {
            assert_eq!(number_of(*record), Some(*number), "a number leads to its record");
        }
        for record in &self.unnoted {
            let number = number_of(*record).expect("what is to be noted is of a record");
            let owner = self.by_number.get(&number);
            assert_eq!(owner, Some(record), "the file of a record that is not noted is its own");
        }
        for record in &self.dirty {
            assert!(self.records[*record as usize].is_some(), "record {record} is gone");
        }
    }
}
