//! NBD on the wire: constants, and bytes <-> values of every structure.
//!
//! Nothing here knows the order of messages. Everything is big-endian.
//!
//! # Invariants
//! - No bytes make a decoder panic; what is not well-formed is `None` or a [`Malformed`].
//! - Decoding what an encoder made gives the value back.

use crate::Malformed;

/// "NBDMAGIC": opens the greeting.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// "IHAVEOPT": closes the greeting and opens every option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Opens every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Opens every request of the transmission phase.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Opens a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Opens a chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Bytes of the server's greeting: two magics and the handshake flags.
pub const GREETING_SIZE: usize = 18;
/// Bytes of an option's header.
pub const OPTION_HEADER_SIZE: usize = 16;
/// Bytes of an option reply's header.
pub const OPTION_REPLY_HEADER_SIZE: usize = 20;
/// Bytes of a request's header.
pub const REQUEST_HEADER_SIZE: usize = 28;
/// Bytes of a simple reply's header.
pub const SIMPLE_REPLY_SIZE: usize = 16;
/// Bytes of a chunk's header.
pub const CHUNK_HEADER_SIZE: usize = 20;
/// Bytes of an export's name, at most.
pub const NAME_SIZE_MAX: usize = 4096;

/// Flags of the greeting, and of the client's answer to it.
pub mod handshake_flag {
    /// Options may be refused without an end to the connection.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The 124 zeros after `EXPORT_NAME` are left out.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Flags of an export.
pub mod transmission_flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `FLUSH` is supported.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// `FLAG_FUA` is supported.
    pub const SEND_FUA: u16 = 1 << 3;
    /// `TRIM` is supported.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `WRITE_ZEROES` is supported.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// `FLAG_DF` is supported.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers the writes of all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `FLAG_FAST_ZERO` is supported.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Options that a client may send.
pub mod option {
    /// Choose an export, without a way to report errors.
    pub const EXPORT_NAME: u32 = 1;
    /// End the negotiation.
    pub const ABORT: u32 = 2;
    /// Name all exports.
    pub const LIST: u32 = 3;
    /// Begin TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe and choose an export.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Name metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Kinds of replies to options.
pub mod option_reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// One export of a `LIST`.
    pub const SERVER: u32 = 2;
    /// One item of `INFO` or `GO`.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// Set in every error.
    pub const ERROR_BIT: u32 = 1 << 31;
    /// The option is not known.
    pub const ERR_UNSUP: u32 = ERROR_BIT | 1;
    /// The server's policy forbids it.
    pub const ERR_POLICY: u32 = ERROR_BIT | 2;
    /// The option is malformed.
    pub const ERR_INVALID: u32 = ERROR_BIT | 3;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = ERROR_BIT | 6;
    /// The server is shutting down.
    pub const ERR_SHUTDOWN: u32 = ERROR_BIT | 7;
    /// The option is too long.
    pub const ERR_TOO_BIG: u32 = ERROR_BIT | 9;
}

/// Items of `INFO` and `GO`.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The canonical name.
    pub const NAME: u16 = 1;
    /// A text for people.
    pub const DESCRIPTION: u16 = 2;
    /// Least, preferred and greatest request.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Commands of the transmission phase.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write; the payload follows.
    pub const WRITE: u16 = 1;
    /// Disconnect.
    pub const DISC: u16 = 2;
    /// Make durable.
    pub const FLUSH: u16 = 3;
    /// Unmap.
    pub const TRIM: u16 = 4;
    /// Zero.
    pub const WRITE_ZEROES: u16 = 6;
    /// Ask for extents.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of a command.
pub mod command_flag {
    /// Durable when answered.
    pub const FUA: u16 = 1 << 0;
    /// Zero without unmapping.
    pub const NO_HOLE: u16 = 1 << 1;
    /// One chunk of content only.
    pub const DF: u16 = 1 << 2;
    /// One extent only.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail rather than write zeros out.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Kinds of chunks.
pub mod chunk {
    /// Nothing; ends a reply.
    pub const NONE: u16 = 0;
    /// Content at an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Zeros at an offset.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of one context.
    pub const BLOCK_STATUS: u16 = 5;
    /// Set in every error.
    pub const ERROR_BIT: u16 = 1 << 15;
    /// An error.
    pub const ERROR: u16 = ERROR_BIT | 1;
    /// An error at an offset.
    pub const ERROR_OFFSET: u16 = ERROR_BIT | 2;
    /// Flag: the last chunk of its reply.
    pub const FLAG_DONE: u16 = 1 << 0;
}

/// States of an extent in `base:allocation`.
pub mod extent_state {
    /// Nothing is stored there.
    pub const HOLE: u32 = 1 << 0;
    /// It reads as zeros.
    pub const ZERO: u32 = 1 << 1;
}

/// The one metadata context that the protocol itself defines.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// Takes values off the front of bytes; `None` once they run out.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a>(pub &'a [u8]);

impl<'a> Cursor<'a> {
    /// The next `length` bytes.
    pub fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(length)?;
        self.0 = tail;
        Some(head)
    }

