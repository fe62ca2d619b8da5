//! A volume that is served: the open store, its attach point and its control socket.

mod changes;

use crate::backing::Backing;
use crate::copy::copying::CopyOrder;
use crate::copy::replication::Replication;
use crate::error::{DaemonError, Error};
use crate::growth::Growth;
use crate::job::Job;
use crate::life::claim;
use crate::life::liveness::Liveness;
use crate::life::outside::Outside;
use crate::life::state::{Entry, LOCK, StateDirectory};
use crate::life::trouble::Trouble;
use crate::points;
use crate::service::attach_point::AttachPoint;
use crate::service::control::{Reply, Request};
use crate::service::events::{Event, Events};
use crate::service::failure_log::FailureLog;
use crate::service::first_data;
use crate::service::requests::Client;
use crate::service::scrub::{ScrubAction, Scrubs};
use crate::service::starting;
use crate::service::status::{Facts, overlay_facts};
use crate::setting::{self, Setting, Settings};
use coulter::State;
use coulter_block::write_out::{WrittenOut, write_out};
use coulter_system::raw::EndSignals;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long nothing is answered until that is told.
const SILENCE: Duration = Duration::from_secs(10);

/// Why a service is to end.
pub(crate) enum End {
    /// It is over; the client that asked for it, if there is one, waits for the answer.
    Over(Result<(), Error>, Option<Client>),
    /// The store is to grow, and this process goes on.
    Grow {
        /// How.
        growth: Growth,
        /// What its attach point resumes with.
        descriptor: OwnedFd,
        /// Who waits for it to serve.
        client: Client,
    },
    /// The store is to be replicated in another way, and this process goes on.
    Copy {
        /// How, from now on.
        replication: Option<Replication>,
        /// What its attach point resumes with.
        descriptor: OwnedFd,
        /// Who waits for it to serve.
        client: Client,
    },
    /// Another program goes on.
    Restart {
        /// Which.
        program: PathBuf,
        /// What its attach point resumes with.
        descriptor: OwnedFd,
        /// Who waits for it to serve.
        client: Client,
    },
}

/// Everything that has to be taken down again.
pub(crate) struct Serving {
    backing: Box<dyn Backing>,
    point: AttachPoint,
    events: Events,
    entry: Entry,
    /// Whether the store was to be opened for reading only.
    read_only: bool,
    /// How a copy of it is kept elsewhere, if one is.
    replication: Option<Replication>,
    since: Instant,
    state: State,
    failures: FailureLog,
    /// How far the latest scrub is.
    scrubs: Scrubs,
    /// Whether it was told that nothing is answered.
    is_silent: bool,
    directory: StateDirectory,
    /// Whether it was told that it is not listed as it is.
    is_unlisted: bool,
    /// What shows that this process lives.
    liveness: Liveness,
    /// What others do to its store and its device.
    outside: Outside,
    /// What they have done, as it was told last.
    trouble: Option<Trouble>,
    /// What the copy waits for.
    copy_trouble: Option<String>,
}

impl Serving {
    /// Opens the store, attaches it, or goes on with what was handed over, and publishes its entry.
    ///
    /// # Errors
    /// Whatever one of these steps reports; what was set up before it is taken down.
    pub(crate) fn start(
        state: &StateDirectory,
        job: &Job,
        entry: &mut Entry,
        descriptor: Option<OwnedFd>,
    ) -> Result<Serving, Error> {
        let started = starting::start(state, job, entry, descriptor)?;
        assert!(entry.device.is_some(), "it serves, and so hosts reach it");
        assert!(!entry.ending, "a daemon that is ending serves nothing anew");
        Ok(Serving {
            backing: started.backing,
            point: started.point,
            events: Events::new(started.requests),
            entry: entry.clone(),
            read_only: job.opening.read_only,
            replication: job.opening.replicate.clone(),
            since: started.since,
            state: started.known,
            failures: FailureLog::default(),
            scrubs: started.scrubs,
            is_silent: false,
            directory: state.clone(),
            is_unlisted: false,
            liveness: started.liveness,
            outside: started.outside,
            trouble: None,
            copy_trouble: None,
        })
    }

