//! The kernel's messages for a whole file system: bytes to values.
//!
//! Names are bytes, never text. What is not well-formed is `None`: no bytes make this panic.

use coulter_files::{AllocateMode, RenameFlags, Time, Whence, XattrMode};

/// Bytes of the header of a message.
pub(super) const HEADER_SIZE: usize = 40;
/// Bytes of a write message before its payload.
pub(super) const WRITE_HEADER_SIZE: usize = HEADER_SIZE + 40;

/// `_IO('C', 1)`: makes all writes durable, because `sync` does not reach a FUSE file system.
pub const SYNC_IOCTL: u32 = 0x4301;

/// `_IO('C', 2)`: brings home what an overlay keeps apart, and comes back when nothing is left.
pub const SETTLE_IOCTL: u32 = 0x4302;

/// Kinds of messages, as the kernel names them.
pub(super) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const ACCESS: u32 = 34;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const SYNCFS: u32 = 50;
    pub(crate) const TMPFILE: u32 = 51;
    pub(crate) const STATX: u32 = 52;
    pub(crate) const COPY_FILE_RANGE_64: u32 = 53;
}

/// Capabilities agreed on at the start; those above 31 are in the second word.
pub(super) mod init_flag {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    /// Modes come without the umask taken off, which comes beside.
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const HAS_IOCTL_DIR: u64 = 1 << 11;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const WRITEBACK_CACHE: u64 = 1 << 16;
    pub(crate) const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    /// The kernel reads access control lists, and checks permissions by them.
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub(crate) const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// Requests to set an attribute are longer.
    pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
}

/// Bits of `SETATTR` for what is to change.
mod set {
    pub(super) const MODE: u32 = 1 << 0;
    pub(super) const UID: u32 = 1 << 1;
    pub(super) const GID: u32 = 1 << 2;
    pub(super) const SIZE: u32 = 1 << 3;
    pub(super) const ATIME: u32 = 1 << 4;
    pub(super) const MTIME: u32 = 1 << 5;
    pub(super) const ATIME_NOW: u32 = 1 << 7;
    pub(super) const MTIME_NOW: u32 = 1 << 8;
    pub(super) const CTIME: u32 = 1 << 10;
    pub(super) const KILL_SUIDGID: u32 = 1 << 11;
}

/// A write takes set-uid and set-gid away.
const WRITE_KILL_SUIDGID: u32 = 1 << 2;

/// Setting an access control list takes set-gid away.
const SETXATTR_KILL_SGID: u32 = 1;

/// What every message begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) opcode: u32,
    pub(super) unique: u64,
    pub(super) node: u64,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl Header {
    /// The header at the front of `bytes`, and what follows it.
    pub(super) fn decode(bytes: &[u8]) -> Option<(Header, &[u8])> {
        let mut fields = Fields(bytes);
        let (_length, opcode) = (fields.u32()?, fields.u32()?);
        let (unique, node) = (fields.u64()?, fields.u64()?);
        let (uid, gid) = (fields.u32()?, fields.u32()?);
        Some((Header { opcode, unique, node, uid, gid }, bytes.get(HEADER_SIZE..)?))
    }
}

/// A request of the kernel. The payload of a write is not part of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Message<'a> {
    Init {
        major: u32,
        minor: u32,
        readahead_max: u32,
        flags: u64,
    },
    Lookup {
        name: &'a [u8],
    },
    /// Each entry names a node and the number of its lookups to forget.
    Forget(Forgets<'a>),
    GetAttributes,
    /// Attributes with the time of birth.
    Statx,
    SetAttributes(Attributes),
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    /// Creates a file, device, pipe, socket or directory, and opens it if `opens` says how.
    Make {
        name: &'a [u8],
        mode: u32,
        umask: u32,
        device: u32,
        opens: Option<Access>,
    },
    MakeUnnamed {
        mode: u32,
        umask: u32,
        opens: Access,
    },
    Unlink {
        name: &'a [u8],
    },
    RemoveDirectory {
        name: &'a [u8],
    },
    Rename {
        to: u64,
        name: &'a [u8],
        new_name: &'a [u8],
        flags: Option<RenameFlags>,
    },
    Link {
        inode: u64,
        name: &'a [u8],
    },
    Read {
        offset: u64,
        size: u32,
    },
    Write {
        offset: u64,
        size: u32,
        kills: bool,
        sync: bool,
    },
    StatFs,
    Sync,
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        mode: XattrMode,
        kills_set_gid: bool,
    },
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    List {
        cookie: u64,
        size: u32,
        plus: bool,
    },
    Allocate {
        offset: u64,
        length: u64,
        mode: Option<AllocateMode>,
    },
    Seek {
        offset: u64,
        whence: Option<Whence>,
    },
    Copy {
        from_offset: u64,
        to: u64,
        to_offset: u64,
        length: u64,
        is_long: bool,
    },
    Ioctl {
        command: u32,
    },
    /// There are no handles: only how the kernel treats the file is answered.
    Open {
        access: Access,
        is_direct: bool,
    },
    Release {
        access: Access,
    },
    /// Needs a reply but no action.
    Nothing,
    /// Needs no reply.
    Silent,
    Destroy,
    /// Not supported; the kernel does not send it again.
    Unknown,
}

