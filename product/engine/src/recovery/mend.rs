//! Headers that were damaged and are rebuilt are written again where they lie, before anything else is written.
//!
//! # Power-loss contract
//! What is written is what was there: a header of a record that counts, verified. Cut off, it is as damaged as before, and
//! what it was rebuilt from is untouched. So the order of this write and others does not matter, nor whether it fails.

use super::PAGE;
use super::{JobKind, ReadJob, Recovery};
use crate::api::{Buffers, Command, Target};
use crate::ios::Purpose;
use crate::memory::{self, NoMemory};
use crate::shared::Shared;
use crate::units::Stream;
use coulter_format::{Block, Pba};

/// Headers that one opening writes again, at most; others stay damaged until the next.
const MENDED_MAX: usize = 16;

impl Recovery {
    /// A header was rebuilt.
    pub(super) fn mend(&mut self, pba: Pba, block: &Block) -> Result<(), NoMemory> {
        if self.mended.len() < MENDED_MAX {
            memory::reserve(&mut self.mended_blocks)?;
            memory::push(&mut self.mended, pba)?;
            self.mended_blocks.extend_from_slice(core::slice::from_ref(block));
        }
        Ok(())
    }

    /// Writes what was rebuilt, one block after the other. Returns whether all is done.
    pub(super) fn mend_on(&mut self, shared: &mut Shared, buffers: &mut impl Buffers) -> bool {
        assert_eq!(self.mended.len(), self.mended_blocks.len(), "each has its place");
        // A page that is written again may be lost with what else lies in it.
        if shared.config.read_only || shared.superblock.geometry.has_pages() {
            return true;
        }
        // How it ended is of no matter: what could not be written is as damaged as before.
        let has_ended = self.take_job().is_some();
        if !has_ended && self.jobs_out() {
            return false;
        }
        let (Some(pba), Some(block)) = (self.mended.pop(), self.mended_blocks.last()) else {
            return true;
        };
        buffers.page_mut(PAGE).copy_from_slice(block);
        self.mended_blocks.pop();
        let target = Target::Page(PAGE);
        let job = ReadJob { kind: JobKind::Mend, target, pba, count: 1, result: None };
        assert!(!self.jobs_out(), "one block is written at a time");
        self.jobs[0] = Some(job);
        self.in_order.push_back(0);
        let stream = Stream::Metadata;
        let command = Command::Write { pba, count: 1, source: target, stream };
        shared.ios.start(Purpose::Recover(0), command);
        false
    }
}
