//! Completions: 16 bytes.

use crate::bytes::{put, u16_at, u32_at, u64_at};
use crate::status::Status;

/// Bytes of a completion.
pub const CQE_SIZE: usize = 16;

/// A completion. Its phase bit is zero, as it has to be over Fabrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cqe {
    /// What the command says besides its status; 32 bits of it, but for properties and zone appends.
    pub result: u64,
    /// How far the controller has come in the submission queue.
    pub sq_head: u16,
    /// The queue.
    pub sq_id: u16,
    /// The command's identifier.
    pub cid: u16,
    /// How it went.
    pub status: Status,
}

impl Cqe {
    /// Its bytes.
    pub fn encode(&self) -> [u8; CQE_SIZE] {
        let mut bytes = [0; CQE_SIZE];
        put(&mut bytes, 0, &self.result.to_le_bytes());
        put(&mut bytes, 8, &self.sq_head.to_le_bytes());
        put(&mut bytes, 10, &self.sq_id.to_le_bytes());
        put(&mut bytes, 12, &self.cid.to_le_bytes());
        put(&mut bytes, 14, &(self.status.0 << 1).to_le_bytes());
        bytes
    }

    /// What is in `bytes`.
    pub fn decode(bytes: &[u8; CQE_SIZE]) -> Cqe {
        Cqe {
            result: u64_at(bytes, 0),
            sq_head: u16_at(bytes, 8),
            sq_id: u16_at(bytes, 10),
            cid: u16_at(bytes, 12),
            status: Status(u16_at(bytes, 14) >> 1),
        }
    }

    /// The lower half of the result.
    pub fn result32(&self) -> u32 {
        u32_at(&self.encode(), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_lies_in_its_bytes_as_specified() {
        let status = Status::LBA_OUT_OF_RANGE.final_one();
        let cqe = Cqe { result: 7, sq_head: 0x0102, sq_id: 3, cid: 0x0405, status };
        let bytes = cqe.encode();
        // 0x80 in the status code, do-not-retry on top, the phase bit below: 1 1000 0000 0 -> 0x8100.
        assert_eq!(bytes, [7, 0, 0, 0, 0, 0, 0, 0, 2, 1, 3, 0, 5, 4, 0x00, 0x81]);
        assert_eq!(Cqe::decode(&bytes), cqe);
    }
}
