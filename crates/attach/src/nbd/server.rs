//! The NBD server: listens, starts a thread for each client, counts them, and ends in good order.
//!
//! # Invariants
//! - At most [`ServerOptions::connections_max`] clients at a time; one more is hung up on.
//! - [`Server::shutdown`] returns when no thread of the server is left and the socket file is gone;
//!   every request that a client had sent and the server had read is answered, unless the client
//!   does not listen for [`ServerOptions::shutdown_timeout`].

use super::address::Address;
use super::connection::{self, Context};
use super::export::Export;
use super::listener::Listener;
use super::wire::Malformed;
use crate::point::{AttachPoint, Detach, DetachError};
use coulter::service::REQUEST_SIZE_MAX;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// Stack of a connection's thread in bytes.
const STACK_SIZE: usize = 256 << 10;
/// Pause after the system could not accept a client, for instance for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long a client that is just leaving may take, before it counts as a user.
const BUSY_PATIENCE: Duration = Duration::from_secs(1);

/// How a server behaves.
#[derive(Clone)]
pub struct ServerOptions {
    /// Clients at a time.
    pub connections_max: usize,
    /// Bytes of buffers held for one client; [`REQUEST_SIZE_MAX`] at least.
    pub connection_memory_max: usize,
    /// The clients are the kernel that this process runs on, which sends most when it is short of
    /// memory. Each has 4 MiB of buffers, all of them from the start, instead of
    /// `connection_memory_max` as they are needed.
    pub own_kernel: bool,
    /// Time that a client has to choose an export.
    pub handshake_timeout: Duration,
    /// Time that a client has to take its last replies when the server ends.
    pub shutdown_timeout: Duration,
    /// Listen on addresses that other machines reach. There is no TLS and no password.
    pub allow_remote: bool,
    /// Permissions of a unix socket.
    pub socket_mode: u32,
    /// Told of clients that come and go, from the server's threads.
    pub observer: Option<Arc<dyn Fn(Event) + Send + Sync>>,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            connections_max: 64,
            connection_memory_max: 64 << 20,
            own_kernel: false,
            handshake_timeout: Duration::from_secs(30),
            shutdown_timeout: Duration::from_secs(5),
            allow_remote: false,
            socket_mode: 0o600,
            observer: None,
        }
    }
}

/// Something that happened to a client.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// It connected, as the connection of this number.
    Opened(u64),
    /// It was hung up on because there are too many, or no thread could be had.
    Refused,
    /// The connection of this number ended.
    Closed(u64, CloseReason),
}

/// Why a connection ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum CloseReason {
    /// The client said goodbye.
    Disconnected,
    /// The client went away without a word.
    Lost,
    /// The server ends.
    Shutdown,
    /// The client did not choose an export in time.
    HandshakeTimeout,
    /// The client sent what no answer could mend.
    Protocol(Malformed),
    /// The socket failed.
    Io(io::Error),
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseReason::Disconnected => write!(f, "the client disconnected"),
            CloseReason::Lost => write!(f, "the client went away"),
            CloseReason::Shutdown => write!(f, "the server is shutting down"),
            CloseReason::HandshakeTimeout => write!(f, "the client did not choose an export"),
            CloseReason::Protocol(malformed) => write!(f, "protocol error: {malformed}"),
            CloseReason::Io(error) => write!(f, "the socket failed: {error}"),
        }
    }
}

/// Why a server could not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeError {
    /// The address could not be listened on.
    Bind {
        /// The address.
        address: Address,
        /// What the system said.
        source: io::Error,
    },
    /// The address can be reached from other machines, and that was not allowed.
    Remote {
        /// The address.
        address: Address,
    },
    /// The options or exports make no sense.
    Options(&'static str),
    /// The system has no more descriptors or threads.
    System(io::Error),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServeError::Bind { address, source } => {
                write!(f, "cannot listen on {address}: {source}")
            }
            ServeError::Remote { address } => write!(
                f,
                "{address} can be reached from other machines, and NBD here has neither TLS nor \
                 passwords; listen on 127.0.0.1, or allow remote clients (`--allow-remote`)"
            ),
            ServeError::Options(text) => f.write_str(text),
            ServeError::System(error) => write!(f, "cannot start the NBD server: {error}"),
        }
    }
}

