//! One client's connection: a thread that owns the socket and its exchange, and sleeps in one
//! place.
//!
//! Each turn reads all bytes of the socket, submits the requests with one kick, collects
//! completions and writes the replies with one call. Connections share nothing and take no locks.

use super::event::CloseReason;
use super::malformed::Malformed;
use super::outgoing::{Outgoing, SLICES_MAX};
use super::receive::Receiver;
use super::server::Stop;
use super::socket::timespec;
use coulter_attach::linger::Linger;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg, sendmsg,
};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

/// The meaning of a connection's bytes: decodes requests and encodes replies. It has no socket.
pub trait Exchange {
    /// The receiver of incoming bytes.
    fn receiver(&mut self) -> &mut Receiver;
    /// The bytes to send.
    fn replies(&self) -> &Outgoing;
    /// Records that `count` bytes of replies were sent.
    fn handle_sent(&mut self, count: usize);
    /// Starts all requests that have arrived. After an error only the bytes in
    /// [`Exchange::replies`] are still sent.
    fn handle_input(&mut self) -> Result<(), Malformed>;
    /// Replies to requests that are complete or due. Returns whether there were any.
    fn handle_completions(&mut self) -> bool;
    /// Whether the socket is to be read.
    fn wants_input(&self) -> bool;
    /// Whether requests that have arrived wait for room.
    fn is_blocked(&self) -> bool;
    /// Ends the input. Submitted requests are still answered; an incomplete request is dropped.
    fn end_input(&mut self);
    /// Whether every request is answered and every answer sent, after the end of input.
    fn is_finished(&self) -> bool;
    /// Why it is finished.
    fn end_reason(&mut self) -> CloseReason {
        CloseReason::Disconnected
    }
    /// Ends the exchange with a client that is gone. Nothing more is sent, and the call returns
    /// when every buffer is back.
    fn abandon(&mut self);
    /// Requests in flight.
    fn outstanding(&self) -> usize;
    /// The descriptor that becomes readable at the next completion, for a sleep that begins now.
    /// `None` if no request is in flight.
    fn completion_fd(&self) -> Option<BorrowedFd<'_>>;
    /// Another descriptor that ends a sleep; [`Exchange::handle_completions`] handles it.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Deadline of a sleep; [`Exchange::handle_completions`] handles it.
    fn deadline(&self) -> Option<Instant> {
        None
    }
}

/// A connection whose bytes `exchange` understands.
pub struct Connection<'a, E> {
    socket: &'a OwnedFd,
    stop: &'a Stop,
    exchange: E,
    /// Whether the socket may have bytes to read.
    readable: bool,
    /// Whether the socket may accept bytes.
    writable: bool,
    /// Both directions are closed; polling the socket would only report that again.
    hung_up: bool,
    linger: Linger,
    /// The most requests that were in flight at a time since the last sleep.
    deepest: usize,
}

