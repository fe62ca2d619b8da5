//! The steps in which a volume comes to be served.
//!
//! The claim, and with it the entry and its files in the state directory, is the caller's: he takes
//! it back.

use crate::backing::Backing;
use crate::error::{Error, OpenError};
use crate::job::Job;
use crate::life::claim;
use crate::life::device_link;
use crate::life::liveness::Liveness;
use crate::life::outside::Outside;
use crate::life::state::{Entry, StateDirectory};
use crate::points;
use crate::service::attach_point::AttachPoint;
use crate::service::handover;
use crate::service::panics;
use crate::service::requests::Requests;
use crate::service::scrapes::{self, Port};
use crate::service::scrub::Scrubs;
use crate::service::steps::{self, Step, nothing};
use crate::service::uevent;
use coulter::State;
use coulter::service::BLOCK_SIZE;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long a program that goes on waits for a store that others look at; its hosts wait too.
const REOPEN_PATIENCE: Duration = Duration::from_secs(60);
const REOPEN_PAUSE: Duration = Duration::from_millis(10);

/// What there is after the last step.
pub(crate) struct Started {
    pub(crate) backing: Box<dyn Backing>,
    pub(crate) point: AttachPoint,
    pub(crate) requests: Requests,
    pub(crate) liveness: Liveness,
    pub(crate) outside: Outside,
    pub(crate) scrubs: Scrubs,
    /// What the volume can do, as far as it was told.
    pub(crate) known: State,
    pub(crate) since: Instant,
}

/// Opens the store, attaches it, or goes on with what was handed over, and publishes its entry.
///
/// # Errors
/// Whatever one of these steps reports; what was set up before it is taken down.
pub(crate) fn start(
    state: &StateDirectory,
    job: &Job,
    entry: &mut Entry,
    descriptor: Option<OwnedFd>,
) -> Result<Started, Error> {
    let mut starting = Starting::new(state, job, entry, descriptor);
    steps::take(&steps(), &mut starting)?;
    Ok(starting.finished())
}

/// How far it is.
struct Starting<'a> {
    state: &'a StateDirectory,
    job: &'a Job,
    entry: &'a mut Entry,
    /// The entry as it was before all this.
    before: Entry,
    /// What hosts wait at, if this goes on with what was handed over.
    descriptor: Option<OwnedFd>,
    goes_on: bool,
    /// Where metrics are to be had.
    metrics: Option<SocketAddr>,
    port: Option<Port>,
    backing: Option<Box<dyn Backing>>,
    known: State,
    since: Instant,
    point: Option<AttachPoint>,
    requests: Option<Requests>,
    liveness: Option<Liveness>,
}

/// In their order.
fn steps<'a>() -> [Step<Starting<'a>, Error>; 7] {
    [
        // First, for it is soon known whether that is possible.
        Step { act: Starting::take_port, undo: Starting::give_port_back },
        Step { act: Starting::open, undo: Starting::close },
        Step { act: Starting::attach, undo: Starting::detach },
        Step { act: Starting::listen, undo: Starting::listen_no_more },
        Step { act: Starting::publish, undo: Starting::unpublish },
        Step { act: Starting::hold, undo: Starting::let_go },
        // Last, for the thread that answers stays.
        Step { act: Starting::answer_scrapes, undo: nothing },
    ]
}

