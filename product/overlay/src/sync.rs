//! Making durable (R10), forgetting (R5), and the end.

use crate::begun::Begun;
use crate::io::{Pending, Stage, Then};
use crate::lower::{Handle, Lower, Outcome};
use crate::overlay::Overlay;
use crate::store::Batch;
use coulter::buffer::Buffer;
use coulter_files::Reply;
use coulter_format::overlay::{Record, RecordState};
use std::collections::BTreeSet;

/// Records whose blocks one atomic write takes.
const RECORDS_MAX: usize = 128;

/// A request that is answered when something is durable, and how.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) id: u64,
    pub(crate) reply: Reply,
}

/// A node that is being made durable below.
#[derive(Debug)]
pub(crate) struct Syncing {
    handle: Handle,
    /// How often it had been changed when that began.
    touches: u64,
    /// Requests that it is for.
    waiting: Vec<Waiter>,
    /// Requests that came after the node was changed again: they need another sync.
    behind: Vec<Waiter>,
}

impl<L: Lower> Overlay<L> {
    /// Begins the syncs that came in one turn: the lower file system makes many files durable with one commit.
    pub(crate) fn sync_nodes(&mut self) {
        for (waiter, number) in std::mem::take(&mut self.syncs) {
            self.sync_node(waiter, number);
        }
    }

    /// Makes a node durable: below if something of it was changed there, and here if blocks of it are.
    fn sync_node(&mut self, waiter: Waiter, number: u64) {
        let Some(node) = self.nodes.get(&number) else {
            return self.refuse_waiter(waiter, libc::ESTALE);
        };
        let (handle, touches) = (node.handle, node.touches);
        if let Some(errno) = self.owed.remove(&number) {
            return self.refuse_waiter(waiter, errno);
        }
        if let Some(syncing) = self.syncing.get_mut(&number) {
            if syncing.touches == touches {
                syncing.waiting.push(waiter);
            } else {
                syncing.behind.push(waiter);
            }
            return;
        }
        if !node.is_touched {
            return self.sync_here(waiter, number, handle);
        }
        let syncing = Syncing { handle, touches, waiting: vec![waiter], behind: Vec::new() };
        let before = self.syncing.insert(number, syncing);
        assert!(before.is_none(), "a node is synced once at a time");
        if let Some(result) = self.lower.begin_sync(&handle, number) {
            self.synced(number, result);
        }
    }

    /// Takes in what was made durable below; whether there was anything.
    pub(crate) fn take_synced(&mut self) -> bool {
        let mut any = false;
        while let Some((number, result)) = self.lower.next_synced() {
            if !self.settle_synced(number, result) && !self.begun_ended(number, result) {
                self.synced(number, result);
            }
            any = true;
        }
        any
    }

    /// A node was made durable below, or was not.
    fn synced(&mut self, number: u64, result: Outcome<()>) {
        let syncing = self.syncing.remove(&number).expect("what has ended was begun");
        let Syncing { handle, touches, waiting, behind } = syncing;
        assert!(!waiting.is_empty(), "somebody asked for it");
        let node = self.nodes.get_mut(&number).filter(|node| node.handle == handle);
        if let Some(node) = node.filter(|node| node.touches == touches && result.is_ok()) {
            node.is_touched = false;
            self.space_is_taken(number, &handle);
        }
        let record = self.store.record_of(number, &handle).filter(|_| result.is_err());
        if let Some(record) = record.filter(|_| !crate::is_broken("doubt")) {
            self.settling.begin_anew(record);
        }
        for waiter in waiting {
            match result {
                Ok(()) => self.sync_here(waiter, number, handle),
                Err(errno) => self.refuse_waiter(waiter, errno),
            }
        }
        // What was changed while it went on: that may be durable or not.
        for waiter in behind {
            self.sync_node(waiter, number);
        }
    }

    fn refuse_waiter(&mut self, waiter: Waiter, errno: i32) {
        let buffer = match waiter.reply {
            Reply::Written(_, buffer) => buffer,
            _ => Buffer::empty(),
        };
        self.end(Some(waiter.id), None, Err(errno), buffer);
    }

    /// Makes durable what is here of a node.
    fn sync_here(&mut self, waiter: Waiter, number: u64, handle: Handle) {
        let Waiter { id, reply } = waiter;
        let Some(record) = self.store.record_of(number, &handle) else {
            return self.end(Some(id), None, Ok(reply), Buffer::empty());
        };
        let reply = Then::Reply(Box::new(reply));
        if self.store.dirty.contains(&record) {
            self.save_record(record, Some(id), reply);
        } else {
            self.flush(Some(id), None, reply);
        }
    }

    /// Makes everything durable.
    pub(crate) fn sync_everything(&mut self, id: u64) {
        self.begin_sync_all(Begun::Everything { id });
    }

    /// The lower file system is durable, or is not: then what is here.
    pub(crate) fn lower_is_durable(&mut self, id: u64, result: Outcome<()>) {
        if let Err(errno) = result {
            return self.answer(id, Err(errno));
        }
        let task = self.save_dirty(Some(id), Then::Reply(Box::new(Reply::Done)));
        self.go_if_nothing_is_out(task);
    }

