//! Looking at the blocks of a chunk one by one, and relocating those that are current.

use super::chunk::Block;
use super::{Cleaner, Job};
use crate::api::{Buffers, RecordRef};
use crate::canary::{Canary, sings};
use crate::loads::Waiter;
use crate::map::load::LoadPurpose as Purpose;
use crate::map::lookup::Lookup;
use crate::map::settle::Settled;
use crate::shared::Shared;
use crate::units::Origin;
use coulter_format::checksum::{self, Kind};
use coulter_format::record::{BlockWord, Extent};
use coulter_format::{BlockPointer, Lba};

/// Leaves loaded ahead of the block in hand.
const AHEAD: usize = 32;

impl Cleaner {
    /// Looks at the chunk's blocks one by one. False: must wait.
    pub(super) fn sort_blocks(&mut self, shared: &mut Shared, buffers: &mut impl Buffers) -> bool {
        // Settling addresses notes them in the journal, beside what was promised to others.
        if !shared.map.journal_has_room_to_settle(self.chunks.first().blocks.len()) {
            shared.signals.checkpoint = true;
            return false;
        }
        while self.cursor < self.chunks.first().blocks.len() {
            let block = self.chunks.first().blocks[self.cursor];
            let goes_on = match self.is_current(shared, &block) {
                Standing::Current if self.is_searching() => {
                    shared.segments.found_counted(block.pba, block.header);
                    true
                }
                Standing::Current => self.relocate(shared, &block, buffers),
                Standing::Outdated => true,
                Standing::Doubtful => {
                    // Not this time, but when the sweep has written the leaf anew.
                    self.doubtful = true;
                    let per_page = coulter_format::map_page::ENTRIES_PER_PAGE as u64;
                    let leaf =
                        if block.kind == Kind::Data { block.key / per_page } else { block.key };
                    shared.map.give_up_damaged(leaf);
                    true
                }
                Standing::Unknown(leaf) => {
                    self.parked = true;
                    shared.load_for(leaf, Waiter::Cleaner, Purpose::Clean);
                    self.load_ahead_of_cleaner(shared);
                    false
                }
            };
            if !goes_on {
                return false;
            }
            assert!(self.chunks.first().is_ready(), "what is looked at has arrived");
            self.cursor += 1;
        }
        self.end_chunk(shared);
        true
    }

    /// Whether the map, or the checkpoint, says that the block lies there.
    fn is_current(&mut self, shared: &mut Shared, block: &Block) -> Standing {
        let segment = shared.segments.segment(shared.segments.of(block.pba));
        if segment.life != block.life || (self.job == Some(Job::Defrag) && segment.keeps_still()) {
            return Standing::Outdated;
        }
        let now = shared.log.now();
        // By its checksum too: in a patched segment the headers of dead records may be left, which say
        // of a block what it was before.
        let is_here = |pointer: BlockPointer| {
            let same = pointer.checksum == block.checksum || sings(Canary::StaleHeaderBelieved);
            pointer.pba == block.pba && same
        };
        let lies_here = |pointer: Option<BlockPointer>| match pointer {
            Some(pointer) if is_here(pointer) => Standing::Current,
            _ => Standing::Outdated,
        };
        match block.kind {
            Kind::Data => {
                let lba = Lba(block.key);
                let leaf = block.key / coulter_format::map_page::ENTRIES_PER_PAGE as u64;
                match shared.map.lookup(lba) {
                    Lookup::Mapped(pointer) if is_here(pointer) => Standing::Current,
                    Lookup::Miss(leaf) => Standing::Unknown(leaf),
                    Lookup::Damaged if shared.map.is_doubtful(leaf) => Standing::Doubtful,
                    Lookup::Damaged => Standing::Outdated,
                    _ => match shared.map.settle(&mut shared.segments, lba, now) {
                        Settled::Done => Standing::Outdated,
                        Settled::MustLoad => Standing::Unknown(leaf),
                        Settled::Damaged => Standing::Doubtful,
                    },
                }
            }
            Kind::Leaf if shared.map.root_is_damaged(block.key) => Standing::Doubtful,
            Kind::Leaf => match shared.map.leaf_standing(block.key) {
                Some(pointer) => lies_here(pointer),
                None => Standing::Unknown(block.key),
            },
            Kind::Root => lies_here(shared.map.root_page(block.key)),
            Kind::RootCopy => lies_here(shared.map.root_copy(block.key)),
            kind => lies_here(shared.lists.pointer(kind, block.key)),
        }
    }

