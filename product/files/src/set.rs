//! The open set: changes of nodes that go to the volume together.

use crate::canary::{Canary, sings};
use crate::files::{Files, Pending};
use crate::gather;
use crate::io::{CHANGES_MAX, Change, Command, WRITE_BLOCKS_MAX};
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
        let is_gathered = !self.traffic.gathered.is_empty();
        let tree = self.tree();
        is_gathered || tree.cache.dirty_count() > 0 || tree.space.holds_any()
    }

    /// Submits the open set, if there is anything in it.
    pub(crate) fn submit_set(&mut self, fua: bool) {
        if !self.has_changes() || self.failed.is_some() {
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
        let mut buffer = self.spare_buffer();
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
        let sequence = self.order.issue(fua);
        let command = Command::WriteMany { changes, buffer, fua };
        let io = self.push_io(command, Pending::Set { sequence, blocks });
        data.iter().for_each(|run| self.traffic.add_write(io, *run));
        for run in later {
            self.push_discard(run);
        }
        self.is_ordered = false;
        self.has_shrunk = false;
        self.oldest_change_ns = None;
    }

    /// Whether what is gathered fits into a set of so many nodes. The set may free blocks of it.
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
        let sequence = self.order.issue(false);
        let command = Command::Discard { block: run.block, count: run.count };
        self.push_io(command, Pending::Discard { sequence })
    }

    /// Discards blocks that a file has got, and that read as zeros from now on. They count as being
    /// written: until the discard is complete, the volume may still give out what they held before.
    pub(crate) fn push_zeros(&mut self, run: Run) {
        let io = self.push_discard(run);
        if !sings(Canary::ZerosReadEarly) {
            self.traffic.add_write(io, run);
        }
    }

    /// A set or a discard is complete.
    pub(crate) fn handle_set_written(&mut self, blocks: &[u64], buffer: Buffer) {
        self.tree().cache.handle_written(blocks);
        self.give_spare(buffer);
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

    /// Takes in if the volume lacks space beneath it: requests that wait for durability are
    /// refused then.
    pub fn handle_space(&mut self, is_short: bool) {
        if std::mem::replace(&mut self.is_short_of_space, is_short) != is_short && is_short {
            self.pump_flush();
            self.run_ready();
        }
    }

    /// Begins a flush if somebody waits for one, and lets those go on who have what they waited for.
    pub(crate) fn pump_flush(&mut self) {
        let mut target = None;
        let mut waiting = std::mem::take(&mut self.waiting_for_flush);
        waiting.retain(|id| {
            let task = self.tasks[*id].as_ref();
            let Some(Work::Sync(Some(wanted))) = task.map(|task| &task.work) else { return false };
            let is_refused = self.failed.is_some() || self.is_short_of_space;
            if is_refused || self.order.is_durable(*wanted) {
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
