//! What a daemon waits for: signals, and commands on its control socket.

use crate::control::{self, Reply, Request};
use crate::error::CliError;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

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
    pub(super) fn take_over() -> Result<Signals, CliError> {
        let mut set = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            set.add(signal);
        }
        let failed = |errno: Errno| CliError::io("receive", Path::new("signals"), errno.into());
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

/// A command that waits for an answer.
pub(super) struct Client {
    stream: UnixStream,
}

impl Client {
    /// Its connection, for another program that will answer.
    pub(super) fn into_stream(self) -> UnixStream {
        self.stream
    }

    /// A client whose connection another program has left.
    pub(super) fn resume(stream: UnixStream) -> Client {
        Client { stream }
    }

    /// Answers; a client that has gone away is no concern of ours.
    pub(super) fn answer(mut self, reply: &Reply) {
        if let Err(error) = control::write_line(&mut self.stream, reply) {
            log::debug!("nobody took the answer: {error}");
        }
    }
}

/// What happened.
pub(super) enum Event {
    /// A request to end.
    Signal(Signal),
    /// A command.
    Request(Request, Client),
    /// Nothing for a while.
    Heartbeat,
}

/// Waits for the next event.
///
/// # Errors
/// When the system cannot wait, which leaves the daemon deaf.
pub(super) fn next(signals: &Signals, listener: &UnixListener) -> io::Result<Event> {
    loop {
        let mut sources = [
            PollFd::new(signals.descriptor.as_fd(), PollFlags::POLLIN),
            PollFd::new(listener.as_fd(), PollFlags::POLLIN),
        ];
        let timeout = PollTimeout::try_from(HEARTBEAT).unwrap_or(PollTimeout::MAX);
        match poll(&mut sources, timeout) {
            Ok(0) => return Ok(Event::Heartbeat),
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        if let Some(signal) = signals.pending() {
            return Ok(Event::Signal(signal));
        }
        if let Some(event) = accept(listener) {
            return Ok(event);
        }
    }
}

/// The request of a client that waits, if it has one that can be understood.
fn accept(listener: &UnixListener) -> Option<Event> {
    let (stream, _) = listener.accept().ok()?;
    stream.set_nonblocking(false).ok()?;
    match control::receive(&stream) {
        Ok(request) => Some(Event::Request(request, Client { stream })),
        Err(error) => {
            log::warn!(error:%; "a client of the control socket was turned away");
            None
        }
    }
}

/// Listens at `path`, which the caller has made sure nobody else uses.
///
/// # Errors
/// When the socket cannot be made.
pub(super) fn listen(path: &Path) -> Result<UnixListener, CliError> {
    let failed = |source| CliError::io("make the control socket", path, source);
    // A dead daemon's goes; anything but a socket stays, and is in the way.
    match std::fs::symlink_metadata(path) {
        Ok(there) if there.file_type().is_socket() => {
            std::fs::remove_file(path).map_err(failed)?;
        }
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}
