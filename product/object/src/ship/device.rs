//! A device that ships what is written to the device that it surrounds.
//!
//! It keeps the [contract](coulter_device::contract) of a device. What it adds:
//!
//! # Replication contract
//! - With [`Ack::Remote`] a flush is answered when the device has flushed *and* a commit of everything that
//!   had completed before its submission was created.
//! - A bucket that fails holds up commits and, with `Ack::Remote`, flushes; it fails nothing. When too much
//!   waits to be shipped, writers wait.
//! - When another host has taken the volume over, every command fails with `Gone`, reads too, and
//!   the [`Revocation`] tells a volume that it must not answer from memory either. This is looked
//!   for every [`look_every`](Settings::look_every), also of a host that ships nothing.
//! - What cannot be read back is shipped as zeros only if the device can still read its first block. A device that
//!   is gone ships nothing any more: the copy stays what it was.
//! - A chunk's mark is durable before the chunk changes ([`crate::ship::marks`]).
//! - If a thread that ships has ended by a panic, nothing is shipped any more; flushes with [`Ack::Remote`] fail.
//! - A drop ships what is left, for a while ([`LINGER`]).
//!
//! Written data stays in memory until it is sent ([`crate::ship::kept`]), or is read back.

mod flight;
mod gather;
mod held;
mod leaving;
mod marking;
mod opening;
mod replica;

pub use crate::ship::uploader::{Health, Worker};
use flight::{Flight, changed_range, flush_number, is_crossed};
use gather::{ReadBack, UNREADABLE_UNIT};
pub use marking::MarkingDevice;
pub use opening::{CHUNK_SIZE, Opening, adopt, begin};
use replica::Leaving;
pub use replica::{Replica, Status, Waiting};

