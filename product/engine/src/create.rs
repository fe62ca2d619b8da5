//! A new store: its sizes, and the few blocks that make an empty one.

mod bounds;
pub(crate) mod error;

use crate::pacing::{Watermarks, metadata_blocks, root_list_pages};
use crate::units::{SegmentIndex, Stream, segment_start};
use alloc::vec::Vec;
pub use bounds::{JOURNAL_SIZE_MAX, JOURNAL_SIZE_MIN, RUN_COUNT_MAX};
use coulter_format::address::LBA_LIMIT;
use coulter_format::checkpoint::{self, BodyWriter, CheckpointHeader, Counts};
use coulter_format::checksum::{self, Kind, crc32c};
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::record::{self, BlockWord, Extent, RecordHeader, SHORT_BLOCKS_MAX};
use coulter_format::segment_table::{
    self, CoarseAge, SEGMENTS_PER_PAGE, SegmentEntry, SegmentState,
};
use coulter_format::superblock::{
    CheckpointLocation, Geometry, LABEL_SIZE, LISTED_ROOT_LIMIT_MAX, PAGE_BLOCKS_MAX,
    ROOT_LIMIT_MAX, RecoveryBudget, Superblock,
};
use coulter_format::{BLOCK_SIZE, Block, Pba, StoreId};
pub use error::LayoutError;

/// Segments that a checkpoint reserves at most.
pub(crate) const RESERVED_MAX: usize = 256;

/// Segments of a store at most, so that its table is read and listed quickly.
pub const SEGMENT_COUNT_MAX: u32 = 1 << 18;

/// What a new store should be like. Sizes are in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateOptions {
    /// Blocks of the device that the store may use.
    pub device_size: u64,
    /// Blocks that may be mapped at once, and that the volume shows unless it is sparse; `None` for as
    /// many as `spare_percent` leaves.
    pub volume_size: Option<u64>,
    /// If the volume is to show more addresses than that: how many.
    pub sparse: Option<Sparse>,
    /// Blocks in a segment: a power of two from 256 (1 MiB) to 2^18 (1 GiB).
    pub segment_blocks: u32,
    /// Blocks in a page of the flash below, if the store is to know of it: a power of two, 64 at most and less
    /// than a segment. A segment is an erase block then, of 512 MiB at most.
    pub page_blocks: Option<u32>,
    /// Spare space in percent of the exported space, when `volume_size` is `None`. Less than what cleaning
    /// needs counts as that: 4 % with segments of 8 MiB, more with smaller ones.
    pub spare_percent: u32,
    /// Identity.
    pub store: StoreId,
    /// Label, padded with zeros.
    pub label: [u8; LABEL_SIZE],
    /// Bytes of map memory that recovery may need; `None` for [`map_size_default`].
    pub map_size: Option<u64>,
    /// Map updates between two checkpoints; `None` for a size that suits the volume.
    pub journal_size: Option<u32>,
    /// Runs alive at most; `None` for [`RUN_COUNT_MAX`].
    pub run_count_limit: Option<u32>,
}

/// A space of addresses that is larger than the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sparse {
    /// Blocks that the volume shows: host addresses are below it. 2^63 at most.
    pub address_limit: u64,
    /// Stretches of 1 GiB of addresses that may hold anything at once: each takes 12 KiB of memory when
    /// it does, and the map memory keeps room for all. `None` for sixteen times as many as the capacity
    /// would fill, and 256 at least. Of more than 32,768 each takes 1 KiB while little is in it, and the map
    /// memory keeps room for that, and for as many that are full as there would be by default.
    pub root_limit: Option<u32>,
    /// A checkpoint lists pages of the list of roots, even if there are so few roots that it could list them.
    pub root_lists: bool,
}

/// Spare space below which cleaning would win less than it writes. Headers and checkpoints weigh
/// more the smaller the segments are.
pub fn spare_percent_min(segment_blocks: u32) -> u64 {
    3 + (2048 / u64::from(segment_blocks)).max(1)
}

