//! Commands to the volume: what they are for, and what comes of them.

use crate::locks::Mode;
use crate::lower::Lower;
use crate::overlay::Overlay;
use crate::settle::Step;
use crate::store::Batch;
use coulter::buffer::Buffer;
use coulter_files::{CHANGES_MAX, Change, Command, Io, IoError, Reply, Response, WRITE_BLOCKS_MAX};
use coulter_format::BLOCK_SIZE;

/// What a command that is out was for.
#[derive(Debug)]
pub(crate) enum Pending {
    /// Bytes for the task's buffer from here on.
    Piece { task: usize, at: usize },
    /// Bytes for the task's buffer, which they are.
    Whole { task: usize },
    /// Data: window, first block in it and number of each run.
    Data { task: usize, runs: Vec<(u32, u64, u64)>, reserved: u64, is_payload: bool },
    /// Anything else that a task waits for.
    Step { task: usize },
    /// What nobody waits for.
    Silent,
    /// A flush, for those who wait for what it covers.
    Flush,
}

impl Pending {
    /// The task that waits for it.
    pub(crate) fn task(&self) -> Option<usize> {
        match self {
            Pending::Piece { task, .. }
            | Pending::Whole { task }
            | Pending::Data { task, .. }
            | Pending::Step { task } => Some(*task),
            Pending::Silent | Pending::Flush => None,
        }
    }

    pub(crate) fn is_flush(&self) -> bool {
        matches!(self, Pending::Flush)
    }

    /// Blocks that it may add.
    pub(crate) fn reserved(&self) -> u64 {
        match self {
            Pending::Data { reserved, .. } => *reserved,
            _ => 0,
        }
    }
}

/// A command that is out.
#[derive(Debug)]
pub(crate) struct Out {
    pub(crate) pending: Pending,
    /// Its place in the order of what changes the volume.
    pub(crate) sequence: Option<u64>,
}

/// A piece of work that is not done at once.
#[derive(Debug)]
pub(crate) struct Task {
    /// Who is to be answered.
    pub(crate) id: Option<u64>,
    /// The lock that it has.
    pub(crate) lock: Option<(u32, Mode)>,
    pub(crate) outstanding: u32,
    pub(crate) error: Option<i32>,
    pub(crate) stage: Stage,
}

/// What a task does when all that is out for it has come back.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Answers with these bytes.
    Read { buffer: Buffer, range: std::ops::Range<usize> },
    /// Stores what is whole now.
    Merge(crate::data::Merge),
    /// Answers that so many bytes are written.
    Written { count: u32, buffer: Buffer, sync: bool },
    /// Stores the last block of a file that is cut off, and its record.
    Cut(crate::resize::Cut),
    /// Answers with the attributes of a node.
    Attributes { number: u64 },
    /// Flushes, and then does the next.
    Flush(Then),
    /// Does it.
    Then(Then),
}

/// What comes after a flush.
#[derive(Debug)]
pub(crate) enum Then {
    /// Answers.
    Reply(Box<Reply>),
    /// Nothing.
    Nothing,
    /// What was held back for a node goes on.
    GoOn { number: u64 },
    /// What nobody asked for is durable.
    Flushed,
    /// Requests may change the lower directory.
    Opened,
    /// The request can go on.
    Retry(Box<crate::overlay::Work>),
    /// Settling goes on.
    Settle(Step),
}

impl<L: Lower> Overlay<L> {
    pub(crate) fn add_task(
        &mut self,
        id: Option<u64>,
        lock: Option<(u32, Mode)>,
        stage: Stage,
    ) -> usize {
        let task = Task { id, lock, outstanding: 0, error: None, stage };
        match self.idle_tasks.pop() {
            Some(index) => {
                self.tasks[index] = Some(task);
                index
            }
            None => {
                self.tasks.push(Some(task));
                self.tasks.len() - 1
            }
        }
    }

    pub(crate) fn task(&mut self, task: usize) -> &mut Task {
        self.tasks[task].as_mut().expect("it is under way")
    }

    /// Gives a command to the volume.
    pub(crate) fn push_io(&mut self, command: Command, pending: Pending) {
        if let Some(task) = pending.task() {
            self.task(task).outstanding += 1;
        }
        let mut sequence = None;
        if !matches!(command, Command::Flush | Command::Read { .. }) {
            sequence = Some(self.order.issue(false));
        }
        if crate::is_broken("in flight")
            && let Some(sequence) = sequence.take()
        {
            self.order.complete(sequence, true);
        }
        let pending = Out { pending, sequence };
        let id = match self.idle_pending.pop() {
            Some(id) => {
                self.pending[id as usize] = Some(pending);
                id
            }
            None => {
                self.pending.push(Some(pending));
                self.pending.len() as u32 - 1
            }
        };
        self.ios.push_back(Io { id, command });
    }

