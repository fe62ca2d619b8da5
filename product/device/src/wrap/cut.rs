//! A device with a volatile cache, and a power cord to pull.
//!
//! Writes and discards go into the cache. A flush moves to the inner device what had completed
//! when it was submitted. When power is cut, the inner device is left with what a real disk might
//! be left with: for each sector of 512 bytes either what was durable, or what any unflushed
//! command wrote there, completed or not. Then everything fails with
//! [`Gone`](crate::DeviceErrorKind::Gone), until the device is dropped and the inner device's
//! content is opened again.
//!
//! A device that is dropped with its power on writes its cache out, as a disk does whose host
//! died.
//!
//! ```text
//! cache, by sector:   oldest … newest unflushed version     (what is read: the newest)
//! inner device:       what is durable                       (or this, if there is none)
//! ```
//!
//! It is a tool for tests: it copies every sector, and waits for the inner device.

use crate::aligned::AlignedMemory;
use crate::blocking;
use crate::command::{Command, CommandKind, Completion, Properties, Region, SECTOR_SIZE, Wait};
use crate::contract::Device;
use crate::device_error::{DeviceError, DeviceErrorKind};
use crate::revocation::Revocation;
use crate::wake::Waker;
use fastrand::Rng;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Sectors that are moved to the inner device at once, at the most.
const RUN_COUNT_MAX: usize = 512;

type SectorBytes = [u8; SECTOR_SIZE as usize];

/// What a command left in a sector. `None` stands for the zeros of a discard.
type Content = Option<Box<SectorBytes>>;

/// Which unflushed sectors survive a power cut.
#[non_exhaustive]
pub enum CutPolicy {
    /// None: all that was not flushed is lost.
    LoseAll,
    /// All: as if a flush had come just before.
    KeepAll,
    /// As the seed decides, which first decides how much survives, and whether sectors of one
    /// command survive each on its own or together.
    Seeded(u64),
    /// As the function decides: 0 for what is durable, n for what the n-th of the commands left.
    Choose(Box<dyn FnMut(&SectorChoice<'_>) -> usize + Send>),
}

/// A sector whose fate is to be decided.
#[derive(Clone, Copy, Debug)]
pub struct SectorChoice<'a> {
    /// Number of the sector on the device.
    pub sector: u64,
    /// The unflushed commands that wrote it, oldest first, numbered in order of execution.
    pub commands: &'a [u64],
}

impl std::fmt::Debug for CutPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CutPolicy::LoseAll => write!(f, "LoseAll"),
            CutPolicy::KeepAll => write!(f, "KeepAll"),
            CutPolicy::Seeded(seed) => write!(f, "Seeded({seed})"),
            CutPolicy::Choose(_) => write!(f, "Choose"),
        }
    }
}

impl CutPolicy {
    /// What is left of a sector.
    fn choose(&mut self, choice: &SectorChoice<'_>) -> usize {
        let count = choice.commands.len();
        let chosen = match self {
            CutPolicy::LoseAll => 0,
            CutPolicy::KeepAll => count,
            CutPolicy::Seeded(seed) => seeded(*seed, choice),
            CutPolicy::Choose(choose) => choose(choice),
        };
        assert!(chosen <= count, "a choice is one of those offered");
        chosen
    }
}

/// The last of the commands that the seed lets reach the medium.
fn seeded(seed: u64, choice: &SectorChoice<'_>) -> usize {
    let mut style = Rng::with_seed(seed);
    let millionths = [62_500, 500_000, 937_500][style.u64(..3) as usize];
    let is_by_command = style.bool();
    let reaches = |command: &u64| {
        let sector = if is_by_command { 0 } else { choice.sector + 1 };
        let draw = seed ^ command.rotate_left(40) ^ sector.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Rng::with_seed(draw).u32(..1_000_000) < millionths
    };
    choice.commands.iter().rposition(reaches).map_or(0, |index| index + 1)
}

/// A device with a volatile cache, and a power cord to pull.
#[derive(Debug)]
pub struct CutDevice<D: Device> {
    inner: D,
    properties: Properties,
    /// Unflushed versions of each sector, oldest first; never empty.
    cache: BTreeMap<u64, Vec<Version>>,
    /// Commands that were not executed yet; for each the [`CutDevice::completed`] of its time.
    queued: Vec<(Command, u64)>,
    done: Vec<Completion>,
    /// Number of the next command to be executed.
    next: u64,
    /// Commands below this number had completed for the caller.
    completed: u64,
    cord: Arc<Mutex<Cord>>,
    is_cut: bool,
}

