//! Space for holes, holes where there was data, and zeros.
//!
//! A new block that nobody writes reads as zeros because the volume does not map it. It may map it
//! still when a crash came between a set and its discards: so new blocks are discarded before the
//! set that refers to them.

use super::edges::{behind, ends};
use crate::items::RUNS_MAX;
use crate::namespace::tree::clear_privileges;
use crate::parts::Parts;
use crate::request::{AllocateMode, Reply};
use crate::space::Run;
use crate::stop::{Step, Stop, fail, settle};
use crate::task::{Allocate, Behind, Edge, Progress, Task};
use crate::traffic::Traffic;
use crate::tree::Tree;
use coulter::buffer::Buffer;
use coulter_format::BLOCK_SIZE;
use coulter_format::files::{FILE_SIZE_MAX, Inode, Time};

const SIZE: u64 = BLOCK_SIZE as u64;
/// Runs of blocks that one step takes.
const NEW_RUNS_MAX: usize = 8;
/// Blocks that one step looks at.
const WINDOW: u64 = 1 << 18;

/// What one step did.
struct Advance {
    /// Blocks at the ends that lie elsewhere now: where they were, where they are, what becomes
    /// zero.
    moved: Vec<(u64, Run, Edge)>,
    /// New blocks, to read as zeros.
    fresh: Vec<Run>,
    is_punched: bool,
    next: u64,
    is_done: bool,
}

impl Parts {
    pub(crate) fn run_allocate(
        &mut self,
        id: usize,
        task: &mut Task,
        work: &mut Allocate,
    ) -> Progress {
        let number = work.inode;
        if !self.locks.lock(id, number) {
            return Progress::Waits;
        }
        if let Some(errno) = task.failed {
            return Progress::Ends(Err(errno));
        }
        if work.behind.is_none() {
            let (hidden, visible) = settle!(self.step(id, |tree, _| edges(tree, work)));
            (work.behind, work.visible) = (Some(hidden), visible);
            work.next = work.offset / SIZE;
        }
        let mut behind = work.behind.take().unwrap_or_default();
        let progress = self.run_behind(id, task, number, &mut behind);
        work.behind = Some(behind);
        match progress {
            Progress::Yields if task.out > 0 => return Progress::Waits,
            Progress::Yields => {}
            progress => return progress,
        }
        let fetch = settle!(self.step(id, |tree, traffic| fetches(tree, traffic, work, task)));
        for block in fetch {
            self.fetch(id, task, Run { block, count: 1 }, Buffer::zeroed(BLOCK_SIZE));
        }
        if task.out > 0 {
            return Progress::Waits;
        }
        self.make_room();
        let now = task.now;
        let advance = settle!(self.step(id, |tree, traffic| advance(tree, traffic, work, now)));
        self.note_change();
        // Before the set that refers to them: the set cannot be submitted in between.
        for run in advance.fresh {
            self.push_zeros(run);
        }
        for (old, run, edge) in advance.moved {
            let held = task.old.iter().position(|(block, _)| *block == old);
            let (_, mut buffer) = task.old.swap_remove(held.expect("it was fetched"));
            buffer[edge.from..edge.to].fill(0);
            self.store(id, task, &[run], buffer);
        }
        assert!(advance.next >= work.next, "a step does not go back");
        work.visible.clear();
        (work.is_punched, work.next) = (advance.is_punched, advance.next);
        work.is_done |= advance.is_done;
        match (work.is_done, task.out) {
            (false, 0) => Progress::Yields,
            (true, 0) => Progress::Ends(Ok(Reply::Done)),
            _ => Progress::Waits,
        }
    }
}

/// Host blocks whose content is needed and not there.
fn fetches(tree: &mut Tree, traffic: &Traffic, work: &Allocate, task: &Task) -> Step<Vec<u64>> {
    let mut needed = Vec::new();
    for edge in &work.visible {
        let Some(block) = tree.mapped(work.inode, edge.block)? else { continue };
        if task.old.iter().any(|(other, _)| *other == block) {
            continue;
        }
        if traffic.is_written(Run { block, count: 1 }) {
            return Err(Stop::Conflict);
        }
        needed.push(block);
    }
    Ok(needed)
}

