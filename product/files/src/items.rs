//! Items of the tree as values: inodes, extents, orphans.

use crate::space::{Purpose, Run};
use crate::stop::{Step, Stop, fail};
use crate::tree::Tree;
use coulter_format::BLOCK_SIZE;
use coulter_format::files::item::{decode_orphan, encode_orphan};
use coulter_format::files::space::GROUP_BLOCKS;
use coulter_format::files::{Extent, FILE_SIZE_MAX, Inode, Key, Kind};
use std::ops::ControlFlow;

/// Blocks of a file one behind the other, which are one behind the other on the volume too, or
/// nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The first one's number in the file.
    pub(crate) first: u64,
    pub(crate) count: u64,
    /// The first one's host block; `None` for a hole.
    pub(crate) block: Option<u64>,
}

/// Behind every block of every file.
pub(crate) const BLOCKS_END: u64 = FILE_SIZE_MAX / BLOCK_SIZE as u64;
/// Runs of blocks that one step takes away.
pub(crate) const RUNS_MAX: usize = 12;
/// Blocks that one step takes away at most, about: each group that they lie in is one more block
/// changed.
const UNMAP_BLOCKS_MAX: u64 = 8 * GROUP_BLOCKS;
/// The most blocks that one extent counts.
const EXTENT_BLOCKS_MAX: u64 = 1 << 30;

impl Tree {
    /// The inode of this number.
    ///
    /// Fails with `ESTALE` when there is none.
    pub(crate) fn inode(&mut self, number: u64) -> Step<Inode> {
        match self.find(Key::new(number, Kind::Inode, 0))? {
            Some(item) => Ok(Inode::decode(item)?),
            None => fail(libc::ESTALE),
        }
    }

    pub(crate) fn set_inode(&mut self, number: u64, inode: &Inode) -> Step<()> {
        self.put(Key::new(number, Kind::Inode, 0), &inode.encode())
    }

    /// The extent that holds block `first` of the file, and where it begins.
    fn extent_at(&mut self, inode: u64, first: u64) -> Step<Option<(u64, Extent)>> {
        let Some((key, item)) = self.floor(Key::new(inode, Kind::Extent, first))? else {
            return Ok(None);
        };
        if !key.is(inode, Kind::Extent) {
            return Ok(None);
        }
        let extent = Extent::decode(item)?;
        let holds = first < key.position() + u64::from(extent.count);
        Ok(holds.then_some((key.position(), extent)))
    }

    /// Adds the segments of `count` blocks from `first` on to `out`.
    pub(crate) fn segments(
        &mut self,
        inode: u64,
        first: u64,
        count: u64,
        out: &mut Vec<Segment>,
    ) -> Step<()> {
        assert!(count > 0, "segments are of some blocks");
        let end = first + count;
        let start = self.extent_at(inode, first)?.map_or(first, |(start, _)| start);
        let (mut at, mut damaged) = (first, false);
        self.scan(Key::new(inode, Kind::Extent, start), |key, item| {
            if !key.is(inode, Kind::Extent) || key.position() >= end || at >= end {
                return ControlFlow::Break(());
            }
            let Ok(extent) = Extent::decode(item) else {
                damaged = true;
                return ControlFlow::Break(());
            };
            let (begin, stop) = (key.position(), key.position() + u64::from(extent.count));
            if begin > at {
                out.push(Segment { first: at, count: begin - at, block: None });
                at = begin;
            }
            if stop > at {
                let count = stop.min(end) - at;
                let block = Some(extent.block + (at - begin));
                out.push(Segment { first: at, count, block });
                at += count;
            }
            ControlFlow::Continue(())
        })?;
        if damaged {
            return fail(libc::EIO);
        }
        if at < end {
            out.push(Segment { first: at, count: end - at, block: None });
        }
        Ok(())
    }

