//! Records that a checkpoint refers to: what they changed is in their headers, so no run repeats it.
//!
//! A run says of each update since the last cut what it came to: 12 bytes, though a header has just said
//! the same. Where a record is long, its place is enough.
//!
//! # When a header may stand for what a record did
//! Recovery takes every block of it for what its address was changed to, and for released. So it may if
//! of each address nothing but this value was counted afterwards; then nothing of the record goes into the
//! journal. Whatever changes one of its addresses later is in the header of a later reference, or in the
//! journal, and so in the run after it. A relocation may come too late, and change nothing: then the
//! journal is told of the address, so that the run says what holds ([`Map::affirm`]). Of such an address,
//! too, the page may count nothing: a discard of the whole leaf may come, and the run say no more than that.
//!
//! # How long it does
//! - Of a leaf, until the sweep comes by, as with a run; but a reference counts from when its record took
//!   effect, not from the cut: what was swept in between is in the page, and counted there.
//! - Until its segment is emptied. Then each of its blocks has been written again or moved, and what
//!   did so is in a page, a run or a reference that lives longer. (A discard leaves no block behind, so no
//!   record with discards is referred to.) The segment is written again only when a checkpoint
//!   without the reference is durable.
//!
//! # Power-loss contract
//! A checkpoint refers only to records that took effect before its cut, so they were written before its
//! flush, which comes before its superblock: what a superblock leads to by a reference is durable before
//! it. And the header stays: its segment is opened, and its block is taken for a hole, only under a
//! checkpoint that no longer refers to it, and only when both superblocks lead to that one.
//!
//! # Invariants
//! - References are in order of what they did, and no more than the limit: recovery reads a block for
//!   each, from anywhere.
//! - No header that is referred to is taken for a hole: `holes` asks [`References::headers_in`].

use crate::canary::{Canary, sings};
use crate::checkpoint::Copies;
use crate::header_parity::MEMBERS_MAX;
use crate::map::Map;
use crate::memory::{self, NoMemory};
use crate::pacing::reference_count_max;
use crate::segments::{Segments, State};
use crate::units::Stream;
use alloc::vec::Vec;
use coulter_format::checkpoint::{Reference, SweepPosition};
use coulter_format::checksum::Kind;
use coulter_format::superblock::RecoveryBudget;
use coulter_format::{BlockPointer, Pba};

/// A record that is referred to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Referred {
    pub(crate) reference: Reference,
    /// The first header of its group. It is in the list as long as any of the group is.
    pub(crate) group: Pba,
}

/// Which parity blocks a body lists, and for which references. Kept from body to body, for its memory.
#[derive(Default)]
pub(crate) struct Parities {
    /// The first header of each group with parity, in order, and where the parity lies.
    all: Vec<(Pba, BlockPointer)>,
    /// For each reference.
    groups: Vec<Option<usize>>,
}

