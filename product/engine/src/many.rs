//! Writes of several ranges that take effect together or not at all.
//!
//! All ranges of such a write go into one record. Recovery takes a record whole or drops it, so no
//! crash separates them. What the header and the map's promises have room for bounds the write:
//! [`check`] is the rule, a pure function of the ranges.
//!
//! # Invariants
//! - A write that [`check`] accepts fits into every empty record, also into a scattered one.
//! - Its ranges do not overlap, so their order among themselves means nothing.
//! - What came before it and touches one of its ranges takes effect before it; what comes later and
//!   touches one of them takes effect after it.

use crate::api::{BufferRef, Buffers, Busy, Change, ChangeKind, Failure, RequestId};
use crate::canary::{Canary, sings};
use crate::group::Choice;
use crate::requests::Work;
use crate::room::Admission;
use crate::shared::Shared;
use crate::units::{Origin, Stream};
use crate::writes::{DISCARD_STEP, LEAF, Place, Staged, Writes, discard_updates};
use alloc::vec::Vec;
use coulter_format::Lba;
use coulter_format::checksum::Kind;
use coulter_format::record::{
    ATOMIC_BLOCKS_MAX, DISCARD_BLOCKS_MAX, EXTENT_SIZE, Extent, SCATTERED_BODY_SIZE,
};

/// Ranges of one write at most.
pub const CHANGES_MAX: usize = 200;

/// Map updates that one write may cause at most: one for each block written, one for each aligned
/// run of 512 blocks (2 MiB) that is discarded whole, one for each other block discarded.
pub const UPDATES_MAX: usize = 1024;

/// Extents of one write at most. A long discard takes one for every [`DISCARD_STEP`] blocks.
pub(crate) const EXTENTS_MAX: usize =
    CHANGES_MAX + (UPDATES_MAX + 2 * CHANGES_MAX) / (DISCARD_STEP / LEAF) as usize + 1;

const _: () = assert!(EXTENTS_MAX * EXTENT_SIZE + ATOMIC_BLOCKS_MAX * 4 <= SCATTERED_BODY_SIZE);
const _: () = assert!(DISCARD_STEP <= DISCARD_BLOCKS_MAX as u64);

/// Why ranges cannot be written together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChangesError {
    /// There is no range.
    None,
    /// There are more than [`CHANGES_MAX`] ranges.
    TooMany,
    /// A range has no blocks, or ends beyond 2^63.
    Range(Lba),
    /// More blocks are to be written than one record holds: 256.
    TooMuchData,
    /// More than [`UPDATES_MAX`] map updates.
    TooManyUpdates,
    /// This block is in two ranges.
    Overlapping(Lba),
}

impl core::fmt::Display for ChangesError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ChangesError::None => f.write_str("the write has no ranges"),
            ChangesError::TooMany => write!(f, "the write has more than {CHANGES_MAX} ranges"),
            ChangesError::Range(lba) => {
                write!(f, "the range at block {} has no blocks, or too many", lba.0)
            }
            ChangesError::TooMuchData => {
                f.write_str("the ranges to be written have more blocks than one record holds")
            }
            ChangesError::TooManyUpdates => {
                write!(f, "the ranges change more than {UPDATES_MAX} entries of the map")
            }
            ChangesError::Overlapping(lba) => {
                write!(f, "block {} is in two ranges of one write", lba.0)
            }
        }
    }
}

impl core::error::Error for ChangesError {}

/// Whether the ranges can be written together. `sorted` is scratch memory.
///
/// # Errors
/// [`ChangesError`].
pub fn check(changes: &[Change], sorted: &mut Vec<(u64, u64)>) -> Result<(), ChangesError> {
    if changes.is_empty() {
        return Err(ChangesError::None);
    }
    if changes.len() > CHANGES_MAX {
        return Err(ChangesError::TooMany);
    }
    sorted.clear();
    for change in changes {
        let end = change.lba.0.saturating_add(change.count.into());
        if change.count == 0 || end > coulter_format::address::LBA_LIMIT {
            return Err(ChangesError::Range(change.lba));
        }
        sorted.push((change.lba.0, end));
    }
    sorted.sort_unstable();
    for pair in sorted.windows(2) {
        if let [(_, end), (next, _)] = pair
            && next < end
        {
            return Err(ChangesError::Overlapping(Lba(*next)));
        }
    }
    let (data, updates) = weigh(changes);
    if data > ATOMIC_BLOCKS_MAX {
        return Err(ChangesError::TooMuchData);
    }
    if updates > UPDATES_MAX { Err(ChangesError::TooManyUpdates) } else { Ok(()) }
}

/// Blocks to be written, and map updates, both in all.
fn weigh(changes: &[Change]) -> (usize, usize) {
    changes.iter().fold((0, 0), |(data, updates), change| {
        let (lba, end) = (change.lba, change.lba.0 + u64::from(change.count));
        match change.kind {
            ChangeKind::Write => (data + change.count as usize, updates + change.count as usize),
            ChangeKind::Discard => (data, updates + discard_updates(lba, end)),
        }
    })
}

