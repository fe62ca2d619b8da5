//! Features.

use super::super::admin::{Admin, Answer};
use coulter_nvme::feature::{CHANGEABLE, SAVE, Select, id};
use coulter_nvme::{Sqe, Status};
use std::time::Duration;

/// What can be asked for. The rest of what hosts know is for drives.
const ALL: [u8; 11] = [
    id::ARBITRATION,
    id::POWER,
    id::TEMPERATURE,
    id::ERROR_RECOVERY,
    id::WRITE_CACHE,
    id::QUEUES,
    id::INTERRUPTS,
    id::INTERRUPT_VECTOR,
    id::ATOMICITY,
    id::EVENTS,
    id::KEEP_ALIVE,
];
const OF_DISCOVERY: [u8; 2] = [id::EVENTS, id::KEEP_ALIVE];
const CAN_BE_SET: [u8; 3] = [id::QUEUES, id::EVENTS, id::KEEP_ALIVE];

fn is_known(admin: &Admin, feature: u8) -> bool {
    let known = if admin.seat.subsystem.front.is_some() { &ALL[..] } else { &OF_DISCOVERY[..] };
    known.contains(&feature)
}

/// Get Features.
pub(crate) fn get(admin: &Admin, sqe: &Sqe) -> Result<Answer, Status> {
    let invalid = Status::INVALID_FIELD.final_one();
    let feature = sqe.dword(10) as u8;
    let select = Select::of(sqe.dword(10)).ok_or(invalid)?;
    if feature == id::HOST_ID && admin.seat.subsystem.front.is_some() {
        // Only identifiers of 16 bytes are in use over Fabrics.
        let is_long = sqe.dword(11) & 1 != 0;
        return match is_long {
            true => Ok(Answer::Data(admin.seat.controller.host_id.to_vec())),
            false => Err(Status::HOST_ID_INCONSISTENT.final_one()),
        };
    }
    if !is_known(admin, feature) {
        return Err(invalid);
    }
    let value = match select {
        Select::Capabilities if CAN_BE_SET.contains(&feature) => CHANGEABLE,
        Select::Capabilities => 0,
        Select::Default | Select::Saved => default(feature),
        Select::Current => match feature {
            id::QUEUES => queues(admin.seat.controller.granted_queues()),
            id::EVENTS => admin.event_configuration,
            id::KEEP_ALIVE => admin.keep_alive.as_millis().try_into().unwrap_or(u32::MAX),
            _ => default(feature),
        },
    };
    Ok(Answer::Done(value.into()))
}

/// Set Features.
pub(crate) fn set(admin: &mut Admin, sqe: &Sqe, _data: &[u8]) -> Result<Answer, Status> {
    let (feature, value) = (sqe.dword(10) as u8, sqe.dword(11));
    if feature == id::HOST_ID {
        // It came with Connect, and stays.
        return Err(Status::SEQUENCE_ERROR.final_one());
    }
    if !is_known(admin, feature) {
        return Err(Status::INVALID_FIELD.final_one());
    }
    if sqe.dword(10) & SAVE != 0 {
        return Err(Status::FEATURE_NOT_SAVEABLE.final_one());
    }
    match feature {
        id::QUEUES => set_queues(admin, value),
        id::EVENTS => {
            admin.event_configuration = value;
            Ok(Answer::Done(0))
        }
        id::KEEP_ALIVE => {
            admin.set_keep_alive(Duration::from_millis(value.into()));
            Ok(Answer::Done(0))
        }
        // It is on, and stays on.
        id::WRITE_CACHE if value & 1 == 1 => Ok(Answer::Done(0)),
        _ => Err(Status::FEATURE_NOT_CHANGEABLE.final_one()),
    }
}

fn set_queues(admin: &Admin, value: u32) -> Result<Answer, Status> {
    let controller = &admin.seat.controller;
    if admin.seat.subsystem.has_queues(controller) {
        return Err(Status::SEQUENCE_ERROR.final_one());
    }
    let (submission, completion) = (value & 0xffff, value >> 16);
    if submission == 0xffff || completion == 0xffff {
        return Err(Status::INVALID_FIELD.final_one());
    }
    let asked = submission.min(completion) + 1;
    let granted = asked.min(u32::from(admin.terms.io_queues_max)) as u16;
    controller.grant_queues(granted);
    Ok(Answer::Done(queues(granted).into()))
}

/// So many queues of each kind, from zero.
fn queues(count: u16) -> u32 {
    let count = u32::from(count.max(1)) - 1;
    count << 16 | count
}

fn default(feature: u8) -> u32 {
    match feature {
        // 70 and 80 degrees, in Kelvin.
        id::TEMPERATURE => 343,
        id::WRITE_CACHE => 1,
        _ => 0,
    }
}
