//! Sockets that do not block, used by code that waits until a deadline.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Sends all of `bytes`, or fails with `TimedOut`, or with `Interrupted` once `stop` is readable.
pub fn send_all(
    socket: &OwnedFd,
    mut bytes: &[u8],
    deadline: Instant,
    stop: Option<&OwnedFd>,
) -> io::Result<()> {
    while !bytes.is_empty() {
        match send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::AGAIN) => wait(socket, PollFlags::OUT, deadline, stop)?,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Receives something, or fails with `TimedOut`, or with `Interrupted` once `stop` is readable;
/// zero bytes at the end of the stream.
pub fn receive(
    socket: &OwnedFd,
    bytes: &mut [u8],
    deadline: Instant,
    stop: Option<&OwnedFd>,
) -> io::Result<usize> {
    loop {
        match recv(socket, &mut *bytes, RecvFlags::empty()) {
            Ok((count, _)) => return Ok(count),
            Err(Errno::AGAIN) => wait(socket, PollFlags::IN, deadline, stop)?,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Fills `bytes`, or fails with `TimedOut` or `UnexpectedEof`.
pub fn receive_exactly(
    socket: &OwnedFd,
    mut bytes: &mut [u8],
    deadline: Instant,
) -> io::Result<()> {
    while !bytes.is_empty() {
        match receive(socket, bytes, deadline, None)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => bytes = &mut bytes[count..],
        }
    }
    Ok(())
}

/// The duration as the kernel takes it.
pub fn timespec(duration: Duration) -> Timespec {
    let tv_sec = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec, tv_nsec: i64::from(duration.subsec_nanos()) }
}

fn wait(
    socket: &OwnedFd,
    flags: PollFlags,
    deadline: Instant,
    stop: Option<&OwnedFd>,
) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let stop = stop.map(|stop| PollFd::new(stop, PollFlags::IN));
    let socket = PollFd::new(socket, flags);
    let mut fds = [stop.clone().unwrap_or(socket.clone()), socket];
    match poll(&mut fds, Some(&timespec(left))) {
        Ok(_) if stop.is_some() && !fds[0].revents().is_empty() => {
            Err(io::ErrorKind::Interrupted.into())
        }
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
