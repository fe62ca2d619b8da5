//! Parts of blocks that become zero: where a file grows behind a part of a block, and at the ends
//! of what is punched out.
//!
//! What lies behind the end of a file in its last block belongs to no one. It is overwritten in
//! place before the file grows, and no reader sees a difference until then.

use crate::canary::{Canary, sings};
use crate::parts::Parts;
use crate::space::Run;
use crate::stop::{Step, Stop, settle};
use crate::task::{Behind, Edge, Progress, Task};
use crate::tree::Tree;
use coulter::buffer::Buffer;
use coulter_format::BLOCK_SIZE;
use std::ops::Range;

const SIZE: u64 = BLOCK_SIZE as u64;

impl Parts {
    /// Makes zero what lies behind the end of a file, bit by bit. The task has to own the file's
    /// lock. `Yields` when nothing is left to be done.
    pub(crate) fn run_behind(
        &mut self,
        id: usize,
        task: &mut Task,
        inode: u64,
        behind: &mut Behind,
    ) -> Progress {
        if let Some(edge) = behind.edge {
            if let Some(errno) = task.failed {
                return Progress::Ends(Err(errno));
            }
            let place = settle!(self.step(id, |tree, traffic| {
                let block = tree.mapped(inode, edge.block)?;
                match block {
                    Some(block) if traffic.is_written(Run { block, count: 1 }) => {
                        Err(Stop::Conflict)
                    }
                    _ => Ok(block),
                }
            }));
            if let Some(block) = place {
                let Some(held) = task.old.iter().position(|(other, _)| *other == block) else {
                    self.fetch(id, task, Run { block, count: 1 }, Buffer::zeroed(BLOCK_SIZE));
                    return Progress::Waits;
                };
                let (_, mut buffer) = task.old.swap_remove(held);
                assert!(edge.from < edge.to && edge.to <= BLOCK_SIZE, "an edge is part of a block");
                buffer[edge.from..edge.to].fill(0);
                self.submit_shrinking();
                self.store(id, task, &[Run { block, count: 1 }], buffer);
            }
            behind.edge = None;
        }
        while !behind.blocks.is_empty() {
            let blocks = behind.blocks.clone();
            let found = settle!(self.step(id, |tree, _| next_run(tree, inode, blocks.clone())));
            let Some((first, run)) = found else { break };
            self.submit_shrinking();
            self.push_zeros(run);
            assert!(first >= behind.blocks.start && run.count > 0, "each step comes further");
            behind.blocks.start = first + run.count;
        }
        behind.blocks = 0..0;
        Progress::Yields
    }

    /// What lies behind the end of a file is free to be changed only once the set that moved the
    /// end is submitted.
    pub(crate) fn submit_shrinking(&mut self) {
        if self.sets.has_shrunk() {
            self.submit_set(false);
        }
    }

    /// Changes from before an overwrite go first.
    pub(crate) fn submit_before_overwrite(&mut self) {
        if self.sets.is_ordered() {
            self.submit_set(false);
        }
    }
}

/// The blocks and bytes that are to be zero before a file of this size grows to have something from
/// block `end` on.
///
/// Its last block may hold bytes behind the end. And blocks that were allocated behind the end may
/// hold bytes of a write whose set a crash took away.
pub(crate) fn behind(tree: &mut Tree, inode: u64, size: u64, end: u64) -> Step<Behind> {
    let from = (size % SIZE) as usize;
    let block = size / SIZE;
    let has_edge = from > 0 && tree.mapped(inode, block)?.is_some();
    let edge = has_edge.then_some(Edge { block, from, to: BLOCK_SIZE });
    let first = size.div_ceil(SIZE);
    let next = if first < end { tree.next_mapped(inode, first)? } else { None };
    let next = next.filter(|_| !sings(Canary::BehindEndKept));
    let blocks = next.map_or(0..0, |next| next..end.max(next));
    Ok(Behind { edge, blocks })
}

/// The next blocks that a file has among these: the first one's number in it, and where they are.
fn next_run(tree: &mut Tree, inode: u64, blocks: Range<u64>) -> Step<Option<(u64, Run)>> {
    let Some(first) = tree.next_mapped(inode, blocks.start)?.filter(|at| *at < blocks.end) else {
        return Ok(None);
    };
    let mut segments = Vec::new();
    tree.segments(inode, first, blocks.end - first, &mut segments)?;
    Ok(segments.iter().find_map(|segment| {
        let run = Run { block: segment.block?, count: segment.count };
        Some((segment.first, run))
    }))
}

/// The parts of blocks at both ends of a range.
pub(crate) fn ends(offset: u64, end: u64) -> Vec<Edge> {
    let (first, last) = (offset / SIZE, end / SIZE);
    let (from, to) = ((offset % SIZE) as usize, (end % SIZE) as usize);
    let edge = |block, from, to| Edge { block, from, to };
    match (from, to) {
        _ if first == last => vec![edge(first, from, to)],
        (0, 0) => vec![],
        (_, 0) => vec![edge(first, from, BLOCK_SIZE)],
        (0, _) => vec![edge(last, 0, to)],
        _ => vec![edge(first, from, BLOCK_SIZE), edge(last, 0, to)],
    }
}