    /// The next 16 bits.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// The next 32 bits.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// The next 64 bits.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A string of UTF-8 after its 32-bit length.
    pub fn string(&mut self) -> Option<&'a str> {
        let length = self.u32()?;
        let bytes = self.bytes(usize::try_from(length).ok()?)?;
        std::str::from_utf8(bytes).ok()
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(*head)
    }
}

/// The header of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// One of [`option`], or anything.
    pub option: u32,
    /// Bytes that follow.
    pub length: u32,
}

impl OptionHeader {
    /// The header at the front of `bytes`; `Ok(None)` while it is not whole.
    pub fn decode(bytes: &[u8]) -> Result<Option<OptionHeader>, Malformed> {
        let mut cursor = Cursor(bytes);
        match cursor.u64() {
            None => return Ok(None),
            Some(OPTION_MAGIC) => {}
            Some(_) => return Err(Malformed("an option does not begin with IHAVEOPT")),
        }
        let header = cursor.u32().zip(cursor.u32());
        Ok(header.map(|(option, length)| OptionHeader { option, length }))
    }

    /// Appends the header to `out`.
    pub fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        out.extend_from_slice(&self.option.to_be_bytes());
        out.extend_from_slice(&self.length.to_be_bytes());
    }
}

/// The header of a reply to an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionReplyHeader {
    /// The option that is answered.
    pub option: u32,
    /// One of [`option_reply`], or anything.
    pub kind: u32,
    /// Bytes that follow.
    pub length: u32,
}

impl OptionReplyHeader {
    /// The header in `bytes`.
    pub fn decode(bytes: &[u8; OPTION_REPLY_HEADER_SIZE]) -> Result<OptionReplyHeader, Malformed> {
        let mut cursor = Cursor(bytes);
        if cursor.u64() != Some(OPTION_REPLY_MAGIC) {
            return Err(Malformed("a reply to an option has a wrong magic"));
        }
        match (cursor.u32(), cursor.u32(), cursor.u32()) {
            (Some(option), Some(kind), Some(length)) => {
                Ok(OptionReplyHeader { option, kind, length })
            }
            _ => Err(Malformed("a reply to an option is cut short")),
        }
    }

    /// Appends the header to `out`.
    pub fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
        out.extend_from_slice(&self.option.to_be_bytes());
        out.extend_from_slice(&self.kind.to_be_bytes());
        out.extend_from_slice(&self.length.to_be_bytes());
    }
}

/// The data of `INFO` and `GO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfoRequest<'a> {
    /// The export.
    pub name: &'a str,
    items: &'a [u8],
}

