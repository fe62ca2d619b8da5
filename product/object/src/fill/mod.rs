//! A device whose content comes from a bucket while it is in use.
//!
//! It surrounds a *cache*: a local device of the volume's size. A chunk of the cache is *missing* until it was
//! fetched. A command waits for the chunks that it touches, and these are fetched first; all others are fetched
//! behind. It keeps the [contract](coulter_device::contract) of a device.
//!
//! # Contract
//! - A chunk is fetched as a whole and recorded as present, both durably, before a command changes it. So after
//!   a crash each chunk is either recorded, and holds what was written to it, or was never written, and is
//!   fetched again.
//! - An object that does not come stalls the commands that need it. One that is missing or damaged fails them,
//!   and so does a cache without space; the next command that needs the chunk fetches it again.
//! - The bucket's objects that `pieces` name are not deleted while their chunks are missing: whoever deletes them
//!   must have dropped their ranges, and a range is dropped only by a command that waits for its chunk.

mod fetcher;

use crate::bucket::Bucket;
use crate::history::ReplicaError;
use crate::layout::VolumeRecord;
use crate::pieces::PieceMap;
use crate::ship::device::CHUNK_SIZE;
use crate::ship::marks::Marks;
use coulter_device::{
    AlignedMemory, Command, CommandKind, Completion, Device, DeviceError, DeviceErrorKind,
    Properties, Region, Revocation, Wait, Waker,
};
use fetcher::{Fetched, Fetcher, Report};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of one command that writes what was fetched.
const WRITE_SIZE: u64 = 1 << 20;

/// Chunks that are recorded together if no command waits for one of them.
const RECORD_COUNT: usize = 16;

/// Time between two fetches, behind, of a chunk that could not be had.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// How the cache stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FillStatus {
    /// Bytes of objects that are still to be fetched; 0 once the cache is whole.
    pub missing_bytes: u64,
    /// Why the last chunk that could not be had was not, while one is missing for that.
    pub error: Option<String>,
}

/// A handle on a [`FillingDevice`], from any thread.
#[derive(Clone, Debug, Default)]
pub struct Fill(Arc<Mutex<FillStatus>>);

impl Fill {
    fn lock(&self) -> MutexGuard<'_, FillStatus> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it stands.
    pub fn status(&self) -> FillStatus {
        self.lock().clone()
    }
}

/// What a missing chunk waits for.
#[derive(Debug)]
enum Progress {
    /// It was asked for.
    Fetching,
    /// It is written to the cache: commands that are out, and whether one has failed.
    Writing { memory: AlignedMemory, left: usize, failure: Option<DeviceError> },
    /// It can be read. A flush, and then its record, are due.
    Filled,
    /// The flush is out, or its record is written.
    Recording,
    /// It could not be had; tried again at this time.
    Failed(Instant),
}

/// A command on its way in the cache.
#[derive(Debug)]
enum Flight {
    Host(u64),
    Fill(u64),
    /// Before these chunks are recorded.
    Flush(Vec<u64>),
}

/// See the [module](self).
pub struct FillingDevice<D: Device> {
    /// First, so that it is dropped before the memory that it writes from.
    inner: D,
    fetcher: Fetcher,
    pieces: PieceMap,
    /// Chunks that are not recorded as present.
    missing: BTreeSet<u64>,
    /// Those of them with which something is being done.
    progress: BTreeMap<u64, Progress>,
    /// Writes of fetched chunks that wait for room in the queue: chunk, range.
    parts: VecDeque<(u64, Range<u64>)>,
    held: VecDeque<Command>,
    flights: BTreeMap<u64, Flight>,
    next_tag: u64,
    fill_count: usize,
    is_flushing: bool,
    /// The cache has gone, as it said: nothing is fetched any more, and every command fails with this.
    gone: Option<DeviceError>,
    ready: Vec<Completion>,
    scratch: Vec<Completion>,
    fill: Fill,
}

