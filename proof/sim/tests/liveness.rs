//! Goal: whatever waits for whatever, something goes on, and what goes on leads somewhere.

use coulter_engine::create::{CreateOptions, map_size_min, plan};
use coulter_engine::placement::Placement;
use coulter_engine::reclaim::Reclaim;
use coulter_engine::units::Stream;
use coulter_engine::{Command, Config, Request, Target};
use coulter_format::{Lba, StoreId};
use coulter_sim::hand::{Hand, store_of};
use coulter_sim::random::Random;

/// A store that is written all over; with the least map and no spare space, or as one is made by default.
struct Full {
    hand: Hand,
    volume: u64,
    random: Random,
    /// Requests that were taken, and perhaps not answered.
    taken: Vec<u64>,
}

/// How it is laid out.
#[derive(Clone, Copy)]
struct Shape {
    segments: u64,
    segment_blocks: u32,
    /// Journal and runs, with the least map and the least spare space.
    least: Option<(u32, u32)>,
}

impl Full {
    fn new(shape: Shape, config: Config, seed: u64) -> Full {
        let Shape { segments, segment_blocks, least } = shape;
        let (geometry, budget) = plan(&CreateOptions {
            device_size: u64::from(segment_blocks) * (segments + 1),
            sparse: None,
            volume_size: None,
            segment_blocks,
            spare_percent: if least.is_some() { 0 } else { 20 },
            store: StoreId { uuid: [6; 16], salt: 1 },
            label: [0; 64],
            map_size: None,
            journal_size: least.map(|(journal, _)| journal),
            run_count_limit: least.map(|(_, runs)| runs),
            page_blocks: None,
        })
        .expect("laid out");
        let volume = geometry.volume_size;
        let map = least.map(|_| map_size_min(volume));
        let (journal, runs) = (budget.journal_size, budget.run_count_limit);
        let store = store_of(segments, segment_blocks, journal, Some(volume), map, runs);
        let mut hand = Hand::open(store, config);
        for lba in (0..volume).step_by(255) {
            assert!(hand.write(lba, 255.min(volume - lba) as u32, 1));
        }
        Full { hand, volume, random: Random::new(seed), taken: Vec::new() }
    }

    fn unanswered(&self) -> usize {
        self.taken.iter().filter(|id| !self.hand.answers.contains_key(id)).count()
    }

    /// Overwrites single blocks, 64 at a time, `least` of them and until some wait for what the cleaner gains:
    /// they are not answered, and no record of the host is out.
    fn until_the_host_waits(&mut self, least: u64) {
        for count in 0..3 * self.volume {
            let lba = self.random.below(self.volume);
            while self.unanswered() > 63 {
                self.hand.poll();
                if self.hand.out.is_empty() {
                    break;
                }
                self.hand.complete(0, Ok(()));
            }
            match self.hand.try_write(lba, 1, 2) {
                Some(id) => self.taken.push(id),
                None => {
                    self.hand.poll();
                    self.hand.complete(0, Ok(()));
                }
            }
            if count % 64 == 0 {
                self.taken.retain(|id| !self.hand.answers.contains_key(id));
                self.hand.answers.clear();
            }
            self.hand.poll();
            let is_host =
                |command: &Command| matches!(command, Command::Write { stream: Stream::User, .. });
            let is_out = self.hand.out.iter().any(|(io, _)| is_host(&io.command));
            if count >= least && self.unanswered() > 0 && !is_out {
                return;
            }
        }
        panic!("the host never waits");
    }

    fn discard(&mut self, lba: u64, count: u64) -> bool {
        let id = self.hand.submit(Request::Discard { lba: Lba(lba), count, fua: false });
        self.taken.extend(id);
        id.is_some()
    }

