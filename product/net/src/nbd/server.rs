//! The NBD server: exports behind a `net` server.

use super::connection::Nbd;
use super::export::Export;
use super::uri::uri;
use crate::{Address, Budget, Conduct, Event, Listener, ServeError, SocketServer, Statistics};
use coulter::service::REQUEST_SIZE_MAX;
use coulter_attach::point::{AttachPoint, Detach, DetachError};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// How long a client that is just leaving may take, before it counts as a user.
const BUSY_PATIENCE: Duration = Duration::from_secs(1);

/// How a server behaves.
#[derive(Clone)]
pub struct ServerOptions {
    /// Clients at a time.
    pub connections_max: usize,
    /// Bytes of buffers held for one client; [`REQUEST_SIZE_MAX`] at least.
    pub connection_memory_max: usize,
    /// Bytes of buffers held for all clients together; twice [`REQUEST_SIZE_MAX`] at least.
    pub memory_max: usize,
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
            memory_max: 256 << 20,
            own_kernel: false,
            handshake_timeout: Duration::from_secs(30),
            shutdown_timeout: Duration::from_secs(5),
            allow_remote: false,
            socket_mode: 0o600,
            observer: None,
        }
    }
}

/// A running NBD server. Dropping it shuts it down.
pub struct Server(SocketServer<Nbd>);

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

    /// The same on a socket that already listens: inherited from the process that started this one,
    /// or handed over by an earlier server. With `owns_file`, the file of a unix socket is removed
    /// with the server.
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
        listener: Listener,
        exports: Vec<Export>,
        options: ServerOptions,
    ) -> Result<Server, ServeError> {
        let conduct = Conduct {
            connections_max: options.connections_max,
            own_kernel_only: false,
            shutdown_timeout: options.shutdown_timeout,
            observer: options.observer.clone(),
        };
        let budget = Arc::new(Budget::new(options.memory_max, options.connections_max));
        let nbd = Nbd { exports: exports.into(), options, budget };
        Ok(Server(SocketServer::start(listener, nbd, conduct)?))
    }

    /// Where it listens; with the port that the system chose, if it was asked to.
    pub fn address(&self) -> &Address {
        self.0.address()
    }

    /// The URI by which other tools reach its default export.
    pub fn uri(&self) -> String {
        uri(self.0.address(), &self.0.protocol().exports[0].name)
    }

    /// What it has seen so far.
    pub fn statistics(&self) -> Statistics {
        self.0.statistics()
    }

    /// Stops listening, finishes what clients have asked for, and hangs up on them.
    pub fn shutdown(&mut self) {
        self.0.shutdown();
    }
}

impl AttachPoint for Server {
    fn kind(&self) -> &'static str {
        "nbd"
    }

    fn address(&self) -> String {
        self.uri()
    }

    fn detach(&mut self, how: Detach) -> Result<(), DetachError> {
        let connections = match how {
            Detach::IfIdle => self.0.wait_for_clients(BUSY_PATIENCE),
            Detach::Always => 0,
        };
        if connections > 0 {
            let holders = vec![format!("{connections} NBD client(s)")];
            return Err(DetachError::Busy { address: self.uri(), holders });
        }
        self.shutdown();
        Ok(())
    }

    /// Clients are hung up on, once what they had asked for is done; those that come meanwhile wait
    /// to be let in.
    fn hand_over(&mut self) -> io::Result<OwnedFd> {
        self.0.hand_over()
    }
}

fn check(exports: &[Export], options: &ServerOptions) -> Result<(), ServeError> {
    if exports.is_empty() {
        return Err(ServeError::Options("an NBD server needs an export"));
    }
    if (options.connection_memory_max as u64) < REQUEST_SIZE_MAX {
        return Err(ServeError::Options("a connection needs at least 32 MiB of buffers"));
    }
    if (options.memory_max as u64) < 2 * REQUEST_SIZE_MAX {
        return Err(ServeError::Options("all connections need at least 64 MiB of buffers"));
    }
    Ok(())
}
