//! Superblocks: what a store is, and where its newest checkpoint lies.
//!
//! Two copies, far apart, written one after the other: generation `g` goes to copy `g mod 2`, so the copy
//! that is being written is never the newest valid one. The newest valid copy wins; both lead to
//! the same checkpoint, but for a moment. A third copy, of any generation, lies where what overwrites the
//! start of a device does not come: at its end, or if the log takes all of that, before the log. It is
//! written together with the second of the two, and read only if both are gone.
//!
//! ```text
//! offset size field
//!      0    8 magic "COULTER\0"
//!      8    4 version
//!     12    4 checksum               CRC-32C of the block, this field taken as zero
//!     16   16 uuid
//!     32    8 generation
//!     40    4 salt
//!     44    4 incompatible_features  a reader that does not know a set bit must refuse;
//!                                    bit 0: records lie in holes of segments
//!                                    bit 1: there may be long records
//!                                    bit 2: there is a flash page size
//!     48    4 compatible_features    a reader may ignore these;
//!                                    bit 0: host blocks may be marked lost
//!     52    4 segment_blocks           blocks
//!     56    4 segment_count
//!     60    4 first_segment          block
//!     64    4 second_superblock      block
//!     68    4 flags                  bit 0: closed cleanly
//!     72    8 device_size            blocks
//!     80    8 volume_size            blocks: host addresses are below it
//!     88    8 epoch                  of the records that may follow the checkpoint
//!     96    8 recovery_map_size      bytes of map memory that recovery needs at most
//!    104    4 journal_size           map updates between two checkpoints at most
//!    108    4 run_count_limit        runs alive at most
//!    112    8 checkpoint_sequence    every record up to this one is in the checkpoint
//!    120    4 checkpoint_pba         first block of its body
//!    124    4 checkpoint_size        bytes of its body
//!    128    4 checkpoint_checksum    CRC-32C of those bytes
//!    132    4 zero
//!    136    8 durable_sequence       every record up to this one was durable when this was written
//!    144    8 epoch_max              no record is of a higher epoch, unless that is below `epoch`
//!    152    8 capacity               blocks that may be mapped at once if they lie densely
//!    160    4 root_limit             roots in use at most in a sparse store; 0: the store is not sparse
//!    164    4 third_superblock       block; 0: there is none
//!    168    4 checkpoint_copy        first block of the body's second copy; 0: there is none
//!    172    4 page_blocks            blocks in a page of the flash below; 0: none is known
//!    176   16 zero
//!    192   64 label                  UTF-8, padded with zeros
//! ```

use crate::bytes::{at, put, u32_at, u64_at};
use crate::{
    Block, Corrupt, FORMAT_VERSION, NUMBER_LIMIT, Pba, Reason, StoreId, Structure, checksum,
};
use core::ops::Range;

/// The first bytes of a store.
pub const MAGIC: [u8; 8] = *b"COULTER\0";

/// Where superblock A lies. B lies at [`Geometry::second_superblock`].
pub const FIRST_SUPERBLOCK: Pba = Pba(0);

/// Bytes of a label.
pub const LABEL_SIZE: usize = 64;

const FLAG_CLEAN: u32 = 1;

const FEATURE_HOLES: u32 = 1;
const FEATURE_LONG_RECORDS: u32 = 2;
const FEATURE_PAGES: u32 = 4;
const FEATURE_ROOT_LISTS: u32 = 8;

const COMPATIBLE_LOST: u32 = 1;

/// Features that this version knows.
const FEATURES: u32 = FEATURE_HOLES | FEATURE_LONG_RECORDS | FEATURE_PAGES | FEATURE_ROOT_LISTS;

/// Blocks in a page of the flash below at most: 256 KiB.
pub const PAGE_BLOCKS_MAX: u32 = 64;