use crate::history::ReplicaError;
use crate::history::takeover::Claim;
use crate::publish::Briefly;
use crate::ranges::RangeSet;
use crate::ship::kept::{self, Kept};
use crate::ship::shipper::{Ack, Action, JobId, Lag, Settings, Shipper};
use crate::ship::uploader::{Report, Uploader};
use coulter_device::{
    AlignedMemory, Command, CommandKind, Completion, Device, DeviceError, DeviceErrorKind,
    Properties, Region, Revocation, Wait, Waker,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// How long a drop waits for what is left to be shipped.
pub const LINGER: Duration = Duration::from_secs(30);

/// How long closing a volume waits for what is left to be shipped: with the threads that still ask
/// the bucket then, and the store's own end, it is over within [`LINGER`].
pub const LEAVE_AFTER: Duration = Duration::from_secs(23);

/// See the [module](self).
pub struct ShippedDevice<D: Device> {
    /// First, so that it is dropped before the memory that it reads into.
    inner: D,
    shipper: Shipper,
    uploader: Uploader,
    settings: Settings,
    start: Instant,
    flights: BTreeMap<u64, Flight>,
    next_tag: u64,
    /// What was written and need not be read back.
    kept: Kept,
    reads: BTreeMap<JobId, ReadBack>,
    /// Where the first block is read to; nobody looks at it.
    witness: AlignedMemory,
    /// Chunks that hold what could not be read: they stay marked.
    unreadable: BTreeSet<u64>,
    /// The device is gone, and nothing is shipped any more.
    has_stopped: bool,
    /// The volume is being closed while the bucket fails: nothing is shipped any more, and flushes are local.
    has_left: bool,
    /// Reads that wait for room in the queue.
    read_parts: VecDeque<(JobId, u64, Range<u64>)>,
    /// Commands that the shipper, or a mark, does not let pass yet.
    held: VecDeque<Command>,
    /// Flushes of the host that the shipper answers, by token.
    flushes: BTreeMap<u64, u64>,
    marked: BTreeSet<u64>,
    marking: BTreeSet<u64>,
    /// Marked chunks that have changed since a flush: how many flushes had been submitted when they did.
    /// Those that were marked at the opening count as changed before the first.
    written: BTreeMap<u64, u64>,
    /// Flushes that were submitted, and the last one of those that completed.
    flush_count: u64,
    flushed: u64,
    read_count: usize,
    told: Duration,
    told_idle: bool,
    told_waiting: bool,
    ready: Vec<Completion>,
    scratch: Vec<Completion>,
    replica: Replica,
    commits_at_last_clearing: u64,
    /// A thread that has ended, so that nothing is shipped any more.
    ended: Option<Worker>,
}

impl<D: Device> ShippedDevice<D> {
    /// Ships `inner` from now on, as the volume's only host.
    ///
    /// # Errors
    /// [`ReplicaError::Diverged`] if the local store is not what was shipped last.
    pub fn open(inner: D, opening: Opening) -> Result<(ShippedDevice<D>, Replica), ReplicaError> {
        let size = inner.properties().size;
        let mut opening = opening;
        let (claim, unsure) = begin(&mut opening, size, &Briefly)?;
        ShippedDevice::start(inner, opening, claim, unsure)
    }

    /// Ships `inner`, which was just restored to the state that `claim` found.
    ///
    /// # Errors
    /// [`ReplicaError::File`] when the marks cannot be kept.
    pub fn take_over(
        inner: D,
        mut opening: Opening,
        claim: Claim,
    ) -> Result<(ShippedDevice<D>, Replica), ReplicaError> {
        let size = inner.properties().size;
        assert_eq!(size, claim.record.device_size, "it was restored to this size");
        adopt(&mut opening.marks, &claim, size, false)?;
        ShippedDevice::start(inner, opening, claim, RangeSet::new())
    }

    /// Ships `inner`, of which `claim` is what it was shipped as, except for what `unsure` says may differ: what
    /// [`begin`] returns.
    ///
    /// # Errors
    /// [`ReplicaError::Threads`].
    pub fn start(
        inner: D,
        opening: Opening,
        claim: Claim,
        unsure: RangeSet,
    ) -> Result<(ShippedDevice<D>, Replica), ReplicaError> {
        let Opening { bucket, settings, marks, .. } = opening;
        let marked: BTreeSet<u64> = marks.iter().collect();
        let shipper = Shipper::new(settings, claim.record.volume, claim.history, unsure);
        let waker = inner.waker();
        let uploader =
            Uploader::start(bucket, claim.record, claim.tag, marks, &settings, waker.clone())
                .map_err(ReplicaError::Threads)?;
        let replica = Replica::new(uploader.outlook(), waker);
        let depth = inner.properties().queue_depth;
        let device = ShippedDevice {
            inner,
            shipper,
            uploader,
            settings,
            start: Instant::now(),
            flights: BTreeMap::new(),
            next_tag: 0,
            kept: Kept::new(settings.keep_max, kept::PAGE_SIZE),
            reads: BTreeMap::new(),
            witness: AlignedMemory::zeroed(UNREADABLE_UNIT as usize),
            unreadable: BTreeSet::new(),
            has_stopped: false,
            has_left: false,
            read_parts: VecDeque::new(),
            held: VecDeque::with_capacity(depth),
            flushes: BTreeMap::new(),
            written: marked.iter().map(|chunk| (*chunk, 0)).collect(),
            marked,
            marking: BTreeSet::new(),
            flush_count: 0,
            flushed: 0,
            read_count: 0,
            told: Duration::ZERO,
            told_idle: false,
            told_waiting: false,
            ready: Vec::with_capacity(depth),
            scratch: Vec::with_capacity(depth),
            replica: replica.clone(),
            commits_at_last_clearing: 0,
            ended: None,
        };
        Ok((device, replica))
    }

    /// Passes a command to the device within.
    fn pass(&mut self, flight: Flight, command: Command) {
        let tag = self.next_tag;
        self.next_tag += 1;
        self.flights.insert(tag, flight);
        // SAFETY: the host's promises hold until its completion is given out; memory that is read back
        // into is kept in `reads` until its command has completed, and is dropped after `inner`.
        unsafe { self.inner.submit(Command { tag, ..command }) };
    }

    /// Passes a command of the host, other than a flush.
    fn pass_host(&mut self, command: Command) {
        let is_crossed = is_crossed(&mut self.flights, &command);
        self.pass(Flight::Host { command, is_crossed }, command);
    }

    /// Passes what may pass of what is held, in order among those that overlap.
    fn release(&mut self) {
        let mut blocked: Vec<Range<u64>> = Vec::new();
        let mut index = 0;
        while index < self.held.len() {
            let command = self.held[index];
            let range = command.offset..command.offset + command.length;
            let waits = blocked.iter().any(|one| one.start < range.end && range.start < one.end);
            if waits || !self.may_pass(&range) {
                blocked.push(range);
                index += 1;
                continue;
            }
            self.held.remove(index);
            self.pass_host(command);
        }
    }

    /// True if a range may change now. Asks for marks that are missing.
    fn may_pass(&mut self, range: &Range<u64>) -> bool {
        if self.ships() && !self.shipper.admits(range) {
            return false;
        }
        let chunk_size = u64::from(CHUNK_SIZE);
        let chunks = range.start / chunk_size..range.end.div_ceil(chunk_size);
        let missing: Vec<u64> = chunks.filter(|chunk| !self.marked.contains(chunk)).collect();
        if missing.is_empty() {
            return true;
        }
        let new: Vec<u64> =
            missing.into_iter().filter(|chunk| self.marking.insert(*chunk)).collect();
        if !new.is_empty() {
            self.uploader.set_marks(new);
        }
        false
    }

    /// Without the thread that keeps the marks no chunk can be marked any more: what would change one fails.
    fn fail_unmarked(&mut self) {
        if self.ended != Some(Worker::Marks) {
            return;
        }
        let lost: Vec<u64> = self.marking.iter().copied().collect();
        for command in held::take_those_in(&mut self.held, &lost) {
            let result = Err(DeviceError::of(DeviceErrorKind::Gone));
            self.ready.push(Completion { tag: command.tag, result });
        }
    }

    /// Does what can be done without waiting.
    fn step(&mut self) {
        while let Some(report) = self.uploader.report() {
            self.take_report(report);
        }
        let mut shared = self.replica.lock();
        let (wants_commit, leaving) = (std::mem::take(&mut shared.wants_commit), shared.leaving);
        let (ack, pace) = (shared.ack.take(), shared.pace.take());
        drop(shared);
        if let Some(pace) = pace {
            self.settings = self.settings.at(pace);
            self.shipper.adjust(pace);
            self.kept.resize(pace.keep_max);
        }
        if let Some(ack) = ack {
            self.acknowledge(ack);
        }
        if wants_commit {
            self.shipper.ask_for_commit();
            // So that the next status is told anew.
            self.told = Duration::ZERO;
        }
        self.leave(leaving);
        let now = self.start.elapsed();
        while self.ships()
            && let Some(action) = self.shipper.poll(now)
        {
            self.perform(action);
        }
        self.read_on();
        if self.shipper.is_fenced() {
            self.uploader.revocation().revoke();
            self.fail_all();
        } else {
            self.release();
            self.fail_unmarked();
        }
        self.clear_marks();
        let due = self.shipper.due().filter(|_| self.ships());
        let due = due.map(|due| self.start + due);
        let until = match leaving {
            Leaving::Until(until) if self.ships() => Some(until.max(Instant::now() + LEAVE_EVERY)),
            Leaving::No | Leaving::Until(_) | Leaving::Stays => None,
        };
        self.uploader.set_alarm(due.into_iter().chain(until).min());
        self.tell(now);
    }

    fn take_report(&mut self, report: Report) {
        match report {
            Report::Created(_, true) | Report::Manifest(_) if !self.ships() => {}
            Report::Created(job, is_ours) => self.shipper.handle_created(job, is_ours),
            Report::Manifest(id) => self.shipper.handle_manifest(id),
            Report::Copied(bundle) => self.kept.give_back(bundle),
            Report::Fenced => self.shipper.fence(),
            Report::Ended(worker) => {
                self.ended.get_or_insert(worker);
                self.stop();
            }
            Report::Marked(chunks) => {
                for chunk in chunks {
                    self.marking.remove(&chunk);
                    self.marked.insert(chunk);
                }
            }
            Report::MarkFailed(chunks, errno) => {
                for chunk in &chunks {
                    self.marking.remove(chunk);
                }
                let failed = held::take_those_in(&mut self.held, &chunks);
                let error = DeviceError { kind: DeviceErrorKind::Io, errno };
                for command in failed {
                    self.ready.push(Completion { tag: command.tag, result: Err(error) });
                }
            }
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Read { job, ranges } => self.gather(job, &ranges),
            Action::Create { job, name, bytes } => self.uploader.create(job, name, bytes),
            Action::Manifest { id, manifest } => self.uploader.store_manifest(id, manifest),
            Action::Collect { horizon, sources } => self.uploader.collect(horizon, sources),
            Action::Flushed(token) => {
                let tag = self.flushes.remove(&token).expect("a flush is answered once");
                self.ready.push(Completion { tag, result: Ok(()) });
            }
        }
    }

    fn take_completion(&mut self, completion: Completion) {
        let flight = self.flights.remove(&completion.tag);
        match flight.expect("a completion answers a command in flight") {
            Flight::Host { command, is_crossed } => {
                self.host_completed(command, is_crossed, completion.result);
            }
            Flight::Flush(command, number) => {
                self.flush_completed(command, number, completion.result)
            }
            Flight::ReadBack(job, offset, range) => {
                self.read_count -= 1;
                self.read_back(job, offset, range, completion.result);
            }
            Flight::Witness(job, offset, range) => {
                self.witnessed(job, offset, range, completion.result);
            }
        }
    }

    fn host_completed(
        &mut self,
        command: Command,
        is_crossed: bool,
        result: Result<(), DeviceError>,
    ) {
        let range = command.offset..command.offset.saturating_add(command.length);
        match command.kind {
            CommandKind::Read => {}
            // A failed write leaves old or new: what is there now is what is shipped.
            CommandKind::Write => {
                self.has_changed(&range, Shipper::handle_written);
                self.keep(&command, result.is_ok() && !is_crossed);
            }
            // Whether the other came before or after it, nobody knows.
            CommandKind::Discard | CommandKind::Prepare if is_crossed => {
                self.has_changed(&range, Shipper::handle_written);
                self.kept.forget(&range);
            }
            CommandKind::Discard if result.is_ok() && self.inner.properties().discard => {
                self.has_changed(&range, Shipper::handle_discarded);
                self.kept.forget(&range);
            }
            // Nothing in it is needed: there it is zeros, here zeros or what it was.
            CommandKind::Prepare if result.is_ok() => {
                self.has_changed(&range, Shipper::handle_discarded);
                self.kept.forget(&range);
            }
            CommandKind::Discard | CommandKind::Prepare | CommandKind::Flush => {}
        }
        self.ready.push(Completion { tag: command.tag, result });
    }

    fn flush_completed(&mut self, command: Command, number: u64, result: Result<(), DeviceError>) {
        if result.is_ok() {
            self.flushed = self.flushed.max(number);
        }
        // The copy does not have what the device says is durable.
        let is_short = self.settings.ack == Ack::Remote && self.has_stopped;
        let result = if is_short { Err(DeviceError::of(DeviceErrorKind::Gone)) } else { result };
        // Of those that were submitted before the copy counted, or after it has ceased to, it is not asked.
        let is_asked = self.settings.ack == Ack::Remote && self.ships();
        if is_asked && self.flushes.contains_key(&number) {
            if result.is_ok() {
                self.shipper.handle_flushed(number);
                return;
            }
            self.shipper.handle_flush_failed(number);
        }
        self.flushes.remove(&number);
        self.ready.push(Completion { tag: command.tag, result });
    }

    fn has_changed(&mut self, range: &Range<u64>, handle: fn(&mut Shipper, Range<u64>)) {
        handle(&mut self.shipper, range.clone());
        let chunk_size = u64::from(CHUNK_SIZE);
        for chunk in range.start / chunk_size..range.end.div_ceil(chunk_size) {
            assert!(self.marked.contains(&chunk), "a chunk is marked before it changes");
            self.written.insert(chunk, self.flush_count);
        }
    }

    /// The device is gone. The copy stays what it was: zeros in place of what cannot be read would destroy it
    /// when it is needed. The marks stay, too, so that the next opening ships what is missing.
    fn stop(&mut self) {
        self.has_stopped = true;
        let gone = Err(DeviceError::of(DeviceErrorKind::Gone));
        self.answer_flushes(gone);
    }

    /// Whether anything is shipped still.
    fn ships(&self) -> bool {
        !self.has_stopped && !self.has_left
    }

    /// Another host has the volume: nothing is done any more.
    fn fail_all(&mut self) {
        let gone = Err(DeviceError::of(DeviceErrorKind::Gone));
        for command in self.held.drain(..) {
            self.ready.push(Completion { tag: command.tag, result: gone });
        }
        self.answer_flushes(gone);
    }

    /// Answers the flushes that wait for a commit.
    fn answer_flushes(&mut self, result: Result<(), DeviceError>) {
        // Flushes that the device within has still to answer come back from there.
        let waiting: BTreeSet<u64> = self.flights.values().filter_map(flush_number).collect();
        let ready = &mut self.ready;
        self.flushes.retain(|number, tag| {
            let waits = waiting.contains(number);
            if !waits {
                ready.push(Completion { tag: *tag, result });
            }
            waits
        });
    }

    /// Takes marks off chunks that are in a commit and were flushed since, after every few commits.
    fn clear_marks(&mut self) {
        let commits = self.shipper.counts().commits;
        if !self.ships() || commits < self.commits_at_last_clearing + CLEAR_EVERY {
            return;
        }
        self.commits_at_last_clearing = commits;
        let chunk_size = u64::from(CHUNK_SIZE);
        let flushed = self.flushed;
        let changing: RangeSet = self.flights.values().filter_map(changed_range).collect();
        let is_safe = |chunk: u64| {
            let range = chunk * chunk_size..(chunk + 1) * chunk_size;
            // A flush covers what had completed when it was submitted.
            let is_flushed = self.written.get(&chunk).is_none_or(|before| flushed > *before);
            let is_whole = !self.unreadable.contains(&chunk);
            is_flushed && is_whole && !self.shipper.is_behind(&range) && !changing.overlaps(&range)
        };
        let quiet: Vec<u64> = self.marked.iter().copied().filter(|chunk| is_safe(*chunk)).collect();
        for chunk in &quiet {
            self.marked.remove(chunk);
            self.written.remove(chunk);
        }
        if !quiet.is_empty() {
            self.uploader.clear_marks(quiet);
        }
    }

    /// Tells those who ask how it stands, not more often than anybody looks.
    fn tell(&mut self, now: Duration) {
        let is_final = self.shipper.is_fenced() || !self.ships();
        let is_idle = self.shipper.is_idle() && self.flights.is_empty() && self.held.is_empty();
        // Once it is idle, the device's thread may sleep for long: that is told at once.
        let rests = is_idle && !self.told_idle;
        let waits = !(self.flushes.is_empty() && self.held.is_empty());
        let rests = rests || waits != self.told_waiting;
        if now < self.told + TELL_EVERY && self.told != Duration::ZERO && !is_final && !rests {
            return;
        }
        (self.told, self.told_idle, self.told_waiting) = (now, is_idle, waits);
        let since = self.shipper.lag_since();
        let time = since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        let mut shared = self.replica.lock();
        shared.status = Status {
            lag: Lag { bytes: self.shipper.lag_bytes(), time },
            last: Some(self.shipper.last()),
            counts: self.shipper.counts(),
            health: Health::default(),
            is_fenced: self.shipper.is_fenced(),
            has_stopped: self.has_stopped,
            has_left: self.has_left,
            is_idle,
            ended: self.ended,
            ack: Some(self.settings.ack),
            waiting: Waiting { flushes: self.flushes.len(), writes: self.held.len() },
        };
    }

    /// Takes what the device within has completed.
    fn turn(&mut self, wait: Wait) -> io::Result<()> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let polled = self.inner.poll(&mut scratch, wait);
        for completion in scratch.drain(..) {
            self.take_completion(completion);
        }
        self.scratch = scratch;
        polled
    }

    /// Ships what is left.
    fn drain(&mut self) {
        let until = Instant::now() + LINGER;
        self.shipper.ask_for_commit();
        while !self.shipper.is_fenced() && self.ships() && Instant::now() < until {
            self.step();
            let is_done = self.shipper.is_idle() && self.flights.is_empty() && self.held.is_empty();
            if is_done || self.turn(Wait::For(Duration::from_millis(20))).is_err() {
                return;
            }
        }
    }
}