    /// Submits changes of the store's own structures, together with data that is given as number of the
    /// host block and bytes.
    pub(crate) fn push_batch(&mut self, batch: Batch, data: &[(u64, &[u8])], pending: Pending) {
        let images = batch.images(&self.store);
        let mut changes = Vec::with_capacity(images.len() + data.len() + batch.discards.len());
        let mut bytes = Vec::new();
        for (block, image) in &images {
            changes.push(Change { block: *block, count: 1, discard: false });
            bytes.extend_from_slice(image);
        }
        for (block, run) in data {
            let count = (run.len() / BLOCK_SIZE) as u64;
            changes.push(Change { block: *block, count, discard: false });
            bytes.extend_from_slice(run);
        }
        for (block, count) in &batch.discards {
            changes.push(Change { block: *block, count: *count, discard: true });
        }
        assert!(changes.len() <= CHANGES_MAX, "a batch is one atomic write");
        assert!(bytes.len() <= WRITE_BLOCKS_MAX * BLOCK_SIZE, "a batch is one atomic write");
        let buffer = Buffer::copied_from(&bytes);
        self.push_io(Command::WriteMany { changes, buffer, fua: false }, pending);
    }

    pub(crate) fn complete(&mut self, id: u32, result: Result<(), IoError>, buffer: Buffer) {
        let out = self.pending[id as usize].take().expect("a command completes once");
        let Out { pending, sequence } = out;
        self.idle_pending.push(id);
        let errno = match result {
            Ok(()) => None,
            Err(IoError::Corrupt) => Some(libc::EIO),
            Err(IoError::Failed(errno)) => Some(errno),
        };
        if let Some(sequence) = sequence {
            self.order.complete(sequence, errno.is_none());
        }
        self.settle_pending(pending, errno, buffer);
        self.begin_flush();
    }

    /// What was out for something has come back.
    fn settle_pending(&mut self, pending: Pending, errno: Option<i32>, buffer: Buffer) {
        let task = match pending {
            Pending::Silent => {
                self.failed = self.failed.or(errno);
                return;
            }
            Pending::Flush => return self.flush_ended(errno),
            Pending::Piece { task, at } => {
                if let Some(place) = self.task(task).stage.bytes() {
                    place[at..at + buffer.len()].copy_from_slice(&buffer);
                }
                task
            }
            Pending::Whole { task } => {
                self.task(task).stage.give(buffer);
                task
            }
            Pending::Data { task, runs, reserved, is_payload } => {
                assert!(self.store.reserved >= reserved, "what a write may add was counted");
                self.store.reserved -= reserved;
                if errno.is_none() {
                    for (window, first, count) in runs {
                        (first..first + count).for_each(|at| self.store.mark_present(window, at));
                    }
                }
                if is_payload {
                    self.task(task).stage.give(buffer);
                }
                task
            }
            Pending::Step { task } => task,
        };
        self.came_back(task, errno);
    }

    fn came_back(&mut self, task: usize, errno: Option<i32>) {
        let waiting = self.task(task);
        waiting.error = waiting.error.or(errno);
        assert!(waiting.outstanding > 0, "what comes back was out");
        waiting.outstanding -= 1;
        if waiting.outstanding == 0 {
            self.advance(task);
        }
    }

    /// Does what comes next in a task for which nothing is out.
    pub(crate) fn advance(&mut self, index: usize) {
        let Task { id, lock, outstanding, error, stage } =
            self.tasks[index].take().expect("it is under way");
        assert_eq!(outstanding, 0, "a task goes on when all has come back");
        self.idle_tasks.push(index);
        if let Some(errno) = error {
            return self.fail(id, lock, errno, stage);
        }
        match stage {
            Stage::Read { buffer, range } => {
                self.end(id, lock, Ok(Reply::Data(buffer, range)), Buffer::empty());
            }
            Stage::Merge(merge) => self.store_merged(id, lock, merge),
            Stage::Written { count, buffer, sync: true } => {
                let reply = Box::new(Reply::Written(count, buffer));
                self.flush(id, lock, Then::Reply(reply));
            }
            Stage::Written { count, buffer, sync: false } => {
                self.end(id, lock, Ok(Reply::Written(count, buffer)), Buffer::empty());
            }
            Stage::Cut(cut) => self.store_cut(id, lock, cut),
            Stage::Attributes { number } => {
                let result = self.attributes(number).map(Reply::Attributes);
                self.end(id, lock, result, Buffer::empty());
            }
            Stage::Flush(then) => self.flush(id, lock, then),
            Stage::Then(then) => self.go_on(id, lock, then),
        }
    }