/// How a program opens a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Reads,
    Writes,
}

impl Access {
    fn of(flags: u32) -> Access {
        let reads = flags as i32 & libc::O_ACCMODE == libc::O_RDONLY;
        if reads { Access::Reads } else { Access::Writes }
    }
}

/// Attributes to be set, as far as they are `Some`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Attributes {
    pub(super) mode: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) size: Option<u64>,
    /// The time, or now.
    pub(super) accessed: Option<Option<Time>>,
    pub(super) modified: Option<Option<Time>>,
    pub(super) changed: Option<Time>,
    pub(super) kills_privileges: bool,
}

/// Nodes to be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forgets<'a> {
    One(u64),
    Many(&'a [u8]),
}

impl Forgets<'_> {
    /// Node and number of lookups of each; `node` is the message's.
    pub(super) fn each(self, node: u64, mut each: impl FnMut(u64, u64)) {
        match self {
            Forgets::One(lookups) => each(node, lookups),
            Forgets::Many(bytes) => {
                let mut fields = Fields(bytes);
                while let (Some(node), Some(lookups)) = (fields.u64(), fields.u64()) {
                    each(node, lookups);
                }
            }
        }
    }
}

impl<'a> Message<'a> {
    /// The message of kind `opcode` with this body; `None` when it is cut short. `long_set_xattr`: what was
    /// agreed on (`SETXATTR_EXT`).
    pub(super) fn decode(opcode: u32, body: &'a [u8], long_set_xattr: bool) -> Option<Message<'a>> {
        let mut fields = Fields(body);
        Some(match opcode {
            opcode::INIT => {
                let (major, minor) = (fields.u32()?, fields.u32()?);
                let readahead_max = fields.u32().unwrap_or(0);
                let low = u64::from(fields.u32().unwrap_or(0));
                let high = if low & init_flag::INIT_EXT != 0 { fields.u32()? } else { 0 };
                let flags = low | u64::from(high) << 32;
                Message::Init { major, minor, readahead_max, flags }
            }
            opcode::FORGET => Message::Forget(Forgets::One(fields.u64()?)),
            opcode::BATCH_FORGET => {
                let count = (fields.u32()?, fields.u32()?).0 as usize;
                Message::Forget(Forgets::Many(fields.0.get(..count.checked_mul(16)?)?))
            }
            opcode::READ => {
                let (offset, size) = fields.handle_offset_size()?;
                Message::Read { offset, size }
            }
            opcode::WRITE => {
                let (offset, size) = fields.handle_offset_size()?;
                let (write_flags, _owner) = (fields.u32()?, fields.u64()?);
                let flags = fields.u32()? as i32;
                let sync = flags & (libc::O_DSYNC | libc::O_SYNC) != 0;
                Message::Write { offset, size, kills: write_flags & WRITE_KILL_SUIDGID != 0, sync }
            }
            opcode::READDIR | opcode::READDIRPLUS => {
                let (cookie, size) = fields.handle_offset_size()?;
                Message::List { cookie, size, plus: opcode == opcode::READDIRPLUS }
            }
            opcode::GETATTR => Message::GetAttributes,
            opcode::STATX => Message::Statx,
            opcode::SETATTR => Message::SetAttributes(attributes(&mut fields)?),
            opcode::STATFS => Message::StatFs,
            opcode::FSYNC | opcode::FSYNCDIR | opcode::SYNCFS => Message::Sync,
            opcode::RELEASE => Message::release(&mut fields)?,
            opcode::RELEASEDIR | opcode::ACCESS => Message::Nothing,
            opcode::INTERRUPT => Message::Silent,
            opcode::DESTROY => Message::Destroy,
            opcode::FALLOCATE => {
                let (_handle, offset, length) = (fields.u64()?, fields.u64()?, fields.u64()?);
                Message::Allocate { offset, length, mode: allocate_mode(fields.u32()?) }
            }
            opcode::LSEEK => {
                let (_handle, offset) = (fields.u64()?, fields.u64()?);
                let whence = match fields.u32()? as i32 {
                    libc::SEEK_DATA => Some(Whence::Data),
                    libc::SEEK_HOLE => Some(Whence::Hole),
                    _ => None,
                };
                Message::Seek { offset, whence }
            }
            opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
                let (_handle, from_offset) = (fields.u64()?, fields.u64()?);
                let (to, _handle) = (fields.u64()?, fields.u64()?);
                let (to_offset, length) = (fields.u64()?, fields.u64()?);
                let is_long = opcode == opcode::COPY_FILE_RANGE_64;
                Message::Copy { from_offset, to, to_offset, length, is_long }
            }
            opcode::IOCTL => {
                let _handle_and_flags = (fields.u64()?, fields.u32()?);
                Message::Ioctl { command: fields.u32()? }
            }
            opcode::OPEN => Message::open(fields.u32()?),
            // Without handles the kernel need not ask before it opens a directory, nor before it closes.
            opcode::OPENDIR | opcode::FLUSH => Message::Unknown,
            _ => return Message::decode_names(opcode, fields, long_set_xattr),
        })
    }

