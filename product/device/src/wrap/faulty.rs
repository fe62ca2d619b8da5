//! A device that fails as it is told: the n-th command of a kind, at some rate by a seed, or in a
//! damaged range.
//!
//! Faults are matched in the order of submission, so the same commands meet the same faults.
//! For power cuts see [`CutDevice`](super::CutDevice).

use crate::command::{Command, CommandKind, Completion, Properties, Region, SECTOR_SIZE, Wait};
use crate::contract::Device;
use crate::device_error::{DeviceError, DeviceErrorKind};
use crate::revocation::Revocation;
use crate::slots::Slots;
use crate::wake::Waker;
use fastrand::Rng;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a fault does to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// It fails, and nothing was done.
    Fail {
        /// The operating system's error number.
        errno: i32,
    },
    /// It fails after its first sectors were done, as when a disk fills up in the middle.
    FailAfter {
        /// Sectors of 512 bytes, rounded down to the device's alignment.
        sectors: u64,
        /// The operating system's error number.
        errno: i32,
    },
    /// It fails as if the file had been truncated.
    Short,
    /// It succeeds, and nothing was done: a write that was lost, a flush that lies. A read leaves
    /// the memory as it was.
    Lose,
    /// It succeeds, at another place: `distance` bytes further on, if the device goes so far, or
    /// else so much before.
    Misdirect {
        /// A multiple of the alignment.
        distance: u64,
    },
    /// It succeeds, and some bytes of its memory (a read), or of what is stored (a write), are
    /// inverted.
    Corrupt {
        /// First byte, counted from the command's offset.
        start: u64,
        /// Bytes.
        length: u64,
    },
    /// It is done, but its completion is held back for so many polls.
    Delay {
        /// Calls of `poll`.
        polls: u32,
    },
    /// It fails, and so does every command after it: the device is gone.
    Vanish,
}

/// A fault: which commands it meets, and what it does to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Commands of this kind only, or of every kind.
    pub kind: Option<CommandKind>,
    /// Commands that touch these bytes only, if given. Flushes touch none.
    pub range: Option<Range<u64>>,
    /// Of those, the `nth` (the first is 1) since the fault was set up.
    pub nth: u64,
    /// And every one after it.
    pub repeats: bool,
    /// What happens to it.
    pub effect: Effect,
}

impl Fault {
    /// The `nth` command of a kind (the first is 1) fails with `errno`, once.
    pub fn fail_nth(kind: CommandKind, nth: u64, errno: i32) -> Fault {
        Fault::nth(kind, nth, Effect::Fail { errno })
    }

    /// The `nth` command of a kind (the first is 1) meets `effect`, once.
    pub fn nth(kind: CommandKind, nth: u64, effect: Effect) -> Fault {
        Fault { kind: Some(kind), range: None, nth, repeats: false, effect }
    }

    /// Every command of a kind meets `effect`.
    pub fn every(kind: CommandKind, effect: Effect) -> Fault {
        Fault { kind: Some(kind), range: None, nth: 1, repeats: true, effect }
    }

    fn meets(&self, command: &Command) -> bool {
        let kind_fits = self.kind.is_none_or(|kind| kind == command.kind);
        let range_fits = self.range.as_ref().is_none_or(|range| {
            command.kind != CommandKind::Flush
                && command.offset < range.end
                && range.start < command.offset.saturating_add(command.length)
        });
        kind_fits && range_fits
    }
}

/// How often commands fail by themselves, in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultRates {
    /// Reads that fail with `EIO`.
    pub read_fails: u32,
    /// Reads that give one wrong byte.
    pub read_corrupts: u32,
    /// Writes that fail with `EIO` after some of their sectors.
    pub write_fails: u32,
    /// Writes that are acknowledged and lost.
    pub write_loses: u32,
    /// Writes that land elsewhere.
    pub write_misdirects: u32,
    /// Flushes that fail with `EIO`.
    pub flush_fails: u32,
    /// Commands whose completion is held back for 1 to 16 polls.
    pub delays: u32,
}

/// A device that fails as it is told.
#[derive(Debug)]
pub struct FaultyDevice<D> {
    inner: D,
    plan: Arc<Mutex<Plan>>,
    flights: Slots<Flight>,
    /// Completions that wait: polls left, and what to give out.
    held: Vec<(u32, Completion)>,
    scratch: Vec<Completion>,
    has_vanished: bool,
}