#[derive(Clone, Debug)]
struct Version {
    command: u64,
    content: Content,
}

/// What the handle asks for.
#[derive(Debug, Default)]
struct Cord {
    /// Commands that may yet be submitted, and how the cut goes then.
    cut: Option<(u64, CutPolicy)>,
    is_cut: bool,
}

/// Pulls the cord, from any thread.
#[derive(Clone, Debug)]
pub struct CutHandle {
    cord: Arc<Mutex<Cord>>,
    waker: Waker,
}

impl CutHandle {
    /// Cuts the power at the device's next submit or poll.
    pub fn cut(&self, policy: CutPolicy) {
        lock(&self.cord).cut = Some((0, policy));
        self.waker.wake();
    }

    /// Cuts the power when so many more commands were submitted. The last of them may yet reach
    /// the medium, whole or in part.
    pub fn cut_after(&self, commands: u64, policy: CutPolicy) {
        lock(&self.cord).cut = Some((commands, policy));
        self.waker.wake();
    }

    /// Whether the power was cut.
    pub fn is_cut(&self) -> bool {
        lock(&self.cord).is_cut
    }
}

impl<D: Device> CutDevice<D> {
    /// Puts a volatile cache before `inner`.
    pub fn new(inner: D) -> (CutDevice<D>, CutHandle) {
        // It tears at sectors, whatever the device below does.
        let below = inner.properties().clone();
        let properties = Properties { volatile_cache: true, atomic_page: 0, ..below };
        let cord = Arc::<Mutex<Cord>>::default();
        let handle = CutHandle { cord: cord.clone(), waker: inner.waker() };
        let device = CutDevice {
            inner,
            properties,
            cache: BTreeMap::new(),
            queued: Vec::new(),
            done: Vec::new(),
            next: 0,
            completed: 0,
            cord,
            is_cut: false,
        };
        (device, handle)
    }

    /// Sectors that a power cut now might change.
    pub fn unflushed_sectors(&self) -> usize {
        self.cache.len()
    }

    /// Does what the handle asked for, if it is time.
    fn heed_cord(&mut self) {
        let mut cord = lock(&self.cord);
        if !matches!(cord.cut, Some((0, _))) {
            return;
        }
        let (_, policy) = cord.cut.take().expect("it was just seen");
        cord.is_cut = true;
        drop(cord);
        self.cut(policy);
    }

    /// Counts a command that was submitted against those that may yet be.
    fn count_submission(&mut self) {
        if let Some((left, _)) = &mut lock(&self.cord).cut {
            *left = left.saturating_sub(1);
        }
    }

    fn cut(&mut self, mut policy: CutPolicy) {
        // What was under way may have reached the cache, or the medium.
        for (command, _) in std::mem::take(&mut self.queued) {
            if command.kind.changes_content() {
                // SAFETY: the command has not completed yet.
                unsafe { self.remember(&command) };
            }
            let gone = Err(DeviceError::of(DeviceErrorKind::Gone));
            self.done.push(Completion { tag: command.tag, result: gone });
        }
        let mut survivors = Vec::new();
        for (sector, versions) in std::mem::take(&mut self.cache) {
            let commands: Vec<u64> = versions.iter().map(|version| version.command).collect();
            let chosen = policy.choose(&SectorChoice { sector, commands: &commands });
            if let Some(index) = chosen.checked_sub(1) {
                survivors.push((sector, versions[index].content.clone()));
            }
        }
        let stored = self.store(&survivors).and_then(|()| blocking::flush(&mut self.inner));
        stored.expect("the inner device takes what survives a power cut");
        self.is_cut = true;
    }

