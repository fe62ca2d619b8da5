//! Orders to the kernel's NBD client, by generic netlink.
//!
//! Messages are a header, a command, and attributes: length, kind, bytes, padded to four.

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use rustix::net::{recv, send, socket_with};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// The controller of generic netlink.
const FAMILY_CONTROL: u16 = 0x10;
const CONTROL_GET_FAMILY: u8 = 3;
const CONTROL_ATTRIBUTE_ID: u16 = 1;
const CONTROL_ATTRIBUTE_NAME: u16 = 2;

const NLMSG_ERROR: u16 = 2;
const FLAG_REQUEST: u16 = 1;
const FLAG_ACKNOWLEDGE: u16 = 4;
const HEADER_SIZE: usize = 16;
/// Bytes of the command behind the header.
const COMMAND_SIZE: usize = 4;
const ATTRIBUTE_NESTED: u16 = 1 << 15;
/// Bytes of the longest answer that is read.
const ANSWER_SIZE_MAX: usize = 16 << 10;

const COMMAND_CONNECT: u8 = 1;
const COMMAND_DISCONNECT: u8 = 2;
const COMMAND_RECONFIGURE: u8 = 3;

const ATTRIBUTE_INDEX: u16 = 1;
const ATTRIBUTE_SIZE: u16 = 2;
const ATTRIBUTE_BLOCK_SIZE: u16 = 3;
const ATTRIBUTE_TIMEOUT: u16 = 4;
const ATTRIBUTE_SERVER_FLAGS: u16 = 5;
const ATTRIBUTE_SOCKETS: u16 = 7;
const ATTRIBUTE_DEAD_CONNECTION_TIMEOUT: u16 = 8;
const ATTRIBUTE_IDENTIFIER: u16 = 10;
const ATTRIBUTE_SOCKET_ITEM: u16 = 1;
const ATTRIBUTE_SOCKET_FD: u16 = 1;

/// What a device is to be like.
pub(super) struct Terms<'a> {
    pub(super) size: u64,
    pub(super) block_size: u64,
    /// Transmission flags, as on the wire.
    pub(super) flags: u16,
    /// Seconds after which a request that is not answered is issued again elsewhere.
    pub(super) request_timeout_s: u64,
    /// Seconds for which requests wait when there is no connection.
    pub(super) dead_timeout_s: u64,
    /// Kept by the kernel with the device.
    pub(super) identifier: &'a str,
}

/// The way to the kernel's client.
pub(super) struct Netlink {
    socket: OwnedFd,
    family: u16,
    sequence: u32,
}

impl Netlink {
    /// Opens it.
    ///
    /// # Errors
    /// `NotFound` if there is no such client in this kernel.
    pub(super) fn open() -> io::Result<Netlink> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::GENERIC),
        )?;
        let mut netlink = Netlink { socket, family: FAMILY_CONTROL, sequence: 0 };
        let mut message = Message::new(CONTROL_GET_FAMILY);
        message.attribute(CONTROL_ATTRIBUTE_NAME, b"nbd\0");
        let answer = netlink.ask(message)?;
        let id = answer.as_deref().and_then(|answer| find(answer, CONTROL_ATTRIBUTE_ID));
        let id = id.and_then(|id| id.try_into().ok()).map(u16::from_ne_bytes);
        netlink.family = id.ok_or(io::ErrorKind::InvalidData)?;
        Ok(netlink)
    }

    /// Makes a device out of a free one, over connections that have finished the handshake; its
    /// index.
    pub(super) fn connect(&mut self, terms: &Terms<'_>, sockets: &[OwnedFd]) -> io::Result<u32> {
        let mut message = Message::new(COMMAND_CONNECT);
        message.attribute(ATTRIBUTE_SIZE, &terms.size.to_ne_bytes());
        message.attribute(ATTRIBUTE_BLOCK_SIZE, &terms.block_size.to_ne_bytes());
        message.attribute(ATTRIBUTE_SERVER_FLAGS, &u64::from(terms.flags).to_ne_bytes());
        message.timeouts(terms);
        message.sockets(sockets);
        let answer = self.ask(message)?;
        let index = answer.as_deref().and_then(|answer| find(answer, ATTRIBUTE_INDEX));
        let index = index.and_then(|index| index.try_into().ok()).map(u32::from_ne_bytes);
        index.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Gives a device new connections in place of dead ones.
    pub(super) fn reconnect(
        &mut self,
        index: u32,
        terms: &Terms<'_>,
        sockets: &[OwnedFd],
    ) -> io::Result<()> {
        let mut message = Message::new(COMMAND_RECONFIGURE);
        message.attribute(ATTRIBUTE_INDEX, &index.to_ne_bytes());
        message.timeouts(terms);
        message.sockets(sockets);
        self.ask(message).map(drop)
    }

    /// Ends a device, whoever uses it.
    pub(super) fn disconnect(&mut self, index: u32) -> io::Result<()> {
        let mut message = Message::new(COMMAND_DISCONNECT);
        message.attribute(ATTRIBUTE_INDEX, &index.to_ne_bytes());
        self.ask(message).map(drop)
    }

    /// Sends a message and waits for its acknowledgement; the attributes of what came before it,
    /// if anything did.
    fn ask(&mut self, message: Message) -> io::Result<Option<Vec<u8>>> {
        self.sequence += 1;
        send(&self.socket, &message.finish(self.family, self.sequence), SendFlags::empty())?;
        let mut answer = None;
        loop {
            let mut bytes = vec![0; ANSWER_SIZE_MAX];
            let (length, _) = recv(&self.socket, &mut bytes[..], RecvFlags::empty())?;
            bytes.truncate(length);
            for part in parts(&bytes) {
                if part.sequence != self.sequence {
                    continue;
                }
                if part.kind == NLMSG_ERROR {
                    let errno = part.content.first_chunk::<4>().copied();
                    return match i32::from_ne_bytes(errno.unwrap_or_default()) {
                        0 => Ok(answer),
                        errno => Err(io::Error::from_raw_os_error(-errno)),
                    };
                }
                answer = part.content.get(COMMAND_SIZE..).map(<[u8]>::to_vec);
            }
        }
    }
}

