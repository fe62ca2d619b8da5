//! Drives the sweep: loads leaves in order, writes their pages into the metadata stream.

use crate::Engine;
use crate::api::{Buffers, RecordRef};
use crate::loads::Waiter;
use crate::map::{LoadPurpose, PageWrite};
use crate::units::{Origin, Stream};
use coulter_format::Pba;
use coulter_format::checksum::{self, Kind};
use coulter_format::record::{BlockWord, Extent};

/// Leaves loaded ahead of the sweep.
const AHEAD: usize = 24;

/// How much is still to be swept before the next checkpoint.
#[derive(Default)]
pub(crate) struct Sweeper {
    /// Leaves to write.
    pub(crate) quota: usize,
    /// A load or a write found no memory.
    pub(crate) wanted_memory: bool,
    /// What the host wants to write would be more than recovery has memory for. However little that
    /// is, sweeping and a checkpoint must make room for it.
    pub(crate) wanted_recovery: bool,
    /// The oldest run must die before another one can be written.
    pub(crate) hurry: bool,
}

impl Engine {
    fn sweep_wanted(&self) -> bool {
        let sweeper = &self.sweeper;
        sweeper.quota > 0
            || sweeper.hurry
            || sweeper.wanted_memory
            || sweeper.wanted_recovery
            || self.map.sweep_is_urgent()
    }

    pub(crate) fn pump_sweep(&mut self, buffers: &mut impl Buffers) {
        if self.checkpointer.is_active() {
            return;
        }
        if self.map.has_room() {
            self.sweeper.wanted_memory = false;
        }
        let mut rounds = 0;
        while self.sweep_wanted() && self.log.in_flight(Origin::Metadata) < 2 {
            let Some(key) = self.map.sweep_next() else {
                self.sweeper.wanted_memory = false;
                self.restless = true;
                rounds += 1;
                // A whole round found nothing: nothing is left to be swept now.
                if rounds == 2 || !self.checkpointer.has_runs() {
                    self.sweeper.quota = 0;
                    break;
                }
                continue;
            };
            if self.map.is_writing(key) {
                break;
            }
            if !self.load_for(key, Waiter::Nobody, LoadPurpose::Sweep) {
                self.load_ahead(key);
                break;
            }
            if !self.sweep_one(key, buffers) {
                break;
            }
        }
        // As with host writes: what gathered while the device was busy goes out together.
        let idle = !self.sweep_wanted() || self.log.in_flight(Origin::Metadata) == 0;
        if self.log.filling(Stream::Metadata).is_some() && idle {
            self.seal(Stream::Metadata, buffers);
        }
    }

    fn load_ahead(&mut self, key: u64) {
        if !self.map.has_room() {
            return;
        }
        let mut keys = [0; AHEAD];
        let found = self.map.sweep_ahead(key, &mut keys);
        for ahead in &keys[..found] {
            self.load_for(*ahead, Waiter::Nobody, LoadPurpose::Clean);
        }
    }

    /// Writes one leaf that is ready. False: no room now.
    fn sweep_one(&mut self, key: u64, buffers: &mut impl Buffers) -> bool {
        let extent = Extent { key, count: 1, kind: Kind::Leaf, relocated: false };
        let Some(record) = self.metadata_record(&extent, buffers) else { return false };
        let place = 1 + self.log.record(record).payload as usize;
        let now = self.log.now();
        let page = &mut buffers.record_mut(record)[place];
        match self.map.sweep_page(&mut self.segments, key, page, now) {
            PageWrite::Page => {
                let checksum = checksum::block(Kind::Leaf, key, page);
                self.push_metadata(record, extent, checksum);
                self.statistics.leaf_blocks += 1;
            }
            PageWrite::Vanished => self.restless = true,
            PageWrite::NoMemory => {
                self.sweeper.wanted_memory = true;
                self.drop_if_empty(record);
                return false;
            }
        }
        self.sweeper.quota = self.sweeper.quota.saturating_sub(1);
        self.drop_if_empty(record);
        true
    }

    fn drop_if_empty(&mut self, record: RecordRef) {
        if self.log.record(record).extents.is_empty() {
            self.log.abandon(record);
        }
    }

    /// The metadata stream's record with room for this.
    pub(crate) fn metadata_record(
        &mut self,
        extent: &Extent,
        buffers: &mut impl Buffers,
    ) -> Option<RecordRef> {
        if let Some(record) = self.log.fitting(Stream::Metadata, Origin::Metadata, extent) {
            return Some(record);
        }
        if self.log.filling(Stream::Metadata).is_some() {
            self.seal(Stream::Metadata, buffers);
        }
        // What a checkpoint needs, the pages included that must be swept before the next one, is kept
        // by all others.
        let due = self.checkpointer.is_active() || self.sweeper.quota > 0 || self.sweeper.hurry;
        let keep = if due { 0 } else { self.pacing.kept_by_sweep() };
        let blocks = extent.payload_blocks() as u32;
        self.log.begin(&mut self.segments, Stream::Metadata, Origin::Metadata, blocks, keep)
    }

    /// Adds one block whose content is in the buffer.
    pub(crate) fn push_metadata(&mut self, record: RecordRef, extent: Extent, checksum: u32) {
        let target = self.log.record_mut(record);
        target.words.push(BlockWord { checksum, address: Pba::NOWHERE });
        target.push_extent(extent);
    }
}
