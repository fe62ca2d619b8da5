//! The driver without a thread, over a device that completes commands in any order, against an
//! oracle that knows for each sector which values a read may return.
//!
//! Requests of all shapes overlap in a few blocks, so that merging, guarding and waiting happen all
//! the time. A seed decides everything: a failure is repeated by its seed.

mod power_cuts;

use super::{Driver, Finished};
use crate::buffer::Buffer;
use crate::counters::RequestCounts;
use crate::create::{CreateOptions, create};
use crate::many::Many;
use crate::memory::Memory;
use crate::message::{SessionId, Submission};
use crate::open_options::Acknowledge;
use crate::service::{Change, Operation, RequestError};
use coulter_device::wrap::CutHandle;
use coulter_device::{
    Command, CommandKind, Completion, Device, MemoryDevice, MemoryStore, Properties, Region, Wait,
    Waker,
};
use coulter_engine::Config;
use coulter_workload::Random;
use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

const SECTOR: usize = 512;

/// Sectors that requests are made for: a few blocks.
const SECTORS: u64 = 24 * 8;

/// A device that executes its commands one at a time, in an order of its own.
struct Shuffled<D> {
    inner: D,
    waiting: Vec<Command>,
    random: Random,
}

// SAFETY: a command reaches the inner device once, and what that completes is handed on.
unsafe impl<D: Device> Device for Shuffled<D> {
    fn properties(&self) -> &Properties {
        self.inner.properties()
    }
    unsafe fn register(&mut self, regions: &[Region]) -> io::Result<()> {
        // SAFETY: the caller's promises are the same.
        unsafe { self.inner.register(regions) }
    }
    unsafe fn submit(&mut self, command: Command) {
        self.waiting.push(command);
    }
    fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        let least = usize::from(wait == Wait::Forever);
        let count = self.random.below(4).min(self.waiting.len() as u64) as usize;
        for _ in 0..count.max(least) {
            let index = self.random.below(self.waiting.len() as u64) as usize;
            // SAFETY: promised when it was submitted; it has not ended.
            unsafe { self.inner.submit(self.waiting.swap_remove(index)) };
            self.inner.poll(out, Wait::No)?;
        }
        Ok(())
    }
    fn arm(&mut self) -> io::Result<BorrowedFd<'_>> {
        if !self.waiting.is_empty() {
            self.inner.waker().wake();
        }
        self.inner.arm()
    }
    fn waker(&self) -> Waker {
        self.inner.waker()
    }
}

/// A write to a sector, from its acceptance to its completion.
#[derive(Clone, Copy, Debug)]
struct Version {
    value: u64,
    begun: u64,
    ended: Option<u64>,
    fua: bool,
    /// If it is answered before the device has it, though writes are not.
    is_hint: bool,
}

impl Version {
    /// What a new volume holds.
    const ZEROS: Version =
        Version { value: 0, begun: 0, ended: Some(0), fua: false, is_hint: false };
}

/// What each sector may hold.
struct Oracle {
    sectors: Vec<Vec<Version>>,
    step: u64,
    /// What had ended before this step was flushed.
    assured: u64,
}

/// A request that was accepted.
struct Asked {
    operation: Operation,
    first: u64,
    count: u64,
    begun: u64,
    value: u64,
    /// Further ranges of a write of several: first sector, sectors, value.
    others: Vec<(u64, u64, u64)>,
}

impl Asked {
    fn parts(&self) -> impl Iterator<Item = (std::ops::Range<u64>, u64)> + '_ {
        let first = (self.first, self.count, self.value);
        let parts = std::iter::once(first).chain(self.others.iter().copied());
        parts.map(|(first, count, value)| (first..first + count, value))
    }
}

impl Oracle {
    fn new() -> Oracle {
        let sectors = vec![vec![Version::ZEROS]; SECTORS as usize];
        Oracle { sectors, step: 1, assured: 0 }
    }