/// With fewer segments, each is more than a hundredth of the store.
const FEW_SEGMENTS: u32 = 100;

/// How many segments fit on a device of `device_size` blocks.
fn segments_of(device_size: u64, segment_blocks: u64, has_pages: bool) -> u64 {
    if has_pages {
        // One erase block for each of superblocks A, B and C; what is left of the device serves for C.
        let beyond = u64::from(device_size.is_multiple_of(segment_blocks));
        return (device_size / segment_blocks).saturating_sub(2 + beyond);
    }
    // Superblocks A and B take a segment's room, so that segments are aligned to their own size.
    let fit = (device_size / segment_blocks).saturating_sub(1);
    // Superblock C should lie far from those. Where segments fill the device, it takes the room of one of many.
    let is_filled = device_size.is_multiple_of(segment_blocks);
    if is_filled && fit >= FEW_SEGMENTS.into() { fit - 1 } else { fit }
}

/// Decides sizes and places.
///
/// # Errors
/// A [`LayoutError`] that says which wish cannot be met and what could.
pub fn plan(options: &CreateOptions) -> Result<(Geometry, RecoveryBudget), LayoutError> {
    let size = options.segment_blocks;
    if !size.is_power_of_two() || !(256..=1 << 18).contains(&size) {
        return Err(LayoutError::SegmentSize);
    }
    let page_blocks = page_blocks(options)?;
    if options.device_size > 1 << 32 {
        return Err(LayoutError::DeviceTooLarge);
    }
    let segment_count = segments_of(options.device_size, size.into(), page_blocks > 1);
    let segment_count = u32::try_from(segment_count).map_err(|_| LayoutError::DeviceTooLarge)?;
    if segment_count > SEGMENT_COUNT_MAX {
        return Err(LayoutError::DeviceTooLarge);
    }
    let mut geometry = Geometry {
        device_size: options.device_size,
        volume_size: 1,
        capacity: 1,
        root_limit: 0,
        root_lists: false,
        segment_blocks: size,
        segment_count,
        first_segment: Pba(if page_blocks > 1 { 2 * size } else { size }),
        second_superblock: Pba(if page_blocks > 1 { size } else { size / 2 }),
        third_superblock: Pba::NOWHERE,
        page_blocks,
    };
    let too_small = || LayoutError::DeviceTooSmall { needed: smallest_device(&geometry, options) };
    let largest = largest_volume(&geometry, options)?.ok_or_else(too_small)?;
    let spare = spare_percent(options);
    geometry.capacity = match options.volume_size {
        Some(0) => return Err(LayoutError::VolumeEmpty),
        Some(wanted) if wanted > with_spare(largest, spare_percent_min(size)) => {
            return Err(LayoutError::VolumeTooLarge {
                limit: with_spare(largest, spare_percent_min(size)),
            });
        }
        Some(wanted) => wanted,
        None if with_spare(largest, spare) == 0 => return Err(too_small()),
        None => with_spare(largest, spare),
    };
    geometry.volume_size = geometry.capacity;
    if let Some(Sparse { address_limit, root_limit, root_lists }) = options.sparse {
        geometry.volume_size = address_limit;
        geometry.root_limit = root_limit.unwrap_or_else(|| root_limit_default(geometry.capacity));
        geometry.root_lists = root_lists || geometry.root_limit > ROOT_LIMIT_MAX;
        let holds = (geometry.capacity..=LBA_LIMIT).contains(&address_limit)
            && (1..=LISTED_ROOT_LIMIT_MAX).contains(&geometry.root_limit);
        if !holds {
            return Err(LayoutError::Addresses);
        }
    }
    geometry.third_superblock = geometry.best_third_superblock();
    assert!(geometry.capacity <= geometry.volume_size, "what may be mapped has addresses");
    let end = u64::from(geometry.first_segment.0) + u64::from(segment_count) * u64::from(size);
    assert!(end <= options.device_size, "the segments lie on the device");
    let lies_behind = u64::from(geometry.third_superblock.0) >= end;
    let may_lie_before = segment_count < FEW_SEGMENTS && !geometry.has_pages();
    assert!(lies_behind || may_lie_before, "a stray mkfs leaves superblock C");
    assert!(geometry.first_segment.0 >= size, "the superblocks lie before the log");
    let budget = budget(options, &geometry)?;
    Ok((geometry, budget))
}

