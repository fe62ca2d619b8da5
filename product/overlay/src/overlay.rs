//! The state machine: what it holds, and who does what.

use crate::begun::Begun;
use crate::io::{Out, Task};
use crate::locks::Mode;
use crate::lower::{Found, Handle, Lower, Outcome, Status};
use crate::remembered::Remembered;
use crate::report::Shown;
use crate::settle::Settling;
use crate::store::Store;
use crate::sync::{Syncing, Waiter};
use coulter::buffer::Buffer;
use coulter_files::order::Order;
use coulter_files::{
    Attributes, Ending, FileService, Inode, Io, IoError, ROOT, Reply, Request, Response, Time,
};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::BorrowedFd;

/// What goes to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Remap {
    /// Overwrites of existing bytes that do not go on where the last write ended.
    #[default]
    Random,
    /// Every write.
    All,
    /// Nothing more; what is there is served and settled.
    Off,
}

impl Remap {
    /// The words for them.
    pub const NAMED: [(&'static str, Remap); 3] =
        [("random", Remap::Random), ("all", Remap::All), ("off", Remap::Off)];

    /// Its word.
    pub fn word(self) -> &'static str {
        let named = Remap::NAMED.iter().find(|(_, remap)| *remap == self);
        named.map_or("", |(word, _)| word)
    }
}

/// When blocks are brought home, apart from when a command asks for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SettleWhen {
    /// When nothing was asked for ten seconds, and when the store fills up.
    Idle,
    /// When the directory is unmounted, and when the store fills up.
    #[default]
    Unmount,
    /// Only when a write to a file in the store would find no room otherwise.
    Never,
}

impl SettleWhen {
    /// The words for them.
    pub const NAMED: [(&'static str, SettleWhen); 3] = [
        ("idle", SettleWhen::Idle),
        ("unmount", SettleWhen::Unmount),
        ("never", SettleWhen::Never),
    ];

    /// Its word.
    pub fn word(self) -> &'static str {
        let named = SettleWhen::NAMED.iter().find(|(_, when)| *when == self);
        named.map_or("", |(word, _)| word)
    }
}

/// How an overlay works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// What goes to the store.
    pub remap: Remap,
    /// When it comes home.
    pub settle: SettleWhen,
}

/// What was done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) requests: u64,
    pub(crate) in_place_writes: u64,
    pub(crate) remapped_writes: u64,
    pub(crate) adoptions: u64,
    pub(crate) flushes: u64,
    pub(crate) settled_files: u64,
    pub(crate) settled_bytes: u64,
}

/// A request that is not answered yet.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) id: u64,
    pub(crate) request: Request,
    pub(crate) now: Time,
    /// What it had to be durable before is.
    pub(crate) is_saved: bool,
}

impl Work {
    pub(crate) fn new(id: u64, request: Request, now: Time) -> Work {
        Work { id, request, now, is_saved: false }
    }
}

/// A node that the kernel knows.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) handle: Handle,
    pub(crate) lookups: u64,
    /// Where the last write ended, and how long the run of writes is that ended there.
    pub(crate) next_write: u64,
    pub(crate) run: u64,
    /// Something of it was changed below since it was synced, or may have been.
    pub(crate) is_touched: bool,
    /// How often that was so.
    pub(crate) touches: u64,
    /// It has no name any more, and is held.
    pub(crate) is_gone: bool,
}

