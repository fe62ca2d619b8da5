//! What a controller answers from what it knows: Identify, logs, features.

mod dispatch;
mod features;
mod identify;
mod logs;

pub(super) use dispatch::handle;

use super::pdus::{ADMIN_IN_CAPSULE_SIZE, IN_CAPSULE_SIZE};
use coulter_nvme::identify::optional;

/// Commands that are optional, and there.
pub(super) const OPTIONAL_COMMANDS: u16 =
    optional::COMPARE | optional::DATASET_MANAGEMENT | optional::WRITE_ZEROES | optional::VERIFY;

/// What an admin queue knows of its target: copied from `Nvme` at Connect.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    /// Slots of a queue.
    pub(super) queue_size_max: u32,
    /// I/O queues of a controller.
    pub(super) io_queues_max: u16,
    /// The discovery log, for the address at which the host has come in.
    pub(super) discovery_log: Vec<u8>,
}

/// Bytes of a capsule with a command and data.
pub(super) fn capsule_size(is_discovery: bool) -> u32 {
    let data = if is_discovery { ADMIN_IN_CAPSULE_SIZE } else { IN_CAPSULE_SIZE };
    coulter_nvme::sqe::SQE_SIZE as u32 + data
}