impl<D: Device> FillingDevice<D> {
    /// Fills `inner` with `pieces` of the volume of `record`. `missing` has a mark for each chunk that is still
    /// missing; `is_whole` is called once none is, from another thread.
    ///
    /// # Errors
    /// [`ReplicaError::File`] when the marks cannot be kept, [`ReplicaError::Threads`].
    pub fn new(
        inner: D,
        bucket: Arc<dyn Bucket>,
        record: &VolumeRecord,
        pieces: PieceMap,
        mut missing: Marks,
        is_whole: Box<dyn FnOnce() + Send>,
    ) -> Result<(FillingDevice<D>, Fill), ReplicaError> {
        assert_eq!(inner.properties().size, record.device_size, "the cache has the volume's size");
        // What no object holds is zeros here as there.
        let (has, has_not): (Vec<u64>, Vec<u64>) =
            missing.iter().partition(|chunk| pieces.overlaps(&chunk_range(*chunk)));
        missing.clear(&has_not).and_then(|()| missing.sync()).map_err(ReplicaError::File)?;
        let missing_set: BTreeSet<u64> = has.into_iter().collect();
        let fetcher = Fetcher::start(
            bucket,
            record.clone(),
            pieces.clone(),
            (missing, is_whole, missing_set.is_empty()),
            inner.waker(),
        );
        let fetcher = fetcher.map_err(ReplicaError::Threads)?;
        let fill = Fill::default();
        let device = FillingDevice {
            ready: Vec::with_capacity(inner.properties().queue_depth),
            scratch: Vec::with_capacity(inner.properties().queue_depth),
            inner,
            fetcher,
            pieces,
            missing: missing_set,
            progress: BTreeMap::new(),
            parts: VecDeque::new(),
            held: VecDeque::new(),
            flights: BTreeMap::new(),
            next_tag: 0,
            fill_count: 0,
            is_flushing: false,
            gone: None,
            fill: fill.clone(),
        };
        device.tell(None);
        Ok((device, fill))
    }

    fn pass(&mut self, flight: Flight, command: Command) {
        let tag = self.next_tag;
        self.next_tag += 1;
        self.flights.insert(tag, flight);
        // SAFETY: the host's promises hold until its completion is given out; memory that is written from is
        // kept in `progress` until its commands have completed, and is dropped after `inner`.
        unsafe { self.inner.submit(Command { tag, ..command }) };
    }

    /// Whether a command need not wait for a chunk.
    fn may_pass(&self, command: &Command) -> bool {
        let range = command.offset..command.offset + command.length;
        self.missing.range(chunks_of(&range)).all(|chunk| {
            command.kind == CommandKind::Read
                && matches!(self.progress.get(chunk), Some(Progress::Filled | Progress::Recording))
        })
    }

    fn submit_or_hold(&mut self, command: Command) {
        let overlaps = |held: &Command| {
            held.offset < command.offset + command.length
                && command.offset < held.offset + held.length
        };
        if !self.held.iter().any(overlaps) && self.may_pass(&command) {
            self.pass(Flight::Host(command.tag), command);
            return;
        }
        let range = command.offset..command.offset + command.length;
        let wanted: Vec<u64> = self.missing.range(chunks_of(&range)).copied().collect();
        for chunk in wanted {
            if matches!(self.progress.get(&chunk), None | Some(Progress::Failed(_))) {
                self.progress.insert(chunk, Progress::Fetching);
                self.fetcher.fetch(chunk);
            } else {
                self.fetcher.hurry(chunk);
            }
        }
        self.held.push_back(command);
    }

    /// Passes what may pass of what is held, in order among those that overlap.
    fn release(&mut self) {
        let mut blocked: Vec<Range<u64>> = Vec::new();
        for command in std::mem::take(&mut self.held) {
            let range = command.offset..command.offset + command.length;
            let waits = blocked.iter().any(|one| one.start < range.end && range.start < one.end);
            if waits || !self.may_pass(&command) {
                blocked.push(range);
                self.held.push_back(command);
            } else {
                self.pass(Flight::Host(command.tag), command);
            }
        }
    }

    /// Fails what waits for a chunk.
    fn fail(&mut self, chunk: u64, error: DeviceError, why: String) {
        self.progress.insert(chunk, Progress::Failed(Instant::now() + AGAIN_AFTER));
        let chunks = chunk_range(chunk);
        for command in std::mem::take(&mut self.held) {
            if command.offset < chunks.end && chunks.start < command.offset + command.length {
                self.ready.push(Completion { tag: command.tag, result: Err(error) });
            } else {
                self.held.push_back(command);
            }
        }
        self.tell(Some(why));
    }

