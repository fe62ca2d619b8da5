//! The state machine: requests and completions in, commands and answers out.

mod views;

use crate::cache::{BlockMap, Cache};
use crate::canary::{Canary, sings};
use crate::io::{Command, Io, IoError};
use crate::locks::Locks;
use crate::order::Order;
use crate::request::{Reply, Request};
use crate::set::STEP_BLOCKS_MAX;
use crate::space::Run;
use crate::stop::{Role, Step, Stop};
use crate::task::{Progress, Task, Ticket, Work};
use crate::traffic::Traffic;
use crate::tree::Tree;
use coulter::buffer::Buffer;
use coulter_format::files::{ROOT_INODE, Superblock, Time, node};
use coulter_format::{BLOCK_SIZE, Block};
use std::collections::VecDeque;

/// Changes wait so long at most for others to be submitted with, in nanoseconds.
const SET_AGE_MAX_NS: u64 = 20_000_000;
/// What is not durable waits so long at most for a flush, in nanoseconds.
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

/// An answer.
#[derive(Debug)]
pub struct Response {
    /// Of which request.
    pub id: u64,
    /// What it gave, or an error number.
    pub result: Result<Reply, i32>,
    /// The buffer of a read or a write that failed; it is in the reply otherwise.
    pub buffer: Buffer,
}

/// What was done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "named after what they count")]
pub struct Counters {
    pub requests: u64,
    pub sets: u64,
    pub set_blocks: u64,
    pub loads: u64,
    pub flushes: u64,
    pub data_blocks_written: u64,
    pub data_blocks_read: u64,
    pub reaped: u64,
}

/// Bytes that a buffer must hold for a read of so many bytes from here on: whole blocks.
pub fn read_span(offset: u64, length: u32) -> usize {
    let end = offset.saturating_add(length.into());
    let first = offset / BLOCK_SIZE as u64;
    ((end.div_ceil(BLOCK_SIZE as u64) - first) as usize) * BLOCK_SIZE
}

/// What a command that is out was for.
pub(crate) enum Pending {
    Superblock,
    Load {
        block: u64,
        role: Role,
    },
    /// A piece of data for a task.
    Fetch {
        ticket: Ticket,
        block: u64,
    },
    Data {
        ticket: Ticket,
        sequence: u64,
    },
    /// Data that was gathered, whose writers are answered.
    Gathered {
        sequence: u64,
    },
    Set {
        sequence: u64,
        blocks: Vec<u64>,
    },
    Discard {
        sequence: u64,
    },
    Flush,
}

enum State {
    Opening,
    Running(Box<Tree>),
    /// It is no file system that can be opened.
    Refused(i32),
}

/// How often the kernel knows a node.
#[derive(Default)]
struct Known {
    lookups: u64,
    /// It has no name any more.
    is_dying: bool,
}

/// How a step ended.
pub(crate) enum Settled<T> {
    Done(Result<T, i32>),
    /// It is to be done again at once.
    Again,
    /// It is to be done again later; that was seen to.
    Later,
}

/// A file system. See the crate's documentation.
pub struct Files {
    state: State,
    options: Options,
    volume_blocks: u64,
    pub(crate) tasks: Vec<Option<Task>>,
    /// How many tasks each place has had.
    generations: Vec<u64>,
    idle_tasks: Vec<usize>,
    pub(crate) ready: VecDeque<usize>,
    waiting_for_blocks: BlockMap<Vec<usize>>,
    waiting_for_traffic: Vec<usize>,
    pub(crate) waiting_for_flush: Vec<usize>,
    pub(crate) locks: Locks,
    ios: VecDeque<Io>,
    pending: Vec<Option<Pending>>,
    idle_pending: Vec<u32>,
    responses: VecDeque<Response>,
    known: BlockMap<Known>,
    pub(crate) order: Order,
    pub(crate) traffic: Traffic,
    pub(crate) spare: Vec<Buffer>,
    /// The open set holds more than times: what is overwritten must not come before it.
    pub(crate) is_ordered: bool,
    /// A file was made shorter in the open set: what lies behind its end is not nobody's yet.
    pub(crate) has_shrunk: bool,
    pub(crate) oldest_change_ns: Option<u64>,
    unflushed_since_ns: Option<u64>,
    /// Somebody waits for a flush that has not begun.
    pub(crate) flush_is_due: bool,
    /// A write or a flush failed: nothing is changed any more.
    pub(crate) failed: Option<i32>,
    /// The volume has lacked space beneath it for long: changes are refused, and no sync waits.
    pub(crate) is_short_of_space: bool,
    pub(crate) counters: Counters,
    now_ns: u64,
}

