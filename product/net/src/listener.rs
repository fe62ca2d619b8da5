//! The socket that a server listens on, and its file.
//!
//! # Invariants
//! - A socket file is removed only if nothing listens there any more, or if it is our own. Between
//!   `bind` and `listen` nothing listens there yet: so servers that start take turns.
//! - A TCP port beyond the loopback is opened only when the caller says so: there is no TLS.

use super::address::Address;
use super::serve_error::ServeError;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::ffi::OsStr;
use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;
/// How long another server may take to begin to listen, and the interval of the checks.
const TURN_PATIENCE: Duration = Duration::from_secs(2);
const TURN_PAUSE: Duration = Duration::from_millis(1);

/// A listening socket, and its file if it is a unix socket.
pub struct Listener {
    socket: OwnedFd,
    /// The address in use, with the port that the system chose.
    address: Address,
    file: Option<SocketFile>,
}

/// The socket file that this process made.
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl Listener {
    /// Listens at `address`; `socket_mode` is for the file of a unix socket.
    pub fn bind(
        address: &Address,
        socket_mode: u32,
        allow_remote: bool,
    ) -> Result<Listener, ServeError> {
        match address {
            Address::Unix(path) => Listener::bind_unix(path, socket_mode),
            Address::Tcp { host, port } => Listener::bind_tcp(host, *port, allow_remote),
        }
    }

    /// Continues with a socket that already listens: inherited, or handed over. With `owns_file`,
    /// its file is removed at the end, and a deleted file is made again now, with `socket_mode`.
    pub fn adopt(
        socket: OwnedFd,
        owns_file: bool,
        socket_mode: u32,
    ) -> Result<Listener, ServeError> {
        let refused = || ServeError::Options("the socket that was passed is not one that listens");
        let accepts = rustix::net::sockopt::socket_acceptconn(&socket);
        if !accepts.map_err(|_| refused())? {
            return Err(refused());
        }
        let system = |errno: Errno| ServeError::System(errno.into());
        rustix::io::ioctl_fionbio(&socket, true).map_err(system)?;
        let flags = rustix::io::fcntl_getfd(&socket).map_err(system)?;
        rustix::io::fcntl_setfd(&socket, flags | rustix::io::FdFlags::CLOEXEC).map_err(system)?;
        let name = rustix::net::getsockname(&socket).map_err(system)?;
        if let Ok(name) = std::net::SocketAddr::try_from(name.clone()) {
            let address = Address::Tcp { host: name.ip().to_string(), port: name.port() };
            return Ok(Listener { socket, address, file: None });
        }
        let name = SocketAddrUnix::try_from(name).map_err(|_| refused())?;
        let path = name.path().ok_or_else(refused)?;
        let path = PathBuf::from(OsStr::from_bytes(path.to_bytes()));
        let file = match owns_file.then(|| identity(&path)) {
            // Nobody finds the old socket any more.
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
                return Listener::bind_unix(&path, socket_mode);
            }
            Some(found) => {
                let identity = found.map_err(ServeError::System)?;
                Some(SocketFile { path: path.clone(), identity })
            }
            None => None,
        };
        Ok(Listener { socket, address: Address::Unix(path), file })
    }

    /// Keeps the socket file at the end.
    pub fn keep_file(&mut self) {
        self.file = None;
    }

    /// Another descriptor for the socket.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        Ok(rustix::io::fcntl_dupfd_cloexec(&self.socket, 0)?)
    }

    fn bind_unix(path: &Path, socket_mode: u32) -> Result<Listener, ServeError> {
        let error = |source: io::Error| ServeError::Bind {
            address: Address::Unix(path.to_owned()),
            source,
        };
        let errno = |errno: Errno| error(errno.into());
        let name = SocketAddrUnix::new(path).map_err(errno)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(errno)?;
        // The file takes its permissions from the socket, so that it is never open to others.
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(socket_mode)).map_err(errno)?;
        let _turn = turn_in(path);
        match rustix::net::bind(&socket, &name) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => {
                remove_stale(path, &name).map_err(error)?;
                rustix::net::bind(&socket, &name).map_err(errno)?;
            }
            Err(other) => return Err(errno(other)),
        }
        let identity = identity(path).map_err(error)?;
        let file = Some(SocketFile { path: path.to_owned(), identity });
        let listener = Listener { socket, address: Address::Unix(path.to_owned()), file };
        rustix::net::listen(&listener.socket, BACKLOG).map_err(errno)?;
        Ok(listener)
    }

    fn bind_tcp(host: &str, port: u16, allow_remote: bool) -> Result<Listener, ServeError> {
        let address = || Address::Tcp { host: host.to_owned(), port };
        let error = |source: io::Error| ServeError::Bind { address: address(), source };
        let found: Vec<_> = (host, port).to_socket_addrs().map_err(error)?.collect();
        if !allow_remote && !found.iter().all(|found| found.ip().is_loopback()) {
            return Err(ServeError::Remote { address: address() });
        }
        let listener = TcpListener::bind(&found[..]).map_err(error)?;
        listener.set_nonblocking(true).map_err(error)?;
        let local = listener.local_addr().map_err(error)?;
        let address = Address::Tcp { host: local.ip().to_string(), port: local.port() };
        Ok(Listener { socket: listener.into(), address, file: None })
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The next client, as a socket that does not block.
    pub fn accept(&self) -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::accept_with(&self.socket, flags)?;
        if matches!(self.address, Address::Tcp { .. }) {
            // A reply must not wait for the next one. Best effort: it is only slower without.
            let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
            let _ = rustix::net::sockopt::set_socket_keepalive(&socket, true);
        }
        Ok(socket)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(SocketFile { path, identity: ours }) = &self.file
            && identity(path).is_ok_and(|found| found == *ours)
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let status = rustix::fs::lstat(path)?;
    Ok((status.st_dev, status.st_ino))
}