/// What never changes after creation, except by `grow`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks on the device that belong to the store.
    pub device_size: u64,
    /// Blocks that the volume shows: host addresses are below it.
    pub volume_size: u64,
    /// Blocks that may be mapped at once if they lie densely, 512 to a map page. As many as the volume
    /// shows, unless the store is sparse.
    pub capacity: u64,
    /// Of a sparse store, roots (1 GiB of host addresses each) that may be in use at once; else 0.
    pub root_limit: u32,
    /// The body of a checkpoint lists pages of the list of roots, and these the roots: see
    /// [`root_list`](crate::root_list). Only a sparse store may do so.
    pub root_lists: bool,
    /// Blocks in a segment; a power of two.
    pub segment_blocks: u32,
    /// Segments.
    pub segment_count: u32,
    /// The first block of segment 0.
    pub first_segment: Pba,
    /// The block of superblock B.
    pub second_superblock: Pba,
    /// The block of superblock C; nowhere if there is none.
    pub third_superblock: Pba,
    /// Blocks in a page of the flash below; 1 if none is known. What is written to one page again may take
    /// along with it what else lies there, so records begin at pages, and holes are whole ones. A segment is an
    /// erase block then, and no two superblocks lie in one.
    pub page_blocks: u32,
}

/// Roots that a sparse store may have in use at most if its checkpoints list them: five eighths of a body do.
pub const ROOT_LIMIT_MAX: u32 = 1 << 15;

/// The same if they list pages of the list of roots.
pub const LISTED_ROOT_LIMIT_MAX: u32 = 1 << 22;

/// Host blocks that a root covers.
const BLOCKS_PER_ROOT: u64 =
    (crate::map_page::ENTRIES_PER_PAGE * crate::map_page::ENTRIES_PER_PAGE) as u64;

/// Tables of leaves of a root.
const TABLES_PER_ROOT: u64 =
    (crate::map_page::ENTRIES_PER_PAGE / crate::root_list::LEAVES_PER_TABLE) as u64;

/// Where superblock C may lie on a device of so many blocks, whatever the store's sizes are.
pub fn third_superblocks(device_size: u64) -> impl Iterator<Item = Pba> {
    let end = device_size.checked_sub(1).and_then(|last| u32::try_from(last).ok());
    let before_log = (8..=18).map(|bits| (1u32 << bits) - 1);
    let places = end.into_iter().chain(before_log).map(Pba);
    places.filter(move |pba| pba.0 > 0 && u64::from(pba.0) < device_size)
}

impl Geometry {
    /// Where superblock C lies best: in the last block of the device if that is not in the log, else in
    /// the last one before the log.
    pub fn best_third_superblock(&self) -> Pba {
        let log = u64::from(self.segment_blocks) * u64::from(self.segment_count);
        let end = u64::from(self.first_segment.0) + log;
        let last = self.device_size.saturating_sub(1);
        if last >= end { Pba(last as u32) } else { Pba(self.first_segment.0 - 1) }
    }

    /// The two places for the second copy of a checkpoint's body: behind superblock A, and behind B. Of the
    /// blocks before the log, the last one stays free for superblock C.
    pub fn body_copy_places(&self) -> [Range<u32>; 2] {
        let (second, page) = (self.second_superblock.0, self.page_blocks);
        let end = self.first_segment.0 - if self.has_pages() { 0 } else { 1 };
        [page..second, second + page..end]
    }

    /// Whether so many blocks from there on lie before the log, and none of them is a superblock.
    fn takes_body_copy(&self, first: Pba, blocks: u32) -> bool {
        let range = u64::from(first.0)..u64::from(first.0) + u64::from(blocks);
        let superblocks = [FIRST_SUPERBLOCK, self.second_superblock, self.third_superblock];
        let is_free = superblocks.iter().all(|pba| !range.contains(&u64::from(pba.0)));
        is_free && range.end <= u64::from(self.first_segment.0)
    }

    /// Whether the store knows what the flash below programs at once.
    pub const fn has_pages(&self) -> bool {
        self.page_blocks > 1
    }

