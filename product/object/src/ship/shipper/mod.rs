//! Decides what is read back from the device, what goes into which object, and when a flush is answered.
//!
//! It does no I/O and reads no clock: a driver tells it what happens to the device and takes
//! [`Action`]s out. So the same machine runs around a device and in a simulator.
//!
//! # The one idea
//! A store recovers from every state that a power cut can leave. "All writes that had completed by some
//! instant" is such a state. A *commit* is one object that makes the remote copy this state at once.
//!
//! # How a commit comes about
//! - *Capture*: ranges that were written are read back and stored as data objects, before any commit.
//!   What is written again after its capture began is captured again; the older bytes do not count.
//! - *Cut*: at one instant everything that has changed since the last cut is frozen. Captures that are
//!   under way or stored are counted as far as they are still current; the rest is captured now, and a
//!   remainder is carried by the commit itself.
//! - *Put*: when all of it is stored, the commit is created under its name. Then it counts.
//!
//! # Invariants
//! - What a commit says of a range was on the device at its cut, or was being written there at its cut.
//!   So a write or discard over a range that is frozen and not yet read back waits ([`Shipper::admits`]).
//! - Commits are created one at a time, in order. A flush is answered from remote only when a commit that
//!   was cut after its submission has been created, or when nothing had changed.
//! - An object is given to the collector only when a manifest that does not name it is durable.
//! - After a fence was met nothing is answered any more.

mod capture;
mod changes;
mod pending;
mod settings;

pub use settings::{Ack, Lag, Pace, Settings};

use crate::history::History;
use crate::layout::commit::{Content, Inline};
use crate::layout::{Commit, Entry, Manifest, VolumeId, checksum, data, nonce};
use crate::names::{CommitId, ManifestId, Source};
use crate::pieces::{Piece, PieceMap};
use crate::ranges::RangeSet;
use capture::{Capture, Progress};
use pending::Pending;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

/// Bytes of zeros in a row that are not worth storing.
pub(crate) const ZERO_ROW: usize = 64 << 10;

/// Names a piece of work that the driver does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Read these ranges of the device, one behind the other; then [`Shipper::handle_read`]. Who has their bytes in
    /// memory, as they are now, reads nothing: [`Shipper::handle_kept`].
    Read {
        /// The work.
        job: JobId,
        /// The ranges.
        ranges: Vec<Range<u64>>,
    },
    /// Create an object; then [`Shipper::handle_created`].
    Create {
        /// The work.
        job: JobId,
        /// Its name.
        name: String,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// Store a manifest and name it in the volume's record; then [`Shipper::handle_manifest`].
    Manifest {
        /// What it is called.
        id: ManifestId,
        /// What it says.
        manifest: Box<Manifest>,
    },
    /// Delete objects, save those that a snapshot needs; nothing need be reported.
    Collect {
        /// Nothing before this commit is needed any more but by snapshots.
        horizon: CommitId,
        /// The objects.
        sources: Vec<Source>,
    },
    /// Answer a flush.
    Flushed(u64),
}

/// Counters, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Commits created by this opening.
    pub commits: u64,
    /// Bytes that hosts' writes have put on the device.
    pub written_bytes: u64,
    /// Bytes of data objects and commits that were created.
    pub shipped_bytes: u64,
    /// Bytes that the device could not read back, and that were shipped as zeros.
    pub unreadable_bytes: u64,
    /// Objects that nothing needs, waiting for a manifest.
    pub garbage: u64,
}

