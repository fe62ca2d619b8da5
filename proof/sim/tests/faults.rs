//! A device that fails: the n-th command for n = 1, 2, … until the run needs no n-th any more.
//! Whatever fails, nothing that a flush covered is lost, nothing wrong is read, and a failed write
//! or flush is the last one.

use coulter_engine::{Command, Failure, Phase, Request};
use coulter_format::Pba;
use coulter_sim::Simulator;
use coulter_sim::device::Loss;
use coulter_sim::random::Random;
use coulter_sim::scene::Scene;

/// What the volume must hold: the byte of each block as of the last answered flush, and all bytes
/// written since.
struct Model {
    durable: Vec<u8>,
    since: Vec<Vec<u8>>,
}

impl Model {
    fn new(size: u64) -> Model {
        Model { durable: vec![0; size as usize], since: vec![Vec::new(); size as usize] }
    }

    fn write(&mut self, lba: u64, count: u64, byte: u8) {
        self.since[lba as usize..(lba + count) as usize].iter_mut().for_each(|l| l.push(byte));
    }

    fn flushed(&mut self) {
        for (durable, since) in self.durable.iter_mut().zip(&mut self.since) {
            *durable = since.last().copied().unwrap_or(*durable);
            since.clear();
        }
    }

    fn check(&self, scene: &mut Scene) {
        for lba in 0..self.durable.len() as u64 {
            let seen = scene.try_read(lba).expect("an intact block is read");
            let allowed =
                seen == self.durable[lba as usize] || self.since[lba as usize].contains(&seen);
            assert!(allowed, "block {lba} holds {seen}, durable {}", self.durable[lba as usize]);
        }
    }
}

/// Overwrites at random until a request fails. Returns whether one did.
fn work(scene: &mut Scene, model: &mut Model, rounds: u64) -> bool {
    let mut random = Random::new(3);
    for round in 0..rounds {
        let count = 1 + random.below(60);
        let lba = random.below(scene.volume_size() - count);
        let byte = 1 + (round % 250) as u8;
        let request = scene.write_request(lba, count as u32, byte);
        let mut answers = Vec::new();
        while !scene.submit(request) {
            answers.extend(scene.run());
        }
        model.write(lba, count, byte);
        answers.extend(scene.run());
        let flush = round % 7 == 6;
        if flush {
            assert!(scene.submit(Request::Flush));
            let flushed = scene.run();
            if flushed.iter().all(Result::is_ok) && answers.iter().all(Result::is_ok) {
                model.flushed();
            }
            answers.extend(flushed);
        }
        if answers.iter().any(Result::is_err) {
            return true;
        }
    }
    false
}

#[test]
fn whichever_command_fails_nothing_flushed_is_lost() {
    let mut failures = 0;
    for step in 0.. {
        let n = 1 + step * 13;
        let mut scene = Scene::new(24);
        let mut model = Model::new(scene.volume_size());
        scene.fail_at = Some(scene.commands.len() + n);
        let failed = work(&mut scene, &mut model, 260);
        if scene.commands.len() < scene.fail_at.unwrap_or(0) {
            break;
        }
        let was = scene.commands[scene.fail_at.unwrap_or(1) - 1];
        if matches!(was, Command::Write { .. } | Command::Flush) {
            failures += 1;
            let writes = |scene: &Scene| {
                let written = |command: &&Command| matches!(command, Command::Write { .. });
                scene.commands.iter().filter(written).count()
            };
            assert!(scene.engine.read_only().is_some(), "command {n} ({was:?}) poisons");
            let before = writes(&scene);
            let request = scene.write_request(0, 1, 99);
            assert!(scene.submit(request));
            assert!(scene.run().iter().all(Result::is_err), "no write succeeds any more");
            assert_eq!(writes(&scene), before, "nothing is written any more");
        } else {
            assert!(!failed || scene.engine.read_only().is_none(), "a failed read poisons nothing");
        }
        let mut device = scene.device.clone();
        device.cut(Loss::SomeBlocks, &mut Random::new(n as u64));
        device.check().expect("the checker finds no fault");
        model.check(&mut Scene::open(device));
    }
    assert!(failures > 12, "the loop met {failures} failures");
}

#[test]
fn whichever_command_fails_while_opening_the_next_opening_succeeds() {
    let mut scene = Scene::new(24);
    let mut model = Model::new(scene.volume_size());
    work(&mut scene, &mut model, 200);
    let mut device = scene.device.clone();
    device.cut(Loss::Everything, &mut Random::new(1));
    let mut opened = 0;
    for n in (1..).step_by(2) {
        let attempt = Scene::try_open(device.clone(), Some(n));
        if attempt.commands.len() < n {
            break;
        }
        opened += u64::from(attempt.engine.phase() == Phase::Running);
        let mut after = attempt.device.clone();
        after.cut(Loss::SomeSectors, &mut Random::new(n as u64));
        after.check().expect("the checker finds no fault");
        model.check(&mut Scene::open(after));
    }
    assert!(opened > 0, "a failed discard or spare superblock does not keep a store from opening");
}

