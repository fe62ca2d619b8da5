//! The open set: changes of nodes that go to the volume together.

use crate::canary::{Canary, sings};
use crate::files::{Files, Pending};
use crate::io::{CHANGES_MAX, Change, Command};
use crate::space::Run;
use crate::task::Work;
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

impl Files {
    /// Makes sure that the set has room for what one more step changes.
    pub(crate) fn make_room(&mut self) {
        if self.tree().cache.dirty_count() + STEP_BLOCKS_MAX >= SET_BLOCKS_MAX {
            self.submit_set(false);
        }
    }

    /// Whether there are changes that were not submitted.
    pub(crate) fn has_changes(&mut self) -> bool {
        let tree = self.tree();
        tree.cache.dirty_count() > 0 || tree.space.holds_any()
    }

    /// Submits the open set, if there is anything in it.
    pub(crate) fn submit_set(&mut self, fua: bool) {
        if !self.has_changes() || self.failed.is_some() {
            return;
        }
        let mut buffer =
            self.spare.pop().unwrap_or_else(|| Buffer::zeroed(SET_BLOCKS_MAX * BLOCK_SIZE));
        let count = self.tree().cache.dirty_count() + 1;
        assert!(count <= SET_BLOCKS_MAX, "a set is submitted before it is too large");
        buffer.set_length(count * BLOCK_SIZE);
        if sings(Canary::DiscardBeforeSet) {
            let held = self.tree().space.take_held();
            held.into_iter().for_each(|run| self.push_discard(run));
        }
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
        let later = add_discards(&mut changes, tree.space.take_held());
        self.counters.sets += 1;
        self.counters.set_blocks += count as u64;
        let sequence = self.order.issue(fua);
        let command = Command::WriteMany { changes, buffer, fua };
        self.push_io(command, Pending::Set { sequence, blocks });
        for run in later {
            self.push_discard(run);
        }
        self.is_ordered = false;
        self.has_shrunk = false;
        self.oldest_change_ns = None;
    }

    pub(crate) fn push_discard(&mut self, run: Run) {
        let sequence = self.order.issue(false);
        let command = Command::Discard { block: run.block, count: run.count };
        self.push_io(command, Pending::Discard { sequence });
    }

    /// A set or a discard is complete.
    pub(crate) fn handle_set_written(&mut self, blocks: &[u64], buffer: Buffer) {
        self.tree().cache.handle_written(blocks);
        if self.spare.len() < SPARE_MAX {
            self.spare.push(buffer);
        }
    }

    /// Begins a flush if somebody waits for one, and lets those go on who have what they waited for.
    pub(crate) fn pump_flush(&mut self) {
        let mut target = None;
        let mut waiting = std::mem::take(&mut self.waiting_for_flush);
        waiting.retain(|id| {
            let task = self.tasks[*id].as_ref();
            let Some(Work::Sync(Some(wanted))) = task.map(|task| &task.work) else { return false };
            if self.failed.is_some() || self.order.is_durable(*wanted) {
                self.ready.push_back(*id);
                return false;
            }
            target = Some(target.map_or(*wanted, |least: u64| least.min(*wanted)));
            true
        });
        self.waiting_for_flush = waiting;
        if let Some(target) = target
            && self.order.begin_flush(target)
        {
            self.push_io(Command::Flush, Pending::Flush);
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
