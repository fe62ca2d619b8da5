//! A store takes in more of its device: content, sizes, power cuts, refusals.

mod common;

use common::{BLOCK, MIB, device, small_store};
use coulter::{
    CreateOptions, Geometry, GrowError, GrowOptions, OpenErrorKind, OpenOptions, Volume, create,
    grow,
};
use coulter_check::{Options, SliceBlocks, check};
use coulter_device::MemoryStore;
use coulter_device::wrap::{CutDevice, CutPolicy};

/// The same content at the start of a larger device.
fn on_larger_device(store: &MemoryStore, size: u64) -> MemoryStore {
    let larger = MemoryStore::sparse(size);
    larger.write_at(0, &content_of(store)).expect("it is larger");
    larger
}

fn content_of(store: &MemoryStore) -> Vec<u8> {
    let mut content = vec![0; store.size() as usize];
    store.read_at(0, &mut content).expect("nothing has it open");
    content
}

fn assert_sound(store: &MemoryStore) {
    let content = content_of(store);
    let report = check(&mut SliceBlocks(&content), &mut Options::default());
    assert!(report.is_sound(), "{:?}", report.findings);
}

fn block(number: u64) -> Vec<u8> {
    (0..BLOCK).map(|at| (at * 7 + number * 13 + 1) as u8).collect()
}

fn open(store: &MemoryStore) -> Volume {
    Volume::open(device(store), OpenOptions::default()).expect("the store is intact")
}

/// A store of 64 MiB, the volume written over twice, on a device of so many bytes.
fn full_store(size: u64) -> (MemoryStore, u64) {
    store_with(size, u64::MAX)
}

/// The same with so many blocks written at most.
fn store_with(size: u64, blocks_max: u64) -> (MemoryStore, u64) {
    let store = small_store(64 * MIB);
    let volume = open(&store);
    let blocks = blocks_max.min(volume.size() / BLOCK);
    for number in (0..blocks).chain((0..blocks).rev()) {
        volume.write_at(number * BLOCK, &block(number)).expect("it takes writes");
    }
    volume.close().expect("it ends in order");
    (on_larger_device(&store, size), blocks)
}

fn assert_content(volume: &Volume, blocks: u64) {
    let mut seen = vec![0; BLOCK as usize];
    for number in 0..blocks {
        volume.read_at(number * BLOCK, &mut seen).expect("it is intact");
        assert!(seen == block(number), "block {number}");
    }
}

#[test]
fn a_grown_volume_keeps_its_content_and_uses_the_new_space() {
    // From 31 segments to more than a page of the segment table holds.
    let (store, blocks) = full_store(640 * MIB);
    let geometry = grow(device(&store), &GrowOptions::default()).expect("there is room");
    assert_eq!(geometry.store_size_bytes, 640 * MIB);
    assert!(geometry.volume_size_bytes > 450 * MIB, "{geometry:?}");
    assert_sound(&store);
    let volume = open(&store);
    assert_eq!(volume.geometry(), &geometry);
    assert_content(&volume, blocks);
    let last = volume.size() / BLOCK;
    for number in blocks..last {
        volume.write_at(number * BLOCK, &block(number)).expect("the new space takes writes");
    }
    volume.abandon().expect("as if it were killed");
    let volume = open(&store);
    assert_content(&volume, last);
    volume.close().expect("it ends in order");
    assert_sound(&store);
}

#[test]
fn growing_can_give_spare_space_only_and_may_be_asked_for_again() {
    let (store, blocks) = full_store(128 * MIB);
    let options = GrowOptions { volume_size: Some(blocks * BLOCK), ..GrowOptions::default() };
    let geometry = grow(device(&store), &options).expect("there is room");
    assert_eq!(geometry.volume_size_bytes, blocks * BLOCK);
    assert_eq!(geometry.segment_count, 63);
    let again = grow(device(&store), &options).expect("nothing is left to do");
    assert_eq!(again, geometry);
    let kept = grow(device(&store), &GrowOptions::default()).expect("nothing is left to do");
    assert_eq!(kept, geometry, "the share stays as it was");
    assert_content(&open(&store), blocks);
}

/// The share of a store's spare space in percent of its volume, about.
fn spare_of(geometry: &Geometry) -> u64 {
    let spare = geometry.store_size_bytes - geometry.volume_size_bytes;
    spare * 100 / geometry.volume_size_bytes
}

#[test]
fn a_store_keeps_its_share_of_spare_space_when_it_grows() {
    for percent in [7, 20, 60, 157] {
        let store = MemoryStore::sparse(1 << 30);
        let options = CreateOptions {
            segment_size: Some(2 << 20),
            spare_percent: percent,
            ..CreateOptions::default()
        };
        let before = create(device(&store), &options).expect("there is room");
        let mut content = vec![0; 64 << 20];
        store.read_at(0, &mut content).expect("nothing has it open");
        let larger = MemoryStore::sparse(4 << 30);
        larger.write_at(0, &content).expect("it is larger");
        let after = grow(device(&larger), &GrowOptions::default()).expect("there is room");
        let (before, after) = (spare_of(&before), spare_of(&after));
        // What is kept back by number and not by share weighs less in a larger store.
        assert!((u64::from(percent)..=before).contains(&after), "{percent}: {before}, {after}");
        assert!(after <= u64::from(percent) * 11 / 10 + 4, "{percent}: {before}, {after}");
    }
}

