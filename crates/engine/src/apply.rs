//! Completed records take effect, in order of sequence.

use crate::Engine;
use crate::api::{Buffers, Failure, IoResult, RecordRef};
use crate::canary::{Canary, sings};
use crate::map::IfUnknown;
use crate::requests::Work;
use crate::units::Sequence;
use coulter_format::checkpoint::Reference;
use coulter_format::checksum::Kind;
use coulter_format::places::Places;
use coulter_format::record::{BlockWord, Extent};
use coulter_format::{BlockPointer, Lba, Pba};

/// Where the blocks of a record lie, one after the other.
struct PayloadPlaces {
    first: Pba,
    next: u32,
    scattered: Option<Places>,
}

impl PayloadPlaces {
    fn new(header: Pba, scattered: Option<Places>) -> PayloadPlaces {
        PayloadPlaces { first: header.plus(1), next: 0, scattered }
    }

    fn next(&mut self) -> Pba {
        let place = match &self.scattered {
            None => self.next,
            Some(places) => places.next(self.next).expect("a place for every block"),
        };
        self.next = place + 1;
        self.first.plus(place)
    }
}

impl Engine {
    pub(crate) fn record_completed(&mut self, record: RecordRef, result: IoResult) {
        if !self.log.part_completed(record, result) {
            return;
        }
        if sings(Canary::AcknowledgedEarly) && result.is_ok() {
            let sequence = self.log.record(record).sequence;
            for slot in core::mem::take(&mut self.log.record_mut(record).requests) {
                self.part_done(slot, sequence);
            }
        }
    }

    /// Applies every record that has completed together with all before it.
    pub(crate) fn apply_completed(&mut self, _buffers: &mut impl Buffers) {
        let mut group = core::mem::take(&mut self.completed);
        while let Some(outcome) = self.log.take_completed(&mut group) {
            if let Err(errno) = outcome {
                self.poison(errno);
            }
            for record in &group {
                match self.poisoned {
                    None => self.apply(*record),
                    // Also for a record that was written: an earlier one, or one of its group, is
                    // missing, so this one would be dropped after a crash.
                    Some(errno) => self.give_up(*record, errno),
                }
            }
        }
        self.completed = group;
        let lives = self.segments.take_lives();
        self.placer.learn(lives, self.log.write_clock);
        self.placer.judge_skew(self.superblock.geometry.volume_size);
    }

    fn apply(&mut self, record_ref: RecordRef) {
        let record = self.log.record_mut(record_ref);
        let sequence = record.sequence;
        let extents = core::mem::take(&mut record.extents);
        let words = core::mem::take(&mut record.words);
        let requests = core::mem::take(&mut record.requests);
        let (reserved, user_blocks) = (record.reserved, record.user_blocks);
        let (segment, timed, times) = (record.segment, record.timed, record.times);
        let mut places = PayloadPlaces::new(record.header_pba, record.places);
        assert_eq!(sequence, self.log.applied + 1, "records are applied in order");
        self.warm(&extents);
        let noted = self.map.run_length();
        let mut settled = true;
        self.late.clear();
        let mut next_word = 0;
        for extent in &extents {
            if extent.kind == Kind::Discard {
                self.apply_discard(Lba(extent.key), u64::from(extent.count));
                continue;
            }
            for offset in 0..u64::from(extent.count) {
                let word = words[next_word];
                next_word += 1;
                let pointer = BlockPointer { pba: places.next(), checksum: word.checksum };
                settled &= self.apply_block(extent, extent.key + offset, word, pointer, sequence);
            }
        }
        if settled || sings(Canary::ReferenceUnfounded) {
            self.refer(record_ref, &extents, noted);
        }
        let is_first_late = self.late.len() as u64 == self.statistics.relocations_dropped;
        let is_kept = is_first_late && !self.late.is_empty() && sings(Canary::PromiseKept);
        self.map.unreserve(reserved - usize::from(is_kept));
        self.segments.note_times(segment, timed, times);
        self.log.write_clock += user_blocks;
        self.log.retire(&mut self.segments, record_ref);
        self.log.applied = sequence;
        for slot in &requests {
            self.part_done(*slot, sequence);
        }
        let record = self.log.record_mut(record_ref);
        (record.extents, record.words, record.requests) = (extents, words, requests);
    }

