//! Log pages.

use crate::Sqe;
use crate::Status;
use crate::bytes::{put, put_text, u16_at};
use crate::opcode::{admin, io};

/// Which log.
pub mod page {
    /// Which logs there are.
    pub const SUPPORTED: u8 = 0x00;
    /// Errors.
    pub const ERROR: u8 = 0x01;
    /// Health.
    pub const SMART: u8 = 0x02;
    /// Firmware.
    pub const FIRMWARE: u8 = 0x03;
    /// Namespaces that have changed.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands and what they do.
    pub const EFFECTS: u8 = 0x05;
    /// Configurations of flexible data placement.
    pub const PLACEMENT_CONFIGURATIONS: u8 = 0x20;
    /// What a discovery service knows.
    pub const DISCOVERY: u8 = 0x70;
}

/// Bytes of the health log.
pub const SMART_SIZE: usize = 512;
/// Bytes of an entry of the error log.
pub const ERROR_ENTRY_SIZE: usize = 64;
/// Bytes of the firmware log.
pub const FIRMWARE_SIZE: usize = 512;
/// Bytes of the log of changed namespaces, and of effects.
pub const EFFECTS_SIZE: usize = 4096;
/// Bytes of the log of logs.
pub const SUPPORTED_SIZE: usize = 1024;

/// What Get Log Page asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLog {
    /// Of [`page`].
    pub page: u8,
    /// The event that it belongs to stays.
    pub retains_event: bool,
    /// Bytes.
    pub length: u64,
    /// From there.
    pub offset: u64,
}

impl GetLog {
    /// What `sqe` asks for.
    pub fn decode(sqe: &Sqe) -> GetLog {
        let (low, high) = (sqe.dword(10) >> 16, sqe.dword(11) & 0xffff);
        GetLog {
            page: sqe.dword(10) as u8,
            retains_event: sqe.dword(10) & 1 << 15 != 0,
            length: (u64::from(high) << 16 | u64::from(low)) * 4 + 4,
            offset: u64::from(sqe.dword(13)) << 32 | u64::from(sqe.dword(12)),
        }
    }

    /// The command, without its data.
    pub fn encode(&self) -> Sqe {
        let dwords = self.length / 4 - 1;
        let retains = u32::from(self.retains_event) << 15;
        Sqe::new(admin::GET_LOG, 0)
            .with_dword(10, u32::from(self.page) | retains | (dwords as u32 & 0xffff) << 16)
            .with_dword(11, (dwords >> 16) as u32 & 0xffff)
            .with_dword(12, self.offset as u32)
            .with_dword(13, (self.offset >> 32) as u32)
    }
}

/// Health.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Smart {
    /// Writes are refused.
    pub read_only: bool,
    /// Bytes read by hosts.
    pub bytes_read: u64,
    /// Bytes written by hosts.
    pub bytes_written: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Hours since the beginning.
    pub power_on_hours: u64,
    /// Blocks that were damaged.
    pub media_errors: u64,
    /// Entries that the error log has had.
    pub error_entries: u64,
}

impl Smart {
    /// Its bytes.
    pub fn encode(&self) -> [u8; SMART_SIZE] {
        let mut out = [0; SMART_SIZE];
        out[0] = u8::from(self.read_only) << 3;
        put(&mut out, 1, &300u16.to_le_bytes());
        (out[3], out[4]) = (100, 10);
        // Thousands of 512 bytes, rounded up.
        let units = |bytes: u64| bytes.div_ceil(512_000);
        let counters = [
            (32, units(self.bytes_read)),
            (48, units(self.bytes_written)),
            (64, self.reads),
            (80, self.writes),
            (128, self.power_on_hours),
            (160, self.media_errors),
            (176, self.error_entries),
        ];
        for (offset, counter) in counters {
            put(&mut out, offset, &counter.to_le_bytes());
        }
        out
    }
}

/// A command that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorEntry {
    /// Which error, from one on.
    pub number: u64,
    /// The queue.
    pub sq_id: u16,
    /// The command.
    pub cid: u16,
    /// How it went.
    pub status: Status,
    /// The first block, if it was about blocks.
    pub lba: u64,
    /// The namespace.
    pub nsid: u32,
}

impl ErrorEntry {
    /// Its bytes.
    pub fn encode(&self) -> [u8; ERROR_ENTRY_SIZE] {
        let mut out = [0; ERROR_ENTRY_SIZE];
        put(&mut out, 0, &self.number.to_le_bytes());
        put(&mut out, 8, &self.sq_id.to_le_bytes());
        put(&mut out, 10, &self.cid.to_le_bytes());
        put(&mut out, 12, &(self.status.0 << 1).to_le_bytes());
        put(&mut out, 14, &0xffffu16.to_le_bytes());
        put(&mut out, 16, &self.lba.to_le_bytes());
        put(&mut out, 24, &self.nsid.to_le_bytes());
        // The transport is TCP.
        out[29] = 3;
        out
    }
}

