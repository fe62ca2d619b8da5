//! The state machine: requests and completions in, commands and answers out.
//!
//! It opens the file system, runs operations that can go on, and passes what comes in to the part
//! whose it is. It owns nothing itself: see [`Parts`].

mod views;

use crate::cache::Cache;
use crate::canary::{Canary, sings};
use crate::io::{Command, Io, IoError};
use crate::parts::{Parts, Purpose};
use crate::request::{Request, Response};
use crate::served::{Ending, FileService};
use crate::task::{Progress, Task, Work};
use crate::tree::Tree;
use coulter::buffer::Buffer;
use coulter_format::files::{Superblock, Time};
use coulter_format::{BLOCK_SIZE, Block};

/// Changes wait at most this long for others to be submitted with, in nanoseconds.
const SET_AGE_MAX_NS: u64 = 20_000_000;
/// What is not durable waits for a flush at most this long, in nanoseconds.
const FLUSH_AGE_MAX_NS: u64 = 1_000_000_000;

/// How a file system is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Blocks of metadata kept in memory.
    pub cache_blocks: usize,
    /// Refuse changes.
    pub read_only: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { cache_blocks: 16 << 10, read_only: false }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Opening,
    Running,
    /// It is no file system that can be opened.
    Refused(i32),
}

/// A file system. See the crate's documentation.
pub struct Files {
    state: State,
    options: Options,
    parts: Parts,
}

impl Files {
    /// Begins to open the file system on a volume of this size in blocks.
    pub fn open(options: Options, volume_blocks: u64) -> Files {
        let mut parts = Parts::new(volume_blocks, options.read_only);
        let command = Command::Read { block: 0, buffer: Buffer::zeroed(BLOCK_SIZE) };
        parts.desk.give(command, Purpose::Superblock);
        Files { state: State::Opening, options, parts }
    }

