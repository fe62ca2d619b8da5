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
use crate::job::Job;
use crate::life::claim;
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
use std::path::PathBuf;
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
    if job.point.kind().outlives(job.opening.acknowledge) {
        return Err(DaemonError::BufferedOutlived { device: None }.into());
    }
    // Before the first thread, so that every thread inherits the mask.
    let signals = events::take_over_signals()?;
    let protection = protect::protect(&*job.point);
    let mut resumed = Handover::passed();
    // What a command has changed since this process was started with its words.
    let mut copying = resumed.as_ref().and_then(|handover| handover.copying.clone());
    if resumed.is_some() {
        job.opening.has_begun();
    }
    if let Some(order) = &copying {
        job.opening.replicate = order.applied(None).unwrap_or_default();
    }
    let claim::Claim { mut entry, waiting, mut liveness } = match &resumed {
        Some(Handover { entry, .. }) => {
            let liveness = claim::hold(state, entry)?;
            claim::Claim { entry: entry.clone(), waiting: None, liveness }
        }
        None => claim::claim(state, &job, &|entry| control::answers(state, entry))?,
    };
    // What waits is of the kind that it is; and `auto` may have found something better since.
    let before = waiting.as_ref().or(resumed.is_some().then_some(&entry)).map(points::of);
    let device = before.filter(|kind| kind.gives() == Gives::Device);
    if let Some(point) = device.and_then(|kind| kind.plain()) {
        job.point = point;
    }
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
        log::info!(name = entry.name, program:% = program.display(); "becoming another program");
        if let Err(error) = liveness.restore().and_then(|()| liveness.pass_on()) {
            log::warn!(error:%; "in other namespaces it may be taken for ended");
        }
        let error = handover.become_program(&program);
        // Then this one goes on as it was.
        job.opening.has_begun();
        log::error!(name = entry.name, error:%; "could not become another program");
        (resumed, reply) = (Some(handover), Reply::Done);
    };
    if !served {
        // What was handed over, and cannot go on, is dead; so is what could not be made whole.
        if let Err(error) = points::of(&entry).release_leftovers(state, &entry.name) {
            log::error!(error:%; "cannot clear away the device");
        }
    }
    let released = match waiting {
        // It goes on waiting, for another attempt.
        Some(waiting) if !served => claim::publish(state, &waiting),
        // Its users would else not be told whose mount it is that is dead.
        _ if served && points::of(&entry).covers_a_directory(&entry) => Ok(()),
        _ => claim::release(state, &entry),
    };
    let result = ended.result.and_then(|facts| released.map(|()| facts));
    match &result {
        Ok(_) => {
            log::info!(name = entry.name; "ended cleanly");
            logging::remove_if_uneventful();
        }
        // Whoever waited for readiness is told otherwise.
        Err(error) if served => log::error!(name = entry.name, error:% = error; "ended"),
        Err(_) => {}
    }
    if let Some(client) = ended.asked_by {
        client.answer(&result.as_ref().map_or_else(|e| Reply::Failed(e.report()), |_| Reply::Done));
    }
    result
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
            log::info!(
                name = entry.name,
                store:% = entry.store.display(),
                device = entry.device.as_deref().unwrap_or_default(),
                pid = entry.process.pid;
                "serving"
            );
            if let Some(client) = waiting {
                client.answer(&reply);
            }
            notify(&format!("READY=1\nSTATUS=serving {}", entry.name));
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
            let ended = serving.end();
            let grown = ended.and_then(|_| job.source.grow(growth));
            let reply = grown.map_or_else(
                |error| {
                    log::error!(error:%; "the store does not grow");
                    Reply::Failed(error.report())
                },
                Reply::Grown,
            );
            let handover = handover_of(entry, descriptor, client);
            Turn::Grown { handover: Handover { copying, ..handover }, reply }
        }
        End::Copy { replication, descriptor, client } => {
            let changed = serving.changed_copying(job.opening.replicate.as_ref());
            let ended = serving.end();
            let url_of = |replication: &Replication| replication.url.to_string();
            let copying = Copying {
                url: replication.as_ref().map(url_of),
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
            };
            let handover = handover_of(entry, descriptor, client);
            let handover = Handover { copying: changed, ..handover };
            Turn::Copying { handover, reply: Reply::Copying(copying), replication }
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
