//! Sparse volumes: more addresses than blocks, refused exactly when there is no room.

mod common;

use common::*;
use coulter::service::{Change, RequestError};
use coulter::{CreateError, CreateOptions, LocalVolume, OpenOptions, Volume, create};
use coulter_device::MemoryStore;
use coulter_workload::Random;

for_both_kinds!(
    addresses_anywhere_hold_what_was_written_over_crashes,
    a_full_store_refuses_new_blocks_and_takes_overwrites_and_discards,
    a_discard_of_all_addresses_ends_soon,
);

const TIB: u64 = 1 << 40;

fn options(address_space: u64) -> CreateOptions {
    CreateOptions {
        segment_size: Some(2 * MIB),
        address_space: Some(address_space),
        ..CreateOptions::default()
    }
}

fn sparse_store(size: u64, options: &CreateOptions) -> MemoryStore {
    let store = MemoryStore::sparse(size);
    create(device(&store), options).expect("it fits");
    store
}

fn filled(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(512)
}

fn addresses_anywhere_hold_what_was_written_over_crashes<V: AnyVolume>() {
    let space = CreateOptions::ADDRESS_SPACE_MAX;
    let store = sparse_store(128 * MIB, &options(space));
    let mut random = Random::new(5);
    let mut written = std::collections::BTreeMap::new();
    for round in 1..4 {
        let volume = open::<V>(&store);
        assert_eq!(volume.size(), space);
        for number in 0..60 {
            let offset = match number {
                0 => 0,
                1 => space - BLOCK,
                _ => random.below(space / BLOCK) * BLOCK,
            };
            volume.write_at(offset, &filled(offset ^ round)).expect("there is room");
            written.insert(offset, offset ^ round);
        }
        assert_eq!(volume.write_at(space, &filled(1)), Err(RequestError::OutOfRange));
        volume.flush().expect("the device works");
        volume.abandon().expect("the device works");
        let volume = open::<V>(&store);
        for (offset, number) in &written {
            let mut bytes = vec![0; BLOCK as usize];
            volume.read_at(*offset, &mut bytes).expect("in range");
            assert!(bytes == filled(*number), "round {round}, byte {offset}");
            volume.read_at(offset ^ (1 << 30), &mut bytes).expect("in range");
            assert!(bytes.iter().all(|byte| *byte == 0));
        }
        volume.close().expect("the device works");
    }
}

/// A block for each window of 2 MiB: each takes a map page as well.
fn a_full_store_refuses_new_blocks_and_takes_overwrites_and_discards<V: AnyVolume>() {
    let capacity = 8 * MIB;
    let create_options = CreateOptions { volume_size: Some(capacity), ..options(16 * TIB) };
    let store = sparse_store(64 * MIB, &create_options);
    let volume = open::<V>(&store);
    let write = |window: u64, byte: u8| volume.write_at(window * 2 * MIB, &[byte; BLOCK as usize]);
    let blocks = capacity / BLOCK;
    let mut count = 0;
    while write(count, 1).is_ok() {
        count += 1;
        assert!(count <= blocks, "more than there is room for");
    }
    assert_eq!(write(count, 1), Err(RequestError::Full));
    assert!(count >= blocks / 2 - 16, "{count} windows of {blocks} blocks");
    // Overwrites and discards succeed, and a discard makes room for another window.
    for window in (0..count).step_by(7) {
        write(window, 2).expect("an overwrite takes no room");
    }
    assert_eq!(write(count, 1), Err(RequestError::Full));
    let many = [
        Change::Write { offset: 0, length: BLOCK },
        Change::Write { offset: count * 2 * MIB, length: BLOCK },
    ];
    let data = vec![3; 2 * BLOCK as usize];
    assert_eq!(volume.write_many(&many, &data, false), Err(RequestError::Full));
    volume.discard(2 * MIB, BLOCK).expect("in range");
    write(count, 4).expect("the discard has made room");
    assert_eq!(write(count + 1, 4), Err(RequestError::Full));
    volume.flush().expect("the device works");
    volume.abandon().expect("the device works");
    // It is counted the same after a crash.
    let volume = open::<V>(&store);
    let byte_of = |window: u64| {
        let mut bytes = [9; BLOCK as usize];
        volume.read_at(window * 2 * MIB, &mut bytes).expect("in range");
        bytes[0]
    };
    let expected = |window: u64| match window {
        1 => 0,
        window if window == count => 4,
        window => 1 + u8::from(window.is_multiple_of(7)),
    };
    for window in 0..=count {
        assert_eq!(byte_of(window), expected(window), "window {window}");
    }
    let write = |window: u64| volume.write_at(window * 2 * MIB, &[5; BLOCK as usize]);
    assert_eq!(write(count + 1), Err(RequestError::Full));
    write(count).expect("an overwrite takes no room");
    volume.close().expect("the device works");
}

