//! The items of the tree: bytes of each kind.

use crate::bytes::{Reader, Writer};
use crate::files::NAME_SIZE_MAX;
use crate::files::node::ITEM_SIZE_MAX;
use crate::{Corrupt, Reason, Structure};

/// Bytes of an inode item.
pub const INODE_SIZE: usize = 128;
/// Bytes of an extent item.
pub const EXTENT_SIZE: usize = 16;
/// Bytes of a name item without the name.
pub const NAME_HEADER: usize = 9;
/// Bytes of a name item at most.
pub const NAME_ITEM_MAX: usize = NAME_HEADER + NAME_SIZE_MAX;
/// Bytes of one part of a value that is too long for one item.
pub const PART_SIZE: usize = 1536;
/// Bytes of an orphan item.
pub const ORPHAN_SIZE: usize = 8;

const _: () = assert!(PART_SIZE + NAME_SIZE_MAX + 8 <= ITEM_SIZE_MAX);

fn corrupt(name: &'static str) -> Corrupt {
    Corrupt { structure: Structure::FilesItem, reason: Reason::Field(name) }
}

/// A point in time: seconds since 1970, and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds since 1970; negative before.
    pub seconds: i64,
    /// Below a thousand million.
    pub nanoseconds: u32,
}

/// An inode has extended attributes named `security.capability`.
pub const FLAG_CAPABILITY: u32 = 1;
/// An inode has an access control list, or a default one for what is made in it: extended attributes named
/// `system.posix_acl_access` and `system.posix_acl_default`.
pub const FLAG_ACCESS_LIST: u32 = 2;

/// The attributes of a file, directory or anything else that has names.
///
/// ```text
/// 0   mode (u32)    4   uid (u32)    8   gid (u32)   12  links (u32)
/// 16  size (u64)    24  blocks (u64) 32  parent (u64) 40  device (u32)  44  flags (u32)
/// 48  accessed      60  modified     72  changed     84  born: seconds (i64), nanoseconds (u32)
/// 96  generation (u32)  100  zeros
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inode {
    /// Kind and permissions, as `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names that refer to it; of a directory 2 and one for each directory in it.
    pub links: u32,
    /// Bytes; of a directory the sizes of its names.
    pub size: u64,
    /// Host blocks of data.
    pub blocks: u64,
    /// Of a directory: the one that it is in.
    pub parent: u64,
    /// Of a device: which.
    pub device: u32,
    /// Such as [`FLAG_CAPABILITY`].
    pub flags: u32,
    /// Last access.
    pub accessed: Time,
    /// Last change of the content.
    pub modified: Time,
    /// Last change of anything.
    pub changed: Time,
    /// When it was made.
    pub born: Time,
    /// Tells it from an earlier inode of the same number.
    pub generation: u32,
}

impl Inode {
    /// The item's bytes.
    pub fn encode(&self) -> [u8; INODE_SIZE] {
        let mut bytes = [0; INODE_SIZE];
        let mut writer = Writer::new(&mut bytes);
        for field in [self.mode, self.uid, self.gid, self.links] {
            writer.u32(field);
        }
        for field in [self.size, self.blocks, self.parent] {
            writer.u64(field);
        }
        writer.u32(self.device);
        writer.u32(self.flags);
        for time in [self.accessed, self.modified, self.changed, self.born] {
            writer.put(&time.seconds.to_le_bytes());
            writer.u32(time.nanoseconds);
        }
        writer.u32(self.generation);
        bytes
    }

    /// The inode in an item.
    ///
    /// # Errors
    /// When no writer makes such an item.
    pub fn decode(bytes: &[u8]) -> Result<Inode, Corrupt> {
        if bytes.len() != INODE_SIZE {
            return Err(corrupt("inode size"));
        }
        Inode::fields(&mut Reader::new(bytes)).ok_or(corrupt("inode"))
    }

    fn fields(reader: &mut Reader<'_>) -> Option<Inode> {
        let (mode, uid, gid, links) = (reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?);
        let (size, blocks, parent) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let (device, flags) = (reader.u32()?, reader.u32()?);
        let mut time = || {
            let seconds = i64::from_le_bytes(reader.take()?);
            let nanoseconds = reader.u32().filter(|n| *n < 1_000_000_000)?;
            Some(Time { seconds, nanoseconds })
        };
        let (accessed, modified, changed, born) = (time()?, time()?, time()?, time()?);
        let generation = reader.u32()?;
        Some(Inode {
            mode,
            uid,
            gid,
            links,
            size,
            blocks,
            parent,
            device,
            flags,
            accessed,
            modified,
            changed,
            born,
            generation,
        })
    }
}

/// A name in a directory: `0 inode (u64)  8 kind  9 name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameEntry<'a> {
    /// What it is the name of.
    pub inode: u64,
    /// Its kind, as `d_type`.
    pub kind: u8,
    /// The name: any bytes but zero and a slash.
    pub name: &'a [u8],
}

impl<'a> NameEntry<'a> {
    /// Writes the item's bytes into `bytes`, and returns how many they are.
    pub fn encode(&self, bytes: &mut [u8; NAME_ITEM_MAX]) -> usize {
        assert!(self.name.len() <= NAME_SIZE_MAX, "a name has at most 255 bytes");
        let mut writer = Writer::new(bytes);
        writer.u64(self.inode);
        writer.u8(self.kind);
        writer.put(self.name);
        NAME_HEADER + self.name.len()
    }