/// As much as one step may: all of it, unless it is long.
fn advance(tree: &mut Tree, traffic: &Traffic, work: &Allocate, now: Time) -> Step<Advance> {
    let number = work.inode;
    let stop = work.offset + work.length;
    let punches = !matches!(work.mode, AllocateMode::Allocate { .. });
    tree.may_use_reserve = matches!(work.mode, AllocateMode::Punch);
    let mut advance = Advance {
        moved: Vec::new(),
        fresh: Vec::new(),
        is_punched: true,
        next: work.next,
        is_done: false,
    };
    if punches && !work.is_punched {
        for edge in &work.visible {
            let Some(old) = tree.mapped(number, edge.block)? else { continue };
            // To another place, so that all of it is there after a crash or none.
            tree.unmap(number, edge.block, edge.block + 1, 1)?;
            let run = tree.map_new(number, edge.block, 1)?;
            if traffic.is_read(run) {
                return Err(Stop::Conflict);
            }
            advance.moved.push((old, run, *edge));
        }
        let (first, end) = (work.offset.div_ceil(SIZE), stop / SIZE);
        if first < end {
            let (freed, is_done) = tree.unmap(number, first, end, RUNS_MAX)?;
            advance.is_punched = is_done;
            touch(tree, number, now, |inode| inode.blocks = inode.blocks.saturating_sub(freed))?;
        }
    }
    if !advance.is_punched {
        return Ok(advance);
    }
    let keep_size = match work.mode {
        AllocateMode::Punch => true,
        AllocateMode::Allocate { keep_size } | AllocateMode::Zero { keep_size } => {
            let end = stop.div_ceil(SIZE);
            tree.keep_before(number, end)?;
            let (fresh, next) = take(tree, traffic, number, work.next, end, now)?;
            (advance.fresh, advance.next) = (fresh, next);
            if next < end {
                return Ok(advance);
            }
            keep_size
        }
    };
    let size = if keep_size { 0 } else { stop };
    touch(tree, number, now, |inode| inode.size = inode.size.max(size))?;
    advance.is_done = true;
    Ok(advance)
}

/// Parts of blocks that become zero: where nobody sees it, and where it is what was asked for.
fn edges(tree: &mut Tree, work: &Allocate) -> Step<(Behind, Vec<Edge>)> {
    let inode: Inode = tree.inode(work.inode)?;
    match inode.mode & libc::S_IFMT {
        libc::S_IFREG => {}
        libc::S_IFDIR => return fail(libc::EISDIR),
        _ => return fail(libc::ENODEV),
    }
    if work.length == 0 {
        return fail(libc::EINVAL);
    }
    let end = work.offset.saturating_add(work.length);
    if end > FILE_SIZE_MAX {
        return fail(libc::EFBIG);
    }
    let grows = match work.mode {
        AllocateMode::Punch => false,
        AllocateMode::Allocate { keep_size } | AllocateMode::Zero { keep_size } => {
            !keep_size && end > inode.size
        }
    };
    if !matches!(work.mode, AllocateMode::Punch) {
        let needed = end.div_ceil(SIZE) - work.offset / SIZE;
        if needed > tree.superblock.block_count {
            return fail(libc::ENOSPC);
        }
    }
    let visible = match work.mode {
        AllocateMode::Allocate { .. } => Vec::new(),
        _ => ends(work.offset, end),
    };
    let hidden = match grows {
        true => behind(tree, work.inode, inode.size, end.div_ceil(SIZE))?,
        false => Behind::default(),
    };
    Ok((hidden, visible))
}

fn touch(tree: &mut Tree, number: u64, now: Time, change: impl FnOnce(&mut Inode)) -> Step<()> {
    let mut inode = tree.inode(number)?;
    change(&mut inode);
    (inode.modified, inode.changed) = (now, now);
    clear_privileges(&mut inode);
    tree.set_inode(number, &inode)?;
    tree.drop_capability(number, now)?;
    Ok(())
}

/// Takes blocks for the holes from block `at` on: the new runs, and where it goes on.
fn take(
    tree: &mut Tree,
    traffic: &Traffic,
    number: u64,
    at: u64,
    end: u64,
    now: Time,
) -> Step<(Vec<Run>, u64)> {
    let mut segments = Vec::new();
    let window = (end - at).min(WINDOW);
    tree.segments(number, at, window, &mut segments)?;
    let (mut runs, mut next) = (Vec::new(), at);
    'segments: for segment in segments {
        let stop = segment.first + segment.count;
        next = segment.first;
        if segment.block.is_some() {
            next = stop;
            continue;
        }
        while next < stop {
            if runs.len() >= NEW_RUNS_MAX {
                break 'segments;
            }
            let run = tree.map_new(number, next, stop - next)?;
            if traffic.is_read(run) {
                return Err(Stop::Conflict);
            }
            next += run.count;
            runs.push(run);
        }
    }
    let blocks: u64 = runs.iter().map(|run| run.count).sum();
    touch(tree, number, now, |inode| inode.blocks += blocks)?;
    Ok((runs, next))
}
