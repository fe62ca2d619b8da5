//! Writes of several ranges: they take effect together, and senseless ones are told apart.

mod common;

use common::*;
use coulter::buffer::Buffer;
use coulter::service::{
    BlockService, CHANGES_MAX, Change, ChangesError, RequestError, UPDATES_MAX, WriteMany,
};
use coulter::{LocalVolume, OpenOptions, Volume};
use coulter_device::wrap::{CutDevice, CutPolicy};

for_both_kinds!(
    ranges_are_stored_and_unmapped_together,
    two_hundred_ranges_of_a_mebibyte_are_one_write,
    senseless_ranges_are_refused_and_change_nothing,
    a_volume_that_is_read_only_refuses_them,
);

fn write(block: u64, count: u64) -> Change {
    Change::Write { offset: block * BLOCK, length: count * BLOCK }
}

fn discard(block: u64, count: u64) -> Change {
    Change::Discard { offset: block * BLOCK, length: count * BLOCK }
}

fn block_of<V: AnyVolume>(volume: &V, block: u64) -> u8 {
    let mut bytes = [0xee; BLOCK as usize];
    volume.read_at(block * BLOCK, &mut bytes).expect("in range");
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "block {block} is of one write");
    bytes[0]
}

fn ranges_are_stored_and_unmapped_together<V: AnyVolume>() {
    let store = small_store(64 * MIB);
    let volume = open::<V>(&store);
    volume.write_at(0, &[1; 20 * BLOCK as usize]).expect("in range");
    let mut data = vec![2; 3 * BLOCK as usize];
    data[2 * BLOCK as usize..].fill(3);
    // In no order of address; the data are in the order of the ranges.
    volume.write_many(&[write(9, 2), discard(4, 2), write(1, 1)], &data, true).expect("sound");
    let expected = [1, 3, 1, 1, 0, 0, 1, 1, 1, 2, 2, 1];
    let found: Vec<_> = (0..12).map(|block| block_of(&volume, block)).collect();
    assert_eq!(found, expected);
    volume.abandon().expect("the device works");
    let volume = open::<V>(&store);
    let found: Vec<_> = (0..12).map(|block| block_of(&volume, block)).collect();
    assert_eq!(found, expected, "it was durable when it returned");
}

fn two_hundred_ranges_of_a_mebibyte_are_one_write<V: AnyVolume>() {
    let store = small_store(64 * MIB);
    let volume = open::<V>(&store);
    // The first checkpoint of an opening has been written when a write is durable.
    volume.write_durable_at(0, &[1; BLOCK as usize]).expect("in range");
    let before = volume.statistics().log.records;
    let mut changes: Vec<_> =
        (0..CHANGES_MAX as u64 - 1).map(|index| write(index * 7, 1)).collect();
    changes.push(write(5000, 57));
    volume.write_many(&changes, &[9; 256 * BLOCK as usize], true).expect("sound");
    let records = volume.statistics().log.records - before;
    assert_eq!(records, 1);
    for block in [0, 7, 198 * 7, 5000, 5056] {
        assert_eq!(block_of(&volume, block), 9);
    }
    assert_eq!(block_of(&volume, 1), 0);
}

