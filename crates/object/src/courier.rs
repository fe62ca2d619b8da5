//! Carries out requests to the bucket on threads of its own, and tells the device's thread.
//!
//! # Invariants
//! - A request is tried until it has an outcome, or until the courier ends: an outage stalls, it does not
//!   fail.
//! - Manifests, the volume's record and deletions are one thread's, in order: the clerk's. Marks have a
//!   thread of their own, so that a bucket that does not answer never holds up a write to a new chunk.
//! - Every report is followed by a wake, save that pages are free.

use crate::bucket::{Bucket, BucketError, Tag};
use crate::clerk::Clerk;
use crate::history::ReplicaError;
use crate::kept::Bundle;
use crate::layout::{Manifest, VolumeId, VolumeRecord, data};
use crate::marks::Marks;
use crate::names::{CommitId, ManifestId, Source};
use crate::publish::{self, Outcome, Patience};
use crate::shipper::JobId;
use coulter_device::Waker;
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
}

/// What the courier meets, for people.
#[derive(Clone, Debug, Default)]
pub struct Weather {
    /// Since when no request has succeeded, if some have failed since.
    pub outage_since: Option<Instant>,
    /// The last failure.
    pub error: Option<BucketError>,
}

/// Tells what the bucket does, from any thread.
#[derive(Clone, Debug)]
pub(crate) struct Outlook(Arc<Shared>);

impl Outlook {
    pub(crate) fn weather(&self) -> Weather {
        self.0.lock().weather.clone()
    }
}

/// An object to be created.
#[derive(Debug)]
struct Parcel {
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

/// Work of the clerk.
#[derive(Debug)]
enum Paper {
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
}

#[derive(Debug, Default)]
struct State {
    is_over: bool,
    weather: Weather,
    /// When the device's thread wants to be woken.
    alarm: Option<Instant>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tries for ever, later and later, until the courier ends.
#[derive(Debug)]
struct Persistent(Arc<Shared>);

/// The longest time between two tries.
const PAUSE_MAX: Duration = Duration::from_secs(5);

impl Patience for Persistent {
    fn wait(&self, tries: u32, error: &BucketError) -> bool {
        let mut state = self.0.lock();
        state.weather.outage_since.get_or_insert_with(Instant::now);
        state.weather.error = Some(error.clone());
        let pause = Duration::from_millis(20 << tries.min(10)).min(PAUSE_MAX);
        // So that many requests that failed together are not repeated together.
        let jitter = crate::random::random_u64() % (pause.as_millis() as u64 / 2 + 1);
        let until = Instant::now() + pause - Duration::from_millis(jitter);
        while !state.is_over {
            let now = Instant::now();
            if now >= until {
                break;
            }
            let waited = self.0.changed.wait_timeout(state, until - now);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        !state.is_over
    }

    fn succeeded(&self) {
        let mut state = self.0.lock();
        if state.weather.outage_since.is_some() {
            state.weather = Weather::default();
        }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Courier {
    shared: Arc<Shared>,
    objects: Option<Sender<Parcel>>,
    papers: Option<Sender<Paper>>,
    marks: Option<Sender<MarkWork>>,
    reports: Receiver<Report>,
    threads: Vec<JoinHandle<()>>,
}

impl Courier {
    /// Starts `thread_count` threads for objects, and one for each of the other things.
    pub(crate) fn start(
        bucket: Arc<dyn Bucket>,
        record: VolumeRecord,
        tag: Tag,
        marks: Marks,
        thread_count: usize,
        waker: Waker,
    ) -> Courier {
        let shared = Shared { state: Mutex::default(), changed: Condvar::new(), waker };
        let shared = Arc::new(shared);
        let (report, reports) = channel();
        let mut threads = Vec::new();
        let mut spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.to_string()).spawn(run);
            threads.push(thread.expect("the system starts threads"));
        };

        let volume = record.volume;
        let (objects, work) = channel::<Parcel>();
        let work = Arc::new(Mutex::new(work));
        for _ in 0..thread_count {
            let (bucket, work) = (bucket.clone(), work.clone());
            let (shared, report) = (shared.clone(), report.clone());
            let put = move || put_objects(&*bucket, volume, &work, &shared, &report);
            spawn("coulter-put", Box::new(put));
        }

        let (papers, work) = channel();
        let clerk = Clerk::new(bucket, record, tag);
        let (shared_of_clerk, report_of_clerk) = (shared.clone(), report.clone());
        let keep = move || keep_papers(clerk, &work, &shared_of_clerk, &report_of_clerk);
        spawn("coulter-clerk", Box::new(keep));

        let (mark, work) = channel();
        let shared_of_marks = shared.clone();
        spawn(
            "coulter-marks",
            Box::new(move || keep_marks(marks, &work, &shared_of_marks, &report)),
        );

        let shared_of_clock = shared.clone();
        spawn("coulter-clock", Box::new(move || ring_alarms(&shared_of_clock)));
        Courier {
            shared,
            objects: Some(objects),
            papers: Some(papers),
            marks: Some(mark),
            reports,
            threads,
        }
    }

    pub(crate) fn create(&self, job: JobId, name: String, bytes: Vec<u8>) {
        self.send(Parcel { job, name, body: Body::Whole(bytes) });
    }

    /// Creates an object of what was kept and of its checksum.
    pub(crate) fn create_of(&self, job: JobId, name: String, kept: Bundle) {
        self.send(Parcel { job, name, body: Body::Kept(kept) });
    }

    fn send(&self, parcel: Parcel) {
        // A thread that has ended has told why, or the courier ends.
        let _ = self.objects.as_ref().map(|objects| objects.send(parcel));
    }

    pub(crate) fn store_manifest(&self, id: ManifestId, manifest: Box<Manifest>) {
        let _ = self.papers.as_ref().map(|papers| papers.send(Paper::Manifest(id, manifest)));
    }

    pub(crate) fn collect(&self, horizon: CommitId, sources: Vec<Source>) {
        let _ = self.papers.as_ref().map(|papers| papers.send(Paper::Collect(horizon, sources)));
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

    /// A handle for whoever asks what the bucket does.
    pub(crate) fn outlook(&self) -> Outlook {
        Outlook(self.shared.clone())
    }
}

impl Drop for Courier {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
        drop((self.objects.take(), self.papers.take(), self.marks.take()));
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

fn put_objects(
    bucket: &dyn Bucket,
    volume: VolumeId,
    work: &Mutex<Receiver<Parcel>>,
    shared: &Arc<Shared>,
    report: &Sender<Report>,
) {
    let patience = Persistent(shared.clone());
    // Used again and again: new memory of that size would cost more than the copying.
    let mut copied = Vec::new();
    loop {
        let next = work.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Parcel { job, name, body }) = next else { return };
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
        let Ok(outcome) = publish::create(bucket, &name, bytes, &patience) else { return };
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

/// Does the clerk's work, in order.
fn keep_papers(
    mut clerk: Clerk,
    work: &Receiver<Paper>,
    shared: &Arc<Shared>,
    report: &Sender<Report>,
) {
    let patience = Persistent(shared.clone());
    while let Ok(paper) = work.recv() {
        let done = match paper {
            Paper::Manifest(id, manifest) => {
                clerk.store_manifest(id, &manifest, &patience).map(|()| Some(Report::Manifest(id)))
            }
            Paper::Collect(horizon, sources) => {
                clerk.collect(horizon, sources, &patience).map(|()| None)
            }
        };
        let done = match done {
            Ok(done) => done,
            Err(ReplicaError::TakenOver) => Some(Report::Fenced),
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
