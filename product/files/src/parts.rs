//! The parts of a file system, which own their state, and what takes more than one of them.

use crate::canary::{Canary, sings};
use crate::desk::{Desk, Ticket};
use crate::flushes::Flushes;
use crate::io::{Command, IoError};
use crate::loads::Loads;
use crate::locks::Locks;
use crate::nodes::Nodes;
use crate::sets::{STEP_BLOCKS_MAX, Sets};
use crate::stop::{Role, Settled, Step, Stop};
use crate::task::{Task, Work};
use crate::traffic::Traffic;
use crate::tree::Tree;
use coulter::buffer::Buffer;
use coulter_format::files::node;
use coulter_format::{BLOCK_SIZE, Block};

/// Figures of the work done so far.
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

/// The purpose of a command that is out.
pub(crate) enum Purpose {
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

impl Purpose {
    /// The sequence of what changes the volume.
    pub(crate) fn sequence(&self) -> Option<u64> {
        match self {
            Purpose::Data { sequence, .. }
            | Purpose::Gathered { sequence }
            | Purpose::Set { sequence, .. }
            | Purpose::Discard { sequence } => Some(*sequence),
            Purpose::Superblock | Purpose::Load { .. } | Purpose::Fetch { .. } | Purpose::Flush => {
                None
            }
        }
    }
}

/// Why changes are refused, if they are.
#[derive(Default)]
pub(crate) struct Health {
    /// A write or a flush failed: nothing is changed any more.
    failed: Option<i32>,
    /// The volume has lacked space beneath it for long: changes are refused, and no sync waits.
    is_short_of_space: bool,
}

impl Health {
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    pub(crate) fn is_short_of_space(&self) -> bool {
        self.is_short_of_space
    }

    /// Takes in how a command ended that changes the volume.
    fn note(&mut self, result: Result<(), IoError>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error.errno());
        }
    }

    /// Takes in if the volume lacks space; true if it does so from now on.
    pub(crate) fn note_space(&mut self, is_short: bool) -> bool {
        std::mem::replace(&mut self.is_short_of_space, is_short) != is_short && is_short
    }
}

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Parts {
    /// Names, attributes, places of data and free space, once the file system is open.
    tree: Option<Box<Tree>>,
    volume_blocks: u64,
    read_only: bool,
    pub(crate) desk: Desk<Task, Purpose>,
    pub(crate) nodes: Nodes,
    pub(crate) locks: Locks,
    pub(crate) loads: Loads,
    pub(crate) sets: Sets,
    pub(crate) flushes: Flushes,
    pub(crate) traffic: Traffic,
    pub(crate) health: Health,
    pub(crate) counters: Counters,
}

impl Parts {
    pub(crate) fn new(volume_blocks: u64, read_only: bool) -> Parts {
        Parts { volume_blocks, read_only, ..Parts::default() }
    }

    /// The file system is open: its tree is this one.
    pub(crate) fn open(&mut self, tree: Tree) {
        assert!(self.tree.is_none(), "a file system is opened once");
        self.tree = Some(Box::new(tree));
        self.nodes.open();
    }

    /// The tree, if the file system is open.
    pub(crate) fn opened(&self) -> Option<&Tree> {
        self.tree.as_deref()
    }

    pub(crate) fn volume_blocks(&self) -> u64 {
        self.volume_blocks
    }

    pub(crate) fn tree(&mut self) -> &mut Tree {
        self.tree.as_mut().expect("no operation runs before the file system is open")
    }

    /// True if changes are refused: as it was opened, or after a failure.
    pub(crate) fn read_only(&self) -> bool {
        self.read_only || self.health.has_failed()
    }

