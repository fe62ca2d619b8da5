//! Making durable (R10), forgetting (R5), and the end.

use crate::io::{Pending, Stage, Then};
use crate::lower::{Lower, Outcome};
use crate::overlay::Overlay;
use crate::store::Batch;
use coulter_files::{Command, Reply};
use coulter_format::overlay::RecordState;

/// Records whose blocks one atomic write takes.
const RECORDS_MAX: usize = 128;

impl<L: Lower> Overlay<L> {
    /// Carries out the syncs that came in one turn. What all of them write is begun before the first one is waited
    /// for, so that the lower file system makes many files durable with one commit.
    pub(crate) fn sync_nodes(&mut self) {
        let syncs = std::mem::take(&mut self.syncs);
        if syncs.len() > 1 {
            for (_, number) in &syncs {
                if let Some(node) = self.nodes.get(number).filter(|node| node.is_touched) {
                    self.lower.begin_sync(&node.handle);
                }
            }
        }
        for (id, number) in syncs {
            self.sync_node(id, number);
        }
    }

    /// Makes a node durable: below if something of it was changed there, and here if blocks of it are.
    fn sync_node(&mut self, id: u64, number: u64) {
        let synced = self.handle_of(number).and_then(|handle| {
            if self.nodes.get(&number).is_some_and(|node| node.is_touched) {
                self.lower.sync(&handle)?;
                if let Some(node) = self.nodes.get_mut(&number) {
                    node.is_touched = false;
                }
            }
            Ok(handle)
        });
        let handle = match synced {
            Ok(handle) => handle,
            Err(errno) => return self.answer(id, Err(errno)),
        };
        let record = self.store.record_of(number, &handle);
        let reply = Then::Reply(Box::new(Reply::Done));
        match record {
            None => self.answer(id, Ok(Reply::Done)),
            Some(record) if self.store.adopted(record).is_dirty => {
                let task = self.add_task(Some(id), None, Stage::Flush(reply));
                let mut batch = Batch::default();
                self.store.batch_record(&mut batch, record);
                self.push_batch(batch, &[], Pending::Step { task });
            }
            Some(_) => self.flush(Some(id), None, reply),
        }
    }

    /// Makes everything durable.
    pub(crate) fn sync_everything(&mut self, id: u64) {
        if let Err(errno) = self.lower.sync_all() {
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
            for record in 0..self.store.records.len() {
                if self.store.records[record].as_deref().is_some_and(|adopted| adopted.is_dirty) {
                    self.store.batch_record(&mut batch, record as u32);
                }
                if batch.block_count() >= RECORDS_MAX {
                    break;
                }
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
        let number = self.store.adopted(record).record.number;
        self.store.set_state(record, RecordState::Dying);
        self.store.by_number.remove(&number);
        self.settling.queue.retain(|other| *other != record);
        self.write_record(record);
        self.forgettable.insert(record);
        if crate::is_broken("R5") {
            let records = std::mem::take(&mut self.forgettable);
            records.into_iter().for_each(|record| self.forget_record(record));
        }
    }

    /// Forgets what is not needed once the lower file system is durable (R5).
    pub(crate) fn forget_durably(&mut self) -> Outcome<()> {
        if self.forgettable.is_empty() {
            return Ok(());
        }
        self.lower.sync_all()?;
        for record in std::mem::take(&mut self.forgettable) {
            let is_settling = self.settling.job.is_some_and(|(job, _)| job == record);
            if is_settling || !self.store.adopted(record).lock.is_idle() {
                // A step of it is still under way.
                self.forgettable.insert(record);
            } else {
                self.forget_record(record);
            }
        }
        Ok(())
    }

    /// Gives back a record and its windows.
    pub(crate) fn forget_record(&mut self, record: u32) {
        let task = self.add_task(None, None, Stage::Then(Then::Nothing));
        self.faults -= u64::from(self.store.adopted(record).fault.is_some());
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
        if let Err(errno) = self.lower.sync_all().and_then(|()| self.forget_durably()) {
            return self.answer(id, Err(errno));
        }
        let task = self.save_dirty(Some(id), Then::Reply(Box::new(Reply::Done)));
        self.store.superblock.is_clean = true;
        self.push_batch(Batch::default().with_superblock(), &[], Pending::Step { task });
    }

    /// Has everything made durable that is not, for nobody.
    pub(crate) fn flush_by_itself(&mut self) {
        let task = self.save_dirty(None, Then::Nothing);
        if self.task(task).outstanding == 0 {
            self.advance(task);
        }
    }

    /// The first command of a mount.
    pub(crate) fn note_opened(&mut self) {
        let batch = Batch::default().with_superblock();
        self.push_batch(batch, &[], Pending::Silent);
        self.push_io(Command::Flush, Pending::Silent);
    }
}
