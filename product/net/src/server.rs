//! A server of any protocol: listens, starts a thread for each client, counts clients, and shuts
//! down in order.
//!
//! # Invariants
//! - At most [`Conduct::connections_max`] clients at a time. Who makes room for another, and who is
//!   refused: see [`guests`](super::guests).
//! - [`SocketServer::shutdown`] returns when no thread of the server is left and the socket
//!   file is gone; every request that a client had sent and the server had read is answered, unless
//!   the client does not listen for [`Conduct::shutdown_timeout`].

use super::address::Address;
use super::event::{CloseReason, Event, Statistics};
use super::guests::{Guests, Standing};
use super::listener::Listener;
use super::peer::Peer;
use super::serve_error::ServeError;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// Stack of a connection's thread in bytes.
const STACK_SIZE: usize = 256 << 10;
/// Pause after the system could not accept a client, for instance for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What is spoken on a connection.
pub trait Protocol: Send + Sync + 'static {
    /// What threads are named after.
    const NAME: &'static str;

    /// Serves one client to its end. `socket` does not block. `standing` hears when the client has
    /// said what it wants and may have it; until then it makes room for others.
    fn serve(&self, socket: &OwnedFd, stop: &Stop, standing: &Standing) -> CloseReason;
}

/// How a server behaves, whatever it speaks.
#[derive(Clone)]
pub struct Conduct {
    /// Clients at a time.
    pub connections_max: usize,
    /// Only the kernel that this process runs on, and users that may do all that this process may.
    pub own_kernel_only: bool,
    /// Time that a client has to take its last replies when the server ends.
    pub shutdown_timeout: Duration,
    /// Told of clients that come and go, from the server's threads.
    pub observer: Option<Arc<dyn Fn(Event) + Send + Sync>>,
}

/// The end of a server, as its connections see it.
pub struct Stop {
    /// Readable for ever from the moment at which the server ends.
    pub readable: OwnedFd,
    /// The same for a thread that is too busy to sleep.
    stopping: AtomicBool,
    /// [`Conduct::shutdown_timeout`].
    pub timeout: Duration,
}

impl Stop {
    /// True once the server ends.
    pub fn is_now(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}

/// A running server. Dropping it shuts it down.
pub struct SocketServer<P: Protocol> {
    shared: Arc<Shared<P>>,
    address: Address,
    /// The listening socket, for a handover.
    socket: Option<OwnedFd>,
    listener: Option<JoinHandle<()>>,
}

struct Shared<P> {
    protocol: P,
    conduct: Conduct,
    stop: Stop,
    /// The socket's file stays when the listener ends.
    keeps_file: AtomicBool,
    /// Clients now.
    clients: Mutex<Guests>,
    all_gone: Condvar,
    opened: AtomicU64,
    refused: AtomicU64,
    protocol_errors: AtomicU64,
}

impl<P: Protocol> SocketServer<P> {
    /// Serves the clients of `listener`.
    pub fn start(
        mut listener: Listener,
        protocol: P,
        conduct: Conduct,
    ) -> Result<SocketServer<P>, ServeError> {
        let socket = listener.duplicate().map_err(ServeError::System)?;
        let address = listener.address().clone();
        let readable = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| ServeError::System(error.into()))?;
        let timeout = conduct.shutdown_timeout;
        let shared = Arc::new(Shared {
            protocol,
            conduct,
            stop: Stop { readable, stopping: AtomicBool::new(false), timeout },
            keeps_file: AtomicBool::new(false),
            clients: Mutex::default(),
            all_gone: Condvar::new(),
            opened: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            protocol_errors: AtomicU64::new(0),
        });
        let name = format!("{}-listen", P::NAME);
        let thread = std::thread::Builder::new().name(name).stack_size(STACK_SIZE);
        let for_thread = shared.clone();
        let listener =
            thread.spawn(move || listen(&mut listener, &for_thread)).map_err(ServeError::System)?;
        Ok(SocketServer { shared, address, socket: Some(socket), listener: Some(listener) })
    }

    /// Where it listens; with the port that the system chose, if it was asked to.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The protocol that its clients speak.
    pub fn protocol(&self) -> &P {
        &self.shared.protocol
    }

    /// What it has seen so far.
    pub fn statistics(&self) -> Statistics {
        let shared = &self.shared;
        Statistics {
            connections: shared.clients().count() as u64,
            opened: shared.opened.load(Ordering::SeqCst),
            refused: shared.refused.load(Ordering::SeqCst),
            protocol_errors: shared.protocol_errors.load(Ordering::SeqCst),
        }
    }