    fn begin(&mut self, asked: &Asked) {
        if changes(asked.operation) {
            let fua = is_fua(asked.operation);
            let is_hint = asked.operation == Operation::Discard;
            for (sectors, value) in asked.parts() {
                let version = Version { value, begun: asked.begun, ended: None, fua, is_hint };
                for sector in sectors {
                    self.sectors[sector as usize].push(version);
                }
            }
        }
    }

    fn end(&mut self, asked: &Asked) {
        self.step += 1;
        for sector in asked.parts().flat_map(|(sectors, _)| sectors) {
            let versions = &mut self.sectors[sector as usize];
            let ours = versions.iter_mut().find(|version| version.begun == asked.begun);
            ours.expect("it was begun").ended = Some(self.step);
        }
    }

    /// A read that began at `begun` and ends now may return `value` unless that was overwritten:
    /// by a write that began after it had ended, and ended before the read began.
    fn allows(&self, sector: u64, value: u64, begun: u64) -> bool {
        let versions = &self.sectors[sector as usize];
        let is_gone = |version: &Version| {
            let Some(ended) = version.ended else { return false };
            let later = |other: &Version| {
                other.begun > ended && other.ended.is_some_and(|ended| ended < begun)
            };
            versions.iter().any(later)
        };
        versions.iter().any(|version| version.value == value && !is_gone(version))
    }
}

fn is_fua(operation: Operation) -> bool {
    matches!(operation, Operation::Write { fua: true } | Operation::WriteZeroes { fua: true })
}

/// What all words of a sector say.
fn value_of(bytes: &[u8]) -> Option<u64> {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().all(|word| *word == words[0]).then(|| u64::from_le_bytes(words[0]))
}

fn changes(operation: Operation) -> bool {
    !matches!(operation, Operation::Read | Operation::Flush | Operation::Extents)
}

struct Scene {
    driver: Driver,
    oracle: Oracle,
    random: Random,
    asked: HashMap<u64, Asked>,
    next_tag: u64,
    seed: u64,
    /// If the power may be cut.
    power: Option<CutHandle>,
}

impl Scene {
    fn new(seed: u64, acknowledge: Acknowledge) -> Scene {
        let store = MemoryStore::new(64 << 20);
        let open = || store.open().expect("nothing has it open");
        let options = CreateOptions { segment_size: Some(2 << 20), ..CreateOptions::default() };
        create(Box::new(open()), &options).expect("it fits");
        let random = Random::new(seed ^ 0xdead);
        let device = Shuffled { inner: open(), waiting: Vec::new(), random };
        // Few places, so that requests have to wait for them.
        let config = Config { request_count: 16, ..Config::default() };
        let driver = Driver::new(Box::new(device), config).and_then(Driver::recover);
        let mut driver = driver.unwrap_or_else(|error| panic!("{error}"));
        driver.acknowledge(acknowledge);
        let random = Random::new(seed);
        let (oracle, asked) = (Oracle::new(), HashMap::new());
        Scene { driver, oracle, random, asked, next_tag: 1, seed, power: None }
    }

    fn range(&mut self) -> (u64, u64) {
        let most = [3, 8, 40][self.random.below(3) as usize];
        let count = 1 + self.random.below(most);
        let first = self.random.below(SECTORS - count + 1);
        if self.random.below(2) == 0 { (first, count) } else { (first & !7, (count + 7) & !7) }
    }

