//! The same with power cuts, in lives of several openings: what a volume holds afterwards must be what
//! some prefix of the writes left, no shorter than what was flushed, and of each write all or nothing.
//! The requests overlap and are of any 512 bytes, so what is cut off is merging, too.

use super::*;
use coulter_device::wrap::{CutDevice, CutPolicy};

const LIVES: u64 = 25;

/// Openings of one life.
const OPENINGS: u64 = 8;

/// The smallest that there is, so that the log soon comes round.
const STORE_SIZE: u64 = 24 << 20;

/// Turns after which whoever still waits would wait for ever.
const TURNS_MAX: u32 = 100_000;

struct Life {
    store: MemoryStore,
    random: Random,
    seed: u64,
    acknowledge: Acknowledge,
    openings: u64,
    /// What each sector held when the power was cut last.
    oracle: Oracle,
    next_tag: u64,
}

/// What many lives came to.
#[derive(Default)]
struct Told {
    cut_while_opening: u64,
    cut_with_requests: u64,
    flushes: u64,
    lost: u64,
}

impl Life {
    fn new(seed: u64, acknowledge: Acknowledge) -> Life {
        let store = MemoryStore::new(STORE_SIZE);
        let options = CreateOptions { segment_size: Some(2 << 20), ..CreateOptions::default() };
        let device = store.open().expect("nothing has it open");
        create(Box::new(device), &options).expect("it fits");
        let random = Random::new(seed ^ 0x000f_f0ff);
        let (oracle, next_tag) = (Oracle::new(), 1);
        Life { store, random, seed, acknowledge, openings: 0, oracle, next_tag }
    }

    fn policy(&mut self) -> CutPolicy {
        match self.random.below(6) {
            0 => CutPolicy::LoseAll,
            1 => CutPolicy::KeepAll,
            _ => CutPolicy::Seeded(self.random.below(u64::MAX)),
        }
    }

    /// Opens the store. `None` if the power was cut meanwhile.
    fn open(&mut self, cut_after: Option<u64>) -> Option<(Scene, CutHandle)> {
        self.openings += 1;
        let seed = self.seed ^ self.openings << 32;
        let (device, handle) = CutDevice::new(self.store.open().expect("nothing has it open"));
        if let Some(commands) = cut_after {
            handle.cut_after(commands, self.policy());
        }
        let device = Shuffled { inner: device, waiting: Vec::new(), random: Random::new(!seed) };
        let config = Config { request_count: 16, ..Config::default() };
        let mut driver = match Driver::new(Box::new(device), config).and_then(Driver::recover) {
            Ok(driver) => driver,
            Err(error) => {
                assert!(handle.is_cut(), "seed {}: {error}", self.seed);
                return None;
            }
        };
        driver.acknowledge(self.acknowledge);
        let scene = Scene {
            driver,
            oracle: std::mem::replace(&mut self.oracle, Oracle::new()),
            random: Random::new(seed),
            asked: HashMap::new(),
            next_tag: self.next_tag,
            seed: self.seed,
            power: Some(handle.clone()),
        };
        Some((scene, handle))
    }

    /// Requests until the power is cut; what was asked and not answered well may have happened or not.
    fn run_until_cut(&mut self, told: &mut Told) {
        let opening = self.random.below(4) == 0;
        let early = if opening { Some(self.random.below(30)) } else { None };
        let Some((mut scene, handle)) = self.open(early) else {
            told.cut_while_opening += 1;
            return;
        };
        if early.is_none() {
            let soon = [30, 300, 3000][self.random.below(3) as usize];
            handle.cut_after(self.random.below(soon), self.policy());
        }
        while !handle.is_cut() {
            if scene.driver.job_count() < 48 && scene.random.below(3) > 0 {
                scene.submit_any();
            } else {
                scene.turn(Wait::No);
            }
        }
        told.cut_with_requests += u64::from(scene.driver.job_count() > 0);
        for _ in 0..TURNS_MAX {
            if scene.driver.job_count() == 0 {
                break;
            }
            scene.turn(Wait::No);
        }
        scene.turn(Wait::No);
        assert!(scene.asked.is_empty(), "seed {}: some wait for ever", self.seed);
        told.flushes += u64::from(scene.oracle.assured > 0);
        self.next_tag = scene.next_tag;
        self.oracle = scene.oracle;
    }

    /// Opens the store with its power on, and compares what it holds with what it may hold.
    fn compare(&mut self, told: &mut Told) {
        // What is read is judged below; while it is read, all is allowed.
        let oracle = std::mem::replace(&mut self.oracle, Oracle::new());
        let (mut scene, _) = self.open(None).expect("nothing cuts the power");
        let found = scene.read_all();
        let survivors: Vec<Version> =
            found.iter().zip(&oracle.sectors).filter_map(survivor).collect();
        let horizon_of = |step: fn(&Version) -> u64| {
            survivors.iter().map(step).max().unwrap_or(0).max(oracle.assured)
        };
        let horizon = horizon_of(Version::told_by);
        // A discard is answered before writes that are ahead of it in the log, unless these are too.
        let horizon_of_hints = match self.acknowledge {
            Acknowledge::Written => horizon_of(|version| version.begun),
            Acknowledge::Buffered => horizon,
        };
        let survived =
            |version: &Version| survivors.iter().any(|other| other.begun == version.begun);
        let must_be = |version: &Version| {
            let horizon = if version.is_hint { horizon_of_hints } else { horizon };
            let is_before = version.ended.is_some_and(|ended| ended < horizon);
            is_before || (version.fua && version.ended.is_some()) || survived(version)
        };
        for (sector, (value, versions)) in found.iter().zip(&oracle.sectors).enumerate() {
            let is_gone = |version: &Version| {
                let Some(ended) = version.ended else { return false };
                versions.iter().any(|later| later.begun > ended && must_be(later))
            };
            let may_be =
                versions.iter().any(|version| version.value == *value && !is_gone(version));
            let seed = self.seed;
            assert!(
                may_be,
                "seed {seed}: sector {sector} holds {value} at {horizon}: {versions:?}"
            );
            told.lost += u64::from(versions.last().is_some_and(|last| last.value != *value));
        }
        self.oracle = Oracle::of(&found);
    }
}

