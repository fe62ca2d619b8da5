//! Host writes and discards: into the record that the user stream is filling.

use crate::api::{BufferRef, Buffers, Busy, Failure, Phase, RecordRef, RequestId};
use crate::group::Choice;
use crate::memory::{self, NoMemory};
use crate::placement::Placement;
use crate::requests::Work;
use crate::room::Admission;
use crate::shared::Shared;
use crate::units::{Origin, Stream};
use alloc::boxed::Box;
use alloc::vec::Vec;
use coulter_format::checksum::Kind;
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::record::{ATOMIC_BLOCKS_MAX, BlockWord, DISCARD_BLOCKS_MAX, Extent};
use coulter_format::{Lba, Pba};

pub(crate) const LEAF: u64 = ENTRIES_PER_PAGE as u64;

/// Blocks of one discard extent: as many whole leaves as fit.
pub(crate) const DISCARD_STEP: u64 = DISCARD_BLOCKS_MAX as u64 / LEAF * LEAF;

/// A write of one range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostWrite {
    pub(crate) lba: Lba,
    pub(crate) count: u32,
    pub(crate) buffer: BufferRef,
    pub(crate) fua: bool,
}

/// Writes and discards of the host.
pub(crate) struct Writes {
    /// Checksums of the blocks of the write that is being staged.
    checksums: Box<[u32; ATOMIC_BLOCKS_MAX]>,
    /// Extents of the write of several ranges in hand; kept for its memory.
    pub(crate) extents: Vec<Extent>,
}

impl Writes {
    pub(crate) fn new() -> Result<Writes, NoMemory> {
        Ok(Writes {
            checksums: memory::boxed(0)?,
            extents: memory::list(crate::many::EXTENTS_MAX)?,
        })
    }

    #[inline]
    pub(crate) fn accept_write(
        &mut self,
        shared: &mut Shared,
        id: RequestId,
        write: HostWrite,
        buffers: &mut impl Buffers,
    ) -> Result<(), Busy> {
        let HostWrite { lba, count, buffer, fua } = write;
        assert!((1..=ATOMIC_BLOCKS_MAX as u32).contains(&count), "the driver checks the range");
        let extent = Extent { key: lba.0, count: count as u16, kind: Kind::Data, relocated: false };
        let waits = shared.requests.discard_under_way || shared.requests.is_full();
        if waits {
            return Err(Busy);
        }
        let promised = match shared.admission(core::slice::from_ref(&extent)) {
            Admission::Free(promised) => promised,
            Admission::Wait => return Err(Busy),
            Admission::Full => {
                shared.requests.respond(id, Err(Failure::Full));
                return Ok(());
            }
        };
        let splits = shared.group.splits(shared.placer.splits_user_data());
        let wanted = match splits || shared.placer.wants_sample() {
            true => self.expected_stream(shared, lba),
            false => Stream::User,
        };
        let wanted = if splits { wanted } else { Stream::User };
        let place = Place { wanted, choice: shared.group.choice(lba, count) };
        let extents = core::slice::from_ref(&extent);
        let record = self.user_record(shared, place, extents, count as usize, buffers);
        let record = record.ok_or(Busy)?;
        shared.promise(record, promised);
        let work = Work::Write { parts: 1, fua };
        let slot = shared.requests.insert(id, work).expect("the table was not full");
        self.stage_write(shared, Staged { record, slot, buffer, splits }, extent, 0, buffers);
        shared.log.record_mut(record).requests.push(slot);
        Ok(())
    }

    /// Puts one range of a write into the record that has room for it. Its data begins at block
    /// `source` of the buffer.
    #[inline]
    pub(crate) fn stage_write(
        &mut self,
        shared: &mut Shared,
        staged: Staged,
        extent: Extent,
        source: u32,
        buffers: &mut impl Buffers,
    ) {
        let Staged { record, buffer, splits, .. } = staged;
        let (lba, count) = (Lba(extent.key), u32::from(extent.count));
        let clock = shared.log.write_clock;
        let target = shared.log.record_mut(record);
        shared.group.note(lba, count, target.stream, splits);
        let first = target.payload;
        assert_eq!(target.words.len(), first as usize, "a word for each block before it");
        assert!(count > 0 && count as usize <= self.checksums.len(), "a range has blocks");
        let checksums = &mut self.checksums[..count as usize];
        buffers.stage(buffer, source, record, first, lba, checksums);
        let word = |checksum: &u32| BlockWord { checksum: *checksum, address: Pba::NOWHERE };
        target.words.extend(checksums.iter().map(word));
        target.push_extent(extent);
        assert_eq!(target.payload, first + count, "what was staged is what it says");
        target.user_blocks += u64::from(count);
        target.timed += count;
        target.times += u128::from(clock) * u128::from(count);
        let appended = target.place.is_appended();
        let class = target.stream.class();
        shared.statistics.user_blocks_by_class[class] += u64::from(count);
        shared.statistics.user_blocks_written += u64::from(count);
        if appended {
            shared.pacing.earn(u64::from(count));
        }
    }