/// See the crate's documentation.
pub struct Overlay<L: Lower> {
    pub(crate) lower: L,
    pub(crate) options: Options,
    pub(crate) store: Store,
    pub(crate) nodes: HashMap<u64, Node>,
    pub(crate) remembered: Remembered,
    pub(crate) tasks: Vec<Option<Task>>,
    pub(crate) idle_tasks: Vec<usize>,
    pub(crate) ios: VecDeque<Io>,
    pub(crate) pending: Vec<Option<Out>>,
    pub(crate) idle_pending: Vec<u32>,
    pub(crate) order: Order,
    /// Tasks that wait until all up to a sequence is durable.
    pub(crate) flush_waiters: Vec<(u64, usize)>,
    /// It says durably that it is open: before that nothing is done to the lower directory.
    pub(crate) is_open: bool,
    pub(crate) responses: VecDeque<Response>,
    /// Requests to be looked at.
    pub(crate) ready: VecDeque<Work>,
    /// Requests to make a node durable, and which: they are begun together at the end of the turn.
    pub(crate) syncs: Vec<(Waiter, u64)>,
    /// Nodes that are being made durable below, by number.
    pub(crate) syncing: HashMap<u64, Syncing>,
    /// Errors of syncs that no request had asked for, by node: the next sync of it tells.
    pub(crate) owed: HashMap<u64, i32>,
    /// What else goes on below, by its name.
    pub(crate) begun: HashMap<u64, Begun>,
    pub(crate) begun_count: u64,
    /// What waits, in its order, until the record of its file is there or says what is about to be done.
    pub(crate) held_back: HashMap<u64, Vec<Work>>,
    /// Records whose lock somebody left.
    pub(crate) unlocked: VecDeque<u32>,
    /// Writes that wait until there is room in the store.
    pub(crate) waiting_for_room: VecDeque<Work>,
    pub(crate) settling: Settling,
    /// Records that are to be forgotten when the lower file system is durable (R5), each once.
    pub(crate) forgettable: BTreeSet<u32>,
    /// Records whose lower file is not what they say (R9).
    pub(crate) orphans: BTreeSet<u32>,
    pub(crate) counters: Counters,
    /// What was shown of it last.
    pub(crate) shown: Shown,
    /// A write or a flush of the store failed: nothing is changed any more.
    pub(crate) failed: Option<i32>,
    /// The store has lacked space beneath it for long: writes are refused, and no sync waits.
    pub(crate) is_short_of_space: bool,
    pub(crate) is_ending: bool,
    /// The last mount was closed in order.
    pub(crate) was_clean: bool,
    pub(crate) now_ns: u64,
    pub(crate) last_request_ns: u64,
    pub(crate) unflushed_since_ns: Option<u64>,
    /// A flush that nobody asked for is under way, or waits for what it is to cover.
    pub(crate) is_flushing_by_itself: bool,
    pub(crate) forgettable_since_ns: Option<u64>,
}

impl<L: Lower> Overlay<L> {
    pub(crate) fn new(lower: L, store: Store, options: Options) -> Overlay<L> {
        let root = Node {
            handle: lower.root(),
            lookups: 1,
            next_write: 0,
            run: 0,
            is_touched: true,
            touches: 0,
            is_gone: false,
        };
        Overlay {
            lower,
            options,
            store,
            nodes: HashMap::from([(ROOT, root)]),
            remembered: Remembered::default(),
            tasks: Vec::new(),
            idle_tasks: Vec::new(),
            ios: VecDeque::new(),
            pending: Vec::new(),
            idle_pending: Vec::new(),
            order: Order::default(),
            flush_waiters: Vec::new(),
            is_open: false,
            responses: VecDeque::new(),
            ready: VecDeque::new(),
            syncs: Vec::new(),
            syncing: HashMap::new(),
            owed: HashMap::new(),
            begun: HashMap::new(),
            begun_count: 0,
            held_back: HashMap::new(),
            unlocked: VecDeque::new(),
            waiting_for_room: VecDeque::new(),
            settling: Settling::default(),
            forgettable: BTreeSet::new(),
            orphans: BTreeSet::new(),
            counters: Counters::default(),
            shown: Shown::default(),
            failed: None,
            is_short_of_space: false,
            is_ending: false,
            was_clean: true,
            now_ns: 0,
            last_request_ns: 0,
            unflushed_since_ns: None,
            is_flushing_by_itself: false,
            forgettable_since_ns: None,
        }
    }

    /// The lower directory.
    pub fn lower(&self) -> &L {
        &self.lower
    }

    /// What names a node below.
    pub(crate) fn handle_of(&self, number: u64) -> Outcome<Handle> {
        self.nodes.get(&number).map(|node| node.handle).ok_or(libc::ESTALE)
    }

    /// The number of a node for the kernel.
    pub(crate) fn number_of(&self, found: &Found) -> Outcome<u64> {
        if found.handle == self.lower.root() {
            return Ok(ROOT);
        }
        // Its number is the root's here; no file system gives it to what can be seen.
        if found.status.number == ROOT { Err(libc::EOVERFLOW) } else { Ok(found.status.number) }
    }