    fn take_report(&mut self, report: Report) {
        match report {
            Report::Fetched(chunk, Ok(Fetched { memory, ranges })) => {
                let mut left = 0;
                for range in ranges {
                    let mut start = range.start;
                    while start < range.end {
                        let end = range.end.min(start + WRITE_SIZE);
                        self.parts.push_back((chunk, start..end));
                        start = end;
                        left += 1;
                    }
                }
                assert!(left > 0, "a missing chunk has pieces");
                let writing = Progress::Writing { memory, left, failure: None };
                let before = self.progress.insert(chunk, writing);
                assert!(matches!(before, Some(Progress::Fetching)), "it was asked for once");
            }
            Report::Fetched(chunk, Err(error)) => {
                self.fail(chunk, DeviceError::of(DeviceErrorKind::Io), error.to_string());
            }
            Report::Ended(why) => {
                // What was recorded is whole; the rest is fetched after the next opening.
                self.tell(Some(why));
                self.note_gone(DeviceError::of(DeviceErrorKind::Gone));
            }
            Report::Recorded(chunks, Ok(())) => {
                for chunk in chunks {
                    let before = self.progress.remove(&chunk);
                    assert!(matches!(before, Some(Progress::Recording)), "it was filled before");
                    self.missing.remove(&chunk);
                }
                self.is_flushing = false;
                self.tell(None);
            }
            Report::Recorded(chunks, Err(error)) => {
                self.is_flushing = false;
                let device_error = DeviceError {
                    kind: DeviceErrorKind::Io,
                    errno: error.raw_os_error().unwrap_or(libc_eio()),
                };
                for chunk in chunks {
                    self.fail(chunk, device_error, format!("the record of the cache: {error}"));
                }
            }
        }
    }

    /// Does what can be done without waiting.
    fn step(&mut self) {
        while let Some(report) = self.fetcher.report() {
            self.take_report(report);
        }
        self.write_on();
        self.flush_filled();
        self.fetch_behind();
        self.release();
    }

    /// Writes what was fetched, with a part of the queue only: the host goes first.
    fn write_on(&mut self) {
        let room = (self.inner.properties().queue_depth / 4).max(1);
        while self.fill_count < room {
            let Some((chunk, range)) = self.parts.pop_front() else { return };
            let Some(Progress::Writing { memory, .. }) = self.progress.get_mut(&chunk) else {
                panic!("a chunk is written until all of it is there");
            };
            let offset = (range.start - chunk_range(chunk).start) as usize;
            let buffer = memory.as_mut_pointer().wrapping_add(offset);
            let command = Command::write(0, range.start, range.end - range.start, buffer);
            self.fill_count += 1;
            self.pass(Flight::Fill(chunk), command);
        }
    }

    /// Begins to record chunks that are filled, if a command waits for that or there are many of them.
    fn flush_filled(&mut self) {
        if self.is_flushing {
            return;
        }
        let is_filled = |(chunk, progress): (&u64, &Progress)| {
            matches!(progress, Progress::Filled).then_some(*chunk)
        };
        let filled: Vec<u64> = self.progress.iter().filter_map(is_filled).collect();
        let is_waited_for = |chunk: &u64| {
            let range = chunk_range(*chunk);
            let waits =
                |held: &Command| held.offset < range.end && range.start < held.offset + held.length;
            self.held.iter().any(waits)
        };
        let is_last = filled.len() == self.missing.len();
        let is_due = filled.len() >= RECORD_COUNT || is_last || filled.iter().any(is_waited_for);
        if filled.is_empty() || !is_due {
            return;
        }
        for chunk in &filled {
            self.progress.insert(*chunk, Progress::Recording);
        }
        self.is_flushing = true;
        self.pass(Flight::Flush(filled), Command::flush(0));
    }

    /// Notes that the cache has gone, and fails what waits for chunks: each command would have one fetched first,
    /// to fail then.
    fn note_gone(&mut self, error: DeviceError) {
        self.gone = Some(error);
        let held = std::mem::take(&mut self.held);
        let failed = held.into_iter().map(|held| Completion { tag: held.tag, result: Err(error) });
        self.ready.extend(failed);
    }

    /// Keeps the fetcher busy with the lowest chunks that are missing.
    fn fetch_behind(&mut self) {
        if self.gone.is_some() {
            return;
        }
        let busy = |progress: &&Progress| {
            matches!(progress, Progress::Fetching | Progress::Writing { .. })
        };
        let mut room = fetcher::BEHIND.saturating_sub(self.progress.values().filter(busy).count());
        if room == 0 {
            self.fetcher.set_alarm(None);
            return;
        }
        let now = Instant::now();
        let mut next = Vec::new();
        let mut again_at: Option<Instant> = None;
        for chunk in &self.missing {
            let is_due = match self.progress.get(chunk) {
                None => true,
                Some(Progress::Failed(again)) if *again > now => {
                    again_at = Some(again_at.map_or(*again, |at| at.min(*again)));
                    false
                }
                Some(Progress::Failed(_)) => true,
                Some(_) => false,
            };
            if is_due {
                next.push(*chunk);
                room -= 1;
                if room == 0 {
                    break;
                }
            }
        }
        for chunk in next {
            self.progress.insert(chunk, Progress::Fetching);
            self.fetcher.fetch(chunk);
        }
        // No command need come: what could not be had is asked for again by itself.
        if room > 0 {
            self.fetcher.set_alarm(again_at);
        }
    }