/// A flush that has not been answered.
#[derive(Clone, Copy, Debug)]
struct Flush {
    token: u64,
    /// The cut that must be durable elsewhere.
    cut: u64,
    is_local: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Shipper {
    settings: Settings,
    volume: VolumeId,
    /// What the remote copy is, as far as it was told.
    pieces: PieceMap,
    last: CommitId,
    last_checksum: u32,
    commits_since_manifest: u64,
    is_writing_manifest: Option<ManifestId>,
    garbage: Vec<(CommitId, Source)>,
    data_count: u64,
    job_count: u64,
    /// Completed writes that no capture holds.
    dirty: RangeSet,
    /// Completed discards since the last cut.
    zeroed: RangeSet,
    /// What captures hold that is still current and that no cut has counted.
    staged: PieceMap,
    /// Objects that are not there yet.
    captures: BTreeMap<JobId, Capture>,
    pending: Option<Pending>,
    /// Cuts made so far, and the last one that is durable elsewhere.
    cut: u64,
    durable_cut: u64,
    last_cut_at: Duration,
    /// Something was completed since the last cut.
    has_changed: bool,
    wants_cut: bool,
    /// Everything that was on the device when the shipper began has been shipped once.
    is_seeded: bool,
    flushes: VecDeque<Flush>,
    is_fenced: bool,
    counts: Counts,
    actions: VecDeque<Action>,
}

impl Shipper {
    /// Ships behind `history`, as its epoch's only host. `unsure` is what may differ from it: all of the
    /// device for a new replica.
    pub fn new(
        settings: Settings,
        volume: VolumeId,
        history: History,
        unsure: RangeSet,
    ) -> Shipper {
        settings.assert_consistent();
        let mut garbage = history.garbage;
        // A claim may have stored a manifest of what it found.
        let horizon = history.manifest.map(|manifest| manifest.commit);
        let ripe = garbage.extract_if(.., |(since, _)| horizon.is_some_and(|end| *since <= end));
        let sources: Vec<Source> = ripe.map(|(_, source)| source).collect();
        let collect = horizon.filter(|_| !sources.is_empty());
        let collect = collect.map(|horizon| Action::Collect { horizon, sources });
        let is_seeded = unsure.total() <= settings.lag_max;
        Shipper {
            settings,
            volume,
            pieces: history.pieces,
            last: history.last,
            last_checksum: history.checksum,
            commits_since_manifest: history.commit_count,
            is_writing_manifest: None,
            garbage,
            data_count: 0,
            job_count: 0,
            has_changed: !unsure.is_empty(),
            dirty: unsure,
            zeroed: RangeSet::new(),
            staged: PieceMap::new(),
            captures: BTreeMap::new(),
            pending: None,
            cut: 0,
            durable_cut: 0,
            last_cut_at: Duration::ZERO,
            wants_cut: false,
            is_seeded,
            flushes: VecDeque::new(),
            is_fenced: false,
            counts: Counts::default(),
            actions: collect.into_iter().collect(),
        }
    }

    /// Whether a write or discard of a range may be passed to the device now. If not, ask again after the
    /// next event.
    pub fn admits(&self, range: &Range<u64>) -> bool {
        if self.is_fenced {
            return false;
        }
        let is_frozen = self.pending.as_ref().is_some_and(|pending| pending.frozen.overlaps(range));
        !(is_frozen || self.is_seeded && self.lag_bytes() >= self.settings.lag_max)
    }

    /// A write has completed.
    pub fn handle_written(&mut self, range: Range<u64>) {
        self.counts.written_bytes += range.end - range.start;
        self.unstage(&range);
        self.zeroed.remove(&range);
        self.dirty.insert(range);
        self.has_changed = true;
    }

    /// A discard has completed.
    pub fn handle_discarded(&mut self, range: Range<u64>) {
        self.unstage(&range);
        self.dirty.remove(&range);
        self.zeroed.insert(range);
        self.has_changed = true;
    }

    /// A flush has been submitted; it is answered by [`Action::Flushed`]. Only with [`Ack::Remote`].
    pub fn handle_flush(&mut self, token: u64) {
        assert_eq!(self.settings.ack, Ack::Remote, "the driver answers local flushes itself");
        let cut = if self.has_changed { self.cut + 1 } else { self.cut };
        self.wants_cut |= self.has_changed;
        self.flushes.push_back(Flush { token, cut, is_local: false });
    }

    /// The device has completed a flush.
    pub fn handle_flushed(&mut self, token: u64) {
        let flush = self.flushes.iter_mut().find(|flush| flush.token == token);
        flush.expect("a flush completes once, after it was submitted").is_local = true;
    }

