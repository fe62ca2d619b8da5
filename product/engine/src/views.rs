//! What the operator may ask and change: views of the engine, which change nothing, and commands.

use crate::Engine;
use crate::api::{Phase, RequestId};
use crate::degraded::Degradation;
use crate::placement::Placement;
use crate::policy::VictimPolicy;
use crate::read_cache::ReadCache;
use crate::statistics::Statistics;
use crate::tuning::CleaningMode;
use alloc::sync::Arc;
use core::ops::Range;
use coulter_format::Lba;
use coulter_format::superblock::{Geometry, Superblock};

impl Engine {
    /// Has clients look up in `cache` from now on, which knows nothing yet. The store can be read.
    pub fn share(&mut self, cache: Arc<ReadCache>) {
        self.shared.segments.set_clients(cache.clone());
        self.shared.cache = Some(cache);
    }

    /// What the engine is doing about its store.
    pub fn phase(&self) -> Phase {
        self.shared.phase
    }

    /// Whether writes are refused: opened so, or after a failure (then with the error number).
    pub fn read_only(&self) -> Option<i32> {
        self.shared.poisoned.or(self.shared.config.read_only.then_some(0))
    }

    /// What is damaged beyond repair, if anything was when the store was opened.
    pub fn degradation(&self) -> Option<&Degradation> {
        self.shared.degradation.as_ref()
    }

    /// Host addresses of which the newest value is unknown since the store was opened: reading them is an error until
    /// they are written or discarded. Ranges that ascend.
    pub fn in_doubt(&self) -> &[Range<u64>] {
        self.shared.map.doubt().ranges()
    }

    /// How many of them there are.
    pub fn in_doubt_count(&self) -> u64 {
        self.shared.map.doubt().count()
    }

    /// Changes how the cleaner chooses its victims, from the next one on.
    pub fn set_victims(&mut self, victims: VictimPolicy) {
        self.shared.config.victims = victims;
        // Another one may find something where the former found nothing.
        self.cleaner.look_again();
    }

    /// How the cleaner chooses its victims.
    pub fn victims(&self) -> VictimPolicy {
        self.shared.config.victims
    }

    /// Which blocks share segments.
    pub fn placement(&self) -> Placement {
        self.shared.placer.placement()
    }

    /// Changes which blocks share segments, from the next ones on. What lies where it lies stays.
    pub fn set_placement(&mut self, placement: Placement) {
        self.shared.placer.set_placement(placement);
    }

    /// Sizes and places. Meaningless while opening.
    pub fn geometry(&self) -> &Geometry {
        &self.shared.superblock.geometry
    }

    /// The newest superblock. Meaningless while opening.
    pub fn superblock(&self) -> &Superblock {
        &self.shared.superblock
    }

    /// Whether a block is mapped; what is not in memory counts as mapped.
    pub fn is_mapped(&mut self, lba: Lba) -> bool {
        self.shared.map.is_mapped(lba)
    }

    /// Whether the answer to this request waits to be taken.
    pub fn has_answered(&self, id: RequestId) -> bool {
        self.shared.requests.has_answered(id)
    }

    /// Requests and device commands under way. Zero means that nothing will happen by itself.
    pub fn activity(&self) -> usize {
        self.shared.requests.count() + self.shared.ios.out_count()
    }

    /// Blocks that did not match their checksum, each of the first 1024 counted once.
    pub fn corrupt_blocks(&self) -> u64 {
        self.shared.statistics.corrupt_blocks
    }

