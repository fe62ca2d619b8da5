//! One client's connection: a thread that owns the socket and a session, and sleeps in one place.
//!
//! Each turn reads as much as the socket has, submits all of it with one kick, gathers what is
//! complete and writes it with one call. Nothing is shared and nothing is locked.

use super::export::Export;
use super::handshake::{Agreement, Handshake, Step};
use super::outgoing::SLICES_MAX;
use super::server::{CloseReason, ServerOptions};
use super::socket::{self, timespec};
use super::transmission::{Memory, Transmission};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes read at a time while negotiating.
const HANDSHAKE_READ_SIZE: usize = 4 << 10;

/// What a connection needs to know of its server.
pub(super) struct Context {
    pub(super) exports: Arc<[Export]>,
    pub(super) options: ServerOptions,
    /// Readable for ever from the moment at which the server ends.
    pub(super) stop: OwnedFd,
    /// The same for a thread that is too busy to sleep.
    pub(super) stopping: AtomicBool,
}

/// Serves one client to its end. `socket` must not block.
pub(super) fn serve(socket: &OwnedFd, context: &Context) -> CloseReason {
    let deadline = Instant::now() + context.options.handshake_timeout;
    match negotiate(socket, context, deadline) {
        Ok((agreement, leftover)) => {
            let memory = match context.options.own_kernel {
                true => Memory::Stock,
                false => Memory::OnDemand(context.options.connection_memory_max),
            };
            let export = &context.exports[agreement.export];
            let transmission = Transmission::new(export, agreement, &leftover, &memory);
            let (readable, writable, hung_up) = (true, true, false);
            Connection { socket, context, transmission, readable, writable, hung_up }.run()
        }
        Err(reason) => reason,
    }
}

fn negotiate(
    socket: &OwnedFd,
    context: &Context,
    deadline: Instant,
) -> Result<(Agreement, Vec<u8>), CloseReason> {
    let mut output = Vec::new();
    let mut input: Vec<u8> = Vec::new();
    let mut handshake = Handshake::new(context.exports.clone(), &mut output);
    loop {
        socket::send_all(socket, &output, deadline).map_err(handshake_failure)?;
        output.clear();
        let (used, step) = handshake.advance(&input, &mut output);
        input.drain(..used);
        match step {
            Step::Again => {}
            Step::Wait => receive_some(socket, &mut input, context, deadline)?,
            Step::Enter(agreement) => {
                socket::send_all(socket, &output, deadline).map_err(handshake_failure)?;
                return Ok((agreement, input));
            }
            Step::Abort => {
                // A client may be gone by the time of the answer; that is no error.
                let _ = socket::send_all(socket, &output, deadline);
                return Err(CloseReason::Disconnected);
            }
            Step::Refuse(malformed) => {
                let _ = socket::send_all(socket, &output, deadline);
                return Err(CloseReason::Protocol(malformed));
            }
        }
    }
}

/// Appends what the client sends next to `input`.
fn receive_some(
    socket: &OwnedFd,
    input: &mut Vec<u8>,
    context: &Context,
    deadline: Instant,
) -> Result<(), CloseReason> {
    let mut bytes = [0; HANDSHAKE_READ_SIZE];
    match socket::receive(socket, &mut bytes, deadline, Some(&context.stop)) {
        Ok(0) => Err(CloseReason::Lost),
        Ok(count) => {
            input.extend_from_slice(&bytes[..count]);
            Ok(())
        }
        Err(error) => Err(handshake_failure(error)),
    }
}

fn handshake_failure(error: io::Error) -> CloseReason {
    match error.kind() {
        io::ErrorKind::TimedOut => CloseReason::HandshakeTimeout,
        io::ErrorKind::Interrupted => CloseReason::Shutdown,
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => CloseReason::Lost,
        _ => CloseReason::Io(error),
    }
}

/// A connection in the transmission phase.
struct Connection<'a> {
    socket: &'a OwnedFd,
    context: &'a Context,
    transmission: Transmission,
    /// Whether the socket may have something to read: unknown, or known to.
    readable: bool,
    /// Whether the socket may take something.
    writable: bool,
    /// Both directions are closed; polling the socket would only ever say so again.
    hung_up: bool,
}