/// Blocks in a page of the flash below, 1 if none is known.
fn page_blocks(options: &CreateOptions) -> Result<u32, LayoutError> {
    let Some(page) = options.page_blocks else { return Ok(1) };
    let fits = (2..=PAGE_BLOCKS_MAX).contains(&page) && options.segment_blocks <= 1 << 17;
    if !page.is_power_of_two() || !fits {
        return Err(LayoutError::PageSize);
    }
    Ok(page)
}

/// Roots of a sparse store: sixteen times as many as its capacity would fill.
fn root_limit_default(capacity: u64) -> u32 {
    let filled = capacity.div_ceil((ENTRIES_PER_PAGE * ENTRIES_PER_PAGE) as u64);
    (16 * filled).clamp(256, ROOT_LIMIT_MAX.into()) as u32
}

fn with_spare(blocks: u64, percent: u64) -> u64 {
    blocks * 100 / (100 + percent)
}

/// The spare space of a store in percent of what it exports, rounded down: with as much, a store of that size
/// would have a volume no smaller.
pub(crate) fn spare_percent_of(geometry: &Geometry, options: &CreateOptions) -> u32 {
    let spare = room_of(geometry, options).saturating_sub(geometry.capacity);
    (spare * 100 / geometry.capacity).try_into().unwrap_or(u32::MAX)
}

/// The capacity of a store that is to have the share of spare space that another one has.
pub(crate) fn capacity_alike(new: &Geometry, old: &Geometry, options: &CreateOptions) -> u64 {
    // Both factors count blocks of a device, which are fewer than 2^32: the product fits.
    assert!(old.capacity > 0, "a store has a capacity");
    let room = room_of(new, options).saturating_mul(old.capacity);
    room / room_of(old, options).max(1)
}

/// Blocks for the volume and what is spare.
fn room_of(geometry: &Geometry, options: &CreateOptions) -> u64 {
    largest_volume(geometry, options).ok().flatten().unwrap_or_default()
}

/// Blocks that would serve if no spare space were needed; `None` if there are none.
fn largest_volume(
    geometry: &Geometry,
    options: &CreateOptions,
) -> Result<Option<u64>, LayoutError> {
    let log = u64::from(geometry.segment_blocks) * u64::from(geometry.segment_count);
    let (volume_size, capacity) = (log.max(1), log.max(1));
    let mut whole = Geometry { volume_size, capacity, ..*geometry };
    let suited = CreateOptions { map_size: None, ..*options };
    let budget = budget(&suited, &whole)?;
    if let Some(Sparse { address_limit, root_limit, root_lists }) = options.sparse {
        // Roots that a checkpoint may have to write.
        whole.volume_size = address_limit.max(whole.capacity);
        whole.root_limit = root_limit.unwrap_or_else(|| root_limit_default(whole.capacity)).max(1);
        whole.root_lists = root_lists || whole.root_limit > ROOT_LIMIT_MAX;
    }
    let marks = Watermarks::of(&whole, &budget);
    let kept = u64::from(marks.low + 4) * u64::from(geometry.segment_blocks);
    // Both copies of the list of roots.
    let lists = if whole.root_lists { 2 * root_list_pages(&whole) } else { 0 };
    Ok(log.checked_sub(kept + metadata_blocks(log) + lists).filter(|blocks| *blocks > 0))
}

