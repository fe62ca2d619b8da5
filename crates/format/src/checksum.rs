//! CRC-32C, and how it is bound to an address.
//!
//! The checksum of a block is kept *beside its address* (in the map, a root page or a checkpoint),
//! never inside it. A block that is torn, rotten, stale (an older version) or misdirected (another
//! block's content) therefore fails the comparison: the pointer expects the newest content of this
//! very block. Binding the key and the kind in as well catches a pointer that was itself mixed up.

use crate::Block;

/// What kind of block a key belongs to; part of the checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// Host data; the key is the host address.
    Data = 1,
    /// A range of host addresses that is unmapped; has no blocks.
    Discard = 2,
    /// A leaf page of the map; the key is the host address of its first entry / 512.
    Leaf = 3,
    /// A root page of the map; the key is the key of its first leaf / 512.
    Root = 4,
    /// A page of the segment table; the key is its index.
    SegmentTable = 5,
    /// A block of a run; the key is the run's number × 2^20 + the block's index.
    Run = 6,
    /// A block of a checkpoint's body; the key is its index.
    Checkpoint = 7,
    /// The second copy of a root page; the key is the page's.
    RootCopy = 8,
    /// The second copy of a page of the segment table; the key is the page's.
    TableCopy = 9,
    /// The second copy of a block of a run; the key is the block's.
    RunCopy = 10,
    /// The parity of headers of records; the key is the place of the first of them.
    HeaderParity = 11,
}

impl Kind {
    /// The kind of a code on disk.
    pub const fn from_code(code: u8) -> Option<Kind> {
        Some(match code {
            1 => Kind::Data,
            2 => Kind::Discard,
            3 => Kind::Leaf,
            4 => Kind::Root,
            5 => Kind::SegmentTable,
            6 => Kind::Run,
            7 => Kind::Checkpoint,
            8 => Kind::RootCopy,
            9 => Kind::TableCopy,
            10 => Kind::RunCopy,
            11 => Kind::HeaderParity,
            _ => return None,
        })
    }

    /// The kind that second copies of blocks of this kind have; `None` if there are none of them.
    pub const fn of_copy(self) -> Option<Kind> {
        match self {
            Kind::Root => Some(Kind::RootCopy),
            Kind::SegmentTable => Some(Kind::TableCopy),
            Kind::Run => Some(Kind::RunCopy),
            _ => None,
        }
    }

    /// Whether blocks of this kind are second copies, or parity.
    pub const fn is_copy(self) -> bool {
        matches!(self, Kind::RootCopy | Kind::TableCopy | Kind::RunCopy | Kind::HeaderParity)
    }

    /// Whether entries of this kind occupy blocks in their record's payload.
    pub const fn has_payload(self) -> bool {
        !matches!(self, Kind::Discard)
    }
}

#[cfg(not(feature = "std"))]
const TABLES: crc::Crc<u32, crc::Table<16>> =
    crc::Crc::<u32, crc::Table<16>>::new(&crc::CRC_32_ISCSI);

/// CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    #[cfg(feature = "std")]
    return crc_fast::crc32_iscsi(bytes);
    #[cfg(not(feature = "std"))]
    return TABLES.checksum(bytes);
}

/// The checksum of a block as a pointer holds it.
pub fn block(kind: Kind, key: u64, content: &Block) -> u32 {
    crc32c(content) ^ binding(kind, key)
}

/// The checksum that a block of this checksum has as another kind, under the same key.
pub const fn rebound(checksum: u32, key: u64, from: Kind, to: Kind) -> u32 {
    checksum ^ binding(from, key) ^ binding(to, key)
}

/// A 32-bit mix of kind and key (SplitMix64's finaliser). XOR with it is as strong as hashing the
/// key in front of the content, since a CRC is linear, and it leaves the inner loop alone.
const fn binding(kind: Kind, key: u64) -> u32 {
    let mut mixed = key ^ ((kind as u64) << 56) ^ 0x9e37_79b9_7f4a_7c15;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    (mixed >> 32) as u32 ^ mixed as u32
}

/// The checksum of a structure that stores it inside itself: CRC-32C of the bytes around the
/// field, mixed with the salt.
pub(crate) fn sealed<const FIELD: usize>(content: &Block, salt: u32) -> u32 {
    let mut copy = *content;
    crate::bytes::put::<FIELD, 4>(&mut copy, salt.to_le_bytes());
    crc32c(&copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_a_copy_follows_from_that_of_the_block() {
        let content = [7; crate::BLOCK_SIZE];
        for kind in [Kind::Root, Kind::SegmentTable, Kind::Run] {
            let copy = kind.of_copy().expect("there are copies of it");
            let rebound = rebound(block(kind, 77, &content), 77, kind, copy);
            assert_eq!(rebound, block(copy, 77, &content));
            assert!(copy.is_copy() && !kind.is_copy() && copy.of_copy().is_none());
        }
    }

    #[test]
    fn crc32c_matches_the_published_check_value() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        // RFC 3720, appendix B.4: 32 bytes of zeros.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn the_same_content_has_another_checksum_at_another_address_or_of_another_kind() {
        let content = [7; crate::BLOCK_SIZE];
        let here = block(Kind::Data, 10, &content);
        assert_ne!(here, block(Kind::Data, 11, &content));
        assert_ne!(here, block(Kind::Leaf, 10, &content));
        for bit in 0..56 {
            assert_ne!(
                here,
                block(Kind::Data, 10 ^ 1 << bit, &content),
                "bit {bit} of the address"
            );
        }
    }
}
