//! What a command of an I/O queue needs, and whether it makes sense: looked at before anything of it is taken.

use super::super::front::{NSID, TRANSFER_SIZE_MAX};
use super::super::pdus::IN_CAPSULE_SIZE;
use super::Io;
use coulter_nvme::opcode::{self, io};
use coulter_nvme::range::{self, RANGE_SIZE};
use coulter_nvme::{DataPointer, NSID_ALL, Sqe, Status, fabrics, sqe};

/// What a command needs before it can be carried out.
pub(super) enum Plan {
    /// Nothing.
    Now,
    /// A buffer, for data to the host.
    Outward,
    /// A buffer, for data of the host that is to be asked for.
    Inward,
    /// The data that is in the capsule.
    InCapsule,
}

impl Io {
    /// What a command needs, if it makes sense; it has its slot then.
    pub(super) fn plan(&mut self, slot: u16, sqe: &Sqe, data_size: u32) -> Result<Plan, Status> {
        let block_size_log = self.block_size_log;
        let place = &mut self.slots[usize::from(slot)];
        (place.cid, place.opcode) = (sqe.cid(), sqe.opcode());
        (place.offset, place.length, place.received) = (0, 0, 0);
        (place.fua, place.in_capsule, place.is_receiving) = (false, false, false);
        place.status = Status::SUCCESS;
        let opcode = sqe.opcode();
        if opcode == opcode::FABRICS {
            return match fabrics::kind(sqe) {
                opcode::fabrics::DISCONNECT => {
                    self.is_over = true;
                    Err(Status::SUCCESS)
                }
                _ => Err(Status::INVALID_OPCODE.final_one()),
            };
        }
        let has_blocks = match opcode {
            io::WRITE | io::READ | io::COMPARE | io::WRITE_ZEROES | io::VERIFY => true,
            io::FLUSH | io::DATASET_MANAGEMENT => false,
            _ => return Err(Status::INVALID_OPCODE.final_one()),
        };
        if sqe.is_fused() || !sqe.has_sgl() {
            return Err(Status::INVALID_FIELD.final_one());
        }
        if sqe.nsid() != NSID && !(opcode == io::FLUSH && sqe.nsid() == NSID_ALL) {
            return Err(Status::INVALID_NAMESPACE.final_one());
        }
        if has_blocks {
            place.offset = sqe.slba().checked_shl(block_size_log.into()).unwrap_or(u64::MAX);
            let length = u64::from(sqe.block_count()) << block_size_log;
            place.length = u32::try_from(length).map_err(|_| Status::INVALID_FIELD.final_one())?;
            place.fua = sqe.dword(12) & sqe::control::FUA != 0;
        }
        self.check(slot, sqe, data_size)
    }

    fn check(&mut self, slot: u16, sqe: &Sqe, data_size: u32) -> Result<Plan, Status> {
        let (size, refuses_writes) = (self.front().size(), self.front().refuses_writes());
        let limit = size >> self.block_size_log;
        let place = &mut self.slots[usize::from(slot)];
        let opcode = place.opcode;
        let writes = matches!(opcode, io::WRITE | io::WRITE_ZEROES | io::DATASET_MANAGEMENT);
        if place.length > TRANSFER_SIZE_MAX && opcode != io::WRITE_ZEROES {
            return Err(Status::INVALID_FIELD.final_one());
        }
        if place.length > 0 {
            let end = sqe.slba().checked_add(u64::from(sqe.block_count()));
            if end.is_none_or(|end| end > limit) {
                return Err(Status::LBA_OUT_OF_RANGE.final_one());
            }
        }
        if writes && refuses_writes {
            return Err(Status::NAMESPACE_WRITE_PROTECTED.final_one());
        }
        if opcode == io::DATASET_MANAGEMENT {
            let count = (sqe.dword(10) & 0xff) + 1;
            place.fua = sqe.dword(11) & range::DEALLOCATE != 0;
            // How many ranges there are, until they have come.
            place.offset = u64::from(count);
            place.length = count * RANGE_SIZE as u32;
        }
        let moves_in = matches!(opcode, io::WRITE | io::COMPARE | io::DATASET_MANAGEMENT);
        let moves_out = opcode == io::READ;
        let exact = place.length;
        let fits = |length| match opcode {
            // Some hosts always send a page.
            io::DATASET_MANAGEMENT => (exact..=TRANSFER_SIZE_MAX).contains(&length),
            _ => length == exact,
        };
        match sqe.data_pointer() {
            DataPointer::Unsupported { .. } => Err(Status::INVALID_SGL_TYPE.final_one()),
            DataPointer::InCapsule { offset, .. } if offset != 0 => {
                Err(Status::INVALID_SGL_OFFSET.final_one())
            }
            DataPointer::InCapsule { length, .. } if moves_in => {
                if length != data_size || !fits(length) || length > IN_CAPSULE_SIZE {
                    return Err(Status::INVALID_SGL_LENGTH.final_one());
                }
                place.length = length;
                Ok(Plan::InCapsule)
            }
            DataPointer::InCapsule { .. } => Err(Status::INVALID_SGL_TYPE.final_one()),
            DataPointer::Transport { length } if moves_in || moves_out => {
                if data_size > 0 || !fits(length) {
                    return Err(Status::INVALID_SGL_LENGTH.final_one());
                }
                place.length = length;
                Ok(if moves_in { Plan::Inward } else { Plan::Outward })
            }
            DataPointer::None if moves_in || moves_out => {
                Err(Status::INVALID_SGL_LENGTH.final_one())
            }
            DataPointer::None | DataPointer::Transport { .. } if data_size > 0 => {
                Err(Status::INVALID_SGL_LENGTH.final_one())
            }
            // What a command has no data for is left alone.
            DataPointer::None | DataPointer::Transport { .. } if opcode == io::VERIFY => {
                Ok(Plan::Outward)
            }
            DataPointer::None | DataPointer::Transport { .. } => Ok(Plan::Now),
        }
    }
}