    /// Answers commands until one of them or a signal ends the service.
    pub(crate) fn answer_until_told_to_end(&mut self, signals: &EndSignals) -> End {
        loop {
            match self.events.next(signals) {
                Ok(Event::Signal(signal)) => {
                    log::info!(signal:%; "ending on a signal");
                    self.say_whether_it_ends(true);
                    self.backing.leave(true);
                    self.backing.hurry();
                    self.write_out_users();
                    return End::Over(self.point.end(), None);
                }
                Ok(Event::Request(Request::Restart { program }, client)) => {
                    log::info!(program:% = program.display(); "restarting when what is asked for is done");
                    match self.check_restart(&program).and_then(|()| self.hand_over()) {
                        Ok(descriptor) => return End::Restart { program, descriptor, client },
                        Err(error) => client.answer(&Reply::Failed(error.report())),
                    }
                }
                Ok(Event::Request(Request::Grow { growth }, client)) => {
                    log::info!("growing when what is asked for is done");
                    match self.prepare_growth() {
                        Ok(descriptor) => return End::Grow { growth, descriptor, client },
                        Err(error) => client.answer(&Reply::Failed(error.report())),
                    }
                }
                Ok(Event::Request(Request::Copy { order }, client))
                    if order.only_adjusts() && self.replication.is_some() =>
                {
                    client.answer(&self.adjust(&order));
                }
                Ok(Event::Request(Request::Copy { order }, client)) => {
                    match self.prepare_copying(&order) {
                        Ok((replication, descriptor)) => {
                            return End::Copy { replication, descriptor, client };
                        }
                        Err(error) => client.answer(&Reply::Failed(error.report())),
                    }
                }
                Ok(Event::Request(Request::Detach { force }, client)) => match self.detach(force) {
                    Ok(()) => return End::Over(Ok(()), Some(client)),
                    // There is nothing left to serve.
                    Err(error) if self.point.is_gone() => {
                        return End::Over(Err(error), Some(client));
                    }
                    Err(error) => client.answer(&Reply::Failed(error.report())),
                },
                Ok(Event::Request(Request::FirstData, client)) => self.search(client),
                Ok(Event::Request(Request::Scrub { action }, client)) => {
                    client.answer(&self.scrub(action));
                }
                Ok(Event::Request(request, client)) => client.answer(&self.answer(&request)),
                Ok(Event::Heartbeat) if self.point.has_ended() => {
                    log::info!("it was unmounted");
                    self.say_whether_it_ends(true);
                    self.backing.leave(true);
                    return End::Over(self.point.end(), None);
                }
                Ok(Event::Heartbeat) => {
                    self.watch();
                    self.stay_listed();
                }
                Err(source) => {
                    let path = Path::new("the control socket");
                    return End::Over(Err(Error::io("wait on", path, source)), None);
                }
            }
        }
    }

    /// Takes the device away, unless somebody uses it and `force` does not allow that.
    fn detach(&mut self, force: bool) -> Result<(), Error> {
        self.backing.leave(true);
        if force {
            self.say_whether_it_ends(true);
            self.write_out_users();
        }
        log::info!(force; "detaching");
        let detached = self.point.detach(force);
        let ends = detached.is_ok() || self.point.is_gone();
        if !ends {
            self.backing.leave(false);
        }
        if ends != self.entry.ending {
            self.say_whether_it_ends(ends);
        }
        detached
    }

    /// Whoever asks for something meanwhile, and is not answered, learns why.
    fn say_whether_it_ends(&mut self, ending: bool) {
        assert!(self.entry.device.is_some(), "only what serves ends");
        self.entry.ending = ending;
        if let Err(error) = claim::keep(&self.directory, &self.entry) {
            log::warn!(error:%; "commands are not told that it is ending");
        }
    }

    fn tune(&self, settings: &[Setting]) -> Result<Settings, Error> {
        let refused = |reason| DaemonError::Tune { name: self.entry.name.clone(), reason };
        let retuning = setting::retuning(settings).map_err(refused)?;
        let Some(tuning) = self.backing.tune(retuning) else {
            return Err(refused("it is no volume that runs".to_owned()).into());
        };
        if retuning.reclaim.is_some_and(|wanted| wanted != tuning.reclaim) {
            let why =
                "the store knows the page size of the flash below, so its space is reclaimed by ";
            return Err(refused(format!("{why}reclaim={}", tuning.reclaim)).into());
        }
        let settings = Settings::from(tuning);
        let shown = settings.to_string().trim_end().replace('\n', " ");
        log::info!(settings:% = shown; "tuned");
        Ok(settings)
    }

