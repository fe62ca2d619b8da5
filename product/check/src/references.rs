//! What points where: a bit per block, a count and a fingerprint per segment.
//!
//! The map is too large to be kept, and the log too large to be searched for every pointer. So each
//! pointer is reduced to a bit ("this block is used") and added to its segment's fingerprint, a sum
//! of hashes of (place, kind, key, checksum). Going through the log later, the same hash of every
//! used block is summed up from the record headers. Equal sums mean that map and log agree about
//! every block of the segment; unequal ones are looked into (`detail`).

use crate::finding::{Finding, Owner};
use crate::report::Report;
use crate::segments::Segments;
use coulter_format::BlockPointer;

/// How a pointer is known, and so what must hold of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The checkpoint lists it: roots, table pages, run blocks, the body. Not counted in the table.
    Listed,
    /// The map at the checkpoint: counted.
    Checkpoint,
    /// The map after replay only.
    Replayed,
}

/// What points into one segment.
#[derive(Debug, Default)]
pub(crate) struct SegmentReferences {
    /// A bit for each block that something points to.
    used: Option<Box<[u64]>>,
    /// A bit for each block of data that is mapped now.
    mapped: Option<Box<[u64]>>,
    /// References that the table counts.
    pub(crate) counted: u32,
    /// All references.
    pub(crate) total: u32,
    pub(crate) fingerprint: u64,
    /// Two pointers lead to one block, or a pointer is known to be wrong.
    pub(crate) suspicious: bool,
}

/// What points where.
#[derive(Debug)]
pub(crate) struct References {
    all: Vec<SegmentReferences>,
    words: usize,
}

impl References {
    pub(crate) fn new(segments: &Segments) -> References {
        let count = segments.layout.segment_count() as usize;
        let words = (segments.layout.segment_blocks() as usize).div_ceil(64);
        let all = std::iter::repeat_with(SegmentReferences::default).take(count).collect();
        References { all, words }
    }

    pub(crate) fn segment(&self, segment: u32) -> Option<&SegmentReferences> {
        self.all.get(segment as usize)
    }

    /// Takes a pointer. `mapped` if it is data that is mapped now.
    pub(crate) fn add(
        &mut self,
        segments: &Segments,
        owner: Owner,
        pointer: BlockPointer,
        source: Source,
        mapped: bool,
        report: &mut Report,
    ) {
        let pba = pointer.pba;
        let Some((place, segment)) = segments.find(pba) else {
            report.add(Finding::PointerOutside { owner, pba });
            return;
        };
        let end = match source {
            Source::Checkpoint => segment.checkpoint_end,
            Source::Listed | Source::Replayed => segment.end,
        };
        if place.offset >= end {
            let segment = place.segment;
            report.add(Finding::PointerIntoFree { owner, pba, segment });
        }
        let Some(entry) = self.all.get_mut(place.segment as usize) else { return };
        entry.counted = entry.counted.saturating_add((source == Source::Checkpoint).into());
        entry.total = entry.total.saturating_add(1);
        entry.fingerprint = entry.fingerprint.wrapping_add(hash(owner, pointer));
        entry.suspicious |= set(&mut entry.used, self.words, place.offset);
        if mapped {
            set(&mut entry.mapped, self.words, place.offset);
        }
    }
}

impl SegmentReferences {
    /// Whether something points to the block.
    pub(crate) fn is_used(&self, offset: u32) -> bool {
        is_set(self.used.as_deref(), offset)
    }

    /// Whether the block is data that is mapped now.
    pub(crate) fn is_mapped(&self, offset: u32) -> bool {
        is_set(self.mapped.as_deref(), offset)
    }
}

/// Sets a bit; returns whether it was set before.
fn set(bits: &mut Option<Box<[u64]>>, words: usize, offset: u32) -> bool {
    let bits = bits.get_or_insert_with(|| vec![0; words].into_boxed_slice());
    let Some(word) = bits.get_mut(offset as usize / 64) else { return false };
    let bit = 1 << (offset % 64);
    let before = *word & bit != 0;
    *word |= bit;
    before
}

fn is_set(bits: Option<&[u64]>, offset: u32) -> bool {
    let word = bits.and_then(|bits| bits.get(offset as usize / 64));
    word.is_some_and(|word| word & (1 << (offset % 64)) != 0)
}

/// A hash of what a block is and where it lies (SplitMix64's finaliser, twice).
pub(crate) fn hash(owner: Owner, pointer: BlockPointer) -> u64 {
    let place = u64::from(pointer.pba.0) << 32 | u64::from(pointer.checksum);
    mix(mix(owner.key ^ (owner.kind as u64) << 56).wrapping_add(place))
}

fn mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
