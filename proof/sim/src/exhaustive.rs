//! Every plan up to a length, cut after every device command, with every subset of what was not flushed.
//!
//! The store is tiny and worked in: hardly any segment is empty, so operations make it clean, write
//! checkpoints and reuse segments all the time. Commands complete in the order in which they were issued;
//! after each, the power goes, and the store is opened and compared. Where more than [`SUBSET_BITS`] writes
//! are not flushed, subsets are sampled: none, all, each one alone, each one missing, and some at random.
//!
//! The device may also have no space for segments ([`Search::without_space`]): it refuses each one until
//! nothing else is left to be done, and then has room for one more. After a power cut it has none at all.
//!
//! Or it is flash that writes each page whole or not at all, and the store pads them ([`Search::padding`]).
//!
//! Or the store is sparse and has a list of roots ([`Search::root_lists`]): its addresses lie in a root for each few, so a
//! checkpoint writes root pages and pages of the list, and a root comes and goes with a discard.

mod ground;
mod run;

use crate::buffers::Memory;
use crate::device::Device;
use crate::hand::{small_options, store_like};
use crate::oracle::{Operation, Oracle, Part};
use crate::random::Random;
use coulter_engine::create::{CreateOptions, Sparse};
use coulter_engine::{Change, ChangeKind, Command, Phase, Request, RequestId};
use coulter_format::{BLOCK_SIZE, Lba};
use ground::{Ground, WINDOW, config, place, ranges};
use run::{Expected, Run, content, number_of};
use std::fmt;

/// Unflushed writes of which every subset is tried.
pub const SUBSET_BITS: usize = 4;

/// Subsets tried at random when there are more.
const SAMPLES: u64 = 4;

/// Segments of the tiny store, and blocks of its volume.
const SEGMENTS: u64 = 24;
const VOLUME: u64 = 320;

/// One letter of the alphabet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Letter {
    /// Writes block 3.
    WriteOne,
    /// Writes blocks 2 to 9, over block 3.
    WriteSome,
    /// Writes 250 blocks: nearly a segment.
    WriteLong,
    /// Writes blocks 3 and 5 and some from 60 on, and discards block 4 and some from 290 on, at once.
    WriteMany,
    /// Discards blocks 0 to 4.
    Discard,
    /// Flushes.
    Flush,
}

/// The alphabet.
pub const ALPHABET: [Letter; 6] = [
    Letter::WriteOne,
    Letter::WriteSome,
    Letter::WriteLong,
    Letter::WriteMany,
    Letter::Discard,
    Letter::Flush,
];

/// What [`Letter::WriteMany`] changes.
const MANY: [Change; 5] = [
    change(60, 3, ChangeKind::Write),
    change(3, 1, ChangeKind::Write),
    change(4, 1, ChangeKind::Discard),
    change(5, 1, ChangeKind::Write),
    change(290, 4, ChangeKind::Discard),
];

const fn change(lba: u64, count: u32, kind: ChangeKind) -> Change {
    Change { lba: Lba(lba), count, kind }
}

impl Letter {
    fn parts(self, ground: Ground) -> Vec<Part> {
        let part = |lba, count, discard| Part { lba, count, discard };
        match self {
            Letter::WriteOne => vec![part(3, 1, false)],
            Letter::WriteSome => vec![part(2, 8, false)],
            Letter::WriteLong => vec![part(30, 250, false)],
            Letter::WriteMany => {
                let of = |change: &Change| {
                    let discard = change.kind == ChangeKind::Discard;
                    part(change.lba.0, change.count.into(), discard)
                };
                MANY.iter().map(of).collect()
            }
            // All of a root.
            Letter::Discard if ground == Ground::RootLists => vec![part(0, WINDOW, true)],
            Letter::Discard => vec![part(0, 5, true)],
            Letter::Flush => Vec::new(),
        }
    }
}

/// What was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    /// Plans.
    pub plans: u64,
    /// Power cuts, each followed by an opening and a comparison.
    pub crash_points: u64,
    /// Of those, cuts at which every subset of the unflushed writes was tried.
    pub exhausted_points: u64,
    /// Segments for which the device had no space.
    pub refusals: u64,
    /// Blocks that flash pages were padded with.
    pub padded_blocks: u64,
    /// Root pages and pages of their list that were written.
    pub root_blocks: u64,
}

/// A plan that went wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its letters.
    pub letters: Vec<Letter>,
    /// The device command after which the power went, from 1.
    pub command: u64,
    /// Which of the unflushed writes were kept.
    pub kept: u64,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { letters, command, kept, what } = self;
        write!(f, "{letters:?}, cut after command {command}, keeping {kept:#b}: {what}")
    }
}

/// Every how many crash points the store is also brought to where it can be written, when there is space.
const GO_ON_EVERY: u64 = 16;

/// The tiny store, and what it holds.
struct Scene {
    device: Device,
    oracle: Oracle,
}

