//! Bringing home what is in the store (R8): ascending, in long pieces, one file at a time.
//!
//! The file's lock is held for a piece at a time, so that others get on. What is written meanwhile stays in
//! the store, and its blocks are brought home again. Until the record says that all is home the store is
//! right and the lower file is not looked at for what is here, so a crash at any point repeats the work.

use crate::MARK;
use crate::io::{Pending, Stage, Then};
use crate::locks::Mode;
use crate::lower::{Lower, Outcome, Settings};
use crate::overlay::{Overlay, Work};
use crate::store::{Piece, Store};
use coulter::buffer::Buffer;
use coulter_files::{Command, Reply};
use coulter_format::BLOCK_SIZE;
use coulter_format::overlay::RecordState;
use std::collections::VecDeque;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Blocks that are brought home at a time.
const PIECE_BLOCKS_MAX: u64 = 256;

/// What comes next for the file that is being settled.
#[derive(Debug)]
pub(crate) enum Step {
    /// The record says durably that the lower file is not as it was noted: it may be changed.
    Begun { record: u32 },
    /// A piece is in memory.
    Copy { record: u32, piece: Piece, bytes: Vec<u8> },
    /// The record says durably that all is home.
    Over { record: u32 },
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Settling {
    /// Files that are to be settled.
    pub(crate) queue: VecDeque<u32>,
    /// The one that is, and where it has come to.
    pub(crate) job: Option<(u32, u64)>,
    /// A step of it is under way.
    is_busy: bool,
    /// Requests that want all of a file at home, and which.
    waiting: Vec<(u32, Work)>,
    /// Those who want everything at home.
    all: Vec<u64>,
    /// The end of the mount, which waits for that too.
    end: Option<u64>,
    /// Why it stopped last.
    pub(crate) error: Option<i32>,
}

impl Settling {
    /// Files that are to be settled, the one under way included.
    pub(crate) fn backlog(&self) -> u64 {
        self.queue.len() as u64 + u64::from(self.job.is_some())
    }
}

impl<L: Lower> Overlay<L> {
    /// Settles everything, and answers then.
    pub(crate) fn settle_everything(&mut self, id: u64) {
        self.settling.error = None;
        self.settling.all.push(id);
        for record in 0..self.store.records.len() as u32 {
            self.enqueue(record);
        }
    }

    /// Settles everything that can be, and ends then.
    pub(crate) fn settle_at_end(&mut self, id: u64) {
        assert!(self.settling.end.is_none(), "a mount ends once");
        self.settling.error = None;
        self.settling.end = Some(id);
        for record in 0..self.store.records.len() as u32 {
            self.enqueue(record);
        }
    }

    /// Settles a file, and lets the request go on then.
    pub(crate) fn settle_for(&mut self, record: u32, work: Work) {
        self.settling.waiting.push((record, work));
        self.settling.queue.retain(|other| *other != record);
        if self.settling.job.is_none_or(|(job, _)| job != record) {
            self.settling.queue.push_front(record);
        }
    }

    /// Has a file settled, if there is one that can be.
    pub(crate) fn enqueue(&mut self, record: u32) {
        let Some(Some(adopted)) = self.store.records.get(record as usize) else { return };
        let state = adopted.record.state;
        let is_served = matches!(state, RecordState::Live | RecordState::Settling)
            && !adopted.record.is_nameless
            && adopted.fault.is_none()
            && !self.orphans.contains(&record);
        let is_known = self.settling.queue.contains(&record)
            || self.settling.job.is_some_and(|(job, _)| job == record);
        if is_served && !is_known {
            self.settling.queue.push_back(record);
        }
    }

    /// Takes the next step if none is under way; whether there was one.
    pub(crate) fn settle_next(&mut self) -> bool {
        if self.settling.is_busy {
            return false;
        }
        if self.is_ending || self.failed.is_some() {
            return self.settle_stopped(libc::EIO);
        }
        let Some((record, _)) = self.settling.job else {
            let Some(record) = self.settling.queue.pop_front() else {
                return self.settle_answered();
            };
            let is_there = self.store.records.get(record as usize).is_some_and(Option::is_some);
            if is_there && Store::is_served(self.store.adopted(record).record.state) {
                self.settling.job = Some((record, 0));
            }
            return true;
        };
        self.settling.is_busy = true;
        if self.lock_to_settle(record) {
            self.settle_step(record);
        }
        true
    }

