//! A store opens within the memory that its superblock says, when the power goes as recovery needs all
//! of it.

use coulter_engine::create::map_size_min;
use coulter_engine::grow::{Growth, GrowthError};
use coulter_engine::{Command, Config, OpenError, Phase, Request};
use coulter_format::Lba;
use coulter_sim::device::Device;
use coulter_sim::hand::{Hand, small, store};

const LEAF: u64 = 512;
const FRAME: u64 = 4096;

/// Discards; false if the engine is busy.
fn discard(h: &mut Hand, lba: u64, count: u64) -> bool {
    h.submit(Request::Discard { lba: Lba(lba), count, fua: false }).is_some()
}

/// The same, however long it takes.
fn must_discard(h: &mut Hand, lba: u64, count: u64) {
    while !discard(h, lba, count) {
        h.run();
    }
}

/// The power goes, and all that was on its way arrives.
fn cut(mut h: Hand) -> Device {
    h.poll();
    for (io, data) in &h.out {
        if let Command::Write { pba, .. } = io.command {
            h.device.write(pba, data);
        }
    }
    h.device.flush_all();
    h.device
}

/// Sees to it that root pages are on the device and not in memory: what is discarded then is kept, for
/// nobody knows whether it was mapped.
fn with_root_pages(mut h: Hand, config: Config) -> Hand {
    for lba in (0..h.engine.geometry().volume_size).step_by((LEAF * LEAF) as usize) {
        assert!(h.write(lba, 1, 1));
    }
    let mut written = 0;
    for _ in 0..6 {
        h.submit(Request::Shutdown).expect("a shutdown is accepted");
        h.run();
        written += h.engine.statistics().root_blocks;
        h = Hand::open(h.device, config);
    }
    assert!(written > 0, "the sweep came by, and a checkpoint after it");
    h
}

fn need(h: &Hand) -> (u64, u64) {
    let statistics = h.engine.statistics();
    (statistics.recovery_cells, statistics.recovery_cells_max)
}

/// Opens, and goes on working.
fn opens(device: Device, config: Config) -> Hand {
    let mut h = Hand::open(device, config);
    assert_eq!(h.engine.phase(), Phase::Running, "the store opens");
    assert!(h.write(3, 4, 7), "and takes writes");
    assert_eq!(h.read(4), Some(Ok(7)));
    assert_eq!(h.flush(), Some(Ok(())));
    h
}

/// A chunk each: six blocks of a leaf, discarded while nobody knows whether they were ever mapped.
fn fill_and_cut(segments: u64, map: u64) -> (u64, u64) {
    let config = Config { map_size: Some(map), ..small() };
    let h = Hand::open(store(segments, 65_536, None, Some(map), 128), config);
    let mut h = with_root_pages(h, config);
    let leaves = h.engine.geometry().volume_size / LEAF;
    let mut places = (0..80).flat_map(|part| (0..leaves).map(move |leaf| leaf * LEAF + 6 * part));
    while need(&h).0 * 100 < need(&h).1 * 93 {
        places.by_ref().take(32).for_each(|lba| must_discard(&mut h, lba, 6));
        h.run();
    }
    // From here on nothing arrives before the power goes.
    while places.next().is_some_and(|lba| discard(&mut h, lba, 6)) {}
    while places.next().is_some_and(|lba| discard(&mut h, lba, 1)) {}
    let (counted, most) = need(&h);
    assert!(counted <= most && counted * 100 > most * 97, "{counted} of {most}");
    let h = opens(cut(h), config);
    let held = h.engine.statistics().recovered_cells;
    assert!(held <= counted, "{held} held, {counted} counted");
    (held, counted)
}

#[test]
pub(crate) fn a_store_opens_when_the_power_goes_with_its_memory_full() {
    for (segments, frames) in [(300, 0), (320, 30)] {
        let (held, counted) = fill_and_cut(segments, map_size_min(1 << 18) + frames * FRAME);
        assert!(held * 10 > counted * 9, "recovery does need it: {held} of {counted}");
    }
}

/// Large enough that pages are left another share of it. The sweep comes by more often than the memory
/// fills, so recovery finds most of it done.
#[test]
fn a_store_opens_when_the_power_goes_with_a_larger_memory_full() {
    fill_and_cut(2400, map_size_min(1 << 19) + 600 * FRAME);
}