    fn open(flags: u32) -> Message<'a> {
        let is_direct = flags & libc::O_DIRECT as u32 != 0;
        Message::Open { access: Access::of(flags), is_direct }
    }

    fn release(fields: &mut Fields<'a>) -> Option<Message<'a>> {
        let (_handle, flags) = (fields.u64()?, fields.u32()?);
        Some(Message::Release { access: Access::of(flags) })
    }

    /// Messages that hold names.
    fn decode_names(
        opcode: u32,
        mut fields: Fields<'a>,
        long_set_xattr: bool,
    ) -> Option<Message<'a>> {
        Some(match opcode {
            opcode::LOOKUP => Message::Lookup { name: fields.last_name()? },
            opcode::READLINK => Message::ReadLink,
            opcode::SYMLINK => {
                Message::Symlink { name: fields.name()?, target: fields.last_name()? }
            }
            opcode::MKNOD => {
                let (mode, device) = (fields.u32()?, fields.u32()?);
                let (umask, _padding) = (fields.u32()?, fields.u32()?);
                Message::Make { name: fields.last_name()?, mode, umask, device, opens: None }
            }
            opcode::MKDIR => {
                let (mode, umask) = (fields.u32()?, fields.u32()?);
                let mode = mode | libc::S_IFDIR;
                Message::Make { name: fields.last_name()?, mode, umask, device: 0, opens: None }
            }
            opcode::CREATE | opcode::TMPFILE => {
                let (opens, mode) = (Access::of(fields.u32()?), fields.u32()?);
                let (umask, _flags) = (fields.u32()?, fields.u32()?);
                let mode = mode & !libc::S_IFMT | libc::S_IFREG;
                if opcode == opcode::TMPFILE {
                    Message::MakeUnnamed { mode, umask, opens }
                } else {
                    let (name, opens) = (fields.last_name()?, Some(opens));
                    Message::Make { name, mode, umask, device: 0, opens }
                }
            }
            opcode::UNLINK => Message::Unlink { name: fields.last_name()? },
            opcode::RMDIR => Message::RemoveDirectory { name: fields.last_name()? },
            opcode::RENAME => {
                let to = fields.u64()?;
                let (name, new_name) = (fields.name()?, fields.last_name()?);
                Message::Rename { to, name, new_name, flags: Some(RenameFlags::Replace) }
            }
            opcode::RENAME2 => {
                let (to, flags, _padding) = (fields.u64()?, fields.u32()?, fields.u32()?);
                let flags = rename_flags(flags);
                let (name, new_name) = (fields.name()?, fields.last_name()?);
                Message::Rename { to, name, new_name, flags }
            }
            opcode::LINK => Message::Link { inode: fields.u64()?, name: fields.last_name()? },
            opcode::SETXATTR => {
                let (size, flags) = (fields.u32()?, fields.u32()?);
                let kills = if long_set_xattr { (fields.u32()?, fields.u32()?).0 } else { 0 };
                let name = fields.name()?;
                let value = fields.0.get(..size as usize)?;
                let mode = match flags as i32 {
                    libc::XATTR_CREATE => XattrMode::Create,
                    libc::XATTR_REPLACE => XattrMode::Replace,
                    _ => XattrMode::Any,
                };
                Message::SetXattr {
                    name,
                    value,
                    mode,
                    kills_set_gid: kills & SETXATTR_KILL_SGID != 0,
                }
            }
            opcode::GETXATTR => {
                let (size, _padding) = (fields.u32()?, fields.u32()?);
                Message::GetXattr { name: fields.last_name()?, size }
            }
            opcode::LISTXATTR => Message::ListXattr { size: fields.u32()? },
            opcode::REMOVEXATTR => Message::RemoveXattr { name: fields.last_name()? },
            _ => Message::Unknown,
        })
    }
}