    fn load_ahead_of_cleaner(&mut self, shared: &mut Shared) {
        let ahead = self.cursor + 1..self.chunks.first().blocks.len();
        let mut asked = 0;
        for index in ahead {
            let block = self.chunks.first().blocks[index];
            if block.kind != Kind::Data || asked == AHEAD {
                continue;
            }
            if let Lookup::Miss(leaf) = shared.map.lookup(Lba(block.key)) {
                shared.load_for(leaf, Waiter::Nobody, Purpose::Clean);
                asked += 1;
                assert!(asked <= AHEAD, "no more pages than that are asked for at once");
            }
        }
    }

    /// Copies a block into the cleaning stream. False: no room now.
    fn relocate(&mut self, shared: &mut Shared, block: &Block, buffers: &mut impl Buffers) -> bool {
        let buffer = self.chunks.first().buffer();
        assert!((block.place as usize) < crate::api::RECORD_BLOCKS, "it is in the buffer");
        let content = &buffers.record(buffer)[block.place as usize];
        if checksum::block(block.kind, block.key, content) != block.checksum {
            if self.job == Some(Job::Defrag) {
                // Nothing needs it to be moved. Who reads it is told.
                shared.note_corrupt(block.kind, block.key);
                return true;
            }
            if !self.again {
                // Perhaps the device read badly once. If not, the block is moved as it is, with the
                // checksum that it should have: it goes on giving an error, never wrong bytes.
                self.again = true;
                self.read_again(shared);
                return false;
            }
            shared.note_corrupt(block.kind, block.key);
        }
        let extent = Extent { key: block.key, count: 1, kind: block.kind, relocated: true };
        let is_data = block.kind == Kind::Data;
        let Some(target) = self.cleaning_record(shared, &extent, buffers) else {
            self.leave_victim_without_room(shared);
            return false;
        };
        if is_data && !shared.map.try_start_relocation(Lba(block.key)) {
            // Those on their way arrive and make room; what else is short makes the sweep urgent.
            if shared.log.record(target).extents.is_empty() {
                shared.log.abandon(target);
            }
            shared.seal_all_of(Origin::Cleaning, buffers);
            self.seal_what_holds_promises(shared, buffers);
            return false;
        }
        let record = shared.log.record_mut(target);
        buffers.relocate(buffer, block.place, target, record.payload);
        assert!(
            record.origin == Origin::Cleaning,
            "relocations are told from what the host writes"
        );
        record.reserved += usize::from(is_data);
        record.timed += u32::from(is_data);
        record.times += u128::from(self.time) * u128::from(is_data);
        record.words.push(BlockWord { checksum: block.checksum, address: block.pba });
        record.push_extent(extent);
        assert_eq!(record.words.len() as u32, record.payload, "a word for each block");
        shared.segments.relocation_began(block.pba);
        let record = shared.log.record(target);
        // Into holes, nothing that was won is used up.
        self.copied += u64::from(record.place.is_appended());
        true
    }

    /// What is short may be what was promised to a group that waits for what the cleaner gains. Its place in
    /// the log is taken already, so it goes, and is paid for afterwards.
    fn seal_what_holds_promises(&mut self, shared: &mut Shared, buffers: &mut impl Buffers) {
        let is_quiet =
            [Origin::Cleaning, Origin::User].iter().all(|o| shared.log.in_flight(*o) == 0);
        if is_quiet && shared.filled_by_user().1.is_some() {
            shared.seal_group(buffers);
        }
    }

    /// A record for relocations: of the victim's stream, or, if there is no room for that, of any
    /// that the cleaner has begun.
    fn cleaning_record(
        &mut self,
        shared: &mut Shared,
        extent: &Extent,
        buffers: &mut impl Buffers,
    ) -> Option<RecordRef> {
        let stream = self.stream.expect("a victim was chosen");
        if let Some(record) = shared.log.fitting(stream, Origin::Cleaning, extent) {
            return Some(record);
        }
        shared.seal(stream, buffers);
        let keep = self.kept_by_cleaner(shared);
        let begin = |shared: &mut Shared, stream| {
            shared.log.begin(&mut shared.segments, stream, Origin::Cleaning, 1, keep)
        };
        if let Some(record) = begin(shared, stream) {
            return Some(record);
        }
        let size = shared.superblock.geometry.segment_blocks;
        for other in shared.placer.cleaning_streams() {
            if let Some(record) = shared.log.fitting(*other, Origin::Cleaning, extent) {
                return Some(record);
            }
            if shared.log.filling(*other).is_none() && shared.log.head_takes(*other, size, 1) {
                return begin(shared, *other);
            }
        }
        // What is full must go before there is a buffer again.
        shared.seal_all_of(Origin::Cleaning, buffers);
        None
    }
}

/// What is known of a block in the victim.
enum Standing {
    Current,
    Outdated,
    /// The page that would tell is damaged. The block stays where it is.
    Doubtful,
    /// The leaf of this key must be loaded first.
    Unknown(u64),
}