/// A message as it grows.
struct Message {
    bytes: Vec<u8>,
}

impl Message {
    fn new(command: u8) -> Message {
        let mut bytes = vec![0; HEADER_SIZE];
        // Version 1, and two bytes that are reserved.
        bytes.extend_from_slice(&[command, 1, 0, 0]);
        Message { bytes }
    }

    fn attribute(&mut self, kind: u16, content: &[u8]) {
        let length = u16::try_from(content.len() + 4).expect("attributes here are short");
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn timeouts(&mut self, terms: &Terms<'_>) {
        self.attribute(ATTRIBUTE_TIMEOUT, &terms.request_timeout_s.to_ne_bytes());
        let dead = terms.dead_timeout_s.to_ne_bytes();
        self.attribute(ATTRIBUTE_DEAD_CONNECTION_TIMEOUT, &dead);
        let identifier = [terms.identifier.as_bytes(), b"\0"].concat();
        self.attribute(ATTRIBUTE_IDENTIFIER, &identifier);
    }

    fn sockets(&mut self, sockets: &[OwnedFd]) {
        let mut list = Message { bytes: Vec::new() };
        for socket in sockets {
            let mut item = Message { bytes: Vec::new() };
            item.attribute(ATTRIBUTE_SOCKET_FD, &socket.as_raw_fd().to_ne_bytes());
            list.attribute(ATTRIBUTE_SOCKET_ITEM | ATTRIBUTE_NESTED, &item.bytes);
        }
        self.attribute(ATTRIBUTE_SOCKETS | ATTRIBUTE_NESTED, &list.bytes);
    }

    fn finish(mut self, family: u16, sequence: u32) -> Vec<u8> {
        let length = u32::try_from(self.bytes.len()).expect("messages here are short");
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[4..6].copy_from_slice(&family.to_ne_bytes());
        self.bytes[6..8].copy_from_slice(&(FLAG_REQUEST | FLAG_ACKNOWLEDGE).to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }
}

/// One message of those that came.
struct Part<'a> {
    kind: u16,
    sequence: u32,
    content: &'a [u8],
}

fn parts(mut bytes: &[u8]) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    while let Some(header) = bytes.first_chunk::<HEADER_SIZE>() {
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let Some(content) = bytes.get(HEADER_SIZE..length) else { break };
        parts.push(Part {
            kind: u16::from_ne_bytes([header[4], header[5]]),
            sequence: u32::from_ne_bytes([header[8], header[9], header[10], header[11]]),
            content,
        });
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    parts
}

/// The content of the attribute `kind`.
fn find(mut bytes: &[u8], kind: u16) -> Option<&[u8]> {
    while let Some(header) = bytes.first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let found = u16::from_ne_bytes([header[2], header[3]]);
        let content = bytes.get(4..length)?;
        if found & !ATTRIBUTE_NESTED == kind {
            return Some(content);
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_behind_others() {
        let mut message = Message::new(1);
        message.attribute(7, b"abcde");
        message.attribute(1, &9u32.to_ne_bytes());
        let bytes = message.finish(20, 3);
        let parts = parts(&bytes);
        assert_eq!((parts.len(), parts[0].kind, parts[0].sequence), (1, 20, 3));
        let attributes = &parts[0].content[COMMAND_SIZE..];
        assert_eq!(find(attributes, 7), Some(&b"abcde"[..]));
        assert_eq!(find(attributes, 1), Some(&9u32.to_ne_bytes()[..]));
        assert_eq!(find(attributes, 2), None);
    }

    #[test]
    fn damaged_answers_have_no_parts_and_no_attributes() {
        let bytes = Message::new(1).finish(20, 3);
        for length in 0..bytes.len() {
            assert_eq!(parts(&bytes[..length]).len(), 0, "{length}");
        }
        assert!(parts(&[0; HEADER_SIZE]).is_empty(), "a length below the header's is none");
        for bytes in [&[255, 255, 1, 0, 0][..], &[0; 8], &[3, 0, 1, 0]] {
            assert_eq!(find(bytes, 1), None);
        }
    }

    #[test]
    fn a_kernel_without_the_client_says_so() {
        if !std::path::Path::new("/sys/module/nbd").exists() {
            let refused = Netlink::open().map(drop).map_err(|error| error.raw_os_error());
            assert_eq!(refused, Err(Some(libc::ENOENT)));
        }
    }
}
