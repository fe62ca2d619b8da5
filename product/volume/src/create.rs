//! Making an empty store on a device.
//!
//! # Power-loss contract
//! What was at the places of superblocks is erased first, whatever the segment size of an older
//! store; then everything but the superblocks is written; then the superblocks. Between these
//! steps the device is flushed. So a power cut leaves the whole new store or none; never a new
//! superblock that leads nowhere, and never one of an older store beside the new ones. What was
//! there before may be lost from the first step on.

use crate::create_error::CreateError;
use crate::geometry::Geometry;
use coulter_device::{AlignedMemory, Device, DeviceError, blocking};
use coulter_engine::create as layout;
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::superblock::{LABEL_SIZE, LISTED_ROOT_LIMIT_MAX, third_superblocks};
use coulter_format::{BLOCK_SIZE, Block, Pba, StoreId};

const SIZE: u64 = BLOCK_SIZE as u64;

/// Bytes at the start of the device that are erased: no other format's signature remains there.
const ERASED_SIZE: u64 = 1 << 20;

/// The second superblock lies half a segment into the device; segments have 2^8 to 2^18 blocks.
const SECOND_SUPERBLOCK_BITS: std::ops::RangeInclusive<u32> = 7..=17;

/// Bytes of a stretch of addresses. [`CreateOptions::stretch_limit`] says how many a sparse volume may have in use.
pub const STRETCH_SIZE: u64 = (ENTRIES_PER_PAGE * ENTRIES_PER_PAGE) as u64 * SIZE;

/// Bytes of randomness in an identity and a salt.
const RANDOM_SIZE: usize = 20;

/// Blocks that are written with one command at most.
const RUN_COUNT_MAX: usize = 256;

/// What a new store should be like.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Bytes that may be stored, and that the volume offers unless `address_space` says more; a multiple of
    /// 4096. `None` for as many as the spare leaves.
    pub volume_size: Option<u64>,
    /// Bytes that a sparse volume offers: more than it can store at once, a multiple of 4096, at most
    /// [`CreateOptions::ADDRESS_SPACE_MAX`]. What is mapped takes room, and each 2 MiB of addresses with
    /// anything in it a map page; a write for which there is none is refused
    /// ([`RequestError::Full`](crate::service::RequestError::Full)). `None`: it offers what it can store.
    pub address_space: Option<u64>,
    /// Stretches of 1 GiB of a sparse volume's addresses that may hold anything at once, 1 to 4,194,304. The
    /// map memory keeps 12 KiB for each; of more than 32,768 it keeps 1 KiB for each, and 12 KiB for as many as by
    /// default. `None` for sixteen times as many as the store would fill, 256 at least and 32,768 at most.
    pub stretch_limit: Option<u32>,
    /// Bytes of a segment: a power of two from [`CreateOptions::SEGMENT_SIZE_MIN`] to 1 GiB;
    /// `None` for what suits the device, 4 to 32 MiB.
    pub segment_size: Option<u64>,
    /// Bytes of a page of the flash below, if the store is to know of it: a power of two, from 8 to 256 KiB.
    /// A segment is to be an erase block then, of 512 MiB at most: records begin at pages, only whole pages are
    /// holes, and space is reclaimed by filling them ([`Reclaim::Threaded`](crate::tuning::Reclaim)).
    pub page_size: Option<u64>,
    /// Space kept free for cleaning in percent of the volume, when `volume_size` is `None`.
    pub spare_percent: u32,
    /// Bytes of map memory that opening may need; `None` for enough for all of it, 8.5 per
    /// block of the volume and 256 KiB.
    pub map_memory: Option<u64>,
    /// Identity; `None` for a random one.
    pub uuid: Option<[u8; 16]>,
    /// A name, at most 64 bytes, without control characters.
    pub label: String,
    /// Map updates between two checkpoints at most, which bounds what recovery replays; `None`
    /// for a number that suits the volume.
    pub journal_size: Option<u32>,
}

impl CreateOptions {
    /// The smallest segment with room for an atomic write of 1 MiB and its record's header.
    pub const SEGMENT_SIZE_MIN: u64 = 2 << 20;

    /// Bytes that a sparse volume can offer.
    pub const ADDRESS_SPACE_MAX: u64 = 1 << 62;

    /// Bytes of addresses in as many stretches as a sparse volume can have in use.
    pub const TOUCHED_LIMIT_MAX: u64 = LISTED_ROOT_LIMIT_MAX as u64 * STRETCH_SIZE;
}

impl Default for CreateOptions {
    fn default() -> CreateOptions {
        CreateOptions {
            volume_size: None,
            address_space: None,
            stretch_limit: None,
            segment_size: None,
            page_size: None,
            spare_percent: 20,
            map_memory: None,
            uuid: None,
            label: String::new(),
            journal_size: None,
        }
    }
}

