//! Fetches chunks on threads of its own, and records which are present.
//!
//! # Invariants
//! - Every object is compared with its checksum as a whole, so it is read as a whole. Those read last are kept:
//!   one object may hold parts of several chunks.
//! - A request is tried until it has an outcome or the fetcher ends: an outage stalls, it does not fail.
//! - Every report is followed by a wake.
//! - A fetch that panics is one that failed: its chunk is fetched again. If the thread that keeps the record ends by a
//!   panic, it says so.

use crate::bucket::{Bucket, BucketError, BucketErrorKind, GuardedBucket, words_of};
use crate::history::ReplicaError;
use crate::history::restore;
use crate::layout::VolumeRecord;
use crate::names::Source;
use crate::pieces::{Piece, PieceMap};
use crate::publish::{self, Patience};
use crate::ship::marks::Marks;
use coulter_device::{AlignedMemory, Waker};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use super::chunk_range;

/// Chunks that are fetched at once.
pub(super) const THREADS: usize = 8;

/// Of them, those that no command waits for: one that does finds a thread at once.
pub(super) const BEHIND: usize = 4;
const _: () = assert!(BEHIND < THREADS);

/// Commits of a chunk that are read at once: small ones leave hundreds in it.
const COMMITS_AT_ONCE: usize = 32;

/// Data objects of a chunk that are read at once. Each may take as much memory as the chunk.
const DATA_AT_ONCE: usize = 4;

/// Objects that are kept for the next chunk.
const KEPT: usize = 8;

/// What was fetched of a chunk.
#[derive(Debug)]
pub(super) struct Fetched {
    /// The chunk, zeros where no piece is.
    pub(super) memory: AlignedMemory,
    /// Where the pieces are, in bytes of the device.
    pub(super) ranges: Vec<Range<u64>>,
}

/// What has happened.
#[derive(Debug)]
pub(super) enum Report {
    Fetched(u64, Result<Fetched, ReplicaError>),
    Recorded(Vec<u64>, io::Result<()>),
    /// The record is not kept any more.
    Ended(String),
}

#[derive(Debug, Default)]
struct State {
    is_over: bool,
    /// When the device's thread wants to be woken.
    alarm: Option<Instant>,
    /// Chunks to fetch; commands wait for the first ones.
    wanted: VecDeque<u64>,
    kept: VecDeque<(Source, Arc<Vec<u8>>)>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    bucket: Arc<dyn Bucket>,
    record: VolumeRecord,
    pieces: PieceMap,
    waker: Waker,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fetch(&self, chunk: u64) -> Result<Fetched, ReplicaError> {
        let whole = chunk_range(chunk);
        let mut memory = AlignedMemory::zeroed((whole.end - whole.start) as usize);
        let mut pieces = self.pieces.within(&whole);
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (start, piece) in &pieces {
            let range = *start..start + u64::from(piece.length);
            match ranges.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => ranges.push(range),
            }
        }
        // What was written at random lies in many objects by turns. Each is read once for the chunk.
        pieces.sort_by_key(|(_, piece)| piece.source);
        let by_source: Vec<&[(u64, Piece)]> =
            pieces.chunk_by(|(_, a), (_, b)| a.source == b.source).collect();
        let is_data = |own: &&[(u64, Piece)]| matches!(own[0].1.source, Source::Data { .. });
        let (data, commits) = by_source.split_at(by_source.partition_point(is_data));
        for group in data.chunks(DATA_AT_ONCE).chain(commits.chunks(COMMITS_AT_ONCE)) {
            let sources: Vec<Source> = group.iter().map(|own| own[0].1.source).collect();
            for (own, payload) in group.iter().zip(self.payloads(&sources)?) {
                for (start, piece) in *own {
                    let from = piece.offset as usize;
                    let part = payload.get(from..from + piece.length as usize);
                    let part = part.ok_or_else(|| restore::too_short(piece.source))?;
                    let offset = (start - whole.start) as usize;
                    memory[offset..offset + part.len()].copy_from_slice(part);
                }
            }
        }
        Ok(Fetched { memory, ranges })
    }

    /// The payloads of objects, of which those that are not kept are asked for at once.
    fn payloads(&self, sources: &[Source]) -> Result<Vec<Arc<Vec<u8>>>, ReplicaError> {
        let found = |state: &State, source: Source| {
            let found = state.kept.iter().find(|(of, _)| *of == source);
            found.map(|(_, bytes)| bytes.clone())
        };
        let mut payloads: BTreeMap<Source, Arc<Vec<u8>>> = {
            let state = self.lock();
            let kept = |source: &Source| Some((*source, found(&state, *source)?));
            sources.iter().filter_map(kept).collect()
        };
        let missing: Vec<Source> =
            sources.iter().copied().filter(|source| !payloads.contains_key(source)).collect();
        let names: Vec<String> = missing.iter().map(|source| source.name()).collect();
        let objects = publish::read_all(&*self.bucket, &names, &Waiting(self))?;
        for (source, object) in missing.into_iter().zip(objects) {
            let volume = self.record.volume;
            let payload = restore::payload_of(&*self.bucket, volume, source, object)?;
            let payload = Arc::new(payload);
            payloads.insert(source, payload.clone());
            let mut state = self.lock();
            if state.kept.len() == KEPT {
                state.kept.pop_front();
            }
            state.kept.push_back((source, payload));
        }
        Ok(sources.iter().map(|source| payloads[source].clone()).collect())
    }
}

/// Tries for ever, later and later, until the fetcher ends.
struct Waiting<'a>(&'a Shared);

