//! The peer of a connection: a user of this machine, or an address of another. The kernel tells it; the
//! client is not asked.

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

/// The kernel's table of the IPv4 sockets of this network namespace.
const TABLE: &str = "/proc/thread-self/net/tcp";
/// State of a connection that both ends have open. A socket that its process has closed is in
/// another state, and then the table calls its user root.
const ESTABLISHED: &str = "01";
/// Readings of the table. It is read in parts, and a socket may be missed while others come and go.
const READINGS: usize = 3;

impl Peer {
    /// The client at the other end of `socket`.
    pub(crate) fn of(socket: BorrowedFd<'_>) -> Peer {
        let known = || match rustix::net::getpeername(socket)? {
            Some(name) => SocketAddr::try_from(name),
            None => Err(Errno::NOTCONN),
        };
        match known() {
            Ok(client) if client.ip().is_loopback() => user_of(client, socket),
            Ok(client) => Peer::Machine(machine(client.ip().to_canonical())),
            Err(_) => {
                let credentials = rustix::net::sockopt::socket_peercred(socket.as_fd());
                credentials.map_or(Peer::Unknown, |it| Peer::User(it.uid.as_raw()))
            }
        }
    }

    /// True of this machine's kernel, and of a user who may do all that this process may.
    pub(crate) fn is_trusted(self) -> bool {
        let ours = rustix::process::geteuid().as_raw();
        matches!(self, Peer::User(user) if user == 0 || user == ours)
    }
}

fn user_of(client: SocketAddr, socket: BorrowedFd<'_>) -> Peer {
    let server = rustix::net::getsockname(socket).and_then(SocketAddr::try_from);
    let Ok(server) = server else { return Peer::Unknown };
    for _ in 0..READINGS {
        let table = std::fs::read_to_string(TABLE).unwrap_or_default();
        if let Some(user) = user_in(&table, client, server) {
            return Peer::User(user);
        }
    }
    Peer::Unknown
}

/// The user of the socket at `client` that is connected to `server`.
fn user_in(table: &str, client: SocketAddr, server: SocketAddr) -> Option<u32> {
    let (client, server) = (spelled(client)?, spelled(server)?);
    table.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let is_it = words.next()? == client && words.next()? == server;
        let is_open = words.next()? == ESTABLISHED;
        let user = words.nth(3)?.parse().ok()?;
        (is_it && is_open).then_some(user)
    })
}

/// An address as the table spells it: the number in this machine's byte order, and the port.
fn spelled(address: SocketAddr) -> Option<String> {
    let IpAddr::V4(ip) = address.ip() else { return None };
    Some(format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), address.port()))
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

    const HEAD: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid";

    fn row(local: SocketAddr, remote: SocketAddr, state: &str, user: u32) -> String {
        let (local, remote) = (spelled(local).unwrap(), spelled(remote).unwrap());
        format!(
            "{HEAD}\n  0: {local} {remote} {state} 00000000:00000000 00:00000000 0 {user} 0 7 1"
        )
    }

    #[test]
    fn the_table_tells_the_user_of_an_open_socket_and_of_no_other() {
        let client: SocketAddr = "127.0.0.1:40000".parse().unwrap();
        let server: SocketAddr = "127.0.0.1:288".parse().unwrap();
        assert_eq!(user_in(&row(client, server, "01", 65534), client, server), Some(65534));
        assert_eq!(user_in(&row(server, client, "01", 0), client, server), None, "our own end");
        for closed in ["04", "05", "06", "07", "08"] {
            // Its process is gone, and the table has 0 for its user.
            assert_eq!(user_in(&row(client, server, closed, 0), client, server), None, "{closed}");
        }
        for odd in ["", HEAD, "1: 2", "  0: 0100007F:9C40 0100007F:0120 01 0 0 0 x"] {
            assert_eq!(user_in(odd, client, server), None, "{odd}");
        }
    }

    #[test]
    fn a_client_over_the_loopback_is_its_user() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let client = TcpStream::connect(listener.local_addr().unwrap()).expect("it listens");
        let (socket, _) = listener.accept().expect("it has come");
        let ours = rustix::process::geteuid().as_raw();
        assert_eq!(Peer::of(socket.as_fd()), Peer::User(ours));
        assert!(Peer::of(socket.as_fd()).is_trusted());
        drop(client);
        assert!(!Peer::of(socket.as_fd()).is_trusted(), "a socket that is closed has no user");
        let (ours_too, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(Peer::of(ours_too.as_fd()), Peer::User(ours));
    }

    #[test]
    fn a_network_of_ipv6_is_one_machine() {
        let of = |text: &str| machine(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