/// Whether [`create`] could make a store on a device of `size` bytes. Nothing is touched, so that a
/// device can be left as it is when the wishes cannot be met.
///
/// # Errors
/// The [`CreateError`] that [`create`] would give before it writes anything.
pub fn check_create(size: u64, options: &CreateOptions) -> Result<(), CreateError> {
    let device_size = size / SIZE;
    let options = translate(options, device_size, &[0; RANDOM_SIZE])?;
    let planned = layout::plan(&options);
    planned.map(drop).map_err(|error| CreateError::of(error, size, &options))
}

/// Bytes of the smallest device, in steps of a MiB, on which a volume of `volume_size` bytes has the spare space that
/// `options` ask for.
///
/// # Errors
/// The [`CreateError`] that says what no device can have.
pub fn store_size_for(volume_size: u64, options: &CreateOptions) -> Result<u64, CreateError> {
    const STEP: u64 = 1 << 20;
    let options = CreateOptions { volume_size: None, ..options.clone() };
    let mut size = volume_size.max(STEP);
    loop {
        size = size.next_multiple_of(STEP);
        let device_size = size / SIZE;
        let translated = translate(&options, device_size, &[0; RANDOM_SIZE])?;
        let found = match layout::plan(&translated) {
            Ok((geometry, _)) => geometry.capacity * SIZE,
            Err(layout::LayoutError::DeviceTooSmall { needed }) if needed > device_size => {
                size = needed * SIZE;
                continue;
            }
            Err(error) => return Err(CreateError::of(error, size, &translated)),
        };
        if found >= volume_size {
            return Ok(size);
        }
        // What is missing, with the spare space that comes on top, less what steps may take back.
        size += (volume_size - found).max(STEP);
    }
}

/// Makes an empty store on all of `device`. What was there is lost.
///
/// # Errors
/// [`CreateError`] when the wishes cannot be met, before anything is written, or when the device
/// fails.
pub fn create(
    mut device: Box<dyn Device>,
    options: &CreateOptions,
) -> Result<Geometry, CreateError> {
    let properties = device.properties();
    let place = properties.description.clone();
    let (size, device_size) = (properties.size, properties.size / SIZE);
    let mut random = [0; RANDOM_SIZE];
    getrandom::fill(&mut random).map_err(|_| CreateError::NoRandomness)?;
    let options = translate(options, device_size, &random)?;
    let (superblock, blocks) =
        layout::create(&options).map_err(|error| CreateError::of(error, size, &options))?;
    write_store(&mut *device, device_size, &blocks)
        .map_err(|source| CreateError::Device { device: place, source })?;
    Ok(Geometry::of(&superblock))
}

fn translate(
    options: &CreateOptions,
    device_size: u64,
    random: &[u8; RANDOM_SIZE],
) -> Result<layout::CreateOptions, CreateError> {
    let bytes = options.label.as_bytes();
    // A label is printed on terminals, which take control characters for orders.
    if bytes.len() > LABEL_SIZE || options.label.chars().any(char::is_control) {
        return Err(CreateError::Label { size_max: LABEL_SIZE });
    }
    let mut label = [0; LABEL_SIZE];
    label[..bytes.len()].copy_from_slice(bytes);
    if options.volume_size.is_some_and(|size| !size.is_multiple_of(SIZE)) {
        return Err(CreateError::VolumeSize);
    }
    if device_size > 1 << 32 {
        let (size, segment_size) = (device_size.saturating_mul(SIZE), SIZE);
        return Err(CreateError::DeviceTooLarge { size, segment_size });
    }
    let segment_blocks = match options.segment_size {
        None => Some(layout::segment_blocks_default(device_size, spare(options, device_size))),
        Some(size) if size % SIZE != 0 || size < CreateOptions::SEGMENT_SIZE_MIN => None,
        Some(size) => u32::try_from(size / SIZE).ok(),
    };
    let segment_blocks = segment_blocks.ok_or(CreateError::SegmentSize)?;
    let page_blocks = match options.page_size {
        Some(size) if size % SIZE != 0 => return Err(CreateError::PageSize),
        size => size.map(|size| u32::try_from(size / SIZE).unwrap_or(u32::MAX)),
    };
    let percent_min = layout::spare_percent_min(segment_blocks) as u32;
    if options.volume_size.is_none() && options.spare_percent < percent_min {
        let segment_size = u64::from(segment_blocks) * SIZE;
        return Err(CreateError::SpareTooSmall { percent_min, segment_size });
    }
    let (uuid, salt) = random.split_at(16);
    let mut uuid: [u8; 16] = uuid.try_into().expect("split there");
    // Version 4 and variant 1 of RFC 9562: random.
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    let salt = u32::from_ne_bytes(salt.try_into().expect("four bytes are left"));
    Ok(layout::CreateOptions {
        device_size,
        sparse: sparse(options)?,
        volume_size: options.volume_size.map(|size| size / SIZE),
        segment_blocks,
        spare_percent: options.spare_percent,
        store: StoreId { uuid: options.uuid.unwrap_or(uuid), salt },
        label,
        map_size: options.map_memory,
        journal_size: options.journal_size,
        run_count_limit: None,
        page_blocks,
    })
}

