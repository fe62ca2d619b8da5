//! Commands: 64 bytes.

use crate::bytes::{put, u16_at, u32_at, u64_at};

/// Bytes of a command.
pub const SQE_SIZE: usize = 64;

/// Byte 1: no fused operation, data by a scatter-gather list.
const FLAGS_SGL: u8 = 0x40;
const FUSED_MASK: u8 = 0x03;

/// Bits of command dword 12 of reads and writes.
pub mod control {
    /// Durable at completion.
    pub const FUA: u32 = 1 << 30;
    /// Try less hard.
    pub const LIMITED_RETRY: u32 = 1 << 31;
    /// Protection information; nothing of it is supported.
    pub const PROTECTION: u32 = 0xf << 26;
    /// Write Zeroes may unmap.
    pub const DEALLOCATE: u32 = 1 << 25;
    /// Directive type: a data placement handle, in `cdw13` above bit 16.
    pub const DIRECTIVE_PLACEMENT: u32 = 2 << 20;
}

/// A command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Sqe(pub [u8; SQE_SIZE]);

/// Where a command's data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPointer {
    /// No data.
    None,
    /// Behind the command, in its capsule, so many bytes from the beginning of the data.
    InCapsule {
        /// Bytes.
        length: u32,
        /// Of the first one.
        offset: u64,
    },
    /// The transport is to fetch it, or to bring it.
    Transport {
        /// Bytes.
        length: u32,
    },
    /// Anything else.
    Unsupported {
        /// Type and subtype.
        kind: u8,
    },
}

/// The type of a descriptor of data in the capsule, at an offset.
const SGL_IN_CAPSULE: u8 = 0x01;
/// The type of a descriptor of data that the transport moves.
const SGL_TRANSPORT: u8 = 0x5a;

impl Sqe {
    /// A command without data.
    pub fn new(opcode: u8, nsid: u32) -> Sqe {
        let mut bytes = [0; SQE_SIZE];
        bytes[0] = opcode;
        bytes[1] = FLAGS_SGL;
        put(&mut bytes, 4, &nsid.to_le_bytes());
        Sqe(bytes)
    }

    /// Which command.
    pub fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// Whether it is one half of a fused operation.
    pub fn is_fused(&self) -> bool {
        self.0[1] & FUSED_MASK != 0
    }

    /// Whether its data is described by a scatter-gather list, as it has to be over Fabrics.
    pub fn has_sgl(&self) -> bool {
        self.0[1] & 0xc0 == FLAGS_SGL
    }

    /// What its completion is to carry.
    pub fn cid(&self) -> u16 {
        u16_at(&self.0, 2)
    }

    /// The same with another identifier.
    pub fn with_cid(mut self, cid: u16) -> Sqe {
        put(&mut self.0, 2, &cid.to_le_bytes());
        self
    }

    /// The namespace.
    pub fn nsid(&self) -> u32 {
        u32_at(&self.0, 4)
    }

    /// Command dword `index`, 0 to 15.
    ///
    /// # Panics
    /// When there is no such dword.
    pub fn dword(&self, index: usize) -> u32 {
        assert!(index < SQE_SIZE / 4, "a command has sixteen dwords");
        u32_at(&self.0, index * 4)
    }

    /// The same with another dword.
    ///
    /// # Panics
    /// When there is no such dword.
    pub fn with_dword(mut self, index: usize, value: u32) -> Sqe {
        assert!(index < SQE_SIZE / 4, "a command has sixteen dwords");
        put(&mut self.0, index * 4, &value.to_le_bytes());
        self
    }

    /// The first block of a read or write.
    pub fn slba(&self) -> u64 {
        u64_at(&self.0, 40)
    }

    /// The blocks of a read or write, at least one.
    pub fn block_count(&self) -> u32 {
        (self.dword(12) & 0xffff) + 1
    }

    /// The same for `count` blocks from `slba` on.
    ///
    /// # Panics
    /// When the count is zero or more than 65536.
    pub fn with_blocks(self, slba: u64, count: u32) -> Sqe {
        assert!((1..=1 << 16).contains(&count), "a command is for 1 to 65536 blocks");
        let mut sqe = self.with_dword(12, self.dword(12) & !0xffff | (count - 1));
        put(&mut sqe.0, 40, &slba.to_le_bytes());
        sqe
    }

    /// Where its data is.
    pub fn data_pointer(&self) -> DataPointer {
        let (length, kind) = (u32_at(&self.0, 32), self.0[39]);
        match kind {
            SGL_IN_CAPSULE => DataPointer::InCapsule { length, offset: u64_at(&self.0, 24) },
            SGL_TRANSPORT if length == 0 => DataPointer::None,
            SGL_TRANSPORT => DataPointer::Transport { length },
            0 if length == 0 => DataPointer::None,
            kind => DataPointer::Unsupported { kind },
        }
    }

    /// The same with its data there.
    pub fn with_data_pointer(mut self, pointer: DataPointer) -> Sqe {
        let (length, offset, kind) = match pointer {
            DataPointer::None => (0, 0, SGL_TRANSPORT),
            DataPointer::InCapsule { length, offset } => (length, offset, SGL_IN_CAPSULE),
            DataPointer::Transport { length } => (length, 0, SGL_TRANSPORT),
            DataPointer::Unsupported { kind } => (0, 0, kind),
        };
        put(&mut self.0, 24, &offset.to_le_bytes());
        put(&mut self.0, 32, &length.to_le_bytes());
        self.0[36..39].fill(0);
        self.0[39] = kind;
        self
    }
}

impl core::fmt::Debug for Sqe {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "Sqe(opcode {:#04x}, cid {}, nsid {:#x}",
            self.opcode(),
            self.cid(),
            self.nsid()
        )?;
        for index in 10..16 {
            write!(f, ", cdw{index} {:#x}", self.dword(index))?;
        }
        write!(f, ", {:?})", self.data_pointer())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figure "Common Command Format" of the base specification, and "Read" of the NVM command set.
    #[test]
    fn a_read_lies_in_its_bytes_as_specified() {
        let sqe = Sqe::new(crate::opcode::io::READ, 1)
            .with_cid(0x1234)
            .with_blocks(0x0102_0304_0506_0708, 8)
            .with_data_pointer(DataPointer::Transport { length: 32768 });
        let mut expected = [0; 64];
        expected[..8].copy_from_slice(&[0x02, 0x40, 0x34, 0x12, 1, 0, 0, 0]);
        expected[32..36].copy_from_slice(&[0, 0x80, 0, 0]);
        expected[39] = 0x5a;
        expected[40..48].copy_from_slice(&[8, 7, 6, 5, 4, 3, 2, 1]);
        expected[48] = 7;
        assert_eq!(sqe.0, expected);
        assert_eq!((sqe.slba(), sqe.block_count()), (0x0102_0304_0506_0708, 8));
        assert!(sqe.has_sgl() && !sqe.is_fused());
    }

    #[test]
    fn data_pointers_survive_their_bytes() {
        for pointer in [
            DataPointer::None,
            DataPointer::InCapsule { length: 4096, offset: 0 },
            DataPointer::Transport { length: 1 << 20 },
            DataPointer::Unsupported { kind: 0x40 },
        ] {
            assert_eq!(Sqe::new(1, 1).with_data_pointer(pointer).data_pointer(), pointer);
        }
    }
}
