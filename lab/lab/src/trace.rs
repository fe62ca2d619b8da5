//! Addresses over time, on both sides of a volume: what the host wrote, and what reached the
//! device. Only the demonstration asks for it, which serves its store as a [`TracedStore`].
//!
//! Invariants:
//! - nothing is recorded, and no lock taken, until [`Recorder::start`];
//! - the memory is bounded: after [`EVENTS_MAX`] events of a side the rest is dropped.

use coulter::service::{BlockService, Completion, Description, Operation, Request, Session, Watch};
use coulter::tuning::{Retuning, Tuning};
use coulter::{Failures, State};
use coulter_daemon::status::Facts;
use coulter_daemon::store::{OpenStore, Store};
use coulter_daemon::{Backing, Entry, Error, Opening, Source};
use coulter_device::wrap::{TraceRecord, TracedDevice};
use coulter_device::{CommandKind, Device};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Events of each side that are kept: a few seconds of a fast disk, 24 MiB in all.
const EVENTS_MAX: usize = 500_000;

/// Which side of the volume an event was seen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// A request of the host; the address is a host address.
    Host,
    /// A command to the device; the address is a device address.
    Device,
}

/// One write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// Nanoseconds since recording began.
    pub(crate) time_ns: u64,
    /// First byte.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) length: u64,
}

/// Both sides of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trace {
    /// What the host wrote.
    pub(crate) host: Vec<Event>,
    /// What reached the device.
    pub(crate) device: Vec<Event>,
}

/// Where a daemon records.
pub(crate) struct Recorder {
    recording: AtomicBool,
    events: Mutex<(Instant, Trace)>,
}

impl Recorder {
    /// An empty log that does not record yet.
    pub(crate) fn new() -> Recorder {
        Recorder {
            recording: AtomicBool::new(false),
            events: Mutex::new((Instant::now(), Trace::default())),
        }
    }

    /// Forgets what is recorded and goes on from now.
    pub(crate) fn start(&self) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        *events = (Instant::now(), Trace::default());
        self.recording.store(true, Ordering::Relaxed);
    }

    /// Records one write that began `age` ago, if recording.
    pub(crate) fn record(&self, side: Side, offset: u64, length: u64, age: Duration) {
        if !self.recording.load(Ordering::Relaxed) {
            return;
        }
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let time_ns = events.0.elapsed().saturating_sub(age).as_nanos() as u64;
        let list = match side {
            Side::Host => &mut events.1.host,
            Side::Device => &mut events.1.device,
        };
        if list.len() < EVENTS_MAX {
            list.push(Event { time_ns, offset, length });
        }
    }

    /// Stops recording and writes what there is to a file, one event per line:
    /// `side,time_ns,offset,length`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        self.recording.store(false, Ordering::Relaxed);
        let trace = {
            let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut events.1)
        };
        let mut file = BufWriter::new(File::create(path)?);
        for (side, events) in [("host", &trace.host), ("device", &trace.device)] {
            for event in events {
                writeln!(file, "{side},{},{},{}", event.time_ns, event.offset, event.length)?;
            }
        }
        file.flush()
    }
}

impl Trace {
    /// Reads what [`Recorder::write`] wrote.
    ///
    /// # Errors
    /// When the file cannot be read or is not a trace.
    pub(crate) fn read(path: &Path) -> io::Result<Trace> {
        let mut trace = Trace::default();
        for line in BufReader::new(File::open(path)?).lines() {
            let line = line?;
            let (side, event) = parse_line(&line)
                .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, line.clone()))?;
            match side {
                Side::Host => trace.host.push(event),
                Side::Device => trace.device.push(event),
            }
        }
        Ok(trace)
    }
}

fn parse_line(line: &str) -> Option<(Side, Event)> {
    let mut fields = line.split(',');
    let side = match fields.next()? {
        "host" => Side::Host,
        "device" => Side::Device,
        _ => return None,
    };
    let mut number = || fields.next()?.parse().ok();
    let event = Event { time_ns: number()?, offset: number()?, length: number()? };
    fields.next().is_none().then_some((side, event))
}

/// The command that makes a [`TracedStore`] forget what it has recorded, and go on from now.
pub(crate) const START: &str = "trace-start";

/// The command that makes it write what it has recorded to the file that follows.
pub(crate) const WRITE: &str = "trace-write";

/// A store that is served with both sides of its volume recorded.
pub(crate) struct TracedStore(pub(crate) Store);

impl Source for TracedStore {
    fn store(&self) -> PathBuf {
        self.0.store()
    }

    fn name(&self) -> String {
        self.0.name()
    }

    fn is_at_its_path(&self) -> bool {
        self.0.is_at_its_path()
    }