    /// Counters as of now.
    pub fn statistics(&self) -> Statistics {
        let mut statistics = *self.shared.statistics;
        statistics.map = self.shared.map.statistics;
        statistics.map_bytes = self.shared.map.size();
        statistics.map_bytes_limit = self.shared.map_size();
        if self.shared.superblock.geometry.is_sparse() {
            statistics.charged_blocks = self.shared.charge();
            statistics.charged_blocks_max = self.shared.charge_max();
            statistics.roots_touched = self.shared.map.root_count() as u64;
            statistics.roots_touched_max = self.shared.superblock.geometry.roots_max();
        }
        statistics.may_have_lost = self.shared.map.may_have_lost();
        statistics.roots_in_use = self.shared.map.root_page_count();
        let (recovery_cells, recovery_cells_max) = self.shared.map.recovery_cells();
        statistics.recovery_cells = recovery_cells as u64;
        statistics.recovery_cells_max = recovery_cells_max as u64;
        statistics.segment_count = u64::from(self.shared.superblock.geometry.segment_count);
        statistics.segment_blocks = u64::from(self.shared.superblock.geometry.segment_blocks);
        statistics.segments_empty = u64::from(self.shared.segments.empty_count());
        statistics.segments_low = u64::from(self.shared.pacing.marks().low);
        statistics.segments_high = u64::from(self.shared.pacing.marks().high);
        statistics.valid_blocks = self.shared.segments.valid_count();
        statistics.reference_count = self.shared.lists.references.count() as u64;
        statistics.segments_patched = u64::from(self.shared.segments.patched_count());
        statistics.run_count = self.shared.lists.runs.len() as u64;
        statistics.segment_life = self.shared.placer.life();
        statistics.applied_sequence = self.shared.log.applied;
        statistics.durable_sequence = self.shared.log.durable;
        statistics
    }

    /// Stops writing if segments that cannot be emptied may be why nothing gets on: those that cannot be
    /// read, and those whose headers are damaged, keep what they have, so there may be none left to be
    /// won. To be called when somebody waits and nothing is on its way. False if that is not why.
    pub fn give_up_for_want_of_room(&mut self) -> bool {
        let errno = self.cleaner.why_no_room(&self.shared);
        if let Some(errno) = errno.filter(|_| self.shared.poisoned.is_none()) {
            self.shared.poison(errno);
            return true;
        }
        false
    }

    /// Stops writing for good, as after a failed write with this error number: a part of the store
    /// is lost.
    pub fn refuse_writes(&mut self, errno: i32) {
        self.shared.poison(errno);
    }

    /// Changes when the cleaner works, from its next step on: what it has begun to copy arrives.
    pub fn set_cleaning(&mut self, mode: CleaningMode) {
        self.cleaner.set_mode(mode);
    }

    /// When the cleaner works.
    pub fn cleaning(&self) -> CleaningMode {
        self.cleaner.mode()
    }

    /// Begins to go over the volume, from its start, and to write scattered blocks anew in the host's
    /// order; or ends it. It ends by itself at the volume's end.
    pub fn set_defrag(&mut self, is_on: bool) {
        if self.cleaner.set_defrag(is_on) {
            self.shared.statistics.defrag_next = 0;
        }
    }

    /// Whether it is going on.
    pub fn is_defragmenting(&self) -> bool {
        self.cleaner.is_defragmenting()
    }

    /// Whether the cleaner may read only what it is allowed by [`Engine::allow_cleaning`]. At first
    /// that is nothing. What it writes again is less than what it reads.
    pub fn limit_cleaning(&mut self, is_limited: bool) {
        self.cleaner.restraint_mut().limit(is_limited);
    }

    /// Allows the cleaner to read so many more blocks, but no more than `most` from now on. Without a
    /// limit this does nothing.
    pub fn allow_cleaning(&mut self, blocks: u64, most: u64) {
        self.cleaner.restraint_mut().allow(blocks, most);
    }

    /// Blocks that it may still read; below zero by as much as the latest chunk was larger. `None`
    /// without a limit.
    pub fn cleaning_allowance(&self) -> Option<i64> {
        self.cleaner.restraint().allowance()
    }

    /// Whether cleaning is to wait, as long as the host need not wait for segments.
    pub fn hold_cleaning_back(&mut self, holds: bool) {
        self.cleaner.restraint_mut().hold_back(holds);
    }

    /// Says whether the host is idle. Then the cleaner works ahead: on segments that yield at least
    /// a quarter of themselves, until half of the segments that could be empty are.
    pub fn set_host_idle(&mut self, is_idle: bool) {
        self.cleaner.restraint_mut().set_host_idle(is_idle);
    }

    /// Whether the cleaner, or the host through it, waits for an allowance or for not being held back
    /// any more. Asked by whoever has the clock: nothing happens by itself then.
    pub fn waits_for_time(&self) -> bool {
        self.cleaner.restraint().waits()
    }

    /// Asks the device for space again that it did not have. The driver calls this now and then while
    /// [`Engine::lacks_space`].
    pub fn try_for_space(&mut self) {
        self.shared.try_for_space();
    }

    /// Whether the device had no space when it was last asked: writes may have to wait until there is
    /// some.
    pub fn lacks_space(&self) -> bool {
        self.shared.lacks_space()
    }
}
