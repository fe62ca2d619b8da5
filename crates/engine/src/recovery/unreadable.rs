//! Blocks of the log behind the checkpoint that the device does not give.
//!
//! A piece of a walk that cannot be read is read again block by block; what is not given stands as zeros. That is no
//! harm where the block is
//! - payload of a record that was durable: the record counts, and reading the address is an error, as for any block of
//!   data that cannot be read;
//! - behind the end of the log, where it could only attest that something else is missing.
//!
//! Everywhere else nothing tells whether what cannot be read was durable, so the store is not opened: the header
//! with which the log would go on, unless another one tells of it; payload of a record that nothing attests to be durable; and any block among holes,
//! where each may be a header.

use super::fetch::PAGE;
use super::{Found, JobKind, Recovery};
use crate::api::{Buffers, IoResult, OpenError, RecordRef, Target};
use crate::canary::{Canary, sings};
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

/// Blocks that the device does not give, and what it said.
#[derive(Default)]
pub(super) struct Unreadable {
    blocks: Vec<(Pba, i32)>,
}

impl Recovery {
    /// A piece of a walk could not be read as a whole.
    pub(super) fn begin_walk_blocks(
        &mut self,
        shared: &mut Shared,
        walk: usize,
        piece: Piece,
        errno: i32,
    ) -> Result<(), OpenError> {
        if self.walks[walk].headers == Headers::Anywhere {
            return Err(OpenError::Device(errno));
        }
        self.read_walk_block(shared, walk, piece, 0);
        Ok(())
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
                memory::push(&mut self.unreadable.blocks, (piece.pba.plus(next), errno))?;
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
    pub(super) fn assert_readable(&self) -> Result<(), OpenError> {
        if sings(Canary::UnreadableDropped) {
            return Ok(());
        }
        let dropped = self.found[self.accepted..].iter().filter(|found| !found.intact);
        let of_dropped = |found: &Found| {
            let blocks = found.pba.0..found.pba.0 + found.span;
            self.unreadable.blocks.iter().find(move |(pba, _)| blocks.contains(&pba.0))
        };
        let mut met = dropped.filter_map(of_dropped).map(|(_, errno)| *errno);
        let is_end = |pba: &Pba| self.walks.iter().any(|walk| walk.end == Some(*pba));
        let mut ends = self.unreadable.blocks.iter().filter(|(pba, _)| is_end(pba));
        match met.next().or(ends.next().map(|(_, errno)| *errno)) {
            Some(errno) => Err(OpenError::Device(errno)),
            None => Ok(()),
        }
    }
}