/// Sets up faults, from any thread, while the device is at work.
#[derive(Clone, Debug)]
pub struct FaultHandle {
    plan: Arc<Mutex<Plan>>,
}

#[derive(Debug)]
struct Plan {
    /// Each with the number of commands that it has met.
    faults: Vec<(Fault, u64)>,
    /// Ranges that read back wrong until they are written.
    damaged: Vec<Range<u64>>,
    rates: FaultRates,
    random: Rng,
    injected: u64,
}

/// A command that the inner device has.
#[derive(Debug)]
struct Flight {
    command: Command,
    /// What it completes with, whatever the inner device says.
    failure: Option<DeviceError>,
    /// Bytes of the device to be inverted.
    corrupt: Option<Range<u64>>,
    delay: u32,
}

impl FaultHandle {
    /// Sets up a fault, after those that are there: the first that meets a command counts.
    pub fn add(&self, fault: Fault) {
        self.plan().faults.push((fault, 0));
    }

    /// Makes these bytes read back inverted until they are written.
    pub fn damage(&self, range: Range<u64>) {
        assert!(range.start < range.end, "there is something to damage");
        self.plan().damaged.push(range);
    }

    /// Commands fail by themselves from now on.
    pub fn set_rates(&self, rates: FaultRates) {
        self.plan().rates = rates;
    }

    /// Takes every fault back; what is damaged stays so.
    pub fn clear(&self) {
        let mut plan = self.plan();
        plan.faults.clear();
        plan.rates = FaultRates::default();
    }

    /// Faults that have met a command.
    pub fn injected(&self) -> u64 {
        self.plan().injected
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        lock(&self.plan)
    }
}

impl<D: Device> FaultyDevice<D> {
    /// A device without faults yet; `seed` decides those by rate.
    pub fn new(inner: D, seed: u64) -> (FaultyDevice<D>, FaultHandle) {
        let plan = Arc::new(Mutex::new(Plan {
            faults: Vec::new(),
            damaged: Vec::new(),
            rates: FaultRates::default(),
            random: Rng::with_seed(seed),
            injected: 0,
        }));
        let handle = FaultHandle { plan: plan.clone() };
        let device = FaultyDevice {
            inner,
            plan,
            flights: Slots::with_capacity(0),
            held: Vec::new(),
            scratch: Vec::new(),
            has_vanished: false,
        };
        (device, handle)
    }

    /// Ends a command that the inner device never saw.
    fn end(&mut self, command: &Command, result: Result<(), DeviceError>) {
        self.held.push((0, Completion { tag: command.tag, result }));
    }

    /// Hands a command, or what a fault made of it, to the inner device.
    ///
    /// # Safety
    /// As for [`Device::submit`].
    unsafe fn pass(&mut self, flight: Flight, changed: Command) {
        let tag = self.flights.insert(flight);
        // SAFETY: the caller's promise; what a fault made of a command uses no more memory.
        unsafe { self.inner.submit(Command { tag, ..changed }) };
    }

    /// # Safety
    /// As for [`Device::submit`].
    unsafe fn submit_with(&mut self, effect: Effect, command: Command) {
        let mut flight = Flight { command, failure: None, corrupt: None, delay: 0 };
        let mut changed = command;
        match effect {
            Effect::Fail { errno } => {
                return self.end(&command, Err(DeviceError::from_errno(errno)));
            }
            Effect::Short => {
                let kind = match command.kind {
                    CommandKind::Read => DeviceErrorKind::ShortRead,
                    _ => DeviceErrorKind::ShortWrite,
                };
                return self.end(&command, Err(DeviceError::of(kind)));
            }
            Effect::Vanish => {
                self.has_vanished = true;
                return self.end(&command, Err(DeviceError::of(DeviceErrorKind::Gone)));
            }
            Effect::Lose => return self.end(&command, Ok(())),
            Effect::FailAfter { sectors, errno } => {
                let alignment = self.inner.properties().alignment;
                let length = sectors.saturating_mul(SECTOR_SIZE).min(command.length);
                let length = length - length % alignment;
                let error = DeviceError::from_errno(errno);
                if length == 0 || command.kind == CommandKind::Flush {
                    return self.end(&command, Err(error));
                }
                changed.length = length;
                flight.failure = Some(error);
            }
            Effect::Misdirect { distance } => {
                let end = command.offset.saturating_add(command.length);
                let is_room = end.saturating_add(distance) <= self.inner.properties().size;
                changed.offset = match is_room {
                    true => command.offset + distance,
                    false => command.offset.saturating_sub(distance),
                };
            }
            Effect::Corrupt { start, length } => {
                let start = command.offset + start.min(command.length);
                let end = (start + length).min(command.offset + command.length);
                flight.corrupt = Some(start..end);
            }
            Effect::Delay { polls } => flight.delay = polls,
        }
        // SAFETY: the caller's promise.
        unsafe { self.pass(flight, changed) };
    }

