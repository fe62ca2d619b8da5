//! Bringing home what is in the store (R8): ascending, in long pieces, a few files at a time.
//!
//! While one file is made durable the next is read, and those that wait for a flush or a commit share it. Pieces
//! are read ahead, several at once, and written in the order in which they were asked for. Each has the
//! file's lock shared, so that others read and overwrite meanwhile, and whoever changes more waits for the few
//! that are out. A block counts as copied when it is asked for; a write that completes later takes that back,
//! and the block is brought home again, behind the piece that may hold what it was before. What is written
//! below is written out at once, so that the disk does not idle until the sync.
//!
//! Until the record says that all is home the store is right and the lower file is not looked at for what is
//! here, so a crash at any point repeats the work. A file that is cut off meanwhile begins anew, for what lies
//! behind the cut below must go before anything is there again.

use crate::MARK;
use crate::ahead::{Ahead, BLOCKS_MAX, COUNT_MAX, PIECE_BLOCKS_MAX};
use crate::io::{Pending, Stage, Then};
use crate::locks::Mode;
use crate::lower::{Lower, Outcome, Settings};
use crate::overlay::{Overlay, Work};
use crate::queue::Queue;
use crate::store::{Batch, Portion};
use coulter::buffer::Buffer;
use coulter_files::Command;
use coulter_format::BLOCK_SIZE;
use coulter_format::overlay::RecordState;
use std::collections::{HashMap, HashSet};

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Files at once.
const JOBS_MAX: usize = 8;
/// The name of a file's sync is this and its record. No node has such a number.
const SYNC_TAGS: u64 = 1 << 63;
/// The name of what is being written out below.
const WRITE_OUT_TAG: u64 = u64::MAX;
/// Bytes that are written out below at a time, and how often at once: more is not dirty there for us. The model's
/// files are small.
const WRITE_OUT_SIZE: u64 = if cfg!(test) { 2 * BLOCK } else { 8 << 20 };
const WRITE_OUTS_MAX: u32 = 2;

/// What comes next for the file that is being settled.
#[derive(Debug)]
pub(crate) enum Step {
    /// The record says durably that the lower file is not as it was noted: it may be changed.
    Begun { record: u32 },
    /// A piece is in memory.
    Copy { record: u32, serial: u64, bytes: Buffer },
    /// The record says durably that all is home.
    Over { record: u32 },
}

/// A file that is being settled, and where it has come to.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) record: u32,
    /// A step of it that is not a piece read ahead is under way, or waits for the lock.
    is_busy: bool,
    /// Its record says so durably, and what does not count below is cut off.
    has_begun: bool,
    /// The block to go on with.
    from: u64,
    ahead: Ahead,
    /// Bytes below that were written and not written out, from where to where.
    dirty: std::ops::Range<u64>,
    /// Why it stops when all that is out has come back.
    error: Option<i32>,
}

