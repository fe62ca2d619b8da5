//! Addresses as types of their own, so that a host address is never taken for a device address.

/// A host address: the number of a 4096-byte block in the host's (sparse, 64-bit) space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lba(pub u64);

/// Host addresses lie below this, so that one bit is free for marks in memory.
pub const LBA_LIMIT: u64 = 1 << 63;

/// A device address: the number of a 4096-byte block on the device. Zero is the first superblock
/// and therefore never holds data; it stands for "nowhere".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pba(pub u32);

impl Pba {
    /// The address of nothing: an unmapped block.
    pub const NOWHERE: Pba = Pba(0);

    /// In map pages and runs: the map page that knew where this block lay was damaged. Reading it is
    /// an error until it is written or discarded. Like zero, it is in no log.
    pub const LOST: Pba = Pba(1);

    /// Byte offset on the device.
    pub const fn byte_offset(self) -> u64 {
        self.0 as u64 * crate::BLOCK_SIZE as u64
    }

    /// The address `blocks` further on. Saturates; an address beyond the device is refused by
    /// whoever checks it against the geometry.
    pub const fn plus(self, blocks: u32) -> Pba {
        Pba(self.0.saturating_add(blocks))
    }
}

/// Where a block lies and what its content must add up to. Eight bytes: the map's unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockPointer {
    /// Device address, or [`Pba::NOWHERE`].
    pub pba: Pba,
    /// The block's checksum ([`crate::checksum::block`]); zero when `pba` is nowhere.
    pub checksum: u32,
}

impl BlockPointer {
    /// Points nowhere: the block is unmapped and reads as zeros.
    pub const NOWHERE: BlockPointer = BlockPointer { pba: Pba::NOWHERE, checksum: 0 };

    /// See [`Pba::LOST`].
    pub const LOST: BlockPointer = BlockPointer { pba: Pba::LOST, checksum: 0 };

    /// Whether a block is there, or was and is lost.
    pub const fn is_mapped(self) -> bool {
        self.pba.0 != 0
    }

    /// Whether it is not known any more where the block lies.
    pub const fn is_lost(self) -> bool {
        self.pba.0 == Pba::LOST.0
    }
}

/// What ties a structure to one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreId {
    /// Universally unique, chosen when the store is created.
    pub uuid: [u8; 16],
    /// A random number that no host can read: record headers are checksummed with it, so that data
    /// which imitates a record is not taken for one.
    pub salt: u32,
}