impl<'a> Starting<'a> {
    fn new(
        state: &'a StateDirectory,
        job: &'a Job,
        entry: &'a mut Entry,
        descriptor: Option<OwnedFd>,
    ) -> Starting<'a> {
        Starting {
            state,
            job,
            before: entry.clone(),
            // A port that was chosen stays.
            metrics: entry.metrics.or(job.opening.metrics),
            entry,
            goes_on: descriptor.is_some(),
            descriptor,
            port: None,
            backing: None,
            known: State::Running,
            since: Instant::now(),
            point: None,
            requests: None,
            liveness: None,
        }
    }

    fn take_port(&mut self) -> Result<(), Error> {
        assert!(self.backing.is_none(), "the port is taken before the store is opened");
        let missing = self.metrics.filter(|address| !scrapes::is_answering(*address));
        self.port = missing.map(Port::take).transpose()?;
        self.metrics = self.port.as_ref().map(Port::address).or(self.metrics);
        Ok(())
    }

    fn give_port_back(&mut self) -> Result<(), Error> {
        self.port = None;
        Ok(())
    }

    fn open(&mut self) -> Result<(), Error> {
        let backing = if self.goes_on {
            handover::check_resumed(self.entry, &self.job.source.store())?;
            open_again(self.job)?
        } else {
            self.job.source.open(&self.job.opening)?
        };
        self.since = Instant::now();
        // What had failed under the daemon before is opened anew.
        let opened = backing.state();
        *self.entry = self.entry.in_state(&opened);
        // What fails from here on, or has failed already, is found and told later.
        self.known = if self.entry.failure.is_some() { State::Running } else { opened };
        let disk = backing.service().describe();
        assert!(disk.size.is_multiple_of(BLOCK_SIZE), "hosts see whole blocks");
        self.entry.uuid = disk.identity.uuid_text();
        // Who made the store need not have been this program, and a terminal takes control
        // characters for orders.
        self.entry.label = disk.identity.label.replace(char::is_control, "\u{fffd}");
        env!("CARGO_PKG_VERSION").clone_into(&mut self.entry.version);
        self.entry.volume_size_bytes = disk.size;
        self.entry.store_size_bytes = backing.store_size().unwrap_or_default();
        self.backing = Some(backing);
        Ok(())
    }

    /// Closes what nobody came to use.
    fn close(&mut self) -> Result<(), Error> {
        assert!(self.point.is_none(), "the store is closed after its device is gone");
        let entry = std::mem::replace(self.entry, self.before.clone());
        let backing = self.backing.take().expect("it was opened");
        backing.close(&entry, Duration::ZERO).map(drop)
    }

    fn attach(&mut self) -> Result<(), Error> {
        assert!(self.point.is_none(), "it is attached once");
        let service = opened(&self.backing).service();
        panics::end_the_process_from_now_on();
        let point = match self.descriptor.take() {
            None => AttachPoint::start(self.state, self.job, self.entry, service),
            Some(descriptor) => {
                AttachPoint::resume(self.state, &*self.job.point, self.entry, service, descriptor)
            }
        }?;
        self.entry.device = Some(point.device());
        self.point = Some(point);
        Ok(())
    }

    fn detach(&mut self) -> Result<(), Error> {
        assert!(self.requests.is_none(), "a daemon without a device answers no command");
        // A client that has connected meanwhile is disconnected.
        self.point = None;
        self.entry.device.clone_from(&self.before.device);
        Ok(())
    }

    fn listen(&mut self) -> Result<(), Error> {
        assert!(self.point.is_some(), "commands are heard once there is a device to speak of");
        self.requests = Some(Requests::listen(&self.state.file(&self.entry.name, "sock"))?);
        Ok(())
    }

    fn listen_no_more(&mut self) -> Result<(), Error> {
        self.requests = None;
        Ok(())
    }

    fn publish(&mut self) -> Result<(), Error> {
        assert!(self.requests.is_some(), "a daemon that is listed answers");
        assert!(self.entry.device.is_some(), "a daemon is listed once hosts reach it");
        self.entry.metrics = self.metrics;
        match claim::publish(self.state, self.entry) {
            // The one from before still leads here.
            Err(error) if self.goes_on => {
                log::warn!(error:%; "the entry stays as it was");
                Ok(())
            }
            published => published,
        }
    }

    fn unpublish(&mut self) -> Result<(), Error> {
        assert!(self.requests.is_some(), "a daemon answers for as long as it is listed");
        device_link::remove(self.entry);
        claim::publish(self.state, &self.before)
    }

    fn hold(&mut self) -> Result<(), Error> {
        self.liveness = Some(claim::hold(self.state, self.entry)?);
        Ok(())
    }

    fn let_go(&mut self) -> Result<(), Error> {
        self.liveness = None;
        Ok(())
    }

    fn answer_scrapes(&mut self) -> Result<(), Error> {
        assert!(self.liveness.is_some(), "commands take it for a daemon that has ended");
        match self.port.take() {
            Some(port) => port.answer(self.state, self.entry),
            None => Ok(()),
        }
    }

    /// What is left to be done cannot fail.
    fn finished(self) -> Started {
        let (state, entry) = (self.state, &*self.entry);
        let backing = self.backing.expect("it was opened");
        let point = self.point.expect("it was attached");
        let outside = Outside::watch(state, entry, backing.store_size());
        if points::gives_device(entry) {
            uevent::announce(&point.device());
        }
        let scrub = |order| backing.scrub(order);
        let scrubs = Scrubs::resume(state, &entry.uuid, entry.volume_size_bytes, &scrub);
        Started {
            point,
            requests: self.requests.expect("it listens"),
            liveness: self.liveness.expect("it is held"),
            outside,
            scrubs,
            known: self.known,
            since: self.since,
            backing,
        }
    }
}

fn opened(backing: &Option<Box<dyn Backing>>) -> &dyn Backing {
    backing.as_deref().expect("it was opened")
}