    /// Takes what the inner device has completed and does what is left of the faults.
    fn take_completions(&mut self) {
        let mut plan = lock(&self.plan);
        for completion in self.scratch.drain(..) {
            let flight = self.flights.remove(completion.tag);
            let command = flight.command;
            let result = flight.failure.map_or(completion.result, Err);
            if result.is_ok() {
                match command.kind {
                    // SAFETY: the completion was not given out yet, so the memory is the device's.
                    CommandKind::Read => unsafe { plan.corrupt_read(&command, &flight.corrupt) },
                    CommandKind::Write => plan.corrupt_written(&command, flight.corrupt),
                    CommandKind::Discard => plan.corrupt_written(&command, None),
                    CommandKind::Flush | CommandKind::Prepare => {}
                }
            }
            self.held.push((flight.delay, Completion { tag: command.tag, result }));
        }
    }

    /// Gives out what has waited long enough, in order.
    fn release(&mut self, out: &mut Vec<Completion>) {
        self.held.retain_mut(|(polls, completion)| {
            if *polls == 0 {
                out.push(*completion);
                return false;
            }
            *polls -= 1;
            true
        });
    }
}

impl Plan {
    /// The effect that the next command meets, if any.
    fn effect_on(&mut self, command: &Command, properties: &Properties) -> Option<Effect> {
        let mut found = None;
        for (fault, met) in &mut self.faults {
            if fault.meets(command) {
                *met += 1;
                let is_its_turn = *met == fault.nth || fault.repeats && *met > fault.nth;
                if is_its_turn && found.is_none() {
                    found = Some(fault.effect);
                }
            }
        }
        let found = found.or_else(|| self.chance(command, properties));
        self.injected += u64::from(found.is_some());
        found
    }

    fn chance(&mut self, command: &Command, properties: &Properties) -> Option<Effect> {
        let (rates, random) = (self.rates, &mut self.random);
        let errno = libc::EIO;
        match command.kind {
            CommandKind::Read if happens(random, rates.read_fails) => Some(Effect::Fail { errno }),
            CommandKind::Read if happens(random, rates.read_corrupts) => {
                Some(Effect::Corrupt { start: random.u64(..command.length), length: 1 })
            }
            CommandKind::Write if happens(random, rates.write_fails) => {
                let sectors = random.u64(..=command.length / SECTOR_SIZE);
                Some(Effect::FailAfter { sectors, errno })
            }
            CommandKind::Write if happens(random, rates.write_loses) => Some(Effect::Lose),
            CommandKind::Write if happens(random, rates.write_misdirects) => {
                let distance = random.u64(1..=64) * properties.alignment;
                Some(Effect::Misdirect { distance })
            }
            CommandKind::Flush if happens(random, rates.flush_fails) => {
                Some(Effect::Fail { errno })
            }
            _ if happens(random, rates.delays) => Some(Effect::Delay { polls: random.u32(1..=16) }),
            _ => None,
        }
    }

    /// Inverts what a read was given from damaged ranges.
    ///
    /// # Safety
    /// The command's memory is valid and nobody else uses it.
    unsafe fn corrupt_read(&self, command: &Command, corrupt: &Option<Range<u64>>) {
        for range in self.damaged.iter().chain(corrupt) {
            let start = range.start.max(command.offset);
            let end = range.end.min(command.offset + command.length);
            for at in start..end {
                // SAFETY: the caller's promise, and `at` lies inside the command's range.
                unsafe { *command.buffer.wrapping_add((at - command.offset) as usize) ^= 0xff };
            }
        }
    }

    /// What was written is whole again, save what a fault corrupts.
    fn corrupt_written(&mut self, command: &Command, corrupt: Option<Range<u64>>) {
        let (start, end) = (command.offset, command.offset + command.length);
        let damaged = std::mem::take(&mut self.damaged);
        for range in damaged {
            for rest in [range.start..range.end.min(start), range.start.max(end)..range.end] {
                if rest.start < rest.end {
                    self.damaged.push(rest);
                }
            }
        }
        self.damaged.extend(corrupt.filter(|range| range.start < range.end));
    }
}