    /// Whether there may be more host addresses than blocks.
    pub const fn is_sparse(&self) -> bool {
        self.root_limit > 0
    }

    /// The highest number that the limit of roots may be.
    pub const fn root_limit_max(&self) -> u32 {
        if self.root_lists { LISTED_ROOT_LIMIT_MAX } else { ROOT_LIMIT_MAX }
    }

    /// Tables of 32 leaves that may be in use at once in a store with a list of roots: one for each root, and all of
    /// sixteen times as many roots as the capacity fills.
    pub fn tables_max(&self) -> u64 {
        let limit = u64::from(self.root_limit);
        let complete = (16 * self.capacity.div_ceil(BLOCKS_PER_ROOT)).max(256).min(limit);
        limit + (TABLES_PER_ROOT - 1) * complete
    }

    /// Roots that may be in use at once.
    pub const fn roots_max(&self) -> u64 {
        let addressable = self.volume_size.div_ceil(BLOCKS_PER_ROOT);
        match self.root_limit {
            0 => addressable,
            limit if (limit as u64) < addressable => limit as u64,
            _ => addressable,
        }
    }
}

/// Bounds that recovery relies on, fixed at creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryBudget {
    /// Bytes of map memory that recovery needs at most.
    pub map_size: u64,
    /// Map updates between two checkpoints at most.
    pub journal_size: u32,
    /// Runs alive at most.
    pub run_count_limit: u32,
}

/// Where a checkpoint lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointLocation {
    /// Every record up to this sequence is contained in it.
    pub sequence: u64,
    /// First block of its body, which is contiguous.
    pub pba: Pba,
    /// Bytes of its body.
    pub size: u32,
    /// CRC-32C of its body.
    pub checksum: u32,
    /// First block of the body's second copy, which lies before the log; nowhere if there is none.
    pub copy: Pba,
}

impl CheckpointLocation {
    /// Blocks of the body.
    pub const fn blocks(&self) -> u32 {
        self.size.div_ceil(crate::BLOCK_SIZE as u32)
    }
}

/// A superblock's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Identity.
    pub store: StoreId,
    /// Higher is newer.
    pub generation: u64,
    /// Sizes and places.
    pub geometry: Geometry,
    /// Bounds for recovery.
    pub budget: RecoveryBudget,
    /// The epoch of the records that may follow the checkpoint.
    pub epoch: u64,
    /// The newest durable checkpoint.
    pub checkpoint: CheckpointLocation,
    /// Every record up to this sequence was durable when the superblock was written: the
    /// checkpoint's own records among them, which lie behind its sequence.
    pub durable_sequence: u64,
    /// No record is of a higher epoch than this and [`Superblock::epoch`]: an opening says here which
    /// one it takes before it writes any record. Zero in stores from before there was this.
    pub epoch_max: u64,
    /// Whether nothing was written after the checkpoint.
    pub clean: bool,
    /// Whether there may be scattered records, in patched segments.
    pub patched: bool,
    /// Whether there may be long records, packed ones among them.
    pub long_records: bool,
    /// Whether host blocks may be marked lost: damage took them, and nobody has gone through all of them since and
    /// found none.
    pub may_have_lost: bool,
    /// The store's label, padded with zeros.
    pub label: [u8; LABEL_SIZE],
}

impl Superblock {
    /// Where the copy of this generation lies.
    pub fn location(&self) -> Pba {
        if self.generation.is_multiple_of(2) {
            FIRST_SUPERBLOCK
        } else {
            self.geometry.second_superblock
        }
    }

    /// Whether a copy of this generation may lie there.
    pub fn belongs_at(&self, pba: Pba) -> bool {
        pba == self.location() || (pba != Pba::NOWHERE && pba == self.geometry.third_superblock)
    }