/// Spare space of a volume of no certain size.
fn spare_percent(options: &CreateOptions) -> u64 {
    u64::from(options.spare_percent).max(spare_percent_min(options.segment_blocks))
}

/// The smallest device on which a volume has room. Found by trying: what is kept back depends on
/// the size in several ways.
fn smallest_device(geometry: &Geometry, options: &CreateOptions) -> u64 {
    let has_room = |segment_count: &u32| {
        let geometry = Geometry { segment_count: *segment_count, ..*geometry };
        let largest = largest_volume(&geometry, options);
        matches!(largest, Ok(Some(largest)) if with_spare(largest, spare_percent(options)) > 0)
    };
    let segment_count = (1..=SEGMENT_COUNT_MAX).find(has_room).unwrap_or(SEGMENT_COUNT_MAX);
    // One more for the superblocks; or one for each.
    let superblocks = if geometry.has_pages() { 3 } else { 1 };
    (u64::from(segment_count) + superblocks) * u64::from(options.segment_blocks)
}

fn budget(options: &CreateOptions, geometry: &Geometry) -> Result<RecoveryBudget, LayoutError> {
    let suited =
        (geometry.capacity / 8).clamp(u64::from(JOURNAL_SIZE_MIN), JOURNAL_SIZE_MAX.into());
    let journal_size = options.journal_size.unwrap_or(suited as u32);
    let run_count_limit = options.run_count_limit.unwrap_or(RUN_COUNT_MAX);
    let journal_fits = (JOURNAL_SIZE_MIN..=JOURNAL_SIZE_MAX).contains(&journal_size);
    if !journal_fits || !(2..=RUN_COUNT_MAX).contains(&run_count_limit) {
        return Err(LayoutError::Budget);
    }
    let least = map_size_min_of(geometry);
    let map_size = options.map_size.unwrap_or(map_size_default_of(geometry));
    if map_size < least {
        return Err(LayoutError::MapTooSmall { needed: least });
    }
    Ok(RecoveryBudget { map_size, journal_size, run_count_limit })
}

/// Blocks of a segment that suit a device of so many, of which so many are spare: 32 MiB, or more where
/// these would be more than [`SEGMENT_COUNT_MAX`], or less where they would be fewer than a thousand and the
/// spare ones fewer than a sixth of that. Some segments are always kept back, and with few segments these
/// are much of the spare space; below 4 MiB what a checkpoint writes weighs more than that, and the last record of
/// each segment is shorter than it might be.
pub const fn segment_blocks_default(device_size: u64, spare: u64) -> u32 {
    let suited = if 6 * spare > device_size { 6 * spare } else { device_size };
    let mut size = 8192;
    while size > 1024 && suited / size < 1024 {
        size /= 2;
    }
    while device_size / size > SEGMENT_COUNT_MAX as u64 {
        size *= 2;
    }
    assert!(size.is_power_of_two(), "a segment is aligned to its own size");
    size as u32
}

/// Bytes in which memory says where a block lies, and its checksum, at most: in a store of 8 TiB or
/// more. Budgets are made of it whatever a store needs, so that they last when it grows.
pub(crate) const POINTER_SIZE: u64 = 8;

/// Bytes of map memory with which everything stays in memory: eight per block at most, a sixteenth for the
/// directory and for updates of leaves that are not in memory yet, and what the sweep wants free: of a
/// small volume that is more than a sixteenth, and without it the sweep would never rest. Of a small
/// volume recovery may need half as much again: then its pages need not be written before the limit of
/// references calls for it.
pub fn map_size_default(volume_size: u64) -> u64 {
    let swept = crate::map::FRAME_COUNT_MIN * crate::map::FRAME_SIZE_MAX;
    let referred = (volume_size * POINTER_SIZE / 2).min(REFERRED_SIZE_MAX);
    (volume_size * POINTER_SIZE + volume_size / 2 + referred + swept).max(map_size_min(volume_size))
}