// SAFETY: a command is ended when all that the inner device got of it has completed; it touches memory
// within a submission or a poll only.
unsafe impl<D: Device> Device for FaultyDevice<D> {
    fn properties(&self) -> &Properties {
        self.inner.properties()
    }

    unsafe fn register(&mut self, regions: &[Region]) -> io::Result<()> {
        // SAFETY: the caller's promises are the same.
        unsafe { self.inner.register(regions) }
    }

    unsafe fn submit(&mut self, command: Command) {
        if let Err(error) = self.inner.properties().check(&command) {
            return self.end(&command, Err(error));
        }
        if self.has_vanished {
            return self.end(&command, Err(DeviceError::of(DeviceErrorKind::Gone)));
        }
        let effect = lock(&self.plan).effect_on(&command, self.inner.properties());
        // SAFETY: the caller's promises are the same.
        unsafe {
            match effect {
                Some(effect) => self.submit_with(effect, command),
                None => self.submit_with(Effect::Delay { polls: 0 }, command),
            }
        }
    }

    fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        let wait = if self.held.is_empty() { wait } else { Wait::No };
        self.inner.poll(&mut self.scratch, wait)?;
        self.take_completions();
        self.release(out);
        Ok(())
    }

    fn arm(&mut self) -> io::Result<BorrowedFd<'_>> {
        if !self.held.is_empty() {
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

fn lock(plan: &Mutex<Plan>) -> MutexGuard<'_, Plan> {
    plan.lock().unwrap_or_else(PoisonError::into_inner)
}

