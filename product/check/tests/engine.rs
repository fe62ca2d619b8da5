//! What the engine writes, the check finds sound and the dump shows as the engine reads it; and
//! where the check finds nothing wrong in a damaged store, the engine opens it and reads all.
//!
//! Engine and check share the codecs and nothing else. The engine runs on the simulator's device,
//! one request after the other, but the device may lose what was not flushed.

use coulter_check::dump::{self, MapRange, RecordState};
use coulter_check::{BlockFn, Options, ReadBlocks, Report, check};
use coulter_engine::{Phase, Request};
use coulter_format::{BLOCK_SIZE, Block, Lba, Pba};
use coulter_sim::device::{Device, Loss};
use coulter_sim::random::Random;
use coulter_sim::scene::Scene;
use std::ops::ControlFlow;

const SEGMENTS: u64 = 28;

fn reader(device: &Device) -> impl ReadBlocks + '_ {
    let read = |pba: Pba, block: &mut Block| {
        device.read(pba, std::slice::from_mut(block));
        Ok(())
    };
    BlockFn { size_blocks: device.size(), read }
}

fn check_device(device: &Device) -> Report {
    check(&mut reader(device), &mut Options { data: true, ..Options::default() })
}

fn text(report: &Report) -> Vec<String> {
    report.findings.iter().map(ToString::to_string).collect()
}

/// An engine, and what its volume should hold: a byte for each block, zero if unmapped.
struct History {
    scene: Scene,
    volume: Vec<u8>,
    random: Random,
}

impl History {
    fn new(seed: u64) -> History {
        let scene = Scene::new(SEGMENTS);
        let volume = vec![0; scene.volume_size() as usize];
        History { scene, volume, random: Random::new(seed) }
    }

    fn step(&mut self) {
        let limit = if self.random.chance(80) { 8 } else { 200 };
        let size = 1 + self.random.below(limit);
        let lba = self.random.below(self.volume.len() as u64 - size);
        let range = lba as usize..(lba + size) as usize;
        match self.random.below(100) {
            0..80 => {
                let byte = 1 + self.random.below(255) as u8;
                self.scene.write(lba, size as u32, byte);
                self.volume[range].fill(byte);
            }
            80..90 => {
                self.request(Request::Discard { lba: Lba(lba), count: size, fua: false });
                self.volume[range].fill(0);
            }
            90..92 => {
                let leaf = lba / 512 * 512;
                let count = 1024.min(self.volume.len() as u64 - leaf);
                self.request(Request::Discard { lba: Lba(leaf), count, fua: false });
                self.volume[leaf as usize..(leaf + count) as usize].fill(0);
            }
            _ => self.request(Request::Flush),
        }
    }

    fn request(&mut self, request: Request) {
        while !self.scene.submit(request) {
            self.scene.run();
        }
        assert!(self.scene.run().iter().all(Result::is_ok), "{request:?} succeeds");
    }

    /// What the dump of the map leads to is what was written.
    fn assert_dump_agrees(&self) {
        let device = &self.scene.device;
        let mut shown = vec![0; self.volume.len()];
        let outcome = dump::map(&mut reader(device), MapRange::ALL, |row| {
            for offset in 0..row.blocks {
                let mut block = [[0; BLOCK_SIZE]];
                device.read(Pba(row.block + offset), &mut block);
                shown[row.host_block as usize + offset as usize] = block[0][0];
            }
            ControlFlow::Continue(())
        });
        assert!(outcome.findings.is_empty());
        assert!(shown == self.volume, "the dumped map leads to what was written");
    }
}

#[test]
fn what_the_engine_writes_is_sound_and_dumped_as_written() {
    let mut live_updates = 0;
    for seed in 1..4 {
        let mut history = History::new(seed);
        for step in 0..1500 {
            history.step();
            if step % 50 == 0 {
                let report = check_device(&history.scene.device);
                assert!(report.is_sound() && report.complete, "{:#?}", text(&report));
                live_updates += report.counters.run_updates;
            }
            if step % 500 == 0 {
                history.assert_dump_agrees();
            }
        }
        history.assert_dump_agrees();
        let statistics = history.scene.engine.statistics();
        assert!(statistics.segments_cleaned > 0, "the history is long enough");
    }
    assert!(live_updates > 0);
}

