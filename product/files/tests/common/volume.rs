//! A volume in plain memory: it takes commands in order and completes them late.
//!
//! After a crash it holds a prefix of what it was given, no shorter than what was durable. A read
//! beside a write which is out sees the block before or after it. A flush covers what had completed
//! when it was given. After a command that failed no later one takes effect.

use super::Backend;
use coulter::buffer::Buffer;
use coulter_files::{BLOCK_SIZE, Change, Command, CreateOptions, Io, IoError, Time, create};
use coulter_workload::Random;
use std::collections::BTreeMap;
use std::rc::Rc;

pub type Block = [u8; BLOCK_SIZE];
type Content = BTreeMap<u64, Rc<Block>>;

/// Changes that take effect together.
#[derive(Clone, Default)]
pub struct Step {
    writes: Vec<(u64, Option<Rc<Block>>)>,
    runs: Vec<(u64, u64)>,
    pub is_durable: bool,
}

/// The first blocks of an empty file system.
pub fn empty(block_count: u64) -> Vec<Block> {
    let options = CreateOptions {
        block_count,
        uuid: [1; 16],
        hash_seed: [2; 16],
        label: [0; 64],
        owner: (0, 0),
        now: Time::default(),
    };
    create(&options).expect("the size is allowed").to_vec()
}

#[derive(Clone)]
pub struct Volume {
    pub block_count: u64,
    /// With everything that was submitted.
    new: Content,
    /// With what is complete.
    old: Content,
    /// All that was submitted, in order, since the start.
    pub log: Vec<Step>,
    start: Content,
    /// Steps of the log that a crash cannot take away.
    pub durable: usize,
    /// The step of the log from which on everything fails.
    failed_from: Option<usize>,
    /// The last complete step that changed a block.
    newest: BTreeMap<u64, usize>,
    /// Steps of the log up to the last one that is complete.
    last: usize,
}

fn apply(content: &mut Content, step: &Step) {
    for (first, count) in &step.runs {
        let gone: Vec<u64> =
            content.range(*first..first + count).map(|(block, _)| *block).collect();
        for block in gone {
            content.remove(&block);
        }
    }
    for (block, data) in &step.writes {
        match data {
            Some(data) => content.insert(*block, data.clone()),
            None => content.remove(block),
        };
    }
}

impl Volume {
    pub fn new(block_count: u64) -> Volume {
        let start: Content =
            (0..).zip(empty(block_count)).map(|(block, data)| (block, Rc::new(data))).collect();
        Volume::holding(block_count, start)
    }

    fn holding(block_count: u64, start: Content) -> Volume {
        let (new, old) = (start.clone(), start.clone());
        let (log, newest) = (Vec::new(), BTreeMap::new());
        Volume { block_count, new, old, log, start, durable: 0, failed_from: None, newest, last: 0 }
    }

    /// Steps of the log that a crash may leave at most.
    pub fn end(&self) -> usize {
        self.failed_from.unwrap_or(self.log.len())
    }

    /// A step is complete; another one after it may be already.
    fn complete(&mut self, index: usize) {
        let Volume { log, old, newest, .. } = self;
        let gone = log[index].runs.iter().flat_map(|(first, count)| *first..first + count);
        let written = log[index].writes.iter().map(|(block, data)| (*block, data.as_ref()));
        for (block, data) in gone.map(|block| (block, None)).chain(written) {
            if newest.get(&block).is_some_and(|newest| *newest > index) {
                continue;
            }
            newest.insert(block, index);
            match data {
                Some(data) => old.insert(block, Rc::clone(data)),
                None => old.remove(&block),
            };
        }
        self.last = self.last.max(index + 1);
        if log[index].is_durable {
            self.durable = self.durable.max(index + 1);
        }
    }

    /// The volume after a crash that kept the first `count` steps.
    pub fn cut(&self, count: usize) -> Volume {
        let mut content = self.start.clone();
        self.log[..count].iter().for_each(|step| apply(&mut content, step));
        Volume::holding(self.block_count, content)
    }

    pub fn block(&self, block: u64) -> Block {
        self.new.get(&block).map_or([0; BLOCK_SIZE], |data| **data)
    }

    pub fn mapped(&self) -> impl Iterator<Item = u64> + '_ {
        self.new.keys().copied()
    }

    pub fn set_block(&mut self, block: u64, data: Block) {
        self.new.insert(block, Rc::new(data));
        self.old.insert(block, Rc::new(data));
        self.start.insert(block, Rc::new(data));
    }
}

