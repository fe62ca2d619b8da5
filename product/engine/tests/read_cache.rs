//! Goal: the cache of translations knows what the loop told it last, and nothing that an answer has
//! made old. What two threads can do to each other is in `proof/model-reads`.

use coulter_engine::read_cache::{Miss, READ_BLOCKS_MAX, ReadCache, SLOT_SIZE};
use coulter_format::{BlockPointer, Lba, Pba};

const FIRST: u32 = 16;
const SEGMENT: u32 = 8;

fn cache(slots: u64) -> ReadCache {
    let cache = ReadCache::new(slots * SLOT_SIZE, 1000, Pba(FIRST), SEGMENT, 4);
    cache.expect("a slot fits")
}

fn at(pba: u32) -> BlockPointer {
    BlockPointer { pba: Pba(FIRST + pba), checksum: 100 + pba }
}

/// Where a block lies, if that is known; nobody stays counted.
fn look_up(cache: &ReadCache, lba: u64) -> Option<BlockPointer> {
    let mut checksums = [0];
    let place = cache.begin_read(Lba(lba), &mut checksums).ok()?;
    assert!(!cache.end_read(place), "nobody waits");
    Some(BlockPointer { pba: place.pba, checksum: checksums[0] })
}

#[test]
fn what_was_filled_in_is_found_and_what_was_forgotten_is_not() {
    let cache = cache(64);
    cache.fill(Lba(5), at(1));
    assert_eq!(look_up(&cache, 5), Some(at(1)));
    assert_eq!(look_up(&cache, 5 + 64), None, "another address of the same slot, or of another");
    cache.update(Lba(5), at(9));
    assert_eq!(look_up(&cache, 5), Some(at(9)));
    cache.forget(Lba(5));
    assert_eq!(look_up(&cache, 5), None);
    for count in [3, 1 << 40] {
        cache.fill(Lba(6), at(2));
        cache.forget_range(Lba(4), count);
        assert_eq!(look_up(&cache, 6), None, "one of {count}");
    }
    cache.fill(Lba(6), at(2));
    cache.close();
    assert_eq!(look_up(&cache, 6), None);
    cache.fill(Lba(6), at(2));
    assert_eq!(look_up(&cache, 6), None, "it is closed");
}

#[test]
fn while_a_write_is_answered_early_only_what_is_known_changes() {
    let cache = cache(64);
    cache.fill(Lba(5), at(1));
    cache.allow_filling(false);
    // The blocks of the write itself were forgotten before its answer; these are others.
    cache.update(Lba(5), at(2));
    assert_eq!(look_up(&cache, 5), Some(at(2)), "it was moved");
    cache.update(Lba(6), at(3));
    cache.fill(Lba(7), at(4));
    assert_eq!((look_up(&cache, 6), look_up(&cache, 7)), (None, None));
    cache.allow_filling(true);
    cache.fill(Lba(7), at(4));
    assert_eq!(look_up(&cache, 7), Some(at(4)));
}

#[test]
fn a_write_takes_a_free_slot_and_a_read_any() {
    let cache = cache(1);
    cache.fill(Lba(1), at(1));
    cache.update(Lba(2), at(2));
    assert_eq!((look_up(&cache, 1), look_up(&cache, 2)), (Some(at(1)), None));
    cache.fill(Lba(2), at(2));
    assert_eq!((look_up(&cache, 1), look_up(&cache, 2)), (None, Some(at(2))));
    cache.forget_all();
    cache.update(Lba(1), at(1));
    assert_eq!(look_up(&cache, 1), Some(at(1)));
}

#[test]
fn several_blocks_are_found_if_they_are_one_piece() {
    let cache = cache(64);
    (0..SEGMENT + 1).for_each(|block| cache.fill(Lba(block.into()), at(block)));
    let mut checksums = [0; 4];
    let place = cache.begin_read(Lba(2), &mut checksums).expect("they are");
    assert_eq!((place.pba, checksums), (at(2).pba, [102, 103, 104, 105]));
    assert!(!cache.end_read(place));
    let miss = Err(Miss { wakes: false });
    assert_eq!(cache.begin_read(Lba(6), &mut checksums[..3]), miss, "two segments");
    cache.fill(Lba(4), at(20));
    assert_eq!(cache.begin_read(Lba(2), &mut checksums), miss, "one lies elsewhere");
    assert!(checksums.len() < READ_BLOCKS_MAX);
}

#[test]
fn a_segment_is_read_until_its_last_reader_is_done_and_the_loop_is_woken_once() {
    let cache = cache(64);
    cache.fill(Lba(1), at(1));
    let first = cache.begin_read(Lba(1), &mut [0]).expect("it is known");
    let second = cache.begin_read(Lba(1), &mut [0]).expect("it is known");
    assert!(cache.is_read(0) && !cache.is_read(1));
    assert!(cache.is_awaited());
    assert!(cache.end_read(first), "the loop looks again");
    assert!(!cache.is_awaited() && cache.is_read(0));
    assert!(cache.end_read(second));
    assert!(!cache.is_read(0) && !cache.is_awaited());
}

/// Generations come again after 65,535; what was of the first time must not.
#[test]
fn nothing_comes_back_when_generations_begin_anew() {
    let cache = cache(64);
    cache.fill(Lba(1), at(1));
    (0..1 << 16).for_each(|_| cache.forget_all());
    assert_eq!(look_up(&cache, 1), None);
    let mut known = 0;
    cache.each(|_, _| known += 1);
    assert_eq!(known, 0);
}

#[test]
fn a_cache_is_no_larger_than_the_volume_and_refuses_what_its_keys_cannot_hold() {
    let of = |size, volume| ReadCache::new(size, volume, Pba(FIRST), SEGMENT, 4);
    assert_eq!(of(8 << 20, 1000).map(|cache| cache.size()), Some(1024 * SLOT_SIZE + 16));
    assert!(of(SLOT_SIZE - 1, 1000).is_none());
    assert!(of(8 << 20, 1 << 47).is_none());
    assert!(of(8 << 20, (1 << 47) - 1).is_some());
}