    fn take_completion(&mut self, completion: Completion) {
        if let Err(error) = completion.result
            && error.kind == DeviceErrorKind::Gone
        {
            self.note_gone(error);
        }
        let flight = self.flights.remove(&completion.tag);
        match flight.expect("a completion answers a command in flight") {
            Flight::Host(tag) => {
                self.ready.push(Completion { tag, result: completion.result });
            }
            Flight::Fill(chunk) => {
                self.fill_count -= 1;
                self.filled_part(chunk, completion.result);
            }
            Flight::Flush(chunks) => match completion.result {
                Ok(()) => self.fetcher.record(chunks),
                Err(error) => {
                    self.is_flushing = false;
                    for chunk in chunks {
                        self.fail(chunk, error, format!("the cache: {error}"));
                    }
                }
            },
        }
    }

    fn filled_part(&mut self, chunk: u64, result: Result<(), DeviceError>) {
        let progress = self.progress.get_mut(&chunk);
        let Some(Progress::Writing { left, failure, .. }) = progress else {
            panic!("a chunk is written until all of it is there");
        };
        *left -= 1;
        *failure = failure.or(result.err());
        if *left > 0 {
            return;
        }
        match *failure {
            None => {
                self.progress.insert(chunk, Progress::Filled);
            }
            Some(error) => self.fail(chunk, error, format!("the cache: {error}")),
        }
    }

    fn tell(&self, error: Option<String>) {
        let bytes = |chunk: &u64| -> u64 {
            let within = self.pieces.within(&chunk_range(*chunk));
            within.iter().map(|(_, piece)| u64::from(piece.length)).sum()
        };
        let has_failed =
            self.progress.values().any(|progress| matches!(progress, Progress::Failed(_)));
        let mut status = self.fill.lock();
        // Counted anew only where it is short: it is for people.
        status.missing_bytes = if self.missing.len() <= 1024 || status.missing_bytes == 0 {
            self.missing.iter().map(bytes).sum()
        } else {
            status.missing_bytes.min(self.missing.len() as u64 * u64::from(CHUNK_SIZE))
        };
        if error.is_some() || !has_failed {
            status.error = error;
        }
    }

    fn turn(&mut self, wait: Wait) -> io::Result<()> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let polled = self.inner.poll(&mut scratch, wait);
        for completion in scratch.drain(..) {
            self.take_completion(completion);
        }
        self.scratch = scratch;
        polled
    }
}

/// EIO.
fn libc_eio() -> i32 {
    5
}

fn chunk_range(chunk: u64) -> Range<u64> {
    let size = u64::from(CHUNK_SIZE);
    chunk * size..(chunk + 1) * size
}

fn chunks_of(range: &Range<u64>) -> Range<u64> {
    let size = u64::from(CHUNK_SIZE);
    range.start / size..range.end.div_ceil(size)
}

// SAFETY: what the cache completes for the host is handed on, once; the host's memory is touched by the cache
// alone.
unsafe impl<D: Device> Device for FillingDevice<D> {
    fn properties(&self) -> &Properties {
        self.inner.properties()
    }

    unsafe fn register(&mut self, regions: &[Region]) -> io::Result<()> {
        // SAFETY: the caller's promises are the same. What fills uses memory of its own, which need not be
        // registered.
        unsafe { self.inner.register(regions) }
    }

    unsafe fn submit(&mut self, command: Command) {
        if let Err(error) = self.inner.properties().check(&command) {
            self.ready.push(Completion { tag: command.tag, result: Err(error) });
            return;
        }
        if let Some(error) = self.gone {
            self.ready.push(Completion { tag: command.tag, result: Err(error) });
        } else if self.missing.is_empty() || command.kind == CommandKind::Flush {
            self.pass(Flight::Host(command.tag), command);
        } else {
            self.submit_or_hold(command);
        }
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
        self.inner.revocation()
    }
}

impl<D: Device + std::fmt::Debug> std::fmt::Debug for FillingDevice<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FillingDevice").field("inner", &self.inner).finish_non_exhaustive()
    }
}
