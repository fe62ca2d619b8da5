//! Identify.

use super::super::admin::{Admin, EVENT_REQUESTS_MAX, KEEP_ALIVE_GRANULARITY};
use super::super::front::{Front, NSID, RANGE_BLOCKS_MAX, TRANSFER_SIZE_LOG};
use super::{OPTIONAL_COMMANDS, capsule_size};
use coulter_nvme::identify::{self, Controller, ControllerKind, NvmLimits, cns, event};
use coulter_nvme::{IDENTIFY_SIZE, NSID_ALL, Sqe, Status};

/// The structure that `sqe` asks for.
pub(crate) fn answer(admin: &Admin, sqe: &Sqe) -> Result<Vec<u8>, Status> {
    let mut out = Box::new([0; IDENTIFY_SIZE]);
    let (which, nsid, command_set) = (sqe.dword(10) as u8, sqe.nsid(), sqe.dword(11) >> 24);
    let invalid = || Status::INVALID_FIELD.final_one();
    if which == cns::CONTROLLER {
        controller(admin, &mut out);
        return Ok(out.to_vec());
    }
    let front = admin.seat.subsystem.front.as_ref().ok_or_else(invalid)?;
    let of_sets =
        matches!(which, cns::NAMESPACE_OF_SET | cns::CONTROLLER_OF_SET | cns::ACTIVE_OF_SET);
    if of_sets && command_set != 0 {
        return Err(invalid());
    }
    let is_for_one = matches!(
        which,
        cns::NAMESPACE | cns::DESCRIPTORS | cns::NAMESPACE_OF_SET | cns::NAMESPACE_INDEPENDENT
    );
    if is_for_one && nsid != NSID && !(which == cns::NAMESPACE && nsid == NSID_ALL) {
        return Err(Status::INVALID_NAMESPACE.final_one());
    }
    match which {
        cns::NAMESPACE => front.namespace().encode(&mut out),
        cns::ACTIVE_NAMESPACES | cns::ACTIVE_OF_SET => {
            if nsid >= NSID_ALL - 1 {
                return Err(Status::INVALID_NAMESPACE.final_one());
            }
            let active = (nsid < NSID).then_some(NSID);
            identify::encode_namespace_list(active, &mut out);
        }
        cns::DESCRIPTORS => {
            let uuid = &front.identity().uuid;
            identify::encode_descriptors(uuid, uuid, &mut out);
        }
        // No metadata, no protection: nothing to say.
        cns::NAMESPACE_OF_SET => {}
        cns::CONTROLLER_OF_SET => limits().encode(&mut out),
        cns::NAMESPACE_INDEPENDENT => {
            identify::encode_independent(front.refuses_writes(), &mut out);
        }
        // One combination of command sets: NVM.
        cns::COMMAND_SETS => out[0] = 1,
        _ => return Err(invalid()),
    }
    Ok(out.to_vec())
}

fn limits() -> NvmLimits {
    NvmLimits {
        verify_size_log: TRANSFER_SIZE_LOG,
        // As long as a command can say: zeros take no space in a log.
        write_zeroes_size_log: 0,
        range_count: 0,
        range_blocks: RANGE_BLOCKS_MAX,
        ranges_blocks: 0,
    }
}

fn controller(admin: &Admin, out: &mut [u8; IDENTIFY_SIZE]) {
    let subsystem = &admin.seat.subsystem;
    let front = subsystem.front.as_ref();
    let is_discovery = front.is_none();
    let kind = if is_discovery { ControllerKind::Discovery } else { ControllerKind::Io };
    let commands_max = admin.terms.queue_size_max.min(u32::from(u16::MAX)) as u16;
    Controller {
        serial: front.map_or("discovery", |front| &front.identity().serial),
        model: "Coulter",
        firmware: FIRMWARE,
        cntlid: admin.seat.controller.cntlid,
        kind,
        transfer_size_log: TRANSFER_SIZE_LOG,
        commands_max,
        events: if is_discovery { event::DISCOVERY_CHANGED } else { event::NAMESPACE_CHANGED },
        event_requests_max: EVENT_REQUESTS_MAX as u8,
        keep_alive_granularity: KEEP_ALIVE_GRANULARITY,
        namespace_count: NSID,
        optional_commands: OPTIONAL_COMMANDS,
        atomic_blocks: front.map_or(1, Front::atomic_blocks),
        subsystem: &subsystem.nqn,
        command_capsule_size: capsule_size(is_discovery),
    }
    .encode(out);
}

/// The version of this program, as far as it fits.
pub(crate) const FIRMWARE: &str = env!("CARGO_PKG_VERSION");