    fn submit(&mut self, operation: Operation, first: u64, count: u64) {
        let count = count.min(SECTORS - first);
        let tag = self.next_tag;
        self.next_tag += 1;
        self.oracle.step += 1;
        let value = match operation {
            Operation::Write { .. } => tag,
            _ => 0,
        };
        let (begun, others) = (self.oracle.step, Vec::new());
        let asked = Asked { operation, first, count, begun, value, others };
        self.oracle.begin(&asked);
        self.asked.insert(tag, asked);
        let length = count * SECTOR as u64;
        let mut memory = Memory::empty();
        if matches!(operation, Operation::Read | Operation::Write { .. }) {
            let mut buffer = Buffer::zeroed(length as usize);
            for word in buffer.chunks_exact_mut(8) {
                word.copy_from_slice(&value.to_le_bytes());
            }
            memory = Memory::owned(buffer);
        }
        let (session, offset) = (SessionId(0), first * SECTOR as u64);
        // A read that tells what is mapped must read the same.
        let exact = tag.is_multiple_of(3) && matches!(operation, Operation::Read);
        let submission = Submission {
            session,
            tag,
            operation,
            exact,
            offset,
            length,
            memory,
            many: None,
            begun_ns: 0,
            is_held: false,
        };
        self.driver.accept(submission);
    }

    /// A write of several ranges of whole blocks, some of them discarded.
    fn submit_many(&mut self, fua: bool) {
        let tag = self.next_tag;
        let mut blocks: Vec<u64> = (0..SECTORS / 8).collect();
        let mut parts = Vec::new();
        for _ in 0..1 + self.random.below(6) {
            let block = blocks.swap_remove(self.random.below(blocks.len() as u64) as usize);
            let value = if self.random.below(4) == 0 { 0 } else { tag };
            parts.push((block * 8, 8, value));
        }
        let change = |(first, count, value): &(u64, u64, u64)| {
            let (offset, length) = (first * SECTOR as u64, count * SECTOR as u64);
            match value {
                0 => Change::Discard { offset, length },
                _ => Change::Write { offset, length },
            }
        };
        let changes: Vec<_> = parts.iter().map(change).collect();
        let written = parts.iter().filter(|(_, _, value)| *value > 0).count() as u64;
        let data = written * 8 * SECTOR as u64;
        let many = Many::new(&changes, data, 64 << 20).expect("the ranges are sound");
        self.next_tag += 1;
        self.oracle.step += 1;
        let (first, count, value) = parts.remove(0);
        let operation = Operation::Write { fua };
        let begun = self.oracle.step;
        let asked = Asked { operation, first, count, begun, value, others: parts };
        self.oracle.begin(&asked);
        self.asked.insert(tag, asked);
        let mut buffer = Buffer::zeroed(data as usize);
        for word in buffer.chunks_exact_mut(8) {
            word.copy_from_slice(&tag.to_le_bytes());
        }
        let (offset, length) = (many.hull().0 * 4096, data);
        self.driver.accept(Submission {
            session: SessionId(0),
            tag,
            operation,
            exact: false,
            offset,
            length,
            memory: Memory::owned(buffer),
            many: Some(Arc::new(many)),
            begun_ns: 0,
            is_held: false,
        });
    }

    fn submit_any(&mut self) {
        let (first, count) = self.range();
        let fua = self.random.below(8) == 0;
        match self.random.below(12) {
            10 | 11 => self.submit_many(fua),
            0 => self.submit(Operation::Flush, 0, 0),
            1 => self.submit(Operation::Discard, first, count),
            2 => self.submit(Operation::WriteZeroes { fua }, first, count),
            3..6 => self.submit(Operation::Read, first, count),
            _ => self.submit(Operation::Write { fua }, first, count),
        }
    }

    fn turn(&mut self, wait: Wait) {
        self.driver.work();
        for finished in std::mem::take(&mut self.driver.finished) {
            self.check(finished);
        }
        self.driver.poll_device(wait).expect("the device works");
    }

