//! Parts of blocks that become zero: where a file grows behind a part of a block, and at the ends of
//! what is punched out.
//!
//! What lies behind the end of a file in its last block is nobody's. It is overwritten in place before
//! the file grows, and nobody sees a difference until then.

use super::settle;
use crate::parts::Parts;
use crate::space::Run;
use crate::stop::{Step, Stop};
use crate::task::{Edge, Progress, Task};
use crate::tree::Tree;
use coulter::buffer::Buffer;
use coulter_format::BLOCK_SIZE;

const SIZE: u64 = BLOCK_SIZE as u64;

impl Parts {
    /// Makes bytes behind the end of a file zero, one edge after the other. The task has to own the file's lock. `Yields` when
    /// nothing is left to be done.
    pub(crate) fn run_edges(
        &mut self,
        id: usize,
        task: &mut Task,
        inode: u64,
        edges: &mut Vec<Edge>,
    ) -> Progress {
        while let Some(edge) = edges.last().copied() {
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
            let Some(block) = place else {
                edges.pop();
                continue;
            };
            let Some(held) = task.old.iter().position(|(other, _)| *other == block) else {
                self.fetch(id, task, Run { block, count: 1 }, Buffer::zeroed(BLOCK_SIZE));
                return Progress::Waits;
            };
            let (_, mut buffer) = task.old.swap_remove(held);
            buffer[edge.from..edge.to].fill(0);
            self.submit_shrinking();
            self.store(id, task, &[Run { block, count: 1 }], buffer);
            edges.pop();
        }
        Progress::Yields
    }

    /// What lies behind the end of a file is nobody's only once the set that moved the end is submitted.
    pub(crate) fn submit_shrinking(&mut self) {
        if self.sets.has_shrunk() {
            self.submit_set(false);
        }
    }

    /// What was changed before an overwrite goes first.
    pub(crate) fn submit_before_overwrite(&mut self) {
        if self.sets.is_ordered() {
            self.submit_set(false);
        }
    }
}

/// What lies behind the end of a file in its last block, which is to be zero when the file grows.
pub(crate) fn tail(tree: &mut Tree, inode: u64, size: u64) -> Step<Option<Edge>> {
    let from = (size % SIZE) as usize;
    let block = size / SIZE;
    if from == 0 || tree.mapped(inode, block)?.is_none() {
        return Ok(None);
    }
    Ok(Some(Edge { block, from, to: BLOCK_SIZE }))
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