    /// Executes a command that was queued.
    ///
    /// # Safety
    /// As for [`Device::submit`], and the command has not completed.
    unsafe fn execute(&mut self, command: &Command, covered: u64) -> Result<(), DeviceError> {
        match command.kind {
            CommandKind::Read => {
                // SAFETY: the caller's promise.
                unsafe { blocking::perform(&mut self.inner, *command) }?;
                // SAFETY: the caller's promise.
                unsafe { self.patch(command) };
                Ok(())
            }
            CommandKind::Write | CommandKind::Discard => {
                // SAFETY: the caller's promise.
                unsafe { self.remember(command) };
                Ok(())
            }
            CommandKind::Flush => self.flush(covered),
            // The cache has room for every sector.
            CommandKind::Prepare => Ok(()),
        }
    }

    /// Puts what a write or discard leaves into the cache.
    ///
    /// # Safety
    /// As for [`Device::submit`], and the command has not completed.
    unsafe fn remember(&mut self, command: &Command) {
        let number = self.next;
        self.next += 1;
        for index in 0..command.length / SECTOR_SIZE {
            let content = (command.kind == CommandKind::Write).then(|| {
                let source = command.buffer.wrapping_add((index * SECTOR_SIZE) as usize);
                // SAFETY: the caller promises memory for the whole command.
                Box::new(unsafe { source.cast::<SectorBytes>().read() })
            });
            let sector = command.offset / SECTOR_SIZE + index;
            self.cache.entry(sector).or_default().push(Version { command: number, content });
        }
    }

    /// Puts the cache's newest versions over what the inner device gave to a read.
    ///
    /// # Safety
    /// As for [`Device::submit`], and the command has not completed.
    unsafe fn patch(&self, command: &Command) {
        let first = command.offset / SECTOR_SIZE;
        let end = first + command.length / SECTOR_SIZE;
        for (sector, versions) in self.cache.range(first..end) {
            let at = ((sector - first) * SECTOR_SIZE) as usize;
            let target = command.buffer.wrapping_add(at).cast::<SectorBytes>();
            let newest = versions.last().expect("a cached sector has a version");
            let bytes = newest.content.as_deref().unwrap_or(&[0; SECTOR_SIZE as usize]);
            // SAFETY: the caller promises memory for the whole command.
            unsafe { target.write(*bytes) };
        }
    }

    /// Makes durable what commands below `covered` wrote, and nothing else.
    fn flush(&mut self, covered: u64) -> Result<(), DeviceError> {
        let newest_covered = |versions: &[Version]| {
            versions.iter().rev().find(|version| version.command < covered).cloned()
        };
        let chosen: Vec<(u64, Content)> = self
            .cache
            .iter()
            .filter_map(|(sector, versions)| Some((*sector, newest_covered(versions)?.content)))
            .collect();
        self.store(&chosen)?;
        blocking::flush(&mut self.inner)?;
        self.cache.retain(|_, versions| {
            versions.retain(|version| version.command >= covered);
            !versions.is_empty()
        });
        Ok(())
    }

    /// Writes sectors, sorted by number, to the inner device.
    fn store(&mut self, sectors: &[(u64, Content)]) -> Result<(), DeviceError> {
        let mut rest = sectors;
        while let Some((first, _)) = rest.first() {
            let is_next =
                |(index, (sector, _)): (usize, &(u64, Content))| *sector == first + index as u64;
            let count = rest.iter().take(RUN_COUNT_MAX).enumerate().take_while(|is| is_next(*is));
            let (run, behind) = rest.split_at(count.count());
            self.store_run(*first, run)?;
            rest = behind;
        }
        Ok(())
    }

    /// Writes neighbouring sectors, and what the inner device's alignment adds around them.
    fn store_run(&mut self, first: u64, run: &[(u64, Content)]) -> Result<(), DeviceError> {
        let alignment = self.properties.alignment;
        let (start, end) = (first * SECTOR_SIZE, (first + run.len() as u64) * SECTOR_SIZE);
        let (outer_start, outer_end) = (start - start % alignment, end.next_multiple_of(alignment));
        let mut memory = AlignedMemory::zeroed((outer_end - outer_start) as usize);
        if (outer_start, outer_end) != (start, end) {
            blocking::read(&mut self.inner, outer_start, &mut memory)?;
        }
        let inside = &mut memory[(start - outer_start) as usize..(end - outer_start) as usize];
        for (target, (_, content)) in inside.chunks_mut(SECTOR_SIZE as usize).zip(run) {
            match content {
                Some(bytes) => target.copy_from_slice(&bytes[..]),
                None => target.fill(0),
            }
        }
        blocking::write(&mut self.inner, outer_start, &mut memory)
    }
}