fn sparse(options: &CreateOptions) -> Result<Option<layout::Sparse>, CreateError> {
    let Some(size) = options.address_space else { return Ok(None) };
    if !size.is_multiple_of(SIZE) || size > CreateOptions::ADDRESS_SPACE_MAX {
        return Err(CreateError::AddressSpace);
    }
    let (address_limit, root_limit) = (size / SIZE, options.stretch_limit);
    Ok(Some(layout::Sparse { address_limit, root_limit, root_lists: false }))
}

/// Blocks of spare space that there will be, about.
fn spare(options: &CreateOptions, device_size: u64) -> u64 {
    let percent = u64::from(options.spare_percent);
    match options.volume_size {
        Some(size) => device_size.saturating_sub(size / SIZE),
        None => device_size / (100 + percent) * percent,
    }
}

/// Writes a store's first blocks, of which the last three are its superblocks.
fn write_store(
    device: &mut dyn Device,
    device_size: u64,
    blocks: &[(Pba, Block)],
) -> Result<(), DeviceError> {
    erase(device, device_size)?;
    let (body, superblocks) = blocks.split_at(blocks.len() - 3);
    for part in [body, superblocks] {
        let mut rest = part;
        while !rest.is_empty() {
            let (run, after) = rest.split_at(run_count(rest));
            let mut memory = AlignedMemory::zeroed(run.len() * BLOCK_SIZE);
            for ((_, content), place) in run.iter().zip(memory.chunks_exact_mut(BLOCK_SIZE)) {
                place.copy_from_slice(content);
            }
            blocking::write(device, run[0].0.byte_offset(), &mut memory)?;
            rest = after;
        }
        blocking::flush(device)?;
    }
    Ok(())
}

/// How many blocks from the first on lie side by side.
fn run_count(blocks: &[(Pba, Block)]) -> usize {
    let joined = blocks.windows(2).take_while(|pair| pair[0].0.plus(1) == pair[1].0);
    (1 + joined.count()).min(RUN_COUNT_MAX)
}