impl<'a> InfoRequest<'a> {
    /// The value of an option's data; `None` when malformed.
    pub fn decode(data: &'a [u8]) -> Option<InfoRequest<'a>> {
        let mut cursor = Cursor(data);
        let name = cursor.string()?;
        let count = usize::from(cursor.u16()?);
        (cursor.0.len() == count * 2).then_some(InfoRequest { name, items: cursor.0 })
    }

    /// The items asked for, of [`info`] or not.
    pub fn items(&self) -> impl Iterator<Item = u16> + 'a {
        let mut cursor = Cursor(self.items);
        std::iter::from_fn(move || cursor.u16())
    }
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaContextRequest<'a> {
    /// The export.
    pub name: &'a str,
    /// How many queries there are.
    pub query_count: u32,
    queries: &'a [u8],
}

impl<'a> MetaContextRequest<'a> {
    /// The value of an option's data; `None` when malformed.
    pub fn decode(data: &'a [u8]) -> Option<MetaContextRequest<'a>> {
        let mut cursor = Cursor(data);
        let name = cursor.string()?;
        let query_count = cursor.u32()?;
        let queries = cursor.0;
        // Each query takes four bytes at least, so the data's length bounds the loop.
        for _ in 0..query_count {
            cursor.string()?;
        }
        cursor.0.is_empty().then_some(MetaContextRequest { name, query_count, queries })
    }

    /// The queries.
    pub fn queries(&self) -> impl Iterator<Item = &'a str> + 'a {
        let mut cursor = Cursor(self.queries);
        std::iter::from_fn(move || cursor.string())
    }
}

/// The header of a request in the transmission phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Bits of [`command_flag`], or any.
    pub flags: u16,
    /// One of [`command`], or anything.
    pub command: u16,
    /// Chosen by the client; comes back with the reply.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
}

impl RequestHeader {
    /// The header in `bytes`.
    pub fn decode(bytes: &[u8; REQUEST_HEADER_SIZE]) -> Result<RequestHeader, Malformed> {
        let mut cursor = Cursor(bytes);
        if cursor.u32() != Some(REQUEST_MAGIC) {
            return Err(Malformed("a request has a wrong magic"));
        }
        let head = cursor.u16().zip(cursor.u16());
        match (head, cursor.u64(), cursor.u64(), cursor.u32()) {
            (Some((flags, command)), Some(cookie), Some(offset), Some(length)) => {
                Ok(RequestHeader { flags, command, cookie, offset, length })
            }
            _ => Err(Malformed("a request is cut short")),
        }
    }

    /// The bytes of the header.
    pub fn encode(self) -> [u8; REQUEST_HEADER_SIZE] {
        let mut bytes = [0; REQUEST_HEADER_SIZE];
        bytes[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }
}

/// A simple reply, without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimpleReply {
    /// Zero, or one of the protocol's errors.
    pub error: u32,
    /// The request's cookie.
    pub cookie: u64,
}

impl SimpleReply {
    /// The bytes of the reply.
    pub fn encode(self) -> [u8; SIMPLE_REPLY_SIZE] {
        let mut bytes = [0; SIMPLE_REPLY_SIZE];
        bytes[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.error.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes
    }
}

/// The header of a chunk of a structured reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// [`chunk::FLAG_DONE`] or nothing.
    pub flags: u16,
    /// One of [`chunk`], or anything.
    pub kind: u16,
    /// The request's cookie.
    pub cookie: u64,
    /// Bytes that follow.
    pub length: u32,
}

impl ChunkHeader {
    /// The bytes of the header.
    pub fn encode(self) -> [u8; CHUNK_HEADER_SIZE] {
        let mut bytes = [0; CHUNK_HEADER_SIZE];
        bytes[0..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.kind.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }
}

/// The header of either form of reply, as a client meets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyHeader {
    /// A simple reply.
    Simple(SimpleReply),
    /// A chunk of a structured reply.
    Chunk(ChunkHeader),
}