/// What a write of several ranges looks like in a record.
fn extents_of(changes: &[Change], extents: &mut Vec<Extent>) {
    extents.clear();
    for change in changes {
        let (mut key, end) = (change.lba.0, change.lba.0 + u64::from(change.count));
        while key < end {
            let (kind, step_end) = match change.kind {
                ChangeKind::Write => (Kind::Data, end),
                ChangeKind::Discard => (Kind::Discard, (key / LEAF * LEAF + DISCARD_STEP).min(end)),
            };
            extents.push(Extent { key, count: (step_end - key) as u16, kind, relocated: false });
            key = step_end;
        }
    }
    assert!(extents.len() <= EXTENTS_MAX, "the bound on extents holds");
}

/// A write of several ranges, as it will lie in a record.
#[derive(Clone, Copy)]
struct Together<'a> {
    extents: &'a [Extent],
    updates: usize,
    buffer: BufferRef,
    fua: bool,
}

impl Writes {
    pub(crate) fn accept_many(
        &mut self,
        shared: &mut Shared,
        id: RequestId,
        changes: &[Change],
        buffer: BufferRef,
        fua: bool,
        buffers: &mut impl Buffers,
    ) -> Result<(), Busy> {
        let (data, updates) = weigh(changes);
        assert!((1..=CHANGES_MAX).contains(&changes.len()), "the driver checks the ranges");
        assert!(
            data <= ATOMIC_BLOCKS_MAX && updates <= UPDATES_MAX,
            "the driver checks the ranges"
        );
        if shared.requests.discard_under_way || shared.requests.is_full() {
            return Err(Busy);
        }
        let mut extents = core::mem::take(&mut self.extents);
        assert!(extents.capacity() >= EXTENTS_MAX, "room for the most is kept");
        extents_of(changes, &mut extents);
        let together = Together { extents: &extents, updates, buffer, fua };
        let taken = self.try_accept_many(shared, id, together, buffers);
        self.extents = extents;
        taken
    }

    fn try_accept_many(
        &mut self,
        shared: &mut Shared,
        id: RequestId,
        together: Together<'_>,
        buffers: &mut impl Buffers,
    ) -> Result<(), Busy> {
        let Together { extents, updates, buffer, fua } = together;
        assert!(!extents.is_empty() && updates > 0, "a write of several ranges changes something");
        let promised = match shared.admission(extents) {
            Admission::Free(promised) => promised,
            Admission::Wait => return Err(Busy),
            Admission::Full => {
                shared.requests.respond(id, Err(Failure::Full));
                return Ok(());
            }
        };
        let has_discard = extents.iter().any(|extent| extent.kind == Kind::Discard);
        let splits = shared.group.splits(shared.placer.splits_user_data());
        // A discard may cover any number of addresses: the group notes none of them.
        let place = if has_discard {
            self.place_of_discard(shared, buffers)
        } else {
            let wanted = if splits {
                self.expected_stream(shared, Lba(extents[0].key))
            } else {
                Stream::User
            };
            Place { wanted, choice: self.choice_of_many(shared, extents) }
        };
        if sings(Canary::ManyTorn) && extents.len() > 1 {
            return self.tear_many(shared, id, extents, buffer, fua, buffers);
        }
        let record = self.user_record(shared, place, extents, updates, buffers).ok_or(Busy)?;
        shared.promise(record, promised);
        if has_discard {
            shared.promise_discard(record);
        }
        let work = Work::Write { parts: 1, fua };
        let slot = shared.requests.insert(id, work).expect("the table was not full");
        let staged = Staged { record, slot, buffer, splits };
        self.stage_extents(shared, staged, extents, 0, buffers);
        if has_discard {
            let stream = shared.log.record(record).stream;
            shared.group.pin(stream);
        }
        Ok(())
    }

    /// Puts the extents into the record; their data begins at block `source` of the buffer.
    fn stage_extents(
        &mut self,
        shared: &mut Shared,
        staged: Staged,
        extents: &[Extent],
        mut source: u32,
        buffers: &mut impl Buffers,
    ) {
        for extent in extents {
            match extent.kind {
                Kind::Discard => {
                    shared.log.record_mut(staged.record).push_extent(*extent);
                    let discarded = &mut shared.statistics.user_blocks_discarded;
                    *discarded = discarded.saturating_add(extent.count.into());
                }
                _ => {
                    self.stage_write(shared, staged, *extent, source, buffers);
                    source += u32::from(extent.count);
                    assert!(source as usize <= ATOMIC_BLOCKS_MAX, "a request holds no more");
                }
            }
        }
        shared.log.record_mut(staged.record).requests.push(staged.slot);
    }

