//! Reads and questions that tell exactly which blocks are mapped, also where the map is not in memory.

mod common;

use common::*;
use coulter::service::{BlockService, Change, Extent, Operation, Request, RequestError};
use coulter::{CreateOptions, OpenOptions, Volume, create};
use coulter_device::MemoryStore;
use coulter_workload::Random;
use std::collections::BTreeSet;

for_both_kinds!(
    what_is_mapped_is_told_exactly_over_a_paged_map_and_crashes,
    a_read_tells_of_the_bytes_that_it_reads,
);

/// The bytes that runs from `offset` on say to be mapped, as blocks.
fn mapped_blocks(offset: u64, extents: &[Extent]) -> BTreeSet<u64> {
    let (mut at, mut blocks) = (offset, BTreeSet::new());
    for Extent { length, mapped } in extents {
        if *mapped {
            blocks.extend(at / BLOCK..(at + length).div_ceil(BLOCK));
        }
        at += length;
    }
    blocks
}

fn asked<V: AnyVolume>(volume: &V, end: u64) -> BTreeSet<u64> {
    let (mut at, mut blocks) = (0, BTreeSet::new());
    while at < end {
        let extents = volume.exact_extents(at, end - at).expect("in range");
        blocks.extend(mapped_blocks(at, &extents));
        let covered: u64 = extents.iter().map(|extent| extent.length).sum();
        assert!(covered > 0 && covered <= end - at, "{covered} of {}", end - at);
        at += covered;
    }
    blocks
}

fn what_is_mapped_is_told_exactly_over_a_paged_map_and_crashes<V: AnyVolume>() {
    let store = MemoryStore::sparse(1300 * MIB);
    let volume_size = 1024 * MIB;
    let create_options = CreateOptions {
        segment_size: Some(2 * MIB),
        volume_size: Some(volume_size),
        map_memory: Some(MIB),
        ..CreateOptions::default()
    };
    create(device(&store), &create_options).expect("it fits");
    let options = OpenOptions { map_memory: Some(MIB), ..OpenOptions::default() };
    let mut random = Random::new(77);
    let mut mapped = BTreeSet::new();
    let mut loose = 0;
    for round in 0..3 {
        let volume = V::open_with(device(&store), options).expect("it is intact");
        for _ in 0..1500 {
            let block = random.below(volume_size / BLOCK - 600);
            match random.below(8) {
                0 => {
                    let count = 1 + random.below(600);
                    volume.discard(block * BLOCK, count * BLOCK).expect("in range");
                    mapped.retain(|other| !(block..block + count).contains(other));
                }
                1 => {
                    let other = (block + 300) % 500;
                    let write = Change::Write { offset: block * BLOCK, length: BLOCK };
                    let discard = Change::Discard { offset: other * BLOCK, length: BLOCK };
                    let changes = if other == block { vec![write] } else { vec![write, discard] };
                    volume.write_many(&changes, &[1; BLOCK as usize], false).expect("sound");
                    mapped.remove(&other);
                    mapped.insert(block);
                }
                _ => {
                    volume.write_at(block * BLOCK, &[1; BLOCK as usize]).expect("in range");
                    mapped.insert(block);
                }
            }
        }
        volume.flush().expect("the device works");
        assert_eq!(asked(&volume, volume_size), mapped, "round {round}");
        for _ in 0..200 {
            let (first, count) = (random.below(volume_size / BLOCK - 64), 1 + random.below(64));
            let mut bytes = vec![7; (count * BLOCK) as usize];
            let extents = volume.read_present_at(first * BLOCK, &mut bytes).expect("in range");
            let expected: BTreeSet<_> = mapped.range(first..first + count).copied().collect();
            assert_eq!(mapped_blocks(first * BLOCK, &extents), expected);
            for (block, content) in (first..).zip(bytes.chunks(BLOCK as usize)) {
                let byte = u8::from(mapped.contains(&block));
                assert!(content.iter().all(|found| *found == byte), "block {block}");
            }
        }
        volume.abandon().expect("the device works");
        // Right after a crash nothing is in memory, and the quick answer is not exact.
        let volume = V::open_with(device(&store), options).expect("it is intact");
        let quick = volume.extents(0, 64 * MIB).expect("in range");
        loose += usize::from(mapped_blocks(0, &quick).len() > mapped.range(..16384).count());
        assert_eq!(asked(&volume, volume_size), mapped, "after crash {round}");
        volume.close().expect("the device works");
    }
    assert!(loose > 0, "the quick answer was exact all the time, so the test shows nothing");
}

fn a_read_tells_of_the_bytes_that_it_reads<V: AnyVolume>() {
    let store = small_store(64 * MIB);
    let volume = open::<V>(&store);
    volume.write_at(2 * BLOCK, &[1; BLOCK as usize]).expect("in range");
    let mut bytes = [9; 6 * SECTOR as usize];
    let extents = volume.read_present_at(2 * BLOCK - SECTOR, &mut bytes).expect("in range");
    let run = |length, mapped| Extent { length, mapped };
    assert_eq!(extents, [run(SECTOR, false), run(5 * SECTOR, true)]);
    assert!(bytes[..512].iter().all(|byte| *byte == 0));
    assert!(bytes[512..].iter().all(|byte| *byte == 1));
    assert_eq!(volume.exact_extents(0, 0), Err(RequestError::Invalid));
    let size = volume.size();
    assert_eq!(volume.exact_extents(size, BLOCK), Err(RequestError::OutOfRange));
}

#[test]
fn an_ordinary_read_tells_nothing_of_it() {
    let store = small_store(64 * MIB);
    let volume = open::<Volume>(&store);
    let mut session = BlockService::connect(&volume);
    let completion = carry_out(&mut *session, read(1, 0, BLOCK));
    assert!(completion.extents.is_empty());
    let Request { tag, offset, length, buffer, .. } = read(2, 0, BLOCK);
    let exact = Request { tag, operation: Operation::Read, offset, length, buffer };
    assert!(session.submit_exact(exact).is_ok());
    let mut completions = Vec::new();
    session.complete(&mut completions, None);
    assert_eq!(completions[0].extents, [Extent { length: BLOCK, mapped: false }]);
}