/// A leaf is written as a whole, swept, and a block of it is written again: the run says all of it.
#[test]
fn what_a_run_says_again_of_a_swept_leaf_is_counted() {
    let map = map_size_min(1 << 18);
    let config = Config { map_size: Some(map), ..small() };
    let mut h = Hand::open(store(300, 65_536, None, Some(map), 128), config);
    let leaves = h.engine.geometry().volume_size / LEAF;
    for leaf in 0..40 {
        for part in 0..4 {
            assert!(h.write(leaf * LEAF + part * 128, 128, 1));
        }
    }
    // The sweep comes by because others need memory.
    let mut others = (0..80).flat_map(|part| (41..leaves).map(move |leaf| leaf * LEAF + 6 * part));
    let swept = h.engine.statistics().leaf_blocks + 10;
    while h.engine.statistics().leaf_blocks < swept {
        must_discard(&mut h, others.next().expect("memory fills"), 6);
        h.run();
    }
    for leaf in 0..40 {
        assert!(h.write(leaf * LEAF + 9, 1, 2));
    }
    // The journal is cut.
    for lba in others.take(400) {
        must_discard(&mut h, lba, 6);
        h.run();
    }
    let (counted, _) = need(&h);
    let h = opens(cut(h), config);
    let held = h.engine.statistics().recovered_cells;
    assert!(held <= counted, "{held} held, {counted} counted");
}

/// The directory grows with the volume. What was counted before the next opening must fit then.
#[test]
fn a_store_that_grew_has_no_less_for_updates_than_before() {
    let map = map_size_min(1 << 17) + 600 * FRAME;
    let store = store(2400, 65_536, Some(1 << 17), Some(map), 128);
    let growth = Growth { volume_size: Some(450_000), spare_percent: None };
    let mut h = Hand::open(store, Config { growth: Some(growth), ..small() });
    assert!(h.write(3, 4, 7));
    let (_, most) = need(&h);
    h.submit(Request::Shutdown).expect("a shutdown is accepted");
    h.run();
    let h = Hand::open(h.device, small());
    assert_eq!(h.engine.geometry().volume_size, 450_000);
    assert!(need(&h).1 >= most);
}

/// A gibibyte takes 12 KiB of directory as soon as a block of it is written. As long as the volume is open
/// all of it must stay below what was allowed, as after the next opening.
#[test]
fn a_volume_that_has_just_grown_keeps_to_the_map_memory_that_was_allowed() {
    let blocks = 1 << 18;
    let small_map = map_size_min(blocks);
    let mut device = store(2400, 1024, Some(blocks), Some(small_map), 16);
    device.grow(16 * blocks);
    let volume_size = Some(12 * blocks);
    let growth = Growth { volume_size, spare_percent: None };
    let open =
        |device, map_size| Hand::open(device, Config { growth: Some(growth), map_size, ..small() });
    let h = open(device.clone(), Some(small_map));
    let Phase::Failed(OpenError::Growth(GrowthError::MapMemory { needed })) = h.engine.phase()
    else {
        panic!("{:?}: the next opening would not be one", h.engine.phase());
    };
    let mut h = open(device, Some(needed));
    // More leaves than recovery may have chains of, so pages are written; and what is read takes all
    // memory that is free.
    let leaves = || (0..12 * blocks).step_by(LEAF as usize);
    for lba in leaves() {
        assert!(h.write(lba, 1, 7));
    }
    for lba in leaves() {
        assert_eq!(h.read(lba), Some(Ok(7)));
    }
    let statistics = h.engine.statistics();
    assert!(statistics.map.evictions > 0, "there was memory to spare: {statistics:?}");
    assert!(statistics.map_bytes_peak <= statistics.map_bytes_limit, "{statistics:?}");
    assert_eq!(statistics.map_bytes_limit, needed);
    h.submit(Request::Shutdown).expect("a shutdown is accepted");
    h.run();
    let h = Hand::open(h.device, Config { map_size: Some(needed), ..small() });
    assert_eq!(h.engine.phase(), Phase::Running);
}