impl Patience for Waiting<'_> {
    fn wait(&self, tries: u32, error: &BucketError) -> bool {
        let pause = publish::pause(tries, error);
        let state = self.0.lock();
        let waits = |state: &mut State| !state.is_over;
        let waited = self.0.changed.wait_timeout_while(state, pause, waits);
        !waited.unwrap_or_else(PoisonError::into_inner).0.is_over
    }
}

/// See the [module](self).
pub(super) struct Fetcher {
    shared: Arc<Shared>,
    record: Option<Sender<Vec<u64>>>,
    reports: Receiver<Report>,
    threads: Vec<JoinHandle<()>>,
}

impl Fetcher {
    /// Starts its threads. The marks are of what is missing; `is_whole` is called when none is left.
    ///
    /// # Errors
    /// When the system starts no more threads.
    pub(super) fn start(
        bucket: Arc<dyn Bucket>,
        record: VolumeRecord,
        pieces: PieceMap,
        (marks, is_whole, is_whole_now): (Marks, Box<dyn FnOnce() + Send>, bool),
        waker: Waker,
    ) -> io::Result<Fetcher> {
        let bucket: Arc<dyn Bucket> = Arc::new(GuardedBucket::new(bucket));
        let state = Mutex::default();
        let changed = Condvar::new();
        let shared = Arc::new(Shared { state, changed, bucket, record, pieces, waker });
        let (report, reports) = channel();
        let (sender, work) = channel();
        let threads = Vec::new();
        // If a thread cannot be started, its drop ends those that were.
        let mut fetcher =
            Fetcher { shared: shared.clone(), record: Some(sender), reports, threads };
        if is_whole_now {
            is_whole();
            return Ok(fetcher);
        }
        for _ in 0..THREADS {
            let (shared, report) = (shared.clone(), report.clone());
            fetcher.spawn("coulter-fetch", move || fetch_chunks(&shared, &report))?;
        }
        let of_clock = shared.clone();
        fetcher.spawn("coulter-clock", move || ring_alarms(&of_clock))?;
        fetcher.spawn("coulter-fill", move || {
            let keep = || keep_record(marks, is_whole, &work, &shared, &report);
            if let Err(cause) = catch_unwind(AssertUnwindSafe(keep)) {
                let why = format!("the record of the cache: {}", words_of(&*cause));
                let _ = report.send(Report::Ended(why));
                shared.waker.wake();
            }
        })?;
        Ok(fetcher)
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
        self.threads.push(thread);
        Ok(())
    }

    /// Wakes the device's thread at `alarm`, if that is not `None`.
    pub(super) fn set_alarm(&self, alarm: Option<Instant>) {
        let mut state = self.shared.lock();
        if state.alarm != alarm {
            state.alarm = alarm;
            drop(state);
            self.shared.changed.notify_all();
        }
    }

    /// Asks for a chunk, behind those that were asked for.
    pub(super) fn fetch(&self, chunk: u64) {
        self.shared.lock().wanted.push_back(chunk);
        self.shared.changed.notify_all();
    }

    /// A command waits for a chunk that was asked for.
    pub(super) fn hurry(&self, chunk: u64) {
        let mut state = self.shared.lock();
        if let Some(index) = state.wanted.iter().position(|one| *one == chunk) {
            state.wanted.remove(index);
            state.wanted.push_front(chunk);
        }
    }

    /// Records chunks as present, durably.
    pub(super) fn record(&self, chunks: Vec<u64>) {
        let _ = self.record.as_ref().map(|record| record.send(chunks));
    }

    /// The next thing that has happened.
    pub(super) fn report(&self) -> Option<Report> {
        self.reports.try_recv().ok()
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
        drop(self.record.take());
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

fn fetch_chunks(shared: &Shared, report: &Sender<Report>) {
    loop {
        let chunk = {
            let waits = |state: &mut State| !state.is_over && state.wanted.is_empty();
            let state = shared.changed.wait_while(shared.lock(), waits);
            let mut state = state.unwrap_or_else(PoisonError::into_inner);
            if state.is_over {
                return;
            }
            state.wanted.pop_front().expect("one is wanted")
        };
        let fetched = catch_unwind(AssertUnwindSafe(|| shared.fetch(chunk)));
        let fetched = fetched.unwrap_or_else(|cause| {
            let message = format!("the fetch failed here: {}", words_of(&*cause));
            Err(BucketError::new(BucketErrorKind::Busy, message).into())
        });
        if shared.lock().is_over || report.send(Report::Fetched(chunk, fetched)).is_err() {
            return;
        }
        shared.waker.wake();
    }
}

fn ring_alarms(shared: &Shared) {
    let mut state = shared.lock();
    while !state.is_over {
        let now = Instant::now();
        state = match state.alarm {
            Some(alarm) if alarm <= now => {
                state.alarm = None;
                shared.waker.wake();
                state
            }
            Some(alarm) => {
                let waited = shared.changed.wait_timeout(state, alarm - now);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
        };
    }
}

fn keep_record(
    mut marks: Marks,
    is_whole: Box<dyn FnOnce() + Send>,
    work: &Receiver<Vec<u64>>,
    shared: &Shared,
    report: &Sender<Report>,
) {
    let mut is_whole = Some(is_whole);
    while let Ok(chunks) = work.recv() {
        let recorded = marks.clear(&chunks).and_then(|()| marks.sync());
        if recorded.is_ok()
            && marks.iter().next().is_none()
            && let Some(is_whole) = is_whole.take()
        {
            is_whole();
        }
        if report.send(Report::Recorded(chunks, recorded)).is_err() {
            return;
        }
        shared.waker.wake();
    }
}
