//! A device with a volatile cache, and with faults that can be asked for.
//!
//! Reads see every completed write. What was not flushed is a list; when the power is cut, each
//! write of the list is kept, dropped, or torn: at 512-byte sectors, or at flash pages where the device is one that
//! programs each of them whole or not at all.

use crate::random::Random;
use coulter_check::{BlockFn, Finding, Options, ReadBlocks, Report, Severity};
use coulter_format::{BLOCK_SIZE, Block, Pba};
use std::rc::Rc;

const SECTOR: usize = 512;

/// What a power cut does to writes that were not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Nothing: as when only the process dies. What was not flushed may still be lost later.
    Nothing,
    /// All of them are lost.
    Everything,
    /// Each write is kept or lost.
    SomeWrites,
    /// Each block is kept or lost.
    SomeBlocks,
    /// Each sector is kept or lost.
    SomeSectors,
}

/// The device's content.
#[derive(Clone)]
pub struct Device {
    blocks: Vec<Option<Rc<Block>>>,
    /// Completed, not flushed: the content before, oldest first, grouped by write.
    unflushed: Vec<Write>,
    /// If it is flash that programs pages of more than one block: how many.
    page_blocks: u32,
    /// Whether each page is programmed whole or not at all.
    has_atomic_pages: bool,
}

#[derive(Clone)]
struct Write {
    pba: u32,
    before: Vec<Option<Rc<Block>>>,
    after: Vec<Option<Rc<Block>>>,
    /// A flush failed, and the device will not keep it, though reads may show it for a while.
    doomed: bool,
}

impl Write {
    /// A later write is durable: where it lies, taking this one back does not bring back what was there
    /// before.
    fn survives_below(&mut self, later: &Write) {
        for (place, before) in (self.pba..).zip(&mut self.before) {
            let offset = place.wrapping_sub(later.pba) as usize;
            if let Some(after) = later.after.get(offset) {
                before.clone_from(after);
            }
        }
    }
}

impl Device {
    /// A device of so many blocks, all zero.
    pub fn new(size: u64) -> Device {
        Device {
            blocks: vec![None; size as usize],
            unflushed: Vec::new(),
            page_blocks: 1,
            has_atomic_pages: false,
        }
    }

    /// The same of flash with pages of so many blocks: a power cut may take all of a page that was being
    /// written, and what lay there before.
    #[must_use]
    pub fn with_pages(self, page_blocks: u32) -> Device {
        Device { page_blocks, ..self }
    }

    /// The same where a power cut leaves each page as it was, or as a write made it.
    #[must_use]
    pub fn with_atomic_pages(self) -> Device {
        Device { has_atomic_pages: true, ..self }
    }

    /// So many blocks more, all zero.
    pub fn grow(&mut self, blocks: u64) {
        self.blocks.resize(self.blocks.len() + blocks as usize, None);
    }

