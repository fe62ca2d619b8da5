//! A volume as a namespace.

use super::controller::Controller;
use coulter::service::{BlockService, Description, Session, Watch};
use coulter_nvme::identify::Namespace;
use std::sync::Arc;

/// The only namespace of a subsystem.
pub(super) const NSID: u32 = 1;
/// Bytes of the longest transfer, as a power of two, and in units of 4 KiB. It is the atomic unit too:
/// Linux takes the lesser of the two, and 1 MiB is what a queue's limits let through.
pub(super) const TRANSFER_SIZE_MAX: u32 = 1 << 20;
pub(super) const TRANSFER_SIZE_LOG: u8 = 8;
const _: () = assert!(4096 << TRANSFER_SIZE_LOG == TRANSFER_SIZE_MAX);
/// Blocks of a range of Dataset Management: one command of 256 of them is done well within a second.
pub(super) const RANGE_BLOCKS_MAX: u32 = 1 << 21;

pub(super) struct Front {
    service: Arc<dyn BlockService>,
    /// Refuse writes whatever the service allows.
    read_only: bool,
    pub(super) block_size_log: u8,
    /// What it was like at the beginning; of this only the size and whether it is read-only change.
    first: Description,
}

impl Front {
    /// # Panics
    /// When a block is not 512 or 4096 bytes.
    pub(super) fn new(service: Arc<dyn BlockService>, read_only: bool, block_size: u32) -> Front {
        let first = service.describe();
        assert!(matches!(block_size, 512 | 4096), "a block is a sector or a page");
        assert!(u64::from(block_size) >= first.sector_size, "a block is a multiple of sectors");
        Front { service, read_only, block_size_log: block_size.trailing_zeros() as u8, first }
    }

    pub(super) fn identity(&self) -> &coulter::service::Identity {
        &self.first.identity
    }

    pub(super) fn connect(&self) -> Box<dyn Session + Send> {
        self.service.connect()
    }

    pub(super) fn size(&self) -> u64 {
        self.service.size()
    }

    pub(super) fn refuses_writes(&self) -> bool {
        self.read_only || self.service.read_only()
    }

    pub(super) fn watch(&self, controller: &Arc<Controller>) {
        let controller: Arc<dyn Watch> = controller.clone();
        self.service.watch(Arc::downgrade(&controller));
    }

    /// Blocks of an atomic write. Of blocks of 512 bytes one that is not aligned to 4096 would be atomic
    /// in its middle only, and NVMe has no word for that; a record holds the edges as well, however.
    pub(super) fn atomic_blocks(&self) -> u32 {
        let size = self.first.atomic_write_size_max.min(u64::from(TRANSFER_SIZE_MAX));
        (size >> self.block_size_log) as u32
    }

    pub(super) fn namespace(&self) -> Namespace {
        let blocks = |size: u64| (size >> self.block_size_log).max(1) as u32;
        Namespace {
            block_count: self.size() >> self.block_size_log,
            block_size_log: self.block_size_log,
            atomic_blocks: self.atomic_blocks(),
            discard_blocks: blocks(self.first.discard_granularity),
            optimal_blocks: blocks(self.first.preferred_request_size),
            read_only: self.refuses_writes(),
            nguid: self.first.identity.uuid,
        }
    }
}