/// Map memory that is added for updates that are referred to: there are 1.2 million of these at most.
const REFERRED_SIZE_MAX: u64 = 16 << 20;

/// Bytes of map memory that a volume needs at least.
pub fn map_size_min(volume_size: u64) -> u64 {
    crate::map::directory_size(roots_of(volume_size)) + LEAST_BESIDE_DIRECTORY
}

/// What a sparse volume of this capacity needs besides, for roots that are not densely filled.
fn sparse_directory_size(geometry: &Geometry) -> u64 {
    let dense = roots_of(geometry.capacity);
    if geometry.root_lists {
        let size = crate::map::directory_size_of(geometry);
        return size.saturating_sub(crate::map::directory_size(dense));
    }
    crate::map::directory_size(geometry.roots_max().max(dense) - dense)
}

fn roots_of(volume_size: u64) -> u64 {
    volume_size.div_ceil((ENTRIES_PER_PAGE * ENTRIES_PER_PAGE) as u64)
}

/// [`map_size_min`] of a volume that may be sparse.
pub(crate) fn map_size_min_of(geometry: &Geometry) -> u64 {
    map_size_min(geometry.capacity) + sparse_directory_size(geometry)
}

/// [`map_size_default`] of a volume that may be sparse.
pub(crate) fn map_size_default_of(geometry: &Geometry) -> u64 {
    map_size_default(geometry.capacity) + sparse_directory_size(geometry)
}

const LEAST_BESIDE_DIRECTORY: u64 = 2 * crate::map::FRAME_COUNT_MIN * crate::map::FRAME_SIZE_MAX;

/// Where the second copy of a body of so many blocks goes, if the one that counts lies at `current`: there
/// it is not overwritten. Nowhere if it has no room there.
pub(crate) fn body_copy_place(geometry: &Geometry, blocks: u32, current: Pba) -> Pba {
    let places = geometry.body_copy_places();
    let place = places.into_iter().find(|place| !place.contains(&current.0));
    let place = place.expect("a copy lies in one place of two");
    assert!(!place.contains(&current.0), "the copy that counts is not overwritten");
    if place.len() >= blocks as usize { Pba(place.start) } else { Pba::NOWHERE }
}

