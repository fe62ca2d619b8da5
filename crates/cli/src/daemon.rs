//! The life of one attached volume: claim, open, serve, and a clean end.
//!
//! The same function runs in the foreground (`attach --foreground`, `serve`) and in the process
//! that `attach` starts.
//!
//! Invariants:
//! - at most one process serves a store: the store's own lock sees to it, the state directory
//!   only explains it;
//! - the entry becomes visible as attached after the device answers, and goes after everything is
//!   durable and the device is gone;
//! - signals TERM, INT and HUP end the service cleanly whatever it is doing, even when the device
//!   is in use: then mounted file systems are written out first.

mod claim;
mod events;
pub(crate) mod launch;
mod protect;
mod scrapes;
mod serving;

use crate::control::Reply;
use crate::emulated::Emulation;
use crate::error::CliError;
use crate::opening::Opening;
use crate::state::{Entry, StateDirectory};
use crate::status::Facts;
use coulter_attach::nbd::Address;
use events::{Client, Signals};
use serving::Serving;
use std::path::PathBuf;

/// What a daemon is to do.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// What is served.
    pub(crate) source: Source,
    /// What the host shall see.
    pub(crate) point: Point,
    /// How to open the store.
    pub(crate) opening: Opening,
}

/// What a daemon serves.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// The volume of a store, by its absolute path.
    Store(PathBuf),
    /// An emulated drive, or a volume on one.
    Drive(Box<Emulation>),
}

impl Source {
    /// What stands for it in lists: the path of the store.
    pub(crate) fn store(&self) -> PathBuf {
        match self {
            Source::Store(path) => path.clone(),
            Source::Drive(emulation) => emulation.store(),
        }
    }
}

/// An attach point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    /// A loop device over a FUSE file.
    Loop,
    /// An NBD server on a socket in the state directory.
    NbdInState,
    /// An NBD server at an address of the user's.
    Nbd {
        /// Where.
        address: Address,
        /// Whether other machines may reach it.
        allow_remote: bool,
    },
}

impl Point {
    /// The same, with a path that holds in any directory.
    pub(crate) fn absolute(self) -> Point {
        match self {
            Point::Nbd { address: Address::Unix(path), allow_remote } => {
                let path = std::path::absolute(&path).unwrap_or(path);
                Point::Nbd { address: Address::Unix(path), allow_remote }
            }
            other => other,
        }
    }
}

/// Serves `job` until it is told to end. `ready` is called once the device answers. Gives back what
/// an emulated drive has done.
///
/// # Errors
/// What kept the volume from being served, or from being closed cleanly. An error of `ready` ends
/// the service: nobody knows of it.
pub(crate) fn run(
    state: &StateDirectory,
    job: Job,
    ready: &mut dyn FnMut(&Entry) -> Result<(), CliError>,
) -> Result<Option<Facts>, CliError> {
    // Before the first thread, so that every thread inherits the mask.
    let signals = Signals::take_over()?;
    let protection = protect::protect(&job.point);
    let mut entry = claim::claim(state, &job)?;
    let mut served = false;
    let mut ready = |entry: &Entry| {
        ready(entry)?;
        served = true;
        log::info!(protection:% = protection; "protected against want of memory");
        Ok(())
    };
    let ended = serve(state, &job, &mut entry, &signals, &mut ready);
    let released = claim::release(state, &entry);
    let result = ended.result.and_then(|facts| released.map(|()| facts));
    match &result {
        Ok(_) => log::info!(name = entry.name; "ended cleanly"),
        // Whoever waited for readiness is told otherwise.
        Err(error) if served => log::error!(name = entry.name, error:% = error; "ended"),
        Err(_) => {}
    }
    if let Some(client) = ended.asked_by {
        client.answer(&result.as_ref().map_or_else(|e| Reply::Failed(e.report()), |_| Reply::Done));
    }
    result
}

/// How a service came to its end.
struct Ended {
    result: Result<Option<Facts>, CliError>,
    /// Who asked for it and waits to hear the result.
    asked_by: Option<Client>,
}

fn serve(
    state: &StateDirectory,
    job: &Job,
    entry: &mut Entry,
    signals: &Signals,
    ready: &mut dyn FnMut(&Entry) -> Result<(), CliError>,
) -> Ended {
    let mut serving = match Serving::start(state, job, entry) {
        Ok(serving) => serving,
        Err(error) => return Ended { result: Err(error), asked_by: None },
    };
    let (result, asked_by) = match ready(entry) {
        Ok(()) => {
            log::info!(
                name = entry.name,
                store:% = entry.store.display(),
                device = entry.device.as_deref().unwrap_or_default(),
                pid = entry.process.pid;
                "serving"
            );
            serving.answer_until_told_to_end(signals)
        }
        Err(error) => (Err(error), None),
    };
    let ended = serving.end();
    Ended { result: result.and(ended), asked_by }
}

/// Leaves the terminal's session, so that neither its end nor its Ctrl-C reaches this process.
pub(crate) fn leave_session() {
    // Fails only for the leader of a session, which is what this asks for.
    let _ = nix::unistd::setsid();
    let _ = std::env::set_current_dir("/");
}