    fn incompatible_features(&self) -> u32 {
        let holes = if self.patched { FEATURE_HOLES } else { 0 };
        let long_records = if self.long_records { FEATURE_LONG_RECORDS } else { 0 };
        let pages = if self.geometry.has_pages() { FEATURE_PAGES } else { 0 };
        let root_lists = if self.geometry.root_lists { FEATURE_ROOT_LISTS } else { 0 };
        holes | long_records | pages | root_lists
    }

    /// Writes the superblock.
    pub fn encode(&self, block: &mut Block) {
        block.fill(0);
        put::<0, 8>(block, MAGIC);
        put::<8, 4>(block, FORMAT_VERSION.to_le_bytes());
        put::<16, 16>(block, self.store.uuid);
        put::<32, 8>(block, self.generation.to_le_bytes());
        put::<40, 4>(block, self.store.salt.to_le_bytes());
        put::<44, 4>(block, self.incompatible_features().to_le_bytes());
        let compatible = if self.may_have_lost { COMPATIBLE_LOST } else { 0 };
        put::<48, 4>(block, compatible.to_le_bytes());
        put::<52, 4>(block, self.geometry.segment_blocks.to_le_bytes());
        put::<56, 4>(block, self.geometry.segment_count.to_le_bytes());
        put::<60, 4>(block, self.geometry.first_segment.0.to_le_bytes());
        put::<64, 4>(block, self.geometry.second_superblock.0.to_le_bytes());
        put::<68, 4>(block, (if self.clean { FLAG_CLEAN } else { 0 }).to_le_bytes());
        put::<72, 8>(block, self.geometry.device_size.to_le_bytes());
        put::<80, 8>(block, self.geometry.volume_size.to_le_bytes());
        put::<88, 8>(block, self.epoch.to_le_bytes());
        put::<96, 8>(block, self.budget.map_size.to_le_bytes());
        put::<104, 4>(block, self.budget.journal_size.to_le_bytes());
        put::<108, 4>(block, self.budget.run_count_limit.to_le_bytes());
        put::<112, 8>(block, self.checkpoint.sequence.to_le_bytes());
        put::<120, 4>(block, self.checkpoint.pba.0.to_le_bytes());
        put::<124, 4>(block, self.checkpoint.size.to_le_bytes());
        put::<128, 4>(block, self.checkpoint.checksum.to_le_bytes());
        put::<136, 8>(block, self.durable_sequence.to_le_bytes());
        put::<144, 8>(block, self.epoch_max.to_le_bytes());
        put::<152, 8>(block, self.geometry.capacity.to_le_bytes());
        put::<160, 4>(block, self.geometry.root_limit.to_le_bytes());
        put::<164, 4>(block, self.geometry.third_superblock.0.to_le_bytes());
        put::<168, 4>(block, self.checkpoint.copy.0.to_le_bytes());
        let page_blocks = if self.geometry.has_pages() { self.geometry.page_blocks } else { 0 };
        put::<172, 4>(block, page_blocks.to_le_bytes());
        put::<192, LABEL_SIZE>(block, self.label);
        checksum::seal::<12>(block, 0);
    }

    /// Reads a superblock.
    ///
    /// # Errors
    /// [`Reason::Magic`] when the block is no superblock at all, [`Reason::Version`] when another
    /// version wrote it, [`Reason::Checksum`] when it is damaged, and [`Reason::Field`] when its
    /// geometry contradicts itself.
    pub fn decode(block: &Block) -> Result<Superblock, Corrupt> {
        let corrupt = |reason| Corrupt { structure: Structure::Superblock, reason };
        if at::<0, 8>(block) != MAGIC {
            return Err(corrupt(Reason::Magic));
        }
        if checksum::sealed::<12>(block, 0) != u32_at::<12>(block) {
            return Err(corrupt(Reason::Checksum));
        }
        let version = u32_at::<8>(block);
        if version != FORMAT_VERSION {
            return Err(corrupt(Reason::Version(version)));
        }
        let unknown = u32_at::<44>(block) & !FEATURES;
        if unknown != 0 {
            return Err(corrupt(Reason::Features(unknown)));
        }
        let superblock = Self::decode_fields(block);
        superblock.check_fields().map_err(|name| corrupt(Reason::Field(name)))?;
        Ok(superblock)
    }

