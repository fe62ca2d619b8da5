//! Host writes and discards: into the record that the user stream is filling.

use crate::Engine;
use crate::api::{BufferRef, Buffers, Busy, Failure, Phase, RecordRef, RequestId};
use crate::group::Choice;
use crate::placement::Placement;
use crate::requests::Work;
use crate::units::{Origin, Stream};
use coulter_format::checksum::Kind;
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::record::{BlockWord, DISCARD_BLOCKS_MAX, Extent};
use coulter_format::{Lba, Pba};

pub(crate) const LEAF: u64 = ENTRIES_PER_PAGE as u64;

/// Blocks of one discard extent: as many whole leaves as fit.
pub(crate) const DISCARD_STEP: u64 = DISCARD_BLOCKS_MAX as u64 / LEAF * LEAF;

impl Engine {
    pub(crate) fn accept_write(
        &mut self,
        id: RequestId,
        lba: Lba,
        count: u32,
        buffer: BufferRef,
        fua: bool,
        buffers: &mut impl Buffers,
    ) -> Result<(), Busy> {
        let extent = Extent { key: lba.0, count: count as u16, kind: Kind::Data, relocated: false };
        let waits = self.discard_under_way || self.requests.is_full();
        if waits {
            return Err(Busy);
        }
        let splits = self.group.splits(self.placer.splits_user_data());
        let wanted = match splits || self.placer.wants_sample() {
            true => self.expected_stream(lba),
            false => Stream::User,
        };
        let wanted = if splits { wanted } else { Stream::User };
        let place = Place { wanted, choice: self.group.choice(lba, count) };
        let extents = core::slice::from_ref(&extent);
        let record = self.user_record(place, extents, count as usize, buffers);
        let record = record.ok_or(Busy)?;
        let work = Work::Write { parts: 1, fua };
        let slot = self.requests.insert(id, work).expect("the table was not full");
        self.stage_write(Staged { record, slot, buffer, splits }, extent, 0, buffers);
        self.log.record_mut(record).requests.push(slot);
        Ok(())
    }

    /// Puts one range of a write into the record that has room for it. Its data begins at block
    /// `source` of the buffer.
    pub(crate) fn stage_write(
        &mut self,
        staged: Staged,
        extent: Extent,
        source: u32,
        buffers: &mut impl Buffers,
    ) {
        let Staged { record, buffer, splits, .. } = staged;
        let (lba, count) = (Lba(extent.key), u32::from(extent.count));
        let clock = self.log.write_clock;
        let target = self.log.record_mut(record);
        self.group.note(lba, count, target.stream, splits);
        let first = target.payload;
        let checksums = &mut self.checksums[..count as usize];
        buffers.stage(buffer, source, record, first, lba, checksums);
        let word = |checksum: &u32| BlockWord { checksum: *checksum, address: Pba::NOWHERE };
        target.words.extend(checksums.iter().map(word));
        target.push_extent(extent);
        target.user_blocks += u64::from(count);
        target.timed += count;
        target.times += u128::from(clock) * u128::from(count);
        let appended = target.places.is_none();
        let class = target.stream.class();
        self.statistics.user_blocks_by_class[class] += u64::from(count);
        self.statistics.user_blocks_written += u64::from(count);
        if appended {
            self.cleaner.earn(u64::from(count));
        }
    }

    /// How long ago the block that lies at this address was written; `None` if none does, or memory
    /// does not tell.
    fn age(&self, lba: Lba) -> Option<u64> {
        let pba = self.map.location(lba)?;
        let written = self.segments.mean_time(self.segments.of(pba));
        Some(self.log.write_clock.saturating_sub(written))
    }

    /// The stream in which a block at this address is expected to be among its like.
    pub(crate) fn expected_stream(&mut self, lba: Lba) -> Stream {
        let age = self.age(lba);
        self.placer.note_overwrite(age);
        if self.placer.placement() == Placement::Scattered {
            return Stream::USER[(lba.0 % 3) as usize];
        }
        self.placer.user_stream(age)
    }

    /// A discard follows everything that was accepted before: what is being filled for several
    /// streams goes out first.
    pub(crate) fn place_of_discard(&mut self, buffers: &mut impl Buffers) -> Place {
        let mut filled = self.log.streams_filled_by(Origin::User);
        let (first, second) = (filled.next(), filled.next());
        drop(filled);
        if second.is_some() {
            self.seal_group(buffers);
        }
        let wanted = first.filter(|_| second.is_none()).unwrap_or(Stream::User);
        Place { wanted, choice: Choice::Only(wanted) }
    }

    /// A user stream's record with room for this, the map having promised `updates`.
    pub(crate) fn user_record(
        &mut self,
        place: Place,
        extents: &[Extent],
        updates: usize,
        buffers: &mut impl Buffers,
    ) -> Option<RecordRef> {
        // A discard that was begun before the shutdown is logged to its end.
        if !matches!(self.phase, Phase::Running | Phase::ShuttingDown) {
            return None;
        }
        if !self.map.journal_admits(updates) {
            // A checkpoint makes room of what was noted. What was promised must take effect first.
            self.checkpointer.wanted |= self.map.promises_fit_journal(updates);
            return None;
        }
        self.sweeper.wanted_recovery = !self.map.recovery_admits(updates);
        if self.sweeper.wanted_recovery {
            return None;
        }
        let record = self.placed_record(place, extents, buffers)?;
        if !self.map.reserve(updates) {
            self.sweeper.wanted_memory = true;
            self.abandon_if_empty(record);
            return None;
        }
        self.log.record_mut(record).reserved += updates;
        Some(record)
    }