    fn scrub(&mut self, action: ScrubAction) -> Reply {
        let backing = &self.backing;
        match self.scrubs.act(action, &|order| backing.scrub(order)) {
            Some(facts) => Reply::Scrub(Box::new(facts)),
            None => {
                let name = self.entry.name.clone();
                Reply::Failed(DaemonError::NotScrubbed { name }.report())
            }
        }
    }

    /// A volume that can do less than before says so once in the log, as does one that answers
    /// nothing, and when it does again. What fails is told now and then.
    fn watch(&mut self) {
        self.failures.tell(&self.backing.failures(), Instant::now(), false);
        let backing = &self.backing;
        self.scrubs.watch(&|order| backing.scrub(order));
        let unanswered_for = self.backing.unanswered_for().unwrap_or_default();
        let is_silent = unanswered_for >= SILENCE;
        if is_silent != self.is_silent {
            self.is_silent = is_silent;
            match is_silent {
                true => log::warn!(
                    seconds = unanswered_for.as_secs();
                    "requests wait, and none was answered for a while: does the disk below answer?"
                ),
                false => log::warn!("requests are answered again"),
            }
        }
        self.watch_copy();
        let (state, trouble) = (self.backing.state(), self.outside.trouble());
        let less_in_doubt = self.state.takes_writes() && state.takes_writes();
        if state != self.state && less_in_doubt {
            log::info!(state:%; "less of the volume is in doubt");
        } else if state != self.state {
            log::error!(state:%; "the volume can do less than before");
        }
        if trouble != self.trouble {
            match &trouble {
                Some(trouble) => {
                    let words = &trouble.words;
                    log::error!(trouble:% = words; "somebody has done something to the volume");
                }
                None => log::info!("what was done to the volume was undone"),
            }
        }
        let now = self.entry.in_state(&state);
        let cut_off_bytes = trouble.as_ref().and_then(|trouble| trouble.cut_off_bytes);
        if cut_off_bytes.is_some() && state.takes_writes() {
            self.backing.refuse_writes();
        }
        let mut now = Entry { cut_off_bytes, ..now };
        for trouble in trouble.iter().cloned().chain(self.copy_trouble.clone().map(Trouble::new)) {
            trouble.tell(&mut now.failure, &mut now.cut_off_bytes);
        }
        // What was in doubt when it was opened may be known before this looks for the first time.
        let is_news = now.failure != self.entry.failure;
        if state != self.state || trouble != self.trouble || is_news {
            // Whoever lists it does not ask it: it is kept listed as it is now.
            self.entry = now;
            (self.state, self.trouble) = (state, trouble);
        }
    }

    /// Takes note of a copy that has got nothing for a while although something waits for it.
    fn watch_copy(&mut self) {
        let facts = self.backing.status(&self.entry, self.since.elapsed());
        let Facts::Volume(status) = facts else { return };
        let trouble = status.replica.as_ref().and_then(|replica| replica.trouble());
        match (&self.copy_trouble, &trouble) {
            (None, Some(trouble)) => log::error!(trouble:%; "the copy does not follow"),
            (Some(_), None) => log::info!("the copy follows again"),
            _ => {}
        }
        self.copy_trouble = trouble;
    }

    /// Whatever somebody deletes in the state directory, the volume can be found and spoken to
    /// again, and is listed as it is.
    fn stay_listed(&mut self) {
        let restored = claim::keep(&self.directory, &self.entry).and_then(|entry| {
            let socket = self.events.requests().restore()?;
            self.liveness.restore().map_err(|source| {
                Error::io("lock", &self.directory.file(&self.entry.name, LOCK), source)
            })?;
            Ok(entry || socket)
        });
        match &restored {
            Ok(true) => {
                log::warn!("somebody deleted its files in the state directory; they are back")
            }
            Err(error) if !self.is_unlisted => {
                let pid = self.entry.process.pid;
                let listed = self.directory.entry(&self.entry.name);
                match listed.is_some_and(|entry| entry.process == self.entry.process) {
                    true => log::warn!(error:%; "lists do not show what has changed"),
                    false => {
                        log::error!(error:%, pid; "no command finds it any more; TERM ends it cleanly");
                    }
                }
            }
            _ => {}
        }
        self.is_unlisted = restored.is_err();
    }