fn a_discard_of_all_addresses_ends_soon<V: AnyVolume>() {
    let space = 1024 * TIB;
    let store = sparse_store(64 * MIB, &options(space));
    let volume = open::<V>(&store);
    let offsets = [0, 3 * TIB, 700 * TIB + MIB, space - BLOCK];
    for offset in offsets {
        volume.write_at(offset, &[1; BLOCK as usize]).expect("there is room");
    }
    volume.discard(0, space).expect("in range");
    volume.write_at(3 * TIB, &[2; BLOCK as usize]).expect("there is room");
    volume.write_zeroes(5 * TIB, 100 * TIB).expect("in range");
    let mut bytes = [9; BLOCK as usize];
    for offset in offsets {
        volume.read_at(offset, &mut bytes).expect("in range");
        assert_eq!(bytes[0], if offset == 3 * TIB { 2 } else { 0 });
    }
    volume.close().expect("the device works");
}

/// Stretches come and go: only those that hold something count.
#[test]
fn only_so_many_stretches_hold_something_at_once() {
    let create_options = CreateOptions { stretch_limit: Some(12), ..options(1024 * TIB) };
    let store = sparse_store(64 * MIB, &create_options);
    for round in 0..3 {
        let volume = open::<LocalVolume>(&store);
        for turn in 0..5u64 {
            let stretch = |index: u64| (1000 * (5 * round + turn) + index) << 30;
            for index in 0..12 {
                volume
                    .write_at(stretch(index), &[1; BLOCK as usize])
                    .unwrap_or_else(|error| panic!("round {round}, turn {turn}, {index}: {error}"));
            }
            let answer = volume.write_at(stretch(12), &[1; BLOCK as usize]);
            assert_eq!(answer, Err(RequestError::Full), "round {round}, turn {turn}");
            volume.write_at(stretch(3) + MIB, &[1; BLOCK as usize]).expect("it is in use already");
            for index in 0..12 {
                volume.discard(stretch(index), 1 << 30).expect("in range");
            }
        }
        volume.abandon().expect("the device works");
    }
}

#[test]
fn what_no_sparse_volume_can_be_is_refused() {
    let refused = |create_options: CreateOptions| {
        let store = MemoryStore::new(64 * MIB);
        create(device(&store), &create_options).expect_err("it is refused")
    };
    let is_of_addresses = |error| matches!(error, CreateError::AddressSpace);
    assert!(is_of_addresses(refused(options(CreateOptions::ADDRESS_SPACE_MAX + BLOCK))));
    assert!(is_of_addresses(refused(options(4097))));
    assert!(is_of_addresses(refused(options(BLOCK))), "less than the capacity");
    for limit in [0, 4_194_305] {
        let stretch_limit = Some(limit);
        assert!(is_of_addresses(refused(CreateOptions { stretch_limit, ..options(TIB) })));
    }
    let large = CreateOptions { volume_size: Some(65 * MIB), ..options(TIB) };
    assert!(
        matches!(refused(large), CreateError::VolumeTooLarge { .. }),
        "more than the device has"
    );
}

/// Memory follows what is in use.
#[test]
fn an_untouched_address_costs_no_memory() {
    let store = sparse_store(256 * MIB, &options(4096 * TIB));
    let volume = open::<Volume>(&store);
    let before = volume.statistics().map.memory_bytes;
    for stretch in 0..64u64 {
        volume.write_at(stretch << 36, &[1; BLOCK as usize]).expect("there is room");
    }
    let statistics = volume.statistics();
    let grown = statistics.map.memory_bytes - before;
    // 16 KiB for each stretch of 1 GiB that is touched, and an array for each leaf that is.
    assert!(grown <= 64 * (16 + 4) * 1024, "{grown} bytes");
    assert!(statistics.map.memory_bytes <= statistics.map.memory_limit_bytes);
    volume.close().expect("the device works");
    let volume = open::<Volume>(&store);
    assert!(volume.statistics().map.memory_bytes <= 64 * 16 * 1024);
}

/// What `mkfs` leaves of a store: the first 4 MiB are gone.
#[test]
fn a_third_superblock_leads_to_what_is_left() {
    let store = MemoryStore::new(64 * MIB + 8192);
    let create_options = CreateOptions { segment_size: Some(2 * MIB), ..CreateOptions::default() };
    create(device(&store), &create_options).expect("it fits");
    let volume = open::<Volume>(&store);
    for block in 0..4000u64 {
        volume.write_at(block * BLOCK, &filled(block)).expect("in range");
    }
    volume.close().expect("the device works");
    store.write_at(0, &vec![0xe4; 2 * MIB as usize]).expect("nothing has it open");
    let refused = Volume::open(device(&store), OpenOptions::default()).expect_err("not to write");
    assert!(refused.to_string().contains("third copy"), "{refused}");
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let volume = Volume::open(device(&store), options).expect("the third copy leads to it");
    for block in 0..4000u64 {
        let mut bytes = vec![0; BLOCK as usize];
        volume.read_at(block * BLOCK, &mut bytes).expect("it lies behind what was overwritten");
        assert!(bytes == filled(block), "block {block}");
    }
}