    /// The first mapped block of a file at or behind `first`.
    pub(crate) fn next_mapped(&mut self, inode: u64, first: u64) -> Step<Option<u64>> {
        if self.extent_at(inode, first)?.is_some() {
            return Ok(Some(first));
        }
        let mut found = None;
        self.scan(Key::new(inode, Kind::Extent, first), |key, _| {
            found = key.is(inode, Kind::Extent).then(|| key.position());
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    /// The host block of one block of a file.
    pub(crate) fn mapped(&mut self, inode: u64, block: u64) -> Step<Option<u64>> {
        let found = self.extent_at(inode, block)?;
        Ok(found.map(|(start, extent)| extent.block + (block - start)))
    }

    /// Takes up to `want` host blocks for the file from block `first` on.
    pub(crate) fn take_blocks(&mut self, inode: u64, first: u64, want: u64) -> Step<Run> {
        let before = match first.checked_sub(1) {
            Some(last) => self.mapped(inode, last)?,
            None => None,
        };
        let goal = before.map(|block| block + 1);
        let Tree { cache, space, superblock, may_use_reserve, .. } = self;
        space.allocate(cache, superblock, Purpose::Data, goal, want, *may_use_reserve)
    }

    /// Gives blocks to a hole of the file from block `first` on.
    pub(crate) fn add_extent(&mut self, inode: u64, first: u64, run: Run) -> Step<()> {
        let before = match first.checked_sub(1) {
            Some(last) => self.extent_at(inode, last)?,
            None => None,
        };
        match before {
            Some((start, extent))
                if extent.block + (first - start) == run.block
                    && u64::from(extent.count) + run.count <= EXTENT_BLOCKS_MAX =>
            {
                let count = extent.count + run.count as u32;
                let longer = Extent { block: extent.block, count };
                self.put(Key::new(inode, Kind::Extent, start), &longer.encode())
            }
            _ => {
                let extent = Extent { block: run.block, count: run.count as u32 };
                self.put(Key::new(inode, Kind::Extent, first), &extent.encode())
            }
        }
    }

    /// Takes up to `want` host blocks for a hole of the file from block `first` on.
    pub(crate) fn map_new(&mut self, inode: u64, first: u64, want: u64) -> Step<Run> {
        let run = self.take_blocks(inode, first, want)?;
        self.add_extent(inode, first, run)?;
        Ok(run)
    }

    /// Unmaps blocks of a file from `first` up to `end`, at most `runs_max` runs of them. Returns
    /// how many blocks went, and whether it came to the end.
    pub(crate) fn unmap(
        &mut self,
        inode: u64,
        first: u64,
        end: u64,
        runs_max: usize,
    ) -> Step<(u64, bool)> {
        let mut freed = 0;
        for _ in 0..runs_max {
            if freed >= UNMAP_BLOCKS_MAX {
                break;
            }
            let Some(at) = self.next_mapped(inode, first)?.filter(|at| *at < end) else {
                return Ok((freed, true));
            };
            let Some((start, extent)) = self.extent_at(inode, at)? else {
                return fail(libc::EIO);
            };
            let stop = start + u64::from(extent.count);
            let from = at.max(first);
            let to = stop.min(end).min(from + UNMAP_BLOCKS_MAX);
            self.remove(Key::new(inode, Kind::Extent, start))?;
            if from > start {
                let head = Extent { block: extent.block, count: (from - start) as u32 };
                self.put(Key::new(inode, Kind::Extent, start), &head.encode())?;
            }
            if stop > to {
                let tail = Extent { block: extent.block + (to - start), count: (stop - to) as u32 };
                self.put(Key::new(inode, Kind::Extent, to), &tail.encode())?;
            }
            assert!(
                first <= from && from < to && to <= end,
                "no more is unmapped than was asked for"
            );
            let run = Run { block: extent.block + (from - start), count: to - from };
            let Tree { cache, space, superblock, .. } = self;
            space.free(cache, superblock, run)?;
            freed += run.count;
        }
        let is_done = self.next_mapped(inode, first)?.is_none_or(|at| at >= end);
        Ok((freed, is_done))
    }

    /// Remembers that the inode has something to be taken away: all of it when it has no names,
    /// else its blocks from this one on.
    pub(crate) fn add_orphan(&mut self, inode: u64, from_block: u64) -> Step<()> {
        self.put(Key::new(0, Kind::Orphan, inode), &encode_orphan(from_block))
    }

    pub(crate) fn orphan(&mut self, inode: u64) -> Step<Option<u64>> {
        match self.find(Key::new(0, Kind::Orphan, inode))? {
            Some(item) => Ok(Some(decode_orphan(item)?)),
            None => Ok(None),
        }
    }

    pub(crate) fn remove_orphan(&mut self, inode: u64) -> Step<()> {
        self.remove(Key::new(0, Kind::Orphan, inode)).map(|_| ())
    }

    /// Numbers of orphans from `from` on, at most `count_max`.
    pub(crate) fn orphans(&mut self, from: u64, count_max: usize) -> Step<Vec<u64>> {
        let mut found = Vec::new();
        self.scan(Key::new(0, Kind::Orphan, from), |key, _| {
            if key.object() != 0 || found.len() >= count_max {
                return ControlFlow::Break(());
            }
            found.push(key.position());
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    /// Takes away what an inode without names still has, a bounded part of it; whether all of it
    /// went.
    pub(crate) fn erase(&mut self, inode: u64) -> Step<bool> {
        let (freed, is_unmapped) = self.unmap(inode, 0, BLOCKS_END, RUNS_MAX)?;
        if freed > 0 {
            let mut attributes = self.inode(inode)?;
            attributes.blocks = attributes.blocks.saturating_sub(freed);
            self.set_inode(inode, &attributes)?;
        }
        if !is_unmapped {
            return Ok(false);
        }
        for _ in 0..24 {
            let mut found = None;
            self.scan(Key::new(inode, Kind::Name, 0), |key, _| {
                found = (key.object() == inode).then_some(key);
                ControlFlow::Break(())
            })?;
            match found {
                Some(key) if key.kind() == Some(Kind::Extent) => return fail(libc::EIO),
                Some(key) => self.remove(key)?,
                None => {
                    self.remove(Key::new(inode, Kind::Inode, 0))?;
                    self.remove_orphan(inode)?;
                    self.superblock.inode_count =
                        self.superblock.inode_count.checked_sub(1).ok_or(Stop::Errno(libc::EIO))?;
                    return Ok(true);
                }
            };
        }
        Ok(false)
    }
}
