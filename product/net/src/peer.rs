//! The peer of a connection: a user of this machine, or an address of another. The kernel tells it;
//! the client is not asked.
//!
//! # Invariants
//! - The listener's thread asks about each client, so an answer must not cost more because other
//!   sockets exist: [`diag`] looks one socket up. Only a kernel that refuses that has its [`table`]
//!   of all sockets read.

mod diag;
mod table;

use rustix::io::Errno;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

/// Whom a client belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// A user of this machine.
    User(u32),
    /// Another machine; of IPv6 the network, because one host may have all addresses of it.
    Machine(IpAddr),
    /// The kernel does not tell.
    Unknown,
}

impl Peer {
    /// True of this machine's kernel, and of a user who may do all that this process may.
    pub(crate) fn is_trusted(self) -> bool {
        let ours = rustix::process::geteuid().as_raw();
        matches!(self, Peer::User(user) if user == 0 || user == ours)
    }

    /// The client at the other end of `socket`.
    pub(crate) fn of(socket: BorrowedFd<'_>) -> Peer {
        let known = || match rustix::net::getpeername(socket)? {
            Some(name) => SocketAddr::try_from(name),
            None => Err(Errno::NOTCONN),
        };
        match known().map(canonical) {
            Ok(client) if client.ip().is_loopback() => user_of(client, socket),
            Ok(client) => Peer::Machine(machine(client.ip())),
            Err(_) => {
                let credentials = rustix::net::sockopt::socket_peercred(socket.as_fd());
                credentials.map_or(Peer::Unknown, |it| Peer::User(it.uid.as_raw()))
            }
        }
    }
}

fn user_of(client: SocketAddr, socket: BorrowedFd<'_>) -> Peer {
    let server = rustix::net::getsockname(socket).and_then(SocketAddr::try_from);
    let Ok(server) = server.map(canonical) else { return Peer::Unknown };
    // A kernel without the module for one socket: its table of all of them tells as well.
    let found = diag::user_of(client, server).unwrap_or_else(|_| table::user_of(client, server));
    found.map_or(Peer::Unknown, Peer::User)
}

/// The address without the form that IPv4 has within IPv6.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn machine(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            Ipv6Addr::from(network).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn peer_of(socket: &impl AsFd) -> Peer {
        Peer::of(socket.as_fd())
    }

    #[test]
    fn a_client_over_the_loopback_is_its_user() {
        let ours = rustix::process::geteuid().as_raw();
        for place in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(place) else {
                assert!(place.contains("::"), "a port is free");
                continue; // a machine without IPv6
            };
            let port = listener.local_addr().unwrap().port();
            let host = if place.contains("::1") { "::1" } else { "127.0.0.1" };
            let client = TcpStream::connect((host, port)).expect("it listens");
            let (socket, _) = listener.accept().expect("it has come");
            assert_eq!(peer_of(&socket), Peer::User(ours), "{place}");
            assert!(peer_of(&socket).is_trusted());
            drop(client);
            assert!(!peer_of(&socket).is_trusted(), "a socket that is closed has no user");
        }
        let (ours_too, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(peer_of(&ours_too), Peer::User(ours));
    }

    /// Bytes that this thread has read from files until now.
    fn bytes_read() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/io").expect("Linux has it");
        let line = text.lines().find_map(|line| line.strip_prefix("rchar: "));
        line.expect("it counts them").parse().expect("it is a number")
    }

    #[test]
    fn a_peer_is_found_without_reading_the_sockets_of_all_others() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let place = listener.local_addr().unwrap();
        let pairs: Vec<_> = (0..64)
            .map(|_| (TcpStream::connect(place).expect("it listens"), listener.accept().unwrap().0))
            .collect();
        if diag::user_of(pairs[0].0.local_addr().unwrap(), place).is_err() {
            println!("SKIPPED: this kernel looks up no single socket");
            return;
        }
        let before = bytes_read();
        assert!(pairs.iter().all(|(_, socket)| Peer::of(socket.as_fd()).is_trusted()));
        let read = bytes_read() - before;
        assert!(read < 4096, "{read} bytes were read for 64 clients");
    }

    #[test]
    fn a_network_of_ipv6_is_one_machine() {
        let of = |text: &str| machine(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
