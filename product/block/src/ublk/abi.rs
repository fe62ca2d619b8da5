//! The driver's numbers and layouts, as far as they are needed here (`linux/ublk_cmd.h`).

use std::mem::offset_of;

/// A control command: direction, size of [`ControlCommand`], `'u'`, number.
const fn control(direction: u32, number: u32) -> u32 {
    direction << 30 | 32 << 16 | (b'u' as u32) << 8 | number
}

/// A command of a queue, likewise with the size of [`IoCommand`].
const fn io(number: u32) -> u32 {
    3 << 30 | 16 << 16 | (b'u' as u32) << 8 | number
}

pub(super) const CMD_ADD_DEV: u32 = control(3, 0x04);
pub(super) const CMD_DEL_DEV: u32 = control(3, 0x05);
pub(super) const CMD_START_DEV: u32 = control(3, 0x06);
pub(super) const CMD_STOP_DEV: u32 = control(3, 0x07);
pub(super) const CMD_SET_PARAMS: u32 = control(3, 0x08);
pub(super) const CMD_GET_PARAMS: u32 = control(2, 0x09);
pub(super) const CMD_START_USER_RECOVERY: u32 = control(3, 0x10);
pub(super) const CMD_END_USER_RECOVERY: u32 = control(3, 0x11);
pub(super) const CMD_GET_DEV_INFO: u32 = control(2, 0x02);
pub(super) const CMD_GET_FEATURES: u32 = control(2, 0x13);
pub(super) const CMD_DEL_DEV_ASYNC: u32 = control(2, 0x14);

pub(super) const IO_FETCH: u32 = io(0x20);
pub(super) const IO_COMMIT_AND_FETCH: u32 = io(0x21);

/// Result of a fetch: there is a request.
pub(super) const IO_RESULT_OK: i32 = 0;

pub(super) const F_USER_RECOVERY: u64 = 1 << 3;
pub(super) const F_USER_RECOVERY_REISSUE: u64 = 1 << 4;
pub(super) const F_CMD_IOCTL_ENCODE: u64 = 1 << 6;
pub(super) const F_USER_COPY: u64 = 1 << 7;

pub(super) const STATE_DEAD: u16 = 0;
pub(super) const STATE_LIVE: u16 = 1;
pub(super) const STATE_QUIESCED: u16 = 2;

pub(super) const OP_READ: u32 = 0;
pub(super) const OP_WRITE: u32 = 1;
pub(super) const OP_FLUSH: u32 = 2;
pub(super) const OP_DISCARD: u32 = 3;
pub(super) const OP_WRITE_ZEROES: u32 = 5;
/// The bits of [`IoDescriptor::operation_and_flags`] that are the operation.
pub(super) const OP_MASK: u32 = 0xff;
pub(super) const IO_F_FUA: u32 = 1 << 13;

pub(super) const ATTR_READ_ONLY: u32 = 1 << 0;
pub(super) const ATTR_ROTATIONAL: u32 = 1 << 1;
pub(super) const ATTR_VOLATILE_CACHE: u32 = 1 << 2;
pub(super) const ATTR_FUA: u32 = 1 << 3;

pub(super) const PARAM_BASIC: u32 = 1 << 0;
pub(super) const PARAM_DISCARD: u32 = 1 << 1;

/// Where in the character device the data of requests begins.
const IO_BUFFER_OFFSET: u64 = 0x8000_0000;
const IO_BUFFER_BITS: u32 = 25;
/// Bytes that one request can have.
pub(super) const IO_BUFFER_SIZE_MAX: u32 = 1 << IO_BUFFER_BITS;

/// The position of the data of queue 0's request `tag` in the character device.
pub(super) const fn data_position(tag: u16) -> u64 {
    IO_BUFFER_OFFSET + ((tag as u64) << IO_BUFFER_BITS)
}

/// `struct ublksrv_ctrl_cmd`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct ControlCommand {
    pub(super) device: u32,
    pub(super) queue: u16,
    pub(super) length: u16,
    pub(super) address: u64,
    pub(super) value: u64,
    pub(super) path_length: u16,
    pub(super) padding: u16,
    pub(super) reserved: u32,
}

