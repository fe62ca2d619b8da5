//! What a file system is asked, and what it answers.

pub use crate::namespace::xattr::XattrMode;
use coulter::buffer::Buffer;
use coulter_format::BLOCK_SIZE;
use coulter_format::files::{Inode, NAME_SIZE_MAX, Time};
use std::ops::Range;

/// A name in a directory: 1 to 255 bytes, none of them zero or a slash. Or that of an attribute.
#[derive(Clone, Copy)]
pub struct Name {
    bytes: [u8; NAME_SIZE_MAX],
    length: u8,
}

impl Name {
    /// The name of these bytes.
    ///
    /// # Errors
    /// The error number that the caller of the system should see.
    pub fn new(bytes: &[u8]) -> Result<Name, i32> {
        if bytes.len() > NAME_SIZE_MAX {
            return Err(libc::ENAMETOOLONG);
        }
        if bytes.is_empty() {
            return Err(libc::ENOENT);
        }
        if bytes.contains(&b'/') {
            return Err(libc::EINVAL);
        }
        Name::of_attribute(bytes)
    }

    /// The name of an extended attribute, which may hold a slash.
    ///
    /// # Errors
    /// The error number that the caller of the system should see.
    pub fn of_attribute(bytes: &[u8]) -> Result<Name, i32> {
        if bytes.len() > NAME_SIZE_MAX {
            return Err(libc::ERANGE);
        }
        if bytes.is_empty() || bytes.contains(&0) {
            return Err(libc::EINVAL);
        }
        let mut name = Name { bytes: [0; NAME_SIZE_MAX], length: bytes.len() as u8 };
        name.bytes[..bytes.len()].copy_from_slice(bytes);
        Ok(name)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length.into()]
    }

    pub(crate) fn size(&self) -> i64 {
        self.length.into()
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.bytes().escape_ascii())
    }
}

/// What a new node is like.
#[derive(Clone, Debug, Default)]
pub struct NewNode {
    /// Kind and permissions, as `st_mode`.
    pub mode: u32,
    /// Permissions that the caller does not want to give. Where the directory has a default access
    /// control list, that decides instead.
    pub umask: u32,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory gives its own.
    pub gid: u32,
    /// Of a device: which.
    pub device: u32,
    /// Of a symbolic link: where it points.
    pub target: Option<Box<[u8]>>,
}

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the request.
    Now,
    /// This one.
    To(Time),
}

/// Attributes to be changed; what is `None` stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changes {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// Last access.
    pub accessed: Option<SetTime>,
    /// Last change of the content.
    pub modified: Option<SetTime>,
    /// Last change of anything, which is now if it is not given.
    pub changed: Option<Time>,
    /// Take set-uid, set-gid and capabilities away.
    pub kills_privileges: bool,
}

/// How a rename treats an existing name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameFlags {
    /// It loses what it stood for.
    Replace,
    /// It makes the rename fail.
    NoReplace,
    /// The two change places.
    Exchange,
    /// As [`RenameFlags::Replace`]; and what was moved leaves a whiteout, a device of the number 0,
    /// which hides what overlayfs has below that name.
    Whiteout {
        /// Its owner.
        uid: u32,
        /// Its group.
        gid: u32,
    },
}

/// What `fallocate` is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Take space for holes; `keep_size` leaves the size.
    Allocate {
        /// Whether the size stays.
        keep_size: bool,
    },
    /// Give blocks back; they read as zeros.
    Punch,
    /// Zeros, with space behind them.
    Zero {
        /// Whether the size stays.
        keep_size: bool,
    },
}

/// What `lseek` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// Bytes that are stored.
    Data,
    /// Bytes that are not.
    Hole,
}