struct Out {
    io: u32,
    buffer: Buffer,
    kind: Kind,
}

enum Kind {
    Read(u64),
    Write(usize),
    /// Covers steps of the log.
    Flush(usize),
}

/// A volume and the commands that are out.
pub struct InMemory {
    pub volume: Volume,
    out: Vec<Out>,
    random: Random,
    /// A block that cannot be read.
    pub(super) damaged: Option<u64>,
    /// Commands that fail from now on.
    pub fails: Option<Fails>,
    /// Commands that are out and will fail.
    failed: BTreeMap<u32, IoError>,
    /// Commands complete in any order.
    pub is_late: bool,
    /// Nothing that changes the volume completes.
    pub holds_changes: bool,
}

/// Commands that fail, all of a kind.
#[derive(Clone, Copy, Debug)]
pub enum Fails {
    Reads(IoError),
    Writes(IoError),
    Flushes(IoError),
    /// Writes and flushes.
    Changes(IoError),
}

impl InMemory {
    pub fn new(volume: Volume, seed: u64) -> InMemory {
        let (random, failed) = (Random::new(seed), BTreeMap::new());
        InMemory {
            volume,
            out: Vec::new(),
            random,
            damaged: None,
            fails: None,
            failed,
            is_late: false,
            holds_changes: false,
        }
    }

    /// Steps of the log before the first that is out.
    fn completed(&self) -> usize {
        let out = self.out.iter().filter_map(|out| match out.kind {
            Kind::Write(index) => Some(index),
            _ => None,
        });
        out.min().unwrap_or(self.volume.log.len())
    }

    /// Commands that are out.
    pub fn out_count(&self) -> usize {
        self.out.len()
    }

    /// From some command on that is out, or else from the next one on, all that changes something
    /// fails: none that has completed, for those are read from then on.
    pub fn fail_from_here(&mut self, error: IoError) {
        let first = self.volume.last;
        let rest = self.volume.log.len() - first;
        let from = first + self.random.below(rest as u64 + 1) as usize;
        for out in &self.out {
            if matches!(out.kind, Kind::Write(index) if index >= from)
                || matches!(out.kind, Kind::Flush(_))
            {
                self.failed.insert(out.io, error);
            }
        }
        self.volume.failed_from = Some(from);
        self.fails = Some(Fails::Changes(error));
        let mut content = self.volume.start.clone();
        self.volume.log[..from].iter().for_each(|step| apply(&mut content, step));
        self.volume.new = content;
    }

    /// The next command that completes.
    fn choose(&mut self) -> Option<usize> {
        let may = |out: &Out| !self.holds_changes || matches!(out.kind, Kind::Read(_));
        if self.is_late {
            let all: Vec<usize> =
                (0..self.out.len()).filter(|index| may(&self.out[*index])).collect();
            return match all.len() as u64 {
                0 => None,
                count => Some(all[self.random.below(count) as usize]),
            };
        }
        let is_read = |out: &Out| matches!(out.kind, Kind::Read(_));
        let oldest = self.out.iter().position(|out| !is_read(out) && may(out));
        let reads: Vec<usize> =
            (0..self.out.len()).filter(|index| is_read(&self.out[*index])).collect();
        match (oldest, reads.len() as u64) {
            (oldest, 0) => oldest,
            (Some(oldest), _) if self.random.chance(50) => Some(oldest),
            (_, count) => Some(reads[self.random.below(count) as usize]),
        }
    }

    /// No one reads blocks of which the newest change is out: what comes back may be of the time
    /// before.
    fn assert_settled(&self, first: u64, count: u64) {
        if self.volume.failed_from.is_some() {
            // The write over it may have failed.
            return;
        }
        for out in &self.out {
            let Kind::Write(index) = out.kind else { continue };
            let step = &self.volume.log[index];
            let written = step.writes.iter().map(|(block, _)| (*block, 1));
            for (from, blocks) in written.chain(step.runs.iter().copied()) {
                for block in from.max(first)..(from + blocks).min(first + count) {
                    let newest = self.volume.newest.get(&block);
                    let is_over = newest.is_some_and(|newest| *newest > index);
                    assert!(
                        is_over,
                        "block {block} is read while step {index} that changes it is out"
                    );
                }
            }
        }
    }
}

impl Backend for InMemory {
    fn block_count(&self) -> u64 {
        self.volume.block_count
    }

