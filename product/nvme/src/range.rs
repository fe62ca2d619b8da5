//! Ranges of Dataset Management.

use crate::bytes::{put, u32_at, u64_at};

/// Bytes of a range.
pub const RANGE_SIZE: usize = 16;
/// Ranges of one command.
pub const RANGE_COUNT_MAX: usize = 256;
/// Bit of command dword 11: unmap.
pub const DEALLOCATE: u32 = 1 << 2;

/// Blocks that a command is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first.
    pub slba: u64,
    /// How many; may be zero.
    pub count: u32,
}

impl Range {
    /// Its bytes.
    pub fn encode(&self) -> [u8; RANGE_SIZE] {
        let mut bytes = [0; RANGE_SIZE];
        put(&mut bytes, 4, &self.count.to_le_bytes());
        put(&mut bytes, 8, &self.slba.to_le_bytes());
        bytes
    }

    /// What is in `bytes`; attributes are hints, and are left alone.
    pub fn decode(bytes: &[u8; RANGE_SIZE]) -> Range {
        Range { slba: u64_at(bytes, 8), count: u32_at(bytes, 4) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_survives_its_bytes() {
        let range = Range { slba: 0x0102_0304_0506, count: 9 };
        assert_eq!(range.encode(), [0, 0, 0, 0, 9, 0, 0, 0, 6, 5, 4, 3, 2, 1, 0, 0]);
        assert_eq!(Range::decode(&range.encode()), range);
    }
}
