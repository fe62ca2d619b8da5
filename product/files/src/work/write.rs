//! Writing: data into blocks that the file has, or into new ones.
//!
//! New blocks are submitted at once, for nothing refers to them before the next set. What is
//! overwritten in place goes behind the changes that came before it. The step that changes the tree
//! and the commands with the data are one: no set can come between them.

use super::edges::behind;
use crate::canary::{Canary, sings};
use crate::io::WRITE_BLOCKS_MAX;
use crate::items::Segment;
use crate::namespace::tree::clear_privileges;
use crate::parts::Parts;
use crate::request::Reply;
use crate::space::Run;
use crate::stop::{Step, Stop, fail, settle};
use crate::task::{Behind, Progress, Task, Write};
use crate::traffic::Traffic;
use crate::tree::Tree;
use coulter::buffer::Buffer;
use coulter_format::files::{FILE_SIZE_MAX, Inode, Time};
use coulter_format::{BLOCK_SIZE, Block};

const SIZE: u64 = BLOCK_SIZE as u64;
/// Runs of new blocks that one step takes at most.
const NEW_RUNS_MAX: usize = 24;
/// Runs of blocks that one step writes at most.
const RUNS_MAX: usize = 190;

/// What one step writes: bytes of the file from `start` to `end`, in blocks from `first` to `last`.
#[derive(Clone, Copy)]
struct Part {
    start: u64,
    end: u64,
    first: u64,
    last: u64,
}

/// What has to happen before.
struct Plan {
    /// Partial blocks whose other bytes are needed: number in the file, host block.
    fetch: Vec<(u64, u64)>,
    /// The same, whose bytes are at hand: host block, and what will be there.
    gathered: Vec<(u64, Box<Block>)>,
    /// What becomes zero, for the file grows behind it.
    behind: Behind,
    /// Whether it changes bytes that a reader sees now.
    overwrites: bool,
    /// It does, and has new blocks or a new size too: then what it changes goes to other places,
    /// and all of it is there after a crash or none.
    is_mixed: bool,
    size: u64,
}

impl Write {
    fn part(&self) -> Part {
        let start = self.offset + self.done as u64;
        let first = start / SIZE;
        let limit = (first + WRITE_BLOCKS_MAX as u64) * SIZE;
        let end = (self.offset + self.length as u64).min(limit);
        Part { start, end, first, last: (end - 1) / SIZE }
    }
}

impl Parts {
    pub(crate) fn run_write(&mut self, id: usize, task: &mut Task, write: &mut Write) -> Progress {
        if write.length == 0 {
            return Progress::Ends(Ok(Reply::Written(0, std::mem::take(&mut write.payload))));
        }
        if write.offset.saturating_add(write.length as u64) > FILE_SIZE_MAX {
            return Progress::Ends(Err(libc::EFBIG));
        }
        while write.done < write.length {
            if let Some(errno) = task.failed {
                return Progress::Ends(Err(errno));
            }
            if self.locks.must_wait(id, write.inode) {
                return Progress::Waits;
            }
            match self.write_part(id, task, write) {
                Progress::Yields => {}
                progress => return progress,
            }
        }
        if task.out > 0 {
            return Progress::Waits;
        }
        match task.failed {
            Some(errno) => Progress::Ends(Err(errno)),
            None => {
                let payload = std::mem::take(&mut write.payload);
                Progress::Ends(Ok(Reply::Written(write.length as u32, payload)))
            }
        }
    }