    /// How long ago the block that lies at this address was written; `None` if none does, or memory
    /// does not tell.
    fn age(&self, shared: &Shared, lba: Lba) -> Option<u64> {
        let pba = shared.map.location(lba)?;
        let written = shared.segments.mean_time(shared.segments.of(pba));
        Some(shared.log.write_clock.saturating_sub(written))
    }

    /// The stream in which a block at this address is expected to be among its like.
    pub(crate) fn expected_stream(&mut self, shared: &mut Shared, lba: Lba) -> Stream {
        let age = self.age(shared, lba);
        shared.placer.note_overwrite(age);
        if shared.placer.placement() == Placement::Scattered {
            return Stream::USER[(lba.0 % 3) as usize];
        }
        shared.placer.user_stream(age)
    }

    /// A discard follows everything that was accepted before: what is being filled for several
    /// streams goes out first.
    pub(crate) fn place_of_discard(
        &mut self,
        shared: &mut Shared,
        buffers: &mut impl Buffers,
    ) -> Place {
        let mut filled = shared.log.streams_filled_by(Origin::User);
        let (first, second) = (filled.next(), filled.next());
        drop(filled);
        if second.is_some() {
            shared.seal_group(buffers);
            let filled = shared.log.streams_filled_by(Origin::User).count();
            assert_eq!(filled, 0, "a group goes as a whole");
        }
        let wanted = first.filter(|_| second.is_none()).unwrap_or(Stream::User);
        Place { wanted, choice: Choice::Only(wanted) }
    }

    /// A user stream's record with room for this, the map having promised `updates`.
    pub(crate) fn user_record(
        &mut self,
        shared: &mut Shared,
        place: Place,
        extents: &[Extent],
        updates: usize,
        buffers: &mut impl Buffers,
    ) -> Option<RecordRef> {
        // A discard that was begun before the shutdown is logged to its end.
        if !matches!(shared.phase, Phase::Running | Phase::ShuttingDown) {
            return None;
        }
        if !shared.map.journal_admits(updates) {
            // A checkpoint makes room of what was noted. What was promised must take effect first.
            shared.signals.checkpoint |= shared.map.promises_fit_journal(updates);
            return None;
        }
        shared.signals.recovery_memory = !shared.map.recovery_admits(updates);
        if shared.signals.recovery_memory {
            return None;
        }
        let record = self.placed_record(shared, place, extents, buffers)?;
        if !shared.map.reserve(updates) {
            shared.signals.memory = true;
            self.abandon_if_empty(shared, record);
            return None;
        }
        assert!(updates > 0, "a change is an update at least");
        shared.log.record_mut(record).reserved += updates;
        Some(record)
    }

    /// The record of the wanted stream; of another one if there is no room for the wanted one and
    /// the order does not mind.
    fn placed_record(
        &mut self,
        shared: &mut Shared,
        place: Place,
        extents: &[Extent],
        buffers: &mut impl Buffers,
    ) -> Option<RecordRef> {
        let (stream, mut is_free) = match place.choice {
            Choice::Any => (place.wanted, true),
            Choice::Only(stream) => (stream, false),
            Choice::Next => {
                shared.seal_group(buffers);
                (place.wanted, true)
            }
        };
        if let Some(record) = shared.log.fitting_all(stream, Origin::User, extents) {
            return Some(record);
        }
        if shared.log.filling(stream).is_some() {
            if shared.log.filled_by(stream, Origin::User).is_some() && !shared.group_may_go() {
                return None;
            }
            // Full, or the cleaner's. With a group sealed, nothing is left that the order minds.
            is_free |= shared.log.filled_by(stream, Origin::User).is_some();
            shared.seal(stream, buffers);
        }
        let blocks = extents.iter().map(Extent::payload_blocks).sum::<usize>() as u32;
        let keep = shared.pacing.kept_by_user();
        // The head of a stream that the cleaner writes to may be one of the segments that it was left.
        let is_shared = shared.placer.cleaning_streams().contains(&stream);
        if is_shared
            && shared.segments.usable_count() < keep
            && shared.pacing.is_cleaning_worthwhile()
        {
            return None;
        }
        let begun = shared.log.begin(&mut shared.segments, stream, Origin::User, blocks, keep);
        // As long as the cleaner makes room it is worth waiting for: what goes to the wrong segment
        // now must be relocated later.
        if begun.is_some() || !is_free || shared.pacing.is_cleaning_worthwhile() {
            return begun;
        }
        let size = shared.superblock.geometry.segment_blocks;
        for other in Stream::USER {
            if let Some(record) = shared.log.fitting_all(other, Origin::User, extents) {
                return Some(record);
            }
            if shared.log.filling(other).is_none() && shared.log.head_takes(other, size, blocks) {
                return shared.log.begin(&mut shared.segments, other, Origin::User, blocks, keep);
            }
        }
        None
    }

    /// A record that was begun for nothing must not stay: it would be sealed without content.
    fn abandon_if_empty(&mut self, shared: &mut Shared, record: RecordRef) {
        if shared.log.record(record).extents.is_empty() {
            shared.log.abandon(record);
        }
    }