    /// The next step, with the file's lock.
    pub(crate) fn settle_step(&mut self, record: u32) {
        let lock = (record, Mode::Exclusive);
        if self.store.adopted(record).record.state == RecordState::Settling {
            self.settle_piece(lock);
        } else {
            self.settle_begin(lock);
        }
    }

    fn settle_begin(&mut self, lock: (u32, Mode)) {
        let record = lock.0;
        if let Err(errno) = self.check_lower(record) {
            return self.settle_failed(Some(lock), errno);
        }
        self.store.forget_copied(record);
        self.store.set_state(record, RecordState::Settling);
        let begun = Then::Settle(Step::Begun { record });
        let task = self.add_task(None, Some(lock), Stage::Flush(begun));
        let mut batch = crate::store::Batch::default();
        self.store.batch_record(&mut batch, record);
        self.push_batch(batch, &[], Pending::Step { task });
    }

    /// Reads the next piece, or ends if there is none.
    fn settle_piece(&mut self, lock: (u32, Mode)) {
        let record = lock.0;
        let from = self.settling.job.map_or(0, |(_, from)| from);
        let next = self.store.next_to_settle(record, from, PIECE_BLOCKS_MAX);
        // What was written behind it meanwhile comes in another round.
        let next = next.or_else(|| self.store.next_to_settle(record, 0, PIECE_BLOCKS_MAX));
        let Some(piece) = next else { return self.settle_end(lock) };
        let bytes = vec![0; (piece.count * BLOCK) as usize];
        let copy = Then::Settle(Step::Copy { record, piece, bytes });
        let task = self.add_task(None, Some(lock), Stage::Then(copy));
        let Some(block) = piece.host else { unreachable!("what is settled is in the store") };
        let buffer = Buffer::zeroed((piece.count * BLOCK) as usize);
        self.push_io(Command::Read { block, buffer }, Pending::Piece { task, at: 0 });
    }

    /// What a step of settling was waiting for is done.
    pub(crate) fn settle_on(&mut self, lock: Option<(u32, Mode)>, step: Step) {
        let result = match step {
            Step::Begun { record } => self.cut_lower(record),
            Step::Copy { record, piece, bytes } => self.copy_home(record, piece, &bytes),
            Step::Over { record } => {
                self.settle_over(lock, record);
                return;
            }
        };
        match result {
            Ok(()) => self.settle_pause(lock),
            Err(errno) => self.settle_failed(lock, errno),
        }
    }

    fn settle_pause(&mut self, lock: Option<(u32, Mode)>) {
        self.settling.is_busy = false;
        if let Some((record, mode)) = lock {
            self.unlock(record, mode);
        }
    }

    /// Before anything is copied: bytes below that do not count any more go.
    fn cut_lower(&mut self, record: u32) -> Outcome<()> {
        let record = self.store.adopted(record).record;
        if self.lower.status(&record.handle)?.size > record.lower_valid {
            self.lower.set_size(&record.handle, record.lower_valid)?;
        }
        Ok(())
    }

    fn copy_home(&mut self, record: u32, piece: Piece, bytes: &[u8]) -> Outcome<()> {
        let Adopted { handle, size } = self.place(record);
        let offset = piece.first * BLOCK;
        let length = size.saturating_sub(offset).min(bytes.len() as u64) as usize;
        self.lower.write(&handle, offset, &bytes[..length])?;
        self.store.mark_copied(record, piece);
        self.counters.settled_bytes += length as u64;
        if let Some((_, from)) = &mut self.settling.job {
            *from = piece.first + piece.count;
        }
        Ok(())
    }

    fn place(&self, record: u32) -> Adopted {
        let record = &self.store.adopted(record).record;
        Adopted { handle: record.handle, size: record.size }
    }

    /// All is copied: the lower file gets its size and time and is made durable; then the store forgets.
    fn settle_end(&mut self, lock: (u32, Mode)) {
        let record = lock.0;
        if let Err(errno) = self.complete_lower(record) {
            return self.settle_failed(Some(lock), errno);
        }
        self.store.set_state(record, RecordState::Settled);
        let over = Then::Settle(Step::Over { record });
        let task = self.add_task(None, Some(lock), Stage::Flush(over));
        let mut batch = crate::store::Batch::default();
        self.store.batch_record(&mut batch, record);
        self.push_batch(batch, &[], Pending::Step { task });
        self.give_back(record, 0, task);
    }