/// Opens what the program before has just closed. Meanwhile somebody else may have got hold of it,
/// who will find in the state directory that it is not for him.
fn open_again(job: &Job) -> Result<Box<dyn Backing>, Error> {
    let limit = Instant::now() + REOPEN_PATIENCE;
    loop {
        match job.source.open(&job.opening) {
            Err(Error::Open(OpenError::InUse { .. })) if Instant::now() < limit => {
                std::thread::sleep(REOPEN_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::DaemonError;
    use crate::life::liveness;
    use crate::life::state::LOCK;
    use crate::opening::Opening;
    use crate::points::NbdServerPoint;
    use crate::store::Store;
    use coulter::CreateOptions;
    use coulter::device::{OpenOptions, open_path};
    use std::os::unix::net::UnixStream;
    use std::path::Path;

    fn store(path: &Path) {
        let file = std::fs::File::create(path).expect("the directory is writable");
        file.set_len(64 << 20).expect("there is room");
        let device = open_path(path, &OpenOptions::default()).expect("it is there");
        let options = CreateOptions { segment_size: Some(2 << 20), ..CreateOptions::default() };
        coulter::create(device, &options).expect("it is large enough");
    }

    fn job(store: &Path, metrics: SocketAddr) -> Job {
        Job {
            source: Box::new(Store::at(store.to_owned())),
            point: Box::new(NbdServerPoint::InState),
            opening: Opening { metrics: Some(metrics), ..Opening::default() },
            recover: false,
        }
    }

    /// Of this machine, and no other test asks for a port of it: the one that the test gives back
    /// between two tries stays free.
    const OWN_ADDRESS: &str = "127.83.7.1:0";

    /// Whether the port can be taken. A program that another test starts holds a copy of every open
    /// file until it has begun, so a port that was given back is taken for a moment longer.
    fn comes_free(address: SocketAddr) -> bool {
        let limit = Instant::now() + Duration::from_secs(5);
        while Port::take(address).is_err() {
            if Instant::now() > limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }

    fn fail(_: &mut Starting<'_>) -> Result<(), Error> {
        Err(DaemonError::NotScrubbed { name: "here it ends".to_owned() }.into())
    }

    #[test]
    fn wherever_it_fails_all_that_went_before_is_undone() {
        let parent = tempfile::tempdir().expect("a temporary directory can be made");
        let path = parent.path().join("a.img");
        store(&path);
        let state = StateDirectory::open(Some(parent.path().join("s"))).expect("it can be made");
        let free = Port::take(OWN_ADDRESS.parse().expect("an address")).expect("one is free");
        let address = free.address();
        drop(free);
        let job = job(&path, address);
        for count in 0..steps().len() {
            let claimed = claim::claim(&state, &job, &|_| false).expect("nobody serves it").entry;
            let mut entry = claimed.clone();
            let mut starting = Starting::new(&state, &job, &mut entry, None);
            let failing = Step { act: fail, undo: nothing };
            let until: Vec<_> = steps().into_iter().take(count).chain([failing]).collect();
            let error = steps::take(&until, &mut starting).expect_err("the last one fails");
            assert!(error.to_string().contains("here it ends"), "{count}: {error}");
            let Starting { port, backing, point, requests, liveness, .. } = starting;
            let left = (port.is_some(), backing.is_some(), point.is_some(), requests.is_some());
            assert_eq!(left, (false, false, false, false), "{count}");
            assert!(liveness.is_none(), "{count}");
            // And so others see it.
            assert_eq!(entry, claimed, "{count}");
            assert_eq!(state.entry("a"), Some(claimed), "{count}");
            assert!(comes_free(address), "{count}: its port is still taken");
            assert!(!liveness::is_held(&state.file("a", LOCK)), "{count}: it seems to live");
            for socket in ["nbd", "sock"].map(|suffix| state.file("a", suffix)) {
                UnixStream::connect(&socket).expect_err("nobody listens");
            }
            let opened = job.source.open(&Opening::default()).expect("nobody has it open");
            opened.close(&entry, Duration::ZERO).expect("it is whole");
            claim::release(&state, &entry).expect("it was claimed");
        }
    }

    #[test]
    fn after_the_last_step_it_is_served() {
        let parent = tempfile::tempdir().expect("a temporary directory can be made");
        let path = parent.path().join("a.img");
        store(&path);
        let state = StateDirectory::open(Some(parent.path().join("s"))).expect("it can be made");
        let mut job = job(&path, "127.0.0.1:0".parse().expect("an address"));
        job.opening.metrics = None;
        let mut entry = claim::claim(&state, &job, &|_| false).expect("nobody serves it").entry;
        let started = start(&state, &job, &mut entry, None).expect("nothing is in the way");
        assert_eq!(entry.device, Some(started.point.device()));
        assert_eq!(state.entry("a"), Some(entry.clone()));
        assert_eq!(entry.uuid.len(), 36);
        assert!(liveness::is_held(&state.file("a", LOCK)));
        UnixStream::connect(state.file("a", "nbd")).expect("it listens");
        drop(started.point);
        started.backing.close(&entry, Duration::ZERO).expect("it is whole");
    }
}
