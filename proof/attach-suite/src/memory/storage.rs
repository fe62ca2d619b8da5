//! The bytes of a memory service, in chunks that are locked one by one, so that sessions of
//! several threads rarely meet.
//!
//! With undo, the first change of a block since it was last durable saves the block's old content.

use coulter::service::{BLOCK_SIZE, Extent};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

/// Bytes that one lock covers.
const CHUNK_SIZE: usize = 256 << 10;
const BLOCK: usize = BLOCK_SIZE as usize;
const BLOCKS_PER_CHUNK: usize = CHUNK_SIZE / BLOCK;

/// One bit per block of a chunk.
type BlockMask = u64;
const _: () = assert!(BLOCKS_PER_CHUNK == BlockMask::BITS as usize);

pub(super) struct Storage {
    chunks: Vec<Mutex<Chunk>>,
    keeps_undo: bool,
}

#[derive(Default)]
struct Chunk {
    /// `None` while nothing was ever written here.
    bytes: Option<Box<[u8]>>,
    mapped: BlockMask,
    /// Content and mapping of changed blocks as of their last durable state.
    undo: HashMap<usize, (bool, Box<[u8]>)>,
}

/// A piece of a request within one chunk.
struct Piece {
    chunk: usize,
    /// Bytes within the chunk.
    range: Range<usize>,
    /// Where the piece begins within the request.
    position: usize,
}

impl Storage {
    pub(super) fn new(size: u64, keeps_undo: bool) -> Storage {
        let count = size.div_ceil(CHUNK_SIZE as u64);
        Storage { chunks: (0..count).map(|_| Mutex::default()).collect(), keeps_undo }
    }

    pub(super) fn read(&self, offset: u64, out: &mut [u8]) {
        for piece in pieces(offset, out.len() as u64) {
            let target = &mut out[piece.position..piece.position + piece.range.len()];
            match &self.chunk(piece.chunk).bytes {
                Some(bytes) => target.copy_from_slice(&bytes[piece.range]),
                None => target.fill(0),
            }
        }
    }

    pub(super) fn write(&self, offset: u64, data: &[u8], durable: bool) {
        for piece in pieces(offset, data.len() as u64) {
            let source = &data[piece.position..piece.position + piece.range.len()];
            let mut chunk = self.chunk(piece.chunk);
            self.save(&mut chunk, &piece.range);
            let blocks = piece.range.start / BLOCK..piece.range.end.div_ceil(BLOCK);
            chunk.mapped |= mask(&blocks);
            let bytes = chunk.bytes.get_or_insert_with(|| vec![0; CHUNK_SIZE].into());
            bytes[piece.range].copy_from_slice(source);
            if durable {
                blocks.for_each(|block| drop(chunk.undo.remove(&block)));
            }
        }
    }

    /// Zeroes the range; blocks that lie in it whole become unmapped.
    pub(super) fn clear(&self, offset: u64, length: u64, durable: bool) {
        for piece in pieces(offset, length) {
            let mut chunk = self.chunk(piece.chunk);
            if chunk.bytes.is_none() {
                continue;
            }
            self.save(&mut chunk, &piece.range);
            let whole = piece.range.start.div_ceil(BLOCK)..piece.range.end / BLOCK;
            if whole.start < whole.end {
                chunk.mapped &= !mask(&whole);
            }
            let touched = piece.range.start / BLOCK..piece.range.end.div_ceil(BLOCK);
            if let Some(bytes) = &mut chunk.bytes {
                bytes[piece.range].fill(0);
            }
            if durable {
                touched.for_each(|block| drop(chunk.undo.remove(&block)));
            }
        }
    }

