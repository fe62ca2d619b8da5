//! CRC-32C, and how it is bound to an address.
//!
//! The checksum of a block is kept *beside its address* (in the map, a root page or a checkpoint),
//! never inside it. A block that is torn, rotten, stale (an older version) or misdirected (another
//! block's content) therefore fails the comparison: the pointer expects the newest content of this
//! very block. Binding the key and the kind in as well catches a pointer that was itself mixed up.

use crate::bytes::{put, u32_at};
use crate::{BLOCK_SIZE, Block};

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
    /// A page of the list of roots; the key is its index.
    RootList = 12,
    /// The second copy of a page of the list of roots; the key is the page's.
    RootListCopy = 13,
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
            12 => Kind::RootList,
            13 => Kind::RootListCopy,
            _ => return None,
        })
    }

    /// The kind that second copies of blocks of this kind have; `None` if there are none of them.
    pub const fn of_copy(self) -> Option<Kind> {
        match self {
            Kind::Root => Some(Kind::RootCopy),
            Kind::SegmentTable => Some(Kind::TableCopy),
            Kind::Run => Some(Kind::RunCopy),
            Kind::RootList => Some(Kind::RootListCopy),
            _ => None,
        }
    }

    /// Whether blocks of this kind are second copies, or parity.
    pub const fn is_copy(self) -> bool {
        matches!(
            self,
            Kind::RootCopy
                | Kind::TableCopy
                | Kind::RunCopy
                | Kind::HeaderParity
                | Kind::RootListCopy
        )
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
    // As though the salt stood in the field. A copy of the block would cost more than what it changes.
    crc32c(content) ^ of_change::<FIELD>(u32_at::<FIELD>(content) ^ salt)
}

/// Stores the checksum of a structure inside itself.
pub(crate) fn seal<const FIELD: usize>(content: &mut Block, salt: u32) {
    put::<FIELD, 4>(content, salt.to_le_bytes());
    let sum = crc32c(content);
    put::<FIELD, 4>(content, sum.to_le_bytes());
}

/// By how much the checksum of a block changes when these bits of the four bytes at `OFFSET` do: a CRC is
/// linear, and each byte that follows multiplies by x^8.
pub(crate) fn of_change<const OFFSET: usize>(bits: u32) -> u32 {
    let of_each = const { &of_each_bit::<OFFSET>() };
    let each = of_each.iter().enumerate();
    each.fold(0, |sum, (bit, change)| sum ^ (change & 0u32.wrapping_sub(bits >> bit & 1)))
}

/// The same for each bit by itself.
#[allow(clippy::indexing_slicing, reason = "only the compiler evaluates it")]
const fn of_each_bit<const OFFSET: usize>() -> [u32; 32] {
    assert!(OFFSET + 4 <= BLOCK_SIZE, "a field lies inside its block");
    let (power, mut of_each, mut bit) = (power_of_bytes(BLOCK_SIZE - OFFSET), [0; 32], 0);
    while bit < 32 {
        of_each[bit] = product(1 << bit, power);
        bit += 1;
    }
    of_each
}

/// By how much the checksum of a block changes when its end, which was zeros, becomes these bytes.
pub(crate) fn of_end(end: &mut [u8]) -> Option<u32> {
    // A CRC begins as though the first four bytes were inverted.
    invert(end.first_chunk_mut()?);
    let sum = crc32c(end);
    invert(end.first_chunk_mut()?);
    Some(!sum)
}

fn invert(bytes: &mut [u8; 4]) {
    bytes.iter_mut().for_each(|byte| *byte = !*byte);
}

/// The polynomial of CRC-32C without x^32, the coefficient of x^31 in the lowest bit, as in all that follows.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The product of two polynomials, modulo that of the CRC.
const fn product(a: u32, b: u32) -> u32 {
    let (mut sum, mut power, mut bit) = (0, b, 32);
    while bit > 0 {
        bit -= 1;
        sum ^= power & 0u32.wrapping_sub(a >> bit & 1);
        power = (power >> 1) ^ (POLYNOMIAL & 0u32.wrapping_sub(power & 1));
    }
    sum
}

/// x to the power of as many bits as these bytes have.
const fn power_of_bytes(bytes: usize) -> u32 {
    let (mut result, mut power, mut left) = (1 << 31, 1 << 23, bytes);
    while left > 0 {
        if left & 1 == 1 {
            result = product(result, power);
        }
        power = product(power, power);
        left >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_a_copy_follows_from_that_of_the_block() {
        let content = [7; crate::BLOCK_SIZE];
        for kind in [Kind::Root, Kind::SegmentTable, Kind::Run, Kind::RootList] {
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
    fn what_a_change_makes_of_a_checksum_is_what_it_is_computed_anew() {
        let mut content: Block = core::array::from_fn(|index| (index * 7 % 251) as u8);
        content[3000..].fill(0);
        let before = crc32c(&content);
        let mut changed = content;
        changed[80..84].copy_from_slice(&(u32_at::<80>(&content) ^ 0x8000_0105).to_le_bytes());
        assert_eq!(before ^ of_change::<80>(0x8000_0105), crc32c(&changed));
        for start in [3000, 3001, 4000, 4092] {
            let mut changed = content;
            changed[start..]
                .iter_mut()
                .enumerate()
                .for_each(|(index, byte)| *byte = index as u8 ^ 0x5a);
            let end = changed;
            let change = of_end(&mut changed[start..]).expect("it has four bytes");
            assert_eq!(changed, end, "it is as it was");
            assert_eq!(before ^ change, crc32c(&changed), "from {start} on");
        }
        assert_eq!(of_end(&mut [1, 2, 3]), None);
    }

    #[test]
    fn the_salt_stands_where_the_checksum_is_stored() {
        let content: Block = core::array::from_fn(|index| (index * 11 % 253) as u8);
        let mut salted = content;
        salted[12..16].copy_from_slice(&0x1234_5678u32.to_le_bytes());
        assert_eq!(sealed::<12>(&content, 0x1234_5678), crc32c(&salted));
        let sum = crc32c(&salted);
        seal::<12>(&mut salted, 0x1234_5678);
        assert_eq!(u32_at::<12>(&salted), sum);
        assert_eq!(sealed::<12>(&salted, 0x1234_5678), sum, "whatever stands there");
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