    /// Writes the records that were changed since they were written; a flush comes after them.
    pub(crate) fn save_dirty(&mut self, id: Option<u64>, then: Then) -> usize {
        let task = self.add_task(id, None, Stage::Flush(then));
        loop {
            let mut batch = Batch::default();
            while let Some(record) = self.store.dirty.first().copied()
                && batch.block_count() < RECORDS_MAX
            {
                self.store.batch_record(&mut batch, record);
            }
            if batch.is_empty() {
                return task;
            }
            self.push_batch(batch, &[], Pending::Step { task });
        }
    }

    pub(crate) fn go_if_nothing_is_out(&mut self, task: usize) {
        if self.task(task).outstanding == 0 {
            self.advance(task);
        }
    }

    /// A file without a name, which nobody has open any more.
    pub(crate) fn let_die(&mut self, record: u32) {
        self.store.change(record, |adopted| adopted.is_dying = true);
        let Record { number, state, .. } = self.store.adopted(record).record;
        if state == RecordState::Live || crate::is_broken("dying") {
            // A crash may give it its name back. The lower file of one that settles is not as it
            // was noted then, and that of one that is settled has all.
            self.store.set_state(record, RecordState::Dying);
        }
        self.store.by_number.remove(&number);
        self.store.unnoted.remove(&record);
        self.settling.queue.remove(record);
        self.write_record(record);
        self.forget_later(record);
        if crate::is_broken("R5") {
            let records = std::mem::take(&mut self.forgettable);
            records.into_iter().for_each(|record| self.forget_record(record));
        }
    }

    /// Has a record forgotten, once. It may die while it comes home, or while it is forgotten.
    pub(crate) fn forget_later(&mut self, record: u32) {
        if !std::mem::replace(&mut self.store.adopted_mut(record).is_forgettable, true) {
            self.forgettable.insert(record);
        }
    }

    /// Forgets what is not needed once the lower file system is durable (R5), and then answers.
    pub(crate) fn forget_durably(&mut self, answered: Vec<u64>) {
        let records = std::mem::take(&mut self.forgettable);
        if records.is_empty() {
            return self.forget_all(records, answered, Ok(()));
        }
        self.begin_sync_all(Begun::Forget { records, answered });
    }

    /// The lower file system is durable, or is not: then these are forgotten.
    pub(crate) fn forget_all(
        &mut self,
        records: BTreeSet<u32>,
        answered: Vec<u64>,
        result: Outcome<()>,
    ) {
        match result {
            Ok(()) if !self.is_ending => self.forget_records(records),
            // It is tried again.
            _ => self.forgettable.extend(records),
        }
        for id in answered {
            match result {
                Ok(()) => self.flush(Some(id), None, Then::Reply(Box::new(Reply::Done))),
                Err(errno) => self.answer(id, Err(errno)),
            }
        }
    }

    fn forget_records(&mut self, records: BTreeSet<u32>) {
        for record in records {
            let is_settling = self.settling.is_at(record);
            if is_settling || !self.store.adopted(record).lock.is_idle() {
                // A step of it is still under way.
                self.forgettable.insert(record);
            } else {
                self.forget_record(record);
            }
        }
    }

    /// Gives back a record and its windows.
    pub(crate) fn forget_record(&mut self, record: u32) {
        assert!(self.store.adopted(record).is_forgettable, "a record that is in use is forgotten");
        let task = self.add_task(None, None, Stage::Then(Then::Nothing));
        self.task(task).outstanding += 1;
        self.give_back(record, 0, task);
        self.store.remove_record(record);
        let mut batch = Batch::default();
        self.store.batch_record(&mut batch, record);
        self.push_batch(batch, &[], Pending::Step { task });
        self.task(task).outstanding -= 1;
    }

    /// The mount has ended: all is made durable, and noted to be closed in order.
    pub(crate) fn finish(&mut self, id: u64) {
        self.is_ending = true;
        for record in std::mem::take(&mut self.store.unnoted) {
            self.store.unnoted.insert(record);
            // One that cannot be looked at now is looked at when the next mount opens.
            let _ = self.check_lower(record);
        }
        // Nobody uses the mount any more, so this may take its time here.
        if let Err(errno) = self.lower.sync_all() {
            return self.answer(id, Err(errno));
        }
        let forgettable = std::mem::take(&mut self.forgettable);
        self.forget_records(forgettable);
        let taking = self.store.lists().taking_space().difference(&self.store.unnoted);
        let taking: Vec<u32> = taking.copied().collect();
        taking.into_iter().for_each(|record| self.note_space_is_taken(record));
        let task = self.save_dirty(Some(id), Then::Reply(Box::new(Reply::Done)));
        // Only after a crash the times of change may be others than the records say.
        let is_live = |record: &u32| self.store.adopted(*record).record.state == RecordState::Live;
        self.store.superblock.is_clean = !self.store.unnoted.iter().any(is_live);
        self.push_batch(Batch::default().with_superblock(), &[], Pending::Step { task });
    }

    /// Has everything made durable that is not, for nobody.
    pub(crate) fn flush_by_itself(&mut self) {
        self.is_flushing_by_itself = true;
        let task = self.save_dirty(None, Then::Flushed);
        self.go_if_nothing_is_out(task);
    }

    /// The first command of a mount.
    pub(crate) fn note_opened(&mut self) {
        let task = self.add_task(None, None, Stage::Flush(Then::Opened));
        let batch = Batch::default().with_superblock();
        self.push_batch(batch, &[], Pending::Step { task });
    }
}