    /// Counts one lookup of a node by the kernel.
    pub(crate) fn know(&mut self, found: &Found) -> Outcome<Attributes> {
        let number = self.number_of(found)?;
        let handle = found.handle;
        let fresh = Node {
            handle,
            lookups: 0,
            next_write: 0,
            run: 0,
            is_touched: true,
            touches: 0,
            is_gone: false,
        };
        let node = self.nodes.entry(number).or_insert(fresh);
        if node.handle != handle {
            // Another file has its number: whoever took the old one away did not ask here.
            // The kernel forgets both by the one number, each as often as it was looked up.
            let touches = node.touches + 1;
            *node = Node { handle, is_touched: true, touches, is_gone: false, ..*node };
        }
        node.lookups += 1;
        Ok(self.view(number, &handle, &found.status))
    }

    /// Notes that something of a node was changed below.
    pub(crate) fn touch(&mut self, number: u64) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.is_touched = true;
            node.touches += 1;
        }
    }

    pub(crate) fn attributes(&mut self, number: u64) -> Outcome<Attributes> {
        let handle = self.handle_of(number)?;
        let status = self.lower.status(&handle)?;
        Ok(self.view(number, &handle, &status))
    }

    /// What the mount shows of a node.
    pub(crate) fn view(&self, number: u64, handle: &Handle, status: &Status) -> Attributes {
        let mut inode = Inode {
            mode: status.mode,
            uid: status.uid,
            gid: status.gid,
            links: status.links,
            size: status.size,
            blocks: status.sectors.div_ceil(8),
            parent: 0,
            device: status.device,
            flags: 0,
            accessed: status.accessed,
            modified: status.modified,
            changed: status.changed,
            born: status.born,
            generation: handle.generation(),
        };
        if let Some(record) = self.store.record_of(number, handle) {
            let record = &self.store.adopted(record).record;
            inode.size = record.size;
            inode.modified = record.modified;
            let (ours, theirs) = (record.modified, status.changed);
            if (ours.seconds, ours.nanoseconds) > (theirs.seconds, theirs.nanoseconds) {
                inode.changed = ours;
            }
        }
        Attributes { number, inode }
    }

    /// Does what can be done, and shows what has become of it.
    pub(crate) fn run(&mut self) {
        self.run_all();
        self.show();
    }

    fn run_all(&mut self) {
        // The first flush of a mount comes back, or fails.
        while self.is_open {
            if let Some(record) = self.unlocked.pop_front() {
                self.grant(record);
            } else if let Some(work) = self.ready.pop_front() {
                self.execute(work);
            } else if !self.settle_next() {
                return;
            }
        }
    }

    /// Begins a request.
    fn execute(&mut self, work: Work) {
        if self.failed.is_some() && changes_content(&work.request) {
            return self.refuse(work, libc::EROFS);
        }
        if self.is_short_of_space && needs_space(&work.request) {
            return self.refuse(work, libc::ENOSPC);
        }
        let Some(number) = content_of(&work.request) else { return self.execute_names(work) };
        if self.is_held_back(number, &work.request) {
            return self.hold_back(number, work);
        }
        let record = self.nodes.get(&number).map(|node| node.handle);
        let record = record.and_then(|handle| self.store.record_of(number, &handle));
        let Some(record) = record else { return self.execute_plain(work) };
        if crate::is_broken("R4") && matches!(work.request, Request::Write { .. }) {
            return self.execute_plain(work);
        }
        if self.store.adopted(record).fault.is_some() {
            return self.refuse(work, libc::EIO);
        }
        match self.mode_of(record, &work.request) {
            Some(mode) => {
                if let Some(work) = self.lock(record, mode, work) {
                    self.execute_locked(record, mode, work);
                }
            }
            None => self.execute_whole(record, work),
        }
    }

    /// What touches the content of a file of which no block is here.
    fn execute_plain(&mut self, work: Work) {
        let Work { id, request, now, .. } = work;
        match request {
            Request::Read { inode, offset, length, buffer } => {
                self.read(id, inode, offset, length, buffer);
            }
            request @ Request::Write { .. } => self.write(Work::new(id, request, now)),
            request => self.execute_other(Work::new(id, request, now)),
        }
    }

    /// Serves a request that has the lock of a file with blocks in the store: `end` gives it back.
    pub(crate) fn execute_locked(&mut self, record: u32, mode: Mode, work: Work) {
        let number = self.store.adopted(record).record.number;
        if self.is_held_back(number, &work.request) {
            self.unlock(record, mode);
            return self.hold_back(number, work);
        }
        let Work { id, request, now, .. } = work;
        let place = (id, record, mode);
        match request {
            Request::Read { offset, length, buffer, .. } => {
                self.read_adopted(place, (offset, length), buffer);
            }
            request @ Request::Write { .. } => self.write_adopted(place, request, now),
            request => self.resize_adopted(place, &request, now),
        }
    }

    /// Answers with an error.
    pub(crate) fn refuse(&mut self, work: Work, errno: i32) {
        let buffer = match work.request {
            Request::Read { buffer, .. } | Request::Write { buffer, .. } => buffer,
            _ => Buffer::empty(),
        };
        self.end(Some(work.id), None, Err(errno), buffer);
    }

    pub(crate) fn answer(&mut self, id: u64, result: Result<Reply, i32>) {
        self.end(Some(id), None, result, Buffer::empty());
    }
}

