//! Identify: what controllers and namespaces are like.

use crate::IDENTIFY_SIZE;
use crate::bytes::{at, put, put_text, text_at, u16_at, u32_at, u64_at};

/// Which structure is asked for, in bits 7 to 0 of command dword 10.
pub mod cns {
    /// A namespace.
    pub const NAMESPACE: u8 = 0x00;
    /// The controller.
    pub const CONTROLLER: u8 = 0x01;
    /// The namespaces from an id on.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// What a namespace is called.
    pub const DESCRIPTORS: u8 = 0x03;
    /// A namespace, in the terms of its command set.
    pub const NAMESPACE_OF_SET: u8 = 0x05;
    /// The controller, in the terms of a command set.
    pub const CONTROLLER_OF_SET: u8 = 0x06;
    /// The namespaces of a command set from an id on.
    pub const ACTIVE_OF_SET: u8 = 0x07;
    /// A namespace, whatever its command set.
    pub const NAMESPACE_INDEPENDENT: u8 = 0x08;
    /// Which command sets there are.
    pub const COMMAND_SETS: u8 = 0x1c;
}

/// Which kind of controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerKind {
    /// With namespaces.
    Io = 1,
    /// Of a discovery service.
    Discovery = 2,
}

/// Commands that are optional, as the controller's ONCS has them.
pub mod optional {
    /// Compare.
    pub const COMPARE: u16 = 1 << 0;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u16 = 1 << 2;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u16 = 1 << 3;
    /// Verify.
    pub const VERIFY: u16 = 1 << 7;
}

/// Events that a controller can tell, as OAES and the feature have them.
pub mod event {
    /// A namespace has changed.
    pub const NAMESPACE_CHANGED: u32 = 1 << 8;
    /// The discovery log has changed.
    pub const DISCOVERY_CHANGED: u32 = 1 << 31;
}

/// What a controller says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Controller<'a> {
    /// Serial number.
    pub serial: &'a str,
    /// Model.
    pub model: &'a str,
    /// Version of the program.
    pub firmware: &'a str,
    /// Its number within the subsystem.
    pub cntlid: u16,
    /// Which kind.
    pub kind: ControllerKind,
    /// log2 of the longest transfer in units of 4 KiB.
    pub transfer_size_log: u8,
    /// Commands at a time, in a queue.
    pub commands_max: u16,
    /// Of [`event`].
    pub events: u32,
    /// Event requests at a time.
    pub event_requests_max: u8,
    /// Granularity of the keep-alive timer in units of 100 ms.
    pub keep_alive_granularity: u16,
    /// Namespaces.
    pub namespace_count: u32,
    /// Of [`optional`].
    pub optional_commands: u16,
    /// Blocks of an atomic write; one at least.
    pub atomic_blocks: u32,
    /// The name of the subsystem.
    pub subsystem: &'a str,
    /// Bytes of a capsule with a command and data.
    pub command_capsule_size: u32,
}

/// The version of the specification: 2.0.
pub const VERSION: u32 = 0x0002_0000;

impl Controller<'_> {
    /// Writes it.
    pub fn encode(&self, out: &mut [u8; IDENTIFY_SIZE]) {
        out.fill(0);
        put_text(out, 4, 20, self.serial, b' ');
        put_text(out, 24, 40, self.model, b' ');
        put_text(out, 64, 8, self.firmware, b' ');
        out[77] = self.transfer_size_log;
        put(out, 78, &self.cntlid.to_le_bytes());
        put(out, 80, &VERSION.to_le_bytes());
        put(out, 92, &self.events.to_le_bytes());
        // 128-bit host identifiers.
        put(out, 96, &1u32.to_le_bytes());
        out[111] = self.kind as u8;
        // Aborts at a time, and event requests, both from zero.
        out[258] = 3;
        out[259] = self.event_requests_max - 1;
        // One slot of firmware, which cannot be changed.
        out[260] = 1 << 1 | 1;
        // Logs: effects, offsets and lengths of 32 bits. Entries of the error log, from zero.
        out[261] = 1 << 1 | 1 << 2;
        out[262] = ERROR_LOG_ENTRIES - 1;
        put(out, 266, &343u16.to_le_bytes());
        put(out, 268, &353u16.to_le_bytes());
        put(out, 320, &self.keep_alive_granularity.to_le_bytes());
        put(out, 514, &self.commands_max.to_le_bytes());
        // Data by lists, in the capsule at an offset, or moved by the transport.
        put(out, 536, &0x0030_0001u32.to_le_bytes());
        put_text(out, 768, 256, self.subsystem, 0);
        put(out, 1792, &(self.command_capsule_size / 16).to_le_bytes());
        put(out, 1796, &1u32.to_le_bytes());
        out[1803] = 1;
        if self.kind == ControllerKind::Io {
            (out[512], out[513]) = (0x66, 0x44);
            put(out, 516, &self.namespace_count.to_le_bytes());
            put(out, 520, &self.optional_commands.to_le_bytes());
            // A write cache, which a flush of all namespaces empties too.
            out[525] = 7;
            let atomic = (self.atomic_blocks - 1).min(u32::from(u16::MAX)) as u16;
            put(out, 526, &atomic.to_le_bytes());
            put(out, 528, &atomic.to_le_bytes());
            put(out, 540, &self.namespace_count.to_le_bytes());
        }
    }
}