    /// True if it is open; an error number if it cannot be.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn is_open(&self) -> Result<bool, i32> {
        match self.state {
            State::Opening => Ok(false),
            State::Running => Ok(true),
            State::Refused(errno) => Err(errno),
        }
    }

    /// Takes in an operation. `now` is the time that it sets.
    pub fn handle_request(&mut self, id: u64, request: Request, now: Time) {
        self.parts.counters.requests += 1;
        if let Request::Settle = request {
            // All of it is at home.
            let (result, buffer) = (Err(libc::ENOTTY), Buffer::empty());
            self.parts.desk.answer(Some(Response { id, result, buffer }));
            return;
        }
        let task = Task::new(Some(id), Work::of(request), now);
        if self.read_only() && task.work.changes_something() {
            self.parts.desk.answer(task.answer(Err(libc::EROFS)));
            return;
        }
        let task = self.parts.desk.add(task);
        self.parts.desk.wake(task);
        self.run_ready();
    }

    /// The kernel forgets lookups of a node.
    pub fn forget(&mut self, inode: u64, lookups: u64) {
        if self.parts.nodes.forget(inode, lookups) {
            self.parts.reap(inode);
            self.run_ready();
        }
    }

    /// The clock, in nanoseconds from anywhere: lets changes go that have waited long enough.
    /// Returns when it wants to be told the time again.
    pub fn handle_time(&mut self, now_ns: u64) -> Option<u64> {
        self.parts.desk.handle_time(now_ns);
        if self.state != State::Running || self.parts.health.has_failed() {
            return None;
        }
        if self.parts.has_changes() && self.parts.sets.age_ns(now_ns) >= SET_AGE_MAX_NS {
            self.parts.submit_set(false);
        }
        if self.is_durable() {
            self.parts.flushes.end_age();
            return None;
        }
        if self.parts.flushes.age_ns(now_ns) >= FLUSH_AGE_MAX_NS {
            self.parts.flushes.begin_age(now_ns);
            let task = self.parts.desk.add(Task::of_itself(Work::Sync(None)));
            self.parts.desk.wake(task);
            self.run_ready();
        }
        let set = self.parts.sets.oldest_change_ns().map(|since| since + SET_AGE_MAX_NS);
        let flush = self.parts.flushes.unflushed_since_ns().map(|since| since + FLUSH_AGE_MAX_NS);
        set.into_iter().chain(flush).min()
    }

    /// Takes in if the volume lacks space beneath it: requests that wait for durability are
    /// refused then.
    pub fn handle_space(&mut self, is_short: bool) {
        if self.parts.health.note_space(is_short) {
            self.parts.pump_flush();
            self.run_ready();
        }
    }

    /// Submits what has changed; it need not be durable.
    pub fn submit_changes(&mut self) {
        if self.state == State::Running {
            self.parts.submit_set(false);
        }
    }

    /// The next command for the volume.
    pub fn poll_io(&mut self) -> Option<Io> {
        self.parts.desk.poll_io()
    }

    /// The next answer.
    pub fn poll_response(&mut self) -> Option<Response> {
        self.parts.desk.poll_response()
    }

    /// A command is complete; its buffer comes back.
    pub fn handle_completion(&mut self, id: u32, result: Result<(), IoError>, buffer: Buffer) {
        match self.parts.desk.complete(id) {
            Purpose::Superblock => self.handle_superblock(result, &buffer),
            purpose => self.parts.handle_completion(id, purpose, result, buffer),
        }
        self.parts.pump_flush();
        self.run_ready();
        if self.state == State::Running {
            // Everyone that waited for it was told.
            self.parts.tree().cache.forget_failed_load();
        }
    }

    fn handle_superblock(&mut self, result: Result<(), IoError>, buffer: &[u8]) {
        assert!(self.state == State::Opening, "the superblock is read once");
        let block: &Block = buffer.try_into().expect("a block was asked for");
        let superblock = result.map_err(IoError::errno).and_then(|()| {
            let decoded = Superblock::decode(block).map_err(|_| libc::EINVAL)?;
            let fits = decoded.block_count <= self.parts.volume_blocks();
            if fits { Ok(decoded) } else { Err(libc::EINVAL) }
        });
        match superblock {
            Ok(superblock) => {
                let cache = Cache::new(self.options.cache_blocks);
                self.parts.open(Tree::new(cache, superblock));
                self.state = State::Running;
                if !self.options.read_only {
                    let task = self.parts.desk.add(Task::of_itself(Work::FindOrphans));
                    self.parts.desk.wake_first(task);
                }
            }
            Err(errno) => self.state = State::Refused(errno),
        }
    }

    /// Runs everything that can go on.
    fn run_ready(&mut self) {
        if self.state == State::Opening {
            return;
        }
        while let Some(id) = self.next_ready() {
            let Some(mut task) = self.parts.desk.take(id) else { continue };
            if task.out > 0 {
                self.parts.desk.put(id, task);
                continue;
            }
            match self.run(id, &mut task) {
                Progress::Waits => self.parts.desk.put(id, task),
                Progress::Yields => {
                    self.parts.desk.put(id, task);
                    self.parts.desk.wake(id);
                }
                Progress::Ends(result) if task.out > 0 && !sings(Canary::EndsWhileOut) => {
                    assert!(result.is_err(), "what succeeds has nothing out");
                    task.ending = Some(result);
                    self.parts.desk.put(id, task);
                }
                Progress::Ends(result) => {
                    self.parts.end(id, &task);
                    self.parts.desk.answer(task.answer(result));
                }
            }
        }
    }

    /// Runs a task, unless it has to end anyway.
    fn run(&mut self, id: usize, task: &mut Task) -> Progress {
        if let Some(result) = task.ending.take() {
            return Progress::Ends(result);
        }
        if let State::Refused(errno) = self.state {
            return Progress::Ends(Err(errno));
        }
        let (health, changes) = (&self.parts.health, task.work.changes_something());
        if health.has_failed() && changes {
            return Progress::Ends(Err(libc::EROFS));
        }
        // What takes blocks away goes on: it would not come again before the next mount.
        let takes_away = match &task.work {
            Work::Reap(_) => true,
            Work::Resize(resize) => resize.drains,
            _ => false,
        };
        if health.is_short_of_space() && changes && !takes_away {
            return Progress::Ends(Err(libc::ENOSPC));
        }
        self.parts.run(id, task)
    }

    fn next_ready(&mut self) -> Option<usize> {
        if !self.parts.desk.has_ready() && self.parts.flushes.take_due() {
            self.parts.pump_flush();
        }
        self.parts.desk.next_ready()
    }
}

impl FileService for Files {
    fn handle_request(&mut self, id: u64, request: Request, now: Time) {
        Files::handle_request(self, id, request, now);
    }

    fn handle_end(&mut self, id: u64, _ending: Ending, now: Time) {
        Files::handle_request(self, id, Request::Sync, now);
    }

    fn forget(&mut self, inode: u64, lookups: u64) {
        Files::forget(self, inode, lookups);
    }

    fn handle_time(&mut self, now_ns: u64) -> Option<u64> {
        Files::handle_time(self, now_ns)
    }

    fn handle_space(&mut self, is_short: bool) {
        Files::handle_space(self, is_short);
    }

    fn poll_io(&mut self) -> Option<Io> {
        Files::poll_io(self)
    }

    fn handle_completion(&mut self, id: u32, result: Result<(), IoError>, buffer: Buffer) {
        Files::handle_completion(self, id, result, buffer);
    }

    fn poll_response(&mut self) -> Option<Response> {
        Files::poll_response(self)
    }

    fn is_quiet(&self) -> bool {
        Files::is_quiet(self)
    }

    fn is_congested(&self) -> bool {
        Files::is_congested(self)
    }
}