    /// Lets one thing after the other complete until all is answered, `late` reads of the cleaner being passed
    /// over each time. The driver gives up when nothing is out and some turns bring nothing.
    fn end(&mut self, late: u32, steps_max: u64) {
        let (mut idle, mut passed, mut steps) = (0, 0, 0);
        loop {
            self.hand.poll();
            if self.unanswered() == 0 {
                break;
            }
            let statistics = self.hand.engine.statistics();
            if self.hand.out.is_empty() {
                idle += 1;
                assert!(idle < 9, "it stands still: {statistics:?}");
                continue;
            }
            idle = 0;
            let is_slow = |command: &Command| {
                matches!(command, Command::Read { target: Target::RecordPart { .. }, .. })
            };
            let quick = self.hand.out.iter().position(|(io, _)| !is_slow(&io.command));
            let next = quick.filter(|_| passed < late);
            passed = if next.is_some() { passed + 1 } else { 0 };
            self.hand.complete(next.unwrap_or(0), Ok(()));
            steps += 1;
            let left = self.unanswered();
            assert!(steps < steps_max, "{left} requests never end: {statistics:?}");
        }
        self.hand.run();
        self.hand.answers.clear();
        self.taken.clear();
    }

    fn write_again(&mut self, discarded: &[(u64, u64)]) {
        for (lba, count) in discarded {
            for at in (0..*count).step_by(255) {
                assert!(self.hand.write(lba + at, 255.min(count - at) as u32, 1));
            }
        }
        self.hand.answers.clear();
    }
}

fn config(reclaim: Reclaim) -> Config {
    let placement = Placement::Apart;
    Config {
        record_count: 18,
        page_count: 16,
        batch_depth: 4,
        placement,
        reclaim,
        ..Config::default()
    }
}

/// Discards are promised all that recovery may hold. They are in a group that waits for what the cleaner gains,
/// and the cleaner may begin no relocation, for there is nothing left to be promised to it.
///
/// Or: one that waits for memory has given up the very page, each time it looked, that the cleaner had loaded.
fn discards_on_a_full_volume_end(shape: Shape, reclaim: Reclaim, seed: u64) {
    let mut full = Full::new(shape, config(reclaim), seed);
    for _ in 0..4 {
        let least = full.random.below(3000);
        full.until_the_host_waits(least);
        let leaves = full.volume / 512;
        let start = full.random.below(leaves);
        let mut discarded = Vec::new();
        for number in 0..leaves.min(400) {
            let statistics = full.hand.engine.statistics();
            let count = (statistics.recovery_cells_max - statistics.recovery_cells).min(511);
            let lba = (start + number) % leaves * 512;
            if count == 0 || !full.discard(lba, count) {
                break;
            }
            discarded.push((lba, count));
        }
        full.end(0, 100_000);
        full.write_again(&discarded);
    }
}

const LEAST: Shape = Shape { segments: 228, segment_blocks: 512, least: Some((8192, 2)) };

#[test]
fn discards_on_a_full_volume_with_the_least_map_end() {
    discards_on_a_full_volume_end(LEAST, Reclaim::Threaded, 0);
}

#[test]
fn discards_on_a_full_volume_with_the_least_map_end_by_copying_out() {
    discards_on_a_full_volume_end(LEAST, Reclaim::CopyOut, 1);
}

#[test]
fn discards_on_a_full_volume_as_it_is_made_by_default_end() {
    let shape = Shape { segments: 300, segment_blocks: 1024, least: None };
    discards_on_a_full_volume_end(shape, Reclaim::Threaded, 3);
}

/// The journal has no room beside what is promised to a group that waits for what the cleaner gains. No
/// checkpoint makes any, and each is paid for from that.
#[test]
fn no_checkpoint_is_written_for_promises_that_none_makes_room_for() {
    for late in [1, 200] {
        let shape = Shape { segments: 204, segment_blocks: 1024, least: Some((1024, 2)) };
        let config = Config { record_count: 16, reference_blocks: 1, ..config(Reclaim::Threaded) };
        let config = Config { placement: Placement::default(), ..config };
        let mut full = Full::new(shape, config, 0);
        let mut most = 0;
        for _ in 0..12 {
            let least = full.random.below(1000);
            full.until_the_host_waits(least);
            let lba = full.random.below(full.volume / 512 - 9) * 512 + 1;
            let places = [0, 1, 2].map(|place| (lba + 1536 * place, 511 + 512 + 511));
            let discarded: Vec<_> =
                places.into_iter().filter(|(lba, count)| full.discard(*lba, *count)).collect();
            let before = full.hand.engine.statistics().checkpoints;
            full.end(late, 60_000);
            most = most.max(full.hand.engine.statistics().checkpoints - before);
            full.write_again(&discarded);
        }
        assert!(most < 40, "{most} checkpoints for three discards");
    }
}