/// Entries of the error log.
pub const ERROR_LOG_ENTRIES: u8 = 64;

/// Reads what a controller says of itself.
#[derive(Clone, Copy, Debug)]
pub struct ControllerView<'a>(pub &'a [u8; IDENTIFY_SIZE]);

impl<'a> ControllerView<'a> {
    /// Serial number.
    pub fn serial(&self) -> Option<&'a str> {
        text_at(self.0, 4, 20)
    }

    /// Model.
    pub fn model(&self) -> Option<&'a str> {
        text_at(self.0, 24, 40)
    }

    /// The longest transfer in bytes, for pages of 4 KiB; `None` without a limit.
    pub fn transfer_size_max(&self) -> Option<u64> {
        match self.0[77] {
            0 => None,
            log => 4096u64.checked_shl(u32::from(log)),
        }
    }

    /// Its number.
    pub fn cntlid(&self) -> u16 {
        u16_at(self.0, 78)
    }

    /// Attributes: bit 19 is flexible data placement.
    pub fn attributes(&self) -> u32 {
        u32_at(self.0, 96)
    }

    /// Of [`optional`].
    pub fn optional_commands(&self) -> u16 {
        u16_at(self.0, 520)
    }

    /// Whether it has a volatile write cache.
    pub fn has_write_cache(&self) -> bool {
        self.0[525] & 1 != 0
    }

    /// Blocks of a write that is atomic over a power cut.
    pub fn atomic_blocks_on_power_fail(&self) -> u32 {
        u32::from(u16_at(self.0, 528)) + 1
    }

    /// Bytes of a capsule with a command and data.
    pub fn command_capsule_size(&self) -> u64 {
        u64::from(u32_at(self.0, 1792)) * 16
    }
}

/// What a namespace is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Blocks.
    pub block_count: u64,
    /// log2 of the bytes of a block.
    pub block_size_log: u8,
    /// Blocks of a write that is atomic, over a power cut too; one at least.
    pub atomic_blocks: u32,
    /// Blocks of a discard that frees something.
    pub discard_blocks: u32,
    /// Blocks of a write from which on longer ones gain little.
    pub optimal_blocks: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Identity.
    pub nguid: [u8; 16],
}

impl Namespace {
    /// Writes it.
    pub fn encode(&self, out: &mut [u8; IDENTIFY_SIZE]) {
        out.fill(0);
        for offset in [0, 8, 16] {
            put(out, offset, &self.block_count.to_le_bytes());
        }
        // Atomic sizes of its own, and preferred sizes. A preferred granularity of writes above one block
        // would become the sector that file systems are made for.
        out[24] = 1 << 1 | 1 << 4;
        // Unmapped blocks read as zeros, and Write Zeroes may unmap.
        out[33] = 1 | 1 << 3;
        let atomic = (self.atomic_blocks - 1).min(u32::from(u16::MAX)) as u16;
        put(out, 34, &atomic.to_le_bytes());
        put(out, 36, &atomic.to_le_bytes());
        put(out, 68, &((self.discard_blocks - 1) as u16).to_le_bytes());
        put(out, 70, &((self.discard_blocks - 1) as u16).to_le_bytes());
        put(out, 72, &((self.optimal_blocks - 1) as u16).to_le_bytes());
        out[99] = u8::from(self.read_only);
        put(out, 104, &self.nguid);
        out[130] = self.block_size_log;
    }