impl ReplyHeader {
    /// The header at the front of `bytes` and its size; `Ok(None)` while it is not whole.
    pub fn decode(bytes: &[u8]) -> Result<Option<(ReplyHeader, usize)>, Malformed> {
        let mut cursor = Cursor(bytes);
        match cursor.u32() {
            None => Ok(None),
            Some(SIMPLE_REPLY_MAGIC) => {
                let Some((error, cookie)) = cursor.u32().zip(cursor.u64()) else { return Ok(None) };
                Ok(Some((ReplyHeader::Simple(SimpleReply { error, cookie }), SIMPLE_REPLY_SIZE)))
            }
            Some(CHUNK_MAGIC) => {
                let head = cursor.u16().zip(cursor.u16());
                let (Some((flags, kind)), Some(cookie), Some(length)) =
                    (head, cursor.u64(), cursor.u32())
                else {
                    return Ok(None);
                };
                let header = ChunkHeader { flags, kind, cookie, length };
                Ok(Some((ReplyHeader::Chunk(header), CHUNK_HEADER_SIZE)))
            }
            Some(_) => Err(Malformed("a reply has a wrong magic")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_header_survives_the_wire() {
        let header = RequestHeader {
            flags: command_flag::FUA,
            command: command::WRITE,
            cookie: 0x0123_4567_89ab_cdef,
            offset: 1 << 40,
            length: 4096,
        };
        assert_eq!(RequestHeader::decode(&header.encode()), Ok(header));
        let mut bytes = header.encode();
        bytes[0] ^= 1;
        assert!(RequestHeader::decode(&bytes).is_err());
    }

    #[test]
    fn replies_survive_the_wire_and_wait_for_their_last_byte() {
        let simple = SimpleReply { error: 5, cookie: 9 };
        let header = ChunkHeader { flags: 1, kind: chunk::OFFSET_DATA, cookie: 7, length: 20 };
        let cases = [
            (simple.encode().to_vec(), ReplyHeader::Simple(simple)),
            (header.encode().to_vec(), ReplyHeader::Chunk(header)),
        ];
        for (bytes, value) in cases {
            assert_eq!(ReplyHeader::decode(&bytes), Ok(Some((value, bytes.len()))));
            for cut in 0..bytes.len() {
                assert_eq!(ReplyHeader::decode(&bytes[..cut]), Ok(None));
            }
        }
        assert!(ReplyHeader::decode(&[0; 20]).is_err());
    }

    #[test]
    fn option_headers_survive_the_wire() {
        let header = OptionHeader { option: option::GO, length: 77 };
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        assert_eq!(bytes.len(), OPTION_HEADER_SIZE);
        assert_eq!(OptionHeader::decode(&bytes), Ok(Some(header)));
        assert_eq!(OptionHeader::decode(&bytes[..15]), Ok(None));
        bytes[7] = 0;
        assert!(OptionHeader::decode(&bytes).is_err());
        let reply = OptionReplyHeader { option: 7, kind: option_reply::ACK, length: 0 };
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        assert_eq!(OptionReplyHeader::decode(bytes.first_chunk().unwrap()), Ok(reply));
    }

    #[test]
    fn the_data_of_info_must_fit_exactly() {
        let data = [0, 0, 0, 1, b'x', 0, 2, 0, 3, 0, 1];
        let request = InfoRequest::decode(&data).unwrap();
        assert_eq!(request.name, "x");
        assert!(request.items().eq([info::BLOCK_SIZE, info::NAME]));
        for cut in 0..data.len() {
            assert_eq!(InfoRequest::decode(&data[..cut]), None);
        }
        assert_eq!(InfoRequest::decode(&[0, 0, 0, 1, 0xff, 0, 0]), None, "not UTF-8");
    }

    #[test]
    fn the_data_of_meta_context_must_fit_exactly() {
        let mut data = vec![0, 0, 0, 0, 0, 0, 0, 2];
        for query in ["base:", "x-y:z"] {
            data.extend_from_slice(&(query.len() as u32).to_be_bytes());
            data.extend_from_slice(query.as_bytes());
        }
        let request = MetaContextRequest::decode(&data).unwrap();
        assert_eq!((request.name, request.query_count), ("", 2));
        assert!(request.queries().eq(["base:", "x-y:z"]));
        for cut in 0..data.len() {
            assert_eq!(MetaContextRequest::decode(&data[..cut]), None);
        }
        let billions = [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
        assert_eq!(MetaContextRequest::decode(&billions), None);
    }
}