    fn open(&self, opening: &Opening) -> Result<Box<dyn Backing>, Error> {
        let recorder = Arc::new(Recorder::new());
        let store = self.0.open_wrapped(opening, &|device| traced(device, &recorder))?;
        Ok(Box::new(OpenTraced { store, recorder }))
    }
}

/// `device`, with its writes recorded.
fn traced(device: Box<dyn Device>, recorder: &Arc<Recorder>) -> Box<dyn Device> {
    let recorder = Arc::clone(recorder);
    let sink = move |record: &TraceRecord| {
        if record.kind == CommandKind::Write {
            let age = Duration::from_nanos(record.latency_ns);
            recorder.record(Side::Device, record.offset, record.length, age);
        }
    };
    Box::new(TracedDevice::new(device, sink))
}

/// The same, open.
struct OpenTraced {
    store: OpenStore,
    recorder: Arc<Recorder>,
}

impl Backing for OpenTraced {
    fn service(&self) -> Arc<dyn BlockService> {
        Arc::new(TracedService::new(self.store.service(), Arc::clone(&self.recorder)))
    }

    fn state(&self) -> State {
        self.store.state()
    }

    fn unanswered_for(&self) -> Option<Duration> {
        self.store.unanswered_for()
    }

    fn failures(&self) -> Failures {
        self.store.failures()
    }

    fn status(&self, entry: &Entry, uptime: Duration) -> Facts {
        self.store.status(entry, uptime)
    }

    fn tune(&self, retuning: Retuning) -> Option<Tuning> {
        self.store.tune(retuning)
    }

    fn bound_to_the_process(&self) -> Option<&'static str> {
        Some("what it has recorded is in its memory")
    }

    fn command(&self, entry: &Entry, words: &[String]) -> Result<(), Error> {
        match words {
            [word] if word == START => {
                self.recorder.start();
                Ok(())
            }
            [word, path] if word == WRITE => {
                let path = Path::new(path);
                self.recorder.write(path).map_err(|e| Error::io("write the trace", path, e))
            }
            _ => self.store.command(entry, words),
        }
    }

    fn close(self: Box<Self>, entry: &Entry, uptime: Duration) -> Result<Option<Facts>, Error> {
        Box::new(self.store).close(entry, uptime)
    }
}

/// A service that records what its host writes.
pub(crate) struct TracedService {
    inner: Arc<dyn BlockService>,
    log: Arc<Recorder>,
}

impl TracedService {
    /// Records the writes to `inner` in `log`.
    pub(crate) fn new(inner: Arc<dyn BlockService>, log: Arc<Recorder>) -> TracedService {
        TracedService { inner, log }
    }
}

impl BlockService for TracedService {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn read_only(&self) -> bool {
        self.inner.read_only()
    }

    fn describe(&self) -> Description {
        self.inner.describe()
    }

    fn watch(&self, watcher: Weak<dyn Watch>) {
        self.inner.watch(watcher);
    }

    fn connect(&self) -> Box<dyn Session + Send> {
        Box::new(TracedSession { inner: self.inner.connect(), log: Arc::clone(&self.log) })
    }
}

struct TracedSession {
    inner: Box<dyn Session + Send>,
    log: Arc<Recorder>,
}

impl Session for TracedSession {
    fn submit(&mut self, request: Request) {
        if matches!(request.operation, Operation::Write { .. }) {
            self.log.record(Side::Host, request.offset, request.length, Duration::ZERO);
        }
        self.inner.submit(request);
    }

    fn kick(&mut self) {
        self.inner.kick();
    }

    fn complete(&mut self, out: &mut Vec<Completion>, timeout: Option<Duration>) {
        self.inner.complete(out, timeout);
    }

    fn completion_fd(&self) -> BorrowedFd<'_> {
        self.inner.completion_fd()
    }

    fn outstanding(&self) -> usize {
        self.inner.outstanding()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_comes_back_from_the_file() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
        let log = Recorder::new();
        log.record(Side::Host, 0, 4096, Duration::ZERO);
        log.start();
        log.record(Side::Host, 8192, 4096, Duration::ZERO);
        log.record(Side::Device, 1 << 40, 1 << 20, Duration::from_millis(1));
        log.write(file.path()).expect("the file is writable");
        log.record(Side::Host, 0, 4096, Duration::ZERO);
        let trace = Trace::read(file.path()).expect("the file is a trace");
        let addresses = |events: &[Event]| -> Vec<(u64, u64)> {
            events.iter().map(|event| (event.offset, event.length)).collect()
        };
        assert_eq!(addresses(&trace.host), [(8192, 4096)]);
        assert_eq!(addresses(&trace.device), [(1 << 40, 1 << 20)]);
    }

    #[test]
    fn a_line_that_is_no_event_is_an_error() {
        for line in ["", "host", "host,1,2", "host,1,2,3,4", "disk,1,2,3", "host,a,2,3"] {
            assert_eq!(parse_line(line), None, "{line}");
        }
    }
}
