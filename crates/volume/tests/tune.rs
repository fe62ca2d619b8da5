//! Settings of an open volume take effect within a second.

mod common;

use common::{BLOCK, MIB, small_store};
use coulter::tuning::{CleaningMode, Retuning};
use coulter::{OpenOptions, Volume};
use coulter_device::MemoryStore;
use coulter_device::wrap::{SlowDevice, SlowModel};
use coulter_workload::Random;
use std::time::{Duration, Instant};

fn open(store: &MemoryStore, latency: Duration) -> Volume {
    let model = SlowModel {
        latency,
        operations_per_second: None,
        operation_size: MIB,
        bytes_per_second: None,
    };
    let device = SlowDevice::new(store.open().expect("nothing has it open"), model);
    Volume::open(Box::new(device), OpenOptions::default()).expect("the store is intact")
}

fn set(volume: &Volume, mode: CleaningMode) -> CleaningMode {
    let retuning = Retuning { cleaning: Some(mode), ..Retuning::default() };
    volume.tune(retuning).expect("the volume runs").cleaning
}

fn relocated(volume: &Volume) -> u64 {
    volume.statistics().written.relocated_bytes
}

/// A store with many half-valid segments, and enough empty ones that paced cleaning rests.
fn worth_draining() -> MemoryStore {
    let store = small_store(256 * MIB);
    let volume = open(&store, Duration::ZERO);
    let blocks = volume.size() / BLOCK / 2;
    let content = vec![7; MIB as usize];
    (0..blocks / 256).for_each(|chunk| {
        volume.write_at(chunk * MIB, &content).expect("it takes writes");
    });
    let mut random = Random::new(5);
    for _ in 0..blocks / 2 {
        let block = random.below(blocks);
        volume.write_at(block * BLOCK, &content[..BLOCK as usize]).expect("it takes writes");
    }
    volume.close().expect("it ends in order");
    store
}

#[test]
fn draining_cleans_without_the_host_and_is_paced_again_when_nothing_is_worth_it() {
    let store = worth_draining();
    let volume = open(&store, Duration::ZERO);
    std::thread::sleep(Duration::from_millis(200));
    let before = volume.statistics();
    assert_eq!(set(&volume, CleaningMode::Drain), CleaningMode::Drain);
    std::thread::sleep(Duration::from_secs(1));
    let cleaned = volume.statistics().space.segments_cleaned - before.space.segments_cleaned;
    assert!(cleaned > 0, "within a second it is cleaning");
    let limit = Instant::now() + Duration::from_secs(60);
    while volume.tune(Retuning::default()).expect("it runs").cleaning == CleaningMode::Drain {
        assert!(Instant::now() < limit, "it comes to an end: {:?}", volume.statistics());
        std::thread::sleep(Duration::from_millis(10));
    }
    let after = volume.statistics();
    assert!(relocated(&volume) > 0, "{after:?}");
    // Nothing more happens by itself.
    let rests = volume.statistics().space.segments_cleaned;
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(volume.statistics().space.segments_cleaned, rests);
    volume.close().expect("it ends in order");
}

#[test]
fn a_pause_takes_effect_within_a_second() {
    let store = worth_draining();
    let volume = open(&store, Duration::from_millis(5));
    set(&volume, CleaningMode::Drain);
    let limit = Instant::now() + Duration::from_secs(20);
    while relocated(&volume) == 0 {
        assert!(Instant::now() < limit, "it never cleans: {:?}", volume.statistics());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(set(&volume, CleaningMode::Paused), CleaningMode::Paused);
    std::thread::sleep(Duration::from_secs(1));
    let paused = relocated(&volume);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(relocated(&volume), paused, "nothing is relocated while it is paused");
    set(&volume, CleaningMode::Drain);
    std::thread::sleep(Duration::from_secs(1));
    assert!(relocated(&volume) > paused, "within a second it goes on");
    volume.close().expect("it ends in order");
}

#[test]
fn a_pause_never_stops_the_host() {
    let store = small_store(64 * MIB);
    let volume = open(&store, Duration::ZERO);
    set(&volume, CleaningMode::Paused);
    let blocks = volume.size() / BLOCK;
    let content = vec![3; BLOCK as usize];
    let mut random = Random::new(6);
    for _ in 0..4 * blocks {
        volume.write_at(random.below(blocks) * BLOCK, &content).expect("there is room");
    }
    assert!(relocated(&volume) > 0, "the host needed it");
    volume.close().expect("it ends in order");
}
