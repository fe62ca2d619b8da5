//! A volume as it really is: the engine on a simulated device, whose power can be cut after each
//! command.
//!
//! Requests reach the engine in the order in which the file system gave them. Device commands
//! complete one at a time, and after each one that changes the device, what is on it can be kept.

use super::{BLOCK_SIZE, Backend};
use coulter::buffer::Buffer;
use coulter_engine::{BufferRef, Change, ChangeKind, Command as DeviceCommand, Phase, Request};
use coulter_files::{Command, Io};
use coulter_format::Lba;
use coulter_sim::device::Device;
use coulter_sim::hand::{self, Hand};
use std::collections::{BTreeMap, VecDeque};

/// Segments of a test's store, 1 MiB each.
const SEGMENTS: u64 = 20;
/// Pages of its journal.
const JOURNAL: u32 = 1024;
/// Runs that its checkpoints may hold.
const RUNS: u32 = 8;

/// What the device holds between two commands.
pub struct Cut {
    pub device: Device,
    /// A flush comes next: what is durable now stays as it is until then.
    pub before_flush: bool,
    /// The state of the tree that the last sync before it covered, by its number.
    pub synced: usize,
}

struct Out {
    io: u32,
    buffer: Buffer,
    /// Where a read's blocks arrive.
    target: Option<BufferRef>,
}

/// The engine, its device, and what the file system has asked for.
pub struct OnEngine {
    hand: Hand,
    /// Not yet taken in by the engine.
    waiting: VecDeque<Io>,
    /// By the engine's number of the request.
    out: BTreeMap<u64, Out>,
    /// Every state of the device since [`OnEngine::watch`].
    pub cuts: Vec<Cut>,
    watched: bool,
    /// The state of the tree that the last sync covered, as the test numbers them.
    pub synced: usize,
}

impl OnEngine {
    /// A new store with an empty file system on it.
    pub fn empty() -> Device {
        let device = hand::store(SEGMENTS, JOURNAL, None, None, RUNS);
        let mut hand = Hand::open(device, hand::small());
        let volume_size = hand.engine.geometry().volume_size;
        for (lba, block) in (0..).zip(super::empty(volume_size)) {
            let buffer = hand.memory.add_host(vec![block]);
            let request = Request::Write { lba: Lba(lba), count: 1, buffer, fua: false };
            hand.submit(request).expect("a new store takes a block");
            hand.memory.take_host(buffer);
            hand.run();
        }
        hand.flush().expect("an answer").expect("durable");
        hand.device
    }

    /// Opens the store that is on a device.
    pub fn open(device: Device) -> OnEngine {
        let hand = Hand::open(device, hand::small());
        assert_eq!(hand.engine.phase(), Phase::Running, "the store opens");
        OnEngine {
            hand,
            waiting: VecDeque::new(),
            out: BTreeMap::new(),
            cuts: Vec::new(),
            watched: false,
            synced: 0,
        }
    }

    /// From now on each state of the device is kept.
    pub fn watch(&mut self) {
        self.watched = true;
        self.keep(false);
    }

    /// What is on the device.
    pub fn device(&self) -> &Device {
        &self.hand.device
    }

    /// What is durable in the end is kept too.
    pub fn keep_last(&mut self) {
        self.keep(true);
    }

    /// What the file system's checker finds, and inodes that wait to be taken away.
    pub fn check(&mut self) -> (Vec<String>, u64) {
        let blocks = self.block_count();
        let mut read = |block: u64| Ok::<_, ()>(self.block(block));
        let report = coulter_check::files::check(&mut read, blocks);
        let findings = report.findings.iter().map(ToString::to_string).collect();
        (findings, report.counters.orphans)
    }

    /// The volume's content as a checker reads it.
    fn block(&mut self, block: u64) -> [u8; BLOCK_SIZE] {
        let buffer = self.hand.memory.add_host(vec![[0; BLOCK_SIZE]]);
        let request = Request::Read { lba: Lba(block), count: 1, buffer };
        let id = self.hand.submit(request).expect("it is idle");
        self.hand.run();
        self.hand.answers.remove(&id).expect("an answer").expect("sound");
        self.hand.memory.take_host(buffer)[0]
    }

