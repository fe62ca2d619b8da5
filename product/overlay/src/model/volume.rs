//! A volume in memory that keeps what it was given in order, so that a crash can keep any prefix of it.

use super::trace;
use crate::lower::Outcome;
use crate::recover::Blocks;
use coulter::buffer::Buffer;
use coulter_files::{Command, Io};
use coulter_format::{BLOCK_SIZE, Block};
use std::collections::BTreeMap;
use std::rc::Rc;

type Content = BTreeMap<u64, Rc<Block>>;
type Step = Vec<(u64, u64, Option<Rc<Block>>)>;

/// See the module's documentation.
#[derive(Clone, Default)]
pub(crate) struct ModelVolume {
    start: Content,
    now: Content,
    log: Vec<Step>,
    /// Steps that a crash cannot take away.
    pub(crate) durable: usize,
}

/// A command whose completion is held back.
pub(crate) struct Held {
    id: u32,
    buffer: Buffer,
    /// Of a change: which step it is.
    pub(crate) step: Option<usize>,
    /// Of a flush: the steps that are durable when it completes.
    pub(crate) covers: Option<usize>,
}

fn apply(content: &mut Content, step: &Step) {
    for (first, count, data) in step {
        match data {
            Some(data) => {
                content.insert(*first, data.clone());
            }
            None => {
                let gone: Vec<u64> =
                    content.range(*first..first + count).map(|(at, _)| *at).collect();
                gone.iter().for_each(|block| drop(content.remove(block)));
            }
        }
    }
}

impl ModelVolume {
    pub(crate) fn holding(block: u64, data: Block) -> ModelVolume {
        let start: Content = [(block, Rc::new(data))].into();
        ModelVolume { now: start.clone(), start, ..ModelVolume::default() }
    }

    /// Steps so far.
    pub(crate) fn steps(&self) -> usize {
        self.log.len()
    }

    /// With the first `count` steps and no others.
    pub(crate) fn cut(&self, count: usize) -> ModelVolume {
        let mut start = self.start.clone();
        self.log[..count].iter().for_each(|step| apply(&mut start, step));
        ModelVolume { now: start.clone(), start, ..ModelVolume::default() }
    }

    /// Takes a command, whose completion is held back. A flush covers what had completed when it came.
    pub(crate) fn accept(&mut self, io: Io, out: &[Held]) -> Held {
        let is_write = !matches!(io.command, Command::Read { .. } | Command::Flush);
        let oldest = out.iter().filter_map(|held| held.step).min().unwrap_or(self.log.len());
        let covers = matches!(io.command, Command::Flush).then_some(oldest);
        let (step, durable) = (is_write.then_some(self.log.len()), self.durable);
        let (id, buffer) = self.carry_out(io);
        self.durable = durable;
        Held { id, buffer, step, covers }
    }

    /// A command that was held back completes.
    pub(crate) fn end(&mut self, held: Held) -> (u32, Buffer) {
        self.durable = self.durable.max(held.covers.unwrap_or(0));
        (held.id, held.buffer)
    }

    /// Carries out a command; its buffer comes back.
    pub(crate) fn carry_out(&mut self, io: Io) -> (u32, Buffer) {
        let mut step = Step::new();
        let mut put = |first: u64, bytes: &[u8]| {
            for (at, block) in (first..).zip(bytes.chunks_exact(BLOCK_SIZE)) {
                step.push((at, 1, Some(Rc::new(block.try_into().expect("a whole block")))));
            }
        };
        let buffer = match io.command {
            Command::Read { block, mut buffer } => {
                for (at, bytes) in (block..).zip(buffer.chunks_exact_mut(BLOCK_SIZE)) {
                    match self.now.get(&at) {
                        Some(data) => bytes.copy_from_slice(&data[..]),
                        None => bytes.fill(0),
                    }
                }
                return (io.id, buffer);
            }
            Command::Flush => {
                self.durable = self.log.len();
                return (io.id, Buffer::empty());
            }
            Command::Write { block, buffer } => {
                trace(|| format!("  step {}: {block}, {:?}", self.log.len() + 1, &buffer[..9]));
                put(block, &buffer);
                buffer
            }
            Command::WriteMany { changes, buffer, .. } => {
                trace(|| format!("  step {}: {changes:?}", self.log.len() + 1));
                let mut at = 0;
                for change in &changes {
                    if !change.discard {
                        let length = change.count as usize * BLOCK_SIZE;
                        put(change.block, &buffer[at..at + length]);
                        at += length;
                    }
                }
                let discards = changes.iter().filter(|change| change.discard);
                step.extend(discards.map(|change| (change.block, change.count, None)));
                buffer
            }
            Command::Discard { block, count } => {
                step.push((block, count, None));
                Buffer::empty()
            }
        };
        apply(&mut self.now, &step);
        self.log.push(step);
        (io.id, buffer)
    }
}

impl Blocks for ModelVolume {
    fn read(&mut self, block: u64, into: &mut Block) -> Outcome<()> {
        *into = self.now.get(&block).map_or([0; BLOCK_SIZE], |data| **data);
        Ok(())
    }

    fn mapped(&mut self, block: u64, count: u64) -> Outcome<Vec<(u64, bool)>> {
        let next = self.now.range(block..block + count).next().map(|(at, _)| *at);
        Ok(vec![match next {
            Some(at) if at == block => (1, true),
            Some(at) => (at - block, false),
            None => (count, false),
        }])
    }
}