    /// Stops listening, finishes what clients have asked for, and hangs up on them.
    pub fn shutdown(&mut self) {
        let Some(listener) = self.listener.take() else { return };
        self.shared.stop.stopping.store(true, Ordering::SeqCst);
        // An eventfd's counter cannot overflow from one write; nobody reads it, so it stays
        // readable and ends everyone's sleep.
        let _ = rustix::io::write(&self.shared.stop.readable, &1u64.to_ne_bytes());
        // The listener's thread reports nothing; a panic in it was printed by the panic hook.
        let _ = listener.join();
        self.socket = None;
        while self.wait_for_clients(Duration::from_secs(1)) > 0 {}
    }

    /// Waits until all clients are gone, or `patience` is over; how many are left.
    pub fn wait_for_clients(&self, patience: Duration) -> usize {
        let clients = self.shared.clients();
        let are_there = |clients: &mut Guests| clients.count() > 0;
        match self.shared.all_gone.wait_timeout_while(clients, patience, are_there) {
            Ok((clients, _)) => clients.count(),
            Err(poisoned) => poisoned.into_inner().0.count(),
        }
    }

    /// Shuts down, but gives back the socket that listens, its file left in its place. Clients that
    /// come meanwhile wait to be let in.
    pub fn hand_over(&mut self) -> io::Result<OwnedFd> {
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        let socket = self.socket.take().ok_or_else(gone)?;
        self.shared.keeps_file.store(true, Ordering::SeqCst);
        self.shutdown();
        Ok(socket)
    }
}

impl<P: Protocol> Drop for SocketServer<P> {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl<P: Protocol> Shared<P> {
    fn clients(&self) -> MutexGuard<'_, Guests> {
        match self.clients.lock() {
            Ok(clients) => clients,
            // Each change leaves the list whole, so a panic elsewhere does not matter.
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    fn observe(&self, event: Event) {
        if let Some(observer) = &self.conduct.observer {
            observer(event);
        }
    }

    fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::SeqCst);
        self.observe(Event::Refused);
    }
}

fn listen<P: Protocol>(listener: &mut Listener, shared: &Arc<Shared<P>>) {
    loop {
        let stop = &shared.stop.readable;
        let mut fds = [PollFd::new(stop, PollFlags::IN), PollFd::new(&*listener, PollFlags::IN)];
        // An interrupted or failed sleep only means one more turn.
        let _ = poll(&mut fds, None);
        if !fds[0].revents().is_empty() {
            if shared.keeps_file.load(Ordering::SeqCst) {
                listener.keep_file();
            }
            return;
        }
        match listener.accept() {
            Ok(socket) => admit(socket, shared),
            // The client was gone before it was let in.
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => {}
            Err(_) => std::thread::sleep(ACCEPT_PAUSE),
        }
    }
}

fn admit<P: Protocol>(socket: OwnedFd, shared: &Arc<Shared<P>>) {
    let conduct = &shared.conduct;
    // Before the question about the peer, which costs more.
    if shared.clients().is_full(conduct.connections_max) {
        return shared.refuse();
    }
    let peer = Peer::of(socket.as_fd());
    if conduct.own_kernel_only && !peer.is_trusted() {
        return shared.refuse();
    }
    let socket = Arc::new(socket);
    let number = shared.opened.load(Ordering::SeqCst) + 1;
    let admitted = shared.clients().admit(number, peer, &socket, conduct.connections_max);
    let Some((standing, is_another_displaced)) = admitted else { return shared.refuse() };
    if is_another_displaced {
        shared.refuse();
    }
    let guest = Guest { shared: shared.clone(), number };
    shared.opened.store(number, Ordering::SeqCst);
    let name = format!("{}-{number}", P::NAME);
    let thread = std::thread::Builder::new().name(name).stack_size(STACK_SIZE);
    let spawned = thread.spawn(move || {
        let shared = &guest.shared;
        shared.observe(Event::Opened(number));
        let mut reason = shared.protocol.serve(&socket, &shared.stop, &standing);
        // To the client it is over before it is to the server.
        drop(socket);
        if standing.is_displaced() {
            reason = CloseReason::Displaced;
        }
        if matches!(reason, CloseReason::Protocol(_)) {
            shared.protocol_errors.fetch_add(1, Ordering::SeqCst);
        }
        shared.observe(Event::Closed(number, reason));
    });
    if spawned.is_err() {
        shared.refuse();
    }
}

/// Counts a connection out however its thread ends.
struct Guest<P: Protocol> {
    shared: Arc<Shared<P>>,
    number: u64,
}

impl<P: Protocol> Drop for Guest<P> {
    fn drop(&mut self) {
        let mut clients = self.shared.clients();
        clients.leave(self.number);
        if clients.count() == 0 {
            self.shared.all_gone.notify_all();
        }
    }
}