    /// What is in `bytes`, if it is a namespace: with blocks, of a size, and without metadata in use.
    pub fn decode(bytes: &[u8; IDENTIFY_SIZE]) -> Option<Namespace> {
        let (block_count, format) = (u64_at(bytes, 0), usize::from(bytes[26] & 0xf));
        let entry = 128 + 4 * format;
        let (metadata_size, block_size_log) = (u16_at(bytes, entry), bytes[entry + 2]);
        if block_count == 0 || metadata_size != 0 || !(9..=16).contains(&block_size_log) {
            return None;
        }
        let own = bytes[24] & 1 << 1 != 0;
        let preferred = bytes[24] & 1 << 4 != 0;
        let count = |offset, is_given| {
            if is_given { u32::from(u16_at(bytes, offset)) + 1 } else { 1 }
        };
        Some(Namespace {
            block_count,
            block_size_log,
            atomic_blocks: count(36, own),
            discard_blocks: count(68, preferred),
            optimal_blocks: count(72, preferred),
            read_only: bytes[99] & 1 != 0,
            nguid: at(bytes, 104),
        })
    }
}

/// Whether a namespace carries metadata in the format that it has now.
pub fn has_metadata(bytes: &[u8; IDENTIFY_SIZE]) -> bool {
    u16_at(bytes, 128 + 4 * usize::from(bytes[26] & 0xf)) != 0
}

/// Limits of the NVM command set: log2 of the longest Verify and Write Zeroes in units of 4 KiB, zero
/// without a limit; ranges, and blocks of a range, of Dataset Management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmLimits {
    /// Of Verify.
    pub verify_size_log: u8,
    /// Of Write Zeroes.
    pub write_zeroes_size_log: u8,
    /// Ranges; zero for 256.
    pub range_count: u8,
    /// Blocks of a range; zero without a limit.
    pub range_blocks: u32,
    /// Blocks of all ranges; zero without a limit.
    pub ranges_blocks: u64,
}

impl NvmLimits {
    /// Writes it.
    pub fn encode(&self, out: &mut [u8; IDENTIFY_SIZE]) {
        out.fill(0);
        (out[0], out[1], out[3]) =
            (self.verify_size_log, self.write_zeroes_size_log, self.range_count);
        put(out, 4, &self.range_blocks.to_le_bytes());
        put(out, 8, &self.ranges_blocks.to_le_bytes());
    }

    /// What is in `bytes`.
    pub fn decode(bytes: &[u8; IDENTIFY_SIZE]) -> NvmLimits {
        NvmLimits {
            verify_size_log: bytes[0],
            write_zeroes_size_log: bytes[1],
            range_count: bytes[3],
            range_blocks: u32_at(bytes, 4),
            ranges_blocks: u64_at(bytes, 8),
        }
    }
}

/// Writes the names of a namespace: NGUID, UUID, and the NVM command set.
pub fn encode_descriptors(nguid: &[u8; 16], uuid: &[u8; 16], out: &mut [u8; IDENTIFY_SIZE]) {
    out.fill(0);
    (out[0], out[1]) = (2, 16);
    put(out, 4, nguid);
    (out[20], out[21]) = (3, 16);
    put(out, 24, uuid);
    (out[40], out[41]) = (4, 1);
}

/// The UUID among the names of a namespace.
pub fn uuid_of_descriptors(bytes: &[u8; IDENTIFY_SIZE]) -> Option<[u8; 16]> {
    let mut offset = 0;
    while offset + 4 <= IDENTIFY_SIZE {
        let (kind, length) = (bytes[offset], usize::from(bytes[offset + 1]));
        match (kind, length) {
            (_, 0) => return None,
            (3, 16) if offset + 20 <= IDENTIFY_SIZE => return Some(at(bytes, offset + 4)),
            _ => offset += 4 + length,
        }
    }
    None
}

/// Writes a list of namespaces.
///
/// # Panics
/// When there are more than 1024.
pub fn encode_namespace_list(ids: impl IntoIterator<Item = u32>, out: &mut [u8; IDENTIFY_SIZE]) {
    out.fill(0);
    for (index, id) in ids.into_iter().enumerate() {
        put(out, 4 * index, &id.to_le_bytes());
    }
}

