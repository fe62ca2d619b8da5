//! FUSE's messages, as far as one file needs them: bytes <-> values.
//!
//! All values are in the machine's byte order, because the other side is the local kernel. The
//! kernel is trusted, but malformed bytes give `None` and never a panic.

/// Bytes of the header of a message from the kernel.
pub const IN_HEADER_SIZE: usize = 40;
/// Bytes of the header of a reply.
pub const OUT_HEADER_SIZE: usize = 16;
/// Bytes of a write message before its payload.
pub const WRITE_HEADER_SIZE: usize = IN_HEADER_SIZE + 40;
/// Bytes of the attributes of an inode.
const ATTRIBUTES_SIZE: usize = 88;
/// The root directory.
pub const ROOT_NODE: u64 = 1;

/// Kinds of messages.
pub mod opcode {
    #![expect(missing_docs, reason = "the kernel's names, which say as much as is needed here")]
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const RENAME2: u32 = 45;
    pub const TMPFILE: u32 = 51;
}

/// Capabilities agreed on at the start.
pub mod init_flag {
    /// Reads of one file may be under way at once.
    pub const ASYNC_READ: u32 = 1 << 0;
    /// Writes are longer than a page.
    pub const BIG_WRITES: u32 = 1 << 5;
    /// Direct I/O is asynchronous for callers that are.
    pub const ASYNC_DIO: u32 = 1 << 15;
    /// The reply says how many pages a message may have.
    pub const MAX_PAGES: u32 = 1 << 22;
}

/// Flags of a reply to `OPEN`.
pub mod open_flag {
    /// Bypass the page cache.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// Closing sends no message. A killed process that has its own file open would otherwise wait
    /// for itself for ever, because its files are closed in order, this one before the connection.
    pub const NO_FLUSH: u32 = 1 << 5;
    /// Direct writes may be under way at once.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Bits of [`Message::SetAttributes`] for what is to change.
pub mod attribute_flag {
    /// The permissions.
    pub const MODE: u32 = 1 << 0;
    /// The owner.
    pub const UID: u32 = 1 << 1;
    /// The group.
    pub const GID: u32 = 1 << 2;
    /// The size.
    pub const SIZE: u32 = 1 << 3;
}

/// What every message begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InHeader {
    /// Bytes of the whole message.
    pub length: u32,
    /// One of [`opcode`], or anything.
    pub opcode: u32,
    /// Comes back with the reply.
    pub unique: u64,
    /// The inode that it is about.
    pub node: u64,
}

/// A message from the kernel. The payload of a write is not part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are the kernel's, and named after what they hold")]
pub enum Message<'a> {
    Init {
        major: u32,
        minor: u32,
        readahead_max: u32,
        flags: u32,
    },
    Lookup {
        name: &'a [u8],
    },
    GetAttributes,
    SetAttributes {
        changes: u32,
        size: u64,
    },
    Open {
        flags: u32,
    },
    Read {
        offset: u64,
        size: u32,
    },
    Write {
        offset: u64,
        size: u32,
        flags: u32,
    },
    StatFs,
    Release,
    Fsync,
    OpenDirectory,
    ReadDirectory {
        offset: u64,
        size: u32,
    },
    Fallocate {
        offset: u64,
        length: u64,
        mode: u32,
    },
    Destroy,
    /// Would create or remove a file or a name.
    ChangeDirectory,
    /// Needs no reply and no action.
    Silent,
    /// A message that one file does not need.
    Unknown,
}

impl InHeader {
    /// The header at the front of `bytes`, and what follows it.
    pub fn decode(bytes: &[u8]) -> Option<(InHeader, &[u8])> {
        let mut fields = Fields(bytes);
        let header = InHeader {
            length: fields.u32()?,
            opcode: fields.u32()?,
            unique: fields.u64()?,
            node: fields.u64()?,
        };
        Some((header, bytes.get(IN_HEADER_SIZE..)?))
    }
}

