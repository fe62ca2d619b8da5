//! The life of one attached volume: claim, open, serve, and a clean end.
//!
//! The same function runs in the foreground (`attach --foreground`, `serve`) and in the process
//! that `attach` starts.
//!
//! Invariants:
//! - at most one process serves a store: the store's own lock sees to it, the state directory
//!   only explains it;
//! - the entry becomes visible as attached after the device answers, and goes after everything is
//!   durable and the device is gone; it stays with a mount that is dead because it is in use;
//! - signals TERM, INT and HUP end the service cleanly whatever it is doing, even when the device
//!   is in use: then mounted file systems are written out first.

use crate::copy::copying::{CopyOrder, Copying};
use crate::copy::marks;
use crate::copy::replication::Replication;
use crate::error::{DaemonError, Error, OpenError};
use crate::growth::Growth;
use crate::job::Job;
use crate::life::claim::{self, Claim};
use crate::life::liveness::Liveness;
use crate::life::state::{Entry, StateDirectory};
use crate::logging;
use crate::points::{self, Gives};
use crate::service::control::{self, Reply};
use crate::service::events;
use crate::service::handover::Handover;
use crate::service::notify::notify;
use crate::service::protect;
use crate::service::requests::Client;
use crate::service::serving::{End, Serving};
use crate::service::status::Facts;
use coulter_system::raw::EndSignals;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Serves `job` until it is told to end. `ready` is called once the device answers. Gives back what
/// is known at the end of something that is gone then.
///
/// # Errors
/// What kept the volume from being served, or from being closed cleanly. An error of `ready` ends
/// the service: nobody knows of it.
pub fn run(
    state: &StateDirectory,
    mut job: Job,
    ready: &mut dyn FnMut(&Entry) -> Result<(), Error>,
) -> Result<Option<Facts>, Error> {
    refuse_outliving(&job)?;
    // Before the first thread, so that every thread inherits the mask.
    let signals = events::take_over_signals()?;
    let protection = protect::protect(&*job.point);
    let mut resumed = Handover::passed();
    // What a command has changed since this process was started with its words.
    let mut copying = resumed.as_ref().and_then(|handover| take_up(&mut job, handover));
    let Claim { mut entry, waiting, mut liveness } = claimed(state, &job, resumed.as_ref())?;
    keep_point(&mut job, waiting.as_ref().or(resumed.is_some().then_some(&entry)));
    // What the command is told that waits for this.
    let mut reply = Reply::Done;
    let mut served = false;
    let mut ready = |entry: &Entry| {
        ready(entry)?;
        served = true;
        log::info!(protection:% = protection; "protection against a shortage of memory");
        Ok(())
    };
    let mut before = None;
    let ended = loop {
        let goes_on = Resumed { handover: resumed, reply, may_go_back: before.is_some() };
        let (mut handover, program) =
            match serve(state, &job, &mut entry, &signals, goes_on, &mut ready) {
                Turn::Ended(ended) => break ended,
                Turn::Copying { mut handover, reply: told, replication } => {
                    follow_changes(&mut job, &mut copying, &mut handover);
                    before = Some((job.opening.replicate.take(), copying));
                    copying = Some(CopyOrder::to(replication.as_ref()));
                    if replication.is_none() {
                        marks::remember(&entry.store, None);
                    }
                    job.opening.replicate = replication;
                    (resumed, reply) = (Some(handover), told);
                    continue;
                }
                Turn::Refused { handover, error } => {
                    log::error!(error:%; "the replication cannot be changed, and stays as it was");
                    (job.opening.replicate, copying) = before.take().expect("it may go back");
                    (resumed, reply) = (Some(handover), Reply::Failed(error.report()));
                    continue;
                }
                Turn::Unreachable { handover, reply: told, error } => {
                    match await_copy(&signals, handover, error) {
                        Ok(handover) => (resumed, reply) = (Some(handover), told),
                        Err(ended) => break *ended,
                    }
                    continue;
                }
                Turn::Grown { mut handover, reply: told } => {
                    follow_changes(&mut job, &mut copying, &mut handover);
                    (before, resumed, reply) = (None, Some(handover), told);
                    continue;
                }
                Turn::Restart { handover, program } => (handover, program),
            };
        copying = handover.copying.take().or(copying);
        (before, handover.copying) = (None, copying.clone());
        become_another(&mut job, &mut liveness, &handover, &program);
        (resumed, reply) = (Some(handover), Reply::Done);
    };
    let released = give_back(state, &entry, waiting, served);
    let result = ended.result.and_then(|facts| released.map(|()| facts));
    tell_end(&entry, &result, served, ended.asked_by);
    result
}

/// Refuses a device that would go on without what its daemon has acknowledged from memory.
fn refuse_outliving(job: &Job) -> Result<(), Error> {
    match job.point.kind().outlives(job.opening.acknowledge) {
        true => Err(DaemonError::BufferedOutlived { device: None }.into()),
        false => Ok(()),
    }
}

