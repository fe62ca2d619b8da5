//! Carries out requests to the bucket on threads of its own, and tells the device's thread.
//!
//! # Invariants
//! - A request is tried until it has an outcome, or until the uploader ends: an outage stalls, it
//!   does not fail.
//! - Manifests, the volume's record and deletions are one thread's, in order: the housekeeper's.
//!   Marks have a thread of their own, so that a bucket that does not answer never holds up a write
//!   to a new chunk.
//! - Every report is followed by a wake, save that pages are free.
//! - A request that panics is one that failed. A thread that ends by a panic says so: nothing waits for it in vain.
//! - After a failure fewer objects are sent at once: several that share a slow line may all be too slow.

mod look;

use crate::bucket::{Bucket, BucketError, BucketErrorKind, GuardedBucket, Silences, Tag};
use crate::history::ReplicaError;
use crate::layout::{Manifest, VolumeId, VolumeRecord, data};
use crate::names::{CommitId, ManifestId, Source};
use crate::publish::{self, Outcome, Patience};
use crate::ship::housekeeper::Housekeeper;
use crate::ship::kept::Bundle;
use crate::ship::marks::Marks;
use crate::ship::shipper::{JobId, Settings};
use coulter_device::{Revocation, Waker};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What has happened.
#[derive(Debug)]
pub(crate) enum Report {
    /// An object is there; ours or another's.
    Created(JobId, bool),
    /// The bytes of an object were copied, and these pages are free again.
    Copied(Bundle),
    /// A manifest counts.
    Manifest(ManifestId),
    /// Another host has the volume.
    Fenced,
    /// These chunks are marked.
    Marked(Vec<u64>),
    /// They could not be.
    MarkFailed(Vec<u64>, i32),
    /// A thread has ended by a panic, and what it was to do is not done.
    Ended(Worker),
}

/// What a thread is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worker {
    /// Creates objects.
    Put,
    /// Keeps manifests, the volume's record, and deletes.
    Housekeeper,
    /// Looks whether another host has the volume.
    Look,
    /// Keeps the marks.
    Marks,
    /// Wakes the device's thread.
    Clock,
}

impl Worker {
    /// The name of its thread.
    pub fn name(self) -> &'static str {
        match self {
            Worker::Put => "coulter-put",
            Worker::Housekeeper => "coulter-housekeeper",
            Worker::Look => "coulter-look",
            Worker::Marks => "coulter-marks",
            Worker::Clock => "coulter-clock",
        }
    }

    /// Whether it may wait for the bucket.
    fn asks_the_bucket(self) -> bool {
        matches!(self, Worker::Put | Worker::Housekeeper | Worker::Look)
    }
}

/// What the uploader meets, for people.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// Since when no request has succeeded, if some have failed since.
    pub outage_since: Option<Instant>,
    /// The last failure.
    pub error: Option<BucketError>,
}

/// How long nothing is answered until that is told.
const SILENT_AFTER: Duration = Duration::from_secs(9);

/// Tells what the bucket does, from any thread.
#[derive(Clone, Debug)]
pub(crate) struct Outlook(Arc<Shared>);

impl Outlook {
    pub(crate) fn health(&self) -> Health {
        let known = self.0.lock().health.clone();
        let silences = &self.0.silences;
        let silent = silences.since().filter(|since| since.elapsed() >= SILENT_AFTER);
        let Some(since) = silent else { return known };
        // A request that is under way has not failed yet.
        let (host, seconds) = (silences.host(), since.elapsed().as_secs());
        let told = BucketError::new(
            BucketErrorKind::Silent,
            format!("no answer from {host} for {seconds} s"),
        );
        let outage_since = known.outage_since.map_or(since, |known| known.min(since));
        Health { outage_since: Some(outage_since), error: Some(told) }
    }
}

/// An object to be created.
#[derive(Debug)]
struct Upload {
    job: JobId,
    name: String,
    body: Body,
}

/// The bytes of an object.
#[derive(Debug)]
enum Body {
    /// All of them.
    Whole(Vec<u8>),
    /// All but their checksum. The thread that sends them copies them, so the device's thread need not.
    Kept(Bundle),
}