impl std::error::Error for ServeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ServeError::Bind { source, .. } | ServeError::System(source) => Some(source),
            _ => None,
        }
    }
}

/// What a server has seen so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Clients now.
    pub connections: u64,
    /// Clients that were let in.
    pub opened: u64,
    /// Clients that were hung up on at once.
    pub refused: u64,
    /// Connections that ended because the client broke the protocol.
    pub protocol_errors: u64,
}

/// A running NBD server. Dropping it shuts it down.
pub struct Server {
    shared: Arc<Shared>,
    address: Address,
    /// The socket that listens, for whoever it is handed over to.
    socket: Option<OwnedFd>,
    listener: Option<JoinHandle<()>>,
}

struct Shared {
    context: Context,
    /// The socket's file stays when the listener ends.
    keeps_file: AtomicBool,
    /// Clients now.
    clients: Mutex<usize>,
    all_gone: Condvar,
    opened: AtomicU64,
    refused: AtomicU64,
    protocol_errors: AtomicU64,
}

impl Server {
    /// Starts to serve `exports`, the first of which is the default one, at `address`.
    pub fn start(
        address: &Address,
        exports: Vec<Export>,
        options: ServerOptions,
    ) -> Result<Server, ServeError> {
        check(&exports, &options)?;
        let listener = Listener::bind(address, options.socket_mode, options.allow_remote)?;
        Server::listen_on(listener, exports, options)
    }

    /// The same on a socket that listens already: inherited from whoever started this process, or
    /// handed over by a server before this one. If `owns_file`, a unix socket's file goes with the
    /// server.
    pub fn resume(
        socket: OwnedFd,
        owns_file: bool,
        exports: Vec<Export>,
        options: ServerOptions,
    ) -> Result<Server, ServeError> {
        check(&exports, &options)?;
        let listener = Listener::adopt(socket, owns_file, options.socket_mode)?;
        Server::listen_on(listener, exports, options)
    }

