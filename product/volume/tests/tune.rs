//! Settings of an open volume take effect within a second; those with which it is opened, at once.

mod common;

use common::{BLOCK, MIB, small_store};
use coulter::tuning::{
    CleaningMode, CleaningRate, IdleAfter, LatencyTarget, Placement, Reclaim, Retuning,
    SpacePatience, VictimPolicy,
};
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

fn open_tuned(store: &MemoryStore, tuning: Retuning) -> Volume {
    let device = store.open().expect("nothing has it open");
    let options = OpenOptions { tuning, ..OpenOptions::default() };
    Volume::open(Box::new(device), options).expect("the store is intact")
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
fn a_volume_opens_with_the_settings_that_it_is_given() {
    let store = small_store(64 * MIB);
    let volume = open_tuned(&store, Retuning::default());
    let usual = volume.tune(Retuning::default()).expect("the volume runs");
    volume.close().expect("it ends in order");
    let given = Retuning {
        cleaning: Some(CleaningMode::Paused),
        policy: Some(VictimPolicy::Greedy),
        placement: Some(Placement::Apart),
        reclaim: Some(Reclaim::HoleFill),
        cleaning_rate: CleaningRate::limited_to(50 * MIB).ok(),
        latency_target: LatencyTarget::within(Duration::from_millis(20)).ok(),
        idle_cleaning: Some(true),
        idle_after: IdleAfter::after(Duration::from_millis(500)).ok(),
        defrag: None,
        space_patience: SpacePatience::of(Duration::from_secs(5)).ok(),
    };
    let volume = open_tuned(&store, given);
    let tuning = volume.tune(Retuning::default()).expect("the volume runs");
    let seen = Retuning {
        cleaning: Some(tuning.cleaning),
        policy: Some(tuning.policy),
        placement: Some(tuning.placement),
        reclaim: Some(tuning.reclaim),
        cleaning_rate: Some(tuning.cleaning_rate),
        latency_target: Some(tuning.latency_target),
        idle_cleaning: Some(tuning.idle_cleaning),
        idle_after: Some(tuning.idle_after),
        defrag: None,
        space_patience: Some(tuning.space_patience),
    };
    assert_eq!(seen, given);
    assert!(!tuning.defrag);
    volume.close().expect("it ends in order");
    let volume = open_tuned(&store, Retuning::default());
    assert_eq!(volume.tune(Retuning::default()), Some(usual), "none of it is stored");
    volume.close().expect("it ends in order");
}

#[test]
fn what_is_asked_for_at_opening_is_done_without_a_request() {
    let store = worth_draining();
    let drain = Retuning { cleaning: Some(CleaningMode::Drain), ..Retuning::default() };
    let volume = open_tuned(&store, Retuning { defrag: Some(true), ..drain });
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        let tuning = volume.tune(Retuning::default()).expect("the volume runs");
        if tuning.cleaning == CleaningMode::Paced && !tuning.defrag {
            break;
        }
        assert!(Instant::now() < limit, "it comes to an end: {:?}", volume.statistics());
        std::thread::sleep(Duration::from_millis(10));
    }
    let statistics = volume.statistics();
    assert!(statistics.space.segments_cleaned > 0, "{statistics:?}");
    assert_eq!(statistics.cleaning.defrag_passes, 1);
    volume.close().expect("it ends in order");
    // A rate holds from the beginning too: there is nothing that runs ahead of it.
    let store = worth_draining();
    let begun = Instant::now();
    let volume = open_tuned(&store, Retuning { cleaning_rate: rate(4).cleaning_rate, ..drain });
    std::thread::sleep(Duration::from_secs(1));
    let read = read_by_cleaning(&volume);
    let allowed = (4.0 * MIB as f64 * (begun.elapsed().as_secs_f64() + 0.05)) as u64;
    let most = allowed + 2 * MIB;
    assert!((1..=most).contains(&read), "{read} bytes, {most} are allowed");
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

fn rate(mib: u64) -> Retuning {
    let rate = CleaningRate::limited_to(mib * MIB).expect("in range");
    Retuning { cleaning_rate: Some(rate), ..Retuning::default() }
}

fn read_by_cleaning(volume: &Volume) -> u64 {
    volume.statistics().cleaning.read_bytes
}

/// Overwrites single blocks of half of the volume, which is where `worth_draining` has written.
fn overwrite(volume: &Volume, seed: u64, count: u64) -> Duration {
    let blocks = volume.size() / BLOCK / 2;
    let content = vec![9; BLOCK as usize];
    let mut random = Random::new(seed);
    let mut longest = Duration::ZERO;
    for _ in 0..count {
        let start = Instant::now();
        volume.write_at(random.below(blocks) * BLOCK, &content).expect("overwrites succeed");
        longest = longest.max(start.elapsed());
    }
    longest
}

#[test]
fn a_rate_holds_within_a_second_and_so_does_none() {
    let store = worth_draining();
    let volume = open(&store, Duration::ZERO);
    let tuning = volume.tune(rate(8)).expect("the volume runs");
    assert_eq!(tuning.cleaning_rate.bytes_per_second(), Some(8 * MIB));
    set(&volume, CleaningMode::Drain);
    std::thread::sleep(Duration::from_millis(200));
    let (before, start) = (read_by_cleaning(&volume), Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    let read = read_by_cleaning(&volume) - before;
    let seconds = start.elapsed().as_secs_f64();
    let allowed = (8.0 * MIB as f64 * seconds) as u64;
    // A twentieth of a second may be saved up, and a chunk is read as a whole.
    assert!(read <= allowed + MIB / 2 + 2 * MIB, "{read} of {allowed}");
    assert!(read >= allowed / 2, "{read} of {allowed}: what is allowed is used");
    let faster = Retuning { cleaning_rate: Some(CleaningRate::NONE), ..Retuning::default() };
    volume.tune(faster).expect("the volume runs");
    std::thread::sleep(Duration::from_secs(1));
    let rest = read_by_cleaning(&volume) - before - read;
    assert!(rest > 2 * read, "{rest} without a limit, {read} with it");
    volume.close().expect("it ends in order");
}

#[test]
fn a_rate_slows_writers_down_and_stops_none() {
    let store = worth_draining();
    let volume = open(&store, Duration::ZERO);
    // Into the range in which the host gets what the cleaner gains.
    set(&volume, CleaningMode::Paused);
    overwrite(&volume, 1, 3 * volume.size() / BLOCK);
    set(&volume, CleaningMode::Paced);
    volume.tune(rate(16)).expect("the volume runs");
    overwrite(&volume, 7, 2048);
    let (host, cleaned) = (volume.statistics().written.host_bytes, read_by_cleaning(&volume));
    let start = Instant::now();
    let longest = overwrite(&volume, 2, 2048);
    let seconds = start.elapsed().as_secs_f64();
    let host = volume.statistics().written.host_bytes - host;
    let cleaned = read_by_cleaning(&volume) - cleaned;
    assert!(host >= 2048 * BLOCK);
    let allowed = 16.0 * MIB as f64 * (seconds + 0.05) + 2.0 * MIB as f64;
    assert!((cleaned as f64) < allowed, "{cleaned} read in {seconds} s");
    assert!(longest < Duration::from_secs(2), "{longest:?}: slower, but it never stands still");
    volume.close().expect("it ends in order");
}

#[test]
fn cleaning_waits_while_writes_take_too_long_unless_the_host_needs_it() {
    let store = worth_draining();
    let volume = open(&store, Duration::from_millis(2));
    // No write is as quick as that on this device.
    let target = LatencyTarget::within(Duration::from_micros(200)).expect("in range");
    let retuning = Retuning { latency_target: Some(target), ..Retuning::default() };
    volume.tune(retuning).expect("the volume runs");
    overwrite(&volume, 3, 64);
    set(&volume, CleaningMode::Drain);
    overwrite(&volume, 4, 32);
    let before = read_by_cleaning(&volume);
    overwrite(&volume, 5, 256);
    let held = read_by_cleaning(&volume) - before;
    assert!(held <= 2 * MIB, "{held} bytes cleaned");
    assert!(volume.statistics().cleaning.back_offs > 0);
    // A target that is met changes nothing, within a second.
    let target = LatencyTarget::within(Duration::from_secs(5)).expect("in range");
    let retuning = Retuning { latency_target: Some(target), ..Retuning::default() };
    volume.tune(retuning).expect("the volume runs");
    overwrite(&volume, 6, 256);
    let freely = read_by_cleaning(&volume) - before - held;
    assert!(freely > 8 * MIB, "{freely} bytes cleaned");
    volume.close().expect("it ends in order");
}

#[test]
fn a_host_that_is_slow_for_long_still_gets_room() {
    let store = small_store(64 * MIB);
    let volume = open(&store, Duration::ZERO);
    let target = LatencyTarget::within(LatencyTarget::LEAST).expect("in range");
    let slowest = Retuning { latency_target: Some(target), ..Retuning::default() };
    volume.tune(slowest).expect("the volume runs");
    let blocks = volume.size() / BLOCK;
    let content = vec![3; 32 * BLOCK as usize];
    let mut random = Random::new(8);
    for _ in 0..blocks / 8 {
        let block = random.below(blocks - 32);
        volume.write_at(block * BLOCK, &content).expect("there is room");
    }
    assert!(relocated(&volume) > 0, "the host needed it");
    volume.close().expect("it ends in order");
}

#[test]
fn an_idle_host_finds_room_and_cleaning_ahead_comes_to_an_end() {
    let store = worth_draining();
    let volume = open(&store, Duration::ZERO);
    let idle = IdleAfter::after(Duration::from_millis(100)).expect("in range");
    let retuning =
        Retuning { idle_cleaning: Some(true), idle_after: Some(idle), ..Retuning::default() };
    assert!(volume.tune(retuning).expect("the volume runs").idle_cleaning);
    let before = volume.statistics();
    let limit = Instant::now() + Duration::from_secs(20);
    // Until nothing more is done for half a second.
    let mut latest = (read_by_cleaning(&volume), Instant::now());
    while latest.1.elapsed() < Duration::from_millis(500) || latest.0 == 0 {
        assert!(Instant::now() < limit, "it comes to an end: {:?}", volume.statistics());
        std::thread::sleep(Duration::from_millis(20));
        let read = read_by_cleaning(&volume);
        if read != latest.0 {
            latest = (read, Instant::now());
        }
    }
    let after = volume.statistics();
    assert!(after.cleaning.segments_ahead > 0 && after.cleaning.idle_times == 1, "{after:?}");
    assert!(after.space.segments_empty > before.space.segments_empty, "{after:?}");
    // Worth it means: a quarter of each was won.
    let won = after.cleaning.read_bytes - relocated(&volume);
    assert!(won >= after.cleaning.read_bytes / 4 - 4 * MIB, "{after:?}");
    volume.close().expect("it ends in order");
}

#[test]
fn cleaning_ahead_stops_when_the_host_asks_for_something() {
    let store = worth_draining();
    let volume = open(&store, Duration::from_millis(5));
    let idle = IdleAfter::after(Duration::from_millis(50)).expect("in range");
    let retuning =
        Retuning { idle_cleaning: Some(true), idle_after: Some(idle), ..Retuning::default() };
    volume.tune(retuning).expect("the volume runs");
    let limit = Instant::now() + Duration::from_secs(20);
    while read_by_cleaning(&volume) == 0 {
        assert!(Instant::now() < limit, "it never cleans: {:?}", volume.statistics());
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut block = vec![0; BLOCK as usize];
    volume.read_at(0, &mut block).expect("it is readable");
    let before = read_by_cleaning(&volume);
    // Reads often enough for it never to be idle.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(600) {
        volume.read_at(0, &mut block).expect("it is readable");
        std::thread::sleep(Duration::from_millis(5));
    }
    let meanwhile = read_by_cleaning(&volume) - before;
    assert!(meanwhile <= 2 * MIB, "{meanwhile} bytes cleaned beside the host");
    volume.close().expect("it ends in order");
}

/// Reads the half of the volume that was written, in order; how many reads that took of the device.
fn device_reads_of_all(volume: &Volume, seen: &mut Vec<u8>) -> u64 {
    let before = volume.statistics().device.reads;
    seen.clear();
    let mut chunk = vec![0; MIB as usize];
    for at in 0..volume.size() / 2 / MIB {
        volume.read_at(at * MIB, &mut chunk).expect("it is readable");
        seen.extend_from_slice(&chunk);
    }
    volume.statistics().device.reads - before
}

#[test]
fn what_was_scattered_is_put_in_order_on_demand_and_nothing_else_changes() {
    let store = worth_draining();
    let volume = open(&store, Duration::ZERO);
    let blocks = volume.size() / 2 / BLOCK;
    let mut random = Random::new(11);
    for number in 0..blocks / 8 {
        let content = vec![number as u8; BLOCK as usize];
        volume.write_at(random.below(blocks) * BLOCK, &content).expect("it takes writes");
    }
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let scattered = device_reads_of_all(&volume, &mut before);
    let on = Retuning { defrag: Some(true), ..Retuning::default() };
    assert!(volume.tune(on).expect("the volume runs").defrag);
    let limit = Instant::now() + Duration::from_secs(30);
    while volume.tune(Retuning::default()).expect("the volume runs").defrag {
        assert!(Instant::now() < limit, "it comes to an end: {:?}", volume.statistics());
        std::thread::sleep(Duration::from_millis(10));
    }
    let cleaning = volume.statistics().cleaning;
    assert_eq!(cleaning.defrag_position_bytes, volume.size());
    assert_eq!(cleaning.defrag_passes, 1);
    let ordered = device_reads_of_all(&volume, &mut after);
    assert!(scattered > 8 * ordered, "{scattered} reads before, {ordered} after");
    assert!(before == after, "the content stays");
    // A second time there is next to nothing to do.
    volume.tune(on).expect("the volume runs");
    while volume.statistics().cleaning.defrag_passes < 2 {
        assert!(Instant::now() < limit, "it comes to an end: {:?}", volume.statistics());
        std::thread::sleep(Duration::from_millis(10));
    }
    let again = volume.statistics().cleaning.defragmented_bytes - cleaning.defragmented_bytes;
    assert!(again * 20 < cleaning.defragmented_bytes, "{again} bytes moved again");
    volume.close().expect("it ends in order");
    let volume = open(&store, Duration::ZERO);
    device_reads_of_all(&volume, &mut after);
    assert!(before == after, "the content stays when it is opened anew");
    volume.close().expect("it ends in order");
}

#[test]
fn putting_in_order_is_held_to_the_rate_and_can_be_ended() {
    let store = worth_draining();
    let volume = open(&store, Duration::ZERO);
    volume.tune(rate(4)).expect("the volume runs");
    let on = Retuning { defrag: Some(true), ..Retuning::default() };
    volume.tune(on).expect("the volume runs");
    std::thread::sleep(Duration::from_secs(1));
    let moved = volume.statistics().cleaning.defragmented_bytes;
    assert!((MIB..=8 * MIB).contains(&moved), "{moved} bytes in a second");
    let off = Retuning { defrag: Some(false), ..Retuning::default() };
    assert!(!volume.tune(off).expect("the volume runs").defrag);
    std::thread::sleep(Duration::from_millis(500));
    let rests = volume.statistics().cleaning.defragmented_bytes;
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(volume.statistics().cleaning.defragmented_bytes, rests);
    volume.close().expect("it ends in order");
}