impl Job {
    fn new(record: u32) -> Job {
        let (ahead, dirty) = (Ahead::default(), 0..0);
        Job { record, is_busy: false, has_begun: false, from: 0, ahead, dirty, error: None }
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Settling {
    /// Files that are to be settled.
    pub(crate) queue: Queue,
    /// Those that are, in the order in which they were begun.
    pub(crate) jobs: Vec<Job>,
    /// How many are being made durable below.
    syncs: u32,
    /// Memory of long pieces that are written, for the next ones: to have it anew costs more than to fill it.
    spare: Vec<Buffer>,
    /// How much is being written out below.
    write_outs: u32,
    /// Requests that want all of a file at home, and which.
    waiting: HashMap<u32, Vec<Work>>,
    /// Those who want everything at home.
    all: Vec<u64>,
    /// The end of the mount, which waits for that too.
    end: Option<u64>,
    /// Why it stopped last.
    pub(crate) error: Option<i32>,
}

impl Settling {
    /// Files that are to be settled, those under way included.
    pub(crate) fn backlog(&self) -> u64 {
        self.queue.len() as u64 + self.jobs.len() as u64
    }

    /// Whether a record is one under way.
    pub(crate) fn is_at(&self, record: u32) -> bool {
        self.jobs.iter().any(|job| job.record == record)
    }

    fn job(&mut self, record: u32) -> &mut Job {
        let job = self.jobs.iter_mut().find(|job| job.record == record);
        job.expect("a step is of a file that is being settled")
    }

    /// Whether one more piece may be asked for, of whatever file.
    fn has_room(&self) -> bool {
        let count = |total: (usize, u64), job: &Job| {
            let (count, blocks) = job.ahead.size();
            (total.0 + count, total.1 + blocks)
        };
        let (count, blocks) = self.jobs.iter().fold((0, 0), count);
        count < COUNT_MAX && blocks < BLOCKS_MAX
    }

    /// A file is cut off: the lower one is cut off too before anything more of it is brought home.
    /// Or a sync of it has failed, of whomever: then nothing that was brought home counts.
    pub(crate) fn begin_anew(&mut self, record: u32) {
        if let Some(job) = self.jobs.iter_mut().find(|job| job.record == record) {
            job.has_begun = false;
        }
    }

    /// True if a step of a record is under way that is not a piece.
    pub(crate) fn is_busy_with(&self, record: u32) -> bool {
        self.jobs.iter().any(|job| job.record == record && job.is_busy)
    }

    pub(crate) fn assert_invariants(&self) {
        assert!(self.jobs.len() <= JOBS_MAX, "files at once");
        let records = self.jobs.iter().map(|job| job.record);
        let distinct: HashSet<u32> = records.collect();
        assert_eq!(distinct.len(), self.jobs.len(), "a file comes home once at a time");
        assert!(self.write_outs <= WRITE_OUTS_MAX, "what is written out at once");
        assert!(self.syncs as usize <= self.jobs.len(), "a sync is of a file that comes home");
        let is_busy = self.jobs.iter().filter(|job| job.is_busy).count();
        assert!(self.syncs as usize <= is_busy, "a file waits for its sync");
    }

    /// Whether nothing of it is out below.
    pub(crate) fn is_quiet(&self) -> bool {
        self.syncs == 0 && self.write_outs == 0
    }
}

/// Whether a piece is as long as one may be.
fn is_long(size: usize) -> bool {
    size as u64 == PIECE_BLOCKS_MAX * BLOCK
}

impl<L: Lower> Overlay<L> {
    /// Settles everything, and answers then.
    pub(crate) fn settle_everything(&mut self, id: u64) {
        self.settling.error = None;
        self.settling.all.push(id);
        self.store.lists().coming_home().into_iter().for_each(|record| self.enqueue(record));
    }

    /// Settles everything that can be, and ends then.
    pub(crate) fn settle_at_end(&mut self, id: u64) {
        assert!(self.settling.end.is_none(), "a mount ends once");
        self.settling.error = None;
        self.settling.end = Some(id);
        self.store.lists().coming_home().into_iter().for_each(|record| self.enqueue(record));
    }

    /// Settles a file, and lets the request go on then.
    pub(crate) fn settle_for(&mut self, record: u32, work: Work) {
        self.settling.waiting.entry(record).or_default().push(work);
        if !self.settling.is_at(record) {
            self.settling.queue.push_first(record);
        }
    }

    /// Has a file settled, if there is one that can be.
    pub(crate) fn enqueue(&mut self, record: u32) {
        let Some(Some(adopted)) = self.store.records.get(record as usize) else { return };
        if adopted.can_come_home() && !self.settling.is_at(record) {
            self.settling.queue.push(record);
        }
    }

    /// Takes the next step if there is one; whether there was.
    pub(crate) fn settle_next(&mut self) -> bool {
        let is_over = self.is_ending || self.failed.is_some();
        if (0..self.settling.jobs.len()).any(|index| self.step_of(index, is_over)) {
            return true;
        }
        let is_idle = self.settling.jobs.is_empty();
        if is_over {
            return is_idle && self.settle_stopped(libc::EIO);
        }
        if self.settling.jobs.len() == JOBS_MAX {
            return false;
        }
        let Some(record) = self.settling.queue.pop() else {
            return is_idle && self.settle_answered();
        };
        if self.can_be_settled(record) && !self.settling.is_at(record) {
            self.settling.jobs.push(Job::new(record));
        }
        true
    }

    /// Takes the next step of a file if there is one.
    fn step_of(&mut self, index: usize, is_over: bool) -> bool {
        let job = &self.settling.jobs[index];
        let record = job.record;
        if job.is_busy {
            return false;
        }
        if let Some(errno) = job.error.or(is_over.then_some(libc::EIO)) {
            // Pieces that are out come back first.
            return job.ahead.is_empty() && self.settle_given_up(record, errno);
        }
        let Some(mode) = self.next_step(job) else { return false };
        self.settling.jobs[index].is_busy = true;
        if self.lock_to_settle(record, mode) {
            self.settle_step(record, mode);
        }
        true
    }

    /// Whether a file is there, with its blocks.
    fn can_be_settled(&self, record: u32) -> bool {
        let found = self.store.records.get(record as usize).and_then(Option::as_deref);
        found.is_some_and(|adopted| {
            let state = adopted.record.state;
            matches!(state, RecordState::Live | RecordState::Settling) && !adopted.is_dying
        })
    }

    /// How the next step uses the file; `None` while it waits for what is out.
    fn next_step(&self, job: &Job) -> Option<Mode> {
        let has_room = self.settling.has_room();
        if !has_room && !job.ahead.is_empty() {
            return None;
        }
        if job.has_begun && self.next_portion(job).is_some() {
            return has_room.then_some(Mode::Shared);
        }
        job.ahead.is_empty().then_some(Mode::Exclusive)
    }

    /// What is to be read next. What was written behind it meanwhile comes in another round.
    fn next_portion(&self, job: &Job) -> Option<Portion> {
        let next = |from| self.store.next_to_settle(job.record, from, PIECE_BLOCKS_MAX);
        next(job.from).or_else(|| next(0))
    }

    /// The next step, with the file's lock. Much may have changed while it waited for that.
    pub(crate) fn settle_step(&mut self, record: u32, mode: Mode) {
        let lock = (record, mode);
        let is_fit = self.can_be_settled(record) && self.failed.is_none() && !self.is_ending;
        let job = self.settling.job(record);
        if !is_fit {
            job.error = job.error.or(Some(libc::ESTALE));
        }
        let (has_failed, has_begun) = (job.error.is_some(), job.has_begun);
        let at = self.settling.jobs.iter().position(|job| job.record == record);
        let next = at.and_then(|at| self.next_step(&self.settling.jobs[at]));
        if has_failed || next != Some(mode) {
            return self.settle_pause(Some(lock));
        }
        match (mode, has_begun) {
            (Mode::Exclusive, false) => self.settle_begin(lock),
            (Mode::Exclusive, true) => self.settle_end(lock),
            (Mode::Shared, _) => self.read_ahead(lock),
        }
    }

    fn settle_begin(&mut self, lock: (u32, Mode)) {
        let record = lock.0;
        if let Err(errno) = self.check_lower(record) {
            return self.settle_failed(Some(lock), errno);
        }
        if !crate::is_broken("failed sync") {
            // Blocks that were brought home before may be lost with a sync that has failed.
            self.store.forget_copied(record);
        }
        self.store.set_state(record, RecordState::Settling);
        let begun = Then::Settle(Step::Begun { record });
        let task = self.add_task(None, Some(lock), Stage::Flush(begun));
        let mut batch = Batch::default();
        self.store.batch_record(&mut batch, record);
        self.push_batch(batch, &[], Pending::Step { task });
    }

    /// Asks for the next piece.
    fn read_ahead(&mut self, lock: (u32, Mode)) {
        let record = lock.0;
        let at = self.settling.jobs.iter().position(|job| job.record == record);
        let portion = at.and_then(|at| self.next_portion(&self.settling.jobs[at]));
        let portion = portion.expect("there is one, or this is no step");
        let (block, size) = (portion.host, (portion.count * BLOCK) as usize);
        self.store.mark_copied(record, &portion);
        // In the block with the end of the lower file's own bytes, only those count after a crash
        // that takes the data read here from the store. A copy that came before would be a mixture.
        let (edge, rest) = {
            let valid = self.store.adopted(record).record.lower_valid;
            (valid / BLOCK, valid % BLOCK)
        };
        let is_edge = rest > 0
            && (portion.first..portion.first + portion.count).contains(&edge)
            && !self.order.is_clean()
            && !crate::is_broken("edge");
        let job = self.settling.job(record);
        (job.is_busy, job.from) = (false, portion.first + portion.count);
        let serial = job.ahead.add(portion);
        let copy = Then::Settle(Step::Copy { record, serial, bytes: Buffer::empty() });
        let stage = if is_edge { Stage::Flush(copy) } else { Stage::Then(copy) };
        let task = self.add_task(None, Some(lock), stage);
        let spare = if is_long(size) { self.settling.spare.pop() } else { None };
        let buffer = spare.unwrap_or_else(|| Buffer::zeroed(size));
        self.push_io(Command::Read { block, buffer }, Pending::Whole { task });
    }

    /// What a step of settling was waiting for is done.
    pub(crate) fn settle_on(&mut self, lock: Option<(u32, Mode)>, step: Step) {
        match step {
            Step::Begun { record } => match self.cut_lower(record) {
                Ok(()) => {
                    let job = self.settling.job(record);
                    (job.has_begun, job.from) = (true, 0);
                    self.settle_pause(lock);
                }
                Err(errno) => self.settle_failed(lock, errno),
            },
            Step::Copy { record, serial, bytes } => {
                self.piece_came(lock, (record, serial), Ok(bytes));
            }
            Step::Over { record } => self.settle_over(lock, record),
        }
    }

    /// A step failed.
    pub(crate) fn settle_step_failed(&mut self, lock: Option<(u32, Mode)>, errno: i32, step: Step) {
        match step {
            Step::Copy { record, serial, .. } => {
                self.piece_came(lock, (record, serial), Err(errno));
            }
            Step::Begun { .. } | Step::Over { .. } => self.settle_failed(lock, errno),
        }
    }

    /// A piece is in memory, or is not to be had.
    fn piece_came(
        &mut self,
        lock: Option<(u32, Mode)>,
        (record, serial): (u32, u64),
        result: Outcome<Buffer>,
    ) {
        let job = self.settling.job(record);
        let bytes = result.unwrap_or_else(|errno| {
            job.error = job.error.or(Some(errno));
            Buffer::empty()
        });
        job.ahead.came(serial, bytes);
        if let Some((record, mode)) = lock {
            self.unlock(record, mode);
        }
        self.write_home(record);
    }

    /// Writes what is in memory, as far as nothing that was asked for before is missing.
    fn write_home(&mut self, record: u32) {
        while self.settling.write_outs < WRITE_OUTS_MAX {
            let is_dropped = self.is_ending || self.failed.is_some();
            let job = self.settling.job(record);
            let is_dropped = is_dropped || job.error.is_some();
            let Some((portion, bytes)) = job.ahead.next() else { return };
            if is_dropped {
                continue;
            }
            if let Err(errno) = self.copy_home(record, &portion, &bytes) {
                let job = self.settling.job(record);
                job.error = job.error.or(Some(errno));
            }
            if is_long(bytes.len()) {
                self.settling.spare.push(bytes);
            }
        }
    }

    fn settle_pause(&mut self, lock: Option<(u32, Mode)>) {
        if let Some((record, mode)) = lock {
            self.settling.job(record).is_busy = false;
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

    fn copy_home(&mut self, record: u32, portion: &Portion, bytes: &[u8]) -> Outcome<()> {
        let job = self.settling.job(record);
        let record = &self.store.adopted(record).record;
        let (handle, size) = (record.handle, record.size);
        for (index, count) in &portion.runs {
            let offset = (portion.first + index) * BLOCK;
            let length = size.saturating_sub(offset).min(count * BLOCK);
            let at = (index * BLOCK) as usize;
            self.lower.write(&handle, offset, &bytes[at..at + length as usize])?;
            self.counters.settled_bytes += length;
        }
        let start = portion.first * BLOCK;
        if job.dirty.is_empty() || job.dirty.end > start {
            job.dirty.start = start;
        }
        job.dirty.end = start + portion.count * BLOCK;
        if job.dirty.end - job.dirty.start >= WRITE_OUT_SIZE {
            let range = std::mem::replace(&mut job.dirty, 0..0);
            let begun = self.lower.begin_writing_out(&handle, range, WRITE_OUT_TAG);
            self.settling.write_outs += u32::from(begun.is_none());
        }
        Ok(())
    }

    /// What was begun below for settling has ended; whether it was for that.
    pub(crate) fn settle_synced(&mut self, tag: u64, result: Outcome<()>) -> bool {
        if tag == WRITE_OUT_TAG {
            // An error is told by the sync, too.
            self.settling.write_outs -= 1;
            let records: Vec<u32> = self.settling.jobs.iter().map(|job| job.record).collect();
            records.into_iter().for_each(|record| self.write_home(record));
        } else if tag & (SYNC_TAGS | SYNC_TAGS >> 1) == SYNC_TAGS {
            self.settling.syncs -= 1;
            self.settle_durable(((tag & !SYNC_TAGS) as u32, Mode::Exclusive), result);
        } else {
            return false;
        }
        true
    }

    /// All is copied: the lower file gets its size and time and is made durable.
    fn settle_end(&mut self, lock: (u32, Mode)) {
        let handle = self.store.adopted(lock.0).record.handle;
        if let Err(errno) = self.complete_lower(lock.0) {
            return self.settle_failed(Some(lock), errno);
        }
        if crate::is_broken("R8") {
            return self.settle_durable(lock, Ok(()));
        }
        match self.lower.begin_sync(&handle, SYNC_TAGS | u64::from(lock.0)) {
            Some(result) => self.settle_durable(lock, result),
            None => self.settling.syncs += 1,
        }
    }

    fn complete_lower(&mut self, record: u32) -> Outcome<()> {
        let record = self.store.adopted(record).record;
        self.lower.set_size(&record.handle, record.size)?;
        let settings = Settings { modified: Some(record.modified), ..Settings::default() };
        self.lower.set(&record.handle, &settings)
    }

    /// The lower file is durable, or is not: then the store forgets.
    fn settle_durable(&mut self, lock: (u32, Mode), result: Outcome<()>) {
        let record = lock.0;
        // The lower file system may have told another one of an error, and says nothing of it here.
        let is_doubted = !self.settling.job(record).has_begun;
        let result = if self.is_ending || is_doubted { Err(libc::EIO) } else { result };
        if let Err(errno) = result {
            return self.settle_failed(Some(lock), errno);
        }
        self.store.set_state(record, RecordState::Settled);
        let over = Then::Settle(Step::Over { record });
        let task = self.add_task(None, Some(lock), Stage::Flush(over));
        let mut batch = Batch::default();
        self.store.batch_record(&mut batch, record);
        self.push_batch(batch, &[], Pending::Step { task });
        self.give_back(record, 0, task);
    }

    /// The store has forgotten the blocks: the file is a plain one again.
    fn settle_over(&mut self, lock: Option<(u32, Mode)>, record: u32) {
        self.counters.settled_files += 1;
        self.take_mark(record);
        let number = self.store.adopted(record).record.number;
        if self.store.by_number.get(&number) == Some(&record) {
            // Else it has died meanwhile, and another file has its number.
            self.store.by_number.remove(&number);
        }
        self.store.unnoted.remove(&record);
        self.touch(number);
        self.settling.jobs.retain(|job| job.record != record);
        self.forget_later(record);
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
        for work in self.settling.waiting.remove(&record).unwrap_or_default() {
            match error {
                None => self.ready.push_back(work),
                Some(errno) => self.refuse(work, errno),
            }
        }
    }

    /// A file cannot be settled now. What is in the store stays there, and is served.
    fn settle_failed(&mut self, lock: Option<(u32, Mode)>, errno: i32) {
        self.settle_pause(lock);
        if let Some((record, _)) = lock {
            self.settle_given_up(record, errno);
        }
    }

    /// Leaves a file as it is. Nothing of it is out.
    fn settle_given_up(&mut self, record: u32, errno: i32) -> bool {
        let job = self.settling.job(record);
        assert!(job.ahead.is_empty() && !job.is_busy, "what is out would find nobody");
        self.settling.jobs.retain(|job| job.record != record);
        if self.can_be_settled(record) {
            // Else it was removed meanwhile, which keeps nothing from coming home.
            self.settling.error = Some(errno);
        }
        self.release_waiting(record, Some(errno));
        if self.settling.backlog() == 0 {
            // Else another file may make room.
            for work in std::mem::take(&mut self.waiting_for_room) {
                self.refuse(work, libc::ENOSPC);
            }
        }
        true
    }

    /// Nothing is settled any more.
    fn settle_stopped(&mut self, errno: i32) -> bool {
        self.settling.queue.clear();
        let waiting = std::mem::take(&mut self.settling.waiting);
        waiting.into_values().flatten().for_each(|work| self.refuse(work, errno));
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
        self.settling.spare = Vec::new();
        let answered = std::mem::take(&mut self.settling.all);
        match self.settling.error {
            Some(errno) => answered.into_iter().for_each(|id| self.answer(id, Err(errno))),
            None if answered.is_empty() => {}
            None => self.forget_durably(answered),
        }
        self.finish_settled()
    }
}