/// Blocks to be written to a device to make an empty store of it, in any order, followed by a
/// flush. The superblocks come last in the list: writing in order, with a flush before them, never
/// leaves a superblock that leads nowhere.
///
/// # Errors
/// As [`plan`].
pub fn create(options: &CreateOptions) -> Result<(Superblock, Vec<(Pba, Block)>), LayoutError> {
    let (geometry, budget) = plan(options)?;
    let mut blocks = Vec::new();
    let start = segment_start(&geometry, SegmentIndex(0));
    let page_bits = geometry.page_blocks.trailing_zeros() as u8;
    let mut log = FirstRecords { store: options.store, next: start, sequence: 1, page_bits };
    let pages = table_pages(geometry.segment_count);
    let mut append = |kind| {
        let mut places = Vec::new();
        for (index, chunk) in pages.chunks(SHORT_BLOCKS_MAX).enumerate() {
            let first = (index * SHORT_BLOCKS_MAX) as u64;
            places.extend(log.append(kind, first, chunk, &mut blocks));
        }
        places
    };
    let (table, copies) = (append(Kind::SegmentTable), append(Kind::TableCopy));
    assert_eq!(table.len(), pages.len(), "each page of the table is somewhere");
    assert_eq!(copies.len(), table.len(), "each page has a copy");
    let marks = Watermarks::of(&geometry, &budget);
    let queue = (marks.high + 4).min(geometry.segment_count - 1).min(RESERVED_MAX as u32);
    assert!(
        (1..=RESERVED_MAX as u32).contains(&queue),
        "a store has room to write to, and lists it"
    );
    let mut body = alloc::vec![0; checkpoint::BODY_SIZE_MAX as usize];
    let header = CheckpointHeader {
        // Both kinds of first record are behind the checkpoint: nothing is to be replayed.
        sequence: log.sequence,
        next_run: 1,
        ..CheckpointHeader::default()
    };
    let counts = Counts {
        streams: Stream::COUNT as u16,
        reserved: queue,
        table: table.len() as u32,
        copies: true,
        root_lists: geometry.root_lists,
        ..Counts::default()
    };
    let mut writer = BodyWriter::new(&header, &counts, &mut body);
    (0..Stream::COUNT).for_each(|_| writer.head(None));
    (1..=queue).for_each(|segment| writer.reserved(segment));
    table.iter().for_each(|pointer| writer.pointer(*pointer));
    copies.iter().for_each(|pointer| writer.copy(pointer.pba));
    let size = writer.finish().expect("the lists of an empty store fit");
    let (body_blocks, _) = body[..size.next_multiple_of(BLOCK_SIZE)].as_chunks::<BLOCK_SIZE>();
    let placed = log.append(Kind::Checkpoint, 0, body_blocks, &mut blocks);
    let copy = put_body_copy(&geometry, body_blocks, &mut blocks);
    assert_eq!(placed.len(), body_blocks.len(), "each block of the body is somewhere");
    assert!(placed.iter().all(|block| block.pba >= start), "what a checkpoint is lies in the log");
    let checkpoint = CheckpointLocation {
        sequence: header.sequence,
        pba: placed[0].pba,
        size: size as u32,
        checksum: crc32c(&body[..size]),
        copy,
    };
    let newest = Superblock {
        store: options.store,
        generation: 2,
        geometry,
        budget,
        epoch: 1,
        checkpoint,
        durable_sequence: header.sequence,
        epoch_max: 0,
        clean: true,
        patched: false,
        long_records: true,
        may_have_lost: false,
        label: options.label,
    };
    let oldest = Superblock { generation: 1, ..newest };
    let third = geometry.third_superblock;
    for (superblock, pba) in
        [(newest, third), (oldest, oldest.location()), (newest, newest.location())]
    {
        superblock.encode(add_block(&mut blocks, pba));
    }
    Ok((newest, blocks))
}

/// Adds a block of zeros, to be filled where it lies: a kernel's stack has no room for one.
fn add_block(blocks: &mut Vec<(Pba, Block)>, pba: Pba) -> &mut Block {
    static EMPTY: [(Pba, Block); 1] = [(Pba::NOWHERE, [0; BLOCK_SIZE])];
    blocks.extend_from_slice(&EMPTY);
    let (place, block) = blocks.last_mut().expect("it was just added");
    *place = pba;
    block
}

/// Adds the second copy of the body, if there is room for it. Returns where.
fn put_body_copy(geometry: &Geometry, body: &[Block], blocks: &mut Vec<(Pba, Block)>) -> Pba {
    let copy = body_copy_place(geometry, body.len() as u32, Pba::NOWHERE);
    if copy != Pba::NOWHERE {
        for (index, block) in (0..).zip(body) {
            add_block(blocks, copy.plus(index)).copy_from_slice(block);
        }
    }
    copy
}

/// Pages of a table in which segment 0 is closed and all others are free. What lies in segment 0
/// is listed by the checkpoint, so nothing is counted here.
fn table_pages(segment_count: u32) -> Vec<Block> {
    let entry = |index: u32| SegmentEntry {
        valid: 0,
        state: if index == 0 { SegmentState::Closed } else { SegmentState::Free },
        stream: Stream::Metadata as u8,
        clock: 0,
        mean_age: CoarseAge::default(),
    };
    let entries: Vec<_> = (0..segment_count).map(entry).collect();
    let mut pages = alloc::vec![[0; BLOCK_SIZE]; entries.len().div_ceil(SEGMENTS_PER_PAGE)];
    for (chunk, page) in entries.chunks(SEGMENTS_PER_PAGE).zip(&mut pages) {
        segment_table::encode(chunk.iter().copied(), page);
    }
    pages
}

