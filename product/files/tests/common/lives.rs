//! Lives of a file system with several operations and many commands under way, which end in a
//! crash.
//!
//! Commands complete in any order. The clock moves. Reads fail for a while, the volume lacks space
//! for a while, and in some lives a write fails and all later ones with it. At any moment, with
//! commands out, what a crash would leave is opened, checked, and compared with the history.

use super::full::{Writer, fragmented};
use super::history::{End, History};
use super::lane::Lane;
use super::{Fails, Mount, Random, Volume, check, orphan_count};
use coulter_files::{IoError, Request};

const LANES: usize = 3;
const NAMES: [&str; LANES] = ["one", "two", "three"];
/// Files that are written in many steps.
const GREEDY: [&str; 2] = ["greedy", "greedier"];
/// Syncs that are out at once.
const SYNCS_MAX: usize = 3;
/// Commands that are out at once, at most.
const OUT_MAX: u64 = 32;
/// Steps after something has failed for good.
const STEPS_BROKEN: u64 = 80;
const VOLUME_BLOCKS: u64 = 1536;
const CACHES: [usize; 3] = [8, 60, 600];

/// Figures of lives.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    pub operations: usize,
    pub failed: usize,
    pub full: usize,
    pub cuts: usize,
    /// Commands that were out at the cuts.
    pub out: usize,
    pub syncs: usize,
    pub broken: usize,
}

/// The trouble that a life is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    None,
    Reads,
    /// Space beneath the volume.
    Space,
    /// Something that changes the volume failed.
    Broken,
}

struct Sync {
    request: u64,
    least: Vec<usize>,
}

/// See the module's documentation.
struct Life<'a> {
    mount: Mount,
    lanes: Vec<Lane>,
    /// Which operation of the lane's is its own sync.
    durable: [Option<Vec<usize>>; LANES],
    writers: [Writer; GREEDY.len()],
    history: History,
    syncs: Vec<Sync>,
    /// Files of many blocks that were written last and synced: number, byte and length.
    synced: Vec<(u64, u8, usize)>,
    trouble: Trouble,
    now_ns: u64,
    /// Commands that are out while others complete.
    out_goal: usize,
    /// Steps of a thousand after which a crash is looked at.
    cuts_per_thousand: u64,
    random: &'a mut Random,
    figures: &'a mut Figures,
}

/// Lanes on an empty volume, or on one that is nearly full and in pieces.
pub fn base(is_tight: bool) -> Volume {
    let mut random = Random::new(11);
    let mut mount = Mount::new(VOLUME_BLOCKS, 600, 1);
    NAMES.iter().for_each(|name| Lane::make(&mut mount, name));
    for path in GREEDY {
        mount.create(path).expect("room");
    }
    if is_tight {
        fragmented(&mut mount, &mut random, 160);
    }
    mount.sync();
    mount.settle();
    mount.volume().cut(mount.volume().log.len())
}