#[test]
fn spare_space_that_is_asked_for_is_there_or_refused() {
    let (store, blocks) = full_store(128 * MIB);
    let grown = |spare| {
        let options = GrowOptions { spare_percent: Some(spare), ..GrowOptions::default() };
        grow(device(&store), &options).map_err(|error| error.to_string())
    };
    let before = content_of(&store);
    let error = grown(1000).expect_err("the volume would shrink");
    assert!(error.contains("a volume never shrinks: at most "), "{error}");
    let limit = error.rsplit_once("at most ").and_then(|(_, rest)| rest.split_once(' '));
    let limit: u32 = limit.expect("it says so").0.parse().expect("it is a number");
    let error = grown(limit + 1).expect_err("it is the limit");
    assert!(error.contains(&format!("at most {limit} %")), "{error}");
    let error = grown(6).expect_err("that is too little");
    assert!(error.contains("at least 7 %"), "{error}");
    assert!(content_of(&store) == before, "it is as it was");
    let geometry = grown(limit).expect("it is the limit");
    assert!(geometry.volume_size_bytes >= blocks * BLOCK);
    let geometry = grown(40).expect("there is room");
    let new = CreateOptions {
        segment_size: Some(2 << 20),
        spare_percent: 40,
        ..CreateOptions::default()
    };
    let new = create(device(&MemoryStore::new(128 * MIB)), &new).expect("there is room");
    let ratio = geometry.volume_size_bytes as f64 / new.volume_size_bytes as f64;
    assert!((0.95..1.05).contains(&ratio), "{geometry:?}, {new:?}");
    assert_content(&open(&store), blocks);
}

#[test]
fn a_store_with_all_of_its_map_in_memory_stays_one_and_a_small_map_stays_small() {
    let grown = |map_memory| {
        let store = MemoryStore::sparse(1 << 30);
        let options = CreateOptions { map_memory, ..CreateOptions::default() };
        create(device(&store), &options).expect("there is room");
        let before = open(&store).geometry().clone();
        // Nothing was written but what a new store begins with.
        let mut content = vec![0; 64 << 20];
        store.read_at(0, &mut content).expect("nothing has it open");
        let larger = MemoryStore::sparse(64 << 30);
        larger.write_at(0, &content).expect("it is larger");
        let after = grow(device(&larger), &GrowOptions::default()).expect("there is room");
        assert_eq!(open(&larger).geometry(), &after);
        (before, after)
    };
    let blocks = |geometry: &Geometry| geometry.volume_size_bytes / BLOCK;
    let per_block =
        |geometry: &Geometry| geometry.map_memory_min_bytes as f64 / blocks(geometry) as f64;
    let (before, after) = grown(None);
    assert!(per_block(&before) >= 8.5, "{before:?}");
    // And 16 MiB.
    assert!((9.5..10.0).contains(&per_block(&after)), "{after:?}");
    let (before, after) = grown(Some(8 * blocks(&before)));
    assert!((8.0..8.1).contains(&per_block(&before)), "{before:?}");
    // And 16 MiB.
    assert!((9.5..10.0).contains(&per_block(&after)), "{after:?}");
    let (before, after) = grown(Some(blocks(&before) * 4));
    assert!((4.0..4.1).contains(&per_block(&before)), "{before:?}");
    assert!(per_block(&after) < 0.5, "{after:?}");
}

#[test]
fn what_would_shrink_or_not_fit_is_refused_and_changes_nothing() {
    let (store, blocks) = full_store(128 * MIB);
    let refused = |store: &MemoryStore, volume_size| {
        let options = GrowOptions { volume_size, ..GrowOptions::default() };
        match grow(device(store), &options) {
            Err(GrowError::Open(error)) => error.kind,
            other => panic!("{other:?}"),
        }
    };
    let before = content_of(&store);
    let kind = refused(&store, Some(blocks * BLOCK - BLOCK));
    assert!(matches!(&kind, OpenErrorKind::Growth { .. }), "{kind:?}");
    assert!(kind.to_string().contains("never shrinks"), "{kind}");
    let kind = refused(&store, Some(127 * MIB));
    assert!(kind.to_string().contains("at most"), "{kind}");
    assert!(content_of(&store) == before, "nothing was written");
    // Less of the device than the store has.
    let smaller = MemoryStore::new(60 * MIB);
    smaller.write_at(0, &before[..60 << 20]).expect("it fits");
    assert!(matches!(refused(&smaller, None), OpenErrorKind::Truncated { .. }));
}

#[test]
fn a_power_cut_leaves_the_old_sizes_or_the_new_ones() {
    // Enough to be cut in the middle of two pages of the segment table.
    let (store, blocks) = store_with(640 * MIB, 600);
    let old = open(&store).size();
    let (mut olds, mut news) = (0, 0);
    for cut_after in 0.. {
        for seed in 0..3 {
            let copy = store.duplicate().expect("there is memory");
            let (cut, handle) = CutDevice::new(copy.open().expect("nothing has it open"));
            handle.cut_after(cut_after, CutPolicy::Seeded(cut_after * 8 + seed));
            let grown = grow(Box::new(cut), &GrowOptions::default());
            let was_cut = handle.is_cut();
            if grown.is_ok() && !was_cut {
                assert!(news > 0, "some cut came late enough");
                assert!(olds > 0, "some cut came early enough");
                return;
            }
            let volume = open(&copy);
            match volume.size() {
                size if size == old => olds += 1,
                size => {
                    assert!(size > 450 * MIB, "{size}");
                    news += 1;
                }
            }
            assert_content(&volume, blocks);
            volume.close().expect("it ends in order");
            if seed == 0 && cut_after % 8 == 0 {
                assert_sound(&copy);
            }
        }
    }
}