impl Parities {
    /// Lists those of these references.
    pub(crate) fn list(&mut self, references: &[Referred], copies: &Copies) {
        let parities = self;
        parities.all.clear();
        parities.groups.clear();
        for referred in references {
            // The first of a group comes before the others, and no more groups lie between than there are streams.
            let group = match referred.group == referred.reference.pba {
                true => {
                    copies.pointer(Kind::HeaderParity, referred.group.0.into()).map(|pointer| {
                        parities.all.push((referred.group, pointer));
                        parities.all.len() - 1
                    })
                }
                false => parities.all.iter().rposition(|(first, _)| *first == referred.group),
            };
            parities.groups.push(group);
        }
        assert_eq!(parities.groups.len(), references.len(), "each is in a group or in none");
        assert!(parities.all.len() <= references.len(), "a group has a header");
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = Option<usize>> {
        self.groups.iter().copied()
    }

    pub(crate) fn pointers(&self) -> impl Iterator<Item = BlockPointer> {
        self.all.iter().map(|(_, pointer)| *pointer)
    }
}

/// All that count.
#[derive(Default)]
pub(crate) struct References {
    all: Vec<Referred>,
    limit: usize,
    /// Groups that the sweep has passed in part; empty but in [`References::drop_dead`].
    partly: Vec<Pba>,
}

impl References {
    /// None yet; `found` are those of the checkpoint that recovery begins with.
    pub(crate) fn new(
        budget: &RecoveryBudget,
        found: impl Iterator<Item = Referred>,
    ) -> Result<References, NoMemory> {
        let limit = reference_count_max(budget);
        let mut all = memory::list(limit)?;
        for referred in found {
            memory::push(&mut all, referred)?;
        }
        // A group is as long as it may be, or the only one of its stream.
        let partly = memory::list(Stream::COUNT * MEMBERS_MAX as usize)?;
        Ok(References { all, limit, partly })
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Whether there is room for one more.
    pub(crate) fn have_room(&self) -> bool {
        self.all.len() < self.limit
    }

    /// A record took effect.
    pub(crate) fn add(&mut self, referred: Referred) {
        assert!(self.have_room(), "room is asked for first");
        let last = self.all.last().map_or(0, |last| last.reference.run);
        assert!(last <= referred.reference.run, "they are in order");
        self.all.push(referred);
    }

    /// All of them, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Referred> {
        self.all.iter()
    }

    /// The one whose header lies there.
    pub(crate) fn find(&self, header: Pba) -> Option<&Reference> {
        let mut references = self.all.iter().map(|referred| &referred.reference);
        references.find(|reference| reference.pba == header)
    }

    /// The first so many, in order.
    pub(crate) fn first(&self, count: usize) -> &[Referred] {
        &self.all[..count]
    }

    /// Those of the group of which this is the first header.
    pub(crate) fn of_group(&self, first: Pba) -> impl Iterator<Item = &Reference> {
        let members = self.all.iter().filter(move |referred| referred.group == first);
        members.map(|referred| &referred.reference)
    }

    /// At a cut, when holes were reserved and given up: forgets those of which nothing counts any more.
    /// `dropped` is told of the first of each group.
    pub(crate) fn drop_dead(
        &mut self,
        segments: &Segments,
        position: SweepPosition,
        mut dropped: impl FnMut(Pba),
    ) {
        let is_swept = |referred: &Referred| Map::run_is_dead(referred.reference.sweep, position);
        // They took effect in order, so the sweep comes by in order.
        let swept = self.all.iter().take_while(|referred| is_swept(referred)).count();
        let (before, behind) = self.all.split_at(swept);
        assert!(!behind.iter().any(is_swept), "the sweep comes by in the order of the records");
        // Groups that were swept in part.
        let partly = &mut self.partly;
        if let Some(last) = before.last() {
            // A group ends at a cut, so the same run came next for all of it.
            let near = behind.iter().take_while(|r| r.reference.run == last.reference.run);
            partly.extend(near.map(|referred| referred.group));
            partly.sort_unstable();
            partly.dedup();
        }
        self.all.retain(|referred| {
            let state = segments.segment(segments.of(referred.reference.pba)).state;
            let in_use = matches!(state, State::Open | State::Closed | State::Patching);
            let in_use = in_use || sings(Canary::ReferenceOutlives);
            let needed = !is_swept(referred) || partly.binary_search(&referred.group).is_ok();
            let lives = in_use && needed;
            if !lives && referred.group == referred.reference.pba {
                dropped(referred.group);
            }
            lives
        });
        self.partly.clear();
    }

    /// The headers from one block on up to another that are referred to.
    pub(crate) fn headers_in(&self, blocks: core::ops::Range<u32>) -> impl Iterator<Item = Pba> {
        let headers = self.all.iter().map(|referred| referred.reference.pba);
        headers.filter(move |pba| blocks.contains(&pba.0))
    }
}