/// Work of the housekeeper.
#[derive(Debug)]
enum Chore {
    Manifest(ManifestId, Box<Manifest>),
    Collect(CommitId, Vec<Source>),
}

/// Work of the thread that keeps the marks.
#[derive(Debug)]
enum MarkWork {
    Set(Vec<u64>),
    Clear(Vec<u64>),
}

/// Shared by all threads.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    waker: Waker,
    /// Set once another host has the volume.
    revocation: Revocation,
    silences: Silences,
}

#[derive(Debug)]
struct State {
    is_over: bool,
    health: Health,
    /// Whose requests have failed since.
    outage_of: Option<Worker>,
    /// When the device's thread wants to be woken.
    alarm: Option<Instant>,
    /// Objects that are being sent, and how many may be.
    sent_count: usize,
    sent_max: usize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until one more object may be sent; `false` if the uploader ends.
    fn begin_sending(&self) -> bool {
        let waits = |state: &mut State| !state.is_over && state.sent_count >= state.sent_max;
        let state = self.changed.wait_while(self.lock(), waits);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        state.sent_count += 1;
        !state.is_over
    }

    fn end_sending(&self) {
        self.lock().sent_count -= 1;
        self.changed.notify_all();
    }
}

/// Tries for ever, later and later, until the uploader ends.
#[derive(Debug)]
struct Persistent {
    shared: Arc<Shared>,
    worker: Worker,
    /// Objects that may be sent at once in the best case.
    sent_max: usize,
}