/// Takes up the replication as it was when the program before handed over.
fn take_up(job: &mut Job, handover: &Handover) -> Option<CopyOrder> {
    job.opening.has_begun();
    let order = handover.copying.clone()?;
    job.opening.replicate = order.applied(None).unwrap_or_default();
    Some(order)
}

/// The claim of a daemon that begins, or goes on with what was handed over.
fn claimed(state: &StateDirectory, job: &Job, resumed: Option<&Handover>) -> Result<Claim, Error> {
    match resumed {
        Some(Handover { entry, .. }) => {
            let liveness = claim::hold(state, entry)?;
            Ok(Claim { entry: entry.clone(), waiting: None, liveness })
        }
        None => claim::claim(state, job, &|entry| control::answers(state, entry)),
    }
}

/// A device that is there already stays of its kind; `auto` may have found something better since.
fn keep_point(job: &mut Job, before: Option<&Entry>) {
    let kind = before.map(points::of).filter(|kind| kind.gives() == Gives::Device);
    if let Some(point) = kind.and_then(|kind| kind.plain()) {
        job.point = point;
    }
}

/// Becomes another program. Comes back if that fails: then this one goes on as it was.
fn become_another(job: &mut Job, liveness: &mut Liveness, handover: &Handover, program: &Path) {
    let name = &handover.entry.name;
    log::info!(name, program:% = program.display(); "becoming another program");
    if let Err(error) = liveness.restore().and_then(|()| liveness.pass_on()) {
        log::warn!(error:%; "in other namespaces it may be taken for ended");
    }
    let error = handover.become_program(program);
    job.opening.has_begun();
    log::error!(name, error:%; "could not become another program");
}

/// Gives back the name and what is left of the device. `waiting` is the entry of the daemon before.
fn give_back(
    state: &StateDirectory,
    entry: &Entry,
    waiting: Option<Entry>,
    served: bool,
) -> Result<(), Error> {
    if !served {
        // What was handed over, and cannot go on, is dead; so is what could not be made whole.
        if let Err(error) = points::of(entry).release_leftovers(state, &entry.name) {
            log::error!(error:%; "cannot clear away the device");
        }
    }
    match waiting {
        // It goes on waiting, for another attempt.
        Some(waiting) if !served => claim::publish(state, &waiting),
        // Its users would else not be told whose mount it is that is dead.
        _ if served && points::of(entry).covers_a_directory(entry) => Ok(()),
        _ => claim::release(state, entry),
    }
}

/// Tells the log and the client that asked for it how it ended.
fn tell_end(
    entry: &Entry,
    result: &Result<Option<Facts>, Error>,
    served: bool,
    asked_by: Option<Client>,
) {
    match result {
        Ok(_) => {
            log::info!(name = entry.name; "ended cleanly");
            logging::remove_if_uneventful();
        }
        // Whoever waited for readiness is told otherwise.
        Err(error) if served => log::error!(name = entry.name, error:% = error; "ended"),
        Err(_) => {}
    }
    if let Some(client) = asked_by {
        client.answer(&result.as_ref().map_or_else(|e| Reply::Failed(e.report()), |_| Reply::Done));
    }
}

/// After what time a copy that cannot be used is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What came of serving.
enum Turn {
    /// It is over.
    Ended(Ended),
    /// Everything is closed and hosts wait; the store has grown or not, and this program goes on.
    Grown { handover: Handover, reply: Reply },
    /// Everything is closed and hosts wait; the store is to be opened with another replication.
    Copying { handover: Handover, reply: Reply, replication: Option<Replication> },
    /// It cannot be opened so; hosts still wait.
    Refused { handover: Handover, error: Error },
    /// The bucket of its copy cannot be used at the moment; hosts still wait.
    Unreachable { handover: Handover, reply: Reply, error: Error },
    /// Everything is closed, hosts wait, and another program is to go on.
    Restart { handover: Handover, program: PathBuf },
}

/// How a service came to its end.
struct Ended {
    result: Result<Option<Facts>, Error>,
    /// Who asked for it and waits to hear the result.
    asked_by: Option<Client>,
}

/// With what a service goes on.
struct Resumed {
    /// What was handed over, if it is not the first.
    handover: Option<Handover>,
    /// What the command is told that waits.
    reply: Reply,
    /// If the store cannot be opened, hosts go on waiting, for it to be opened as before.
    may_go_back: bool,
}

