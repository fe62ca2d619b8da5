//! The open set: changes of nodes that go to the volume together.
//!
//! # Invariants
//! - A set holds every change that was made since the one before, and no more blocks than is
//!   atomic.
//! - What was overwritten, and what lies behind the end of a file that became shorter, is not
//!   touched before the set with the changes before it is submitted.

use crate::canary::{Canary, sings};
use crate::gather;
use crate::io::{CHANGES_MAX, Change, Command, WRITE_BLOCKS_MAX};
use crate::parts::{Parts, Purpose};
use crate::space::Run;
use coulter::buffer::Buffer;
use coulter_format::BLOCK_SIZE;

/// Blocks of a set at most, the superblock among them.
pub(crate) const SET_BLOCKS_MAX: usize = 192;
/// Blocks that one step may change at most.
pub(crate) const STEP_BLOCKS_MAX: usize = 64;
/// Map updates that the discards of a set may cause; more of them follow by themselves.
const DISCARD_COST_MAX: u64 = 512;
/// Blocks of a leaf of the volume's map: to discard all of them is one update.
const LEAF: u64 = 512;
/// Buffers for sets that are kept.
const SPARE_MAX: usize = 4;

/// Facts about the open set beside its blocks.
#[derive(Default)]
pub(crate) struct Sets {
    /// It holds more than times: what is overwritten must not come before it.
    is_ordered: bool,
    /// A file was made shorter in it: what lies behind its end is not free to be changed yet.
    has_shrunk: bool,
    oldest_change_ns: Option<u64>,
    /// Buffers for sets and for gathered data.
    spare: Vec<Buffer>,
}

impl Sets {
    /// The step that was done counts.
    pub(crate) fn note_change(&mut self, now_ns: u64) {
        self.is_ordered = true;
        self.oldest_change_ns.get_or_insert(now_ns);
    }

    /// A file was made shorter.
    pub(crate) fn note_shrink(&mut self) {
        assert!(self.is_ordered, "a new size counts");
        self.has_shrunk = true;
    }

    pub(crate) fn is_ordered(&self) -> bool {
        self.is_ordered
    }

    pub(crate) fn has_shrunk(&self) -> bool {
        self.has_shrunk
    }

    /// Since when a change has waited.
    pub(crate) fn oldest_change_ns(&self) -> Option<u64> {
        self.oldest_change_ns
    }

    /// How long a change has waited; there is one.
    pub(crate) fn age_ns(&mut self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(*self.oldest_change_ns.get_or_insert(now_ns))
    }

    /// It was submitted: the next one begins.
    fn begin(&mut self) {
        (self.is_ordered, self.has_shrunk, self.oldest_change_ns) = (false, false, None);
    }

    /// A buffer for a command with as much data as there may be.
    pub(crate) fn spare_buffer(&mut self) -> Buffer {
        self.spare.pop().unwrap_or_else(|| Buffer::zeroed(WRITE_BLOCKS_MAX * BLOCK_SIZE))
    }

    pub(crate) fn give_spare(&mut self, buffer: Buffer) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(buffer);
        }
    }

    /// # Panics
    /// If it says something that the blocks of the set do not.
    pub(crate) fn assert_invariants(&self) {
        assert!(!self.has_shrunk || self.is_ordered, "a new size counts");
        assert!(self.spare.len() <= SPARE_MAX, "few buffers are kept");
    }
}

impl Parts {
    /// Makes sure that the set has room for what one more step changes.
    pub(crate) fn make_room(&mut self) {
        if self.tree().cache.dirty_count() + STEP_BLOCKS_MAX >= SET_BLOCKS_MAX {
            self.submit_set(false);
        }
    }

