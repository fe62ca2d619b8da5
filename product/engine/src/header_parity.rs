//! Parity over headers that checkpoints refer to: one that is damaged is rebuilt from the others of its group.
//!
//! A referred header is the only place that tells where the blocks of its record belong. A group is of headers in one
//! segment, one behind the other, which took effect between two cuts. Its parity block is their XOR. It is written
//! into the metadata stream when the group is full or its stream has left the segment, or at a cut.
//!
//! The headers of a group lie in one segment, so they are overwritten together: none of them is missing while a
//! checkpoint refers to another one.
//!
//! # Does not
//! delay anything: while there is no room for another parity block, records are not referred to, and the run says what
//! they changed.

mod writing;

use crate::canary::{Canary, sings};
use crate::memory::{self, NoMemory};
use crate::units::{SegmentIndex, Stream};
use alloc::vec::Vec;
use coulter_format::{BLOCK_SIZE, Block, Pba};

/// Parity blocks that may be in memory: an open one of each stream, and those that wait while a checkpoint is written.
pub(crate) const WAITING_MAX: usize = 24;

/// So many are written together, behind one header of their own.
const TOGETHER: usize = 16;

/// Headers in a group. More would save less than 0.02 % of what is written, and make it likelier that two are damaged.
pub(crate) const MEMBERS_MAX: u32 = 16;

/// A group of headers.
#[derive(Clone, Copy, Debug)]
struct Group {
    /// Its first header, by which it is known.
    first: Pba,
    stream: Stream,
    segment: SegmentIndex,
    members: u32,
    /// No other header is added.
    is_closed: bool,
}

/// Groups of which the parity is not written yet.
pub(crate) struct HeaderParities {
    groups: Vec<Group>,
    /// The parity of each.
    blocks: Vec<Block>,
}

impl HeaderParities {
    pub(crate) fn new() -> Result<HeaderParities, NoMemory> {
        let groups = memory::list(WAITING_MAX)?;
        let blocks = memory::filled([0; BLOCK_SIZE], WAITING_MAX)?;
        Ok(HeaderParities { groups, blocks })
    }

    /// Whether another header can be taken, whichever it is.
    pub(crate) fn have_room(&self) -> bool {
        self.groups.len() < WAITING_MAX
    }

    /// Takes the header that lies at `pba` in `segment`. Returns the first header of its group.
    pub(crate) fn take(
        &mut self,
        pba: Pba,
        segment: SegmentIndex,
        stream: Stream,
        header: &Block,
    ) -> Pba {
        assert!(self.have_room(), "room is asked for first");
        assert_ne!(pba, Pba::NOWHERE, "a header lies somewhere");
        let mut open = self.groups.iter_mut().zip(&mut self.blocks);
        if let Some((group, parity)) = open.find(|(g, _)| g.stream == stream && !g.is_closed) {
            if group.segment == segment {
                assert!(pba > group.first, "headers of a segment take effect in order");
                group.members += 1;
                group.is_closed = group.members == MEMBERS_MAX;
                assert!(group.members <= MEMBERS_MAX, "a group that is full is closed");
                if !sings(Canary::ParityIncomplete) {
                    xor(parity, header);
                }
                return group.first;
            }
            group.is_closed = true;
        }
        self.blocks[self.groups.len()] = *header;
        assert_eq!(self.blocks.len(), WAITING_MAX, "there is a block for each group");
        self.groups.push(Group { first: pba, stream, segment, members: 1, is_closed: false });
        pba
    }

    /// Takes out any group: its first header, and the parity.
    pub(crate) fn pop(&mut self) -> Option<(Pba, &Block)> {
        let group = self.groups.pop()?;
        assert!((1..=MEMBERS_MAX).contains(&group.members), "a group has members");
        Some((group.first, &self.blocks[self.groups.len()]))
    }

    fn count_closed(&self) -> usize {
        self.groups.iter().filter(|group| group.is_closed).count()
    }
}

/// Adds a block to a parity, or takes it out.
pub(crate) fn xor(parity: &mut Block, block: &Block) {
    let (parity, _) = parity.as_chunks_mut::<8>();
    for (target, source) in parity.iter_mut().zip(block.as_chunks::<8>().0) {
        *target = (u64::from_ne_bytes(*target) ^ u64::from_ne_bytes(*source)).to_ne_bytes();
    }
}