/// Time between two accounts of how it stands.
const TELL_EVERY: Duration = Duration::from_millis(5);

/// Time between two looks at a bucket that fails while the volume is being closed.
const LEAVE_EVERY: Duration = Duration::from_millis(100);

/// Commits between two looks at the marks.
const CLEAR_EVERY: u64 = 4;

// SAFETY: what the device within completes for the host is handed on, once, and flushes when the shipper
// says so; the host's memory is touched by the device within alone.
unsafe impl<D: Device> Device for ShippedDevice<D> {
    fn properties(&self) -> &Properties {
        self.inner.properties()
    }

    unsafe fn register(&mut self, regions: &[Region]) -> io::Result<()> {
        // SAFETY: the caller's promises are the same. What reads back uses memory of its own, which need
        // not be registered.
        unsafe { self.inner.register(regions) }
    }

    unsafe fn submit(&mut self, command: Command) {
        if self.shipper.is_fenced() {
            let result = Err(DeviceError::of(DeviceErrorKind::Gone));
            self.ready.push(Completion { tag: command.tag, result });
            return;
        }
        if let Err(error) = self.inner.properties().check(&command) {
            self.ready.push(Completion { tag: command.tag, result: Err(error) });
            return;
        }
        match command.kind {
            CommandKind::Write | CommandKind::Discard | CommandKind::Prepare => {
                let range = command.offset..command.offset + command.length;
                let overlaps = |held: &Command| {
                    held.offset < range.end && range.start < held.offset + held.length
                };
                if self.held.iter().any(overlaps) || !self.may_pass(&range) {
                    self.held.push_back(command);
                    return;
                }
            }
            CommandKind::Flush => {
                self.flush_count += 1;
                let number = self.flush_count;
                if self.settings.ack == Ack::Remote && self.ships() {
                    self.flushes.insert(number, command.tag);
                    self.shipper.handle_flush(number);
                }
                self.pass(Flight::Flush(command, number), command);
                return;
            }
            CommandKind::Read => {}
        }
        self.pass_host(command);
    }

    fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        self.step();
        let wait = if self.ready.is_empty() { wait } else { Wait::No };
        self.turn(wait)?;
        self.step();
        out.append(&mut self.ready);
        Ok(())
    }

    fn arm(&mut self) -> io::Result<BorrowedFd<'_>> {
        self.step();
        // What is read back would make the descriptor readable until somebody polls.
        self.turn(Wait::No)?;
        self.step();
        if !self.ready.is_empty() {
            self.inner.waker().wake();
        }
        self.inner.arm()
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn revocation(&self) -> Option<Revocation> {
        Some(self.uploader.revocation())
    }
}

impl<D: Device> Drop for ShippedDevice<D> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.drain();
        }
    }
}

impl<D: Device + std::fmt::Debug> std::fmt::Debug for ShippedDevice<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShippedDevice").field("inner", &self.inner).finish_non_exhaustive()
    }
}