impl ControlCommand {
    /// As the kernel takes it: the first bytes of a command of 80.
    pub(super) fn encoded(&self) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[0..4].copy_from_slice(&self.device.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.queue.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.length.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.address.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.value.to_ne_bytes());
        bytes
    }
}

/// `struct ublksrv_ctrl_dev_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DeviceInfo {
    pub(super) queue_count: u16,
    pub(super) queue_depth: u16,
    pub(super) state: u16,
    pub(super) padding_0: u16,
    pub(super) io_size_max: u32,
    pub(super) id: u32,
    pub(super) pid: i32,
    pub(super) padding_1: u32,
    pub(super) flags: u64,
    /// The daemon's own; the kernel only keeps it.
    pub(super) identity: u64,
    pub(super) owner_uid: u32,
    pub(super) owner_gid: u32,
    pub(super) reserved: [u64; 2],
}

/// `struct ublk_params`, up to where it matters.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parameters {
    pub(super) length: u32,
    pub(super) types: u32,
    pub(super) attributes: u32,
    pub(super) logical_block_shift: u8,
    pub(super) physical_block_shift: u8,
    pub(super) io_optimal_shift: u8,
    pub(super) io_minimal_shift: u8,
    pub(super) sectors_max: u32,
    pub(super) chunk_sectors: u32,
    pub(super) device_sectors: u64,
    pub(super) virtual_boundary_mask: u64,
    pub(super) discard_alignment: u32,
    pub(super) discard_granularity: u32,
    pub(super) discard_sectors_max: u32,
    pub(super) write_zeroes_sectors_max: u32,
    pub(super) discard_segments_max: u16,
    pub(super) reserved: u16,
}

/// Bytes of [`Parameters`] that the kernel is told of; the rest is padding.
pub(super) const PARAMETERS_SIZE: u32 = 60;

/// `struct ublksrv_io_desc`: a request.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct IoDescriptor {
    pub(super) operation_and_flags: u32,
    pub(super) sector_count: u32,
    pub(super) sector: u64,
    pub(super) address: u64,
}

/// `struct ublksrv_io_cmd`: asks for a request, and answers the one before.
#[derive(Clone, Copy)]
pub(super) struct IoCommand {
    pub(super) tag: u16,
    /// Bytes done, or an error number below zero.
    pub(super) result: i32,
    /// Where data comes and goes; 0 if the daemon copies it.
    pub(super) address: u64,
}

impl IoCommand {
    /// As the kernel takes it; of queue 0.
    pub(super) fn encoded(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[2..4].copy_from_slice(&self.tag.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.result.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.address.to_ne_bytes());
        bytes
    }
}

const _: () = assert!(size_of::<ControlCommand>() == 32);
const _: () = assert!(size_of::<DeviceInfo>() == 64);
const _: () = assert!(size_of::<IoDescriptor>() == 24);
const _: () = assert!(offset_of!(DeviceInfo, flags) == 24);
const _: () = assert!(offset_of!(Parameters, device_sectors) == 24);
const _: () = assert!(offset_of!(Parameters, reserved) + 2 == PARAMETERS_SIZE as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_numbers_of_the_header() {
        // _IOWR('u', 0x04, 32 bytes), _IOR('u', 0x13, 32 bytes), _IOWR('u', 0x21, 16 bytes).
        assert_eq!(CMD_ADD_DEV, 0xc020_7504);
        assert_eq!(CMD_GET_FEATURES, 0x8020_7513);
        assert_eq!(IO_COMMIT_AND_FETCH, 0xc010_7521);
    }

    #[test]
    fn fields_of_commands_stand_where_the_kernel_looks() {
        let command = ControlCommand {
            device: 1,
            queue: 2,
            length: 3,
            address: 4,
            value: 5,
            ..Default::default()
        };
        let bytes = command.encoded();
        assert_eq!((bytes[0], bytes[4], bytes[6], bytes[8], bytes[16]), (1, 2, 3, 4, 5));
        let bytes = IoCommand { tag: 258, result: -1, address: 7 }.encoded();
        assert_eq!(bytes, [0, 0, 2, 1, 255, 255, 255, 255, 7, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn data_of_different_requests_does_not_overlap() {
        assert_eq!(data_position(0), 0x8000_0000);
        assert_eq!(data_position(1) - data_position(0), u64::from(IO_BUFFER_SIZE_MAX));
    }
}
