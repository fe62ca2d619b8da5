//! Fabrics commands: Connect, and the registers of a controller as properties.

use crate::bytes::{at, put, put_text, text_at, u16_at, u32_at};
use crate::opcode::{self, fabrics};
use crate::{NQN_SIZE_MAX, Sqe};

/// Bytes of the data of Connect.
pub const CONNECT_DATA_SIZE: usize = 1024;
/// The controller id of a host that takes any.
pub const CNTLID_ANY: u16 = 0xffff;
/// The name of every discovery service.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Where in a command or in its data a parameter of Connect is wrong, for the result of its completion.
pub mod position {
    /// The queue id, in the command.
    pub const QUEUE_ID: u32 = 42;
    /// The size of the queue, in the command.
    pub const QUEUE_SIZE: u32 = 44;
    /// The controller id, in the data.
    pub const CNTLID: u32 = 1 << 16 | 16;
    /// The name of the subsystem, in the data.
    pub const SUBSYSTEM: u32 = 1 << 16 | 256;
    /// The name of the host, in the data.
    pub const HOST: u32 = 1 << 16 | 512;
}

/// The parameters of Connect that are in the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Zero.
    pub format: u16,
    /// Zero for the admin queue.
    pub queue_id: u16,
    /// Slots of the queue: commands at a time and one.
    pub queue_size: u32,
    /// No reports of how far the controller has come.
    pub flow_control_disabled: bool,
    /// The host gives signs of life this often, in milliseconds; zero for never.
    pub keep_alive_ms: u32,
}

impl Connect {
    /// The command.
    pub fn encode(&self) -> Sqe {
        let mut sqe = fabrics_command(fabrics::CONNECT);
        put(&mut sqe.0, 40, &self.format.to_le_bytes());
        put(&mut sqe.0, 42, &self.queue_id.to_le_bytes());
        put(&mut sqe.0, 44, &(self.queue_size.saturating_sub(1) as u16).to_le_bytes());
        sqe.0[46] = u8::from(self.flow_control_disabled) << 2;
        put(&mut sqe.0, 48, &self.keep_alive_ms.to_le_bytes());
        sqe
    }

    /// What `sqe` says.
    pub fn decode(sqe: &Sqe) -> Connect {
        Connect {
            format: u16_at(&sqe.0, 40),
            queue_id: u16_at(&sqe.0, 42),
            queue_size: u32::from(u16_at(&sqe.0, 44)) + 1,
            flow_control_disabled: sqe.0[46] & 1 << 2 != 0,
            keep_alive_ms: u32_at(&sqe.0, 48),
        }
    }
}

/// The data of Connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectData<'a> {
    /// Which host.
    pub host_id: [u8; 16],
    /// Which controller; [`CNTLID_ANY`] for a new one.
    pub cntlid: u16,
    /// The name of the subsystem.
    pub subsystem: &'a str,
    /// The name of the host.
    pub host: &'a str,
}

impl<'a> ConnectData<'a> {
    /// Its bytes.
    ///
    /// # Panics
    /// When a name is too long.
    pub fn encode(&self) -> [u8; CONNECT_DATA_SIZE] {
        assert!(self.subsystem.len().max(self.host.len()) <= NQN_SIZE_MAX, "names are short");
        let mut bytes = [0; CONNECT_DATA_SIZE];
        put(&mut bytes, 0, &self.host_id);
        put(&mut bytes, 16, &self.cntlid.to_le_bytes());
        put_text(&mut bytes, 256, 256, self.subsystem, 0);
        put_text(&mut bytes, 512, 256, self.host, 0);
        bytes
    }

    /// What is in `bytes`, if it is all of it and the names are names.
    ///
    /// # Errors
    /// Where it is not; see [`position`].
    pub fn decode(bytes: &'a [u8]) -> Result<ConnectData<'a>, u32> {
        if bytes.len() < CONNECT_DATA_SIZE {
            return Err(position::HOST);
        }
        let name = |offset, wrong| match text_at(bytes, offset, 256) {
            Some(name) if !name.is_empty() && name.len() <= NQN_SIZE_MAX => Ok(name),
            _ => Err(wrong),
        };
        Ok(ConnectData {
            host_id: at(bytes, 0),
            cntlid: u16_at(bytes, 16),
            subsystem: name(256, position::SUBSYSTEM)?,
            host: name(512, position::HOST)?,
        })
    }
}

/// The kind of a Fabrics command.
pub fn kind(sqe: &Sqe) -> u8 {
    sqe.0[4]
}

/// A Fabrics command of this kind.
pub fn fabrics_command(kind: u8) -> Sqe {
    Sqe::new(opcode::FABRICS, u32::from(kind))
}

/// Registers.
pub mod property {
    /// Capabilities; eight bytes.
    pub const CAP: u32 = 0x00;
    /// Version.
    pub const VS: u32 = 0x08;
    /// Configuration.
    pub const CC: u32 = 0x14;
    /// Status.
    pub const CSTS: u32 = 0x1c;
    /// Subsystem reset.
    pub const NSSR: u32 = 0x20;
    /// Times to become ready.
    pub const CRTO: u32 = 0x68;
}

/// The register that a Property Get or Set is about.
pub fn property_offset(sqe: &Sqe) -> u32 {
    sqe.dword(11)
}

/// Whether it is about eight bytes, in place of four.
pub fn property_is_long(sqe: &Sqe) -> bool {
    sqe.dword(10) & 7 == 1
}

/// What a Property Set sets.
pub fn property_value(sqe: &Sqe) -> u64 {
    sqe.slba_of_property()
}

impl Sqe {
    fn slba_of_property(&self) -> u64 {
        u64::from_le_bytes(at(&self.0, 48))
    }
}

/// A Property Get.
pub fn property_get(offset: u32, is_long: bool) -> Sqe {
    fabrics_command(fabrics::PROPERTY_GET).with_dword(10, u32::from(is_long)).with_dword(11, offset)
}

/// A Property Set of four bytes.
pub fn property_set(offset: u32, value: u32) -> Sqe {
    fabrics_command(fabrics::PROPERTY_SET).with_dword(11, offset).with_dword(12, value)
}

/// What a controller can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Slots of a queue, at most.
    pub queue_size_max: u32,
    /// Time to become ready or not, in units of 500 ms.
    pub timeout: u8,
}