    fn write_part(&mut self, id: usize, task: &mut Task, write: &mut Write) -> Progress {
        let (inode, part) = (write.inode, write.part());
        let plan = settle!(self.step(id, |tree, traffic| plan(tree, traffic, inode, part, task)));
        let needs_lock = !(plan.fetch.is_empty() && plan.gathered.is_empty());
        let mut behind = write.behind.take().unwrap_or_else(|| plan.behind.clone());
        if !behind.is_empty() || needs_lock {
            if !self.locks.lock(id, inode) {
                return Progress::Waits;
            }
            // Nobody changes the file's blocks from here on.
            for (block, data) in &plan.gathered {
                task.old.push((*block, Buffer::copied_from(&data[..])));
            }
            let progress = self.run_behind(id, task, inode, &mut behind);
            write.behind = Some(behind);
            match progress {
                Progress::Yields if task.out > 0 => return Progress::Waits,
                Progress::Yields => {}
                progress => return progress,
            }
            for (_, block) in &plan.fetch {
                let buffer = Buffer::zeroed(BLOCK_SIZE);
                self.fetch(id, task, Run { block: *block, count: 1 }, buffer);
            }
            if task.out > 0 {
                return Progress::Waits;
            }
        }
        write.behind = Some(Behind::default());
        if plan.overwrites && !plan.is_mixed {
            self.submit_before_overwrite();
        }
        self.submit_shrinking();
        self.make_room();
        let (now, kills) = (task.now, write.kills_privileges);
        let changed = settle!(self.step(id, |tree, traffic| {
            apply(tree, traffic, inode, part, plan.is_mixed, kills, now)
        }));
        if changed.is_ordered {
            self.note_change();
        }
        let buffer = data(task, write, part, &plan, &changed);
        if let Some(buffer) = self.store(id, task, &changed.runs, buffer)
            && write.payload.is_empty()
        {
            write.payload = buffer;
        }
        if sings(Canary::SizeOutsideSet) {
            self.split_size(id, inode, plan.size, changed.end);
        }
        assert!(changed.end > part.start && changed.end <= part.end, "each step writes something");
        write.done += (changed.end - part.start) as usize;
        assert!(write.done <= write.length, "no more is written than was asked for");
        self.unlock(id);
        Progress::Yields
    }
}

impl Parts {
    /// The mistake of its name: the blocks first, and the size with the next set.
    fn split_size(&mut self, id: usize, number: u64, before: u64, after: u64) {
        for size in [before, before.max(after)] {
            let _ = self.step(id, |tree, _| {
                let inode = tree.inode(number)?;
                tree.set_inode(number, &Inode { size, ..inode })
            });
            if size == before {
                self.submit_set(false);
            }
        }
    }
}

fn plan(tree: &mut Tree, traffic: &Traffic, number: u64, part: Part, task: &Task) -> Step<Plan> {
    let inode: Inode = tree.inode(number)?;
    match inode.mode & libc::S_IFMT {
        libc::S_IFREG => {}
        libc::S_IFDIR => return fail(libc::EISDIR),
        _ => return fail(libc::EINVAL),
    }
    let size = inode.size;
    let (mut fetch, mut gathered) = (Vec::new(), Vec::new());
    for block in [part.first, part.last] {
        let (begin, stop) = (block * SIZE, (block + 1) * SIZE);
        let needs_front = part.start > begin && size > begin;
        let needs_back = part.end < stop && size > part.end;
        if !(needs_front || needs_back) || fetch.iter().any(|(other, _)| *other == block) {
            continue;
        }
        let Some(host) = tree.mapped(number, block)? else { continue };
        if task.old.iter().any(|(other, _)| *other == host) {
            continue;
        }
        if let Some(data) = traffic.gathered.block(host) {
            if gathered.iter().all(|(other, _)| *other != host) {
                gathered.push((host, Box::new(*data)));
            }
            continue;
        }
        if traffic.is_written(Run { block: host, count: 1 }) {
            return Err(Stop::Conflict);
        }
        fetch.push((block, host));
    }
    let grows_behind = part.start > size && size / SIZE < part.first;
    let behind = match grows_behind {
        true => behind(tree, number, size, part.first)?,
        false => Behind::default(),
    };
    let mut segments = Vec::new();
    tree.segments(number, part.first, part.last + 1 - part.first, &mut segments)?;
    let overwrites = part.start < size && segments.iter().any(|segment| segment.block.is_some());
    let has_holes = segments.iter().any(|segment| segment.block.is_none());
    let is_mixed = overwrites && (has_holes || part.end > size);
    Ok(Plan { fetch, gathered, behind, overwrites, is_mixed, size })
}