    fn decode_fields(block: &Block) -> Superblock {
        Superblock {
            store: StoreId { uuid: at::<16, 16>(block), salt: u32_at::<40>(block) },
            generation: u64_at::<32>(block),
            geometry: Geometry {
                device_size: u64_at::<72>(block),
                volume_size: u64_at::<80>(block),
                capacity: u64_at::<152>(block),
                root_limit: u32_at::<160>(block),
                root_lists: u32_at::<44>(block) & FEATURE_ROOT_LISTS != 0,
                segment_blocks: u32_at::<52>(block),
                segment_count: u32_at::<56>(block),
                first_segment: Pba(u32_at::<60>(block)),
                second_superblock: Pba(u32_at::<64>(block)),
                third_superblock: Pba(u32_at::<164>(block)),
                page_blocks: match u32_at::<44>(block) & FEATURE_PAGES {
                    0 => 1,
                    // A page of one block is none to be known of: it is refused, as 0 is.
                    _ => {
                        if u32_at::<172>(block) == 1 {
                            0
                        } else {
                            u32_at::<172>(block)
                        }
                    }
                },
            },
            budget: RecoveryBudget {
                map_size: u64_at::<96>(block),
                journal_size: u32_at::<104>(block),
                run_count_limit: u32_at::<108>(block),
            },
            epoch: u64_at::<88>(block),
            checkpoint: CheckpointLocation {
                sequence: u64_at::<112>(block),
                pba: Pba(u32_at::<120>(block)),
                size: u32_at::<124>(block),
                checksum: u32_at::<128>(block),
                copy: Pba(u32_at::<168>(block)),
            },
            durable_sequence: u64_at::<136>(block),
            epoch_max: u64_at::<144>(block),
            clean: u32_at::<68>(block) & FLAG_CLEAN != 0,
            patched: u32_at::<44>(block) & FEATURE_HOLES != 0,
            long_records: u32_at::<44>(block) & FEATURE_LONG_RECORDS != 0,
            may_have_lost: u32_at::<48>(block) & COMPATIBLE_LOST != 0,
            label: at::<192, LABEL_SIZE>(block),
        }
    }