    /// The device has failed a flush: the driver answers it.
    pub fn handle_flush_failed(&mut self, token: u64) {
        let count = self.flushes.len();
        self.flushes.retain(|flush| flush.token != token);
        assert_eq!(self.flushes.len() + 1, count, "a flush completes once, after it was submitted");
    }

    /// What [`Action::Read`] asked for. `unreadable` bytes of it are zeros in place of what the device
    /// could not read: their checksums in the store will not match, so they are errors there as here.
    pub fn handle_read(&mut self, job: JobId, bytes: Vec<u8>, unreadable: u64) {
        self.counts.unreadable_bytes += unreadable;
        if let Some(pending) =
            self.pending.as_mut().filter(|pending| pending.inline_job == Some(job))
        {
            pending.inline_read(bytes);
            return;
        }
        if !self.is_frozen(job) && self.skip_zeros(job, &bytes) {
            return;
        }
        let capture = self.captures.get_mut(&job).expect("what was read was asked for");
        let (name, bytes) = capture.read(bytes, self.volume);
        self.thaw(job);
        self.actions.push_back(Action::Create { job, name, bytes });
    }

    /// Whether [`Action::Read`] asks for a data object, so that [`Shipper::handle_kept`] may answer it.
    pub fn is_capture(&self, job: JobId) -> bool {
        self.captures.contains_key(&job)
    }

    /// The driver has the bytes that [`Action::Read`] asked for, as they were on the device when it took this
    /// action. It creates a data object of them ([`data::seal`]) under the name that is returned; then
    /// [`Shipper::handle_created`]. From now on nothing that is written there counts for this object.
    pub fn handle_kept(&mut self, job: JobId) -> String {
        let capture = self.captures.get_mut(&job).expect("what is kept was asked for");
        let name = capture.source.name();
        capture.kept();
        self.thaw(job);
        name
    }

    /// What a job captures may be written again.
    fn thaw(&mut self, job: JobId) {
        let Some(pending) = self.pending.as_mut().filter(|one| one.waits_for.contains(&job)) else {
            return;
        };
        for range in &self.captures[&job].ranges {
            pending.frozen.remove(range);
        }
    }

    /// An object that [`Action::Create`] named is there. `is_ours` is false if another's is: then another
    /// host has taken the volume over.
    pub fn handle_created(&mut self, job: JobId, is_ours: bool) {
        if !is_ours {
            self.is_fenced = true;
            return;
        }
        if self.pending.as_ref().is_some_and(|pending| pending.commit_job == Some(job)) {
            self.committed();
            return;
        }
        let capture = self.captures.remove(&job).expect("what was created was asked for");
        assert_eq!(capture.progress, Progress::Storing, "it was read before");
        self.counts.shipped_bytes += capture.size() + data::SEAL_SIZE as u64;
        if let Some(pending) = &mut self.pending {
            pending.waits_for.remove(&job);
        }
    }

    /// The manifest is durable and the volume's record names it.
    pub fn handle_manifest(&mut self, id: ManifestId) {
        assert_eq!(self.is_writing_manifest.take(), Some(id), "one manifest is written at a time");
        let horizon = id.commit;
        let ripe = self.garbage.extract_if(.., |(since, _)| *since <= horizon);
        let sources: Vec<Source> = ripe.map(|(_, source)| source).collect();
        self.actions.push_back(Action::Collect { horizon, sources });
    }

    /// Another host has taken the volume over.
    pub fn fence(&mut self) {
        self.is_fenced = true;
    }

    /// Asks for a commit of what has completed so far, whatever the interval. Returns the cut to wait for.
    pub fn ask_for_commit(&mut self) -> u64 {
        self.wants_cut |= self.has_changed;
        if self.has_changed { self.cut + 1 } else { self.cut }
    }

    /// The last cut of which a commit was created.
    pub fn durable_cut(&self) -> u64 {
        self.durable_cut
    }

    /// Whether another host has taken the volume over.
    pub fn is_fenced(&self) -> bool {
        self.is_fenced
    }