    /// Makes durable what was given to the volume up to now, and then goes on.
    pub(crate) fn flush(&mut self, id: Option<u64>, lock: Option<(u32, Mode)>, then: Then) {
        let task = self.add_task(id, lock, Stage::Then(then));
        self.task(task).outstanding += 1;
        self.flush_waiters.push((self.order.issued(), task));
        self.begin_flush();
    }

    /// Answers the requests that wait for nothing but durability; their commands stay on their
    /// way. A write of which the volume has the bytes waits on: they are lent.
    pub(crate) fn refuse_syncs(&mut self, errno: i32) {
        for index in 0..self.tasks.len() {
            let Some(task) = &mut self.tasks[index] else { continue };
            let (Stage::Flush(then) | Stage::Then(then)) = &mut task.stage else { continue };
            if task.id.is_none() || !matches!(then, Then::Reply(_)) {
                continue;
            }
            let Then::Reply(reply) = std::mem::replace(then, Then::Nothing) else { continue };
            let (id, lock) = (task.id.take(), task.lock.take());
            let buffer = match *reply {
                Reply::Written(_, buffer) => buffer,
                _ => Buffer::empty(),
            };
            self.end(id, lock, Err(errno), buffer);
        }
    }

    /// Begins a flush if there are those who wait for what has completed, and none is out.
    fn begin_flush(&mut self) {
        // The first one waits for least.
        let Some((target, _)) = self.flush_waiters.first().copied() else { return };
        if self.order.begin_flush(target) {
            self.counters.flushes += 1;
            self.push_io(Command::Flush, Pending::Flush);
        }
    }

    /// Those who wait for what it covers go on. An error is of everybody: what is not durable now may never be.
    fn flush_ended(&mut self, errno: Option<i32>) {
        self.order.end_flush(errno.is_none());
        self.failed = self.failed.or(errno);
        let waiters = std::mem::take(&mut self.flush_waiters);
        for (target, task) in waiters {
            if errno.is_some() || self.order.is_durable(target) {
                self.came_back(task, errno);
            } else {
                self.flush_waiters.push((target, task));
            }
        }
    }

    fn go_on(&mut self, id: Option<u64>, lock: Option<(u32, Mode)>, then: Then) {
        match then {
            Then::Reply(reply) => self.end(id, lock, Ok(*reply), Buffer::empty()),
            Then::Nothing => {}
            Then::GoOn { number } => self.let_go_on(number),
            Then::Flushed => self.is_flushing_by_itself = false,
            Then::Opened => self.is_open = true,
            Then::Retry(work) => self.ready.push_back(*work),
            Then::Settle(step) => self.settle_on(lock, step),
        }
    }

    fn fail(&mut self, id: Option<u64>, lock: Option<(u32, Mode)>, errno: i32, stage: Stage) {
        let buffer = match stage {
            Stage::Read { buffer, .. } | Stage::Written { buffer, .. } => buffer,
            Stage::Merge(merge) => merge.payload,
            Stage::Then(Then::Retry(work)) | Stage::Flush(Then::Retry(work)) => {
                return self.refuse(*work, errno);
            }
            Stage::Then(Then::Settle(step)) | Stage::Flush(Then::Settle(step)) => {
                return self.settle_step_failed(lock, errno, step);
            }
            Stage::Then(then) | Stage::Flush(then) if id.is_none() => {
                // Nobody else would hear of it.
                self.failed = self.failed.or(Some(errno));
                return self.go_on(id, lock, then);
            }
            _ => Buffer::empty(),
        };
        self.end(id, lock, Err(errno), buffer);
    }

    /// Answers, and leaves the lock.
    pub(crate) fn end(
        &mut self,
        id: Option<u64>,
        lock: Option<(u32, Mode)>,
        result: Result<Reply, i32>,
        buffer: Buffer,
    ) {
        if let Some(id) = id {
            self.responses.push_back(Response { id, result, buffer });
        }
        if let Some((record, mode)) = lock {
            self.unlock(record, mode);
        }
    }
}

impl Stage {
    /// Where pieces are put.
    fn bytes(&mut self) -> Option<&mut [u8]> {
        match self {
            Stage::Read { buffer, .. } => Some(&mut buffer[..]),
            Stage::Merge(merge) => Some(&mut merge.image[..]),
            Stage::Cut(cut) => Some(&mut cut.edge[..]),
            _ => None,
        }
    }

    /// Takes back a buffer that was lent.
    fn give(&mut self, lent: Buffer) {
        if let Stage::Read { buffer, .. }
        | Stage::Written { buffer, .. }
        | Stage::Flush(Then::Settle(Step::Copy { bytes: buffer, .. }))
        | Stage::Then(Then::Settle(Step::Copy { bytes: buffer, .. })) = self
        {
            *buffer = lent;
        }
    }
}
