//! Completed records take effect, in order of sequence.

use crate::api::{Buffers, IoResult, RecordRef};
use crate::canary::{Canary, sings};
use crate::map::update::IfUnknown;
use crate::memory::{self, NoMemory};
use crate::references::Referred;
use crate::shared::Shared;
use crate::units::Sequence;
use alloc::vec::Vec;
use coulter_format::checkpoint::Reference;
use coulter_format::checksum::Kind;
use coulter_format::record::{BlockWord, Extent, PAYLOAD_BLOCKS_MAX};
use coulter_format::{Block, BlockPointer, Lba};

/// Applies records.
pub(crate) struct Applier {
    /// A group that has completed; kept for its memory.
    completed: Vec<RecordRef>,
    /// Relocations of the record in hand that came too late; kept for its memory.
    late: Vec<Lba>,
}

impl Applier {
    pub(crate) fn new(record_count: u16) -> Result<Applier, NoMemory> {
        Ok(Applier {
            completed: memory::list(usize::from(record_count))?,
            late: memory::list(PAYLOAD_BLOCKS_MAX)?,
        })
    }

    /// A device command of a record has ended.
    pub(crate) fn record_completed(shared: &mut Shared, record: RecordRef, result: IoResult) {
        if !shared.log.part_completed(record, result) {
            return;
        }
        if sings(Canary::AcknowledgedEarly) && result.is_ok() {
            let sequence = shared.log.record(record).sequence;
            for slot in core::mem::take(&mut shared.log.record_mut(record).requests) {
                shared.part_done(slot, sequence);
            }
        }
    }

    /// Applies every record that has completed together with all before it.
    pub(crate) fn step(&mut self, shared: &mut Shared, buffers: &impl Buffers) {
        let mut group = core::mem::take(&mut self.completed);
        while let Some(outcome) = shared.log.take_completed(&mut group) {
            if let Err(errno) = outcome {
                shared.poison(errno);
            }
            for record in &group {
                match shared.poisoned {
                    None => self.apply(shared, *record, buffers),
                    // Also for a record that was written: an earlier one, or one of its group, is
                    // missing, so this one would be dropped after a crash.
                    Some(errno) => shared.give_up(*record, errno),
                }
            }
        }
        self.completed = group;
        let lives = shared.segments.take_lives();
        shared.placer.learn(lives, shared.log.write_clock);
        shared.placer.judge_skew(shared.superblock.geometry.capacity);
    }

    fn apply(&mut self, shared: &mut Shared, record_ref: RecordRef, buffers: &impl Buffers) {
        let record = shared.log.record_mut(record_ref);
        let sequence = record.sequence;
        let extents = core::mem::take(&mut record.extents);
        let words = core::mem::take(&mut record.words);
        let requests = core::mem::take(&mut record.requests);
        let (reserved, user_blocks) = (record.reserved, record.user_blocks);
        let promised = record.take_promises();
        let (segment, timed, times) = (record.segment, record.timed, record.times);
        let mut places = record.place.payload(record.header_pba);
        assert_eq!(sequence, shared.log.applied + 1, "records are applied in order");
        shared.map.warm(addresses_of(&extents));
        let noted = shared.map.run_length();
        let mut settled = true;
        self.late.clear();
        let mut next_word = 0;
        for extent in &extents {
            if extent.kind == Kind::Discard {
                if let Some(cache) = &shared.cache {
                    cache.forget_range(Lba(extent.key), u64::from(extent.count));
                }
                shared.map.discard(
                    &mut shared.segments,
                    Lba(extent.key),
                    u64::from(extent.count),
                    sequence,
                );
                continue;
            }
            for offset in 0..u64::from(extent.count) {
                let word = words[next_word];
                next_word += 1;
                let pointer = BlockPointer { pba: places.next(), checksum: word.checksum };
                settled &=
                    self.apply_block(shared, extent, extent.key + offset, word, pointer, sequence);
            }
        }
        if settled || sings(Canary::ReferenceUnfounded) {
            let header = &buffers.record(record_ref)[0];
            self.refer(shared, record_ref, &extents, noted, header);
        }
        let is_first_late = self.late.len() as u64 == shared.statistics.relocations_dropped;
        let is_kept = is_first_late && !self.late.is_empty() && sings(Canary::PromiseKept);
        assert_eq!(next_word, words.len(), "each word was a block's");
        assert!(timed as usize <= words.len(), "no more blocks were timed than there are");
        assert!(user_blocks as usize <= words.len(), "nor came from the host");
        shared.map.unreserve(reserved - usize::from(is_kept));
        shared.redeem(promised);
        shared.segments.note_times(segment, timed, times);
        shared.log.write_clock += user_blocks;
        shared.log.retire(&mut shared.segments, record_ref);
        shared.log.applied = sequence;
        for slot in &requests {
            shared.part_done(*slot, sequence);
        }
        let record = shared.log.record_mut(record_ref);
        (record.extents, record.words, record.requests) = (extents, words, requests);
    }

