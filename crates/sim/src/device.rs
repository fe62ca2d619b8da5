//! A device with a volatile cache.
//!
//! Reads see every completed write. What was not flushed is a list; when the power is cut, each
//! write of the list, and each write that was still under way, is kept, dropped, or torn at
//! 512-byte sectors.

use crate::random::Random;
use coulter_check::{BlockFn, Options, Severity};
use coulter_format::{BLOCK_SIZE, Block, Pba};
use std::collections::BTreeMap;
use std::rc::Rc;

const SECTOR: usize = 512;

/// What a power cut does to writes that were not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Nothing: as when only the process dies.
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
#[derive(Clone, Default)]
pub struct Device {
    blocks: BTreeMap<u32, Rc<Block>>,
    /// Completed, not flushed: the content before, oldest first, grouped by write.
    unflushed: Vec<Write>,
    size: u64,
}

#[derive(Clone)]
struct Write {
    pba: u32,
    before: Vec<Option<Rc<Block>>>,
    after: Vec<Rc<Block>>,
}

impl Device {
    /// A device of so many blocks, all zero.
    pub fn new(size: u64) -> Device {
        Device { size, ..Device::default() }
    }

    /// Blocks.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Reads blocks.
    pub fn read(&self, pba: Pba, into: &mut [Block]) {
        assert!(u64::from(pba.0) + into.len() as u64 <= self.size, "read inside the device");
        for (offset, target) in into.iter_mut().enumerate() {
            match self.blocks.get(&(pba.0 + offset as u32)) {
                Some(block) => *target = **block,
                None => target.fill(0),
            }
        }
    }

    /// A write that completes; it is volatile until a flush.
    pub fn write(&mut self, pba: Pba, blocks: &[Block]) {
        assert!(u64::from(pba.0) + blocks.len() as u64 <= self.size, "write inside the device");
        let after: Vec<_> = blocks.iter().map(|block| Rc::new(*block)).collect();
        let mut before = Vec::with_capacity(after.len());
        for (offset, block) in after.iter().enumerate() {
            before.push(self.blocks.insert(pba.0 + offset as u32, block.clone()));
        }
        self.unflushed.push(Write { pba: pba.0, before, after });
    }

    /// How many completed writes a flush that is submitted now must cover.
    pub fn flush_mark(&self) -> usize {
        self.unflushed.len()
    }

    /// A flush that covers the first `mark` of the writes that were unflushed when it began.
    pub fn flush(&mut self, mark: usize) {
        self.unflushed.drain(..mark.min(self.unflushed.len()));
    }

    /// Makes everything durable, to set a scene.
    pub fn flush_all(&mut self) {
        self.unflushed.clear();
    }

    /// Cuts the power.
    pub fn cut(&mut self, loss: Loss, random: &mut Random) {
        let writes = std::mem::take(&mut self.unflushed);
        // Back to the durable state, newest first; then what survives, oldest first.
        for write in writes.iter().rev() {
            for (offset, before) in write.before.iter().enumerate() {
                let place = write.pba + offset as u32;
                match before {
                    Some(block) => self.blocks.insert(place, block.clone()),
                    None => self.blocks.remove(&place),
                };
            }
        }
        for write in &writes {
            let whole = random.chance(50);
            for (offset, after) in write.after.iter().enumerate() {
                let place = write.pba + offset as u32;
                let kept = match loss {
                    Loss::Nothing => true,
                    Loss::Everything => false,
                    Loss::SomeWrites => whole,
                    Loss::SomeBlocks => random.chance(50),
                    Loss::SomeSectors => {
                        self.tear(place, after, random);
                        continue;
                    }
                };
                if kept {
                    self.blocks.insert(place, after.clone());
                }
            }
        }
    }

    fn tear(&mut self, place: u32, after: &Block, random: &mut Random) {
        let mut block = self.blocks.get(&place).map_or([0; BLOCK_SIZE], |block| **block);
        let (old, _) = block.as_chunks_mut::<SECTOR>();
        let (new, _) = after.as_chunks::<SECTOR>();
        for (old, new) in old.iter_mut().zip(new) {
            if random.chance(70) {
                *old = *new;
            }
        }
        self.blocks.insert(place, Rc::new(block));
    }

    /// Lets the independent checker look at what lies on the device.
    ///
    /// # Errors
    /// What it finds wrong, in its own words.
    pub fn check(&self) -> Result<(), String> {
        let mut blocks = BlockFn {
            size_blocks: self.size,
            read: |pba: Pba, block: &mut Block| {
                self.read(pba, std::slice::from_mut(block));
                Ok(())
            },
        };
        let mut options = Options { data: true, ..Options::default() };
        let report = coulter_check::check(&mut blocks, &mut options);
        if report.is_sound() {
            return Ok(());
        }
        let faults = report.findings.iter().filter(|finding| finding.severity() > Severity::Info);
        Err(faults.take(5).map(|finding| format!("{finding:?}")).collect::<Vec<_>>().join("; "))
    }

    /// Damages one block.
    pub fn corrupt(&mut self, pba: Pba, byte: usize) {
        let mut block = self.blocks.get(&pba.0).map_or([0; BLOCK_SIZE], |block| **block);
        block[byte] ^= 0x40;
        self.blocks.insert(pba.0, Rc::new(block));
    }
}