    /// The last commit that was created.
    pub fn last(&self) -> CommitId {
        self.last
    }

    /// What the remote copy is.
    pub fn pieces(&self) -> &PieceMap {
        &self.pieces
    }

    /// Bytes that have completed and that no commit holds.
    pub fn lag_bytes(&self) -> u64 {
        let pending = self.pending.as_ref().map_or(0, |pending| pending.total);
        self.dirty.total() + self.staged.total() + pending
    }

    /// When something completed since the last cut that is to be shipped, or `None` if all is.
    pub fn lag_since(&self) -> Option<Duration> {
        (self.has_changed || self.pending.is_some()).then_some(self.last_cut_at)
    }

    /// Whether nothing is left to do: all that completed is in a commit.
    pub fn is_idle(&self) -> bool {
        !self.has_changed && self.pending.is_none() && self.is_writing_manifest.is_none()
    }

    /// Counters.
    pub fn counts(&self) -> Counts {
        Counts { garbage: self.garbage.len() as u64, ..self.counts }
    }

    /// Whether a range holds anything that no commit holds.
    pub fn is_behind(&self, range: &Range<u64>) -> bool {
        self.dirty.overlaps(range)
            || self.zeroed.overlaps(range)
            || self.staged.overlaps(range)
            || self.pending.as_ref().is_some_and(|pending| pending.covers(range))
    }

    /// The next thing to do, as of `now`, if there is one. Asked until there is none after any event.
    pub fn poll(&mut self, now: Duration) -> Option<Action> {
        if self.is_fenced {
            return None;
        }
        if self.is_cut_due(now) {
            self.make_cut(now);
        }
        self.capture_early();
        self.start_captures();
        self.put_pending();
        self.write_manifest();
        self.answer_flushes();
        self.actions.pop_front()
    }

    /// When to poll next though nothing happens.
    pub fn due(&self) -> Option<Duration> {
        let waits = self.has_changed && self.pending.is_none() && !self.is_fenced;
        waits.then(|| self.last_cut_at + self.settings.every)
    }

    fn is_cut_due(&self, now: Duration) -> bool {
        if self.pending.is_some() || !self.has_changed {
            return false;
        }
        // A cut freezes all that is dirty; while the first copy is made that would be the whole device.
        if self.dirty.total() > self.settings.lag_max {
            return false;
        }
        let early = self.lag_bytes() >= self.settings.early_bytes;
        self.wants_cut || early || now >= self.last_cut_at + self.settings.every
    }

    fn make_cut(&mut self, now: Duration) {
        assert!(self.pending.is_none(), "commits are made one at a time");
        self.cut += 1;
        self.last_cut_at = now;
        self.has_changed = false;
        self.wants_cut = false;
        self.is_seeded = true;
        let id = self.last.next();
        // The lowest ranges hold the superblocks, which are written again soonest: they are read first,
        // and few bytes need no object of their own.
        let inline = self.dirty.take(self.settings.inline_max);
        for job in self.waiting().collect::<Vec<JobId>>() {
            self.trim(job);
        }
        while !self.dirty.is_empty() {
            self.capture();
        }
        let mut frozen: RangeSet = inline.iter().cloned().collect();
        let unread = self.captures.values().filter(|capture| capture.progress != Progress::Storing);
        let unread: RangeSet = unread.flat_map(|capture| capture.ranges.iter().cloned()).collect();
        let mut entries: Vec<Entry> =
            self.zeroed.iter().map(|range| Entry { range, content: Content::Zeros }).collect();
        for (start, piece) in self.staged.iter() {
            let range = start..start + u64::from(piece.length);
            unread.within(&range).into_iter().for_each(|part| frozen.insert(part));
            entries.push(Entry { range, content: Content::At(piece.source, piece.offset.into()) });
        }
        let inline_bytes: u64 = inline.iter().map(|range| range.end - range.start).sum();
        let total = self.staged.total() + inline_bytes;
        let waits_for = self.captures.keys().copied().collect();
        self.zeroed = RangeSet::new();
        self.staged = PieceMap::new();
        let inline_job = (!inline.is_empty()).then(|| self.new_job());
        if let Some(job) = inline_job {
            self.actions.push_back(Action::Read { job, ranges: inline.clone() });
        }
        self.pending = Some(Pending {
            id,
            cut: self.cut,
            entries,
            frozen,
            waits_for,
            inline_job,
            inline: Inline { ranges: inline, bytes: Vec::new() },
            commit_job: None,
            checksum: 0,
            size: 0,
            total,
        });
    }

