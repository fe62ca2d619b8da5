//! What was written is read back, whatever the shape of the requests.

mod common;

use common::*;
use coulter::service::Operation;
use coulter::{CreateOptions, OpenOptions, Volume, create};
use coulter_device::MemoryStore;
use coulter_workload::Random;
use std::sync::Arc;

for_both_kinds!(
    one_thread_sees_what_it_did_over_many_openings,
    a_partial_write_amid_whole_writes_keeps_what_they_wrote,
    large_writes_and_reads_are_cut_and_come_out_whole,
    a_device_of_4096_byte_sectors_serves_512_byte_requests,
    writes_to_all_of_a_volume_many_times_over_never_fail,
    a_map_that_does_not_fit_into_memory_is_read_from_the_store,
    freed_segments_are_discarded_on_the_device_only_if_asked,
);

/// A part of a volume with a copy of what it should hold.
struct Region {
    start: u64,
    model: Vec<u8>,
}

impl Region {
    fn new(start: u64, size: u64) -> Region {
        Region { start, model: vec![0; size as usize] }
    }

    /// A random range of sectors, most of them short.
    fn range(&self, random: &mut Random) -> (usize, usize) {
        let sectors = self.model.len() as u64 / SECTOR;
        let longest = [8, 64, 600][random.below(3) as usize];
        let length = 1 + random.below(longest.min(sectors));
        let start = random.below(sectors - length + 1);
        let (mut start, mut length) = (start * SECTOR, length * SECTOR);
        if random.below(2) == 0 {
            // Whole blocks.
            start -= start % BLOCK;
            length = length.next_multiple_of(BLOCK).min(self.model.len() as u64 - start);
        }
        (start as usize, length as usize)
    }

    fn step(&mut self, volume: &impl AnyVolume, random: &mut Random) {
        let (start, length) = self.range(random);
        let place = self.start + start as u64;
        let model = &mut self.model[start..start + length];
        match random.below(16) {
            0 => volume.flush().expect("the device works"),
            1 => {
                volume.discard(place, length as u64).expect("in range");
                model.fill(0);
            }
            2 => {
                volume.write_zeroes(place, length as u64).expect("in range");
                model.fill(0);
            }
            3..8 => {
                let mut bytes = vec![0xee; length];
                volume.read_at(place, &mut bytes).expect("in range");
                assert!(bytes == model, "{length} bytes at {place}");
            }
            kind => {
                random.fill(model);
                if kind == 8 {
                    volume.write_durable_at(place, model).expect("in range");
                } else {
                    volume.write_at(place, model).expect("in range");
                }
            }
        }
    }

    fn check(&self, volume: &impl AnyVolume) {
        let mut bytes = vec![0xee; self.model.len()];
        volume.read_at(self.start, &mut bytes).expect("in range");
        let wrong = bytes.iter().zip(&self.model).position(|(found, wanted)| found != wanted);
        assert_eq!(wrong, None, "first wrong byte after {}", self.start);
    }
}

fn run_region(volume: &impl AnyVolume, region: &mut Region, seed: u64, steps: u32) {
    let mut random = Random::new(seed);
    for _ in 0..steps {
        region.step(volume, &mut random);
    }
    region.check(volume);
}

#[test]
fn requests_of_any_shape_from_several_threads_act_on_their_own_bytes_only() {
    let store = small_store(96 * MIB);
    let volume = open::<Volume>(&store);
    // Regions meet in the middle of a block, so that threads merge into the same block.
    let size = 4 * MIB + SECTOR;
    let mut regions: Vec<_> = (0..4).map(|index| Region::new(index * size, size)).collect();
    std::thread::scope(|scope| {
        for (seed, region) in regions.iter_mut().enumerate() {
            let volume = &volume;
            scope.spawn(move || run_region(volume, region, seed as u64, 1500));
        }
    });
    regions.iter().for_each(|region| region.check(&volume));
    volume.close().expect("the device works");
    let volume = open::<Volume>(&store);
    regions.iter().for_each(|region| region.check(&volume));
}

fn one_thread_sees_what_it_did_over_many_openings<V: AnyVolume>() {
    let store = small_store(48 * MIB);
    let mut region = Region::new(3 * SECTOR, 6 * MIB);
    for seed in 0..40 {
        let volume = open::<V>(&store);
        region.check(&volume);
        run_region(&volume, &mut region, seed, 120);
        if seed % 3 == 0 {
            volume.abandon().expect("nothing failed");
        } else {
            volume.close().expect("the device works");
        }
    }
}

#[test]
fn concurrent_writes_to_sectors_of_one_block_all_survive() {
    let store = small_store(48 * MIB);
    let volume = Arc::new(open::<Volume>(&store));
    for round in 0..200u8 {
        let mut session = volume.connect();
        for sector in 0..8 {
            session.submit(write(
                sector,
                40 * BLOCK + sector * SECTOR,
                &[round ^ sector as u8; 512],
            ));
        }
        let completions = complete_all(&mut *session);
        assert!(completions.iter().all(|completion| completion.result.is_ok()));
        let mut block = vec![0; BLOCK as usize];
        volume.read_at(40 * BLOCK, &mut block).expect("in range");
        for (sector, bytes) in block.chunks(SECTOR as usize).enumerate() {
            assert!(bytes.iter().all(|byte| *byte == round ^ sector as u8), "sector {sector}");
        }
    }
    let counts = volume.statistics().requests;
    assert_eq!(counts.merged, 1600);
    assert!(counts.blocked >= 200, "{counts:?}");
}