impl Capabilities {
    /// The register: queues in one piece, the NVM command set, pages of 4 KiB.
    pub fn encode(&self) -> u64 {
        let size = u64::from(self.queue_size_max - 1) & 0xffff;
        size | 1 << 16 | u64::from(self.timeout) << 24 | 1 << 37
    }
}

/// The configuration that a host has set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration(pub u32);

impl Configuration {
    /// Whether commands are carried out.
    pub fn is_enabled(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether the host wants to go, in order or at once.
    pub fn shuts_down(self) -> bool {
        self.0 >> 14 & 3 != 0
    }

    /// Whether it can be had: a known command set, pages of 4 KiB, entries of 64 and 16 bytes.
    pub fn is_supported(self) -> bool {
        let command_set = self.0 >> 4 & 7;
        let (page, sq, cq) = (self.0 >> 7 & 0xf, self.0 >> 16 & 0xf, self.0 >> 20 & 0xf);
        matches!(command_set, 0 | 6 | 7) && page == 0 && matches!((sq, cq), (6, 4) | (0, 0))
    }
}

/// Bits of the status register.
pub mod csts {
    /// Commands are carried out.
    pub const READY: u32 = 1 << 0;
    /// Nothing works any more.
    pub const FATAL: u32 = 1 << 1;
    /// Shutting down.
    pub const SHUTDOWN_OCCURRING: u32 = 1 << 2;
    /// Shut down.
    pub const SHUTDOWN_COMPLETE: u32 = 2 << 2;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_lies_in_its_bytes_as_specified() {
        let connect = Connect {
            format: 0,
            queue_id: 3,
            queue_size: 128,
            flow_control_disabled: true,
            keep_alive_ms: 5000,
        };
        let sqe = connect.encode();
        assert_eq!((sqe.0[0], sqe.0[1], sqe.0[4]), (0x7f, 0x40, 0x01));
        assert_eq!(sqe.0[40..52], [0, 0, 3, 0, 127, 0, 4, 0, 0x88, 0x13, 0, 0]);
        assert_eq!(Connect::decode(&sqe), connect);
    }

    #[test]
    fn connect_data_survives_its_bytes_and_names_what_is_wrong() {
        let data =
            ConnectData { host_id: [9; 16], cntlid: 0xffff, subsystem: "nqn.s", host: "nqn.h" };
        let bytes = data.encode();
        assert_eq!((bytes[16], bytes[256], bytes[512]), (0xff, b'n', b'n'));
        assert_eq!(ConnectData::decode(&bytes), Ok(data));
        assert_eq!(ConnectData::decode(&bytes[..1023]), Err(position::HOST));
        let mut nameless = bytes;
        nameless[256] = 0;
        assert_eq!(ConnectData::decode(&nameless), Err(position::SUBSYSTEM));
        let mut endless = bytes;
        endless[512..768].fill(b'x');
        assert_eq!(ConnectData::decode(&endless), Err(position::HOST));
    }

    #[test]
    fn registers_have_their_bits() {
        let cap = Capabilities { queue_size_max: 128, timeout: 30 }.encode();
        assert_eq!(cap, 0x20_1e01_007f);
        let set = property_set(property::CC, 0x0046_0001);
        assert_eq!((property_offset(&set), property_value(&set)), (0x14, 0x0046_0001));
        let cc = Configuration(0x0046_0001);
        assert!(cc.is_enabled() && cc.is_supported() && !cc.shuts_down());
        assert!(Configuration(0x4000).shuts_down());
        assert!(!Configuration(0x0046_0011).is_supported());
        assert!(property_is_long(&property_get(0, true)));
    }
}