    /// The record of the wanted stream; of another one if there is no room for the wanted one and
    /// the order does not mind.
    fn placed_record(
        &mut self,
        place: Place,
        extents: &[Extent],
        buffers: &mut impl Buffers,
    ) -> Option<RecordRef> {
        let blocks = extents.iter().map(Extent::payload_blocks).sum::<usize>() as u32;
        let (stream, mut is_free) = match place.choice {
            Choice::Any => (place.wanted, true),
            Choice::Only(stream) => (stream, false),
            Choice::Next => {
                self.seal_group(buffers);
                (place.wanted, true)
            }
        };
        if let Some(record) = self.log.fitting_all(stream, Origin::User, extents) {
            return Some(record);
        }
        if self.log.filling(stream).is_some() {
            if self.log.filled_by(stream, Origin::User).is_some() && !self.group_may_go() {
                return None;
            }
            // Full, or the cleaner's. With a group sealed, nothing is left that the order minds.
            is_free |= self.log.filled_by(stream, Origin::User).is_some();
            self.seal(stream, buffers);
        }
        let keep = self.pacing.kept_by_user();
        // The head of a stream that the cleaner writes to may be one of the segments that it was left.
        let shared = self.placer.cleaning_streams().contains(&stream);
        if shared && self.segments.usable_count() < keep && self.pacing.is_cleaning_worthwhile() {
            return None;
        }
        let begun = self.log.begin(&mut self.segments, stream, Origin::User, blocks, keep);
        // As long as the cleaner makes room it is worth waiting for: what goes to the wrong segment
        // now must be relocated later.
        if begun.is_some() || !is_free || self.pacing.is_cleaning_worthwhile() {
            return begun;
        }
        let size = self.superblock.geometry.segment_size;
        for other in Stream::USER {
            if let Some(record) = self.log.fitting_all(other, Origin::User, extents) {
                return Some(record);
            }
            if self.log.filling(other).is_none() && self.log.head_takes(other, size, blocks) {
                return self.log.begin(&mut self.segments, other, Origin::User, blocks, keep);
            }
        }
        None
    }

    /// A record that was begun for nothing must not stay: it would be sealed without content.
    fn abandon_if_empty(&mut self, record: RecordRef) {
        if self.log.record(record).extents.is_empty() {
            self.log.abandon(record);
        }
    }

    pub(crate) fn accept_discard(
        &mut self,
        id: RequestId,
        lba: Lba,
        count: u64,
        fua: bool,
        buffers: &mut impl Buffers,
    ) -> Result<(), Busy> {
        let waits = self.discard_under_way || self.requests.is_full();
        if waits || self.phase != Phase::Running {
            return Err(Busy);
        }
        // Until all of it is logged nothing else is: what was accepted first takes effect first.
        self.discard_under_way = true;
        let work = Work::Discard { next: lba, end: Lba(lba.0 + count), parts: 0, fua };
        let slot = self.requests.insert(id, work).expect("the table was not full");
        let discarded = &mut self.statistics.user_blocks_discarded;
        *discarded = discarded.saturating_add(count);
        self.continue_discard(slot, buffers);
        Ok(())
    }

    /// Logs as much of a discard as there is room for; the rest goes on in a later turn.
    pub(crate) fn continue_discard(&mut self, slot: u32, buffers: &mut impl Buffers) {
        loop {
            let Work::Discard { next, end, .. } = self.requests.slot(slot).work else {
                panic!("only a discard goes on")
            };
            if next == end {
                self.discard_under_way = false;
                return;
            }
            if self.refuses_writes() && self.poisoned.is_some() {
                self.abort_discard(slot);
                return;
            }
            let step_end = (next.0 / LEAF * LEAF + DISCARD_STEP).min(end.0);
            let count = (step_end - next.0) as u16;
            let extent = Extent { key: next.0, count, kind: Kind::Discard, relocated: false };
            let updates = discard_updates(next, step_end);
            let place = self.place_of_discard(buffers);
            let Some(record) =
                self.user_record(place, core::slice::from_ref(&extent), updates, buffers)
            else {
                self.loads.starve(crate::loads::Waiter::Discard(slot));
                return;
            };
            self.log.record_mut(record).push_extent(extent);
            self.log.record_mut(record).requests.push(slot);
            self.group.pin(self.log.record(record).stream);
            if let Work::Discard { next, parts, .. } = &mut self.requests.slot(slot).work {
                *next = Lba(step_end);
                *parts += 1;
            }
        }
    }

    fn abort_discard(&mut self, slot: u32) {
        self.discard_under_way = false;
        self.fail_request(slot, Failure::ReadOnly);
        if let Work::Discard { next, end, parts, .. } = &mut self.requests.slot(slot).work {
            *next = *end;
            if *parts == 0 {
                self.finish_request(slot);
            }
        }
    }

    /// Applies a discarded range to the map.
    pub(crate) fn apply_discard(&mut self, lba: Lba, count: u64) {
        let now = self.log.now();
        let end = lba.0 + count;
        let mut next = lba.0;
        while next < end {
            let leaf_end = (next / LEAF + 1) * LEAF;
            if next.is_multiple_of(LEAF) && leaf_end <= end {
                self.map.discard_leaf(&mut self.segments, next / LEAF, now);
            } else {
                for block in next..leaf_end.min(end) {
                    self.map.discard_block(&mut self.segments, Lba(block), now);
                }
            }
            next = leaf_end.min(end);
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
    if first_whole >= last_whole {
        return (end - lba.0) as usize;
    }
    let partial = (first_whole - lba.0) + (end - last_whole);
    (partial + (last_whole - first_whole) / LEAF) as usize
}