    /// Lets the next checkpoint refer to a record, if that is worth it, instead of repeating in a run what
    /// the record changed. Nothing else is counted for its addresses; `noted` is how much was in the journal
    /// before. Where a relocation came too late the run says what holds.
    fn refer(&mut self, record_ref: RecordRef, extents: &[Extent], noted: usize) {
        let record = self.log.record(record_ref);
        let only_data = extents.iter().all(|extent| extent.kind == Kind::Data);
        let worth = record.payload >= self.config.reference_blocks && record.places.is_none();
        if !only_data || !worth || !self.checkpointer.references.have_room() {
            return;
        }
        let changed = record.payload as usize - self.late.len();
        if changed == 0 || !self.map.refer(noted, changed) {
            return;
        }
        self.checkpointer.references.add(Reference {
            pba: record.header_pba,
            checksum: record.header_checksum,
            sweep: self.map.sweep_position(),
            run: self.checkpointer.next_run,
        });
        self.statistics.records_referred += 1;
        let now = record.sequence;
        for lba in self.late.iter().filter(|_| !sings(Canary::ReferenceUnfounded)) {
            self.map.affirm(&mut self.segments, *lba, now);
        }
    }

    /// Fetches the map entries of a whole record at once: one after the other, each would be a
    /// cache miss of its own.
    fn warm(&self, extents: &[Extent]) {
        let mut sum = 0u64;
        for extent in extents.iter().filter(|extent| extent.kind == Kind::Data) {
            for offset in 0..u64::from(extent.count) {
                sum ^= self.map.warm(Lba(extent.key + offset));
            }
        }
        core::hint::black_box(sum);
    }

    /// Returns whether, if it is data, no other location is counted for the address than where it lies
    /// now.
    fn apply_block(
        &mut self,
        extent: &Extent,
        key: u64,
        word: BlockWord,
        pointer: BlockPointer,
        now: Sequence,
    ) -> bool {
        let (map, segments) = (&mut self.map, &mut self.segments);
        let source = word.address;
        if extent.relocated {
            segments.relocation_arrived(source);
        }
        let moved = match (extent.kind, extent.relocated) {
            (Kind::Data, false) => return map.update(segments, Lba(key), pointer, now),
            (Kind::Data, true) => {
                let panic = IfUnknown::Panic;
                let moved = map.update_if(segments, Lba(key), source, pointer, panic, now);
                let is_second = moved.is_none() && self.statistics.relocations_dropped == 1;
                if !(is_second && sings(Canary::RelocationKept)) {
                    map.relocation_ended(Lba(key));
                }
                segments.note_moved(source, self.cleaner.victim());
                let Some(settled) = moved else {
                    self.statistics.relocations_dropped += 1;
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
            (kind, relocated) => {
                let source = relocated.then_some(source);
                self.checkpointer.block_written(segments, kind, key, source, pointer, now)
            }
        };
        self.statistics.relocations_dropped += u64::from(!moved);
        moved
    }

    /// A record of the request was applied.
    fn part_done(&mut self, slot: u32, sequence: Sequence) {
        let (done, fua) = match &mut self.requests.slot(slot).work {
            Work::Write { parts, fua } => {
                *parts -= 1;
                (*parts == 0, *fua)
            }
            Work::Discard { parts, next, end, fua } => {
                *parts -= 1;
                (*parts == 0 && next == end, *fua)
            }
            other => panic!("{other:?} has no records"),
        };
        if done && fua && self.poisoned.is_none() {
            self.flusher.wait_for(slot, sequence);
        } else if done {
            self.finish_request(slot);
        }
    }

    /// The record will never take effect.
    pub(crate) fn give_up(&mut self, record_ref: RecordRef, errno: i32) {
        let record = self.log.record_mut(record_ref);
        let requests = core::mem::take(&mut record.requests);
        let reserved = record.reserved;
        self.map.unreserve(reserved);
        for slot in requests {
            self.fail_request(slot, Failure::Device(errno));
            self.part_done(slot, 0);
        }
        self.log.retire(&mut self.segments, record_ref);
    }
}
