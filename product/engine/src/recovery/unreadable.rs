//! Blocks of the log behind the checkpoint that the device does not give.
//!
//! A piece of a walk that cannot be read is read again block by block; what is not given stands as zeros. That is no
//! harm where the block is
//! - payload of a record that was durable: the record counts, and reading the address is an error, as for any block of
//!   data that cannot be read;
//! - behind the end of the log, where it could only attest that something else is missing;
//! - among holes, and the checkpoint refers to it: it is no hole, so no new header.
//!
//! Everywhere else nothing tells whether what cannot be read was durable, so the store is opened degraded or not at all:
//! the header with which the log would go on, unless another one tells of it; payload of a record that nothing attests
//! to be durable; and any other block among holes, where each may be a header.

use super::PAGE;
use super::{Found, JobKind, Recovery};
use crate::api::{Buffers, IoResult, RecordRef, Target};
use crate::canary::{Canary, sings};
use crate::error::OpenError;
use crate::holes::Headers;
use crate::memory;
use crate::shared::Shared;
use alloc::vec::Vec;
use coulter_format::{BLOCK_SIZE, Pba};

/// What a walk reads at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) pba: Pba,
    pub(super) count: u32,
    pub(super) buffer: RecordRef,
}

/// Blocks that the device does not give.
#[derive(Default)]
pub(super) struct Unreadable {
    blocks: Vec<Refused>,
}

/// A block that the device does not give.
#[derive(Clone, Copy, Debug)]
struct Refused {
    pba: Pba,
    /// What the device said.
    errno: i32,
    /// It lies in a segment where any block may be a header.
    is_among_holes: bool,
    /// It is known not to be a header of the log behind the checkpoint.
    is_known: bool,
}

impl Unreadable {
    /// By place, each once.
    fn sort(&mut self) {
        self.blocks.sort_unstable_by_key(|block| block.pba);
        self.blocks.dedup_by_key(|block| block.pba);
    }

    /// What lies there is known, be it readable or not.
    fn know(&mut self, pba: Pba) {
        if let Ok(index) = self.blocks.binary_search_by_key(&pba, |block| block.pba) {
            self.blocks[index].is_known = true;
        }
    }
}

impl Recovery {
    /// A piece of a walk could not be read as a whole.
    pub(super) fn begin_walk_blocks(&mut self, shared: &mut Shared, walk: usize, piece: Piece) {
        self.read_walk_block(shared, walk, piece, 0);
    }

    /// Before all that was asked for otherwise: single blocks are read into one page.
    fn read_walk_block(&mut self, shared: &mut Shared, walk: usize, piece: Piece, next: u32) {
        assert!(next < piece.count, "a piece has an end");
        let kind = JobKind::WalkBlock { walk, piece, next };
        self.start_job(shared, kind, piece.pba.plus(next), 1, Target::Page(PAGE));
        self.hurry_newest();
    }

    /// A block of a piece was read, or was not. Returns whether it was the last.
    pub(super) fn take_walk_block(
        &mut self,
        shared: &mut Shared,
        (walk, piece, next): (usize, Piece, u32),
        result: IoResult,
        buffers: &mut impl Buffers,
    ) -> Result<bool, OpenError> {
        let block = match result {
            Ok(()) => *buffers.page(PAGE),
            Err(errno) => {
                let refused = Refused {
                    pba: piece.pba.plus(next),
                    errno,
                    is_among_holes: self.walks[walk].headers == Headers::Anywhere,
                    is_known: false,
                };
                memory::push(&mut self.unreadable.blocks, refused)?;
                [0; BLOCK_SIZE]
            }
        };
        buffers.record_mut(piece.buffer)[next as usize] = block;
        if next + 1 < piece.count {
            self.read_walk_block(shared, walk, piece, next + 1);
        }
        Ok(next + 1 == piece.count)
    }

    /// Whether anything that could not be read may have been durable, and would be dropped.
    pub(super) fn assert_readable(&mut self, shared: &Shared) -> Result<(), OpenError> {
        if self.unreadable.blocks.is_empty() || sings(Canary::UnreadableDropped) {
            return Ok(());
        }
        self.note_what_is_known(shared);
        let dropped = self.found[self.accepted..].iter().filter(|found| !found.intact);
        let of_dropped = |found: &Found| {
            let blocks = found.pba.0..found.pba.0 + found.span;
            self.unreadable.blocks.iter().find(move |block| blocks.contains(&block.pba.0))
        };
        let is_end = |pba: Pba| self.walks.iter().any(|walk| walk.end == Some(pba));
        let may_be_header = |block: &&Refused| match block.is_among_holes {
            true => !block.is_known,
            false => is_end(block.pba),
        };
        let mut dropped = dropped.filter_map(of_dropped);
        let mut headers = self.unreadable.blocks.iter().filter(may_be_header);
        match dropped.next().or(headers.next()) {
            Some(block) => Err(OpenError::Device(block.errno)),
            None => Ok(()),
        }
    }

    /// What the checkpoint refers to is not written anew before the next one, and payload of a record that counts is
    /// payload.
    fn note_what_is_known(&mut self, shared: &Shared) {
        self.unreadable.sort();
        self.unreadable.blocks.iter_mut().for_each(|block| block.is_known = false);
        let lists = &shared.lists;
        let headers = lists.references.first(lists.references.count()).iter();
        headers.for_each(|referred| self.unreadable.know(referred.reference.pba));
        let runs = lists.runs.iter().flat_map(|run| &run.blocks);
        runs.chain(&lists.table).for_each(|pointer| self.unreadable.know(pointer.pba));
        for found in &self.found[..self.accepted] {
            let entries = &self.entries[found.first_entry as usize..][..found.entry_count as usize];
            entries.iter().for_each(|entry| self.unreadable.know(entry.pba));
        }
    }
}