/// What a step did to the tree, and where the data goes.
struct Changed {
    runs: Vec<Run>,
    /// Bytes up to here are part of it.
    end: u64,
    /// More than times changed.
    is_ordered: bool,
    /// Host blocks of the part's first and last block, as they were before.
    ends: (Option<u64>, Option<u64>),
}

fn apply(
    tree: &mut Tree,
    traffic: &Traffic,
    number: u64,
    part: Part,
    is_mixed: bool,
    kills_privileges: bool,
    now: Time,
) -> Step<Changed> {
    let mut segments: Vec<Segment> = Vec::new();
    tree.segments(number, part.first, part.last + 1 - part.first, &mut segments)?;
    let (mut runs, mut new_runs, mut new_blocks) = (Vec::<Run>::new(), 0, 0);
    let (mut moved_blocks, mut ends) = (0, (None, None));
    let mut at = part.first;
    'segments: for segment in segments {
        let mut first = segment.first;
        let stop = segment.first + segment.count;
        while first < stop {
            if new_runs >= NEW_RUNS_MAX || runs.len() >= RUNS_MAX {
                break 'segments;
            }
            let block = segment.block.map(|block| block + (first - segment.first));
            if first == part.first {
                ends.0 = block;
            }
            if stop == part.last + 1 {
                ends.1 = block.map(|block| block + (stop - 1 - first));
            }
            let run = match block {
                Some(block) if !is_mixed => Run { block, count: stop - first },
                _ => {
                    let run = tree.take_blocks(number, first, stop - first)?;
                    if block.is_some() {
                        let (freed, _) = tree.unmap(number, first, first + run.count, 1)?;
                        moved_blocks += freed;
                    }
                    tree.add_extent(number, first, run)?;
                    if traffic.is_read(run) {
                        return Err(Stop::Conflict);
                    }
                    new_runs += 1;
                    new_blocks += run.count;
                    run
                }
            };
            first += run.count;
            at = first;
            match runs.last_mut() {
                Some(last) if last.end() == run.block => last.count += run.count,
                _ => runs.push(run),
            }
        }
    }
    let end = part.end.min(at * SIZE);
    let mut inode = tree.inode(number)?;
    let before = inode;
    if end > before.size {
        tree.keep_before(number, part.last + 1)?;
    }
    inode.blocks = inode.blocks + new_blocks - moved_blocks;
    inode.size = inode.size.max(end);
    (inode.modified, inode.changed) = (now, now);
    if kills_privileges {
        clear_privileges(&mut inode);
    }
    tree.set_inode(number, &inode)?;
    let had_rights = tree.drop_capability(number, now)? || inode.mode != before.mode;
    let is_ordered = new_blocks > 0 || inode.size != before.size || had_rights;
    Ok(Changed { runs, end, is_ordered, ends })
}

/// Whole blocks with the bytes that are written, and around them what was there before.
fn data(task: &mut Task, write: &mut Write, part: Part, plan: &Plan, changed: &Changed) -> Buffer {
    let blocks: u64 = changed.runs.iter().map(|run| run.count).sum();
    let length = blocks as usize * BLOCK_SIZE;
    let is_whole = part.start == part.first * SIZE && write.done == 0;
    if is_whole && write.length == length && task.old.is_empty() {
        return std::mem::take(&mut write.payload);
    }
    let mut buffer = Buffer::zeroed(length);
    for (host, at) in [(changed.ends.0, part.first), (changed.ends.1, part.first + blocks - 1)] {
        let Some(old) = task.old.iter().position(|(other, _)| Some(*other) == host) else {
            continue;
        };
        let (_, old) = task.old.swap_remove(old);
        // What lies behind the end of the file is nobody's, and becomes zero.
        let valid = plan.size.saturating_sub(at * SIZE).min(SIZE) as usize;
        let start = (at - part.first) as usize * BLOCK_SIZE;
        buffer[start..start + valid].copy_from_slice(&old[..valid]);
    }
    task.old.clear();
    let bytes = (changed.end - part.start) as usize;
    let start = (part.start - part.first * SIZE) as usize;
    let payload = &write.payload[write.done..write.done + bytes];
    buffer[start..start + bytes].copy_from_slice(payload);
    buffer
}