    /// Submits the open set, if there is anything in it.
    pub(crate) fn submit_set(&mut self, fua: bool) {
        if !self.has_changes() || self.health.has_failed() {
            return;
        }
        if sings(Canary::DiscardBeforeSet) {
            let held = self.tree().space.take_held();
            for run in held {
                self.push_discard(run);
            }
        }
        let nodes = self.tree().cache.dirty_count() + 1;
        assert!(nodes <= SET_BLOCKS_MAX, "a set is submitted before it is too large");
        if !self.can_take_data(nodes) {
            self.submit_gathered();
        }
        let count = nodes + self.traffic.gathered.blocks();
        let mut buffer = self.sets.spare_buffer();
        buffer.set_length(count * BLOCK_SIZE);
        let tree = self.tree();
        tree.superblock.set_count += 1;
        let (first, mut rest) = buffer.split_at_mut(BLOCK_SIZE);
        tree.superblock.encode(first.try_into().expect("a block"));
        let mut changes = vec![Change { block: 0, count: 1, discard: false }];
        let blocks = tree.cache.take_dirty(|block, data| {
            let (place, behind) = std::mem::take(&mut rest).split_at_mut(BLOCK_SIZE);
            place.copy_from_slice(data);
            rest = behind;
            match changes.last_mut() {
                Some(last) if last.block + last.count == block => last.count += 1,
                _ => changes.push(Change { block, count: 1, discard: false }),
            }
        });
        let gathered = &mut self.traffic.gathered;
        rest.copy_from_slice(gathered.data());
        changes.extend(gather::changes(gathered.runs()));
        let data = gathered.runs().to_vec();
        gathered.clear();
        let later = add_discards(&mut changes, self.tree().space.take_held());
        self.counters.sets += 1;
        self.counters.set_blocks += nodes as u64;
        assert!(changes.len() <= CHANGES_MAX, "a set has no more ranges than is atomic");
        assert_eq!(buffer.len(), count * BLOCK_SIZE, "a set has a place for each block");
        assert!(count <= WRITE_BLOCKS_MAX, "a set has no more blocks than is atomic");
        let sequence = self.flushes.issue(fua);
        let command = Command::WriteMany { changes, buffer, fua };
        let io = self.desk.give(command, Purpose::Set { sequence, blocks });
        data.iter().for_each(|run| self.traffic.add_write(io, *run));
        for run in later {
            self.push_discard(run);
        }
        self.sets.begin();
    }

    /// True if the gathered data fits into a set with this number of nodes. The set may free blocks
    /// of it.
    fn can_take_data(&mut self, nodes: usize) -> bool {
        let gathered = &self.traffic.gathered;
        let fits = nodes + gathered.blocks() <= WRITE_BLOCKS_MAX
            && nodes + gathered.runs().len() <= CHANGES_MAX;
        let runs = gathered.runs().to_vec();
        let tree = self.tree();
        fits && !runs.into_iter().any(|run| tree.space.holds_some_of(run))
    }

    /// Discards blocks that no file has.
    fn push_discard(&mut self, run: Run) -> u32 {
        self.submit_gathered();
        let sequence = self.flushes.issue(false);
        let command = Command::Discard { block: run.block, count: run.count };
        self.desk.give(command, Purpose::Discard { sequence })
    }

    /// Discards blocks that a file has got, and that read as zeros from now on. They count as being
    /// written: until the discard is complete, the volume may still give out what they held before.
    pub(crate) fn push_zeros(&mut self, run: Run) {
        let io = self.push_discard(run);
        if !sings(Canary::ZerosReadEarly) {
            self.traffic.add_write(io, run);
        }
    }
}

/// Adds discards to a set, as far as it may hold them. Returns the rest.
fn add_discards(changes: &mut Vec<Change>, runs: Vec<Run>) -> Vec<Run> {
    let (mut cost, mut later) = (0, Vec::new());
    for run in runs {
        let price = run.count / LEAF + (run.count % LEAF).min(run.count) + 2 * LEAF.min(run.count);
        if changes.len() < CHANGES_MAX && cost + price <= DISCARD_COST_MAX {
            cost += price;
            changes.push(Change { block: run.block, count: run.count, discard: true });
        } else {
            later.push(run);
        }
    }
    later
}