    /// Runs of mapped and unmapped bytes, at most `count_max`.
    pub(super) fn extents(&self, offset: u64, length: u64, count_max: usize) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = offset;
        while at < offset + length {
            let next = (at / BLOCK_SIZE + 1) * BLOCK_SIZE;
            let run = next.min(offset + length) - at;
            let block = (at / BLOCK_SIZE) as usize;
            let chunk = self.chunk(block / BLOCKS_PER_CHUNK);
            let mapped = chunk.mapped >> (block % BLOCKS_PER_CHUNK) & 1 == 1;
            let full = extents.len() == count_max;
            match extents.last_mut() {
                Some(last) if last.mapped == mapped => last.length += run,
                _ if full => break,
                _ => extents.push(Extent { length: run, mapped }),
            }
            at += run;
        }
        extents
    }

    /// Makes everything durable.
    pub(super) fn flush(&self) {
        if self.keeps_undo {
            (0..self.chunks.len()).for_each(|chunk| self.chunk(chunk).undo.clear());
        }
    }

    /// Goes back to the last durable state.
    pub(super) fn undo(&self) {
        for chunk in 0..self.chunks.len() {
            let mut chunk = self.chunk(chunk);
            let undo = std::mem::take(&mut chunk.undo);
            for (block, (mapped, content)) in undo {
                let bit = mask(&(block..block + 1));
                chunk.mapped = if mapped { chunk.mapped | bit } else { chunk.mapped & !bit };
                if let Some(bytes) = &mut chunk.bytes {
                    bytes[block * BLOCK..(block + 1) * BLOCK].copy_from_slice(&content);
                }
            }
        }
    }

    fn save(&self, chunk: &mut Chunk, range: &Range<usize>) {
        if !self.keeps_undo {
            return;
        }
        for block in range.start / BLOCK..range.end.div_ceil(BLOCK) {
            let mapped = chunk.mapped >> block & 1 == 1;
            let bytes = chunk.bytes.as_deref();
            let content = || match bytes {
                Some(bytes) => bytes[block * BLOCK..(block + 1) * BLOCK].into(),
                None => vec![0; BLOCK].into(),
            };
            chunk.undo.entry(block).or_insert_with(|| (mapped, content()));
        }
    }

    fn chunk(&self, index: usize) -> MutexGuard<'_, Chunk> {
        self.chunks[index].lock().expect("no thread panics with a chunk")
    }
}

fn pieces(offset: u64, length: u64) -> impl Iterator<Item = Piece> {
    let mut at = offset;
    let end = offset + length;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let chunk = (at / CHUNK_SIZE as u64) as usize;
        let start = (at % CHUNK_SIZE as u64) as usize;
        let run = (CHUNK_SIZE - start).min((end - at) as usize);
        let position = (at - offset) as usize;
        at += run as u64;
        Some(Piece { chunk, range: start..start + run, position })
    })
}

/// The bits of a run of blocks that is not empty.
fn mask(blocks: &Range<usize>) -> BlockMask {
    let count = blocks.end - blocks.start;
    let ones = BlockMask::MAX >> (BLOCKS_PER_CHUNK - count);
    ones << blocks.start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_over_two_chunks_reads_back() {
        let storage = Storage::new(1 << 20, false);
        let data: Vec<u8> = (0..8192u32).map(|i| i as u8).collect();
        storage.write(CHUNK_SIZE as u64 - 4096, &data, false);
        let mut out = vec![0; 8192];
        storage.read(CHUNK_SIZE as u64 - 4096, &mut out);
        assert_eq!(out, data);
    }

    #[test]
    fn undo_goes_back_to_the_last_flush_and_spares_fua() {
        let storage = Storage::new(1 << 20, true);
        storage.write(0, &[1; 4096], false);
        storage.flush();
        storage.write(0, &[2; 512], false);
        storage.write(8192, &[3; 4096], true);
        storage.write(16384, &[4; 4096], false);
        storage.undo();
        let mut out = vec![9; 20480];
        storage.read(0, &mut out);
        assert!(out[..4096].iter().all(|byte| *byte == 1));
        assert!(out[8192..12288].iter().all(|byte| *byte == 3));
        assert!(out[16384..].iter().all(|byte| *byte == 0));
        let extents = storage.extents(0, 20480, 16);
        let mapped: Vec<(u64, bool)> = extents.iter().map(|e| (e.length, e.mapped)).collect();
        assert_eq!(mapped, [(4096, true), (4096, false), (4096, true), (8192, false)]);
    }

    #[test]
    fn clearing_unmaps_whole_blocks_only() {
        let storage = Storage::new(1 << 20, false);
        storage.write(0, &[7; 12288], false);
        storage.clear(512, 8192, false);
        let mut out = vec![9; 12288];
        storage.read(0, &mut out);
        assert!(out[..512].iter().all(|byte| *byte == 7));
        assert!(out[512..8704].iter().all(|byte| *byte == 0));
        assert!(out[8704..].iter().all(|byte| *byte == 7));
        let extents = storage.extents(0, 12288, 16);
        let mapped: Vec<(u64, bool)> = extents.iter().map(|e| (e.length, e.mapped)).collect();
        assert_eq!(mapped, [(4096, true), (4096, false), (4096, true)]);
    }
}