impl<'a> Message<'a> {
    /// The message of kind `opcode` with this body; `None` when it is cut short.
    pub fn decode(opcode: u32, body: &'a [u8]) -> Option<Message<'a>> {
        let mut fields = Fields(body);
        Some(match opcode {
            opcode::INIT => Message::Init {
                major: fields.u32()?,
                minor: fields.u32()?,
                readahead_max: fields.u32()?,
                flags: fields.u32()?,
            },
            opcode::LOOKUP => Message::Lookup { name: body.strip_suffix(&[0])? },
            opcode::GETATTR => Message::GetAttributes,
            opcode::SETATTR => {
                let (changes, _, _handle) = (fields.u32()?, fields.u32()?, fields.u64()?);
                Message::SetAttributes { changes, size: fields.u64()? }
            }
            opcode::OPEN => Message::Open { flags: fields.u32()? },
            opcode::READ => {
                let _handle = fields.u64()?;
                Message::Read { offset: fields.u64()?, size: fields.u32()? }
            }
            opcode::WRITE => {
                let _handle = fields.u64()?;
                let (offset, size) = (fields.u64()?, fields.u32()?);
                let (_write_flags, _lock_owner) = (fields.u32()?, fields.u64()?);
                Message::Write { offset, size, flags: fields.u32()? }
            }
            opcode::STATFS => Message::StatFs,
            opcode::RELEASE | opcode::RELEASEDIR => Message::Release,
            opcode::FSYNC => Message::Fsync,
            opcode::OPENDIR => Message::OpenDirectory,
            opcode::READDIR => {
                let _handle = fields.u64()?;
                Message::ReadDirectory { offset: fields.u64()?, size: fields.u32()? }
            }
            opcode::FALLOCATE => {
                let _handle = fields.u64()?;
                let (offset, length) = (fields.u64()?, fields.u64()?);
                Message::Fallocate { offset, length, mode: fields.u32()? }
            }
            opcode::DESTROY => Message::Destroy,
            opcode::SYMLINK | opcode::MKNOD | opcode::MKDIR | opcode::LINK | opcode::CREATE => {
                Message::ChangeDirectory
            }
            opcode::UNLINK | opcode::RMDIR | opcode::RENAME | opcode::RENAME2 | opcode::TMPFILE => {
                Message::ChangeDirectory
            }
            opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT => Message::Silent,
            _ => Message::Unknown,
        })
    }
}

/// The header of a reply whose body has `body_size` bytes; `errno` is positive, or zero.
pub fn out_header(unique: u64, errno: i32, body_size: usize) -> [u8; OUT_HEADER_SIZE] {
    let mut bytes = [0; OUT_HEADER_SIZE];
    bytes[0..4].copy_from_slice(&((OUT_HEADER_SIZE + body_size) as u32).to_ne_bytes());
    bytes[4..8].copy_from_slice(&(-errno).to_ne_bytes());
    bytes[8..16].copy_from_slice(&unique.to_ne_bytes());
    bytes
}

/// The values agreed on in reply to [`Message::Init`].
#[derive(Clone, Copy, Debug)]
pub struct InitReply {
    /// The lesser of the two sides' minor versions.
    pub minor: u32,
    /// Bytes read ahead.
    pub readahead_max: u32,
    /// Bits of [`init_flag`].
    pub flags: u32,
    /// Asynchronous requests in flight at a time.
    pub background_max: u16,
    /// The number of these requests from which the kernel throttles.
    pub congestion_threshold: u16,
    /// Bytes of one write.
    pub write_max: u32,
    /// Pages of one message.
    pub pages_max: u16,
}

impl InitReply {
    /// The body of the reply.
    pub fn encode(self) -> Vec<u8> {
        let mut body = Body::default();
        body.u32(7).u32(self.minor).u32(self.readahead_max).u32(self.flags);
        body.u16(self.background_max).u16(self.congestion_threshold).u32(self.write_max);
        // Times are exact to the nanosecond.
        body.u32(1).u16(self.pages_max).zeros(2);
        body.zeros(32);
        assert_eq!(body.0.len(), 64, "a reply to INIT since version 7.23");
        body.0
    }
}

/// The attributes of an inode.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    /// Its number.
    pub node: u64,
    /// Bytes.
    pub size: u64,
    /// Kind and permissions.
    pub mode: u32,
    /// Names that it has.
    pub links: u32,
    /// Time of creation, in seconds since 1970.
    pub time: u64,
}

impl Attributes {
    fn encode(self, body: &mut Body) {
        let start = body.0.len();
        body.u64(self.node).u64(self.size).u64(self.size.div_ceil(512));
        body.u64(self.time).u64(self.time).u64(self.time).zeros(12);
        // Root owns it.
        body.u32(self.mode).u32(self.links).zeros(8);
        body.u32(0).u32(4096).u32(0);
        assert_eq!(body.0.len() - start, ATTRIBUTES_SIZE, "attributes have one size");
    }
}

/// The body of a reply to `GETATTR` and `SETATTR`, valid for `seconds`.
pub fn attributes_body(attributes: Attributes, seconds: u64) -> Vec<u8> {
    let mut body = Body::default();
    body.u64(seconds).zeros(8);
    attributes.encode(&mut body);
    body.0
}