/// Waits until no other server starts to listen in the directory of `path`. Others wait until the
/// returned lock is dropped. `None` if the directory cannot be locked, or if another process keeps
/// its lock; two servers that start at once may then still conflict.
fn turn_in(path: &Path) -> Option<OwnedFd> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory =
        rustix::fs::open(directory.unwrap_or(Path::new(".")), flags, Mode::empty()).ok()?;
    let deadline = Instant::now() + TURN_PATIENCE;
    loop {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(directory),
            Err(Errno::AGAIN | Errno::INTR) if Instant::now() < deadline => {
                std::thread::sleep(TURN_PAUSE);
            }
            Err(_) => return None,
        }
    }
}

/// Removes a socket file that a dead server left. Anything else in its place is an error.
fn remove_stale(path: &Path, name: &SocketAddrUnix) -> io::Result<()> {
    let status = rustix::fs::lstat(path)?;
    if FileType::from_raw_mode(status.st_mode) != FileType::Socket {
        let text = "something that is not a socket is in its place";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&probe, name) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path),
        // Accepted, or the backlog is full: someone lives there.
        _ => Err(io::Error::new(io::ErrorKind::AddrInUse, "another server listens there")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::sync::Barrier;

    /// A socket file as a dead server leaves it. It never listened, because a program that another
    /// test starts has a copy of every descriptor for a moment and would listen in its place.
    fn leave_dead(path: &Path) {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None);
        let name = SocketAddrUnix::new(path).expect("it is short");
        let bound = rustix::net::bind(socket.expect("sockets can be had"), &name);
        bound.expect("the directory is writable");
    }

    #[test]
    fn a_socket_whose_file_was_deleted_is_made_again_by_whoever_goes_on() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().join("s");
        let mut first = Listener::bind(&Address::Unix(path.clone()), 0o600, false)
            .expect("the directory is writable");
        first.keep_file();
        std::fs::remove_file(&path).expect("it is there");
        let socket = first.duplicate().expect("descriptors can be had");
        let second = Listener::adopt(socket, true, 0o600).expect("the directory is writable");
        drop(first);
        UnixStream::connect(&path).expect("it listens");
        drop(second);
        assert!(!path.exists());
    }

    /// The second server would take the first for dead, although the first has reported that it
    /// listens.
    #[test]
    fn of_servers_that_start_at_once_one_listens() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().join("s");
        for round in 0..500 {
            if round % 2 == 0 {
                leave_dead(&path);
            }
            let start = Barrier::new(4);
            let found = std::thread::scope(|scope| {
                let bind = || {
                    start.wait();
                    Listener::bind(&Address::Unix(path.clone()), 0o600, false).ok()
                };
                let servers: Vec<_> = (0..4).map(|_| scope.spawn(bind)).collect();
                let found =
                    servers.into_iter().filter_map(|server| server.join().expect("no panic"));
                found.collect::<Vec<Listener>>()
            });
            assert_eq!(found.len(), 1, "round {round}");
            UnixStream::connect(&path).expect("it listens");
            drop(found);
            assert!(!path.exists(), "round {round}");
        }
    }
}