    /// Does a step, and undoes it if it stops. It may change no more than a set has room for.
    pub(crate) fn step<T>(
        &mut self,
        id: usize,
        step: impl FnOnce(&mut Tree, &Traffic) -> Step<T>,
    ) -> Settled<T> {
        let tree = self.tree.as_mut().expect("no operation runs before the file system is open");
        tree.begin();
        match step(tree, &self.traffic) {
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
                assert!(errno > 0, "an error has a number");
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
                self.loads.wait(block, id);
                Settled::Later
            }
            Stop::Conflict => {
                self.submit_gathered();
                self.traffic.wait(id);
                Settled::Later
            }
            Stop::Space if self.health.has_failed() => Settled::Done(Err(libc::EROFS)),
            Stop::Space => {
                self.submit_set(false);
                Settled::Again
            }
        }
    }

    /// Begins to load a block, if that is not under way.
    fn load(&mut self, block: u64, role: Role) {
        assert!(block < self.volume_blocks, "a block that is loaded is one of the volume");
        if self.loads.begin(block) {
            self.counters.loads += 1;
            let command = Command::Read { block, buffer: Buffer::zeroed(BLOCK_SIZE) };
            self.desk.give(command, Purpose::Load { block, role });
        }
    }

    fn handle_load(&mut self, block: u64, role: Role, result: Result<(), IoError>, buffer: &[u8]) {
        let data: &Block = buffer.try_into().expect("a block was asked for");
        let is_sound = role == Role::Bitmap || node::check(data, block).is_ok();
        let tree = self.tree();
        match result {
            Ok(()) if is_sound => tree.cache.handle_loaded(block, data),
            // It may have become something else meanwhile; then it is not asked for again.
            Ok(()) | Err(IoError::Corrupt) => tree.cache.handle_damaged(block),
            // That may pass: the next operation asks for it again.
            Err(IoError::Failed(_)) if sings(Canary::PassingErrorStays) => {
                tree.cache.handle_damaged(block);
            }
            Err(IoError::Failed(errno)) => tree.cache.handle_failed_load(block, errno),
        }
        let waiting = self.loads.end(block);
        self.desk.wake_all(waiting);
    }

    /// A command is complete that was for something other than opening.
    pub(crate) fn handle_completion(
        &mut self,
        id: u32,
        purpose: Purpose,
        result: Result<(), IoError>,
        buffer: Buffer,
    ) {
        if let Some(sequence) = purpose.sequence() {
            self.flushes.complete(sequence, result.is_ok());
            self.health.note(result);
        }
        match purpose {
            Purpose::Superblock => unreachable!("it is complete before anything else begins"),
            Purpose::Load { block, role } => self.handle_load(block, role, result, &buffer),
            Purpose::Fetch { ticket, block } => {
                self.desk.owner(ticket).old.push((block, buffer));
                self.handle_piece(id, ticket, result);
            }
            Purpose::Data { ticket, .. } => {
                if let Work::Write(write) = &mut self.desk.owner(ticket).work
                    && write.payload.is_empty()
                {
                    write.payload = buffer;
                }
                self.handle_piece(id, ticket, result);
            }
            Purpose::Gathered { .. } => {
                self.sets.give_spare(buffer);
                self.end_traffic(id);
            }
            Purpose::Set { blocks, .. } => {
                self.end_traffic(id);
                self.tree().cache.handle_written(&blocks);
                self.sets.give_spare(buffer);
            }
            Purpose::Discard { .. } => self.end_traffic(id),
            Purpose::Flush => {
                self.counters.flushes += 1;
                self.flushes.end(result.is_ok());
                self.health.note(result);
            }
        }
    }

    fn handle_piece(&mut self, id: u32, ticket: Ticket, result: Result<(), IoError>) {
        let owner = self.desk.owner(ticket);
        assert!(owner.out > 0, "a task counts what is out for it");
        owner.out -= 1;
        if let Err(error) = result {
            owner.failed.get_or_insert(error.errno());
        }
        if owner.out == 0 {
            self.desk.wake(ticket.task);
        }
        self.end_traffic(id);
    }

    /// Data is in the volume, or has come from it.
    fn end_traffic(&mut self, id: u32) {
        self.traffic.remove(id);
        self.desk.wake_all(self.traffic.take_waiting());
    }

    /// The step that was done counts: what comes later must not be seen before it.
    pub(crate) fn note_change(&mut self) {
        self.sets.note_change(self.desk.now_ns());
    }

    /// A node has no name any more: it goes when the kernel does not know it.
    pub(crate) fn let_die(&mut self, inode: u64) {
        if self.nodes.let_die(inode) {
            self.reap(inode);
        }
    }

    /// A task takes away what an inode has too much.
    pub(crate) fn reap(&mut self, inode: u64) {
        if self.read_only() {
            return;
        }
        self.nodes.begin_reaping(inode);
        let task = self.desk.add(Task::of_itself(Work::Reap(inode)));
        self.desk.wake(task);
    }

    /// The task gives up its locks.
    pub(crate) fn unlock(&mut self, id: usize) {
        let Parts { locks, desk, .. } = self;
        locks.unlock(id, |waiter| desk.wake(waiter));
    }

    /// A task has ended.
    pub(crate) fn end(&mut self, id: usize, task: &Task) {
        assert!(task.out == 0 || sings(Canary::EndsWhileOut), "what ends has nothing out");
        self.unlock(id);
        match task.work {
            Work::Reap(inode) => self.nodes.end_reaping(inode),
            Work::Sync(_) => self.flushes.stop_waiting(id),
            _ => {}
        }
        self.desk.end(id);
    }

    /// Begins a flush if a task waits for one, and lets those go on who have what they waited
    /// for.
    pub(crate) fn pump_flush(&mut self) {
        let is_refused = self.health.has_failed() || self.health.is_short_of_space();
        let Parts { flushes, desk, .. } = self;
        if flushes.pump(is_refused, |task| desk.wake(task)) {
            self.desk.give(Command::Flush, Purpose::Flush);
        }
    }

    /// True if there are changes that were not submitted.
    pub(crate) fn has_changes(&self) -> bool {
        let is_changed = |tree: &Tree| tree.cache.dirty_count() > 0 || tree.space.holds_any();
        !self.traffic.gathered.is_empty() || self.opened().is_some_and(is_changed)
    }

    /// True if everything that was answered is durable.
    pub(crate) fn is_durable(&self) -> bool {
        self.tree.is_none() || (!self.has_changes() && self.flushes.order().is_clean())
    }
}