// SAFETY: memory is touched within a poll, before the completion of its command is told.
unsafe impl<D: Device> Device for CutDevice<D> {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    unsafe fn register(&mut self, regions: &[Region]) -> io::Result<()> {
        // SAFETY: the caller's promises are the same.
        unsafe { self.inner.register(regions) }
    }

    unsafe fn submit(&mut self, command: Command) {
        self.heed_cord();
        let check = match self.is_cut {
            true => Err(DeviceError::of(DeviceErrorKind::Gone)),
            false => self.properties.check(&command),
        };
        match check {
            Ok(()) => self.queued.push((command, self.completed)),
            Err(error) => self.done.push(Completion { tag: command.tag, result: Err(error) }),
        }
        self.count_submission();
    }

    fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        self.heed_cord();
        for (command, covered) in std::mem::take(&mut self.queued) {
            // SAFETY: promised when the command was submitted; it has not completed yet.
            let result = unsafe { self.execute(&command, covered) };
            self.done.push(Completion { tag: command.tag, result });
        }
        if self.done.is_empty() {
            // The inner device has nothing to do: this only sleeps.
            self.inner.poll(out, wait)?;
            self.heed_cord();
        }
        self.completed = self.next;
        out.append(&mut self.done);
        Ok(())
    }

    fn arm(&mut self) -> io::Result<BorrowedFd<'_>> {
        if !self.queued.is_empty() || !self.done.is_empty() {
            self.inner.waker().wake();
        }
        self.inner.arm()
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn revocation(&self) -> Option<Revocation> {
        self.inner.revocation()
    }
}

impl<D: Device> Drop for CutDevice<D> {
    fn drop(&mut self) {
        self.heed_cord();
        if self.is_cut {
            return;
        }
        let newest: Vec<(u64, Content)> = std::mem::take(&mut self.cache)
            .into_iter()
            .filter_map(|(sector, mut versions)| Some((sector, versions.pop()?.content)))
            .collect();
        // An inner device that fails now loses data as a disk would; nobody is left to be told.
        let _ = self.store(&newest);
    }
}