/// True `millionths` times in a million.
fn happens(random: &mut Rng, millionths: u32) -> bool {
    random.u32(..1_000_000) < millionths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aligned::AlignedMemory;
    use crate::blocking;
    use crate::memory::MemoryStore;

    const EIO: i32 = libc::EIO;

    fn device() -> (FaultyDevice<impl Device>, FaultHandle, MemoryStore) {
        let store = MemoryStore::new(1 << 20);
        let (device, handle) = FaultyDevice::new(store.open().expect("nothing has it open"), 7);
        (device, handle, store)
    }

    fn write(device: &mut impl Device, offset: u64, byte: u8) -> Result<(), DeviceError> {
        let mut memory = AlignedMemory::zeroed(4096);
        memory.fill(byte);
        blocking::write(device, offset, &mut memory)
    }

    /// The bytes of the first two blocks, as runs of equal bytes: byte, length.
    fn runs(device: &mut impl Device) -> Vec<(u8, usize)> {
        let mut memory = AlignedMemory::zeroed(8192);
        blocking::read(device, 0, &mut memory).expect("no fault was set up for reads");
        memory.chunk_by(|one, other| one == other).map(|run| (run[0], run.len())).collect()
    }

    #[test]
    fn the_nth_command_of_a_kind_fails_and_only_that() {
        let (mut device, handle, _) = device();
        handle.add(Fault::fail_nth(CommandKind::Write, 2, libc::ENOSPC));
        let mut memory = AlignedMemory::zeroed(4096);
        assert_eq!(write(&mut device, 0, 1), Ok(()));
        assert_eq!(blocking::read(&mut device, 0, &mut memory), Ok(()));
        let error = write(&mut device, 0, 2).expect_err("the second write");
        assert_eq!(error, DeviceError::from_errno(libc::ENOSPC));
        assert_eq!(handle.injected(), 1);
        assert_eq!(runs(&mut device), [(1, 4096), (0, 4096)]);
        assert_eq!(write(&mut device, 0, 3), Ok(()));
    }

    #[test]
    fn a_repeated_fault_in_a_range_meets_only_what_touches_it() {
        let (mut device, handle, _) = device();
        let effect = Effect::Fail { errno: EIO };
        let range = Some(4096..4097);
        handle.add(Fault { kind: None, range, nth: 2, repeats: true, effect });
        assert_eq!(write(&mut device, 4096, 1), Ok(()), "the first that touches it");
        assert_eq!(write(&mut device, 0, 1), Ok(()));
        assert!(write(&mut device, 4096, 2).is_err());
        assert!(blocking::discard(&mut device, 0, 8192).is_err());
        assert_eq!(blocking::flush(&mut device), Ok(()));
        handle.clear();
        assert_eq!(runs(&mut device), [(1, 8192)]);
    }

    #[test]
    fn a_write_may_fail_in_the_middle_be_lost_or_go_astray() {
        let (mut device, handle, _) = device();
        let effect = Effect::FailAfter { sectors: 3, errno: EIO };
        handle.add(Fault::nth(CommandKind::Write, 1, effect));
        handle.add(Fault::nth(CommandKind::Write, 2, Effect::Lose));
        handle.add(Fault::nth(CommandKind::Write, 3, Effect::Misdirect { distance: 2048 }));
        assert!(write(&mut device, 0, 1).is_err());
        assert_eq!(runs(&mut device), [(1, 1536), (0, 6656)]);
        assert_eq!(write(&mut device, 0, 2), Ok(()));
        assert_eq!(runs(&mut device), [(1, 1536), (0, 6656)]);
        assert_eq!(write(&mut device, 0, 3), Ok(()));
        assert_eq!(runs(&mut device), [(1, 1536), (0, 512), (3, 4096), (0, 2048)]);
        assert_eq!(handle.injected(), 3);
    }

    #[test]
    fn a_read_may_be_short_or_wrong_once() {
        let (mut device, handle, _) = device();
        let mut memory = AlignedMemory::zeroed(4096);
        handle.add(Fault::nth(CommandKind::Read, 1, Effect::Short));
        handle.add(Fault::nth(CommandKind::Read, 2, Effect::Corrupt { start: 10, length: 3 }));
        let short = DeviceError::of(DeviceErrorKind::ShortRead);
        assert_eq!(blocking::read(&mut device, 0, &mut memory), Err(short));
        assert_eq!(runs(&mut device), [(0, 10), (0xff, 3), (0, 8179)]);
        assert_eq!(runs(&mut device), [(0, 8192)]);
    }

    #[test]
    fn damage_stays_until_it_is_written_over() {
        let (mut device, handle, _) = device();
        handle.damage(4000..5000);
        assert_eq!(runs(&mut device), [(0, 4000), (0xff, 1000), (0, 3192)]);
        assert_eq!(runs(&mut device), [(0, 4000), (0xff, 1000), (0, 3192)]);
        assert_eq!(write(&mut device, 0, 1), Ok(()));
        assert_eq!(runs(&mut device), [(1, 4096), (0xff, 904), (0, 3192)]);
        handle.add(Fault::nth(CommandKind::Write, 1, Effect::Corrupt { start: 0, length: 1 }));
        assert_eq!(write(&mut device, 4096, 2), Ok(()));
        assert_eq!(runs(&mut device), [(1, 4096), (0xfd, 1), (2, 4095)]);
    }

    #[test]
    fn a_delayed_completion_comes_after_so_many_polls() {
        let (mut device, handle, _) = device();
        handle.add(Fault::nth(CommandKind::Flush, 1, Effect::Delay { polls: 2 }));
        let mut completions = Vec::new();
        // SAFETY: flushes use no memory.
        unsafe {
            device.submit(Command::flush(1));
            device.submit(Command::flush(2));
        }
        let tags: Vec<Vec<u64>> = (0..3)
            .map(|_| {
                device.poll(&mut completions, Wait::Forever).expect("it can be polled");
                completions.drain(..).map(|completion| completion.tag).collect()
            })
            .collect();
        assert_eq!(tags, [vec![2], vec![], vec![1]]);
    }

    #[test]
    fn a_vanished_device_fails_for_good() {
        let (mut device, handle, _) = device();
        handle.add(Fault::nth(CommandKind::Write, 1, Effect::Vanish));
        assert_eq!(blocking::flush(&mut device), Ok(()));
        let gone = Err(DeviceError::of(DeviceErrorKind::Gone));
        assert_eq!(write(&mut device, 0, 1), gone);
        assert_eq!(blocking::flush(&mut device), gone);
    }

    #[test]
    fn faults_by_rate_are_the_same_for_the_same_seed() {
        let run = || {
            let (mut device, handle, store) = device();
            handle.set_rates(FaultRates {
                write_fails: 100_000,
                write_loses: 100_000,
                write_misdirects: 100_000,
                delays: 100_000,
                ..FaultRates::default()
            });
            let outcomes: Vec<bool> =
                (0..200).map(|n| write(&mut device, n % 64 * 4096, n as u8).is_ok()).collect();
            drop(device);
            let mut content = vec![0; 1 << 20];
            store.read_at(0, &mut content).expect("nothing has it open");
            (outcomes, content, handle.injected())
        };
        let (outcomes, content, injected) = run();
        assert_eq!((outcomes, content, injected), run());
        assert!((20..160).contains(&injected), "{injected} of 200");
    }
}