    fn keep(&mut self, before_flush: bool) {
        let (device, synced) = (self.hand.device.clone(), self.synced);
        self.cuts.push(Cut { device, before_flush, synced });
    }

    /// Gives the engine what it has room for, in order.
    fn offer(&mut self) {
        while let Some(Io { id, command }) = self.waiting.pop_front() {
            if let Err(command) = self.offer_one(id, command) {
                self.waiting.push_front(Io { id, command });
                return;
            }
        }
    }

    fn offer_one(&mut self, io: u32, command: Command) -> Result<(), Command> {
        let stored = match &command {
            Command::Write { buffer, .. } | Command::WriteMany { buffer, .. } => blocks(buffer),
            Command::Read { buffer, .. } => vec![[0; BLOCK_SIZE]; buffer.len() / BLOCK_SIZE],
            Command::Discard { .. } | Command::Flush => Vec::new(),
        };
        let is_read = matches!(command, Command::Read { .. });
        let count = stored.len() as u32;
        let target = self.hand.memory.add_host(stored);
        let changes: Vec<Change> = match &command {
            Command::WriteMany { changes, .. } => changes.iter().map(change).collect(),
            _ => Vec::new(),
        };
        let request = match &command {
            Command::Read { block, .. } => {
                Request::Read { lba: Lba(*block), count, buffer: target }
            }
            Command::Write { block, .. } => {
                Request::Write { lba: Lba(*block), count, buffer: target, fua: false }
            }
            Command::WriteMany { fua, .. } => {
                Request::WriteMany { changes: &changes, buffer: target, fua: *fua }
            }
            Command::Discard { block, count } => {
                Request::Discard { lba: Lba(*block), count: *count, fua: false }
            }
            Command::Flush => Request::Flush,
        };
        let taken = self.hand.submit(request);
        if !(is_read && taken.is_some()) {
            self.hand.memory.take_host(target);
        }
        let Some(id) = taken else { return Err(command) };
        let (buffer, target) = match command {
            Command::Read { buffer, .. } => (buffer, Some(target)),
            Command::Write { buffer, .. } | Command::WriteMany { buffer, .. } => (buffer, None),
            Command::Discard { .. } | Command::Flush => (Buffer::empty(), None),
        };
        self.out.insert(id, Out { io, buffer, target });
        Ok(())
    }

    fn answer(&mut self) -> Option<(u32, Buffer)> {
        let (id, result) = self.hand.answers.pop_first()?;
        result.expect("the device does what it is asked to");
        let Out { io, mut buffer, target } = self.out.remove(&id).expect("it was asked for");
        if let Some(target) = target {
            let blocks = self.hand.memory.take_host(target);
            buffer.copy_from_slice(blocks.as_flattened());
        }
        Some((io, buffer))
    }
}

fn blocks(buffer: &Buffer) -> Vec<[u8; BLOCK_SIZE]> {
    buffer.as_chunks().0.to_vec()
}

fn change(change: &coulter_files::Change) -> Change {
    let kind = if change.discard { ChangeKind::Discard } else { ChangeKind::Write };
    Change { lba: Lba(change.block), count: change.count as u32, kind }
}

impl Backend for OnEngine {
    fn block_count(&self) -> u64 {
        self.hand.engine.geometry().volume_size
    }

    fn submit(&mut self, io: Io) {
        self.waiting.push_back(io);
        self.offer();
        self.hand.poll();
    }

    /// Device commands complete until something is answered.
    fn complete(&mut self) -> Option<(u32, Buffer)> {
        loop {
            self.offer();
            self.hand.poll();
            if let Some(answer) = self.answer() {
                return Some(answer);
            }
            let (io, _) = self.hand.out.first()?;
            let (changes, flushes) = match io.command {
                DeviceCommand::Write { .. } | DeviceCommand::Discard { .. } => (true, false),
                DeviceCommand::Flush => (false, true),
                DeviceCommand::Read { .. } | DeviceCommand::Prepare { .. } => (false, false),
            };
            if flushes && self.watched {
                self.keep(true);
            }
            self.hand.complete(0, Ok(()));
            if changes && self.watched {
                self.keep(false);
            }
        }
    }
}