    /// Stores what would make the next commit large.
    fn capture_early(&mut self) {
        while self.captures.len() < self.settings.captures_max
            && self.dirty.total() >= self.settings.object_size
        {
            self.capture();
        }
    }

    fn start_captures(&mut self) {
        let is_under_way = |capture: &&Capture| capture.progress != Progress::Waiting;
        let under_way = self.captures.values().filter(is_under_way).count();
        let room = self.settings.captures_max.saturating_sub(under_way);
        // The oldest first: these may be frozen, and hold up others.
        for job in self.waiting().take(room).collect::<Vec<JobId>>() {
            if !self.is_frozen(job) {
                self.trim(job);
            }
            let capture = self.captures.get_mut(&job).expect("it waits");
            capture.progress = Progress::Reading;
            self.actions.push_back(Action::Read { job, ranges: capture.ranges.clone() });
        }
    }

    /// The captures that were not begun, the oldest first.
    fn waiting(&self) -> impl Iterator<Item = JobId> + '_ {
        let waiting = self.captures.iter().filter(|(_, one)| one.progress == Progress::Waiting);
        waiting.map(|(job, _)| *job)
    }

    /// Leaves out of a capture that waits what has changed since: another object will hold that. No commit refers
    /// to the capture yet, so its bytes may still change places.
    fn trim(&mut self, job: JobId) {
        let capture = self.captures.get_mut(&job).expect("it waits");
        assert_eq!(capture.progress, Progress::Waiting, "what is read has its place");
        let source = capture.source;
        let current = capture.ranges.iter().flat_map(|range| self.staged.within(range));
        let current = current.filter(|(_, piece)| piece.source == source);
        let current: RangeSet =
            current.map(|(start, piece)| start..start + u64::from(piece.length)).collect();
        assert!(!current.is_empty(), "a capture that nothing needs is forgotten");
        capture.ranges = current.iter().collect();
        let mut offset = 0;
        for range in &capture.ranges {
            let length = u32::try_from(range.end - range.start).expect("an object is small");
            self.staged.clear(range, &mut Vec::new());
            self.staged.place(range.start, Piece { length, source, offset });
            offset += length;
        }
    }

