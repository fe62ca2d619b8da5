//! Which part answers a command of an admin queue.

use super::super::admin::{Admin, Answer};
use super::{features, identify, logs};
use coulter_nvme::log::GetLog;
use coulter_nvme::opcode::{self, admin};
use coulter_nvme::{Sqe, Status};

/// Carries out a command, but for Connect and authentication.
pub(crate) fn handle(admin: &mut Admin, sqe: &Sqe, data: &[u8]) -> Result<Answer, Status> {
    // Whatever a host asks shows that it lives.
    admin.hear();
    if sqe.is_fused() || !sqe.has_sgl() {
        return Err(Status::INVALID_FIELD.final_one());
    }
    let is_property = sqe.opcode() == opcode::FABRICS;
    if is_property {
        return admin.handle_property(sqe);
    }
    if !admin.seat.controller.is_enabled() {
        return Err(Status::SEQUENCE_ERROR.final_one());
    }
    match sqe.opcode() {
        admin::KEEP_ALIVE => Ok(Answer::Done(0)),
        admin::IDENTIFY => identify::answer(admin, sqe).map(Answer::Data),
        admin::GET_LOG => handle_log(admin, sqe),
        admin::GET_FEATURES => features::get(admin, sqe),
        admin::SET_FEATURES => features::set(admin, sqe, data),
        // Commands are short, and those under way are with the volume: none is stopped.
        admin::ABORT => Ok(Answer::Done(1)),
        admin::ASYNC_EVENT => admin.request_event(sqe.cid()),
        _ => Err(Status::INVALID_OPCODE.final_one()),
    }
}

fn handle_log(admin: &mut Admin, sqe: &Sqe) -> Result<Answer, Status> {
    let asked = GetLog::decode(sqe);
    let bytes = logs::answer(admin, &asked)?;
    if !asked.retains_event {
        admin.unmask(asked.page);
    }
    Ok(Answer::Data(bytes))
}