impl Connection<'_> {
    fn run(mut self) -> CloseReason {
        let reason = self.turns();
        match &reason {
            // The client may still hear what was done, unless it is gone or does not listen.
            CloseReason::Lost | CloseReason::Shutdown | CloseReason::Protocol(_) => {
                self.finish();
            }
            _ => {}
        }
        self.transmission.abandon();
        reason
    }

    /// Serves until the client says goodbye, or something else ends it.
    fn turns(&mut self) -> CloseReason {
        // Requests may have come in the same bytes as the end of the negotiation.
        if let Err(malformed) = self.transmission.handle_input() {
            return CloseReason::Protocol(malformed);
        }
        loop {
            let input = self.take_input();
            let completed = self.transmission.handle_completions();
            let sent = match self.send_replies() {
                Ok(sent) => sent,
                Err(error) => return error.into(),
            };
            let received = match input {
                Ok(received) => received,
                Err(reason) => return reason,
            };
            if self.transmission.is_finished() {
                return CloseReason::Disconnected;
            }
            if self.context.stopping.load(Ordering::Relaxed) {
                return CloseReason::Shutdown;
            }
            if !(received || completed || sent) {
                match self.sleep(None) {
                    Ok(Woken::ToWork) => {}
                    Ok(Woken::ToStop) => return CloseReason::Shutdown,
                    Err(error) => return error.into(),
                }
            }
        }
    }

    /// Finishes what was submitted and sends the answers, within the time that the options allow.
    fn finish(&mut self) {
        self.transmission.end_input();
        let deadline = Instant::now() + self.context.options.shutdown_timeout;
        while !self.transmission.is_finished() && Instant::now() < deadline {
            let completed = self.transmission.handle_completions();
            let Ok(sent) = self.send_replies() else { return };
            if !completed && !sent {
                let left = deadline.saturating_duration_since(Instant::now());
                if self.sleep(Some(left)).is_err() {
                    return;
                }
            }
        }
    }

    /// Reads and submits; whether there was anything to read.
    fn take_input(&mut self) -> Result<bool, CloseReason> {
        let mut received = false;
        if self.readable && self.transmission.wants_input() {
            received = self.receive()?;
        }
        if received || self.transmission.is_blocked() {
            self.transmission.handle_input().map_err(CloseReason::Protocol)?;
        }
        Ok(received)
    }

    fn receive(&mut self) -> Result<bool, CloseReason> {
        let mut slices = self.transmission.receiver.slices();
        let room: usize = slices.iter().map(|slice| slice.len()).sum();
        let mut control = RecvAncillaryBuffer::default();
        match recvmsg(self.socket, &mut slices, &mut control, RecvFlags::empty()) {
            Ok(message) if message.bytes == 0 => Err(CloseReason::Lost),
            Ok(message) => {
                // After a hang-up nothing will wake us for the rest, so it is read to its end.
                self.readable = message.bytes == room || self.hung_up;
                self.transmission.receiver.received(message.bytes);
                Ok(true)
            }
            Err(Errno::AGAIN) if self.hung_up => Err(CloseReason::Lost),
            Err(Errno::AGAIN) => {
                self.readable = false;
                Ok(false)
            }
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes replies until there are none, or the socket takes no more; whether any was written.
    fn send_replies(&mut self) -> Result<bool, Errno> {
        let mut sent_any = false;
        while self.writable && !self.transmission.replies.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = self.transmission.replies.slices(&mut slices);
            let mut control = SendAncillaryBuffer::default();
            match sendmsg(self.socket, &slices[..count], &mut control, SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    self.transmission.handle_sent(sent);
                    sent_any = true;
                }
                Err(Errno::AGAIN) => self.writable = false,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sent_any)
    }

    /// Sleeps until the socket or the session has something, or, with no timeout, the server ends.
    fn sleep(&mut self, timeout: Option<Duration>) -> Result<Woken, Errno> {
        let mut flags = PollFlags::empty();
        if self.transmission.wants_input() {
            flags |= PollFlags::IN;
        }
        if !self.transmission.replies.is_empty() {
            flags |= PollFlags::OUT;
        }
        // Asked for anew before each sleep, so that a session may use the call to arm itself.
        let session = self.transmission.session();
        let completions = session.completion_fd();
        // A session that is over has nothing to say, and says so for ever.
        let waits = session.outstanding() > 0;
        let wanted = if waits { PollFlags::IN } else { PollFlags::empty() };
        // With a timeout the server is ending already, and this would be readable all the time.
        let stop = if timeout.is_none() { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = [
            PollFd::new(&self.context.stop, stop),
            PollFd::from_borrowed_fd(completions, wanted),
            PollFd::from_borrowed_fd(self.socket.as_fd(), flags),
        ];
        let watched = if self.hung_up { &mut fds[..2] } else { &mut fds[..] };
        match poll(watched, timeout.map(timespec).as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Woken::ToWork),
            Err(error) => return Err(error),
        }
        let events = fds[2].revents();
        // Reading and writing once more shows what is wrong, or what is left.
        self.hung_up |= events.intersects(PollFlags::HUP | PollFlags::ERR);
        self.readable |= self.hung_up || events.intersects(PollFlags::IN);
        self.writable |= self.hung_up || events.intersects(PollFlags::OUT);
        let stopped = fds[0].revents().intersects(PollFlags::IN);
        Ok(if stopped { Woken::ToStop } else { Woken::ToWork })
    }
}

/// What a sleep was ended by.
enum Woken {
    ToWork,
    ToStop,
}

impl From<Errno> for CloseReason {
    fn from(error: Errno) -> CloseReason {
        match error {
            Errno::PIPE | Errno::CONNRESET => CloseReason::Lost,
            error => CloseReason::Io(error.into()),
        }
    }
}