/// Writes a namespace as it is whatever its command set.
pub fn encode_independent(read_only: bool, out: &mut [u8; IDENTIFY_SIZE]) {
    out.fill(0);
    out[8] = u8::from(read_only);
    // Ready.
    out[14] = 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn controller() -> Controller<'static> {
        Controller {
            serial: "123",
            model: "Coulter",
            firmware: "0.1.0",
            cntlid: 7,
            kind: ControllerKind::Io,
            transfer_size_log: 8,
            commands_max: 128,
            events: event::NAMESPACE_CHANGED,
            event_requests_max: 4,
            keep_alive_granularity: 10,
            namespace_count: 1,
            optional_commands: optional::DATASET_MANAGEMENT | optional::WRITE_ZEROES,
            atomic_blocks: 256,
            subsystem: "nqn.x",
            command_capsule_size: 64 + 16384,
        }
    }

    /// Figure "Identify Controller Data Structure" of the base specification, field for field.
    #[test]
    fn a_controller_lies_in_its_bytes_as_specified() {
        let mut out = [0xff; IDENTIFY_SIZE];
        controller().encode(&mut out);
        assert_eq!(&out[4..24], b"123                 ");
        assert_eq!(&out[24..33], b"Coulter  ");
        assert_eq!(&out[64..72], b"0.1.0   ");
        assert_eq!(out[76], 0, "one controller a host, one port: CMIC");
        assert_eq!((out[77], u16_at(&out, 78), u32_at(&out, 80)), (8, 7, 0x2_0000));
        assert_eq!(u32_at(&out, 92), 0x100);
        assert_eq!((out[111], out[259], u16_at(&out, 320)), (1, 3, 10));
        assert_eq!((out[512], out[513], u16_at(&out, 514)), (0x66, 0x44, 128));
        assert_eq!((u32_at(&out, 516), u16_at(&out, 520), out[525]), (1, 0xc, 7));
        assert_eq!((u16_at(&out, 526), u16_at(&out, 528)), (255, 255));
        assert_eq!(&out[768..774], b"nqn.x\0");
        assert_eq!((u32_at(&out, 1792), u32_at(&out, 1796), u16_at(&out, 1800)), (1028, 1, 0));
        let view = ControllerView(&out);
        assert_eq!((view.serial(), view.cntlid()), (Some("123"), 7));
        assert_eq!(view.transfer_size_max(), Some(1 << 20));
        assert_eq!(view.command_capsule_size(), 64 + 16384);
        assert!(view.has_write_cache());
    }

    /// Figure "Identify Namespace Data Structure, NVM Command Set", field for field.
    #[test]
    fn a_namespace_lies_in_its_bytes_as_specified() {
        let namespace = Namespace {
            block_count: 1 << 20,
            block_size_log: 12,
            atomic_blocks: 256,
            discard_blocks: 1,
            optimal_blocks: 64,
            read_only: true,
            nguid: [5; 16],
        };
        let mut out = [0xff; IDENTIFY_SIZE];
        namespace.encode(&mut out);
        assert_eq!([0, 8, 16].map(|at| u64_at(&out, at)), [1 << 20; 3]);
        assert_eq!((out[24], out[25], out[26], out[30], out[33]), (0x12, 0, 0, 0, 9));
        assert_eq!([34, 36, 38].map(|at| u16_at(&out, at)), [255, 255, 0]);
        assert_eq!([40, 42, 44, 46].map(|at| u16_at(&out, at)), [0; 4], "no boundary, NOIOB 0");
        assert_eq!([64, 66, 68, 70, 72].map(|at| u16_at(&out, at)), [0, 0, 0, 0, 63]);
        assert_eq!((out[99], out[104], &out[128..132]), (1, 5, &[0, 0, 12, 0][..]));
        assert_eq!(Namespace::decode(&out), Some(namespace));
        out[128] = 8;
        assert_eq!((Namespace::decode(&out), has_metadata(&out)), (None, true));
    }

    #[test]
    fn names_and_lists_can_be_found_again() {
        let mut out = [0xff; IDENTIFY_SIZE];
        encode_descriptors(&[1; 16], &[2; 16], &mut out);
        assert_eq!((out[0], out[1], out[20], out[21], out[40], out[41]), (2, 16, 3, 16, 4, 1));
        assert_eq!(uuid_of_descriptors(&out), Some([2; 16]));
        assert_eq!(uuid_of_descriptors(&[1; IDENTIFY_SIZE]), None);
        encode_namespace_list([1, 2], &mut out);
        assert_eq!(out[..12], [1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        let limits = NvmLimits {
            verify_size_log: 8,
            write_zeroes_size_log: 0,
            range_count: 0,
            range_blocks: 7,
            ranges_blocks: 9,
        };
        limits.encode(&mut out);
        assert_eq!(NvmLimits::decode(&out), limits);
    }
}
