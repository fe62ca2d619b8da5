//! The user of a TCP socket, out of the kernel's table of all of them. It costs more the more
//! sockets the machine has, closed ones included.

use std::net::{IpAddr, SocketAddr};

/// The kernel's table of the IPv4 sockets of this network namespace.
const TABLE: &str = "/proc/thread-self/net/tcp";
/// State of a connection that both ends have open. A socket that its process has closed is in
/// another state, and then the table calls its user root.
const ESTABLISHED: &str = "01";
/// Readings of the table. It is read in parts, and a socket may be missed while others come and go.
const READINGS: usize = 3;

/// The user of the open socket at `client` that is connected to `server`. None has IPv6.
pub(super) fn user_of(client: SocketAddr, server: SocketAddr) -> Option<u32> {
    (0..READINGS).find_map(|_| {
        let table = std::fs::read_to_string(TABLE).unwrap_or_default();
        user_in(&table, client, server)
    })
}

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
    fn the_kernels_own_table_is_understood() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let server = listener.local_addr().unwrap();
        let client = TcpStream::connect(server).expect("it listens");
        let ours = rustix::process::geteuid().as_raw();
        assert_eq!(user_of(client.local_addr().unwrap(), server), Some(ours));
    }
}