    /// Blocks.
    pub fn size(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Reads blocks.
    pub fn read(&self, pba: Pba, into: &mut [Block]) {
        let start = pba.0 as usize;
        for (block, target) in self.blocks[start..start + into.len()].iter().zip(into) {
            match block {
                Some(block) => *target = **block,
                None => target.fill(0),
            }
        }
    }

    /// What a block holds; `None` behind the end.
    pub fn block(&self, pba: Pba) -> Option<Block> {
        let block = self.blocks.get(pba.0 as usize)?;
        Some(block.as_ref().map_or([0; BLOCK_SIZE], |block| **block))
    }

    /// A write that completes; it is volatile until a flush.
    pub fn write(&mut self, pba: Pba, blocks: &[Block]) {
        self.write_shared(pba, blocks.iter().map(|block| Some(Rc::new(*block))).collect());
    }

    /// The same for blocks that need not be copied; `None` is a block of zeros.
    pub fn write_shared(&mut self, pba: Pba, after: Vec<Option<Rc<Block>>>) {
        let start = pba.0 as usize;
        let places = &mut self.blocks[start..start + after.len()];
        let exchange = |(place, block): (&mut Option<Rc<Block>>, &Option<Rc<Block>>)| {
            std::mem::replace(place, block.clone())
        };
        let before = places.iter_mut().zip(&after).map(exchange).collect();
        self.unflushed.push(Write { pba: pba.0, before, after, doomed: false });
    }

    /// Forgets blocks; they read as zeros.
    pub fn discard(&mut self, pba: Pba, count: u32) {
        self.write_shared(pba, vec![None; count as usize]);
    }

    /// How many completed writes a flush that is submitted now must cover.
    pub fn flush_mark(&self) -> usize {
        self.unflushed.len()
    }

    /// A flush that covers the first `mark` of the writes that were unflushed when it began, but for
    /// those that the device will not keep: it has forgotten that they are to be written. Returns how
    /// many are durable now.
    pub fn flush(&mut self, mark: usize) -> usize {
        let rest = self.unflushed.split_off(mark.min(self.unflushed.len()));
        let flushed = std::mem::replace(&mut self.unflushed, rest);
        let count = flushed.len();
        let mut kept: Vec<Write> = Vec::new();
        for write in flushed {
            if write.doomed {
                kept.push(write);
            } else {
                kept.iter_mut().for_each(|doomed| doomed.survives_below(&write));
            }
        }
        let durable = count - kept.len();
        self.unflushed.splice(..0, kept);
        durable
    }

    /// A flush has failed: of what was not flushed, the device will not keep some writes, or all. Reads
    /// show them until [`Device::forget_doomed`].
    pub fn doom(&mut self, random: &mut Random) {
        let all = random.chance(30);
        for write in &mut self.unflushed {
            write.doomed |= all || random.chance(50);
        }
    }

    /// From now on reads do not show what the device will not keep.
    pub fn forget_doomed(&mut self) {
        if !self.unflushed.iter().any(|write| write.doomed) {
            return;
        }
        let writes = self.revert();
        for mut write in writes {
            let start = write.pba as usize;
            let places = &mut self.blocks[start..start + write.after.len()];
            write.before = places.to_vec();
            if write.doomed {
                write.after.clone_from(&write.before);
            } else {
                places.clone_from_slice(&write.after);
            }
            // It stays in the list, so that flushes that are under way cover what they did.
            self.unflushed.push(Write { doomed: false, ..write });
        }
    }

    /// Makes everything durable, to set a scene.
    pub fn flush_all(&mut self) {
        self.unflushed.clear();
    }

    /// Cuts the power.
    pub fn cut(&mut self, loss: Loss, random: &mut Random) {
        self.forget_doomed();
        if loss == Loss::Nothing {
            return;
        }
        let writes = self.revert();
        if self.has_atomic_pages && matches!(loss, Loss::SomeBlocks | Loss::SomeSectors) {
            writes.iter().for_each(|write| self.keep_some_pages(write, random));
            return;
        }
        for write in &writes {
            let whole = random.chance(50);
            for (place, after) in (write.pba..).zip(&write.after) {
                let kept = match loss {
                    Loss::Nothing => true,
                    Loss::Everything => false,
                    Loss::SomeWrites => whole,
                    Loss::SomeBlocks => random.chance(50),
                    Loss::SomeSectors => {
                        self.tear(place, after.as_deref(), random);
                        continue;
                    }
                };
                if kept {
                    self.blocks[place as usize] = after.clone();
                }
            }
        }
        self.lose_pages(&writes, random);
    }

    /// Some of the pages that were being written hold nothing that was written to them, ever.
    fn lose_pages(&mut self, writes: &[Write], random: &mut Random) {
        if self.page_blocks == 1 || self.has_atomic_pages {
            return;
        }
        for write in writes.iter().filter(|write| write.after.iter().any(Option::is_some)) {
            let end = write.pba + write.after.len() as u32;
            for page in write.pba / self.page_blocks..end.div_ceil(self.page_blocks) {
                if random.chance(20) {
                    let first = (page * self.page_blocks) as usize;
                    let lost = Rc::new([0xee; BLOCK_SIZE]);
                    self.blocks[first..first + self.page_blocks as usize].fill(Some(lost));
                }
            }
        }
    }

    /// What a write says of each page is kept as a whole, or lost.
    fn keep_some_pages(&mut self, write: &Write, random: &mut Random) {
        let mut kept = random.chance(50);
        for (place, after) in (write.pba..).zip(&write.after) {
            if place.is_multiple_of(self.page_blocks) {
                kept = random.chance(50);
            }
            if kept {
                self.blocks[place as usize] = after.clone();
            }
        }
    }

    /// Cuts the power; of what was not flushed, write i survives if bit i is set.
    pub fn cut_keeping(&mut self, kept: u64) {
        for (index, write) in self.revert().into_iter().enumerate() {
            if index < 64 && kept & (1 << index) != 0 {
                let start = write.pba as usize;
                let count = write.after.len();
                self.blocks[start..start + count].clone_from_slice(&write.after);
            }
        }
    }

    /// Back to the durable state, newest write first. Returns what was taken back, oldest first.
    fn revert(&mut self) -> Vec<Write> {
        let writes = std::mem::take(&mut self.unflushed);
        for write in writes.iter().rev() {
            let start = write.pba as usize;
            self.blocks[start..start + write.before.len()].clone_from_slice(&write.before);
        }
        writes
    }

    fn tear(&mut self, place: u32, after: Option<&Block>, random: &mut Random) {
        let place = &mut self.blocks[place as usize];
        let mut block = place.as_ref().map_or([0; BLOCK_SIZE], |block| **block);
        let (old, _) = block.as_chunks_mut::<SECTOR>();
        let (new, _) = after.unwrap_or(&[0; BLOCK_SIZE]).as_chunks::<SECTOR>();
        for (old, new) in old.iter_mut().zip(new) {
            if random.chance(70) {
                *old = *new;
            }
        }
        *place = Some(Rc::new(block));
    }

    /// Lets the independent checker look at what lies on the device.
    ///
    /// # Errors
    /// What it finds wrong, in its own words.
    pub fn check(&self) -> Result<(), String> {
        self.check_with(true)
    }

    /// The same, with or without comparing every block of data with its checksum.
    ///
    /// # Errors
    /// What it finds wrong, in its own words.
    pub fn check_with(&self, data: bool) -> Result<(), String> {
        let report = self.report(data);
        let faults = report.findings.iter().filter(|finding| finding.severity() > Severity::Info);
        // The power may have gone while its page was being written, and again while that was being mended; another
        // copy serves.
        let lost = |finding: &Finding| {
            matches!(finding, Finding::SuperblockMissing { .. } | Finding::SuperblockDamaged { .. })
        };
        let mut faults = faults.filter(|fault| self.page_blocks == 1 || !lost(fault)).peekable();
        if faults.peek().is_none() {
            return Ok(());
        }
        Err(faults.take(5).map(|finding| format!("{finding:?}")).collect::<Vec<_>>().join("; "))
    }

    /// What the independent checker says of what lies on the device.
    pub fn report(&self, data: bool) -> Report {
        let mut options = Options { data, ..Options::default() };
        coulter_check::check(&mut self.blocks(), &mut options)
    }

    /// What lies on the device, for the checker.
    pub fn blocks(&self) -> impl ReadBlocks {
        BlockFn {
            size_blocks: self.size(),
            read: |pba: Pba, block: &mut Block| {
                self.read(pba, std::slice::from_mut(block));
                Ok(())
            },
        }
    }

    /// Damages one block.
    pub fn corrupt(&mut self, pba: Pba, byte: usize) {
        let place = &mut self.blocks[pba.0 as usize];
        let mut block = place.as_ref().map_or([0; BLOCK_SIZE], |block| **block);
        block[byte] ^= 0x40;
        *place = Some(Rc::new(block));
    }

    /// Another content takes a block's place, durably.
    pub fn replace(&mut self, pba: Pba, content: Block) {
        let content = Some(Rc::new(content));
        for write in &mut self.unflushed {
            let offset = pba.0.wrapping_sub(write.pba) as usize;
            for part in [&mut write.before, &mut write.after] {
                if let Some(block) = part.get_mut(offset) {
                    block.clone_from(&content);
                }
            }
        }
        self.blocks[pba.0 as usize] = content;
    }

    /// Blocks that were ever written.
    pub fn written(&self) -> impl Iterator<Item = Pba> + '_ {
        let blocks = (0..).zip(&self.blocks);
        blocks.filter(|(_, block)| block.is_some()).map(|(pba, _)| Pba(pba))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn first_bytes(device: &Device) -> Vec<u8> {
        let mut blocks = vec![[0; BLOCK_SIZE]; device.size() as usize];
        device.read(Pba(0), &mut blocks);
        blocks.iter().map(|block| block[0]).collect()
    }

    /// Pages of two blocks; a write from the second block of one to the first of the last.
    #[test]
    fn atomic_pages_are_never_torn_and_others_are() {
        let mut random = Random::new(3);
        let mut states = |is_atomic: bool| {
            let mut seen = BTreeSet::new();
            for _ in 0..200 {
                let mut device = Device::new(6).with_pages(2);
                device.has_atomic_pages = is_atomic;
                device.write(Pba(0), &[[1; BLOCK_SIZE]; 6]);
                device.flush_all();
                device.write(Pba(1), &[[2; BLOCK_SIZE]; 4]);
                device.cut(Loss::SomeBlocks, &mut random);
                seen.insert(first_bytes(&device));
            }
            seen
        };
        let atomic = states(true);
        assert_eq!(atomic.len(), 8, "three pages, each as it was or as written");
        let is_whole = |bytes: &Vec<u8>| bytes[0] == 1 && bytes[5] == 1 && bytes[2] == bytes[3];
        assert!(atomic.iter().all(is_whole), "{atomic:?}");
        let torn = states(false);
        assert!(torn.iter().any(|bytes| bytes[2] != bytes[3]), "a page is written in part");
        assert!(torn.iter().any(|bytes| bytes[0] == 0xee), "or takes along what lay there");
    }

    #[test]
    fn what_a_failed_flush_has_doomed_no_later_flush_makes_durable() {
        let mut random = Random::new(1);
        for number in 0..50u8 {
            let mut device = Device::new(3);
            device.write(Pba(0), &[[1; BLOCK_SIZE]; 3]);
            device.flush_all();
            device.write(Pba(0), &[[2; BLOCK_SIZE]; 2]);
            device.doom(&mut random);
            let doomed = device.unflushed[0].doomed;
            // It came later, and lies over a part of it.
            device.write(Pba(1), &[[3; BLOCK_SIZE]]);
            assert_eq!(first_bytes(&device), [2, 3, 1], "reads show all of it");
            if number.is_multiple_of(2) {
                device.forget_doomed();
                assert_eq!(first_bytes(&device), [if doomed { 1 } else { 2 }, 3, 1]);
            }
            device.flush(2);
            device.cut(Loss::Everything, &mut random);
            assert_eq!(first_bytes(&device), [if doomed { 1 } else { 2 }, 3, 1]);
        }
    }
}