/// The write that a sector shows, if its value tells which.
fn survivor((value, versions): (&u64, &Vec<Version>)) -> Option<Version> {
    let shown = versions.iter().find(|version| *value != 0 && version.value == *value);
    shown.filter(|version| version.begun > 0).copied()
}

impl Version {
    /// If this is there, all that was answered before this step is there too. What was answered
    /// early may be behind a write with FUA that waits for a flush.
    fn told_by(&self) -> u64 {
        match self.ended {
            Some(ended) if !self.fua => ended,
            _ => self.begun,
        }
    }
}

impl Oracle {
    /// After an opening that found these values.
    fn of(found: &[u64]) -> Oracle {
        let only = |value: &u64| vec![Version { value: *value, ..Version::ZEROS }];
        Oracle { sectors: found.iter().map(only).collect(), ..Oracle::new() }
    }
}

impl Scene {
    /// The value of each sector, read in pieces.
    fn read_all(&mut self) -> Vec<u64> {
        let mut found = vec![u64::MAX; SECTORS as usize];
        for first in (0..SECTORS).step_by(64) {
            self.submit(Operation::Read, first, 64);
        }
        while self.driver.job_count() > 0 {
            self.driver.work();
            for finished in std::mem::take(&mut self.driver.finished) {
                let completion = finished.completion;
                let asked = self.asked.remove(&completion.tag).expect("each is finished once");
                assert_eq!(completion.result, Ok(()), "seed {}", self.seed);
                for (sector, bytes) in (asked.first..).zip(completion.buffer.chunks_exact(SECTOR)) {
                    found[sector as usize] = value_of(bytes).unwrap_or_else(|| {
                        panic!("seed {}: sector {sector} is torn", self.seed);
                    });
                }
            }
            self.driver.poll_device(Wait::No).expect("the device works");
        }
        found
    }
}

#[test]
fn after_a_power_cut_a_volume_holds_a_prefix_with_all_that_was_flushed() {
    holds_a_prefix(Acknowledge::Written);
}

#[test]
fn so_it_does_if_writes_are_answered_from_memory() {
    holds_a_prefix(Acknowledge::Buffered);
}

fn holds_a_prefix(acknowledge: Acknowledge) {
    let mut told = Told::default();
    for seed in 0..LIVES {
        let mut life = Life::new(seed, acknowledge);
        for _ in 0..OPENINGS {
            life.run_until_cut(&mut told);
            life.compare(&mut told);
        }
    }
    assert!(told.cut_while_opening > 20, "{} openings were cut", told.cut_while_opening);
    assert!(told.cut_with_requests > 50, "{} cuts amid requests", told.cut_with_requests);
    assert!(told.flushes > 50, "flushed before {} cuts", told.flushes);
    assert!(told.lost > 5_000, "{} sectors lost their last write", told.lost);
}

#[test]
#[should_panic(expected = "holds")]
fn a_volume_that_went_back_to_an_older_state_is_caught() {
    for seed in 0..LIVES {
        let mut life = Life::new(seed, Acknowledge::Written);
        let older = life.store.duplicate().expect("nothing has it open");
        life.run_until_cut(&mut Told::default());
        life.store = older;
        life.compare(&mut Told::default());
    }
}

#[test]
#[should_panic(expected = "holds")]
fn a_flush_that_does_not_wait_for_writes_that_were_answered_early_is_caught() {
    flush_without_waiting(Operation::Write { fua: false }, Acknowledge::Buffered);
}

#[test]
#[should_panic(expected = "holds")]
fn a_flush_that_does_not_wait_for_discards_is_caught() {
    flush_without_waiting(Operation::Discard, Acknowledge::Written);
}

/// Without reads, which would find out first.
fn flush_without_waiting(early: Operation, acknowledge: Acknowledge) {
    for seed in 0..LIVES {
        let mut life = Life::new(seed, acknowledge);
        let (mut scene, handle) = life.open(None).expect("nothing cuts the power");
        scene.submit(Operation::Write { fua: false }, 0, 160);
        scene.submit(Operation::Flush, 0, 0);
        scene.drain();
        scene.driver.conflicts.forgets_waiters = true;
        for round in 0..20 {
            scene.submit(early, round * 8, 8);
            scene.turn(Wait::No);
        }
        scene.submit(Operation::Flush, 0, 0);
        let flush = scene.next_tag - 1;
        while scene.asked.contains_key(&flush) {
            scene.turn(Wait::No);
        }
        handle.cut(CutPolicy::LoseAll);
        life.oracle = scene.oracle;
        drop(scene.driver);
        life.compare(&mut Told::default());
    }
}