/// The records that a new store begins with.
struct FirstRecords {
    store: StoreId,
    next: Pba,
    sequence: u64,
    page_bits: u8,
}

impl FirstRecords {
    fn append(
        &mut self,
        kind: Kind,
        key: u64,
        payload: &[Block],
        blocks: &mut Vec<(Pba, Block)>,
    ) -> Vec<coulter_format::BlockPointer> {
        let header = RecordHeader {
            stream: Stream::Metadata as u8,
            epoch: 1,
            sequence: self.sequence,
            durable_sequence: 0,
            generation: 0,
            cut: 0,
            pba: self.next,
            payload_size: payload.len() as u16,
            scattered: None,
            goes_on: false,
            page_bits: self.page_bits,
        };
        let extent = Extent { key, count: payload.len() as u16, kind, relocated: false };
        let checksums =
            payload.iter().enumerate().map(|(i, b)| checksum::block(kind, key + i as u64, b));
        let words: Vec<_> =
            checksums.map(|checksum| BlockWord { checksum, address: Pba::NOWHERE }).collect();
        record::encode(&header, &self.store, &[extent], &words, add_block(blocks, self.next))
            .expect("256 blocks of one extent fit");
        let mut placed = Vec::new();
        for (offset, (content, word)) in payload.iter().zip(&words).enumerate() {
            let pba = self.next.plus(1 + offset as u32);
            add_block(blocks, pba).copy_from_slice(content);
            placed.push(coulter_format::BlockPointer { pba, checksum: word.checksum });
        }
        self.next = self.next.plus(header.span());
        self.sequence += 1;
        placed
    }
}

/// Stands in until the real superblock has been read.
pub(crate) static PLACEHOLDER: Superblock = Superblock {
    store: StoreId { uuid: [0; 16], salt: 0 },
    generation: 0,
    geometry: Geometry {
        device_size: 1024,
        volume_size: 1,
        capacity: 1,
        root_limit: 0,
        root_lists: false,
        segment_blocks: 256,
        segment_count: 1,
        first_segment: Pba(256),
        second_superblock: Pba(128),
        third_superblock: Pba::NOWHERE,
        page_blocks: 1,
    },
    budget: RecoveryBudget { map_size: 1 << 19, journal_size: 1024, run_count_limit: 2 },
    epoch: 0,
    checkpoint: CheckpointLocation {
        sequence: 0,
        pba: Pba(257),
        size: 1,
        checksum: 0,
        copy: Pba::NOWHERE,
    },
    durable_sequence: 0,
    epoch_max: 0,
    clean: false,
    patched: false,
    long_records: false,
    may_have_lost: false,
    label: [0; LABEL_SIZE],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_that_a_device_may_have_has_segments_that_suit_it() {
        // Blocks of 1 GiB, 32 GiB, 8 TiB and a little more, and the most, 16 TiB.
        for device_size in [1 << 18, 1 << 23, 1 << 31, (1 << 31) + 16384, 1 << 32] {
            let options = CreateOptions {
                device_size,
                volume_size: None,
                sparse: None,
                segment_blocks: segment_blocks_default(device_size, device_size / 6),
                page_blocks: None,
                spare_percent: 20,
                store: StoreId { uuid: [0; 16], salt: 0 },
                label: [0; LABEL_SIZE],
                map_size: None,
                journal_size: None,
                run_count_limit: None,
            };
            let planned = plan(&options).map(|(geometry, _)| geometry.volume_size);
            let volume_size = planned.unwrap_or_else(|error| panic!("{device_size}: {error}"));
            assert!(volume_size > device_size / 2, "{volume_size} of {device_size}");
        }
    }
}