/// Which commands there are, and what they do: the log of effects.
pub fn effects(optional_commands: u16, out: &mut [u8; EFFECTS_SIZE]) {
    use crate::identify::optional;
    const SUPPORTED: u32 = 1;
    const CHANGES_CONTENT: u32 = 1 << 1;
    out.fill(0);
    let mut set = |base: usize, opcode: u8, effects: u32| {
        put(out, base + 4 * usize::from(opcode), &effects.to_le_bytes());
    };
    let of_admin = [
        admin::GET_LOG,
        admin::IDENTIFY,
        admin::ABORT,
        admin::SET_FEATURES,
        admin::GET_FEATURES,
        admin::ASYNC_EVENT,
        admin::KEEP_ALIVE,
    ];
    of_admin.into_iter().for_each(|opcode| set(0, opcode, SUPPORTED));
    let of_io = [
        (io::FLUSH, SUPPORTED, 0),
        (io::WRITE, SUPPORTED | CHANGES_CONTENT, 0),
        (io::READ, SUPPORTED, 0),
        (io::COMPARE, SUPPORTED, optional::COMPARE),
        (io::WRITE_ZEROES, SUPPORTED | CHANGES_CONTENT, optional::WRITE_ZEROES),
        (io::DATASET_MANAGEMENT, SUPPORTED | CHANGES_CONTENT, optional::DATASET_MANAGEMENT),
        (io::VERIFY, SUPPORTED, optional::VERIFY),
    ];
    for (opcode, effects, needs) in of_io {
        if optional_commands & needs == needs {
            set(1024, opcode, effects);
        }
    }
}

/// The log of firmware: one slot, which holds `revision`.
pub fn firmware(revision: &str) -> [u8; FIRMWARE_SIZE] {
    let mut out = [0; FIRMWARE_SIZE];
    out[0] = 1;
    put_text(&mut out, 8, 8, revision, b' ');
    out
}

/// The log of logs.
pub fn supported(pages: &[u8]) -> [u8; SUPPORTED_SIZE] {
    let mut out = [0; SUPPORTED_SIZE];
    for page in pages {
        // Bit 0: it is there.
        out[4 * usize::from(*page)] = 1;
    }
    out
}

/// The result of an event request: a notice of this kind, with the log that clears it.
pub fn notice(information: u8, log: u8) -> u32 {
    const NOTICE: u32 = 2;
    NOTICE | u32::from(information) << 8 | u32::from(log) << 16
}

/// A notice: a namespace has changed.
pub const NOTICE_NAMESPACE_CHANGED: u8 = 0x00;
/// A notice: the discovery log has changed.
pub const NOTICE_DISCOVERY_CHANGED: u8 = 0xf0;

/// The first configuration of flexible data placement in its log: bytes of a reclaim unit, and how many
/// handles; `None` if there is none.
pub fn placement(bytes: &[u8]) -> Option<(u64, u16)> {
    // A header of 16 bytes; then a descriptor, with its attributes at 2, counts at 4 and 6, size at 16.
    if bytes.len() < 64 || bytes[18] & 1 << 7 == 0 {
        return None;
    }
    let size = crate::bytes::u64_at(bytes, 16 + 32);
    Some((size, u16_at(bytes, 16 + 6)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::{u32_at, u64_at};

    #[test]
    fn a_log_is_asked_for_in_dwords_from_zero() {
        let asked =
            GetLog { page: 0x70, retains_event: true, length: 1 << 20, offset: 0x1_0000_0400 };
        let sqe = asked.encode();
        assert_eq!(sqe.dword(10), 0xffff_8070);
        assert_eq!((sqe.dword(11), sqe.dword(12), sqe.dword(13)), (3, 0x400, 1));
        assert_eq!(GetLog::decode(&sqe), asked);
    }

    /// Figure "SMART / Health Information Log Page".
    #[test]
    fn health_lies_in_its_bytes_as_specified() {
        let smart = Smart {
            read_only: true,
            bytes_read: 512_001,
            bytes_written: 512_000,
            reads: 3,
            writes: 4,
            power_on_hours: 5,
            media_errors: 6,
            error_entries: 7,
        };
        let out = smart.encode();
        assert_eq!((out[0], u16_at(&out, 1), out[3]), (8, 300, 100));
        let counters = [32, 48, 64, 80, 128, 160, 176].map(|at| u64_at(&out, at));
        assert_eq!(counters, [2, 1, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn effects_name_what_there_is() {
        let mut out = [0; EFFECTS_SIZE];
        effects(crate::identify::optional::VERIFY, &mut out);
        assert_eq!(u32_at(&out, 4 * 0x06), 1);
        assert_eq!(u32_at(&out, 1024 + 4), 3);
        assert_eq!((u32_at(&out, 1024 + 4 * 0x0c), u32_at(&out, 1024 + 4 * 0x05)), (1, 0));
    }

    #[test]
    fn errors_and_notices_lie_in_their_bytes() {
        let status = Status::LBA_OUT_OF_RANGE.final_one();
        let entry = ErrorEntry { number: 9, sq_id: 1, cid: 2, status, lba: 3, nsid: 1 };
        let out = entry.encode();
        assert_eq!((out[0], out[8], out[10], u16_at(&out, 12)), (9, 1, 2, 0x8100));
        assert_eq!((out[16], out[24], out[29]), (3, 1, 3));
        assert_eq!(notice(NOTICE_NAMESPACE_CHANGED, page::CHANGED_NAMESPACES), 0x0004_0002);
        assert_eq!(supported(&[2])[8], 1);
        assert_eq!(&firmware("0.1.0")[8..16], b"0.1.0   ");
    }
}