    /// Whether the commit in the making refers to what a job captures.
    fn is_frozen(&self, job: JobId) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.waits_for.contains(&job))
    }

    /// Counts long rows of zeros as discarded. Returns whether nothing is left to be stored. It is what
    /// keeps the first copy of a store that was written with zeros small.
    fn skip_zeros(&mut self, job: JobId, bytes: &[u8]) -> bool {
        let capture = self.captures.get(&job).expect("what was read was asked for");
        let (source, ranges) = (capture.source, capture.ranges.clone());
        let mut rest = bytes;
        for range in &ranges {
            let (own, behind) = rest.split_at((range.end - range.start) as usize);
            rest = behind;
            for (index, row) in own.chunks(ZERO_ROW).enumerate() {
                if row.iter().any(|byte| *byte != 0) {
                    continue;
                }
                let start = range.start + (index * ZERO_ROW) as u64;
                for (start, piece) in self.staged.within(&(start..start + row.len() as u64)) {
                    let part = start..start + u64::from(piece.length);
                    if piece.source == source {
                        self.staged.clear(&part, &mut Vec::new());
                        self.zeroed.insert(part);
                    }
                }
            }
        }
        let is_needless = !self.staged.names(source);
        if is_needless {
            self.captures.remove(&job);
        }
        is_needless
    }

    fn new_job(&mut self) -> JobId {
        self.job_count += 1;
        JobId(self.job_count)
    }

    /// Begins to store the lowest of what is dirty.
    fn capture(&mut self) {
        let ranges = self.dirty.take(self.settings.object_size);
        assert!(!ranges.is_empty(), "an object holds something");
        let source = Source::Data { epoch: self.last.epoch, number: self.data_count };
        self.data_count += 1;
        let mut offset = 0;
        for range in &ranges {
            let length = u32::try_from(range.end - range.start).expect("an object is small");
            self.staged.place(range.start, Piece { length, source, offset });
            offset += length;
        }
        let job = self.new_job();
        self.captures.insert(job, Capture::new(source, ranges));
    }

    /// What is staged of a range is out of date.
    fn unstage(&mut self, range: &Range<u64>) {
        let mut dead = Vec::new();
        self.staged.clear(range, &mut dead);
        for source in dead {
            // What was not begun need not be.
            let is_waiting = |capture: &Capture| {
                capture.source == source && capture.progress == Progress::Waiting
            };
            let waiting = self.captures.iter().find(|(_, capture)| is_waiting(capture));
            match waiting.map(|(job, _)| *job) {
                Some(job) => drop(self.captures.remove(&job)),
                None => self.garbage.push((self.last.next(), source)),
            }
        }
    }

    /// Creates the commit once everything it refers to is stored.
    fn put_pending(&mut self) {
        let Some(pending) = &mut self.pending else { return };
        if !pending.is_ready() {
            return;
        }
        self.job_count += 1;
        let job = JobId(self.job_count);
        let mut commit = Commit {
            volume: self.volume,
            nonce: nonce(),
            id: pending.id,
            is_fence: false,
            previous: self.last_checksum,
            entries: std::mem::take(&mut pending.entries),
        };
        let bytes = commit.encode(&pending.inline);
        pending.entries = commit.entries;
        pending.checksum = checksum(&bytes);
        pending.commit_job = Some(job);
        pending.size = bytes.len() as u64;
        self.actions.push_back(Action::Create { job, name: pending.id.name(), bytes });
    }

    fn committed(&mut self) {
        let pending = self.pending.take().expect("a commit was under way");
        assert_eq!(pending.id, self.last.next(), "commits follow each other");
        let mut dead = Vec::new();
        for entry in &pending.entries {
            self.pieces.apply(entry, &mut dead);
        }
        if pending.inline.ranges.is_empty() {
            dead.push(Source::Commit(pending.id));
        }
        self.garbage.extend(dead.into_iter().map(|source| (pending.id, source)));
        self.counts.shipped_bytes += pending.size;
        self.last = pending.id;
        self.last_checksum = pending.checksum;
        assert!(self.durable_cut < pending.cut, "cuts become durable in order");
        self.durable_cut = pending.cut;
        self.commits_since_manifest += 1;
        self.counts.commits += 1;
    }

    fn write_manifest(&mut self) {
        let is_due = self.commits_since_manifest >= self.settings.manifest_every;
        if !is_due || self.is_writing_manifest.is_some() {
            return;
        }
        let nonce = nonce();
        let manifest = Manifest {
            volume: self.volume,
            nonce,
            commit: self.last,
            checksum: self.last_checksum,
            // It shares what does not change meanwhile.
            pieces: self.pieces.clone(),
        };
        let first = *nonce.first_chunk().expect("a nonce has 16 bytes");
        let id = ManifestId { commit: self.last, nonce: u64::from_le_bytes(first) };
        self.commits_since_manifest = 0;
        self.is_writing_manifest = Some(id);
        self.actions.push_back(Action::Manifest { id, manifest: Box::new(manifest) });
    }

    fn answer_flushes(&mut self) {
        let durable = self.durable_cut;
        let is_done = |flush: &Flush| flush.is_local && flush.cut <= durable;
        let mut index = 0;
        while let Some(flush) = self.flushes.get(index).copied() {
            if is_done(&flush) {
                self.flushes.remove(index);
                self.actions.push_back(Action::Flushed(flush.token));
            } else {
                index += 1;
            }
        }
    }
}