/// The search through all plans.
pub struct Search {
    scene: Scene,
    memory: Option<Memory>,
    random: Random,
    /// Every how many crash points the independent checker looks at the device too.
    pub audit_every: u64,
    ground: Ground,
    /// What was tried so far.
    pub tried: Tried,
}

impl Default for Search {
    fn default() -> Search {
        Search::new()
    }
}

impl Search {
    /// Makes the tiny store and works it in.
    ///
    /// # Panics
    /// If the store cannot be laid out or worked in.
    pub fn new() -> Search {
        Search::on(Ground::Whole)
    }

    /// The same store on flash of which each page of four blocks is written whole or not at all; it pads them. Before
    /// each plan its holes are reserved.
    ///
    /// # Panics
    /// If the store cannot be laid out or worked in.
    pub fn padding() -> Search {
        Search::on(Ground::Pages(4))
    }

    /// The same store with its addresses in many roots, and a list of these.
    ///
    /// # Panics
    /// If the store cannot be laid out or worked in.
    pub fn root_lists() -> Search {
        Search::on(Ground::RootLists)
    }

    fn on(ground: Ground) -> Search {
        let is_sparse = ground == Ground::RootLists;
        let (superblocks, page_blocks) = match ground {
            Ground::Pages(blocks) => (3, Some(blocks)),
            _ => (1, None),
        };
        // A leaf page and both copies of a root page for each window come on top of the data.
        let windows = VOLUME.div_ceil(WINDOW);
        let metadata = if is_sparse { 3 * windows } else { 0 };
        let device = store_like(&CreateOptions {
            sparse: is_sparse.then_some(Sparse {
                address_limit: 1 << 40,
                root_limit: Some(windows as u32),
                root_lists: true,
            }),
            volume_size: Some(VOLUME + metadata),
            run_count_limit: Some(2),
            page_blocks,
            ..small_options(256 * (SEGMENTS + superblocks))
        });
        let scene = Scene { device, oracle: Oracle::new(VOLUME) };
        let config = config(ground);
        let memory = Memory::new(config.record_count, config.page_count);
        let mut run = Run::begin(&scene, memory, ground);
        // One cold block is left behind in each segment, so none becomes free by itself.
        for segment in 0..SEGMENTS {
            while run.turn() {}
            run.next += 1;
            let (id, lba) = (RequestId(run.next), 290 + segment);
            let number = run.oracle.next_number();
            let buffer = run.memory.add_host(vec![content(lba, number)]);
            let at = Lba(place(ground, lba));
            let request = Request::Write { lba: at, count: 1, buffer, fua: false };
            let taken = run.engine.handle_request(id, request, &mut run.memory);
            run.memory.take_host(buffer);
            assert!(taken.is_ok(), "a store at rest takes a write");
            let accepted = run.oracle.accept(Operation::write(lba, 1));
            run.answers.push((id.0, Expected::Operation(accepted)));
            while run.turn() {}
            assert!(run.submit(Letter::WriteLong), "a store at rest takes a write");
        }
        while run.turn() {}
        run.device.flush_all();
        let mut oracle = run.oracle.clone();
        oracle.durable_up_to(oracle.next_number());
        oracle.settle();
        let scene = Scene { device: run.device, oracle };
        Search {
            scene,
            memory: Some(run.memory),
            random: Random::new(1),
            audit_every: 64,
            ground,
            tried: Tried::default(),
        }
    }

    /// The same store on a device without space for segments.
    ///
    /// # Panics
    /// If the store cannot be laid out or worked in.
    pub fn without_space() -> Search {
        Search { ground: Ground::WithoutSpace, ..Search::new() }
    }

    /// Tries all plans of `length` letters. `progress` is told before each; if it returns false, the search
    /// ends.
    ///
    /// # Errors
    /// The first failure.
    pub fn all_of_length(
        &mut self,
        length: u32,
        mut progress: impl FnMut(&[Letter], &Tried) -> bool,
    ) -> Result<(), Failure> {
        let count = (ALPHABET.len() as u64).pow(length);
        for number in 0..count {
            let letters: Vec<_> = (0..length)
                .map(|place| number / (ALPHABET.len() as u64).pow(place))
                .map(|digit| ALPHABET[(digit % ALPHABET.len() as u64) as usize])
                .collect();
            if !progress(&letters, &self.tried) {
                return Ok(());
            }
            self.plan(&letters)?;
        }
        Ok(())
    }

