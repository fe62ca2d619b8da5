//! The user of one TCP socket, looked up by its two addresses (`NETLINK_SOCK_DIAG`). The kernel
//! finds it in a hash table, so the other sockets of the machine cost nothing.
//!
//! A message is a header and a `struct inet_diag_req_v2`; the answer has a `struct inet_diag_msg`.

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use rustix::net::{recv, send, socket_with};
use std::net::{IpAddr, SocketAddr};

const BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const FLAG_REQUEST: u16 = 1;
const HEADER_SIZE: usize = 16;
const REQUEST_SIZE: usize = HEADER_SIZE + 56;
const ANSWER_SIZE: usize = HEADER_SIZE + 72;
const ANSWER_SIZE_MAX: usize = 1024;
const TCP: u8 = 6;
/// State of a connection that both ends have open. A socket that its process has closed is in
/// another state, and has no user any more.
const ESTABLISHED: u8 = 1;
/// The loopback device: a client may have bound its socket to it.
const LOOPBACK_INDEX: u32 = 1;
/// Bytes of the ports and addresses within the identity of a socket.
const ADDRESSES_SIZE: usize = 36;

/// The user of the open socket at `client` that is connected to `server`; `None` if there is none.
///
/// # Errors
/// When this kernel, or the sandbox of this process, does not answer such a question.
pub(super) fn user_of(client: SocketAddr, server: SocketAddr) -> Result<Option<u32>, Errno> {
    match look_up(client, server) {
        // A kernel without this interface says the same, so our own end is looked up too.
        Err(Errno::NOENT) => look_up(server, client).map(|_| None),
        found => found,
    }
}

/// The user of the open socket at `local` whose other end is `remote`.
fn look_up(local: SocketAddr, remote: SocketAddr) -> Result<Option<u32>, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (family, protocol) = (AddressFamily::NETLINK, Some(netlink::SOCK_DIAG));
    let socket = socket_with(family, SocketType::DGRAM, flags, protocol)?;
    let question = question(local, remote);
    send(&socket, &question, SendFlags::empty())?;
    // The kernel answers before the question is sent, so there is nothing to wait for.
    let mut answer = [0; ANSWER_SIZE_MAX];
    let (length, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    understand(&question, &answer[..length])
}

fn question(local: SocketAddr, remote: SocketAddr) -> [u8; REQUEST_SIZE] {
    let mut bytes = [0; REQUEST_SIZE];
    let mut at = 0;
    let mut put = |field: &[u8]| {
        bytes[at..at + field.len()].copy_from_slice(field);
        at += field.len();
    };
    put(&(REQUEST_SIZE as u32).to_ne_bytes());
    put(&BY_FAMILY.to_ne_bytes());
    put(&FLAG_REQUEST.to_ne_bytes());
    put(&[0; 8]); // number of the message, and the kernel as its receiver
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    put(&[family as u8, TCP, 0, 0]);
    put(&u32::MAX.to_ne_bytes()); // any state
    put(&local.port().to_be_bytes());
    put(&remote.port().to_be_bytes());
    put(&sixteen(local.ip()));
    put(&sixteen(remote.ip()));
    put(&LOOPBACK_INDEX.to_ne_bytes());
    put(&[0xff; 8]); // no cookie
    assert_eq!(at, REQUEST_SIZE, "the message is whole");
    bytes
}

fn sixteen(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&address.octets());
            bytes
        }
        IpAddr::V6(address) => address.octets(),
    }
}

fn understand(question: &[u8; REQUEST_SIZE], answer: &[u8]) -> Result<Option<u32>, Errno> {
    let word = |at: usize| {
        let bytes = answer.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u32::from_ne_bytes).ok_or(Errno::BADMSG)
    };
    let kind = word(4)?.to_ne_bytes();
    match u16::from_ne_bytes([kind[0], kind[1]]) {
        NLMSG_ERROR => {
            let errno = i32::from_ne_bytes(word(HEADER_SIZE)?.to_ne_bytes());
            return Err(Errno::from_raw_os_error(errno.saturating_neg()));
        }
        BY_FAMILY if answer.len() >= ANSWER_SIZE => {}
        _ => return Err(Errno::BADMSG),
    }
    // Where the connection is gone, the kernel may find the socket that listens there.
    let (asked, told) = (HEADER_SIZE + 8, HEADER_SIZE + 4);
    let is_it = question[asked..asked + ADDRESSES_SIZE] == answer[told..told + ADDRESSES_SIZE];
    let is_open = answer[HEADER_SIZE + 1] == ESTABLISHED;
    let user = word(HEADER_SIZE + 64)?;
    Ok((is_it && is_open).then_some(user))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses() -> (SocketAddr, SocketAddr) {
        ("127.0.0.1:40000".parse().unwrap(), "127.0.0.1:288".parse().unwrap())
    }

    /// The kernel's answer to `question`.
    fn answer(question: &[u8; REQUEST_SIZE], state: u8, user: u32) -> Vec<u8> {
        let mut bytes = vec![0; ANSWER_SIZE];
        bytes[..4].copy_from_slice(&(ANSWER_SIZE as u32).to_ne_bytes());
        bytes[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
        bytes[17] = state;
        bytes[20..20 + ADDRESSES_SIZE].copy_from_slice(&question[24..24 + ADDRESSES_SIZE]);
        bytes[80..84].copy_from_slice(&user.to_ne_bytes());
        bytes
    }

    #[test]
    fn only_an_open_socket_with_both_addresses_has_a_user() {
        let (client, server) = addresses();
        let question = question(client, server);
        let of = |bytes: &[u8]| understand(&question, bytes);
        assert_eq!(of(&answer(&question, 1, 65534)), Ok(Some(65534)));
        for closed in [4, 5, 6, 7, 8, 10] {
            assert_eq!(of(&answer(&question, closed, 0)), Ok(None), "state {closed}");
        }
        let other = super::question(server, client);
        assert_eq!(of(&answer(&other, 1, 0)), Ok(None), "another socket");
    }

    #[test]
    fn damaged_answers_are_errors() {
        let (client, server) = addresses();
        let question = question(client, server);
        let whole = answer(&question, 1, 7);
        for length in 0..whole.len() {
            assert_eq!(understand(&question, &whole[..length]), Err(Errno::BADMSG), "{length}");
        }
        let mut refusal = vec![0; 36];
        refusal[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        refusal[16..20].copy_from_slice(&(-libc::ENOENT).to_ne_bytes());
        assert_eq!(understand(&question, &refusal), Err(Errno::NOENT));
    }
}