impl<'a, E: Exchange> Connection<'a, E> {
    /// A connection of `exchange` over `socket`; `stop` ends it.
    pub fn new(socket: &'a OwnedFd, stop: &'a Stop, exchange: E) -> Connection<'a, E> {
        let (readable, writable, hung_up) = (true, true, false);
        let linger = Linger::default();
        Connection { socket, stop, exchange, readable, writable, hung_up, linger, deepest: 0 }
    }

    /// Serves the client to its end. The socket must not block.
    pub fn run(mut self) -> CloseReason {
        let reason = self.turns();
        match &reason {
            // The client may still hear what was done, unless it is gone or does not listen.
            CloseReason::Lost | CloseReason::Shutdown | CloseReason::Protocol(_) => {
                self.finish();
            }
            _ => {}
        }
        self.exchange.abandon();
        reason
    }

    /// Serves until the client disconnects or the connection ends otherwise.
    fn turns(&mut self) -> CloseReason {
        // Requests may have come in the same bytes as the end of the negotiation.
        if let Err(malformed) = self.exchange.handle_input() {
            return CloseReason::Protocol(malformed);
        }
        loop {
            let input = self.take_input();
            self.deepest = self.deepest.max(self.exchange.outstanding());
            let completed = self.exchange.handle_completions();
            let sent = match self.send_replies() {
                Ok(sent) => sent,
                Err(error) => return error.into(),
            };
            let received = match input {
                Ok(received) => received,
                Err(reason) => return reason,
            };
            if self.exchange.is_finished() {
                return self.exchange.end_reason();
            }
            if self.stop.is_now() {
                return CloseReason::Shutdown;
            }
            if received || completed || sent {
                self.linger.found(Instant::now);
            } else if self.deepest <= 1 && self.linger.looks_again(Instant::now()) {
                // Not where more is in flight at a time: a sleep costs each of the requests little then.
                thread::yield_now();
                self.readable = true;
            } else {
                self.deepest = 0;
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
        self.exchange.end_input();
        let deadline = Instant::now() + self.stop.timeout;
        while !self.exchange.is_finished() && Instant::now() < deadline {
            let completed = self.exchange.handle_completions();
            let Ok(sent) = self.send_replies() else { return };
            if !completed && !sent {
                let left = deadline.saturating_duration_since(Instant::now());
                if self.sleep(Some(left)).is_err() {
                    return;
                }
            }
        }
    }

    /// Reads and submits. Returns whether there were bytes to read.
    fn take_input(&mut self) -> Result<bool, CloseReason> {
        let mut received = false;
        if self.readable && self.exchange.wants_input() {
            received = self.receive()?;
        }
        if received || self.exchange.is_blocked() {
            self.exchange.handle_input().map_err(CloseReason::Protocol)?;
        }
        Ok(received)
    }

    fn receive(&mut self) -> Result<bool, CloseReason> {
        let mut slices = self.exchange.receiver().slices();
        let room: usize = slices.iter().map(|slice| slice.len()).sum();
        let mut control = RecvAncillaryBuffer::default();
        match recvmsg(self.socket, &mut slices, &mut control, RecvFlags::empty()) {
            Ok(message) if message.bytes == 0 => Err(CloseReason::Lost),
            Ok(message) => {
                // After a hang-up nothing will wake us for the rest, so it is read to its end.
                self.readable = message.bytes == room || self.hung_up;
                self.exchange.receiver().received(message.bytes);
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

    /// Writes replies until none are left or the socket is full. Returns whether any were written.
    fn send_replies(&mut self) -> Result<bool, Errno> {
        let mut sent_any = false;
        while self.writable && !self.exchange.replies().is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = self.exchange.replies().slices(&mut slices);
            let mut control = SendAncillaryBuffer::default();
            match sendmsg(self.socket, &slices[..count], &mut control, SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    self.exchange.handle_sent(sent);
                    sent_any = true;
                }
                Err(Errno::AGAIN) => self.writable = false,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sent_any)
    }

    /// Sleeps until the socket or the session is ready, or, without a timeout, until the server
    /// ends.
    fn sleep(&mut self, timeout: Option<Duration>) -> Result<Woken, Errno> {
        let mut flags = PollFlags::empty();
        if self.exchange.wants_input() {
            flags |= PollFlags::IN;
        }
        if !self.exchange.replies().is_empty() {
            flags |= PollFlags::OUT;
        }
        // With a timeout the server is ending already, and this would be readable all the time.
        let stop = if timeout.is_none() { PollFlags::IN } else { PollFlags::empty() };
        let now = Instant::now();
        let due = self.exchange.deadline().map(|due| due.saturating_duration_since(now));
        let timeout = [timeout, due].into_iter().flatten().min();
        // Asked for anew before each sleep, so that a session may use the call to arm itself. What has
        // nothing to say would say so for ever, so it is not listened to.
        let fds = [
            (self.stop.readable.as_fd(), stop),
            heeded(self.exchange.completion_fd(), self.stop),
            heeded(self.exchange.wake_fd(), self.stop),
            (self.socket.as_fd(), flags),
        ];
        let mut fds = fds.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags));
        let watched = if self.hung_up { &mut fds[..3] } else { &mut fds[..] };
        match poll(watched, timeout.map(timespec).as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Woken::ToWork),
            Err(error) => return Err(error),
        }
        let [stop, _, _, events] = fds.map(|fd| fd.revents());
        // Reading and writing once more shows what is wrong, or what is left.
        self.hung_up |= events.intersects(PollFlags::HUP | PollFlags::ERR);
        self.readable |= self.hung_up || events.intersects(PollFlags::IN);
        self.writable |= self.hung_up || events.intersects(PollFlags::OUT);
        let stopped = stop.intersects(PollFlags::IN);
        Ok(if stopped { Woken::ToStop } else { Woken::ToWork })
    }
}

/// A descriptor that ends a sleep when it is readable, or one that ends none.
fn heeded<'f>(fd: Option<BorrowedFd<'f>>, stop: &'f Stop) -> (BorrowedFd<'f>, PollFlags) {
    match fd {
        Some(fd) => (fd, PollFlags::IN),
        None => (stop.readable.as_fd(), PollFlags::empty()),
    }
}

/// The reason for the end of a sleep.
enum Woken {
    ToWork,
    ToStop,
}