    fn check(&mut self, finished: Finished) {
        let completion = finished.completion;
        let asked = self.asked.remove(&completion.tag).expect("each is finished once");
        if self.power.as_ref().is_some_and(CutHandle::is_cut) && completion.result.is_err() {
            return;
        }
        assert_eq!(completion.result, Ok(()), "seed {}", self.seed);
        if changes(asked.operation) {
            self.oracle.end(&asked);
            return;
        }
        if asked.operation == Operation::Flush {
            self.oracle.assured = self.oracle.assured.max(asked.begun);
        }
        let sectors = completion.buffer.chunks_exact(SECTOR);
        for (sector, bytes) in (asked.first..).zip(sectors) {
            let seed = self.seed;
            let value = value_of(bytes).unwrap_or_else(|| panic!("seed {seed}: {sector} is torn"));
            let is_right = self.oracle.allows(sector, value, asked.begun);
            let versions = &self.oracle.sectors[sector as usize];
            assert!(is_right, "seed {seed}: sector {sector} reads {value}: {versions:?}");
        }
    }

    fn drain(&mut self) {
        while self.driver.job_count() > 0 {
            self.turn(Wait::No);
        }
        self.turn(Wait::No);
        assert!(self.asked.is_empty(), "seed {}: all are finished", self.seed);
    }
}

/// Many overlapping requests, then a look at everything.
fn run_overlapping(mut scene: Scene) -> RequestCounts {
    for _ in 0..400 {
        if scene.driver.job_count() < 48 && scene.random.below(3) > 0 {
            scene.submit_any();
        } else {
            scene.turn(Wait::No);
        }
    }
    scene.drain();
    scene.submit(Operation::Read, 0, SECTORS);
    scene.drain();
    scene.driver.counters.requests
}

#[test]
fn a_read_never_shows_what_was_overwritten_before_it_began() {
    let mut merged = 0;
    let mut blocked = 0;
    for seed in 0..150 {
        for acknowledge in [Acknowledge::Written, Acknowledge::Buffered] {
            let counts = run_overlapping(Scene::new(seed, acknowledge));
            (merged, blocked) = (merged + counts.merged, blocked + counts.blocked);
        }
    }
    assert!(merged > 5_000, "{merged} merges");
    assert!(blocked > 5_000, "{blocked} blocked");
}

#[test]
#[should_panic(expected = "reads")]
fn the_oracle_catches_merging_without_guards() {
    for seed in 0..20 {
        let mut scene = Scene::new(seed, Acknowledge::Written);
        scene.driver.conflicts.forgets_guards = true;
        run_overlapping(scene);
    }
}

#[test]
#[should_panic(expected = "reads")]
fn the_oracle_catches_reads_that_do_not_wait_for_what_was_answered_early() {
    forget_to_wait(Acknowledge::Buffered);
}

#[test]
#[should_panic(expected = "reads")]
fn the_oracle_catches_reads_that_do_not_wait_for_discards() {
    forget_to_wait(Acknowledge::Written);
}

fn forget_to_wait(acknowledge: Acknowledge) {
    for seed in 0..20 {
        let mut scene = Scene::new(seed, acknowledge);
        scene.driver.conflicts.forgets_waiters = true;
        run_overlapping(scene);
    }
}

#[test]
fn reads_overtake_writes_that_the_engine_cannot_take() {
    let mut scene = Scene::new(1, Acknowledge::Written);
    while scene.driver.engine.read_only().is_some() {
        scene.turn(Wait::No);
    }
    for block in 0..64 {
        scene.submit(Operation::Write { fua: false }, block % 24 * 8, 8);
    }
    assert!(!scene.driver.writes.is_empty(), "more writes than places");
    scene.submit(Operation::Read, 0, 8);
    assert!(scene.driver.prompt.is_empty(), "the read has a place");
    scene.drain();
}

#[test]
fn a_wide_write_is_not_kept_waiting_by_partial_ones_that_come_after_it() {
    for operation in [Operation::Discard, Operation::Write { fua: false }] {
        let mut scene = Scene::new(1, Acknowledge::Written);
        scene.submit(Operation::Write { fua: false }, 1, 1);
        let wide = scene.next_tag;
        scene.submit(operation, 0, 16);
        // One of the two blocks is guarded whenever the guard of the other is given up.
        for _ in 0..1000 {
            for sector in [1, 9] {
                let partial = |asked: &&Asked| asked.first == sector;
                let count = scene.asked.values().filter(partial).count();
                for _ in count..4 {
                    scene.submit(Operation::Write { fua: false }, sector, 1);
                }
            }
            scene.turn(Wait::No);
        }
        assert!(!scene.asked.contains_key(&wide), "{operation:?} waits for ever");
        scene.drain();
    }
}

