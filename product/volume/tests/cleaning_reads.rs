//! What the cleaner reads of the segments that it empties.

mod common;

use common::{BLOCK, MIB, open, small_store};
use coulter::Volume;
use coulter::tuning::{CleaningMode, Retuning};
use std::time::{Duration, Instant};

fn content(block: u64) -> Vec<u8> {
    (block + 1).to_le_bytes().repeat(BLOCK as usize / 8)
}

fn set(volume: &Volume, mode: CleaningMode) {
    volume.tune(Retuning { cleaning: Some(mode), ..Retuning::default() }).expect("it runs");
}

/// Writes 32 MiB in pieces of so many blocks, discards all but one block in `kept`, and has it cleaned.
/// Returns what was read for each byte that was gone through.
fn read_share(piece: u64, kept: u64) -> f64 {
    let store = small_store(256 * MIB);
    let volume: Volume = open(&store);
    set(&volume, CleaningMode::Paused);
    let blocks = 32 * MIB / BLOCK;
    for first in (0..blocks).step_by(piece as usize) {
        let end = (first + piece).min(blocks);
        let bytes: Vec<u8> = (first..end).flat_map(content).collect();
        volume.write_at(first * BLOCK, &bytes).expect("it takes writes");
    }
    for first in (0..blocks).step_by(kept as usize) {
        volume.discard((first + 1) * BLOCK, (kept - 1) * BLOCK).expect("it takes discards");
    }
    let before = volume.statistics();
    set(&volume, CleaningMode::Drain);
    let limit = Instant::now() + Duration::from_secs(60);
    while volume.tune(Retuning::default()).expect("it runs").cleaning == CleaningMode::Drain {
        assert!(Instant::now() < limit, "it comes to an end: {:?}", volume.statistics());
        std::thread::sleep(Duration::from_millis(5));
    }
    let after = volume.statistics();
    volume.close().expect("it ends in order");
    let volume: Volume = open(&store);
    let mut bytes = vec![0; BLOCK as usize];
    for block in 0..blocks {
        volume.read_at(block * BLOCK, &mut bytes).expect("it is read");
        let is_kept = block % kept == 0;
        let expected = if is_kept { content(block) } else { vec![0; BLOCK as usize] };
        assert!(bytes == expected, "block {block}");
    }
    volume.close().expect("it ends in order");
    let cleaned = after.space.segments_cleaned - before.space.segments_cleaned;
    assert!(cleaned >= 8, "most of 16 segments were worth it: {after:?}");
    let read = after.cleaning.read_bytes - before.cleaning.read_bytes;
    read as f64 / (cleaned * after.space.segment_size_bytes) as f64
}

#[test]
fn of_long_records_only_the_headers_and_what_is_current_is_read() {
    let share = read_share(256, 64);
    // 5 of 257 blocks, and the segment of the last.
    assert!(share < 0.05, "{share}");
    let share = read_share(32, 64);
    assert!(share < 0.1, "{share}");
}

#[test]
fn where_much_is_current_all_is_read_once() {
    // Records that do not fill a buffer: what was read beyond the last whole one is not read again.
    for piece in [7, 100, 200] {
        let share = read_share(piece, 2);
        // A segment has room for two records of 201 blocks, and 110 blocks that are not written.
        assert!((0.75..=1.0).contains(&share), "{piece}: {share}");
    }
}

#[test]
fn of_short_records_all_is_read() {
    let share = read_share(4, 64);
    assert!((0.9..=1.02).contains(&share), "{share}");
}
