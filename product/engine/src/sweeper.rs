//! Drives the sweep: loads leaves in order, writes their pages into the metadata stream.

use crate::api::{Buffers, RecordRef};
use crate::loads::Waiter;
use crate::map::load::LoadPurpose;
use crate::map::sweep::PageWrite;
use crate::shared::{Outcome, Shared};
use crate::units::{Origin, Stream};
use coulter_format::checksum::{self, Kind};
use coulter_format::record::Extent;

/// Leaves loaded ahead of the sweep.
const AHEAD: usize = 24;

/// Writes leaf pages. What is to be swept, and why, is said by others.
#[derive(Default)]
pub(crate) struct Sweeper {
    /// Something has changed without a command.
    has_changed: bool,
}

impl Sweeper {
    fn is_wanted(shared: &Shared) -> bool {
        let signals = &shared.signals;
        signals.sweep_quota > 0
            || signals.sweep_hurry
            || signals.memory
            || signals.recovery_memory
            || signals.settling
            || shared.map.sweep_is_urgent()
    }

    /// Writes what is to be written and can be now.
    pub(crate) fn step(&mut self, shared: &mut Shared, buffers: &mut impl Buffers) -> Outcome {
        self.sweep(shared, buffers);
        Outcome::of_change(core::mem::take(&mut self.has_changed))
    }

    fn sweep(&mut self, shared: &mut Shared, buffers: &mut impl Buffers) {
        if shared.signals.checkpoint_is_active() {
            return;
        }
        if shared.map.has_room() {
            shared.signals.memory = false;
        }
        shared.note_settling();
        let mut rounds = 0;
        while Sweeper::is_wanted(shared) && shared.log.in_flight(Origin::Metadata) < 2 {
            let Some(key) = shared.map.sweep_next() else {
                shared.signals.memory = false;
                shared.note_settling();
                self.has_changed = true;
                rounds += 1;
                assert!(rounds <= 2, "after a whole round there is nothing left");
                // A whole round found nothing: nothing is left to be swept now.
                if rounds == 2 || !shared.lists.has_runs() {
                    shared.signals.sweep_quota = 0;
                    break;
                }
                continue;
            };
            if shared.map.is_writing(key) {
                break;
            }
            if !shared.load_for(key, Waiter::Nobody, LoadPurpose::Sweep) {
                load_ahead(shared, key);
                break;
            }
            if !self.sweep_one(shared, key, buffers) {
                break;
            }
        }
        // As with host writes: what gathered while the device was busy goes out together.
        let idle = !Sweeper::is_wanted(shared) || shared.log.in_flight(Origin::Metadata) == 0;
        if shared.log.filling(Stream::Metadata).is_some() && idle {
            shared.seal(Stream::Metadata, buffers);
        }
    }

    /// Writes one leaf that is ready. False: no room now.
    fn sweep_one(&mut self, shared: &mut Shared, key: u64, buffers: &mut impl Buffers) -> bool {
        let extent = Extent { key, count: 1, kind: Kind::Leaf, relocated: false };
        let Some(record) = shared.metadata_record(&extent, buffers) else { return false };
        let place = 1 + shared.log.record(record).payload as usize;
        assert!(place < crate::api::RECORD_BLOCKS, "a record that takes it has room");
        let origin = shared.log.record(record).origin;
        assert!(origin == Origin::Metadata, "pages lie apart from what the host writes");
        let now = shared.log.now();
        let page = &mut buffers.record_mut(record)[place];
        match shared.map.sweep_page(&mut shared.segments, key, page, now) {
            PageWrite::Page => {
                let checksum = checksum::block(Kind::Leaf, key, page);
                shared.push_metadata(record, extent, checksum);
                shared.statistics.leaf_blocks += 1;
            }
            PageWrite::Vanished => self.has_changed = true,
            PageWrite::NoMemory => {
                shared.signals.memory = true;
                drop_if_empty(shared, record);
                return false;
            }
        }
        shared.note_settling();
        shared.signals.sweep_quota = shared.signals.sweep_quota.saturating_sub(1);
        drop_if_empty(shared, record);
        true
    }
}

fn load_ahead(shared: &mut Shared, key: u64) {
    if !shared.map.has_room() {
        return;
    }
    let mut keys = [0; AHEAD];
    let found = shared.map.sweep_ahead(key, &mut keys);
    assert!(keys[..found].iter().all(|ahead| *ahead > key), "they come after it");
    for ahead in &keys[..found] {
        shared.load_for(*ahead, Waiter::Nobody, LoadPurpose::Clean);
    }
}

fn drop_if_empty(shared: &mut Shared, record: RecordRef) {
    if shared.log.record(record).extents.is_empty() {
        shared.log.abandon(record);
    }
}