    /// Lets the next checkpoint refer to a record, if that is worth it, instead of repeating in a run what
    /// the record changed. Nothing else is counted for its addresses; `noted` is how much was in the journal
    /// before. Where a relocation came too late the run says what holds.
    fn refer(
        &mut self,
        shared: &mut Shared,
        record_ref: RecordRef,
        extents: &[Extent],
        noted: usize,
        header: &Block,
    ) {
        let record = shared.log.record(record_ref);
        assert!(self.late.len() <= record.payload as usize, "only its blocks came too late");
        assert!(noted <= shared.map.run_length(), "the journal only grew meanwhile");
        let only_data = extents.iter().all(|extent| extent.kind == Kind::Data);
        let worth = record.payload >= shared.config.reference_blocks && record.place.is_appended();
        let have_room = shared.lists.references.have_room() && shared.header_parities.have_room();
        if !only_data || !worth || !have_room {
            return;
        }
        let changed = record.payload as usize - self.late.len();
        if changed == 0 || !shared.map.refer(noted, changed) {
            return;
        }
        let reference = Reference {
            pba: record.header_pba,
            checksum: record.header_checksum,
            sweep: shared.map.sweep_position(),
            run: shared.lists.next_run,
        };
        let (pba, segment, stream) = (record.header_pba, record.segment, record.stream);
        let group = shared.header_parities.take(pba, segment, stream, header);
        shared.lists.references.add(Referred { reference, group });
        shared.statistics.records_referred += 1;
        let now = record.sequence;
        for lba in self.late.iter().filter(|_| !sings(Canary::ReferenceUnfounded)) {
            shared.map.affirm(&mut shared.segments, *lba, now);
        }
    }

    /// Returns whether, if it is data, no other location is counted for the address than where it lies
    /// now.
    #[inline]
    fn apply_block(
        &mut self,
        shared: &mut Shared,
        extent: &Extent,
        key: u64,
        word: BlockWord,
        pointer: BlockPointer,
        now: Sequence,
    ) -> bool {
        let (map, segments) = (&mut shared.map, &mut shared.segments);
        let source = word.address;
        if extent.relocated {
            segments.relocation_arrived(source);
        }
        let moved = match (extent.kind, extent.relocated) {
            (Kind::Data, false) => {
                // Before the answer: whoever looks up after it must find nothing older.
                if let Some(cache) = &shared.cache {
                    cache.update(Lba(key), pointer);
                }
                return map.update(segments, Lba(key), pointer, now);
            }
            (Kind::Data, true) => {
                let panic = IfUnknown::Panic;
                let moved = map.update_if(segments, Lba(key), source, pointer, panic, now);
                let is_second = moved.is_none() && shared.statistics.relocations_dropped == 1;
                if !(is_second && sings(Canary::RelocationKept)) {
                    map.relocation_ended(Lba(key));
                }
                segments.note_moved(source);
                if let Some(cache) = shared.cache.as_ref().filter(|_| moved.is_some()) {
                    cache.update(Lba(key), pointer);
                }
                let Some(settled) = moved else {
                    shared.statistics.relocations_dropped += 1;
                    self.late.push(Lba(key));
                    return map.is_released(Lba(key));
                };
                return settled;
            }
            (Kind::Leaf, false) => {
                map.leaf_written(segments, key, pointer, now);
                true
            }
            (Kind::Leaf, true) => map.leaf_relocated(segments, key, source, pointer, now),
            (Kind::Root, false) => {
                map.root_written(segments, key, pointer, now);
                true
            }
            (Kind::Root, true) => map.root_relocated(segments, key, source, pointer, now),
            (Kind::RootCopy, relocated) => {
                let source = relocated.then_some(source);
                map.root_copy_written(segments, key, source, pointer.pba, now)
            }
            (kind, relocated) => {
                let source = relocated.then_some(source);
                shared.lists.block_written(segments, kind, key, source, pointer, now)
            }
        };
        shared.statistics.relocations_dropped += u64::from(!moved);
        moved
    }
}

/// The host's addresses of a record's blocks.
fn addresses_of(extents: &[Extent]) -> impl Iterator<Item = Lba> {
    let data = extents.iter().filter(|extent| extent.kind == Kind::Data);
    data.flat_map(|extent| extent.key..extent.key + u64::from(extent.count)).map(Lba)
}