    /// Runs one plan, and cuts after every command.
    fn plan(&mut self, letters: &[Letter]) -> Result<(), Failure> {
        self.tried.plans += 1;
        let memory = self.memory.take().expect("it is given back");
        let mut run = Run::begin(&self.scene, memory, self.ground);
        if let Ground::Pages(_) = self.ground {
            run.reserve_holes();
        }
        let config = config(self.ground);
        let mut spare = Memory::new(config.record_count, config.page_count);
        let mut left = letters;
        let mut result = Ok(());
        loop {
            run.poll();
            while let Some((letter, rest)) = left.split_first() {
                if run.engine.phase() != Phase::Running || !run.submit(*letter) {
                    break;
                }
                left = rest;
            }
            if left.is_empty() && self.ground == Ground::RootLists {
                run.shut_down();
            }
            let reads = run.reads_next();
            if !run.turn() {
                break;
            }
            // It opens and closes with many reads, which change nothing; and all plans are opened alike, so the empty
            // one alone is cut there.
            let is_opening = matches!(run.engine.phase(), Phase::Opening);
            let is_known = reads || is_opening && !letters.is_empty();
            if is_known && self.ground == Ground::RootLists {
                continue;
            }
            spare = match self.cut_here(&run, spare) {
                Ok(memory) => memory,
                Err((kept, what)) => {
                    let (letters, command) = (letters.to_vec(), run.commands);
                    result = Err(Failure { letters, command, kept, what });
                    break;
                }
            };
        }
        if result.is_ok() && !left.is_empty() {
            let what = format!("{left:?} is never accepted");
            result =
                Err(Failure { letters: letters.to_vec(), command: run.commands, kept: 0, what });
        }
        self.tried.refusals += run.refusals;
        self.tried.padded_blocks += run.engine.statistics().padded_blocks;
        self.tried.root_blocks += run.engine.statistics().root_blocks;
        self.memory = Some(run.memory);
        result
    }

    /// Cuts the power in every way that is to be tried. Gives the buffers back.
    fn cut_here(&mut self, run: &Run, mut memory: Memory) -> Result<Memory, (u64, String)> {
        // What is out may have arrived, too: it counts as one more unflushed write.
        let mut device = run.device.clone();
        for (io, data) in &run.pending {
            if let Command::Write { pba, .. } = io.command {
                device.write(pba, data);
            }
        }
        let count = device.flush_mark().min(63);
        let subsets: Vec<u64> = if count <= SUBSET_BITS {
            self.tried.exhausted_points += 1;
            (0..1 << count).collect()
        } else {
            let all = (1 << count) - 1;
            let single = (0..count).flat_map(|bit| [1 << bit, all & !(1 << bit)]);
            let random = (0..SAMPLES).map(|_| self.random.bits() & all);
            [0, all].into_iter().chain(single).chain(random).collect()
        };
        for kept in subsets {
            self.tried.crash_points += 1;
            let mut cut = device.clone();
            cut.cut_keeping(kept);
            if self.tried.crash_points.is_multiple_of(self.audit_every) {
                cut.check().map_err(|what| (kept, format!("the checker finds: {what}")))?;
            }
            let scene = Scene { device: cut, oracle: run.oracle.clone() };
            let goes_on = self.tried.crash_points.is_multiple_of(GO_ON_EVERY);
            memory = compare(&scene, memory, self.ground, goes_on).map_err(|what| (kept, what))?;
        }
        Ok(memory)
    }
}

/// Opens a store and compares all of it. If it `goes_on`, it is also brought to where it can be written.
fn compare(scene: &Scene, memory: Memory, ground: Ground, goes_on: bool) -> Result<Memory, String> {
    let mut run = Run::begin(scene, memory, ground);
    loop {
        run.poll();
        match run.engine.phase() {
            // What it serves while the first checkpoint is being written is what counts.
            Phase::Recovered | Phase::Running => break,
            Phase::Failed(error) => return Err(format!("the store did not open: {error:?}")),
            _ => {}
        }
        if run.room.is_some_and(|room| room > 0) {
            return Err("a store that has no space is not read".to_owned());
        }
        if !run.turn() {
            return Err("opening stands still".to_owned());
        }
    }
    let mut observed = vec![Some(0); VOLUME as usize];
    let mut cursor = 0;
    while let Some(range) = run.oracle.touched(cursor) {
        cursor = range.end;
        let mut first = range.start;
        for (at, count) in ranges(ground, range.start, range.end - range.start) {
            let buffer = run.memory.add_host(vec![[1; BLOCK_SIZE]; count as usize]);
            let id = RequestId(first + 1);
            let request = Request::Read { lba: Lba(at), count: count as u32, buffer };
            let taken = run.engine.handle_request(id, request, &mut run.memory);
            taken.map_err(|_| "a read is refused".to_owned())?;
            read_to_its_end(&mut run)?;
            let blocks = run.memory.take_host(buffer);
            for (lba, block) in (first..).zip(&blocks) {
                let number = number_of(lba, block).map_err(|violation| violation.what)?;
                observed[lba as usize] = Some(number);
            }
            first += count;
        }
    }
    let mut oracle = scene.oracle.clone();
    oracle.recover(&observed, false, |_| false).map_err(|violation| violation.what)?;
    while goes_on && run.engine.phase() != Phase::Running {
        if !run.turn() {
            return Err("with space it does not go on".to_owned());
        }
    }
    Ok(run.memory)
}

fn read_to_its_end(run: &mut Run) -> Result<(), String> {
    loop {
        run.take_commands();
        if let Some(response) = run.engine.poll_response() {
            return response.result.map_err(|failure| format!("a read failed: {failure:?}"));
        }
        if run.pending.is_empty() {
            return Err("a read never ends".to_owned());
        }
        run.complete_oldest();
    }
}
