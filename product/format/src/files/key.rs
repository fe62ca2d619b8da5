//! Keys of the tree: an object, a kind of item, and a position.

/// What an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// An inode's attributes. Position 0.
    Inode = 1,
    /// A name in a directory. The position is its hash, and a number among names of one hash.
    Name = 2,
    /// A run of a file's blocks. The position is the first one's number in the file.
    Extent = 3,
    /// A part of an extended attribute. The position is the hash of its name, a number among names
    /// of one hash, and the number of the part.
    Xattr = 4,
    /// A part of a symbolic link's target. The position is the number of the part.
    Target = 5,
    /// An inode that has something to be taken away: object 0, the position is its number.
    Orphan = 6,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        Some(match byte {
            1 => Kind::Inode,
            2 => Kind::Name,
            3 => Kind::Extent,
            4 => Kind::Xattr,
            5 => Kind::Target,
            6 => Kind::Orphan,
            _ => return None,
        })
    }
}

/// Bits of a position.
pub const POSITION_BITS: u32 = 56;
/// Bits of the number of a part.
pub const PART_BITS: u32 = 8;
/// Positions of names, and of attributes, under one hash.
pub const ALIKE_BITS: u32 = 8;
/// The largest position.
pub const POSITION_MAX: u64 = (1 << POSITION_BITS) - 1;

/// A key. Keys are ordered by object, then kind, then position.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(u128);

impl Key {
    /// The least key.
    pub const MIN: Key = Key(0);

    /// The key of an item.
    ///
    /// # Panics
    /// When the position has more than [`POSITION_BITS`] bits.
    pub const fn new(object: u64, kind: Kind, position: u64) -> Key {
        assert!(position <= POSITION_MAX, "a position has 56 bits");
        Key((object as u128) << 64 | (kind as u128) << POSITION_BITS | position as u128)
    }

    /// The first key that a name of this hash may have: 48 bits of it, never all zero, so that a
    /// position is a directory cookie greater than 255.
    pub const fn of_name(directory: u64, hash: u64) -> Key {
        let bits = hash >> 16;
        let bits = if bits == 0 { 1 } else { bits };
        Key::new(directory, Kind::Name, bits << ALIKE_BITS)
    }

    /// The first key of the first part of an attribute whose name has this hash: 40 bits of it, the
    /// number among those of one hash, the number of the part.
    pub const fn of_xattr(inode: u64, hash: u64) -> Key {
        Key::new(inode, Kind::Xattr, hash >> 24 << (ALIKE_BITS + PART_BITS))
    }

    /// The key `distance` positions behind, of the same object and kind.
    pub const fn plus(self, distance: u64) -> Key {
        assert!(self.position() + distance <= POSITION_MAX, "a position has 56 bits");
        Key(self.0 + distance as u128)
    }

    /// Whose item it is.
    pub const fn object(self) -> u64 {
        (self.0 >> 64) as u64
    }

    /// What item it is; `None` when no writer makes such a key.
    pub fn kind(self) -> Option<Kind> {
        Kind::of((self.0 >> POSITION_BITS) as u8)
    }

    /// Where it lies among the items of its object and kind.
    pub const fn position(self) -> u64 {
        self.0 as u64 & POSITION_MAX
    }

    /// Whether it is of this object and kind.
    pub fn is(self, object: u64, kind: Kind) -> bool {
        self.object() == object && self.kind() == Some(kind)
    }

    /// The key right behind it; the greatest key has itself.
    pub const fn next(self) -> Key {
        Key(self.0.saturating_add(1))
    }

    /// Sixteen bytes: object, then kind and position.
    pub fn encode(self) -> [u8; 16] {
        let (high, low) = ((self.0 >> 64) as u64, self.0 as u64);
        let mut bytes = [0; 16];
        let (front, back) = bytes.split_at_mut(8);
        front.copy_from_slice(&high.to_le_bytes());
        back.copy_from_slice(&low.to_le_bytes());
        bytes
    }

    /// The key in sixteen bytes.
    pub fn decode(bytes: [u8; 16]) -> Key {
        let little = u128::from_le_bytes(bytes);
        Key(little.rotate_left(64))
    }
}

impl core::fmt::Debug for Key {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.kind() {
            Some(kind) => write!(f, "({}, {kind:?}, {:#x})", self.object(), self.position()),
            None => write!(f, "({}, {:#x})", self.object(), self.0 as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_ordered_by_object_then_kind_then_position_and_survive_their_bytes() {
        let keys = [
            Key::MIN,
            Key::new(0, Kind::Orphan, 7),
            Key::new(1, Kind::Inode, 0),
            Key::new(1, Kind::Name, 5),
            Key::new(1, Kind::Name, POSITION_MAX),
            Key::new(1, Kind::Extent, 0),
            Key::new(2, Kind::Inode, 0),
            Key::new(u64::MAX, Kind::Target, 3),
        ];
        assert!(keys.is_sorted());
        for key in keys {
            assert_eq!(Key::decode(key.encode()), key);
        }
        let key = keys[4];
        let parts = (key.object(), key.kind(), key.position());
        assert_eq!(parts, (1, Some(Kind::Name), POSITION_MAX));
        assert_eq!(key.next().kind(), Some(Kind::Extent));
    }
}
