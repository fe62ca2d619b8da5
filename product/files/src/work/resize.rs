//! A file gets another size, and other attributes with it.
//!
//! The new size is there at once. When more blocks are behind it than one step takes away, the
//! inode becomes an orphan of them, and nobody changes its blocks until they are gone.

use super::edges::behind;
use crate::items::{BLOCKS_END, RUNS_MAX};
use crate::namespace::Namespace;
use crate::namespace::tree::clear_privileges;
use crate::parts::Parts;
use crate::request::Reply;
use crate::stop::{Step, fail, settle};
use crate::task::{Behind, Progress, Resize, Task};
use crate::tree::Tree;
use coulter_format::BLOCK_SIZE;
use coulter_format::files::{FILE_SIZE_MAX, Inode, Time};

const SIZE: u64 = BLOCK_SIZE as u64;

impl Parts {
    pub(crate) fn run_resize(
        &mut self,
        id: usize,
        task: &mut Task,
        resize: &mut Resize,
    ) -> Progress {
        let (number, size, now) = (resize.inode, resize.size, task.now);
        if !self.locks.lock(id, number) {
            return Progress::Waits;
        }
        if let Some(errno) = task.failed {
            return Progress::Ends(Err(errno));
        }
        if resize.drains {
            return self.drain(id, number, size.div_ceil(SIZE));
        }
        if resize.behind.is_none() {
            resize.behind = Some(settle!(self.step(id, |tree, _| grows_over(tree, number, size))));
        }
        let mut behind = resize.behind.take().unwrap_or_default();
        let progress = self.run_behind(id, task, number, &mut behind);
        resize.behind = Some(behind);
        match progress {
            Progress::Yields if task.out > 0 => return Progress::Waits,
            Progress::Yields => {}
            progress => return progress,
        }
        self.make_room();
        let is_done = settle!(self.step(id, |tree, _| { apply(tree, number, size, resize, now) }));
        self.note_change();
        self.sets.note_shrink();
        if !is_done {
            resize.drains = true;
            return Progress::Yields;
        }
        let found = settle!(self.step(id, |tree, _| tree.attributes(number)));
        Progress::Ends(Ok(Reply::Attributes(found)))
    }

    /// Takes away what is behind the end, and answers when nothing is.
    fn drain(&mut self, id: usize, number: u64, from: u64) -> Progress {
        self.make_room();
        let is_done = settle!(self.step(id, |tree, _| tree.cut(number, from)));
        self.note_change();
        if !is_done {
            return Progress::Yields;
        }
        let found = settle!(self.step(id, |tree, _| tree.attributes(number)));
        Progress::Ends(Ok(Reply::Attributes(found)))
    }
}

fn grows_over(tree: &mut Tree, number: u64, size: u64) -> Step<Behind> {
    let inode: Inode = tree.inode(number)?;
    match inode.mode & libc::S_IFMT {
        libc::S_IFREG => {}
        libc::S_IFDIR => return fail(libc::EISDIR),
        _ => return fail(libc::EINVAL),
    }
    if size > FILE_SIZE_MAX {
        return fail(libc::EFBIG);
    }
    if size <= inode.size {
        return Ok(Behind::default());
    }
    behind(tree, number, inode.size, size.div_ceil(SIZE))
}

fn apply(tree: &mut Tree, number: u64, size: u64, resize: &Resize, now: Time) -> Step<bool> {
    tree.may_use_reserve = size == 0 || size < tree.inode(number)?.size;
    tree.change(number, &resize.changes, now)?;
    tree.drop_capability(number, now)?;
    let mut inode = tree.inode(number)?;
    if resize.changes.modified.is_none() {
        inode.modified = now;
    }
    if resize.changes.kills_privileges {
        clear_privileges(&mut inode);
    }
    let is_shorter = size < inode.size;
    if size > inode.size {
        tree.keep_before(number, size.div_ceil(SIZE))?;
    }
    inode.size = size;
    let mut is_done = true;
    if is_shorter {
        let from = size.div_ceil(SIZE);
        let (freed, done) = tree.unmap(number, from, BLOCKS_END, RUNS_MAX)?;
        inode.blocks = inode.blocks.saturating_sub(freed);
        is_done = done;
        if !is_done {
            tree.add_orphan(number, from)?;
        }
    }
    tree.set_inode(number, &inode)?;
    Ok(is_done)
}