    pub(crate) fn accept_discard(
        &mut self,
        shared: &mut Shared,
        id: RequestId,
        lba: Lba,
        count: u64,
        fua: bool,
        buffers: &mut impl Buffers,
    ) -> Result<(), Busy> {
        let waits = shared.requests.discard_under_way || shared.requests.is_full();
        if waits || shared.phase != Phase::Running {
            return Err(Busy);
        }
        assert!(count > 0 && lba.0.checked_add(count).is_some(), "the driver checks the range");
        // Until all of it is logged nothing else is: what was accepted first takes effect first.
        shared.requests.discard_under_way = true;
        let work = Work::Discard { next: lba, end: Lba(lba.0 + count), parts: 0, fua };
        let slot = shared.requests.insert(id, work).expect("the table was not full");
        let discarded = &mut shared.statistics.user_blocks_discarded;
        *discarded = discarded.saturating_add(count);
        self.continue_discard(shared, slot, buffers);
        Ok(())
    }

    /// Logs as much of a discard as there is room for; the rest goes on in a later turn.
    pub(crate) fn continue_discard(
        &mut self,
        shared: &mut Shared,
        slot: u32,
        buffers: &mut impl Buffers,
    ) {
        loop {
            let Work::Discard { next, end, .. } = shared.requests.slot(slot).work else {
                panic!("only a discard goes on")
            };
            if next == end {
                shared.requests.discard_under_way = false;
                return;
            }
            if shared.refuses_writes() && shared.poisoned.is_some() {
                self.abort_discard(shared, slot);
                return;
            }
            let first = Lba(shared.map.next_in_use(next.0).min(end.0));
            if first != next {
                // Nothing was ever written there.
                if let Work::Discard { next, .. } = &mut shared.requests.slot(slot).work {
                    *next = first;
                }
                if first == end && self.discard_said_nothing(shared, slot) {
                    return;
                }
                continue;
            }
            let step_end = (next.0 / LEAF * LEAF + DISCARD_STEP).min(end.0);
            assert!(next.0 < step_end, "a discard goes on");
            assert!(step_end - next.0 <= DISCARD_BLOCKS_MAX.into(), "as an extent can say it");
            let count = (step_end - next.0) as u16;
            assert!(step_end <= end.0, "no more is discarded than was asked for");
            let extent = Extent { key: next.0, count, kind: Kind::Discard, relocated: false };
            let updates = discard_updates(next, step_end);
            let place = self.place_of_discard(shared, buffers);
            let Some(record) =
                self.user_record(shared, place, core::slice::from_ref(&extent), updates, buffers)
            else {
                shared.loads.starve(crate::loads::Waiter::Discard(slot));
                return;
            };
            shared.log.record_mut(record).push_extent(extent);
            shared.log.record_mut(record).requests.push(slot);
            shared.promise_discard(record);
            shared.group.pin(shared.log.record(record).stream);
            if let Work::Discard { next, parts, .. } = &mut shared.requests.slot(slot).work {
                *next = Lba(step_end);
                *parts += 1;
            }
        }
    }

    /// All of a discard lies where nothing was ever written: it has ended if no record says any of it.
    fn discard_said_nothing(&mut self, shared: &mut Shared, slot: u32) -> bool {
        let Work::Discard { parts, fua, .. } = shared.requests.slot(slot).work else {
            return false;
        };
        if parts > 0 {
            return false;
        }
        shared.requests.discard_under_way = false;
        if fua {
            shared.requests.wait_for(slot, shared.log.applied);
        } else {
            shared.requests.finish(slot);
        }
        true
    }

    fn abort_discard(&mut self, shared: &mut Shared, slot: u32) {
        shared.requests.discard_under_way = false;
        shared.requests.fail(slot, Failure::ReadOnly);
        assert!(shared.poisoned.is_some(), "only a failure ends it before its end");
        if let Work::Discard { next, end, parts, .. } = &mut shared.requests.slot(slot).work {
            *next = *end;
            if *parts == 0 {
                shared.requests.finish(slot);
            }
        }
    }
}

/// Where a write may go, and where it had better go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) wanted: Stream,
    pub(crate) choice: Choice,
}

/// A write that has its record, and the memory that its data comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Staged {
    pub(crate) record: RecordRef,
    pub(crate) slot: u32,
    pub(crate) buffer: BufferRef,
    /// What was decided of the group when the write came.
    pub(crate) splits: bool,
}

/// Map updates that a discarded range can cause: one for a whole leaf, else one for each block.
pub(crate) fn discard_updates(lba: Lba, end: u64) -> usize {
    let first_whole = lba.0.div_ceil(LEAF) * LEAF;
    let last_whole = end / LEAF * LEAF;
    assert!(lba.0 < end, "a discard covers something");
    if first_whole >= last_whole {
        return (end - lba.0) as usize;
    }
    let partial = (first_whole - lba.0) + (end - last_whole);
    (partial + (last_whole - first_whole) / LEAF) as usize
}