    /// The name of the first field that contradicts the others.
    fn check_fields(&self) -> Result<(), &'static str> {
        let geometry = &self.geometry;
        let check = |holds: bool, name| if holds { Ok(()) } else { Err(name) };
        let size = geometry.segment_blocks;
        check(size.is_power_of_two() && (256..=1 << 18).contains(&size), "segment_blocks")?;
        let log = u64::from(size) * u64::from(geometry.segment_count);
        let end = u64::from(geometry.first_segment.0) + log;
        check(end <= geometry.device_size && end <= 1 << 32, "segment_count")?;
        check(geometry.first_segment.0 >= 2, "first_segment")?;
        let second = geometry.second_superblock;
        check(second.0 > 0 && second < geometry.first_segment, "second_superblock")?;
        let third = geometry.third_superblock;
        let page = geometry.page_blocks;
        let pages = page.is_power_of_two() && page <= PAGE_BLOCKS_MAX;
        check(pages, "page_blocks")?;
        let apart = second.0.is_multiple_of(size) && geometry.first_segment.0.is_multiple_of(size);
        check(!geometry.has_pages() || apart, "second_superblock")?;
        let before_log = third > second && third < geometry.first_segment;
        let behind_log = u64::from(third.0) >= end && u64::from(third.0) < geometry.device_size;
        let is_somewhere = (before_log && !geometry.has_pages()) || behind_log;
        check(third == Pba::NOWHERE || is_somewhere, "third_superblock")?;
        check(geometry.capacity > 0 && geometry.capacity < log, "capacity")?;
        let listed = !geometry.root_lists || geometry.is_sparse();
        check(listed && geometry.root_limit <= geometry.root_limit_max(), "root_limit")?;
        let addresses = match geometry.is_sparse() {
            true => geometry.capacity..=crate::address::LBA_LIMIT,
            false => geometry.capacity..=geometry.capacity,
        };
        check(addresses.contains(&geometry.volume_size), "volume_size")?;
        // Of fewer updates than a checkpoint itself writes there would be checkpoints without end.
        check((1024..=1 << 20).contains(&self.budget.journal_size), "journal_size")?;
        check((2..=4096).contains(&self.budget.run_count_limit), "run_count_limit")?;
        check(self.budget.map_size <= 1 << 40, "map_size")?;
        check(self.generation < NUMBER_LIMIT, "generation")?;
        check(self.epoch < NUMBER_LIMIT, "epoch")?;
        check(self.epoch_max < NUMBER_LIMIT, "epoch_max")?;
        check(self.checkpoint.sequence < NUMBER_LIMIT, "checkpoint_sequence")?;
        let body = self.checkpoint;
        let blocks = u64::from(body.size).div_ceil(crate::BLOCK_SIZE as u64);
        check(body.size > 0 && body.size <= crate::checkpoint::BODY_SIZE_MAX, "checkpoint_size")?;
        let inside = body.pba >= geometry.first_segment && u64::from(body.pba.0) + blocks <= end;
        check(inside, "checkpoint_pba")?;
        let has_place = geometry.takes_body_copy(body.copy, body.blocks());
        check(body.copy == Pba::NOWHERE || has_place, "checkpoint_copy")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn example() -> Superblock {
        Superblock {
            store: StoreId { uuid: [3; 16], salt: 77 },
            generation: 5,
            geometry: Geometry {
                device_size: 10_000,
                volume_size: 8_000,
                capacity: 8_000,
                root_limit: 0,
                root_lists: false,
                segment_blocks: 256,
                segment_count: 38,
                first_segment: Pba(256),
                second_superblock: Pba(128),
                third_superblock: Pba::NOWHERE,
                page_blocks: 1,
            },
            budget: RecoveryBudget { map_size: 1 << 20, journal_size: 1024, run_count_limit: 8 },
            epoch: 2,
            checkpoint: CheckpointLocation {
                sequence: 99,
                pba: Pba(300),
                size: 5000,
                checksum: 0xabcd,
                copy: Pba(129),
            },
            durable_sequence: 105,
            epoch_max: 3,
            clean: true,
            patched: true,
            long_records: true,
            may_have_lost: false,
            label: [b'x'; LABEL_SIZE],
        }
    }

    #[test]
    fn a_superblock_survives_the_round_trip() {
        let mut block = [0xff; crate::BLOCK_SIZE];
        example().encode(&mut block);
        assert_eq!(Superblock::decode(&block), Ok(example()));
    }

