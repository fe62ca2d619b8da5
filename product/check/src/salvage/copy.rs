//! Reads blocks, compares their checksums, and hands them to the sink.
//!
//! Many leaves' blocks are read together, in the order of the device: one leaf's lie all over the log.

use super::events::Events;
use super::resolve::Settled;
use super::{PER_LEAF, Range, Salvage, Sink, State};
use crate::window::Window;
use coulter_format::checksum::{self, Kind};
use coulter_format::{Block, BlockPointer, Lba};
use std::io;

/// Blocks that are read together, in one order.
const BATCH: usize = 1 << 16;

/// Blocks that one request reads at most, and that are read in vain rather than asking once more.
const RUN_MAX: u32 = 256;
const GAP_MAX: u32 = 8;

/// A block to be handed out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) lba: u64,
    pub(super) pointer: BlockPointer,
    /// Whether a newer version of it may be hidden.
    pub(super) is_found: bool,
}

/// What was handed out so far, and what is to be.
pub(super) struct Copier<'a> {
    sink: &'a mut dyn Sink,
    volume_size: u64,
    waiting: Vec<Wanted>,
    salvage: Salvage,
    /// Ranges that there were when neighbours were last joined.
    joined: usize,
}

impl<'a> Copier<'a> {
    pub(super) fn new(sink: &'a mut dyn Sink, volume_size: u64) -> Copier<'a> {
        let salvage = Salvage { volume_blocks: volume_size, ..Salvage::default() };
        Copier { sink, volume_size, waiting: Vec::new(), salvage, joined: 0 }
    }

    /// What came of it, neighbours in one range.
    pub(super) fn finish(mut self) -> Salvage {
        self.join_ranges();
        self.salvage
    }

    fn join_ranges(&mut self) {
        let ranges = &mut self.salvage.ranges;
        ranges.sort_by_key(|range| range.lba);
        ranges.dedup_by(|next, range| {
            let goes_on = range.lba + range.blocks == next.lba && range.state == next.state;
            if goes_on {
                range.blocks += next.blocks;
            }
            goes_on
        });
        self.joined = ranges.len();
    }

    /// Takes what there is of a leaf; true when so much waits that it should be read.
    pub(super) fn want(&mut self, settled: &Settled) -> bool {
        let first = settled.key.saturating_mul(PER_LEAF);
        for block in &settled.blocks {
            let (pointer, is_found) = (block.pointer, block.is_found);
            let lba = first + u64::from(block.index);
            if lba < self.volume_size {
                self.waiting.push(Wanted { lba, pointer, is_found });
            }
        }
        let lost = settled.lost.iter().map(|index| (index, State::Lost));
        let unknown = settled.unknown.iter().map(|index| (index, State::Unknown));
        for (index, state) in lost.chain(unknown) {
            let lba = first + u64::from(*index);
            if lba < self.volume_size {
                self.count(lba, Some(state));
            }
        }
        self.waiting.len() >= BATCH
    }

    /// Nothing is known of a leaf.
    pub(super) fn unknown_leaf(&mut self, key: u64) {
        let lba = key.saturating_mul(PER_LEAF);
        let blocks = self.volume_size.saturating_sub(lba).min(PER_LEAF);
        self.salvage.unknown_blocks += blocks;
        match self.salvage.ranges.last_mut() {
            Some(Range { lba: first, blocks: before, state: State::Unknown })
                if *first + *before == lba =>
            {
                *before += blocks;
            }
            _ => self.salvage.ranges.push(Range { lba, blocks, state: State::Unknown }),
        }
    }

    /// Hands out what waits; returns what cannot be read, or is not what it should be, by address.
    ///
    /// # Errors
    /// What the sink says.
    pub(super) fn read(&mut self, window: &mut Window<'_>) -> io::Result<Vec<Wanted>> {
        let mut missing = Vec::new();
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.sort_by_key(|wanted| wanted.pointer.pba);
        let mut rest = waiting.as_slice();
        while let Some(first) = rest.first() {
            let start = first.pointer.pba;
            let mut end = start;
            let near = rest.iter().take_while(|wanted| {
                let pba = wanted.pointer.pba;
                let is_near = pba.0 - end.0 <= 1 + GAP_MAX && pba.0 - start.0 < RUN_MAX;
                end = if is_near { pba } else { end };
                is_near
            });
            let (run, behind) = rest.split_at(near.count().max(1));
            rest = behind;
            // If not all of it can be read, some of it may be.
            let count = end.0 - start.0 + 1;
            let together = window.blocks(start, count).is_ok();
            for wanted in run {
                let at = wanted.pointer.pba.0 - start.0;
                let content = match together {
                    true => window.blocks(start, count).ok().and_then(|b| b.get(at as usize)),
                    false => window.block(wanted.pointer.pba).ok(),
                };
                match content.filter(|content| is_right(content, wanted.lba, wanted.pointer)) {
                    Some(content) => {
                        self.sink.block(Lba(wanted.lba), content)?;
                        self.count(wanted.lba, wanted.is_found.then_some(State::Found));
                    }
                    None => missing.push(*wanted),
                }
            }
        }
        waiting.clear();
        self.waiting = waiting;
        // Leaves are whole, so what was counted block by block is few ranges again.
        if self.salvage.ranges.len() > 2 * self.joined + BATCH {
            self.join_ranges();
        }
        missing.sort_by_key(|wanted| wanted.lba);
        Ok(missing)
    }

    /// The same; what cannot be read is looked for where the same version of it lay before it was moved, or
    /// lies since. What is not there either is lost.
    ///
    /// # Errors
    /// What the sink says.
    pub(super) fn read_with_copies(
        &mut self,
        window: &mut Window<'_>,
        events: &Events,
    ) -> io::Result<()> {
        for wanted in self.read(window)? {
            let index = wanted.lba % PER_LEAF;
            let copies = events.of(wanted.lba / PER_LEAF).iter().filter(|event| {
                let is_same = event.pointer.checksum == wanted.pointer.checksum;
                event.is_block() && u64::from(event.index) == index && is_same
            });
            let mut state = Some(State::Lost);
            for copy in copies {
                let Ok(content) = window.block(copy.pointer.pba) else { continue };
                if is_right(content, wanted.lba, copy.pointer) {
                    self.sink.block(Lba(wanted.lba), content)?;
                    state = wanted.is_found.then_some(State::Found);
                    break;
                }
            }
            self.count(wanted.lba, state);
        }
        Ok(())
    }

    fn count(&mut self, lba: u64, state: Option<State>) {
        match state {
            None => self.salvage.whole_blocks += 1,
            Some(State::Found) => self.salvage.found_blocks += 1,
            Some(State::Lost) => self.salvage.lost_blocks += 1,
            Some(State::Unknown) => self.salvage.unknown_blocks += 1,
        }
        if let Some(state) = state {
            self.salvage.ranges.push(Range { lba, blocks: 1, state });
        }
    }
}

fn is_right(content: &Block, lba: u64, pointer: BlockPointer) -> bool {
    checksum::block(Kind::Data, lba, content) == pointer.checksum
}