#[test]
fn a_store_that_was_shut_down_is_clean_and_has_nothing_to_replay() {
    let mut history = History::new(9);
    (0..300).for_each(|_| history.step());
    history.request(Request::Shutdown);
    let report = check_device(&history.scene.device);
    assert!(report.findings.is_empty(), "{:#?}", text(&report));
    assert!(report.store.is_some_and(|store| store.clean));
    assert!(!report.recovery.needed);
    history.assert_dump_agrees();
}

#[test]
fn a_new_store_is_as_documented() {
    let scene = Scene::new(SEGMENTS);
    let report = check_device(&scene.device);
    assert!(report.is_sound(), "{:#?}", text(&report));
    assert_eq!(report.counters.mapped_blocks, 0);
    let copies = dump::superblock(&mut reader(&scene.device)).value.unwrap();
    assert_eq!(copies.len(), 3);
}

#[test]
fn the_dumped_records_are_in_order_and_those_to_be_replayed_are_marked() {
    let mut history = History::new(5);
    (0..600).for_each(|_| history.step());
    let device = &history.scene.device;
    let report = check_device(device);
    let (mut replayed, mut contained) = (0, 0);
    let mut latest = (0, 0);
    dump::records(&mut reader(device), None, |row| {
        let state = row.state;
        replayed += u64::from(state == RecordState::Replayed);
        contained += u64::from(state == RecordState::Contained);
        if state != RecordState::Dropped {
            let ordered = row.segment > latest.0 || row.sequence > latest.1;
            assert!(ordered || latest == (0, 0), "{row}");
            latest = (row.segment, row.sequence);
        }
        ControlFlow::Continue(())
    });
    assert_eq!(replayed, report.recovery.records);
    assert!(contained > 0);
    let mut segments = 0;
    dump::segments(&mut reader(device), |row| {
        segments += 1;
        assert!(row.valid_blocks <= 256);
        if row.segment == 20 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(segments, 21, "a dump stops when it is told to");
}

#[test]
fn after_a_power_cut_the_store_is_sound() {
    let mut history = History::new(12);
    (0..200).for_each(|_| history.step());
    let losses = [Loss::Everything, Loss::SomeWrites, Loss::SomeBlocks, Loss::SomeSectors];
    for round in 0..40 {
        history.step();
        let mut device = history.scene.device.clone();
        device.cut(losses[round % 4], &mut history.random);
        let report = check_device(&device);
        assert!(report.is_sound(), "{:#?}", text(&report));
    }
}

/// The check must be the stricter of the two: what it lets pass, the engine opens and reads.
#[test]
fn what_the_check_lets_pass_the_engine_opens_and_reads() {
    let mut history = History::new(77);
    (0..900).for_each(|_| history.step());
    history.request(Request::Flush);
    let random = &mut history.random;
    let (mut passed, mut refused) = (0, 0);
    for _ in 0..150 {
        let mut device = history.scene.device.clone();
        for _ in 0..1 + random.below(2) {
            let pba = random.below(device.size()) as u32;
            device.corrupt(Pba(pba), random.below(BLOCK_SIZE as u64) as usize);
        }
        let report = check_device(&device);
        let mut opened = Scene::try_open(device, None);
        if matches!(opened.engine.phase(), Phase::Failed(_)) {
            assert!(!report.is_sound(), "the engine does not open, the check finds nothing");
            refused += 1;
        } else if report.is_sound() && report.recovery.records_dropped == 0 {
            // Damage to the very last record looks like a power cut: nothing says that it was durable.
            passed += 1;
            for lba in (0..history.volume.len()).step_by(97) {
                assert_eq!(opened.try_read(lba as u64), Ok(history.volume[lba]));
            }
        }
    }
    assert!(passed > 20, "only {passed} passed, {refused} refused");
}