    fn listen_on(
        mut listener: Listener,
        exports: Vec<Export>,
        options: ServerOptions,
    ) -> Result<Server, ServeError> {
        let socket = listener.duplicate().map_err(ServeError::System)?;
        let address = listener.address().clone();
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| ServeError::System(error.into()))?;
        let shared = Arc::new(Shared {
            context: Context {
                exports: exports.into(),
                options,
                stop,
                stopping: AtomicBool::new(false),
            },
            keeps_file: AtomicBool::new(false),
            clients: Mutex::default(),
            all_gone: Condvar::new(),
            opened: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            protocol_errors: AtomicU64::new(0),
        });
        let thread = std::thread::Builder::new().name("nbd-listen".into()).stack_size(STACK_SIZE);
        let for_thread = shared.clone();
        let listener =
            thread.spawn(move || listen(&mut listener, &for_thread)).map_err(ServeError::System)?;
        Ok(Server { shared, address, socket: Some(socket), listener: Some(listener) })
    }

    /// Where it listens; with the port that the system chose, if it was asked to.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// What it has seen so far.
    pub fn statistics(&self) -> Statistics {
        let shared = &self.shared;
        Statistics {
            connections: *shared.clients() as u64,
            opened: shared.opened.load(Ordering::SeqCst),
            refused: shared.refused.load(Ordering::SeqCst),
            protocol_errors: shared.protocol_errors.load(Ordering::SeqCst),
        }
    }

    /// Stops listening, finishes what clients have asked for, and hangs up on them.
    pub fn shutdown(&mut self) {
        let Some(listener) = self.listener.take() else { return };
        self.shared.context.stopping.store(true, Ordering::SeqCst);
        // An eventfd's counter cannot overflow from one write; nobody reads it, so it stays
        // readable and ends everyone's sleep.
        let _ = rustix::io::write(&self.shared.context.stop, &1u64.to_ne_bytes());
        // The listener's thread reports nothing; a panic in it was printed by the panic hook.
        let _ = listener.join();
        self.socket = None;
        while self.wait_for_clients(Duration::from_secs(1)) > 0 {}
    }

    /// Waits until all clients are gone, or `patience` is over; how many are left.
    fn wait_for_clients(&self, patience: Duration) -> usize {
        let clients = self.shared.clients();
        match self.shared.all_gone.wait_timeout_while(clients, patience, |clients| *clients > 0) {
            Ok((clients, _)) => *clients,
            Err(poisoned) => *poisoned.into_inner().0,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl AttachPoint for Server {
    fn kind(&self) -> &'static str {
        "nbd"
    }

    fn address(&self) -> String {
        self.address.uri(&self.shared.context.exports[0].name)
    }

    fn detach(&mut self, how: Detach) -> Result<(), DetachError> {
        let connections = match how {
            Detach::IfIdle => self.wait_for_clients(BUSY_PATIENCE),
            Detach::Always => 0,
        };
        if connections > 0 {
            let holders = vec![format!("{connections} NBD client(s)")];
            return Err(DetachError::Busy { address: AttachPoint::address(self), holders });
        }
        self.shutdown();
        Ok(())
    }

    /// Clients are hung up on, once what they had asked for is done; those that come meanwhile wait
    /// to be let in.
    fn hand_over(&mut self) -> io::Result<OwnedFd> {
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        let socket = self.socket.take().ok_or_else(gone)?;
        self.shared.keeps_file.store(true, Ordering::SeqCst);
        self.shutdown();
        Ok(socket)
    }
}

fn check(exports: &[Export], options: &ServerOptions) -> Result<(), ServeError> {
    if exports.is_empty() {
        return Err(ServeError::Options("an NBD server needs an export"));
    }
    if (options.connection_memory_max as u64) < REQUEST_SIZE_MAX {
        return Err(ServeError::Options("a connection needs at least 32 MiB of buffers"));
    }
    Ok(())
}

impl Shared {
    fn clients(&self) -> MutexGuard<'_, usize> {
        match self.clients.lock() {
            Ok(clients) => clients,
            // A number is always whole, so a panic elsewhere does not matter.
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    fn observe(&self, event: Event) {
        if let Some(observer) = &self.context.options.observer {
            observer(event);
        }
    }
}

fn listen(listener: &mut Listener, shared: &Arc<Shared>) {
    loop {
        let stop = &shared.context.stop;
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

fn admit(socket: OwnedFd, shared: &Arc<Shared>) {
    let mut clients = shared.clients();
    if *clients >= shared.context.options.connections_max {
        drop(clients);
        return refuse(shared);
    }
    *clients += 1;
    drop(clients);
    let guest = Guest { shared: shared.clone() };
    let number = shared.opened.fetch_add(1, Ordering::SeqCst) + 1;
    let thread = std::thread::Builder::new().name(format!("nbd-{number}")).stack_size(STACK_SIZE);
    let spawned = thread.spawn(move || {
        let shared = &guest.shared;
        shared.observe(Event::Opened(number));
        let reason = connection::serve(&socket, &shared.context);
        // To the client it is over before it is to the server.
        drop(socket);
        if matches!(reason, CloseReason::Protocol(_)) {
            shared.protocol_errors.fetch_add(1, Ordering::SeqCst);
        }
        shared.observe(Event::Closed(number, reason));
    });
    if spawned.is_err() {
        refuse(shared);
    }
}

fn refuse(shared: &Shared) {
    shared.refused.fetch_add(1, Ordering::SeqCst);
    shared.observe(Event::Refused);
}

/// Counts a connection out however its thread ends.
struct Guest {
    shared: Arc<Shared>,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut clients = self.shared.clients();
        *clients -= 1;
        if *clients == 0 {
            self.shared.all_gone.notify_all();
        }
    }
}