    fn submit(&mut self, io: Io) {
        let Io { id, command } = io;
        let mut step = Step::default();
        let (kind, buffer) = match command {
            Command::Read { block, buffer } => (Kind::Read(block), buffer),
            Command::Flush => (Kind::Flush(self.completed()), Buffer::empty()),
            Command::Discard { block, count } => {
                step.runs.push((block, count));
                (Kind::Write(0), Buffer::empty())
            }
            Command::Write { block, buffer } => {
                push_blocks(&mut step, block, &buffer);
                (Kind::Write(0), buffer)
            }
            Command::WriteMany { changes, buffer, fua } => {
                check_changes(&changes, buffer.len());
                let mut at = 0;
                for Change { block, count, discard } in changes {
                    if discard {
                        step.runs.push((block, count));
                    } else {
                        let length = count as usize * BLOCK_SIZE;
                        push_blocks(&mut step, block, &buffer[at..at + length]);
                        at += length;
                    }
                }
                step.is_durable = fua;
                (Kind::Write(0), buffer)
            }
        };
        self.failed.remove(&id);
        match (&kind, self.fails) {
            (Kind::Read(_), Some(Fails::Reads(error)))
            | (Kind::Write(_), Some(Fails::Writes(error) | Fails::Changes(error)))
            | (Kind::Flush(_), Some(Fails::Flushes(error) | Fails::Changes(error))) => {
                self.failed.insert(id, error);
            }
            _ => {}
        }
        if let Kind::Read(first) = kind {
            let blocks = first..first + (buffer.len() / BLOCK_SIZE) as u64;
            if self.damaged.is_some_and(|damaged| blocks.contains(&damaged)) {
                self.failed.insert(id, IoError::Corrupt);
            }
            self.assert_settled(first, (buffer.len() / BLOCK_SIZE) as u64);
        }
        let kind = match kind {
            Kind::Write(_) => {
                if self.volume.failed_from.is_none() {
                    apply(&mut self.volume.new, &step);
                }
                self.volume.log.push(step);
                Kind::Write(self.volume.log.len() - 1)
            }
            kind => kind,
        };
        self.out.push(Out { io: id, buffer, kind });
    }

    fn result(&self, io: u32) -> Result<(), IoError> {
        self.failed.get(&io).map_or(Ok(()), |error| Err(*error))
    }

    /// Late: any command. Else a read, or the oldest of the others.
    fn complete(&mut self) -> Option<(u32, Buffer)> {
        let index = self.choose()?;
        let Out { io, mut buffer, kind } = self.out.remove(index);
        match kind {
            Kind::Read(first) => {
                let sees_new = self.random.chance(50);
                let content = if sees_new { &self.volume.new } else { &self.volume.old };
                for (place, block) in buffer.chunks_mut(BLOCK_SIZE).zip(first..) {
                    match content.get(&block) {
                        Some(data) => place.copy_from_slice(&data[..]),
                        None => place.fill(0),
                    }
                }
            }
            _ if self.failed.contains_key(&io) => {}
            Kind::Write(index) => self.volume.complete(index),
            Kind::Flush(covered) => self.volume.durable = self.volume.durable.max(covered),
        }
        Some((io, buffer))
    }
}

fn push_blocks(step: &mut Step, first: u64, bytes: &[u8]) {
    assert!(!bytes.is_empty() && bytes.len().is_multiple_of(BLOCK_SIZE), "whole blocks");
    assert!(bytes.len() / BLOCK_SIZE <= 256, "no more than is atomic");
    for (block, data) in (first..).zip(bytes.chunks_exact(BLOCK_SIZE)) {
        step.writes.push((block, Some(Rc::new(data.try_into().expect("a block")))));
    }
}

/// The limits of the engine for such a write.
fn check_changes(changes: &[Change], length: usize) {
    assert!(changes.len() <= 200, "{} ranges", changes.len());
    let stored: u64 = changes.iter().filter(|change| !change.discard).map(|c| c.count).sum();
    assert_eq!(stored as usize * BLOCK_SIZE, length);
    assert!(stored <= 256);
    let mut sorted: Vec<_> = changes.iter().map(|c| (c.block, c.block + c.count)).collect();
    sorted.sort_unstable();
    assert!(sorted.windows(2).all(|pair| pair[0].1 <= pair[1].0), "ranges overlap");
    let discarded = changes.iter().filter(|change| change.discard);
    let updates: u64 = discarded.map(|c| c.count / 512 + 1022.min(c.count)).sum();
    assert!(stored + updates <= 1024, "{updates} updates");
}