    /// Where a write of several ranges, none of them a discard, may go.
    fn choice_of_many(&self, shared: &Shared, extents: &[Extent]) -> Choice {
        extents.iter().fold(Choice::Any, |choice, extent| {
            let other = shared.group.choice(Lba(extent.key), extent.count.into());
            match (choice, other) {
                (Choice::Any, choice) | (choice, Choice::Any) => choice,
                (Choice::Only(one), Choice::Only(another)) if one == another => choice,
                _ => Choice::Next,
            }
        })
    }

    /// The canary: the ranges go into two records that no group joins.
    fn tear_many(
        &mut self,
        shared: &mut Shared,
        id: RequestId,
        extents: &[Extent],
        buffer: BufferRef,
        fua: bool,
        buffers: &mut impl Buffers,
    ) -> Result<(), Busy> {
        let place = Place { wanted: Stream::User, choice: Choice::Only(Stream::User) };
        let (first, second) = extents.split_at(extents.len() / 2);
        let needed = |extents: &[Extent]| {
            let covered = extents.iter().map(|extent| usize::from(extent.count));
            covered.sum::<usize>()
        };
        if shared.log.in_flight(Origin::User) > 0 {
            return Err(Busy);
        }
        shared.seal_group(buffers);
        let record = self.user_record(shared, place, first, needed(first), buffers).ok_or(Busy)?;
        let work = Work::Write { parts: 2, fua };
        let slot = shared.requests.insert(id, work).expect("the table was not full");
        let splits = false;
        self.stage_extents(shared, Staged { record, slot, buffer, splits }, first, 0, buffers);
        shared.seal_group(buffers);
        let record = self.user_record(shared, place, second, needed(second), buffers);
        let record = record.expect("there is room for the second half of the mistake");
        let source = first.iter().map(|extent| extent.payload_blocks() as u32).sum();
        self.stage_extents(
            shared,
            Staged { record, slot, buffer, splits },
            second,
            source,
            buffers,
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(lba: u64, count: u32) -> Change {
        Change { lba: Lba(lba), count, kind: ChangeKind::Write }
    }

    fn discard(lba: u64, count: u32) -> Change {
        Change { lba: Lba(lba), count, kind: ChangeKind::Discard }
    }

    fn checked(changes: &[Change]) -> Result<(), ChangesError> {
        check(changes, &mut Vec::new())
    }

    #[test]
    fn what_fits_one_record_is_taken_and_all_else_is_told_apart() {
        assert_eq!(checked(&[]), Err(ChangesError::None));
        assert_eq!(checked(&[write(7, 0)]), Err(ChangesError::Range(Lba(7))));
        assert_eq!(checked(&[write((1 << 63) - 1, 1)]), Ok(()));
        assert_eq!(
            checked(&[write((1 << 63) - 1, 2)]),
            Err(ChangesError::Range(Lba((1 << 63) - 1)))
        );
        assert_eq!(checked(&[write(5, 256)]), Ok(()));
        assert_eq!(checked(&[write(5, 256), write(999, 1)]), Err(ChangesError::TooMuchData));
        let single: Vec<_> = (0..=CHANGES_MAX as u64).map(|lba| write(2 * lba, 1)).collect();
        assert_eq!(checked(&single[1..]), Ok(()));
        assert_eq!(checked(&single), Err(ChangesError::TooMany));
        assert_eq!(checked(&[write(9, 4), discard(6, 3)]), Ok(()));
        assert_eq!(checked(&[write(9, 4), discard(6, 4)]), Err(ChangesError::Overlapping(Lba(9))));
        // A leaf that goes whole is one update; parts of leaves are one for each block.
        assert_eq!(checked(&[discard(0, 512 * 1024)]), Ok(()));
        assert_eq!(checked(&[discard(0, 512 * 1025)]), Err(ChangesError::TooManyUpdates));
        assert_eq!(checked(&[discard(1, 1022), write(4096, 2)]), Ok(()));
        assert_eq!(checked(&[discard(1, 1022), write(4096, 3)]), Err(ChangesError::TooManyUpdates));
    }

    #[test]
    fn the_largest_write_of_several_ranges_fits_the_smallest_header() {
        let mut changes: Vec<_> = (0..199).map(|index| write(index * 1000, 1)).collect();
        changes.push(write(1 << 40, 57));
        let mut extents = Vec::new();
        extents_of(&changes, &mut extents);
        let cost = extents
            .iter()
            .fold(coulter_format::record::Cost::default(), |cost, extent| cost.with(extent));
        assert!(cost.fits(coulter_format::record::HeaderRoom::Scattered));
        extents_of(&[discard(3, 512 * 900)], &mut extents);
        let covered: u64 = extents.iter().map(|extent| u64::from(extent.count)).sum();
        assert_eq!((covered, extents.len()), (512 * 900, 8));
    }
}