fn a_partial_write_amid_whole_writes_keeps_what_they_wrote<V: AnyVolume>() {
    let store = small_store(48 * MIB);
    let volume = open::<V>(&store);
    let mut session = volume.connect();
    for round in 0..200u8 {
        // Submitted together: the whole write, the sector, then a discard of other sectors.
        session.submit(write(0, 0, &[round; 8192]));
        session.submit(write(1, 4096 + 512, &[!round; 512]));
        session.submit(bare(2, Operation::Discard, 4096 + 1024, 512));
        assert!(complete_all(&mut *session).iter().all(|completion| completion.result.is_ok()));
        let mut bytes = vec![0; 8192];
        volume.read_at(0, &mut bytes).expect("in range");
        let mut wanted = vec![round; 8192];
        wanted[4608..5120].fill(!round);
        wanted[5120..5632].fill(0);
        assert!(bytes == wanted, "round {round}");
    }
}

fn large_writes_and_reads_are_cut_and_come_out_whole<V: AnyVolume>() {
    let store = small_store(160 * MIB);
    let volume = open::<V>(&store);
    let mut content = vec![0; 33 * MIB as usize + 512];
    Random::new(9).fill(&mut content);
    // More than one request, each more than one record, from the middle of a block on.
    volume.write_at(512, &content).expect("in range");
    let mut bytes = vec![0; content.len()];
    volume.read_at(512, &mut bytes).expect("in range");
    assert!(bytes == content);
    let mut session = volume.connect();
    let completion = carry_out(&mut *session, read(7, 4096, 32 * MIB));
    assert_eq!(completion.result, Ok(()));
    assert!(completion.buffer[..] == content[4096 - 512..][..32 * MIB as usize]);
}

fn a_device_of_4096_byte_sectors_serves_512_byte_requests<V: AnyVolume>() {
    let store = small_store(48 * MIB).with_alignment(4096);
    let volume = V::open_with(device(&store), OpenOptions::default()).expect("it is intact");
    let mut region = Region::new(SECTOR, 2 * MIB);
    run_region(&volume, &mut region, 77, 400);
}

fn writes_to_all_of_a_volume_many_times_over_never_fail<V: AnyVolume>() {
    let store = small_store(64 * MIB);
    let volume = open::<V>(&store);
    let blocks = volume.size() / BLOCK;
    let mut random = Random::new(3);
    let mut versions = vec![0u64; blocks as usize];
    let mut session = volume.connect();
    let mut completions = Vec::new();
    let content = |block: u64, version: u64| {
        let mut bytes = vec![0; BLOCK as usize];
        Random::new(block << 20 | version).fill(&mut bytes);
        bytes
    };
    for step in 0..blocks * 8 {
        // Everything once in order, then at random.
        let block = if step < blocks { step } else { random.below(blocks) };
        versions[block as usize] += 1;
        session.submit(write(0, block * BLOCK, &content(block, versions[block as usize])));
        while session.outstanding() >= 32 {
            session.complete(&mut completions, None);
        }
    }
    completions.extend(complete_all(&mut *session));
    assert!(completions.iter().all(|completion| completion.result.is_ok()));
    let statistics = volume.statistics();
    assert!(statistics.space.segments_cleaned > 0, "{statistics:?}");
    let mut bytes = vec![0; BLOCK as usize];
    for (block, version) in (0..).zip(&versions) {
        volume.read_at(block * BLOCK, &mut bytes).expect("in range");
        assert!(bytes == content(block, *version), "block {block}");
    }
    volume.close().expect("the device works");
}

fn a_map_that_does_not_fit_into_memory_is_read_from_the_store<V: AnyVolume>() {
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
    let reopen = || V::open_with(device(&store), options).expect("it is intact");
    let mut random = Random::new(21);
    let mut versions = std::collections::BTreeMap::new();
    for round in 1..4u64 {
        let volume = reopen();
        let mut session = volume.connect();
        let mut completions = Vec::new();
        for _ in 0..25_000 {
            let block = random.below(volume_size / BLOCK);
            versions.insert(block, round);
            session.submit(write(
                0,
                block * BLOCK,
                &(block ^ round << 50).to_le_bytes().repeat(512),
            ));
            while session.outstanding() >= 64 {
                session.complete(&mut completions, None);
            }
        }
        completions.extend(complete_all(&mut *session));
        assert!(completions.iter().all(|completion| completion.result.is_ok()));
        let statistics = volume.statistics().map;
        assert!(statistics.memory_peak_bytes <= MIB, "{statistics:?}");
        drop(session);
        if round == 2 {
            volume.abandon().expect("nothing failed");
        } else {
            volume.close().expect("the device works");
        }
    }
    let volume = reopen();
    let mut bytes = [0; 4096];
    // Not in order, so that a page that was read is not all that is needed for a while.
    for _ in 0..4000 {
        let from = random.below(volume_size / BLOCK);
        let Some((block, round)) = versions.range(from..).next() else { continue };
        volume.read_at(block * BLOCK, &mut bytes).expect("in range");
        assert!(bytes[..] == (block ^ round << 50).to_le_bytes().repeat(512), "block {block}");
    }
    let map = volume.statistics().map;
    assert!(map.misses > 100, "{map:?}");
}

fn freed_segments_are_discarded_on_the_device_only_if_asked<V: AnyVolume>() {
    for trim in [false, true] {
        let store = small_store(64 * MIB);
        let options = OpenOptions { trim, ..OpenOptions::default() };
        let volume = V::open_with(device(&store), options).expect("it is intact");
        let mut region = Region::new(0, 20 * MIB);
        let mut random = Random::new(4);
        for _ in 0..5 {
            random.fill(&mut region.model);
            volume.write_at(0, &region.model).expect("in range");
        }
        volume.flush().expect("the device works");
        assert_eq!(volume.statistics().device.discards > 0, trim);
        region.check(&volume);
        volume.abandon().expect("nothing failed");
        region.check(&open::<V>(&store));
    }
}
