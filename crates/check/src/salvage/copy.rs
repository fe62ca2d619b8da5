//! Reads blocks, compares their checksums, and hands them to the sink.

use super::events::Event;
use super::resolve::{Settled, SettledBlock};
use super::{PER_LEAF, Range, Salvage, Sink, State};
use crate::window::Window;
use coulter_format::checksum::{self, Kind};
use coulter_format::{Block, BlockPointer, Lba};
use std::io;

/// Blocks read in one request at most.
const BLOCKS_PER_READ: usize = 256;

/// What was handed out so far.
pub(super) struct Copier<'a> {
    sink: &'a mut dyn Sink,
    volume_size: u64,
    salvage: Salvage,
}

impl<'a> Copier<'a> {
    pub(super) fn new(sink: &'a mut dyn Sink, volume_size: u64) -> Copier<'a> {
        let salvage = Salvage { volume_blocks: volume_size, ..Salvage::default() };
        Copier { sink, volume_size, salvage }
    }

    /// What came of it, neighbours in one range.
    pub(super) fn finish(mut self) -> Salvage {
        let mut ranges = std::mem::take(&mut self.salvage.ranges);
        ranges.sort_by_key(|range| range.lba);
        ranges.dedup_by(|next, range| {
            let goes_on = range.lba + range.blocks == next.lba && range.state == next.state;
            if goes_on {
                range.blocks += next.blocks;
            }
            goes_on
        });
        Salvage { ranges, ..self.salvage }
    }

    /// Hands out what can be read of a leaf; returns the addresses in it of what cannot.
    pub(super) fn take(
        &mut self,
        window: &mut Window<'_>,
        settled: &Settled,
    ) -> io::Result<Vec<u16>> {
        let mut missing = Vec::new();
        let first = settled.key.saturating_mul(PER_LEAF);
        let mut blocks: Vec<_> = settled.blocks.clone();
        blocks.retain(|block| first + u64::from(block.index) < self.volume_size);
        blocks.sort_by_key(|block| block.pointer.pba);
        let follows =
            |one: &SettledBlock, other: &SettledBlock| one.pointer.pba.plus(1) == other.pointer.pba;
        for run in blocks.chunk_by(follows).flat_map(|run| run.chunks(BLOCKS_PER_READ)) {
            let Some(start) = run.first().map(|block| block.pointer.pba) else { continue };
            let together = window.blocks(start, run.len() as u32).is_ok();
            for (offset, block) in run.iter().enumerate() {
                // Read before, if together; if not, one by one, for all but one of them may be readable.
                let content = match together {
                    true => window.blocks(start, run.len() as u32).ok().and_then(|b| b.get(offset)),
                    false => window.block(block.pointer.pba).ok(),
                };
                let lba = first + u64::from(block.index);
                match content.filter(|content| is_right(content, lba, block.pointer)) {
                    Some(content) => {
                        self.sink.block(Lba(lba), content)?;
                        self.count(lba, block.is_found.then_some(State::Found));
                    }
                    None => missing.push(block.index),
                }
            }
        }
        Ok(missing)
    }

    /// The same; what cannot be read is looked for where the same version of it lay before it was moved, or
    /// lies since. What is not there either is lost.
    pub(super) fn take_with_copies(
        &mut self,
        window: &mut Window<'_>,
        settled: &Settled,
        events: &[Event],
    ) -> io::Result<()> {
        let first = settled.key.saturating_mul(PER_LEAF);
        let missing = self.take(window, settled)?;
        for index in missing {
            let Some(wanted) = settled.blocks.iter().find(|block| block.index == index) else {
                continue;
            };
            let lba = first + u64::from(index);
            let copies = events.iter().filter(|event| {
                let pointer = event.pointer;
                event.index == index
                    && pointer.is_mapped()
                    && pointer.checksum == wanted.pointer.checksum
            });
            let mut state = Some(State::Lost);
            for copy in copies {
                let Ok(content) = window.block(copy.pointer.pba) else { continue };
                if is_right(content, lba, copy.pointer) {
                    self.sink.block(Lba(lba), content)?;
                    state = wanted.is_found.then_some(State::Found);
                    break;
                }
            }
            self.count(lba, state);
        }
        for index in &settled.lost {
            let lba = first + u64::from(*index);
            if lba < self.volume_size {
                self.count(lba, Some(State::Lost));
            }
        }
        Ok(())
    }

    fn count(&mut self, lba: u64, state: Option<State>) {
        match state {
            None => self.salvage.whole_blocks += 1,
            Some(State::Found) => self.salvage.found_blocks += 1,
            Some(State::Lost) => self.salvage.lost_blocks += 1,
        }
        if let Some(state) = state {
            self.salvage.ranges.push(Range { lba, blocks: 1, state });
        }
    }
}

fn is_right(content: &Block, lba: u64, pointer: BlockPointer) -> bool {
    checksum::block(Kind::Data, lba, content) == pointer.checksum
}