impl Patience for Persistent {
    fn wait(&self, tries: u32, error: &BucketError) -> bool {
        let mut state = self.shared.lock();
        state.health.outage_since.get_or_insert_with(Instant::now);
        state.health.error = Some(error.clone());
        state.outage_of = Some(self.worker);
        if self.worker == Worker::Put {
            state.sent_max = (state.sent_max / 2).max(1);
            state.sent_count -= 1;
            self.shared.changed.notify_all();
        }
        let pause = publish::pause(tries, error);
        // So that many requests that failed together are not repeated together.
        let jitter = crate::random::random_u64() % (pause.as_millis() as u64 / 2 + 1);
        let until = Instant::now() + pause - Duration::from_millis(jitter);
        while !state.is_over {
            let now = Instant::now();
            if now >= until {
                break;
            }
            let waited = self.shared.changed.wait_timeout(state, until - now);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let goes_on = !state.is_over;
        drop(state);
        match self.worker {
            Worker::Put => self.shared.begin_sending(),
            _ => goes_on,
        }
    }

    fn succeeded(&self) {
        let mut state = self.shared.lock();
        // What one kind of request meets says nothing of another: a full bucket still reads and deletes.
        if state.outage_of == Some(self.worker) {
            (state.health, state.outage_of) = (Health::default(), None);
        }
        if self.worker == Worker::Put && state.sent_max < self.sent_max {
            state.sent_max += 1;
            self.shared.changed.notify_all();
        }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Uploader {
    shared: Arc<Shared>,
    objects: Option<Sender<Upload>>,
    chores: Option<Sender<Chore>>,
    marks: Option<Sender<MarkWork>>,
    reports: Receiver<Report>,
    threads: Vec<(Worker, JoinHandle<()>)>,
}

/// How long the end waits for threads that ask the bucket. What they still send then is refused, or changes nothing.
const END_PATIENCE: Duration = Duration::from_secs(5);

impl Uploader {
    /// Starts `thread_count` threads for objects, and one for each of the other things.
    ///
    /// # Errors
    /// When the system starts no more threads.
    pub(crate) fn start(
        bucket: Arc<dyn Bucket>,
        record: VolumeRecord,
        tag: Tag,
        marks: Marks,
        settings: &Settings,
        waker: Waker,
    ) -> io::Result<Uploader> {
        let thread_count = settings.captures_max + 1;
        let bucket = GuardedBucket::new(bucket);
        let silences = bucket.silences();
        let bucket: Arc<dyn Bucket> = Arc::new(bucket);
        let state = State {
            is_over: false,
            health: Health::default(),
            outage_of: None,
            alarm: None,
            sent_count: 0,
            sent_max: thread_count,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            waker,
            revocation: Revocation::default(),
            silences,
        });
        let (report, reports) = channel();
        let volume = record.volume;
        let epoch = record.newest().map_or(0, |newest| newest.epoch);
        let (objects, uploads) = channel::<Upload>();
        let (chores, chore_queue) = channel();
        let (mark, mark_work) = channel();
        let threads = Vec::new();
        // If a thread cannot be started, its drop ends those that were.
        let mut uploader = Uploader {
            shared: shared.clone(),
            objects: Some(objects),
            chores: Some(chores),
            marks: Some(mark),
            reports,
            threads,
        };

        let uploads = Arc::new(Mutex::new(uploads));
        for _ in 0..thread_count {
            let (bucket, uploads) = (bucket.clone(), uploads.clone());
            let shared = shared.clone();
            let put = move |report: &Sender<Report>| {
                put_objects(&*bucket, volume, (&uploads, thread_count), &shared, report);
            };
            uploader.start_worker(Worker::Put, &report, put)?;
        }
        let (looked_at, shared_of_look, every) =
            (bucket.clone(), shared.clone(), settings.look_every);
        uploader.start_worker(Worker::Look, &report, move |report| {
            look::look_out(&*looked_at, (volume, epoch), every, &shared_of_look, report);
        })?;
        let housekeeper = Housekeeper::new(bucket, record, tag);
        let shared_of_housekeeper = shared.clone();
        uploader.start_worker(Worker::Housekeeper, &report, move |report| {
            keep_house(housekeeper, &chore_queue, &shared_of_housekeeper, report);
        })?;
        let shared_of_marks = shared.clone();
        uploader.start_worker(Worker::Marks, &report, move |report| {
            keep_marks(marks, &mark_work, &shared_of_marks, report);
        })?;
        uploader.start_worker(Worker::Clock, &report, move |_| ring_alarms(&shared))?;
        Ok(uploader)
    }

    /// Starts a thread that says so if it ends by a panic.
    fn start_worker(
        &mut self,
        worker: Worker,
        report: &Sender<Report>,
        run: impl FnOnce(&Sender<Report>) + Send + 'static,
    ) -> io::Result<()> {
        let (report, shared) = (report.clone(), self.shared.clone());
        let guarded = move || {
            if catch_unwind(AssertUnwindSafe(|| run(&report))).is_err() {
                let _ = report.send(Report::Ended(worker));
                shared.waker.wake();
            }
        };
        let thread = std::thread::Builder::new().name(worker.name().to_owned()).spawn(guarded)?;
        self.threads.push((worker, thread));
        Ok(())
    }

    pub(crate) fn create(&self, job: JobId, name: String, bytes: Vec<u8>) {
        self.send(Upload { job, name, body: Body::Whole(bytes) });
    }

    /// Creates an object of what was kept and of its checksum.
    pub(crate) fn create_of(&self, job: JobId, name: String, kept: Bundle) {
        self.send(Upload { job, name, body: Body::Kept(kept) });
    }

    fn send(&self, upload: Upload) {
        // A thread that has ended has told why, or the uploader ends.
        let _ = self.objects.as_ref().map(|objects| objects.send(upload));
    }

    pub(crate) fn store_manifest(&self, id: ManifestId, manifest: Box<Manifest>) {
        let _ = self.chores.as_ref().map(|chores| chores.send(Chore::Manifest(id, manifest)));
    }

    pub(crate) fn collect(&self, horizon: CommitId, sources: Vec<Source>) {
        let _ = self.chores.as_ref().map(|chores| chores.send(Chore::Collect(horizon, sources)));
    }

    pub(crate) fn set_marks(&self, chunks: Vec<u64>) {
        let _ = self.marks.as_ref().map(|marks| marks.send(MarkWork::Set(chunks)));
    }

    pub(crate) fn clear_marks(&self, chunks: Vec<u64>) {
        let _ = self.marks.as_ref().map(|marks| marks.send(MarkWork::Clear(chunks)));
    }

    /// The next thing that has happened.
    pub(crate) fn report(&self) -> Option<Report> {
        self.reports.try_recv().ok()
    }

    /// Wakes the device's thread at `alarm`, if that is not `None`.
    pub(crate) fn set_alarm(&self, alarm: Option<Instant>) {
        let mut state = self.shared.lock();
        if state.alarm != alarm {
            state.alarm = alarm;
            drop(state);
            self.shared.changed.notify_all();
        }
    }

    /// Tells that another host has the volume.
    pub(crate) fn revocation(&self) -> Revocation {
        self.shared.revocation.clone()
    }

    /// A handle for whoever asks what the bucket does.
    pub(crate) fn outlook(&self) -> Outlook {
        Outlook(self.shared.clone())
    }
}

impl Drop for Uploader {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
        drop((self.objects.take(), self.chores.take(), self.marks.take()));
        let until = Instant::now() + END_PATIENCE;
        for (worker, thread) in self.threads.drain(..) {
            while worker.asks_the_bucket() && !thread.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            if thread.is_finished() || !worker.asks_the_bucket() {
                // A thread that panicked has said so.
                let _ = thread.join();
            }
        }
    }
}

fn put_objects(
    bucket: &dyn Bucket,
    volume: VolumeId,
    (work, sent_max): (&Mutex<Receiver<Upload>>, usize),
    shared: &Arc<Shared>,
    report: &Sender<Report>,
) {
    let patience = Persistent { shared: shared.clone(), worker: Worker::Put, sent_max };
    // Used again and again: new memory of that size would cost more than the copying.
    let mut copied = Vec::new();
    loop {
        let next = work.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Upload { job, name, body }) = next else { return };
        if shared.lock().is_over {
            return;
        }
        let bytes = match body {
            Body::Whole(ref bytes) => bytes,
            Body::Kept(bundle) => {
                copied.clear();
                bundle.copy_into(&mut copied);
                data::seal(&mut copied, volume, &name);
                // Nobody is woken: what waits for pages does without them.
                if report.send(Report::Copied(bundle)).is_err() {
                    return;
                }
                &copied
            }
        };
        let outcome = match shared.begin_sending() {
            true => publish::create(bucket, &name, bytes, &patience).ok(),
            false => None,
        };
        shared.end_sending();
        let Some(outcome) = outcome else { return };
        let is_ours = matches!(outcome, Outcome::Ours(_));
        if report.send(Report::Created(job, is_ours)).is_err() {
            return;
        }
        shared.waker.wake();
    }
}

