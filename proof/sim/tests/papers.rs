//! The worked examples of the papers, with their very addresses, against the engine.
//!
//! Han and Son 2021 (block layer) give byte addresses; Sung et al. 2022 (NVMe) give 512-byte
//! sectors. Log positions are compared relative to where the example's first block landed: the
//! papers' logs begin at 0 (and 200, 800), ours behind superblocks and a record header.

use coulter_engine::Request;
use coulter_engine::reclaim::Reclaim;
use coulter_engine::tuning::CleaningMode;
use coulter_sim::scene::Scene;

const BYTES_PER_BLOCK: u64 = 4096;
const SECTORS_PER_BLOCK: u64 = 8;

/// Submits writes of (block, count, byte) so that the device sees them as one batch.
fn write_batch(scene: &mut Scene, writes: &[(u64, u32, u8)]) {
    for (lba, count, byte) in writes {
        let request = scene.write_request(*lba, *count, *byte);
        assert!(scene.submit(request));
    }
    assert_eq!(scene.run().len(), writes.len());
}

/// Where a block lies in the log.
fn place(scene: &mut Scene, lba: u64) -> u64 {
    let (_, reads) = scene.read(lba, 1);
    assert_eq!(reads.len(), 1, "a mapped block is one device read");
    u64::from(reads[0].0.0)
}

#[test]
fn block_layer_figure_3_random_addresses_become_one_sequential_write() {
    let mut scene = Scene::new(24);
    let requests = [(65_536, 1), (98_304, 2), (4_096, 1), (20_480, 1)];
    let writes: Vec<_> =
        requests.iter().map(|(byte, count)| (byte / BYTES_PER_BLOCK, *count, 7)).collect();
    let before = scene.commands.len();
    write_batch(&mut scene, &writes);
    let device_writes = scene.commands[before..]
        .iter()
        .filter(|command| matches!(command, coulter_engine::Command::Write { .. }));
    assert_eq!(device_writes.count(), 1, "four requests, one device write");
    let places: Vec<_> = writes.iter().map(|(lba, ..)| place(&mut scene, *lba)).collect();
    let bytes: Vec<_> = places.iter().map(|place| (place - places[0]) * BYTES_PER_BLOCK).collect();
    assert_eq!(bytes, [0, 4_096, 12_288, 16_384]);
}

#[test]
fn block_layer_figure_4_insert_search_and_update() {
    let mut scene = Scene::new(24);
    let (a, b) = (65_536 / BYTES_PER_BLOCK, 98_304 / BYTES_PER_BLOCK);
    write_batch(&mut scene, &[(a, 1, 1), (b, 2, 2)]);
    let first = place(&mut scene, a);
    let (content, reads) = scene.read(b, 2);
    assert_eq!(content, [2, 2]);
    assert_eq!(reads.len(), 1, "8 KiB written together are read together");
    assert_eq!((u64::from(reads[0].0.0) - first) * BYTES_PER_BLOCK, 4_096);
    write_batch(&mut scene, &[(a, 1, 3)]);
    // The paper's third write lands at 12288; here a record header lies in between.
    assert_eq!((place(&mut scene, a) - first) * BYTES_PER_BLOCK, 12_288 + BYTES_PER_BLOCK);
    assert_eq!(scene.read(a, 1).0, [3]);
}

#[test]
fn block_layer_figure_5_cleaning_moves_what_is_valid_and_reads_never_notice() {
    let mut scene = Scene::new(24);
    // Log positions 0 to 16384; those at 0 and 8192 become holes.
    let bytes = [65_536, 20_480, 40_960, 98_304, 4_096];
    let blocks: Vec<_> = bytes.iter().map(|byte| byte / BYTES_PER_BLOCK).collect();
    let writes: Vec<_> =
        blocks.iter().zip(b"abcde").map(|(lba, letter)| (*lba, 1, *letter)).collect();
    write_batch(&mut scene, &writes);
    let before: Vec<_> = blocks.iter().map(|lba| place(&mut scene, *lba)).collect();
    write_batch(&mut scene, &[(blocks[0], 1, b'A'), (blocks[2], 1, b'C')]);
    // Overwriting elsewhere makes the store clean that segment some time; the blocks in question
    // are read again and again on the way.
    let elsewhere = 1_000;
    let mut random = coulter_sim::random::Random::new(5);
    let moved = |scene: &mut Scene| {
        [1, 3, 4].iter().all(|index| place(scene, blocks[*index]) != before[*index])
    };
    let mut rounds = 0;
    while !moved(&mut scene) {
        rounds += 1;
        assert!(rounds < 2_000, "the segment is cleaned in the end");
        let room = scene.volume_size() - elsewhere - 20;
        for _ in 0..10 {
            scene.write(elsewhere + random.below(room), 20, 9);
        }
        let content: Vec<u8> = blocks.iter().flat_map(|lba| scene.read(*lba, 1).0).collect();
        assert_eq!(content, b"AbCde");
    }
    assert!(scene.engine.statistics().segments_cleaned > 0);
    // Contiguous free space: the whole segment was freed, and the log goes on into it one day.
}