    /// The name in an item.
    ///
    /// # Errors
    /// When no writer makes such an item.
    pub fn decode(bytes: &'a [u8]) -> Result<NameEntry<'a>, Corrupt> {
        let mut reader = Reader::new(bytes);
        let (inode, kind) = (reader.u64(), reader.u8());
        let name = reader.rest();
        let is_name = !name.is_empty()
            && name.len() <= NAME_SIZE_MAX
            && !name.contains(&0)
            && !name.contains(&b'/')
            && name != b"."
            && name != b"..";
        match (inode, kind) {
            (Some(inode), Some(kind)) if is_name => Ok(NameEntry { inode, kind, name }),
            _ => Err(corrupt("name")),
        }
    }
}

/// A run of a file's blocks: `0 host block (u64)  8 blocks (u32)  12 zeros`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first one's host block.
    pub block: u64,
    /// Blocks.
    pub count: u32,
}

impl Extent {
    /// The item's bytes.
    pub fn encode(&self) -> [u8; EXTENT_SIZE] {
        let mut bytes = [0; EXTENT_SIZE];
        let mut writer = Writer::new(&mut bytes);
        writer.u64(self.block);
        writer.u32(self.count);
        bytes
    }

    /// The run in an item.
    ///
    /// # Errors
    /// When no writer makes such an item.
    pub fn decode(bytes: &[u8]) -> Result<Extent, Corrupt> {
        let mut reader = Reader::new(bytes);
        match (reader.u64(), reader.u32(), reader.u32(), reader.rest().len()) {
            (Some(block), Some(count), Some(0), 0) if count > 0 && block >= 2 => {
                Ok(Extent { block, count })
            }
            _ => Err(corrupt("extent")),
        }
    }
}

/// An orphan's item: the first block of the file that is to go (u64).
pub fn encode_orphan(from_block: u64) -> [u8; ORPHAN_SIZE] {
    from_block.to_le_bytes()
}

/// The first block that is to go.
///
/// # Errors
/// When no writer makes such an item.
pub fn decode_orphan(bytes: &[u8]) -> Result<u64, Corrupt> {
    match bytes.try_into() {
        Ok(bytes) => Ok(u64::from_le_bytes(bytes)),
        Err(_) => Err(corrupt("orphan")),
    }
}

/// An extended attribute's first part: size of the name (u8), zero (u8), size of the value (u32), the
/// name, the first bytes of the value. The other parts are bytes of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XattrHead<'a> {
    /// The name with its prefix.
    pub name: &'a [u8],
    /// Bytes of the value.
    pub size: u32,
    /// The first of them.
    pub value: &'a [u8],
}

/// Bytes of the first part before the name.
pub const XATTR_HEADER: usize = 6;
/// Bytes of a value at most.
pub const XATTR_SIZE_MAX: usize = 65536;

impl<'a> XattrHead<'a> {
    /// Writes the part's bytes into `bytes`, and returns how many they are.
    pub fn encode(&self, bytes: &mut [u8; ITEM_SIZE_MAX]) -> usize {
        let mut writer = Writer::new(bytes);
        writer.u8(self.name.len() as u8);
        writer.u8(0);
        writer.u32(self.size);
        writer.put(self.name);
        writer.put(self.value);
        let written = writer.finish();
        assert!(written.is_some(), "the first part of a value fits into an item");
        written.unwrap_or(0)
    }

    /// The first part in an item.
    ///
    /// # Errors
    /// When no writer makes such an item.
    pub fn decode(bytes: &'a [u8]) -> Result<XattrHead<'a>, Corrupt> {
        let mut reader = Reader::new(bytes);
        let head = (reader.u8(), reader.u8(), reader.u32());
        let (Some(length), Some(0), Some(size)) = head else { return Err(corrupt("xattr")) };
        let Some(name) = reader.take_slice(length.into()).filter(|name| !name.is_empty()) else {
            return Err(corrupt("xattr"));
        };
        let value = reader.rest();
        let is_first = value.len() == (size as usize).min(PART_SIZE);
        if size as usize > XATTR_SIZE_MAX || !is_first {
            return Err(corrupt("xattr"));
        }
        Ok(XattrHead { name, size, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_survive_their_bytes() {
        let time = |seconds| Time { seconds, nanoseconds: 999_999_999 };
        let inode = Inode {
            mode: 0o100644,
            uid: 1,
            gid: 2,
            links: 3,
            size: 4,
            blocks: 5,
            parent: 6,
            device: 7,
            flags: 8,
            accessed: time(-9),
            modified: time(10),
            changed: time(11),
            born: time(12),
            generation: 13,
        };
        assert_eq!(Inode::decode(&inode.encode()), Ok(inode));
        let name = NameEntry { inode: 7, kind: 8, name: b"a\nb\xff" };
        let mut bytes = [0; NAME_ITEM_MAX];
        let size = name.encode(&mut bytes);
        assert_eq!(NameEntry::decode(&bytes[..size]), Ok(name));
        let extent = Extent { block: 99, count: 5 };
        assert_eq!(Extent::decode(&extent.encode()), Ok(extent));
        let head = XattrHead { name: b"user.x", size: 3, value: b"abc" };
        let mut bytes = [0; ITEM_SIZE_MAX];
        let size = head.encode(&mut bytes);
        assert_eq!(XattrHead::decode(&bytes[..size]), Ok(head));
    }

    #[test]
    fn what_no_writer_makes_is_refused() {
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
            let mut bytes = [0; NAME_ITEM_MAX];
            let size = NameEntry { inode: 7, kind: 8, name }.encode(&mut bytes);
            assert!(NameEntry::decode(&bytes[..size]).is_err(), "{name:?}");
        }
        assert!(Extent::decode(&Extent { block: 99, count: 0 }.encode()).is_err());
        assert!(Extent::decode(&[0; 15]).is_err());
        assert!(Inode::decode(&[0; 127]).is_err());
    }
}