fn keep_marks(
    mut marks: Marks,
    work: &Receiver<MarkWork>,
    shared: &Shared,
    report: &Sender<Report>,
) {
    while let Ok(next) = work.recv() {
        let done = match next {
            MarkWork::Set(chunks) => match marks.set(&chunks) {
                Ok(()) => Report::Marked(chunks),
                Err(error) => {
                    Report::MarkFailed(chunks, error.raw_os_error().unwrap_or(libc_eio()))
                }
            },
            // A mark that stays costs a chunk to be shipped again, nothing else.
            MarkWork::Clear(chunks) => {
                let _ = marks.clear(&chunks);
                continue;
            }
        };
        if report.send(done).is_err() {
            return;
        }
        shared.waker.wake();
    }
}

/// EIO.
fn libc_eio() -> i32 {
    5
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

/// Does the housekeeper's work, in order.
fn keep_house(
    mut housekeeper: Housekeeper,
    work: &Receiver<Chore>,
    shared: &Arc<Shared>,
    report: &Sender<Report>,
) {
    let patience = Persistent { shared: shared.clone(), worker: Worker::Housekeeper, sent_max: 0 };
    while let Ok(chore) = work.recv() {
        let done = match chore {
            Chore::Manifest(id, manifest) => housekeeper
                .store_manifest(id, &manifest, &patience)
                .map(|()| Some(Report::Manifest(id))),
            Chore::Collect(horizon, sources) => {
                housekeeper.collect(horizon, sources, &patience).map(|()| None)
            }
        };
        let done = match done {
            Ok(done) => done,
            Err(ReplicaError::TakenOver) => {
                shared.revocation.revoke();
                Some(Report::Fenced)
            }
            // Damaged pins: nothing is deleted any more, which costs space and no data.
            Err(_) if !shared.lock().is_over => None,
            Err(_) => return,
        };
        let Some(done) = done else { continue };
        if report.send(done).is_err() {
            return;
        }
        shared.waker.wake();
    }
}

/// The time, for people.
pub(crate) fn seconds_since_1970() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |time| time.as_secs())
}
