//! What a daemon waits for: signals, and commands on its control socket.

use super::requests::{Client, Requests};
use crate::control::Request;
use crate::error::Error;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often the caller may look after its volume.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// The signals that ask for a clean end, taken from their default effect.
pub(super) struct Signals {
    descriptor: SignalFd,
}

impl Signals {
    /// Blocks the signals in this thread and all that it will start.
    ///
    /// # Errors
    /// When the system refuses a signal descriptor.
    pub(super) fn take_over() -> Result<Signals, Error> {
        let mut set = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            set.add(signal);
        }
        let failed = |errno: Errno| Error::io("receive", Path::new("signals"), errno.into());
        set.thread_block().map_err(failed)?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let descriptor = SignalFd::with_flags(&set, flags).map_err(failed)?;
        Ok(Signals { descriptor })
    }

    /// The signal that came, if one did.
    fn pending(&self) -> Option<Signal> {
        let received = self.descriptor.read_signal().ok().flatten()?;
        Signal::try_from(received.ssi_signo as i32).ok()
    }
}

/// What happened.
pub(super) enum Event {
    /// A request to end.
    Signal(Signal),
    /// A command.
    Request(Request, Client),
    /// Some time has passed.
    Heartbeat,
}

/// All that comes to a daemon, in turns.
pub(super) struct Events {
    requests: Requests,
    /// When it last let the caller look after its volume.
    beat: Instant,
}

impl Events {
    /// With nothing heard yet.
    pub(super) fn new(requests: Requests) -> Events {
        Events { requests, beat: Instant::now() }
    }

    /// Where requests come from.
    pub(super) fn requests(&mut self) -> &mut Requests {
        &mut self.requests
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// When the system cannot wait, which leaves the daemon deaf.
    pub(super) fn next(&mut self, signals: &Signals) -> io::Result<Event> {
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
            let signal = PollFd::new(signals.descriptor.as_fd(), PollFlags::POLLIN);
            let sources = [signal].into_iter().chain(self.requests.sources());
            let mut sources: Vec<PollFd<'_>> = sources.collect();
            // In whole milliseconds, of which none would be no wait.
            let timeout = PollTimeout::try_from(rest.max(Duration::from_millis(1)));
            match poll(&mut sources, timeout.unwrap_or(PollTimeout::MAX)) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}