    fn answer(&self, request: &Request) -> Reply {
        let result = match request {
            Request::Status => {
                let mut facts = self.backing.status(&self.entry, self.since.elapsed());
                if let (Facts::Volume(status), Some(figures)) =
                    (&mut facts, self.point.overlay_figures())
                {
                    status.overlay = overlay_facts(&figures);
                }
                facts.tell_scrub(self.scrubs.facts());
                let copy = match &facts {
                    Facts::Volume(status) => status.replica.as_ref().and_then(|it| it.trouble()),
                    Facts::Other(_) => None,
                };
                match (self.outside.trouble(), copy) {
                    (Some(trouble), _) => facts.tell_trouble(trouble),
                    (None, Some(copy)) => facts.tell_trouble(Trouble::new(copy)),
                    (None, None) => {}
                }
                return Reply::Status(Box::new(facts));
            }
            Request::Tune { settings } => match self.tune(settings) {
                Ok(settings) => return Reply::Settings(settings),
                Err(error) => Err(error),
            },
            Request::Commit if self.backing.commit() => Ok(()),
            Request::Commit => Err(self.not_copied("it is not replicated".to_owned())),
            Request::Command { words } => self.backing.command(&self.entry, words),
            // These do not come here.
            Request::Detach { .. }
            | Request::Restart { .. }
            | Request::Grow { .. }
            | Request::Copy { .. }
            | Request::FirstData
            | Request::Scrub { .. } => Ok(()),
        };
        result.map_or_else(|error| Reply::Failed(error.report()), |()| Reply::Done)
    }

    /// Looks for data, while other commands are answered.
    fn search(&self, client: Client) {
        let service = self.backing.service();
        let name = self.entry.name.clone();
        let search = move || {
            let found = first_data::first_data(&*service).map_err(|error| {
                let source = io::Error::from_raw_os_error(error.errno());
                Error::io("look through", Path::new(&name), source)
            });
            client.answer(&match found {
                Ok(byte) => Reply::FirstData { byte },
                Err(error) => Reply::Failed(error.report()),
            });
        };
        if let Err(error) = std::thread::Builder::new().name("search".to_owned()).spawn(search) {
            // The client sees the connection end.
            log::error!(error:%; "cannot look for data");
        }
    }

    /// Before the device goes away under those who use it: what is in memory for it reaches the
    /// store, so that file systems are as whole as their own journals can make them.
    fn write_out_users(&self) {
        if !points::gives_device(&self.entry) {
            return;
        }
        log::info!("writing out what is in memory for the device");
        for WrittenOut { user, outcome } in write_out(Path::new(&self.point.device())) {
            log::warn!(user:%; "taking the device away from under somebody");
            if let Err(error) = outcome {
                log::error!(user:%, error:%; "what is kept in memory for the device is lost");
            }
        }
    }

    /// How it is replicated now, if a command has changed that without a new opening.
    pub(crate) fn changed_copying(&self, before: Option<&Replication>) -> Option<CopyOrder> {
        let now = self.replication.as_ref();
        (now != before).then(|| CopyOrder::to(now))
    }

    /// Flushes the volume, writes a checkpoint and closes the store. Gives back what is known at
    /// the end of something that is gone then.
    ///
    /// # Errors
    /// What kept it from that; then the next opening replays the log.
    pub(crate) fn end(mut self) -> Result<Option<Facts>, Error> {
        self.backing.leave(true);
        // Does nothing if it was detached already.
        let detached = self.point.end();
        self.failures.tell(&self.backing.failures(), Instant::now(), true);
        let backing = &self.backing;
        self.scrubs.end(&|order| backing.scrub(order));
        let closed = self.backing.close(&self.entry, self.since.elapsed());
        detached.and(closed)
    }
}
