//! Who looks at the engine while the host overwrites.

use super::room::Looks;
use super::victims::Victims;
use crate::model_store::ModelStore;
use crate::standin::{StandinDevice, Watch};
use coulter_engine::{Engine, Statistics};

/// Looks at victims all the time, and at the log's room when that is due.
pub(super) struct Watcher {
    pub(super) victims: Victims,
    pub(super) room: Looks,
    pub(super) look_is_due: bool,
    /// Blocks of the volume, all of which have been written.
    blocks: u64,
}

impl Watcher {
    /// Begins to watch a store that has been filled.
    pub(super) fn new(store: &ModelStore) -> Watcher {
        Watcher {
            victims: Victims::new(store.segment_blocks, &store.rig.engine.statistics()),
            room: Looks::default(),
            look_is_due: false,
            blocks: store.blocks,
        }
    }

    /// Forgets what was seen.
    pub(super) fn restart(&mut self) {
        self.victims.restart();
        self.room = Looks::default();
    }
}

impl Watch for Watcher {
    fn look(&mut self, statistics: &Statistics) {
        self.victims.look(statistics);
    }

    fn look_at_device(&mut self, engine: &Engine, device: &StandinDevice) {
        if std::mem::take(&mut self.look_is_due) {
            let host_blocks = device.host_blocks.as_ref().expect("the store was opened with them");
            self.room.look(engine, host_blocks, self.blocks);
        }
    }
}
