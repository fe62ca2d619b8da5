//! Reading blocks with as little asking as possible: a buffer that looks ahead when it pays.

use crate::blocks::{ReadBlocks, ReadError};
use coulter_format::{BLOCK_SIZE, Block, Pba};
use std::collections::BTreeMap;

/// Blocks that one request reads at most: room for any record, and for looking ahead.
const WINDOW_BLOCKS_MAX: u32 = 512;

/// Blocks read ahead at most when only headers are wanted.
const HEADERS_AHEAD_MAX: u32 = 64;

/// The device, and the part of it that was read last.
pub(crate) struct Window<'a> {
    blocks: &'a mut dyn ReadBlocks,
    size_blocks: u64,
    buffer: Vec<Block>,
    start: u64,
    count: u32,
    ahead: u32,
    /// Blocks that are damaged, and where their second copies lie.
    redirected: BTreeMap<Pba, Pba>,
    /// Blocks that are damaged, and what they should be, where one is asked for alone.
    rebuilt: BTreeMap<Pba, Block>,
    /// The same for every read.
    mended: BTreeMap<Pba, Block>,
}

impl<'a> Window<'a> {
    pub(crate) fn new(blocks: &'a mut dyn ReadBlocks) -> Window<'a> {
        let size_blocks = blocks.size_blocks();
        Window {
            blocks,
            size_blocks,
            buffer: Vec::new(),
            start: 0,
            count: 0,
            ahead: 1,
            redirected: BTreeMap::new(),
            rebuilt: BTreeMap::new(),
            mended: BTreeMap::new(),
        }
    }

    /// Whole blocks on the device.
    pub(crate) fn size_blocks(&self) -> u64 {
        self.size_blocks
    }

    /// From now on, a read of this block alone returns the other block.
    pub(crate) fn redirect(&mut self, pba: Pba, copy: Pba) {
        self.redirected.insert(pba, copy);
    }

    /// From now on, a read of this block alone returns this.
    pub(crate) fn replace(&mut self, pba: Pba, content: Block) {
        self.rebuilt.insert(pba, content);
    }

    /// From now on, every read of this block returns this.
    pub(crate) fn mend(&mut self, pba: Pba, content: Block) {
        self.mended.insert(pba, content);
        self.count = 0;
    }

    /// One block, without looking ahead.
    pub(crate) fn block(&mut self, pba: Pba) -> Result<&Block, ReadError> {
        if self.rebuilt.contains_key(&pba) {
            return self.rebuilt.get(&pba).ok_or(ReadError::PastEnd);
        }
        let pba = self.redirected.get(&pba).copied().unwrap_or(pba);
        self.read(pba, 1, 1).and_then(|blocks| blocks.first().ok_or(ReadError::PastEnd))
    }

    /// `count` blocks, without looking ahead.
    pub(crate) fn blocks(&mut self, pba: Pba, count: u32) -> Result<&[Block], ReadError> {
        self.read(pba, count, count)
    }

    /// A header of a chain: reads ahead the further, the closer headers lie to each other, but not
    /// past `limit` blocks.
    pub(crate) fn header(&mut self, pba: Pba, limit: u32) -> Result<&Block, ReadError> {
        let at = u64::from(pba.0);
        if !self.holds(at, 1) {
            let end = self.start + u64::from(self.count);
            let near = at >= self.start && at < end + u64::from(self.ahead);
            self.ahead = if near { (self.ahead * 2).min(HEADERS_AHEAD_MAX) } else { 1 };
        }
        let wanted = self.ahead.min(limit).max(1);
        self.read(pba, 1, wanted).and_then(|blocks| blocks.first().ok_or(ReadError::PastEnd))
    }

    /// `count` blocks of a sequential pass; reads as much as it can, but not past `limit` blocks.
    pub(crate) fn sequential(
        &mut self,
        pba: Pba,
        count: u32,
        limit: u32,
    ) -> Result<&[Block], ReadError> {
        self.read(pba, count, limit.clamp(count, WINDOW_BLOCKS_MAX.max(count)))
    }

    fn holds(&self, at: u64, count: u32) -> bool {
        at >= self.start && at + u64::from(count) <= self.start + u64::from(self.count)
    }

    /// Makes sure that `count` blocks from `pba` are in the buffer; reads up to `wanted`.
    fn read(&mut self, pba: Pba, count: u32, wanted: u32) -> Result<&[Block], ReadError> {
        let at = u64::from(pba.0);
        if at + u64::from(count) > self.size_blocks {
            return Err(ReadError::PastEnd);
        }
        if !self.holds(at, count) {
            let there = u32::try_from(self.size_blocks - at).unwrap_or(u32::MAX);
            let wanted = wanted.min(there).max(count);
            // What was read ahead may run into a bad block that nobody asked for.
            self.fill(at, wanted).or_else(|error| match wanted > count {
                true => self.fill(at, count),
                false => Err(error),
            })?;
        }
        let first = (at - self.start) as usize;
        let end = first + count as usize;
        self.buffer.get(first..end).ok_or(ReadError::PastEnd)
    }

    /// Reads `count` blocks from `at`, of which those already in the buffer are kept.
    fn fill(&mut self, at: u64, count: u32) -> Result<(), ReadError> {
        let end = self.start + u64::from(self.count);
        let kept = if at >= self.start && at < end { (end - at) as usize } else { 0 };
        let kept = kept.min(count as usize);
        if kept > 0 {
            let first = (at - self.start) as usize;
            self.buffer.copy_within(first..first + kept, 0);
        }
        (self.start, self.count) = (at, kept as u32);
        if self.buffer.len() < count as usize {
            self.buffer.resize(count as usize, [0; BLOCK_SIZE]);
        }
        let rest = self.buffer.get_mut(kept..count as usize).unwrap_or(&mut []);
        let pba = u32::try_from(at + kept as u64).map_err(|_| ReadError::PastEnd)?;
        if !rest.is_empty() {
            read_mended(self.blocks, &self.mended, Pba(pba), rest)?;
        }
        self.count = count;
        Ok(())
    }
}

/// Reads blocks of which some are mended: these need not be readable.
fn read_mended(
    blocks: &mut dyn ReadBlocks,
    mended: &BTreeMap<Pba, Block>,
    pba: Pba,
    into: &mut [Block],
) -> Result<(), ReadError> {
    let end = Pba(pba.0.saturating_add(u32::try_from(into.len()).unwrap_or(u32::MAX)));
    if mended.range(pba..end).next().is_none() {
        return blocks.read(pba, into);
    }
    for (pba, block) in (pba.0..).map(Pba).zip(into) {
        match mended.get(&pba) {
            Some(content) => *block = *content,
            None => blocks.read(pba, std::slice::from_mut(block))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::BlockFn;
    use coulter_workload::Random;
    use std::cell::RefCell;

    /// A device whose blocks hold their own number, that notes every block read and fails at 40.
    fn device(reads: &RefCell<Vec<u32>>) -> impl ReadBlocks {
        let read = move |pba: Pba, block: &mut Block| {
            reads.borrow_mut().push(pba.0);
            block.fill(pba.0 as u8);
            if pba.0 == 40 { Err(ReadError::PastEnd) } else { Ok(()) }
        };
        BlockFn { size_blocks: 100, read }
    }

    #[test]
    fn whatever_is_asked_for_in_whatever_order_is_what_is_on_the_device() {
        let reads = RefCell::new(Vec::new());
        let mut device = device(&reads);
        let mut window = Window::new(&mut device);
        let mut random = Random::new(1);
        for _ in 0..2000 {
            let (pba, count) = (random.below(100) as u32, 1 + random.below(20) as u32);
            let way = random.below(4);
            let blocks = match way {
                0 => window.blocks(Pba(pba), count),
                1 => window.sequential(Pba(pba), count, 50),
                _ => window.header(Pba(pba), 30).map(std::slice::from_ref),
            };
            let count = if way > 1 { 1 } else { count };
            let possible = pba + count <= 100 && !(pba..pba + count).contains(&40);
            assert_eq!(blocks.is_ok(), possible, "{count} blocks at {pba}");
            for (offset, block) in blocks.unwrap_or(&[]).iter().enumerate() {
                assert_eq!(*block, [pba as u8 + offset as u8; BLOCK_SIZE]);
            }
        }
    }

    #[test]
    fn a_sequential_pass_reads_every_block_once() {
        let reads = RefCell::new(Vec::new());
        let mut device = device(&reads);
        let mut window = Window::new(&mut device);
        for pba in (0..39).step_by(3) {
            window.sequential(Pba(pba), 3, 39 - pba).unwrap();
        }
        assert_eq!(*reads.borrow(), (0..39).collect::<Vec<_>>());
    }
}