/// Erases the start of the device and every place that a superblock may have.
fn erase(device: &mut dyn Device, device_size: u64) -> Result<(), DeviceError> {
    let start = ERASED_SIZE.min(device_size * SIZE);
    let mut zeros = AlignedMemory::zeroed(start as usize);
    blocking::write(device, 0, &mut zeros)?;
    let mut block = AlignedMemory::zeroed(BLOCK_SIZE);
    let third = third_superblocks(device_size).map(|pba| u64::from(pba.0));
    for place in SECOND_SUPERBLOCK_BITS.map(|bits| 1u64 << bits).chain(third) {
        if place < device_size && place * SIZE >= start {
            blocking::write(device, place * SIZE, &mut block)?;
        }
    }
    blocking::flush(device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use coulter_device::MemoryStore;
    use coulter_device::wrap::{CutDevice, CutPolicy};
    use coulter_format::superblock::Superblock;

    fn small() -> CreateOptions {
        CreateOptions { segment_size: Some(2 << 20), ..CreateOptions::default() }
    }

    fn superblocks(store: &MemoryStore) -> Vec<Superblock> {
        let places = std::iter::once(0).chain(SECOND_SUPERBLOCK_BITS.map(|bits| SIZE << bits));
        let mut block = [0; BLOCK_SIZE];
        let read = |place: u64| {
            (place < store.size()).then(|| {
                store.read_at(place, &mut block).expect("nothing has it open");
                Superblock::decode(&block).ok()
            })
        };
        places.filter_map(read).flatten().collect()
    }

    #[test]
    fn sizes_and_names_are_reported_as_asked() {
        let store = MemoryStore::new(64 << 20);
        let device = store.open().expect("nothing has it open");
        let options = CreateOptions {
            volume_size: Some(20 << 20),
            uuid: Some([7; 16]),
            label: "mine".to_string(),
            ..small()
        };
        let geometry = create(Box::new(device), &options).expect("it fits");
        assert_eq!(geometry.volume_size_bytes, 20 << 20);
        assert_eq!(geometry.segment_size_bytes, 2 << 20);
        assert_eq!(geometry.store_size_bytes, 64 << 20);
        assert_eq!(geometry.label, "mine");
        assert_eq!(geometry.uuid_text(), "07070707-0707-0707-0707-070707070707");
    }

    #[test]
    fn random_identities_differ_and_say_that_they_are_random() {
        let make = || {
            let device = MemoryStore::new(64 << 20).open().expect("nothing has it open");
            create(Box::new(device), &small()).expect("it fits").uuid
        };
        let (one, other) = (make(), make());
        assert_ne!(one, other);
        assert_eq!((one[6] >> 4, one[8] >> 6), (4, 2));
    }

    #[test]
    fn no_superblock_of_an_older_store_remains() {
        let store = MemoryStore::new(256 << 20);
        for segment_size in [4 << 20, 8 << 20, 2 << 20] {
            let device = store.open().expect("nothing has it open");
            let options =
                CreateOptions { segment_size: Some(segment_size), ..CreateOptions::default() };
            let geometry = create(Box::new(device), &options).expect("it fits");
            let found = superblocks(&store);
            assert_eq!(found.len(), 2);
            assert!(found.iter().all(|superblock| superblock.store.uuid == geometry.uuid));
        }
    }

    #[test]
    fn a_power_cut_at_any_command_leaves_no_superblock_without_its_store() {
        for commands in 0.. {
            let store = MemoryStore::new(64 << 20);
            let first = create(Box::new(store.open().expect("nothing has it open")), &small());
            let first = first.expect("it fits").uuid;
            let (device, handle) = CutDevice::new(store.open().expect("nothing has it open"));
            handle.cut_after(commands, CutPolicy::Seeded(commands));
            let second = create(Box::new(device), &small());
            let found = superblocks(&store);
            match second {
                Ok(geometry) => {
                    assert!(found.iter().all(|found| found.store.uuid == geometry.uuid));
                    assert_eq!(found.len(), 2);
                    return;
                }
                Err(error) => assert!(matches!(error, CreateError::Device { .. }), "{error}"),
            }
            // Whether old or new, a superblock that is left leads to its checkpoint.
            for superblock in found.iter().filter(|found| found.store.uuid != first) {
                let mut body = vec![0; superblock.checkpoint.size as usize];
                let offset = superblock.checkpoint.pba.byte_offset();
                store.read_at(offset, &mut body).expect("nothing has it open");
                let checksum = coulter_format::checksum::crc32c(&body);
                assert_eq!(checksum, superblock.checkpoint.checksum, "cut at {commands}");
            }
        }
    }

    #[test]
    fn impossible_wishes_are_refused_and_nothing_is_written() {
        let store = MemoryStore::new(64 << 20);
        let refused = |options: CreateOptions| {
            let foreseen = check_create(64 << 20, &options).expect_err("it cannot be done");
            let device = store.open().expect("nothing has it open");
            let error = create(Box::new(device), &options).expect_err("it cannot be done");
            assert_eq!(foreseen.to_string(), error.to_string());
            error
        };
        let odd = refused(CreateOptions { segment_size: Some(3 << 20), ..small() });
        assert!(matches!(odd, CreateError::SegmentSize), "{odd}");
        let uneven = refused(CreateOptions { segment_size: Some((1 << 20) + 1), ..small() });
        assert!(matches!(uneven, CreateError::SegmentSize), "{uneven}");
        let partial = refused(CreateOptions { volume_size: Some(5000), ..small() });
        assert!(matches!(partial, CreateError::VolumeSize), "{partial}");
        let wide = refused(CreateOptions { volume_size: Some(63 << 20), ..small() });
        assert!(matches!(wide, CreateError::VolumeTooLarge { .. }), "{wide}");
        let huge = check_create(500 << 40, &CreateOptions::default()).expect_err("it cannot be");
        assert!(
            huge.to_string().contains("a store of 500 TiB, and a store can have 16 TiB at most"),
            "{huge}"
        );
        let bare = refused(CreateOptions { spare_percent: 3, ..small() });
        assert!(matches!(bare, CreateError::SpareTooSmall { percent_min: 7, .. }), "{bare}");
        let narrow = refused(CreateOptions { segment_size: Some(32 << 20), ..small() });
        assert!(matches!(narrow, CreateError::DeviceTooSmall { .. }), "{narrow}");
        let long = refused(CreateOptions { label: "x".repeat(65), ..small() });
        assert!(matches!(long, CreateError::Label { .. }), "{long}");
        for label in ["two\nlines", "\u{1b}[2J", "\0", "\u{9b}2J"] {
            let odd = refused(CreateOptions { label: label.to_string(), ..small() });
            assert!(matches!(odd, CreateError::Label { .. }), "{odd}");
        }
        let tiny = check_create(1, &small()).expect_err("it cannot be done").to_string();
        assert!(tiny.contains("has 1 byte,"), "{tiny}");
        check_create(64 << 20, &small()).expect("it can be done");
        assert_eq!(store.stored_bytes().expect("nothing has it open"), 0);
    }
}