fn lock(cord: &Mutex<Cord>) -> MutexGuard<'_, Cord> {
    cord.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryStore;
    use std::collections::BTreeSet;

    const SECTOR: usize = SECTOR_SIZE as usize;

    fn device(store: &MemoryStore) -> (CutDevice<impl Device>, CutHandle) {
        CutDevice::new(store.open().expect("nothing has it open"))
    }

    fn write(device: &mut impl Device, offset: u64, length: usize, byte: u8) {
        let mut memory = AlignedMemory::zeroed(length);
        memory.fill(byte);
        blocking::write(device, offset, &mut memory).expect("the power is on");
    }

    /// The first byte of each of the first sectors.
    fn sectors(store: &MemoryStore, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count * SECTOR];
        store.read_at(0, &mut bytes).expect("nothing has it open");
        for sector in bytes.chunks(SECTOR) {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is never torn");
        }
        bytes.iter().step_by(SECTOR).copied().collect()
    }

    #[test]
    fn what_was_flushed_survives_and_what_was_not_may_be_lost() {
        for alignment in [512, 4096] {
            let store = MemoryStore::new(1 << 20).with_alignment(alignment);
            let (mut device, handle) = device(&store);
            write(&mut device, 0, 4096, 1);
            blocking::flush(&mut device).expect("the power is on");
            write(&mut device, 0, 8192, 2);
            let mut memory = AlignedMemory::zeroed(8192);
            blocking::read(&mut device, 0, &mut memory).expect("the power is on");
            assert!(memory.iter().all(|byte| *byte == 2), "the cache is read");
            assert_eq!(device.unflushed_sectors(), 16);
            handle.cut(CutPolicy::LoseAll);
            let gone = DeviceError::of(DeviceErrorKind::Gone);
            assert_eq!(blocking::read(&mut device, 0, &mut memory), Err(gone));
            assert_eq!(blocking::flush(&mut device), Err(gone));
            assert!(handle.is_cut());
            drop(device);
            assert_eq!(sectors(&store, 9), [1, 1, 1, 1, 1, 1, 1, 1, 0]);
        }
    }

    #[test]
    fn a_flush_covers_only_what_had_completed_before_it_was_submitted() {
        let store = MemoryStore::new(1 << 20);
        let (mut device, handle) = device(&store);
        write(&mut device, 0, SECTOR, 1);
        let mut memory = AlignedMemory::zeroed(4096);
        memory.fill(2);
        let mut completions = Vec::new();
        // SAFETY: the completions are taken before `memory` is dropped.
        unsafe {
            device.submit(Command::write(1, 512, 512, memory.as_mut_pointer()));
            device.submit(Command::flush(2));
        }
        device.poll(&mut completions, Wait::Forever).expect("it can be polled");
        assert_eq!(completions.len(), 2);
        assert!(completions.iter().all(|completion| completion.result.is_ok()));
        handle.cut(CutPolicy::LoseAll);
        drop(device);
        assert_eq!(sectors(&store, 2), [1, 0]);
    }

    #[test]
    fn commands_in_flight_may_reach_the_medium_and_complete_with_an_error() {
        let store = MemoryStore::new(1 << 20);
        let (mut device, handle) = device(&store);
        handle.cut_after(2, CutPolicy::KeepAll);
        let mut memory = AlignedMemory::zeroed(4096);
        memory.fill(3);
        // SAFETY: the completions are taken before `memory` is dropped.
        unsafe {
            for tag in 0..3 {
                device.submit(Command::write(tag, tag * 512, 512, memory.as_mut_pointer()));
            }
        }
        let mut completions = Vec::new();
        device.poll(&mut completions, Wait::Forever).expect("it can be polled");
        let gone = Err(DeviceError::of(DeviceErrorKind::Gone));
        assert_eq!(completions.len(), 3);
        assert!(completions.iter().all(|completion| completion.result == gone));
        drop(device);
        assert_eq!(sectors(&store, 3), [3, 3, 0], "the third came after the cut");
    }

    #[test]
    fn each_sector_may_be_left_with_any_version() {
        // Two sectors, written by both of two commands: nine outcomes.
        let mut outcomes = BTreeSet::new();
        for number in 0..9 {
            let store = MemoryStore::new(1 << 20);
            let (mut device, handle) = device(&store);
            write(&mut device, 0, 2 * SECTOR, 1);
            write(&mut device, 0, 2 * SECTOR, 2);
            handle.cut(CutPolicy::Choose(Box::new(move |choice| {
                assert_eq!(choice.commands, [0, 1]);
                number / 3usize.pow(choice.sector as u32) % 3
            })));
            drop(device);
            outcomes.insert(sectors(&store, 2));
        }
        assert_eq!(outcomes.len(), 9);
    }

    #[test]
    fn seeds_lose_keep_and_tear_and_repeat_themselves() {
        let outcome = |seed| {
            let store = MemoryStore::new(1 << 20);
            let (mut device, handle) = device(&store);
            for command in 0..8 {
                write(&mut device, command * 4096, 4096, command as u8 + 1);
            }
            blocking::discard(&mut device, 0, 4096).expect("the power is on");
            handle.cut(CutPolicy::Seeded(seed));
            drop(device);
            sectors(&store, 64)
        };
        let outcomes: Vec<Vec<u8>> = (0..40).map(outcome).collect();
        assert_eq!(outcomes, (0..40).map(outcome).collect::<Vec<_>>(), "a seed is a run");
        let is_torn = |sectors: &Vec<u8>| {
            sectors.chunks(8).any(|write| write.iter().any(|byte| *byte != write[0]))
        };
        assert!(outcomes.iter().any(is_torn), "some tear");
        assert!(!outcomes.iter().all(is_torn), "some lose or keep commands whole");
        let different: BTreeSet<_> = outcomes.iter().collect();
        assert!(different.len() > 25, "seeds differ: {}", different.len());
    }

    #[test]
    fn without_a_cut_the_cache_is_written_out() {
        let store = MemoryStore::new(1 << 20);
        let (mut device, handle) = device(&store);
        write(&mut device, 0, 4096, 5);
        blocking::discard(&mut device, 512, 512).expect("the power is on");
        drop(device);
        assert!(!handle.is_cut());
        assert_eq!(sectors(&store, 3), [5, 0, 5]);
    }
}