/// The same five positions, fifty times over, so that a segment is worth it; and the last two of them
/// alone in another segment, the tail. What is valid in the tail goes into holes of the head, lowest
/// first, and the tail becomes free.
#[test]
fn block_layer_figure_5_by_hole_filling_the_tail_goes_into_the_heads_holes() {
    let mut scene = Scene::new(24);
    let (head, tail) = (0..250, 250..500);
    scene.write(head.start, 250, b'h');
    scene.write(tail.start, 250, b't');
    // Positions 0 and 8192 of five become holes; of the tail only 12288 and 16384 stay.
    let holes: Vec<u64> = head.clone().filter(|lba| [0, 2].contains(&(lba % 5))).collect();
    let places: Vec<u64> = holes.iter().map(|lba| place(&mut scene, *lba)).collect();
    let valid = [tail.end - 2, tail.end - 1];
    holes.iter().for_each(|lba| scene.write(*lba, 1, b'H'));
    scene.write(tail.start, 248, b'T');
    let before = valid.map(|lba| place(&mut scene, lba));
    // The holes are known, and then dead in a durable checkpoint.
    scene.engine.set_reclaim(Reclaim::HoleFill);
    let checkpoints = scene.engine.statistics().checkpoints;
    let mut round = 0;
    while scene.engine.statistics().checkpoints < checkpoints + 2 {
        round += 1;
        assert!(round < 100, "checkpoints are written");
        scene.write(1_000, 200, b'x');
    }
    let first_life = scene.engine.statistics().hole_blocks;
    scene.engine.set_cleaning(CleaningMode::Drain);
    scene.write(1_000, 1, b'x');
    scene.run();
    let after = valid.map(|lba| place(&mut scene, lba));
    assert!(valid.iter().all(|lba| scene.read(*lba, 1).0 == [b't']), "and nobody noticed");
    assert!(scene.engine.statistics().hole_blocks > first_life);
    assert!(after != before && after[0] < after[1], "moved, in order: {before:?} {after:?}");
    assert!(after.iter().all(|place| places.contains(place)), "{after:?} is in {places:?}");
}

/// What S-LFS does: new data goes into the holes of a dirty segment, in ascending order, and nothing is
/// copied.
#[test]
fn threaded_logging_writes_into_holes_in_ascending_order_and_copies_nothing() {
    let mut scene = Scene::new(24);
    scene.write(0, 250, b'a');
    scene.write(250, 250, b'b');
    let holes: Vec<u64> = (0..250).step_by(2).map(|lba| place(&mut scene, lba)).collect();
    (0..250).step_by(2).for_each(|lba| scene.write(lba, 1, b'A'));
    scene.engine.set_reclaim(Reclaim::Threaded);
    let mut round = 0;
    while scene.engine.statistics().hole_blocks == 0 {
        round += 1;
        assert!(round < 100, "holes are filled in the end");
        scene.write(1_000, 200, b'x');
        scene.write(700, 1, b'y');
    }
    let writes: Vec<_> = (600..620).map(|lba| (lba, 1, b'z')).collect();
    write_batch(&mut scene, &writes);
    let places: Vec<_> = (600..620).map(|lba| place(&mut scene, lba)).collect();
    assert!(places.is_sorted(), "{places:?}");
    assert!(places.iter().all(|place| holes.contains(place)), "{places:?} are in {holes:?}");
    assert_eq!(scene.engine.statistics().relocated_blocks, 0);
    for lba in 0..250 {
        assert_eq!(scene.read(lba, 1).0, [if lba % 2 == 0 { b'A' } else { b'a' }]);
    }
}

#[test]
fn nvme_figures_4_5_and_6_remap_read_and_overwrite() {
    let mut scene = Scene::new(24);
    let sectors = [6_544, 7_136, 5_728];
    let lba = sectors.map(|sector| sector / SECTORS_PER_BLOCK);
    let write = |scene: &mut Scene, byte| {
        write_batch(scene, &[(lba[0], 1, byte), (lba[1], 2, byte + 1), (lba[2], 1, byte + 2)]);
        let blocks = [lba[0], lba[1], lba[1] + 1, lba[2]];
        blocks.map(|lba| place(scene, lba) * SECTORS_PER_BLOCK)
    };
    let relative = |places: [u64; 4], base| places.map(|place| place - places[0] + base);
    let first = write(&mut scene, 1);
    assert_eq!(relative(first, 200), [200, 208, 216, 224], "figure 4");
    assert_eq!(scene.read(lba[1], 2), (vec![2, 2], vec![(pba(first[1]), 2)]), "figure 5");
    let second = write(&mut scene, 11);
    assert_eq!(relative(second, 800), [800, 808, 816, 824], "figure 6");
    assert!(second.iter().all(|place| !first.contains(place)), "nothing is overwritten in place");
    assert_eq!(scene.read(lba[1], 2).0, [12, 12]);
}

fn pba(sector: u64) -> coulter_format::Pba {
    coulter_format::Pba((sector / SECTORS_PER_BLOCK) as u32)
}

#[test]
fn a_read_over_a_half_overwritten_extent_sees_both_halves() {
    // What a table searched by first address gets wrong: write 8 KiB at sector 7136, overwrite
    // 4 KiB at 7144, read 8 KiB at 7136.
    let mut scene = Scene::new(24);
    let lba = 7_136 / SECTORS_PER_BLOCK;
    scene.write(lba, 2, 1);
    scene.write(7_144 / SECTORS_PER_BLOCK, 1, 2);
    let (content, reads) = scene.read(lba, 2);
    assert_eq!(content, [1, 2]);
    assert_eq!(reads.len(), 2, "two places, two device reads");
}

#[test]
fn the_examples_survive_a_crash_after_a_flush() {
    let mut scene = Scene::new(24);
    let lba = 7_136 / SECTORS_PER_BLOCK;
    scene.write(lba, 2, 1);
    scene.write(lba + 1, 1, 2);
    assert!(scene.submit(Request::Flush));
    assert_eq!(scene.run(), [Ok(())]);
    let mut again = Scene::open(scene.device.clone());
    assert_eq!(again.read(lba, 2).0, [1, 2]);
}
