//! Hostile changes: a block is changed and every checksum above it is made right again, so that
//! only what the block says can give it away.

use super::{Image, Model};
use coulter_format::checksum::{self, Kind, crc32c};
use coulter_format::{BLOCK_SIZE, Block, Pba};

impl Model {
    /// Changes a metadata block in place and makes whatever points at it agree.
    pub(crate) fn rewrite(
        &self,
        image: &mut Image,
        kind: Kind,
        key: u64,
        pba: Pba,
        change: &mut dyn FnMut(&mut Block),
    ) {
        let mut block = image.block(pba.0);
        let before = checksum::block(kind, key, &block);
        change(&mut block);
        image.put(pba.0, block);
        let after = checksum::block(kind, key, &block);
        let pattern = |checksum: u32| {
            let mut bytes = [0; 8];
            bytes[..4].copy_from_slice(&pba.0.to_le_bytes());
            bytes[4..].copy_from_slice(&checksum.to_le_bytes());
            bytes
        };
        let mut replace = |block: &mut Block| replace(block, pattern(before), pattern(after));
        if kind == Kind::Leaf {
            let root = key / super::PER_LEAF;
            let holder = self.roots[&root].pba;
            self.rewrite(image, Kind::Root, root, holder, &mut replace);
        } else {
            self.rewrite_body(image, |bytes| {
                for start in 0..bytes.len().saturating_sub(7) {
                    if bytes[start..start + 8] == pattern(before) {
                        bytes[start..start + 8].copy_from_slice(&pattern(after));
                    }
                }
            });
        }
        self.rewrite_word(image, pba, before, after);
    }

    /// Changes the checkpoint's body, and the superblock with it.
    pub(crate) fn rewrite_body(&self, image: &mut Image, change: impl FnOnce(&mut [u8])) {
        let size = self.superblock.checkpoint.size as usize;
        let before: Vec<_> = self.body.iter().map(|pba| image.block(pba.0)).collect();
        let mut bytes = before.concat();
        change(&mut bytes[..size]);
        let (blocks, _) = bytes.as_chunks::<BLOCK_SIZE>();
        for (key, (pba, block)) in (0u64..).zip(self.body.iter().zip(blocks)) {
            let old = checksum::block(Kind::Checkpoint, key, &image.block(pba.0));
            image.put(pba.0, *block);
            let new = checksum::block(Kind::Checkpoint, key, block);
            self.rewrite_word(image, *pba, old, new);
        }
        let mut superblock = self.superblock;
        superblock.checkpoint.checksum = crc32c(&bytes[..size]);
        let mut block = [0; BLOCK_SIZE];
        superblock.encode(&mut block);
        // Only the checksum: whatever else was changed there stays.
        let mut there = image.block(superblock.location().0);
        there[128..132].copy_from_slice(&block[128..132]);
        seal(&mut there, 0);
        image.put(superblock.location().0, there);
    }

    /// Makes the record header above a block agree with its new checksum.
    fn rewrite_word(&self, image: &mut Image, pba: Pba, before: u32, after: u32) {
        let header = self.record_of(pba);
        let mut block = image.block(header.0);
        for start in 96..BLOCK_SIZE - 3 {
            if block[start..start + 4] == before.to_le_bytes() {
                block[start..start + 4].copy_from_slice(&after.to_le_bytes());
                break;
            }
        }
        seal(&mut block, self.superblock.store.salt);
        image.put(header.0, block);
    }

    /// Changes the newest superblock.
    pub(crate) fn rewrite_superblock(&self, image: &mut Image, change: impl FnOnce(&mut Block)) {
        let pba = self.superblock.location().0;
        let mut block = image.block(pba);
        change(&mut block);
        seal(&mut block, 0);
        image.put(pba, block);
    }

    /// Changes a record header.
    pub(crate) fn rewrite_header(
        &self,
        image: &mut Image,
        pba: Pba,
        change: impl FnOnce(&mut Block),
    ) {
        let mut block = image.block(pba.0);
        change(&mut block);
        seal(&mut block, self.superblock.store.salt);
        image.put(pba.0, block);
    }
}

/// Makes a checksum field at bytes 12..16 right.
pub(crate) fn seal(block: &mut Block, salt: u32) {
    block[12..16].copy_from_slice(&salt.to_le_bytes());
    let sum = crc32c(block);
    block[12..16].copy_from_slice(&sum.to_le_bytes());
}

fn replace(block: &mut Block, before: [u8; 8], after: [u8; 8]) {
    for start in 0..BLOCK_SIZE - 7 {
        if block[start..start + 8] == before {
            block[start..start + 8].copy_from_slice(&after);
        }
    }
}