    fn complete_lower(&mut self, record: u32) -> Outcome<()> {
        let record = self.store.adopted(record).record;
        self.lower.set_size(&record.handle, record.size)?;
        let settings = Settings { modified: Some(record.modified), ..Settings::default() };
        self.lower.set(&record.handle, &settings)?;
        if crate::is_broken("R8") { Ok(()) } else { self.lower.sync(&record.handle) }
    }

    /// The store has forgotten the blocks: the file is a plain one again.
    fn settle_over(&mut self, lock: Option<(u32, Mode)>, record: u32) {
        self.counters.settled_files += 1;
        self.take_mark(record);
        let number = self.store.adopted(record).record.number;
        self.store.by_number.remove(&number);
        self.touch(number);
        self.settling.job = None;
        self.settling.is_busy = false;
        self.forgettable.insert(record);
        let waiting = self.store.adopted_mut(record).lock.take_waiting();
        self.ready.extend(waiting);
        if let Some((record, mode)) = lock {
            self.unlock(record, mode);
        }
        self.release_waiting(record, None);
        self.ready.extend(std::mem::take(&mut self.waiting_for_room));
    }

    /// Takes the mark from a lower file, if it is the record's.
    pub(crate) fn take_mark(&mut self, record: u32) {
        let record = self.store.adopted(record).record;
        if self.lower.xattr(&record.handle, MARK.as_bytes()).is_ok_and(|id| id == record.id) {
            // One that stays says nothing: no record believes it.
            let _ = self.lower.remove_xattr(&record.handle, MARK.as_bytes());
        }
    }

    /// Lets those go on who waited for a file.
    fn release_waiting(&mut self, record: u32, error: Option<i32>) {
        let waiting = std::mem::take(&mut self.settling.waiting);
        for (other, work) in waiting {
            match error {
                _ if other != record => self.settling.waiting.push((other, work)),
                None => self.ready.push_back(work),
                Some(errno) => self.refuse(work, errno),
            }
        }
    }

    /// A file cannot be settled now. What is in the store stays there, and is served.
    pub(crate) fn settle_failed(&mut self, lock: Option<(u32, Mode)>, errno: i32) {
        self.settling.is_busy = false;
        self.settling.error = Some(errno);
        if let Some((record, mode)) = lock {
            self.settling.job = None;
            self.unlock(record, mode);
            self.release_waiting(record, Some(errno));
        }
        for work in std::mem::take(&mut self.waiting_for_room) {
            self.refuse(work, libc::ENOSPC);
        }
    }

    /// Nothing is settled any more.
    fn settle_stopped(&mut self, errno: i32) -> bool {
        self.settling.job = None;
        self.settling.queue.clear();
        let waiting = std::mem::take(&mut self.settling.waiting);
        waiting.into_iter().for_each(|(_, work)| self.refuse(work, errno));
        for work in std::mem::take(&mut self.waiting_for_room) {
            self.refuse(work, libc::ENOSPC);
        }
        for id in std::mem::take(&mut self.settling.all) {
            self.answer(id, Err(errno));
        }
        self.finish_settled()
    }

    /// Ends the mount if that waits for settling; whether it did.
    fn finish_settled(&mut self) -> bool {
        let Some(id) = self.settling.end.take() else { return false };
        self.finish(id);
        true
    }

    /// All that was to be settled is: those hear it who asked for that.
    fn settle_answered(&mut self) -> bool {
        for id in std::mem::take(&mut self.settling.all) {
            let result = match self.settling.error {
                Some(errno) => Err(errno),
                None => self.forget_durably(),
            };
            match result {
                Ok(()) => self.flush(Some(id), None, Then::Reply(Box::new(Reply::Done))),
                Err(errno) => self.answer(id, Err(errno)),
            }
        }
        self.finish_settled()
    }
}

/// What is needed of a record while a piece of it is copied.
struct Adopted {
    handle: crate::lower::Handle,
    size: u64,
}