fn serve(
    state: &StateDirectory,
    job: &Job,
    entry: &mut Entry,
    signals: &EndSignals,
    resumed: Resumed,
    ready: &mut dyn FnMut(&Entry) -> Result<(), Error>,
) -> Turn {
    let Resumed { handover, reply, may_go_back } = resumed;
    let (descriptor, waiting) = match handover {
        Some(handover) => (Some(handover.descriptor), Some(Client::resume(handover.client))),
        None => (None, None),
    };
    let spare = descriptor.as_ref().and_then(|it| it.try_clone().ok());
    let mut serving = match Serving::start(state, job, entry, descriptor) {
        Ok(serving) => serving,
        Err(error) => {
            let (Some(descriptor), true) = (spare, may_go_back || is_of_bucket(&error)) else {
                return Turn::Ended(Ended { result: Err(error), asked_by: waiting });
            };
            let client = waiting.expect("who has handed over waits");
            let handover = handover_of(entry, descriptor, client);
            return match may_go_back {
                true => Turn::Refused { handover, error },
                false => Turn::Unreachable { handover, reply, error },
            };
        }
    };
    let end = match ready(entry) {
        Ok(()) => {
            tell_ready(entry, waiting, &reply);
            serving.answer_until_told_to_end(signals)
        }
        Err(error) => End::Over(Err(error), waiting),
    };
    match end {
        End::Over(result, asked_by) => {
            notify("STOPPING=1");
            let ended = serving.end();
            Turn::Ended(Ended { result: result.and(ended), asked_by })
        }
        End::Grow { growth, descriptor, client } => {
            let copying = serving.changed_copying(job.opening.replicate.as_ref());
            let reply = grow(job, growth, serving);
            let handover = handover_of(entry, descriptor, client);
            Turn::Grown { handover: Handover { copying, ..handover }, reply }
        }
        End::Copy { replication, descriptor, client } => {
            let changed = serving.changed_copying(job.opening.replicate.as_ref());
            let reply = Reply::Copying(copied(job, replication.as_ref(), serving));
            let handover = handover_of(entry, descriptor, client);
            let handover = Handover { copying: changed, ..handover };
            Turn::Copying { handover, reply, replication }
        }
        End::Restart { program, descriptor, client } => {
            notify("RELOADING=1");
            let copying = serving.changed_copying(job.opening.replicate.as_ref());
            // What is not closed in order is replayed by the next program.
            if let Err(error) = serving.end() {
                log::error!(error:%; "the store could not be closed");
            }
            let handover = handover_of(entry, descriptor, client);
            Turn::Restart { handover: Handover { copying, ..handover }, program }
        }
    }
}

/// Tells the log, the client that waits and the service manager that it serves.
fn tell_ready(entry: &Entry, waiting: Option<Client>, reply: &Reply) {
    log::info!(
        name = entry.name,
        store:% = entry.store.display(),
        device = entry.device.as_deref().unwrap_or_default(),
        pid = entry.process.pid;
        "serving"
    );
    if let Some(client) = waiting {
        client.answer(reply);
    }
    notify(&format!("READY=1\nSTATUS=serving {}", entry.name));
}

/// Closes the store and lets it grow; the answer to the command.
fn grow(job: &Job, growth: Growth, serving: Serving) -> Reply {
    let ended = serving.end();
    let grown = ended.and_then(|_| job.source.grow(growth));
    grown.map_or_else(
        |error| {
            log::error!(error:%; "the store does not grow");
            Reply::Failed(error.report())
        },
        Reply::Grown,
    )
}

/// Closes the store, which is to be replicated in another way from then on; the answer to the command.
fn copied(job: &Job, replication: Option<&Replication>, serving: Serving) -> Copying {
    let ended = serving.end();
    let url_of = |replication: &Replication| replication.url.to_string();
    Copying {
        url: replication.map(url_of),
        url_before: job.opening.replicate.as_ref().map(url_of),
        behind: match ended {
            Ok(_) => None,
            Err(Error::Open(OpenError::CopyBehind { reason, .. })) => Some(reason),
            // What is not closed in order is replayed by the next opening.
            Err(error) => {
                log::error!(error:%; "the store could not be closed");
                Some(error.to_string())
            }
        },
    }
}

/// True if a store cannot be opened because of its copy's bucket. That was looked at before the
/// store was closed, so it has become so since, and passes.
fn is_of_bucket(error: &Error) -> bool {
    matches!(error, Error::Open(OpenError::NoBucket { .. }))
}

/// Hosts wait a while for a copy that cannot be used now. A signal ends that.
fn await_copy(
    signals: &EndSignals,
    handover: Handover,
    error: Error,
) -> Result<Handover, Box<Ended>> {
    log::error!(error:%; "hosts wait until the copy can be used again");
    std::thread::sleep(AGAIN_AFTER);
    let Some(signal) = signals.pending() else { return Ok(handover) };
    log::info!(signal:%; "ending on a signal");
    let asked_by = Some(Client::resume(handover.client));
    Err(Box::new(Ended { result: Err(error), asked_by }))
}

/// Takes over the changes of the replication that commands made without a new opening.
fn follow_changes(job: &mut Job, copying: &mut Option<CopyOrder>, handover: &mut Handover) {
    job.opening.has_begun();
    if let Some(order) = handover.copying.take() {
        job.opening.replicate = order.applied(None).unwrap_or_default();
        *copying = Some(order);
    }
}

fn handover_of(entry: &Entry, descriptor: OwnedFd, client: Client) -> Handover {
    assert!(entry.device.is_some(), "hosts wait at a device");
    Handover { entry: entry.clone(), descriptor, client: client.into_stream(), copying: None }
}

/// Leaves the terminal's session, so that neither its end nor its Ctrl-C reaches this process.
pub fn leave_session() {
    // Fails only for the leader of a session, which is what this asks for.
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
}