impl Files {
    /// Begins to open the file system on a volume of so many blocks.
    pub fn open(options: Options, volume_blocks: u64) -> Files {
        let mut files = Files {
            state: State::Opening,
            options,
            volume_blocks,
            tasks: Vec::new(),
            generations: Vec::new(),
            idle_tasks: Vec::new(),
            ready: VecDeque::new(),
            waiting_for_blocks: BlockMap::default(),
            waiting_for_traffic: Vec::new(),
            waiting_for_flush: Vec::new(),
            locks: Locks::default(),
            ios: VecDeque::new(),
            pending: Vec::new(),
            idle_pending: Vec::new(),
            responses: VecDeque::new(),
            known: BlockMap::default(),
            order: Order::default(),
            traffic: Traffic::default(),
            spare: Vec::new(),
            is_ordered: false,
            has_shrunk: false,
            oldest_change_ns: None,
            unflushed_since_ns: None,
            flush_is_due: false,
            failed: None,
            is_short_of_space: false,
            counters: Counters::default(),
            now_ns: 0,
        };
        let command = Command::Read { block: 0, buffer: Buffer::zeroed(BLOCK_SIZE) };
        files.push_io(command, Pending::Superblock);
        files
    }

    /// Whether it is open; an error number if it cannot be.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn is_open(&self) -> Result<bool, i32> {
        match self.state {
            State::Opening => Ok(false),
            State::Running(_) => Ok(true),
            State::Refused(errno) => Err(errno),
        }
    }

    /// Takes in an operation. `now` is the time that it sets.
    pub fn handle_request(&mut self, id: u64, request: Request, now: Time) {
        self.counters.requests += 1;
        if let Request::Settle = request {
            // All of it is at home.
            let (result, buffer) = (Err(libc::ENOTTY), Buffer::empty());
            self.responses.push_back(Response { id, result, buffer });
            return;
        }
        let work = Work::of(request);
        let task = Task::new(Some(id), work, now);
        if self.read_only() && task.work.changes_something() {
            self.responses.extend(task.answer(Err(libc::EROFS)));
            return;
        }
        let task = self.add_task(task);
        self.ready.push_back(task);
        self.run_ready();
    }

    /// The kernel forgets a node: so many lookups of it.
    pub fn forget(&mut self, inode: u64, lookups: u64) {
        let Some(known) = self.known.get_mut(&inode) else { return };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups == 0 {
            let is_dying = known.is_dying;
            self.known.remove(&inode);
            if is_dying {
                self.reap(inode);
                self.run_ready();
            }
        }
    }

    /// The clock, in nanoseconds from anywhere: lets changes go that have waited long enough. Returns
    /// when it wants to be told the time again.
    pub fn handle_time(&mut self, now_ns: u64) -> Option<u64> {
        self.now_ns = now_ns;
        if !matches!(self.state, State::Running(_)) || self.failed.is_some() {
            return None;
        }
        if self.has_changes() {
            let since = *self.oldest_change_ns.get_or_insert(now_ns);
            if now_ns.saturating_sub(since) >= SET_AGE_MAX_NS {
                self.submit_set(false);
            }
        }
        if self.is_durable() {
            self.unflushed_since_ns = None;
            return None;
        }
        let since = *self.unflushed_since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since) >= FLUSH_AGE_MAX_NS {
            self.unflushed_since_ns = Some(now_ns);
            let task = self.add_task(Task::of_itself(Work::Sync(None)));
            self.ready.push_back(task);
            self.run_ready();
        }
        let set = self.oldest_change_ns.map(|since| since + SET_AGE_MAX_NS);
        let flush = self.unflushed_since_ns.map(|since| since + FLUSH_AGE_MAX_NS);
        set.into_iter().chain(flush).min()
    }

    /// Submits what has changed; it need not be durable.
    pub fn submit_changes(&mut self) {
        if matches!(self.state, State::Running(_)) {
            self.submit_set(false);
        }
    }

    /// The next command for the volume.
    pub fn poll_io(&mut self) -> Option<Io> {
        self.ios.pop_front()
    }

    /// The next answer.
    pub fn poll_response(&mut self) -> Option<Response> {
        self.responses.pop_front()
    }

    /// A command is complete; its buffer comes back.
    pub fn handle_completion(&mut self, id: u32, result: Result<(), IoError>, buffer: Buffer) {
        let pending = self.pending[id as usize].take().expect("a command completes once");
        self.idle_pending.push(id);
        match pending {
            Pending::Superblock => self.handle_superblock(result, &buffer),
            Pending::Load { block, role } => self.handle_load(block, role, result, &buffer),
            Pending::Fetch { ticket, block } => {
                self.traffic.remove(id);
                self.owner(ticket).old.push((block, buffer));
                self.handle_piece(ticket, result);
            }
            Pending::Data { ticket, sequence } => {
                self.traffic.remove(id);
                self.order.complete(sequence, result.is_ok());
                self.note_failure(result);
                let owner = self.owner(ticket);
                if let Work::Write(write) = &mut owner.work
                    && write.payload.is_empty()
                {
                    write.payload = buffer;
                }
                self.handle_piece(ticket, result);
            }
            Pending::Gathered { sequence } => {
                self.order.complete(sequence, result.is_ok());
                self.note_failure(result);
                self.give_spare(buffer);
                self.handle_written(id);
            }
            Pending::Set { sequence, blocks } => {
                self.order.complete(sequence, result.is_ok());
                self.note_failure(result);
                self.handle_written(id);
                self.handle_set_written(&blocks, buffer);
            }
            Pending::Discard { sequence } => {
                self.order.complete(sequence, result.is_ok());
                self.note_failure(result);
                self.handle_written(id);
            }
            Pending::Flush => {
                self.counters.flushes += 1;
                self.order.end_flush(result.is_ok());
                self.note_failure(result);
            }
        }
        self.pump_flush();
        self.run_ready();
        if let State::Running(tree) = &mut self.state {
            // Everyone that waited for it was told.
            tree.cache.forget_failed_load();
        }
    }

    fn handle_superblock(&mut self, result: Result<(), IoError>, buffer: &[u8]) {
        let block: &Block = buffer.try_into().expect("a block was asked for");
        let superblock = result.map_err(IoError::errno).and_then(|()| {
            let decoded = Superblock::decode(block).map_err(|_| libc::EINVAL)?;
            if decoded.block_count > self.volume_blocks { Err(libc::EINVAL) } else { Ok(decoded) }
        });
        match superblock {
            Ok(superblock) => {
                let cache = Cache::new(self.options.cache_blocks);
                self.state = State::Running(Box::new(Tree::new(cache, superblock)));
                self.known.insert(ROOT_INODE, Known { lookups: 1, is_dying: false });
                if !self.options.read_only {
                    let task = self.add_task(Task::of_itself(Work::FindOrphans));
                    self.ready.push_front(task);
                }
            }
            Err(errno) => self.state = State::Refused(errno),
        }
    }

    fn handle_load(&mut self, block: u64, role: Role, result: Result<(), IoError>, buffer: &[u8]) {
        let data: &Block = buffer.try_into().expect("a block was asked for");
        let is_sound = role == Role::Bitmap || node::check(data, block).is_ok();
        let tree = self.tree();
        match result {
            Ok(()) if is_sound => tree.cache.handle_loaded(block, data),
            // It may have become something else meanwhile; then nobody asks for it again.
            Ok(()) | Err(IoError::Corrupt) => tree.cache.handle_damaged(block),
            // That may pass: the next operation asks for it again.
            Err(IoError::Failed(_)) if sings(Canary::PassingErrorStays) => {
                tree.cache.handle_damaged(block);
            }
            Err(IoError::Failed(errno)) => tree.cache.handle_failed_load(block, errno),
        }
        let waiting = self.waiting_for_blocks.remove(&block).unwrap_or_default();
        self.ready.extend(waiting);
    }

    /// The task that a command is out for.
    fn owner(&mut self, ticket: Ticket) -> &mut Task {
        let Ticket { task, generation } = ticket;
        assert_eq!(self.generations[task], generation, "no task ends while something of it is out");
        self.tasks[task].as_mut().expect("it waits")
    }

    pub(crate) fn ticket(&self, task: usize) -> Ticket {
        Ticket { task, generation: self.generations[task] }
    }

    fn handle_piece(&mut self, ticket: Ticket, result: Result<(), IoError>) {
        let owner = self.owner(ticket);
        owner.out -= 1;
        if let Err(error) = result {
            owner.failed.get_or_insert(error.errno());
        }
        if owner.out == 0 {
            self.ready.push_back(ticket.task);
        }
        self.ready.extend(self.waiting_for_traffic.drain(..));
    }

    /// Data that was gathered is in the volume.
    fn handle_written(&mut self, id: u32) {
        self.traffic.remove(id);
        self.ready.extend(self.waiting_for_traffic.drain(..));
    }

    fn note_failure(&mut self, result: Result<(), IoError>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error.errno());
        }
    }

    pub(crate) fn tree(&mut self) -> &mut Tree {
        match &mut self.state {
            State::Running(tree) => tree,
            _ => panic!("no operation runs before the file system is open"),
        }
    }

    /// The tree, and what is on its way.
    pub(crate) fn parts(&mut self) -> (&mut Tree, &Traffic) {
        match &mut self.state {
            State::Running(tree) => (tree, &self.traffic),
            _ => panic!("no operation runs before the file system is open"),
        }
    }

    fn add_task(&mut self, task: Task) -> usize {
        match self.idle_tasks.pop() {
            Some(id) => {
                self.tasks[id] = Some(task);
                self.generations[id] += 1;
                id
            }
            None => {
                self.tasks.push(Some(task));
                self.generations.push(0);
                self.tasks.len() - 1
            }
        }
    }

    pub(crate) fn push_io(&mut self, command: Command, pending: Pending) -> u32 {
        let id = self.idle_pending.pop().unwrap_or_else(|| {
            self.pending.push(None);
            self.pending.len() as u32 - 1
        });
        self.pending[id as usize] = Some(pending);
        self.ios.push_back(Io { id, command });
        id
    }

    /// Asks for data for a task.
    pub(crate) fn fetch(&mut self, id: usize, task: &mut Task, run: Run, buffer: Buffer) {
        self.counters.data_blocks_read += run.count;
        let command = Command::Read { block: run.block, buffer };
        let pending = Pending::Fetch { ticket: self.ticket(id), block: run.block };
        let io = self.push_io(command, pending);
        self.traffic.add_read(io, run);
        task.out += 1;
    }

    /// Runs everything that can go on.
    pub(crate) fn run_ready(&mut self) {
        if matches!(self.state, State::Opening) {
            return;
        }
        while let Some(id) = self.next_ready() {
            let Some(mut task) = self.tasks[id].take() else { continue };
            if task.out > 0 {
                self.tasks[id] = Some(task);
                continue;
            }
            let progress = match self.state {
                _ if task.ending.is_some() => {
                    task.ending.take().map_or(Progress::Waits, Progress::Ends)
                }
                State::Refused(errno) => Progress::Ends(Err(errno)),
                _ if self.failed.is_some() && task.work.changes_something() => {
                    Progress::Ends(Err(libc::EROFS))
                }
                // Reaping goes on: it would not come again before the next mount.
                _ if self.is_short_of_space
                    && task.work.changes_something()
                    && !matches!(task.work, Work::Reap(_)) =>
                {
                    Progress::Ends(Err(libc::ENOSPC))
                }
                _ => self.run(id, &mut task),
            };
            match progress {
                Progress::Waits => self.tasks[id] = Some(task),
                Progress::Yields => {
                    self.tasks[id] = Some(task);
                    self.ready.push_back(id);
                }
                Progress::Ends(result) if task.out > 0 && !sings(Canary::EndsWhileOut) => {
                    assert!(result.is_err(), "what succeeds has nothing out");
                    task.ending = Some(result);
                    self.tasks[id] = Some(task);
                }
                Progress::Ends(result) => {
                    self.locks.unlock(id, &mut self.ready);
                    self.idle_tasks.push(id);
                    self.responses.extend(task.answer(result));
                }
            }
        }
    }

    fn next_ready(&mut self) -> Option<usize> {
        if self.ready.is_empty() && std::mem::take(&mut self.flush_is_due) {
            self.pump_flush();
        }
        self.ready.pop_front()
    }

    /// Does a step, and undoes it if it stops. It may change no more than a set has room for.
    pub(crate) fn step<T>(
        &mut self,
        id: usize,
        step: impl FnOnce(&mut Tree, &Traffic) -> Step<T>,
    ) -> Settled<T> {
        let (tree, traffic) = self.parts();
        tree.begin();
        let result = step(tree, traffic);
        match result {
            Ok(value) => {
                assert!(
                    tree.cache.changed_in_step() <= STEP_BLOCKS_MAX,
                    "a step changes no more than a set has room for"
                );
                tree.commit();
                Settled::Done(Ok(value))
            }
            Err(stop) => {
                tree.roll_back();
                self.handle_stop(id, stop)
            }
        }
    }

    fn handle_stop<T>(&mut self, id: usize, stop: Stop) -> Settled<T> {
        match stop {
            Stop::Errno(errno) => {
                self.tree().cache.end_step();
                Settled::Done(Err(errno))
            }
            Stop::Miss(block, _) if block >= self.volume_blocks => {
                // Damage points there.
                self.tree().cache.handle_damaged(block);
                Settled::Again
            }
            Stop::Miss(block, role) => {
                self.load(block, role);
                // Once each: a listing waits for many blocks, and asks anew whenever one has come.
                let waiting = self.waiting_for_blocks.entry(block).or_default();
                if !waiting.contains(&id) {
                    waiting.push(id);
                }
                Settled::Later
            }
            Stop::Conflict => {
                self.submit_gathered();
                self.waiting_for_traffic.push(id);
                Settled::Later
            }
            Stop::Space if self.failed.is_some() => Settled::Done(Err(libc::EROFS)),
            Stop::Space => {
                self.submit_set(false);
                Settled::Again
            }
        }
    }

    /// Begins to load a block, if that is not under way.
    pub(crate) fn load(&mut self, block: u64, role: Role) {
        if self.waiting_for_blocks.contains_key(&block) || block >= self.volume_blocks {
            return;
        }
        self.waiting_for_blocks.insert(block, Vec::new());
        self.counters.loads += 1;
        let command = Command::Read { block, buffer: Buffer::zeroed(BLOCK_SIZE) };
        self.push_io(command, Pending::Load { block, role });
    }

    /// The step that was done counts: what comes later must not be seen before it.
    pub(crate) fn note_change(&mut self) {
        self.is_ordered = true;
        let now = self.now_ns;
        self.oldest_change_ns.get_or_insert(now);
    }

    /// One more lookup of a node was answered.
    pub(crate) fn know(&mut self, inode: u64) {
        self.known.entry(inode).or_default().lookups += 1;
    }

    /// A node has no name any more: it goes when nobody knows it.
    pub(crate) fn let_die(&mut self, inode: u64) {
        match self.known.get_mut(&inode) {
            Some(known) if !sings(Canary::NodeByPath) => known.is_dying = true,
            _ => self.reap(inode),
        }
    }

    /// A node without a name has got one.
    pub(crate) fn let_live(&mut self, inode: u64) {
        if let Some(known) = self.known.get_mut(&inode) {
            known.is_dying = false;
        }
    }

    pub(crate) fn reap(&mut self, inode: u64) {
        if self.read_only() {
            return;
        }
        let task = self.add_task(Task::of_itself(Work::Reap(inode)));
        self.ready.push_back(task);
    }
}