    #[test]
    fn each_feature_has_a_bit_of_its_own() {
        let features = [(false, false), (true, false), (false, true), (true, true)];
        for (bits, (patched, long_records)) in (0..).zip(features) {
            let superblock = Superblock { patched, long_records, ..example() };
            let mut block = [0; crate::BLOCK_SIZE];
            superblock.encode(&mut block);
            assert_eq!(u32_at::<44>(&block), bits);
            assert_eq!(Superblock::decode(&block), Ok(superblock));
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let mut block = [0; crate::BLOCK_SIZE];
        example().encode(&mut block);
        for bit in 0..crate::BLOCK_SIZE * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(&block).is_err(), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn another_version_is_named() {
        let mut block = [0; crate::BLOCK_SIZE];
        example().encode(&mut block);
        block[8] = 9;
        let sum = checksum::sealed::<12>(&block, 0);
        put::<12, 4>(&mut block, sum.to_le_bytes());
        let error = Superblock::decode(&block).unwrap_err();
        assert_eq!(error.reason, Reason::Version(9));
    }

    fn reason(superblock: &Superblock) -> Option<Reason> {
        let mut block = [0; crate::BLOCK_SIZE];
        superblock.encode(&mut block);
        Superblock::decode(&block).err().map(|corrupt| corrupt.reason)
    }

    #[test]
    fn a_field_that_cannot_be_is_refused_by_its_name() {
        type Change = fn(&mut Superblock);
        let end = 256 + 256 * 38;
        let wrong: [(&str, Change); 39] = [
            ("segment_blocks", |s| s.geometry.segment_blocks = 128),
            ("segment_blocks", |s| s.geometry.segment_blocks = 384),
            ("segment_blocks", |s| {
                s.geometry.device_size = 1 << 30;
                s.geometry.segment_blocks = 1 << 19;
            }),
            ("segment_count", |s| s.geometry.segment_count = 39),
            ("segment_count", |s| {
                // All the blocks that an address can name, and superblocks before them.
                s.geometry.device_size = 1 << 33;
                (s.geometry.segment_blocks, s.geometry.segment_count) = (1 << 18, 1 << 14);
            }),
            ("first_segment", |s| s.geometry.first_segment = Pba(1)),
            ("second_superblock", |s| s.geometry.second_superblock = Pba(0)),
            ("second_superblock", |s| s.geometry.second_superblock = Pba(256)),
            ("volume_size", |s| s.geometry.volume_size = 0),
            ("volume_size", |s| s.geometry.volume_size += 1),
            ("capacity", |s| s.geometry.capacity = 0),
            ("capacity", |s| s.geometry.capacity = 256 * 38),
            ("volume_size", |s| (s.geometry.root_limit, s.geometry.volume_size) = (1, 7_999)),
            ("volume_size", |s| {
                (s.geometry.root_limit, s.geometry.volume_size) = (1, (1 << 63) + 1);
            }),
            ("root_limit", |s| s.geometry.root_limit = ROOT_LIMIT_MAX + 1),
            ("root_limit", |s| s.geometry.root_lists = true),
            ("root_limit", |s| {
                s.geometry.root_lists = true;
                s.geometry.root_limit = LISTED_ROOT_LIMIT_MAX + 1;
            }),
            ("third_superblock", |s| s.geometry.third_superblock = Pba(256)),
            ("third_superblock", |s| s.geometry.third_superblock = Pba(128)),
            ("third_superblock", |s| s.geometry.third_superblock = Pba(u32::MAX)),
            ("journal_size", |s| s.budget.journal_size = 1023),
            ("journal_size", |s| s.budget.journal_size = (1 << 20) + 1),
            ("run_count_limit", |s| s.budget.run_count_limit = 1),
            ("run_count_limit", |s| s.budget.run_count_limit = 4097),
            ("map_size", |s| s.budget.map_size = (1 << 40) + 1),
            ("generation", |s| s.generation = NUMBER_LIMIT),
            ("epoch", |s| s.epoch = NUMBER_LIMIT),
            ("epoch_max", |s| s.epoch_max = NUMBER_LIMIT),
            ("checkpoint_sequence", |s| s.checkpoint.sequence = NUMBER_LIMIT),
            ("checkpoint_size", |s| s.checkpoint.size = 0),
            ("checkpoint_size", |s| s.checkpoint.size = crate::checkpoint::BODY_SIZE_MAX + 1),
            ("checkpoint_pba", |s| s.checkpoint.pba = Pba(0)),
            ("checkpoint_pba", |s| s.checkpoint.pba = Pba(255)),
            // Its two blocks would end one behind the last segment.
            ("checkpoint_pba", |s| s.checkpoint.pba = Pba(256 + 256 * 38 - 1)),
            ("checkpoint_pba", |s| s.checkpoint.pba = Pba(u32::MAX)),
            // Each would have a superblock or the log in its second block.
            ("checkpoint_copy", |s| s.checkpoint.copy = Pba(127)),
            ("checkpoint_copy", |s| s.checkpoint.copy = Pba(255)),
            ("checkpoint_copy", |s| {
                s.geometry.third_superblock = Pba(255);
                s.checkpoint.copy = Pba(254);
            }),
            ("checkpoint_copy", |s| s.checkpoint.copy = Pba(u32::MAX)),
        ];
        for (case, (name, change)) in wrong.into_iter().enumerate() {
            let mut superblock = example();
            change(&mut superblock);
            assert_eq!(reason(&superblock), Some(Reason::Field(name)), "case {case}");
        }
        let last = CheckpointLocation { pba: Pba(end - 2), ..example().checkpoint };
        assert_eq!(reason(&Superblock { checkpoint: last, ..example() }), None);
        for copy in [0, 1, 126, 129, 254] {
            let checkpoint = CheckpointLocation { copy: Pba(copy), ..example().checkpoint };
            assert_eq!(reason(&Superblock { checkpoint, ..example() }), None, "copy at {copy}");
        }
        let budget =
            RecoveryBudget { map_size: 1 << 40, journal_size: 1 << 20, run_count_limit: 4096 };
        assert_eq!(reason(&Superblock { budget, ..example() }), None);
        let geometry =
            Geometry { volume_size: 256 * 38 - 1, capacity: 256 * 38 - 1, ..example().geometry };
        assert_eq!(reason(&Superblock { geometry, ..example() }), None);
    }

    /// An erase block for A, one for B, the log, and one for C.
    fn with_pages(page_blocks: u32) -> Superblock {
        let geometry = Geometry {
            segment_count: 36,
            first_segment: Pba(512),
            second_superblock: Pba(256),
            third_superblock: Pba(9_999),
            page_blocks,
            ..example().geometry
        };
        let checkpoint = CheckpointLocation {
            pba: Pba(600),
            copy: Pba(256 + page_blocks),
            ..example().checkpoint
        };
        Superblock { geometry, checkpoint, ..example() }
    }

    #[test]
    fn a_page_size_that_cannot_be_is_refused_and_so_are_superblocks_that_share_an_erase_block() {
        let refused = |superblock: Superblock, change: fn(&mut Block)| {
            let mut block = [0; crate::BLOCK_SIZE];
            superblock.encode(&mut block);
            change(&mut block);
            let sum = checksum::sealed::<12>(&block, 0);
            put::<12, 4>(&mut block, sum.to_le_bytes());
            Superblock::decode(&block).map_err(|corrupt| corrupt.reason)
        };
        for page_blocks in [2, 4, 64] {
            let superblock = with_pages(page_blocks);
            assert_eq!(refused(superblock, |_| ()), Ok(superblock));
            assert_eq!(
                superblock.geometry.body_copy_places(),
                [page_blocks..256, 256 + page_blocks..512]
            );
        }
        let wrong = |name| Err(Reason::Field(name));
        for page_blocks in [3, 128] {
            assert_eq!(refused(with_pages(page_blocks), |_| ()), wrong("page_blocks"));
        }
        assert_eq!(refused(with_pages(4), |block| block[172] = 1), wrong("page_blocks"));
        assert_eq!(refused(with_pages(4), |block| block[172] = 0), wrong("page_blocks"));
        let mut shared = with_pages(4);
        shared.geometry.second_superblock = Pba(128);
        assert_eq!(refused(shared, |_| ()), wrong("second_superblock"));
        let mut shared = with_pages(4);
        shared.geometry.third_superblock = Pba(511);
        assert_eq!(refused(shared, |_| ()), wrong("third_superblock"));
    }

    #[test]
    fn a_feature_that_nobody_knows_is_refused() {
        let mut block = [0; crate::BLOCK_SIZE];
        example().encode(&mut block);
        block[44] |= 16;
        let sum = checksum::sealed::<12>(&block, 0);
        put::<12, 4>(&mut block, sum.to_le_bytes());
        let error = Superblock::decode(&block).unwrap_err();
        assert_eq!(error.reason, Reason::Features(16));
    }
}
