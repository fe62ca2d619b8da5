//! What the kernel takes through io_uring for an NVMe namespace, in the command area of a large
//! submission entry; and the status that comes back.

use crate::bytes::put;
use crate::{Sqe, Status};

/// Bytes of the kernel's `struct nvme_uring_cmd`.
pub const COMMAND_SIZE: usize = 72;
/// `NVME_URING_CMD_IO`: `_IOWR('N', 0x80, struct nvme_uring_cmd)`.
pub const OPERATION_IO: u32 = 0xc048_4e80;
/// `NVME_URING_CMD_ADMIN`: `_IOWR('N', 0x82, struct nvme_uring_cmd)`.
pub const OPERATION_ADMIN: u32 = 0xc048_4e82;

/// The kernel's structure for `sqe`, whose data lies in this process.
pub fn encode(sqe: &Sqe, address: u64, length: u32, timeout_ms: u32) -> [u8; COMMAND_SIZE] {
    let mut out = [0; COMMAND_SIZE];
    out[0] = sqe.opcode();
    // The kernel chooses how data is described; byte 1 has to be zero.
    put(&mut out, 4, &sqe.nsid().to_le_bytes());
    for (index, offset) in [(2, 8), (3, 12)] {
        put(&mut out, offset, &sqe.dword(index).to_le_bytes());
    }
    put(&mut out, 24, &address.to_le_bytes());
    put(&mut out, 36, &length.to_le_bytes());
    for index in 10..16 {
        put(&mut out, index * 4, &sqe.dword(index).to_le_bytes());
    }
    put(&mut out, 64, &timeout_ms.to_le_bytes());
    out
}

/// What a completion of the kernel's says: the status of the command.
///
/// # Errors
/// The operating system's error number, when the command has none.
pub fn status(result: i32) -> Result<Status, i32> {
    match u16::try_from(result) {
        Ok(status) => Ok(Status(status)),
        Err(_) => Err(result.saturating_neg()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opcode::io;

    #[test]
    fn a_write_lies_where_the_kernel_looks() {
        let sqe = Sqe::new(io::WRITE, 1).with_blocks(0x0102_0304, 8);
        let out = encode(&sqe, 0x1122_3344_5566_7788, 32768, 30_000);
        assert_eq!(out[..8], [1, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(out[24..32], 0x1122_3344_5566_7788u64.to_le_bytes());
        assert_eq!(out[36..40], 32768u32.to_le_bytes());
        assert_eq!(out[40..52], [4, 3, 2, 1, 0, 0, 0, 0, 7, 0, 0, 0]);
        assert_eq!(out[64..68], 30_000u32.to_le_bytes());
    }

    #[test]
    fn results_are_a_status_or_an_error_of_the_system() {
        assert_eq!(status(0), Ok(Status::SUCCESS));
        assert_eq!(status(0x4281), Ok(Status::UNRECOVERED_READ.final_one()));
        assert_eq!(status(-22), Err(22));
        assert_eq!(status(i32::MIN), Err(i32::MAX));
    }
}