fn attributes(fields: &mut Fields<'_>) -> Option<Attributes> {
    let (valid, _padding, _handle) = (fields.u32()?, fields.u32()?, fields.u64()?);
    let (size, _owner) = (fields.u64()?, fields.u64()?);
    let seconds = [fields.u64()?, fields.u64()?, fields.u64()?];
    let nanoseconds = [fields.u32()?, fields.u32()?, fields.u32()?];
    let (mode, _unused) = (fields.u32()?, fields.u32()?);
    let (uid, gid) = (fields.u32()?, fields.u32()?);
    let time = |index: usize| Time {
        seconds: seconds[index] as i64,
        nanoseconds: nanoseconds[index].min(999_999_999),
    };
    let has = |bit: u32| valid & bit != 0;
    let or_now =
        |bit, now, index| has(bit).then(|| if has(now) { None } else { Some(time(index)) });
    Some(Attributes {
        mode: has(set::MODE).then_some(mode),
        uid: has(set::UID).then_some(uid),
        gid: has(set::GID).then_some(gid),
        size: has(set::SIZE).then_some(size),
        accessed: or_now(set::ATIME, set::ATIME_NOW, 0),
        modified: or_now(set::MTIME, set::MTIME_NOW, 1),
        changed: has(set::CTIME).then(|| time(2)),
        kills_privileges: has(set::KILL_SUIDGID),
    })
}

fn rename_flags(flags: u32) -> Option<RenameFlags> {
    match flags {
        0 => Some(RenameFlags::Replace),
        libc::RENAME_NOREPLACE => Some(RenameFlags::NoReplace),
        libc::RENAME_EXCHANGE => Some(RenameFlags::Exchange),
        // The message's header says who makes it.
        libc::RENAME_WHITEOUT => Some(RenameFlags::Whiteout { uid: 0, gid: 0 }),
        _ => None,
    }
}

fn allocate_mode(mode: u32) -> Option<AllocateMode> {
    const KEEP: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;
    const PUNCH: u32 = libc::FALLOC_FL_PUNCH_HOLE as u32 | KEEP;
    const ZERO: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;
    const ZERO_KEEP: u32 = ZERO | KEEP;
    match mode {
        0 => Some(AllocateMode::Allocate { keep_size: false }),
        KEEP => Some(AllocateMode::Allocate { keep_size: true }),
        PUNCH => Some(AllocateMode::Punch),
        ZERO => Some(AllocateMode::Zero { keep_size: false }),
        ZERO_KEEP => Some(AllocateMode::Zero { keep_size: true }),
        _ => None,
    }
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
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

    fn handle_offset_size(&mut self) -> Option<(u64, u32)> {
        let (_handle, offset) = (self.u64()?, self.u64()?);
        Some((offset, self.u32()?))
    }

    /// A name with a zero behind it.
    fn name(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let (name, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Some(name)
    }

    /// The same where nothing may follow but padding.
    fn last_name(&mut self) -> Option<&'a [u8]> {
        self.name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_message_that_is_cut_short_or_unknown_makes_it_panic() {
        let body = [0xa5u8; 200];
        let zeros = [0u8; 200];
        for opcode in 0..80 {
            for length in 0..200 {
                for long in [false, true] {
                    let _ = Message::decode(opcode, &body[..length], long);
                    let _ = Message::decode(opcode, &zeros[..length], long);
                }
            }
        }
        assert_eq!(Message::decode(777, &body, false), Some(Message::Unknown));
        assert_eq!(Message::decode(opcode::LOOKUP, b"name", false), None, "no zero behind it");
        assert_eq!(Message::decode(opcode::SETATTR, &zeros[..80], false), None);
        let truncated = Message::decode(opcode::BATCH_FORGET, &[9, 0, 0, 0, 0, 0, 0, 0, 1], false);
        assert_eq!(truncated, None);
        assert!(Header::decode(&body[..39]).is_none());
    }

    #[test]
    fn a_request_to_set_an_attribute_has_two_lengths() {
        let words: Vec<u8> = [3_u32, 1].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let (kills, rest) = ([1, 0, 0, 0, 0, 0, 0, 0], b"user.a\0xyz");
        let expected = |kills_set_gid| {
            Some(Message::SetXattr {
                name: b"user.a",
                value: b"xyz",
                mode: XattrMode::Create,
                kills_set_gid,
            })
        };
        let short = [&words[..], rest].concat();
        assert_eq!(Message::decode(opcode::SETXATTR, &short, false), expected(false));
        let long = [&words[..], &kills, rest].concat();
        assert_eq!(Message::decode(opcode::SETXATTR, &long, true), expected(true));
    }

    #[test]
    fn names_are_bytes() {
        let mut body = 7u64.to_ne_bytes().to_vec();
        body.extend_from_slice(b"a\nb\0\xff\xfe\0");
        let found = Message::decode(opcode::RENAME, &body, false);
        let flags = Some(RenameFlags::Replace);
        let expected = Message::Rename { to: 7, name: b"a\nb", new_name: b"\xff\xfe", flags };
        assert_eq!(found, Some(expected));
    }
}
