//! What a daemon waits for: signals, and commands on its control socket.

use super::requests::{Client, Requests, SPEAKERS_MAX};
use crate::error::Error;
use crate::service::control::Request;
use coulter_system::raw::{EndSignal, EndSignals};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often the caller may look after its volume.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Most descriptors that are waited on: signals, the socket, and clients that have not said all.
const SOURCES_MAX: usize = 2 + SPEAKERS_MAX;

/// Blocks the signals that ask for a clean end, in this thread and all that it will start.
///
/// # Errors
/// When the system refuses a signal descriptor.
pub(crate) fn take_over_signals() -> Result<EndSignals, Error> {
    EndSignals::take_over().map_err(|source| Error::io("receive", Path::new("signals"), source))
}

/// What happened.
pub(crate) enum Event {
    /// A request to end.
    Signal(EndSignal),
    /// A command.
    Request(Request, Client),
    /// Some time has passed.
    Heartbeat,
}

/// All that comes to a daemon, in turns.
pub(crate) struct Events {
    requests: Requests,
    /// When it last let the caller look after its volume.
    beat: Instant,
}

impl Events {
    /// With nothing heard yet.
    pub(crate) fn new(requests: Requests) -> Events {
        Events { requests, beat: Instant::now() }
    }

    /// Where requests come from.
    pub(crate) fn requests(&mut self) -> &mut Requests {
        &mut self.requests
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// When the system cannot wait, which leaves the daemon deaf.
    pub(crate) fn next(&mut self, signals: &EndSignals) -> io::Result<Event> {
        loop {
            if let Some(signal) = signals.pending() {
                return Ok(Event::Signal(signal));
            }
            // However much is asked meanwhile.
            let rest = HEARTBEAT.saturating_sub(self.beat.elapsed());
            if rest.is_zero() {
                self.beat = Instant::now();
                return Ok(Event::Heartbeat);
            }
            // Those that came together are heard without a wait.
            if let Some((request, client)) = self.requests.next() {
                return Ok(Event::Request(request, client));
            }
            let signal = PollFd::new(signals, PollFlags::IN);
            let sources = [signal].into_iter().chain(self.requests.sources());
            let mut sources: Vec<PollFd<'_>> = sources.collect();
            assert!(sources.len() <= SOURCES_MAX, "more is waited on than there may be");
            match poll(&mut sources, Timespec::try_from(rest).ok().as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}