#[test]
fn abandoning_finishes_every_request_whatever_its_stage() {
    for seed in 0..80 {
        let acknowledges = [Acknowledge::Written, Acknowledge::Buffered];
        let mut scene = Scene::new(seed, acknowledges[seed as usize % 2]);
        for _ in 0..scene.random.below(60) {
            scene.submit_any();
            if scene.random.below(4) == 0 {
                scene.turn(Wait::No);
            }
        }
        let mut asked = scene.asked;
        let already = scene.driver.finished.len();
        let finished = scene.driver.abandon(RequestError::Closed);
        for (index, finished) in finished.into_iter().enumerate() {
            let completion = finished.completion;
            let request = asked.remove(&completion.tag).expect("each is finished once");
            assert!(index < already || completion.result == Err(RequestError::Closed));
            let stores = request.parts().any(|(_, value)| value > 0);
            let is_write = matches!(request.operation, Operation::Write { .. });
            let has_memory = request.operation == Operation::Read || (is_write && stores);
            assert_eq!(has_memory, !completion.buffer.is_empty());
        }
        assert!(asked.is_empty(), "seed {seed}: none is forgotten");
    }
}

#[test]
fn the_same_seed_gives_the_same_commands() {
    /// A device that writes down what it is told.
    struct Noting(MemoryDevice, std::sync::Arc<std::sync::Mutex<Vec<(CommandKind, u64, u64)>>>);

    // SAFETY: what the inner device completes is handed on, once; nothing else touches the memory.
    unsafe impl Device for Noting {
        fn properties(&self) -> &Properties {
            self.0.properties()
        }
        unsafe fn register(&mut self, regions: &[Region]) -> io::Result<()> {
            // SAFETY: the caller's promises are the same.
            unsafe { self.0.register(regions) }
        }
        unsafe fn submit(&mut self, command: Command) {
            let mut notes = self.1.lock().expect("no panic");
            notes.push((command.kind, command.offset, command.length));
            drop(notes);
            // SAFETY: the caller's promises are the same.
            unsafe { self.0.submit(command) }
        }
        fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
            self.0.poll(out, wait)
        }
        fn arm(&mut self) -> io::Result<BorrowedFd<'_>> {
            self.0.arm()
        }
        fn waker(&self) -> Waker {
            self.0.waker()
        }
    }

    let store = MemoryStore::new(64 << 20);
    let options = CreateOptions { segment_size: Some(2 << 20), ..CreateOptions::default() };
    create(Box::new(store.open().expect("free")), &options).expect("it fits");
    let run = || {
        let copy = store.duplicate().expect("nothing has it open");
        let notes = std::sync::Arc::default();
        let device = Noting(copy.open().expect("free"), std::sync::Arc::clone(&notes));
        let driver = Driver::new(Box::new(device), Config::default()).and_then(Driver::recover);
        let driver = driver.unwrap_or_else(|error| panic!("{error}"));
        let (oracle, random) = (Oracle::new(), Random::new(3));
        let asked = HashMap::new();
        let mut scene = Scene { driver, oracle, random, asked, next_tag: 1, seed: 3, power: None };
        for _ in 0..300 {
            scene.submit_any();
            scene.turn(Wait::No);
        }
        scene.drain();
        drop(scene);
        std::sync::Arc::into_inner(notes).expect("the device is gone").into_inner().expect("whole")
    };
    let first = run();
    assert!(first.len() > 100);
    assert!(first == run());
}