#[test]
fn a_rotten_block_is_an_error_and_its_neighbours_are_not() {
    let mut scene = Scene::new(24);
    for lba in 0..20 {
        scene.write(lba, 1, 7);
    }
    let (_, reads) = scene.read(5, 1);
    let Pba(rotten) = reads[0].0;
    scene.device.corrupt(Pba(rotten), 1000);
    for _ in 0..3 {
        assert_eq!(scene.try_read(5), Err(Failure::Corrupt(coulter_format::Lba(5))));
    }
    assert_eq!(scene.engine.statistics().corrupt_blocks, 1, "one block, however often it is read");
    assert_eq!(scene.try_read(4), Ok(7));
    assert!(scene.engine.read_only().is_none(), "damage in one block stops nothing else");
    scene.write(5, 1, 8);
    assert_eq!(scene.try_read(5), Ok(8), "an overwrite heals it");
}

#[test]
fn a_rotten_block_is_still_an_error_after_the_cleaner_has_moved_it() {
    let mut scene = Scene::new(24);
    scene.write(0, 1, 7);
    let (_, reads) = scene.read(0, 1);
    let before = reads[0].0;
    scene.device.corrupt(before, 1000);
    let mut random = Random::new(9);
    let room = scene.volume_size() - 30;
    for _ in 0..60_000 {
        scene.write(10 + random.below(room), 20, 1);
        if scene.engine.statistics().corrupt_blocks > 0 {
            break;
        }
    }
    assert!(scene.engine.statistics().corrupt_blocks > 0, "the cleaner came across it");
    assert!(scene.try_read(0).is_err());
}

#[test]
fn a_record_lost_below_what_was_durable_is_damage_not_a_torn_tail() {
    let mut scene = Scene::new(24);
    scene.write(0, 1, 1);
    let (_, reads) = scene.read(0, 1);
    assert!(scene.submit(Request::Flush));
    scene.run();
    // The next record tells that the first one was durable.
    scene.write(1, 1, 2);
    let block = reads[0].0;
    let mut device = scene.device.clone();
    device.corrupt(Pba(block.0 - 1), 50);
    let mut rebuilt = Scene::open(device.clone());
    let found = (rebuilt.try_read(0), rebuilt.try_read(1));
    assert_eq!(found, (Ok(1), Ok(2)), "the next header tells of the one before it");
    // With the block as well nothing proves what the header was.
    device.corrupt(block, 50);
    let reopened = Scene::try_open(device, None);
    let phase = reopened.engine.phase();
    let missing =
        matches!(phase, Phase::Failed(coulter_engine::OpenError::DurableRecordMissing { .. }));
    assert!(missing, "{phase:?}");
}

/// A later record says that it was durable: so it is no torn one, and what was written after it counts.
#[test]
fn a_durable_record_with_a_rotten_block_costs_no_later_write() {
    let mut scene = Scene::new(24);
    scene.write(0, 2, 1);
    let (_, reads) = scene.read(0, 1);
    assert!(scene.submit(Request::Flush));
    scene.run();
    scene.write(2, 1, 2);
    let mut device = scene.device.clone();
    device.corrupt(reads[0].0, 50);
    let mut reopened = Scene::open(device);
    let rotten = coulter_format::Lba(0);
    assert_eq!(reopened.try_read(0), Err(Failure::Corrupt(rotten)));
    assert_eq!((reopened.try_read(1), reopened.try_read(2)), (Ok(1), Ok(2)));
}

/// The cleaner moves a rotten block with the checksum that it should have. Recovery must not take
/// that for a torn record and drop what was written after it.
#[test]
fn a_rotten_block_that_was_moved_costs_no_later_write() {
    let mut scene = Scene::new(24);
    let mut random = Random::new(11);
    let size = scene.volume_size();
    for lba in 0..size / 20 {
        scene.write(lba * 20, 20, 1);
    }
    for _ in 0..20 {
        let lba = random.below(size / 20 * 20);
        let (_, reads) = scene.read(lba, 1);
        scene.device.corrupt(reads[0].0, 77);
    }
    while scene.engine.statistics().corrupt_blocks == 0 {
        scene.write(random.below(size), 1, 2);
    }
    let mut written = Vec::new();
    for _ in 0..40 {
        let lba = random.below(size);
        scene.write(lba, 1, 3);
        written.push(lba);
    }
    let mut reopened = Scene::open(scene.device.clone());
    for lba in written {
        assert_eq!(reopened.try_read(lba), Ok(3), "block {lba}");
    }
}

/// The n-th flush fails, and the device has forgotten some of what it should have covered: reads show that
/// at once, or not before the engine has ended.
#[test]
fn a_flush_that_fails_and_forgets_loses_nothing_that_was_flushed() {
    let mut simulator = Simulator::default();
    for (fault, loss) in
        [("forgets", "nothing"), ("forgets-later", "nothing"), ("forgets", "blocks")]
    {
        for number in 1..10 {
            let mut text = "coulter-sim plan 1\nstore segments=28 segment_blocks=256 volume=0 \
                            journal=1024 runs=4 map=0 trim=1\n"
                .to_owned();
            for round in 0..12 {
                text += &format!("write {} 250\nwrite 7 3\ndrain\nflush\n", 250 * round);
                text += &format!("write {} 4 fua\ndiscard {round} 40\n", 9 * round);
                if round == 4 {
                    text += &format!("fault {fault} {number}\n");
                }
                text += &format!("run {} {number}\n", 5 * round);
            }
            text += &format!(
                "drain\ncut {loss} {number}\nwrite 0 200\nflush\ndrain\ncut everything 1\n"
            );
            let plan = text.parse().expect("a plan of this version");
            let outcome = simulator.run(&plan);
            assert!(outcome.is_ok(), "{fault} {number}: {:?}", outcome.err());
        }
    }
}