/// The body of a reply to `LOOKUP`, valid for `seconds`.
pub fn entry_body(attributes: Attributes, seconds: u64) -> Vec<u8> {
    let mut body = Body::default();
    body.u64(attributes.node).u64(0).u64(seconds).u64(seconds).zeros(8);
    attributes.encode(&mut body);
    body.0
}

/// The body of a reply to `OPEN` and `OPENDIR`.
pub fn open_body(flags: u32) -> Vec<u8> {
    let mut body = Body::default();
    body.u64(0).u32(flags).u32(0);
    body.0
}

/// The body of a reply to `WRITE`.
pub fn write_body(size: u32) -> [u8; 8] {
    let mut body = [0; 8];
    body[..4].copy_from_slice(&size.to_ne_bytes());
    body
}

/// The body of a reply to `STATFS`: `blocks` of `block_size` bytes, none of them free.
pub fn statfs_body(blocks: u64, block_size: u32) -> Vec<u8> {
    let mut body = Body::default();
    body.u64(blocks).u64(0).u64(0).u64(2).u64(0);
    body.u32(block_size).u32(255).u32(block_size).zeros(28);
    assert_eq!(body.0.len(), 80, "a reply to STATFS has one size");
    body.0
}

/// Appends one entry of a directory to `out`, if `size_max` bytes leave room for it.
pub fn push_directory_entry(
    out: &mut Vec<u8>,
    size_max: usize,
    node: u64,
    next_offset: u64,
    kind: u32,
    name: &str,
) {
    let size = (24 + name.len()).next_multiple_of(8);
    if out.len() + size > size_max {
        return;
    }
    let mut body = Body(std::mem::take(out));
    let end = body.0.len() + size;
    body.u64(node).u64(next_offset).u32(name.len() as u32).u32(kind);
    body.0.extend_from_slice(name.as_bytes());
    body.0.resize(end, 0);
    *out = body.0;
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u32(&mut self) -> Option<u32> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(u32::from_ne_bytes(*head))
    }

    fn u64(&mut self) -> Option<u64> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(u64::from_ne_bytes(*head))
    }
}

#[derive(Default)]
struct Body(Vec<u8>);

impl Body {
    fn u16(&mut self, value: u16) -> &mut Body {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn u32(&mut self, value: u32) -> &mut Body {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Body {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn zeros(&mut self, count: usize) -> &mut Body {
        self.0.resize(self.0.len() + count, 0);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_message_is_read_as_the_kernel_lays_it_out() {
        let mut bytes = Vec::new();
        for word in [80u32 + 4096, opcode::WRITE] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        for word in [77u64, 2, 0, 0] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        assert_eq!(bytes.len(), IN_HEADER_SIZE);
        for word in [5u64, 8192] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        bytes.extend_from_slice(&4096u32.to_ne_bytes());
        bytes.extend_from_slice(&0u32.to_ne_bytes());
        bytes.extend_from_slice(&0u64.to_ne_bytes());
        bytes.extend_from_slice(&(libc::O_DSYNC as u32).to_ne_bytes());
        bytes.extend_from_slice(&0u32.to_ne_bytes());
        assert_eq!(bytes.len(), WRITE_HEADER_SIZE);
        let (header, body) = InHeader::decode(&bytes).unwrap();
        let InHeader { length, unique, node, .. } = header;
        assert_eq!((length, unique, node), (4176, 77, 2));
        let flags = libc::O_DSYNC as u32;
        let message = Message::Write { offset: 8192, size: 4096, flags };
        assert_eq!(Message::decode(header.opcode, body), Some(message));
    }

    #[test]
    fn cut_messages_are_refused() {
        let bodies = [
            (opcode::INIT, 16),
            (opcode::SETATTR, 24),
            (opcode::OPEN, 4),
            (opcode::READ, 20),
            (opcode::WRITE, 36),
            (opcode::READDIR, 20),
            (opcode::FALLOCATE, 28),
        ];
        let body = [0; 64];
        for (opcode, size) in bodies {
            assert!(Message::decode(opcode, &body[..size]).is_some(), "opcode {opcode}");
            assert_eq!(Message::decode(opcode, &body[..size - 1]), None, "opcode {opcode}");
        }
        assert_eq!(Message::decode(opcode::LOOKUP, b"volume"), None);
        assert!(InHeader::decode(&body[..39]).is_none());
    }

    #[test]
    fn directory_entries_are_padded_and_stop_at_the_limit() {
        let mut out = Vec::new();
        push_directory_entry(&mut out, 64, 2, 3, 8, "volume");
        assert_eq!(out.len(), 32);
        push_directory_entry(&mut out, 40, 1, 1, 4, ".");
        assert_eq!(out.len(), 32);
    }
}