fn senseless_ranges_are_refused_and_change_nothing<V: AnyVolume>() {
    let store = small_store(64 * MIB);
    let volume = open::<V>(&store);
    volume.write_at(0, &[1; 8 * BLOCK as usize]).expect("in range");
    let size = volume.size();
    let data = vec![7; 257 * BLOCK as usize];
    let blocks = |count: u64| &data[..(count * BLOCK) as usize];
    let refused = |changes: &[Change], data: &[u8]| {
        volume.write_many(changes, data, false).expect_err("it is refused")
    };
    let changes = |error| RequestError::Changes(error);
    assert_eq!(refused(&[], &[]), changes(ChangesError::None));
    let single: Vec<_> = (0..=CHANGES_MAX as u64).map(|index| write(2 * index, 1)).collect();
    assert_eq!(refused(&single, blocks(201)), changes(ChangesError::TooMany));
    assert_eq!(refused(&[write(0, 257)], blocks(257)), changes(ChangesError::TooMuchData));
    assert!(matches!(
        refused(&[write(0, 2), discard(1, 4)], blocks(2)),
        RequestError::Changes(ChangesError::Overlapping(_))
    ));
    assert!(matches!(
        refused(&[write(0, 1), discard(9, 0)], blocks(1)),
        RequestError::Changes(ChangesError::Range(_))
    ));
    let parts: Vec<_> =
        (0..=UPDATES_MAX as u64 / 512).map(|leaf| discard(leaf * 512 + 1, 511)).collect();
    assert_eq!(refused(&parts, &[]), changes(ChangesError::TooManyUpdates));
    let last = size / BLOCK;
    assert_eq!(refused(&[write(0, 1), write(last - 1, 2)], blocks(3)), RequestError::OutOfRange);
    assert_eq!(refused(&[write(0, 1), discard(last, 1)], blocks(1)), RequestError::OutOfRange);
    assert_eq!(refused(&[write(0, 2)], blocks(1)), RequestError::Invalid);
    assert_eq!(refused(&[write(0, 1)], blocks(2)), RequestError::Invalid);
    let part = Change::Write { offset: 512, length: BLOCK };
    assert_eq!(refused(&[part], blocks(1)), RequestError::Invalid);
    for block in 0..8 {
        assert_eq!(block_of(&volume, block), 1);
    }
}

fn a_volume_that_is_read_only_refuses_them<V: AnyVolume>() {
    let store = small_store(64 * MIB);
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let volume = V::open_with(device(&store), options).expect("the store is intact");
    let answer = volume.write_many(&[write(0, 1)], &[1; BLOCK as usize], false);
    assert_eq!(answer, Err(RequestError::ReadOnly));
}

/// By way of a session the buffer comes back, and the order of submission holds.
#[test]
fn a_session_keeps_their_order_among_its_other_requests() {
    let store = small_store(64 * MIB);
    let volume = open::<Volume>(&store);
    let mut session = BlockService::connect(&volume);
    session.submit(crate::common::write(1, 0, &[1; 4 * BLOCK as usize]));
    let many = WriteMany {
        tag: 2,
        changes: vec![write(1, 1), discard(3, 1)],
        buffer: Buffer::copied_from(&[2; BLOCK as usize]),
        fua: false,
    };
    assert!(session.submit_many(many).is_ok());
    session.submit(crate::common::write(3, 0, &[3; BLOCK as usize]));
    let mut completions = Vec::new();
    while session.outstanding() > 0 {
        session.complete(&mut completions, None);
    }
    assert_eq!(completions.len(), 3);
    for completion in &completions {
        assert_eq!(completion.result, Ok(()));
        let blocks = if completion.tag == 1 { 4 } else { 1 };
        assert_eq!(completion.buffer.len() as u64, blocks * BLOCK);
    }
    let found: Vec<_> = (0..4).map(|block| block_of(&volume, block)).collect();
    assert_eq!(found, [3, 2, 1, 0]);
}

/// The device fails in the midst of it: it is there as a whole afterwards, or not at all.
#[test]
fn a_device_that_fails_amid_them_tears_none() {
    let (mut kept, mut lost) = (0, 0);
    for commands in 0..40 {
        let store = small_store(64 * MIB);
        let (device, power) = CutDevice::new(store.open().expect("nothing has it open"));
        let volume = LocalVolume::open(Box::new(device), OpenOptions::default()).expect("intact");
        let changes: Vec<_> = (0..40).map(|index| write(index * 3, 1)).collect();
        volume.write_many(&changes, &[1; 40 * BLOCK as usize], true).expect("sound");
        power.cut_after(commands % 8, CutPolicy::Seeded(commands));
        let mut stored = 1;
        for round in 2..8u8 {
            if volume.write_many(&changes, &[round; 40 * BLOCK as usize], true).is_ok() {
                stored = round;
            }
        }
        drop(volume);
        let volume = open::<LocalVolume>(&store);
        let found: Vec<_> = (0..40).map(|index| block_of(&volume, index * 3)).collect();
        assert!(found.iter().all(|round| *round == found[0]), "cut {commands}: {found:?}");
        assert!(found[0] >= stored, "cut {commands}: {} of {stored}", found[0]);
        (kept, lost) = (kept + u32::from(found[0] > stored), lost + u32::from(found[0] == stored));
    }
    assert!(kept + lost == 40 && lost > 0, "{kept} kept, {lost} lost");
}
