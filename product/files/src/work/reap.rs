//! What nobody needs goes: inodes without names, and blocks behind the end of a file.

use crate::items::{BLOCKS_END, RUNS_MAX};
use crate::parts::Parts;
use crate::request::Reply;
use crate::stop::{Step, settle};
use crate::task::Progress;
use crate::tree::Tree;

/// Orphans that are looked up at a time.
const ORPHANS_MAX: usize = 64;

impl Parts {
    pub(crate) fn run_reap(&mut self, id: usize, inode: u64) -> Progress {
        if !self.locks.lock(id, inode) {
            return Progress::Waits;
        }
        self.make_room();
        let is_gone = settle!(self.step(id, |tree, _| {
            tree.may_use_reserve = true;
            if tree.orphan(inode)?.is_none() {
                return Ok(true);
            }
            if tree.inode(inode)?.links > 0 { tree.cut_orphan(inode) } else { tree.erase(inode) }
        }));
        self.note_change();
        if is_gone {
            self.counters.reaped += 1;
            Progress::Ends(Ok(Reply::Done))
        } else {
            Progress::Yields
        }
    }

    /// After opening: all orphans that there are, for nobody knows any node yet.
    pub(crate) fn run_find_orphans(&mut self, id: usize) -> Progress {
        let mut from = 0;
        loop {
            let found = settle!(self.step(id, |tree, _| tree.orphans(from, ORPHANS_MAX)));
            for inode in &found {
                self.reap(*inode);
            }
            match found.last() {
                Some(last) if found.len() == ORPHANS_MAX => from = last + 1,
                _ => return Progress::Ends(Ok(Reply::Done)),
            }
        }
    }
}

impl Tree {
    /// A part of the blocks that an inode with a name has too much goes; whether all of them went.
    fn cut_orphan(&mut self, inode: u64) -> Step<bool> {
        match self.orphan(inode)? {
            Some(from) => self.cut(inode, from),
            None => Ok(true),
        }
    }

    /// A file with a name gets something before block `end`. A truncation that was broken off may
    /// have left blocks there that are to be taken away: they are the file's own again, else the
    /// next opening would take what is written there now.
    pub(crate) fn keep_before(&mut self, inode: u64, end: u64) -> Step<()> {
        match self.orphan(inode)? {
            Some(from) if from < end && self.inode(inode)?.links > 0 => self.remove_orphan(inode),
            _ => Ok(()),
        }
    }

    /// A part of an inode's blocks from `from` on goes; whether all of them went.
    pub(crate) fn cut(&mut self, inode: u64, from: u64) -> Step<bool> {
        self.may_use_reserve = true;
        let (freed, is_done) = self.unmap(inode, from, BLOCKS_END, RUNS_MAX)?;
        let mut attributes = self.inode(inode)?;
        attributes.blocks = attributes.blocks.saturating_sub(freed);
        self.set_inode(inode, &attributes)?;
        // Without a name it stays an orphan, as a whole.
        if is_done && attributes.links > 0 {
            self.remove_orphan(inode)?;
        }
        Ok(is_done)
    }
}