/// The file whose content a request is about.
fn content_of(request: &Request) -> Option<u64> {
    match request {
        Request::Read { inode, .. }
        | Request::Write { inode, .. }
        | Request::Allocate { inode, .. }
        | Request::Seek { inode, .. } => Some(*inode),
        Request::Change { inode, changes } if changes.size.is_some() => Some(*inode),
        Request::Copy { from, .. } => Some(*from),
        _ => None,
    }
}

/// Requests that read content also stand in [`Overlay::is_held_back`].
fn changes_content(request: &Request) -> bool {
    !matches!(
        request,
        Request::Read { .. }
            | Request::Seek { .. }
            | Request::Lookup { .. }
            | Request::Attributes { .. }
            | Request::ReadLink { .. }
            | Request::List { .. }
            | Request::Xattr { .. }
            | Request::XattrNames { .. }
            | Request::Statistics
    )
}

/// Requests that may free space are not among them.
fn needs_space(request: &Request) -> bool {
    let is_data = matches!(request, Request::Write { .. } | Request::Copy { .. });
    is_data || matches!(request, Request::Allocate { .. })
}

impl<L: Lower> FileService for Overlay<L> {
    fn handle_request(&mut self, id: u64, request: Request, now: Time) {
        self.counters.requests += 1;
        self.last_request_ns = self.now_ns;
        self.ready.push_back(Work::new(id, request, now));
        self.run();
    }

    fn handle_end(&mut self, id: u64, ending: Ending, _now: Time) {
        self.sync_nodes();
        if self.options.settle == SettleWhen::Unmount && ending == Ending::Unmounted {
            self.settle_at_end(id);
        } else {
            self.finish(id);
        }
        self.run();
    }

    fn forget(&mut self, inode: u64, lookups: u64) {
        self.forget_node(inode, lookups);
        self.run();
    }

    fn handle_time(&mut self, now_ns: u64) -> Option<u64> {
        self.sync_nodes();
        let next = self.tick(now_ns);
        self.run();
        next
    }

    fn handle_wake(&mut self) {
        if self.take_synced() {
            self.run();
        }
    }

    fn handle_space(&mut self, is_short: bool) {
        if std::mem::replace(&mut self.is_short_of_space, is_short) != is_short && is_short {
            self.refuse_syncs(libc::ENOSPC);
            self.run();
        }
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.lower.synced_fd()
    }

    fn poll_io(&mut self) -> Option<Io> {
        self.ios.pop_front()
    }

    fn handle_completion(&mut self, id: u32, result: Result<(), IoError>, buffer: Buffer) {
        self.complete(id, result, buffer);
        self.run();
    }

    fn poll_response(&mut self) -> Option<Response> {
        self.responses.pop_front()
    }

    fn is_quiet(&self) -> bool {
        self.idle_tasks.len() == self.tasks.len()
            && self.ios.is_empty()
            && self.syncs.is_empty()
            && self.syncing.is_empty()
            && self.begun.is_empty()
            && self.settling.is_quiet()
            && self.idle_pending.len() == self.pending.len()
    }
}