impl<'a> Life<'a> {
    fn new(volume: Volume, random: &'a mut Random, figures: &'a mut Figures) -> Life<'a> {
        let cache = CACHES[random.below(CACHES.len() as u64) as usize];
        let mut mount = Mount::of(volume, cache, random.bits());
        let lanes: Vec<Lane> = NAMES.iter().map(|name| Lane::find(&mut mount, name)).collect();
        let states: Vec<u64> = lanes.iter().map(|lane| lane.state.key()).collect();
        let writers = GREEDY.map(|path| Writer::new(mount.path(path).expect("it is there")));
        mount.settle();
        mount.backend.is_late = true;
        Life {
            mount,
            lanes,
            durable: Default::default(),
            writers,
            history: History::new(&states),
            syncs: Vec::new(),
            synced: Vec::new(),
            trouble: Trouble::None,
            now_ns: 1,
            out_goal: 4,
            cuts_per_thousand: 0,
            random,
            figures,
        }
    }

    fn step(&mut self) {
        if self.random.chance(2) {
            self.out_goal = self.random.below(OUT_MAX) as usize;
        }
        let is_over = self.mount.backend.out_count() > self.out_goal;
        match self.random.below(100) {
            0..=49 if !is_over => self.begin_one(),
            50..=54 => self.tick(),
            55..=57 if self.syncs.len() < SYNCS_MAX => {
                let least = self.history.answered();
                let request = self.mount.submit(Request::Sync);
                self.syncs.push(Sync { request, least });
            }
            58..=61 => {
                self.mount.files.submit_changes();
                self.mount.poll();
            }
            62..=65 => {
                let writer = &mut self.writers[self.random.below(GREEDY.len() as u64) as usize];
                writer.begin(&mut self.mount, self.random);
            }
            66 if self.trouble != Trouble::None || self.random.chance(20) => self.change_trouble(),
            67..=70 => self.mount.complete_one(),
            _ if is_over => self.mount.complete_one(),
            _ => {}
        }
        self.take_answers();
        self.mount.files.assert_invariants();
        if self.random.below(1000) < self.cuts_per_thousand {
            self.cut();
        }
    }

    fn begin_one(&mut self) {
        let lane = self.random.below(LANES as u64) as usize;
        if !self.lanes[lane].is_idle() {
            return;
        }
        let mut least = self.history.answered();
        let (after, is_durable) = self.lanes[lane].begin(&mut self.mount, self.random);
        least[lane] = self.history.begin(lane, after);
        self.durable[lane] = is_durable.then_some(least);
        self.figures.operations += 1;
    }

    fn tick(&mut self) {
        let far = if self.random.chance(10) { 1_100_000_000 } else { 12_000_000 };
        self.now_ns += self.random.below(far);
        self.mount.files.handle_time(self.now_ns);
        self.mount.poll();
    }

    fn change_trouble(&mut self) {
        let backend = &mut self.mount.backend;
        match self.trouble {
            Trouble::None if self.random.chance(50) => {
                backend.fails = Some(Fails::Reads(IoError::Failed(libc::EIO)));
                self.trouble = Trouble::Reads;
            }
            Trouble::None if self.random.chance(60) => {
                backend.holds_changes = true;
                self.mount.files.handle_space(true);
                self.refuse(true);
                self.trouble = Trouble::Space;
            }
            Trouble::None => {
                let errno = if self.random.chance(50) { libc::EIO } else { libc::ENOSPC };
                backend.fail_from_here(IoError::Failed(errno));
                self.lanes.iter_mut().for_each(|lane| lane.is_blind = true);
                self.refuse(true);
                self.writers.iter_mut().for_each(|writer| writer.is_blind = true);
                self.trouble = Trouble::Broken;
                self.figures.broken += 1;
            }
            Trouble::Reads => {
                backend.fails = None;
                self.trouble = Trouble::None;
            }
            Trouble::Space => self.end_shortage(),
            Trouble::Broken => {}
        }
        self.mount.poll();
    }

    fn refuse(&mut self, is_refused: bool) {
        self.lanes.iter_mut().for_each(|lane| lane.is_refused = is_refused);
    }

    fn end_shortage(&mut self) {
        self.refuse(false);
        self.mount.backend.holds_changes = false;
        self.mount.files.handle_space(false);
        self.trouble = Trouble::None;
    }

    fn take_answers(&mut self) {
        for lane in 0..LANES {
            let Some(end) = self.lanes[lane].end(&mut self.mount, self.random) else {
                continue;
            };
            self.history.end(lane, end);
            self.figures.failed += usize::from(end != End::Done);
            let covered = self.durable[lane].take().filter(|_| end == End::Done);
            if let Some(least) = covered {
                self.history.cover(self.mount.volume().durable, least);
            }
        }
        let (mount, history) = (&mut self.mount, &mut self.history);
        let figures = &mut self.figures;
        self.syncs.retain(|sync| {
            let Some(answer) = mount.answer(sync.request) else { return true };
            if answer.is_ok() {
                history.cover(mount.volume().durable, sync.least.clone());
                figures.syncs += 1;
            }
            false
        });
        for writer in &mut self.writers {
            self.figures.full += usize::from(writer.go_on(&mut self.mount));
        }
    }

    /// A crash now, which keeps anything from what is durable up to all that was given.
    fn cut(&mut self) -> Volume {
        self.figures.cuts += 1;
        self.figures.out += self.mount.backend.out_count();
        let volume = self.mount.volume();
        let (least, most) = (volume.durable, volume.end());
        let kept = match self.random.below(4) {
            0 => least,
            1 => most,
            _ => least + self.random.below((most - least) as u64 + 1) as usize,
        };
        self.check(kept)
    }

    /// The volume after a crash that keeps this much, opened and checked.
    fn check(&mut self, kept: usize) -> Volume {
        let left = self.mount.volume().cut(kept);
        let findings = check(&left);
        assert!(findings.is_empty(), "cut after {kept}: {findings:?}");
        let mut mount = Mount::of(left, 600, self.random.bits());
        let found: Vec<u64> =
            NAMES.iter().map(|name| Lane::find(&mut mount, name).state.key()).collect();
        if let Err(what) = self.history.explain(kept, &found) {
            panic!("cut after {kept} of {}: {what}", self.mount.volume().log.len());
        }
        mount.sync();
        mount.settle();
        let findings = check(mount.volume());
        assert!(findings.is_empty(), "opened after {kept}: {findings:?}");
        assert_eq!(orphan_count(mount.volume()), 0, "orphans go");
        for (file, byte, length) in &self.synced {
            let found = mount.read(*file, 0, *length as u32).expect("sound");
            assert_eq!(found.len(), *length, "what was synced is as long as it was");
            assert!(found.iter().all(|other| other == byte), "what was synced last is there");
        }
        mount.volume().cut(mount.volume().log.len())
    }

    /// Everything is answered; and made durable by the clock alone, if nothing has failed.
    fn come_to_rest(&mut self) {
        if self.trouble == Trouble::Space {
            self.end_shortage();
        }
        self.mount.settle();
        // A writer goes on after an answer: until that is answered too.
        for _ in 0..3 {
            self.take_answers();
            self.mount.settle();
        }
        self.take_answers();
        assert!(self.mount.files.is_quiet() && self.syncs.is_empty(), "everything was answered");
        if self.trouble == Trouble::Broken {
            return;
        }
        for _ in 0..3 {
            self.now_ns += 1_100_000_000;
            self.mount.files.handle_time(self.now_ns);
            self.mount.settle();
        }
        assert!(self.mount.files.is_durable(), "changes that have waited long enough is durable");
        for writer in self.writers.iter().filter(|writer| writer.is_idle()) {
            let (byte, length) =
                (self.random.bits() as u8, 1 + self.random.below(200_000) as usize);
            if self.mount.write(writer.file(), 0, &vec![byte; length]).is_ok() {
                self.synced.push((writer.file(), byte, length));
            }
        }
        self.mount.sync();
        self.mount.settle();
        let volume = self.mount.volume();
        assert_eq!(volume.durable, volume.log.len(), "and the volume says so");
        let answered = self.history.answered();
        self.history.cover(volume.durable, answered);
    }
}

/// Lives one after the other, each on what the crash of the one before has left, until so many
/// operations were done.
pub fn many(seed: u64, operations: usize, is_tight: bool, cuts_per_thousand: u64) -> Figures {
    let mut random = Random::new(seed);
    let mut figures = Figures::default();
    let begin = base(is_tight);
    let mut volume = begin.clone();
    while figures.operations < operations {
        let steps = 200 + random.below(1200);
        let mut life = Life::new(volume, &mut random, &mut figures);
        life.cuts_per_thousand = cuts_per_thousand;
        let (mut step, mut end) = (0, steps);
        while step < end {
            life.step();
            step += 1;
            if life.trouble == Trouble::Broken {
                end = end.min(step + STEPS_BROKEN);
            }
        }
        if life.random.chance(50) {
            life.come_to_rest();
        }
        volume = life.cut();
        if is_tight && random.chance(5) {
            volume = begin.clone();
        }
    }
    figures
}
