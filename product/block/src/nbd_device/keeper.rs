//! A thread that gives the device a new connection for each one that the kernel has given up.
//!
//! The kernel gives a connection up when a request on it was not answered in time: a disk that
//! hangs for half a minute is enough. Without this, four such disks would end the device.

use super::netlink::Netlink;
use super::{DEAD_TIMEOUT, Terms};
use coulter::service::BLOCK_SIZE;
use coulter_net::nbd::{Address, handshake_only};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;
use std::time::Duration;

const STACK_SIZE: usize = 256 << 10;
/// Pause after a connection could not be replaced.
const RETRY_PAUSE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// What it takes to make a connection and hand it over.
pub(super) struct Watched {
    pub(super) index: u32,
    pub(super) identity: String,
    pub(super) request_timeout: Duration,
    pub(super) address: Address,
    pub(super) export: String,
    pub(super) size: u64,
    pub(super) flags: u16,
}

/// The thread; dropping this ends it.
pub(super) struct Keeper {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Watches the kernel's ends of `sockets`, one descriptor of each of which is ours.
    pub(super) fn start(watched: Watched, sockets: Vec<OwnedFd>) -> io::Result<Keeper> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let stop_for_thread = rustix::io::fcntl_dupfd_cloexec(&stop, 0)?;
        let thread = std::thread::Builder::new().name("nbd-keeper".into()).stack_size(STACK_SIZE);
        let thread = thread.spawn(move || keep(&watched, sockets, &stop_for_thread))?;
        Ok(Keeper { stop, thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic in it was printed by the panic hook.
            let _ = thread.join();
        }
    }
}

fn keep(watched: &Watched, mut sockets: Vec<OwnedFd>, stop: &OwnedFd) {
    let mut pause = None;
    loop {
        let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
        if pause.is_none() {
            // Only ends are of interest; what comes in is the kernel's to read.
            fds.extend(sockets.iter().map(|socket| PollFd::new(socket, PollFlags::RDHUP)));
        }
        // An interrupted sleep only means one more turn.
        let _ = poll(&mut fds, pause.as_ref());
        if !fds[0].revents().is_empty() {
            return;
        }
        let ended = fds.iter().skip(1).position(|fd| !fd.revents().is_empty());
        drop(fds);
        pause = None;
        let Some(position) = ended else { continue };
        match replace(watched) {
            Ok(socket) => sockets[position] = socket,
            // The server may be ending; then so does this in a moment.
            Err(_) => pause = Some(RETRY_PAUSE),
        }
    }
}

/// Makes a connection and hands it to the kernel.
fn replace(watched: &Watched) -> io::Result<OwnedFd> {
    let connected = handshake_only(&watched.address, &watched.export).map_err(io::Error::other)?;
    let terms = Terms {
        size: watched.size,
        block_size: BLOCK_SIZE,
        flags: watched.flags,
        request_timeout_s: watched.request_timeout.as_secs(),
        dead_timeout_s: DEAD_TIMEOUT.as_secs(),
        identifier: &watched.identity,
    };
    let sockets = [connected.socket];
    Netlink::open()?.reconnect(watched.index, &terms, &sockets)?;
    let [socket] = sockets;
    Ok(socket)
}