/// One operation. `inode` and `directory` are numbers from earlier answers, or the root's.
#[derive(Debug)]
#[expect(missing_docs, reason = "fields are named after what they hold")]
#[expect(clippy::large_enum_variant, reason = "names are in it, so that none is allocated")]
pub enum Request {
    /// What a name stands for. One more lookup of it to be forgotten.
    Lookup {
        directory: u64,
        name: Name,
    },
    Attributes {
        inode: u64,
    },
    Change {
        inode: u64,
        changes: Changes,
    },
    ReadLink {
        inode: u64,
    },
    /// A new node with a name. One lookup.
    Make {
        directory: u64,
        name: Name,
        new: NewNode,
    },
    /// A new file without one. One lookup.
    MakeUnnamed {
        directory: u64,
        new: NewNode,
    },
    /// One lookup.
    Link {
        inode: u64,
        directory: u64,
        name: Name,
    },
    Unlink {
        directory: u64,
        name: Name,
    },
    RemoveDirectory {
        directory: u64,
        name: Name,
    },
    Rename {
        from: u64,
        name: Name,
        to: u64,
        new_name: Name,
        flags: RenameFlags,
    },
    /// Up to `length` bytes into `buffer`, which must hold [`crate::read_span`] of them.
    Read {
        inode: u64,
        offset: u64,
        length: u32,
        buffer: Buffer,
    },
    /// All bytes of the buffer.
    Write {
        inode: u64,
        offset: u64,
        buffer: Buffer,
        kills_privileges: bool,
        sync: bool,
    },
    Allocate {
        inode: u64,
        offset: u64,
        length: u64,
        mode: AllocateMode,
    },
    Seek {
        inode: u64,
        offset: u64,
        whence: Whence,
    },
    /// At most 1 MiB at a time.
    Copy {
        from: u64,
        from_offset: u64,
        to: u64,
        to_offset: u64,
        length: u64,
    },
    /// Names behind a cookie, of at most `size` bytes with 24 for each. With attributes it is one
    /// lookup for each name but `.` and `..`.
    List {
        directory: u64,
        cookie: u64,
        size: u32,
        with_attributes: bool,
    },
    Xattr {
        inode: u64,
        name: Name,
    },
    SetXattr {
        inode: u64,
        name: Name,
        value: Box<[u8]>,
        mode: XattrMode,
        /// Whether set-gid goes: the attribute is an access control list, and who sets it is not in
        /// the group.
        kills_set_gid: bool,
    },
    RemoveXattr {
        inode: u64,
        name: Name,
    },
    XattrNames {
        inode: u64,
    },
    Statistics,
    /// All that was answered before is durable afterwards.
    Sync,
    /// The same as far as it is about this node.
    SyncNode {
        inode: u64,
    },
    /// What is kept apart from its file is brought home, and done when nothing is left.
    Settle,
}

/// A node and its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Its number.
    pub number: u64,
    /// The rest.
    pub inode: Inode,
}

/// How full a file system is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks that are free.
    pub free: u64,
    /// Blocks that are free for all but operations that free others.
    pub available: u64,
    /// Inodes that there are.
    pub inodes: u64,
}

/// One entry of a listing.
#[derive(Clone, Copy, Debug)]
pub struct Listed {
    /// Where the next listing goes on behind it.
    pub cookie: u64,
    /// What it stands for.
    pub inode: u64,
    /// Kind, as `d_type`.
    pub kind: u8,
    /// Where its name lies among the names.
    pub name: (u32, u8),
    /// Its attributes, if they were asked for.
    pub attributes: Option<Inode>,
}

/// Names of a directory.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// In the order of their cookies.
    pub entries: Vec<Listed>,
    /// All names, one behind the other.
    pub names: Vec<u8>,
}

impl Listing {
    /// The name of an entry.
    pub fn name(&self, entry: &Listed) -> &[u8] {
        let (start, length) = entry.name;
        &self.names[start as usize..start as usize + usize::from(length)]
    }
}

/// A successful answer.
#[derive(Debug)]
#[expect(missing_docs, reason = "named after the requests")]
pub enum Reply {
    Done,
    /// Of `Lookup`, `Make`, `MakeUnnamed` and `Link`.
    Entry(Attributes),
    Attributes(Attributes),
    /// These bytes of the buffer.
    Data(Buffer, Range<usize>),
    /// So many bytes; the buffer comes back.
    Written(u32, Buffer),
    Bytes(Vec<u8>),
    Offset(u64),
    Listing(Listing),
    Usage(Usage),
}

/// An answer.
#[derive(Debug)]
pub struct Response {
    /// Of which request.
    pub id: u64,
    /// What it gave, or an error number.
    pub result: Result<Reply, i32>,
    /// The buffer of a read or a write that failed; it is in the reply otherwise.
    pub buffer: Buffer,
}

/// Bytes that a buffer must hold for a read of so many bytes from here on: whole blocks.
pub fn read_span(offset: u64, length: u32) -> usize {
    let end = offset.saturating_add(length.into());
    let first = offset / BLOCK_SIZE as u64;
    ((end.div_ceil(BLOCK_SIZE as u64) - first) as usize) * BLOCK_SIZE
}
