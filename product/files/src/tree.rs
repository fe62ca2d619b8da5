//! The tree: a sorted map from keys to items, in nodes of one block that keep their addresses.
//!
//! A node is changed where it is: the volume below writes it elsewhere, and all nodes of a set at
//! once. So no parent changes for its child's sake, and there is no journal.
//!
//! # Invariants
//! - The first entry of every node has the key of the node's own entry in its parent; the root's is
//!   the least key. So each key has one node where it belongs.
//! - No node but the root is empty.
//! - Each function is part of a step: it either does all it says, or the step is undone.

use crate::cache::Cache;
use crate::space::{Purpose, Run, Space};
use crate::stop::{Role, Step, fail};
use coulter_format::Block;
use coulter_format::files::node::{CHILDREN_MAX, LEAF_ROOM, LEVELS_MAX};
use coulter_format::files::{Key, Node, NodeMut, Superblock};
use std::ops::ControlFlow;

/// A leaf with less than this is put together with its neighbour, if that leaves room.
const MERGE_BELOW: usize = LEAF_ROOM / 4;
const MERGED_MAX: usize = LEAF_ROOM * 3 / 4;
/// Bytes of an entry of a leaf beside the item.
const ENTRY: usize = 20;

/// The way from the root to a leaf: nodes, and which child was taken.
struct Path {
    nodes: [(u64, usize); LEVELS_MAX as usize],
    /// Nodes above the leaf.
    depth: usize,
    leaf: u64,
}

/// The tree, the free space that its nodes come from, and the superblock.
pub(crate) struct Tree {
    pub(crate) cache: Cache,
    pub(crate) space: Space,
    pub(crate) superblock: Superblock,
    /// The superblock when the step began.
    before: Superblock,
    /// The step may take the last blocks, for it frees others.
    pub(crate) may_use_reserve: bool,
}

impl Tree {
    pub(crate) fn new(cache: Cache, superblock: Superblock) -> Tree {
        let space = Space::new(superblock.block_count);
        Tree { cache, space, superblock, before: superblock, may_use_reserve: false }
    }

    pub(crate) fn begin(&mut self) {
        self.cache.begin();
        self.before = self.superblock;
        self.may_use_reserve = false;
    }

    pub(crate) fn commit(&mut self) {
        let (before, after) = (&self.before, &self.superblock);
        assert_eq!(before.block_count, after.block_count, "a step keeps the size");
        assert_eq!(before.set_count, after.set_count, "sets are counted between steps");
        self.cache.commit();
        self.space.commit();
    }

    pub(crate) fn roll_back(&mut self) {
        self.cache.roll_back();
        self.space.roll_back();
        self.superblock = self.before;
    }

    fn node(&mut self, block: u64) -> Step<Node<'_>> {
        self.cache.read(block, Role::Node).map(Node)
    }

    fn node_mut(&mut self, block: u64) -> Step<NodeMut<'_>> {
        self.cache.change(block, Role::Node).map(NodeMut)
    }

    /// The leaf where the key belongs. `bound` is the first key behind it.
    fn descend(&mut self, key: Key) -> Step<(Path, Option<Key>)> {
        let (mut block, level) = (self.superblock.root, self.superblock.root_level);
        let mut path = Path { nodes: [(0, 0); LEVELS_MAX as usize], depth: 0, leaf: 0 };
        let mut bound = None;
        for expected in (0..=level).rev() {
            let node = self.node(block)?;
            if node.level() != expected {
                return fail(libc::EIO);
            }
            if expected == 0 {
                break;
            }
            let index = node.child_for(key);
            if index + 1 < node.count() {
                bound = Some(node.key(index + 1));
            }
            let child = node.child(index);
            path.nodes[path.depth] = (block, index);
            path.depth += 1;
            block = child;
        }
        path.leaf = block;
        Ok((path, bound))
    }

    /// The item of a key.
    pub(crate) fn find(&mut self, key: Key) -> Step<Option<&[u8]>> {
        let (path, _) = self.descend(key)?;
        let node = self.node(path.leaf)?;
        Ok(node.search(key).ok().map(|index| node.item(index)))
    }

    /// Shows items from `from` on, in order, until told to stop.
    pub(crate) fn scan(
        &mut self,
        from: Key,
        mut each: impl FnMut(Key, &[u8]) -> ControlFlow<()>,
    ) -> Step<()> {
        let mut from = from;
        loop {
            let (path, bound) = self.descend(from)?;
            let node = self.node(path.leaf)?;
            let start = node.search(from).unwrap_or_else(|index| index);
            for index in start..node.count() {
                if each(node.key(index), node.item(index)).is_break() {
                    return Ok(());
                }
            }
            match bound {
                Some(bound) => from = bound,
                None => return Ok(()),
            }
        }
    }

    /// The last key up to and including this one, and its item.
    pub(crate) fn floor(&mut self, key: Key) -> Step<Option<(Key, &[u8])>> {
        let (path, _) = self.descend(key)?;
        let found = match self.node(path.leaf)?.search(key) {
            Ok(index) => Some((path.leaf, index)),
            Err(0) => self.last_before(&path)?,
            Err(index) => Some((path.leaf, index - 1)),
        };
        match found {
            Some((leaf, index)) => {
                let node = self.node(leaf)?;
                Ok(Some((node.key(index), node.item(index))))
            }
            None => Ok(None),
        }
    }

    /// The last item of the leaf before the path's.
    fn last_before(&mut self, path: &Path) -> Step<Option<(u64, usize)>> {
        let turn = path.nodes[..path.depth].iter().rposition(|(_, index)| *index > 0);
        let Some(turn) = turn else { return Ok(None) };
        let (block, index) = path.nodes[turn];
        let mut block = self.node(block)?.child(index - 1);
        for _ in turn + 1..path.depth {
            let node = self.node(block)?;
            block = node.child(node.count() - 1);
        }
        let count = self.node(block)?.count();
        if count == 0 { fail(libc::EIO) } else { Ok(Some((block, count - 1))) }
    }

    /// Puts an item in, or in place of the one that has its key.
    pub(crate) fn put(&mut self, key: Key, item: &[u8]) -> Step<()> {
        let (path, _) = self.descend(key)?;
        let node = self.node(path.leaf)?;
        let index = match node.search(key) {
            Ok(index) if node.item(index).len() == item.len() => {
                self.node_mut(path.leaf)?.set_item(index, item);
                return Ok(());
            }
            Ok(index) => {
                self.node_mut(path.leaf)?.remove_item(index);
                index
            }
            Err(index) => index,
        };
        if self.node(path.leaf)?.fits(item.len()) {
            self.node_mut(path.leaf)?.insert_item(index, key, item);
            return Ok(());
        }
        self.split_leaf(&path, index, key, item)
    }

    fn new_node(&mut self, near: u64, level: u8) -> Step<u64> {
        let Tree { cache, space, superblock, .. } = self;
        // Not at the goal if that is taken; nodes lie together all the same.
        let run = space.allocate(
            cache,
            superblock,
            Purpose::Node,
            Some(near + 1),
            1,
            self.may_use_reserve,
        )?;
        NodeMut(self.cache.add(run.block)).clear(run.block, level);
        Ok(run.block)
    }

    fn free_node(&mut self, block: u64) -> Step<()> {
        self.cache.release(block);
        self.space.free(&mut self.cache, &mut self.superblock, Run { block, count: 1 })
    }

    fn split_leaf(&mut self, path: &Path, index: usize, key: Key, item: &[u8]) -> Step<()> {
        let (from, right_gets_it) = split_point(self.node(path.leaf)?, index, item.len());
        assert!(from <= self.node(path.leaf)?.count(), "a leaf is cut within what it has");
        let right = self.new_node(path.leaf, 0)?;
        self.move_tail(path.leaf, from, right)?;
        if right_gets_it {
            self.node_mut(right)?.insert_item(index - from, key, item);
        } else {
            self.node_mut(path.leaf)?.insert_item(index, key, item);
        }
        let first = self.node(right)?.key(0);
        self.insert_child(path, first, right)
    }

    fn move_tail(&mut self, left: u64, from: usize, right: u64) -> Step<()> {
        let mut copy: Block = *self.cache.read(right, Role::Node)?;
        self.node_mut(left)?.move_tail(from, &mut NodeMut(&mut copy));
        *self.cache.change(right, Role::Node)? = copy;
        Ok(())
    }

    /// Makes a new node known above: the path's nodes from the lowest up, as far as they are full.
    fn insert_child(&mut self, path: &Path, key: Key, child: u64) -> Step<()> {
        let (mut key, mut child) = (key, child);
        for depth in (0..path.depth).rev() {
            let (block, taken) = path.nodes[depth];
            let (node, index) = (self.node(block)?, taken + 1);
            let (count, level) = (node.count(), node.level());
            if count < CHILDREN_MAX {
                self.node_mut(block)?.insert_child(index, key, child);
                return Ok(());
            }
            // What grows at its end stays full behind it.
            let from = if index == count { count - 1 } else { count / 2 };
            let right = self.new_node(block, level)?;
            self.move_tail(block, from, right)?;
            if index > from {
                self.node_mut(right)?.insert_child(index - from, key, child);
            } else {
                self.node_mut(block)?.insert_child(index, key, child);
            }
            key = self.node(right)?.key(0);
            child = right;
        }
        let (old, level) = (self.superblock.root, self.superblock.root_level + 1);
        if level >= LEVELS_MAX {
            return fail(libc::ENOSPC);
        }
        let root = self.new_node(old, level)?;
        let mut node = self.node_mut(root)?;
        node.insert_child(0, Key::MIN, old);
        node.insert_child(1, key, child);
        self.superblock.root = root;
        self.superblock.root_level = level;
        Ok(())
    }

    /// Takes an item away; whether it was there.
    pub(crate) fn remove(&mut self, key: Key) -> Step<bool> {
        let (path, _) = self.descend(key)?;
        let Ok(index) = self.node(path.leaf)?.search(key) else { return Ok(false) };
        self.node_mut(path.leaf)?.remove_item(index);
        let node = self.node(path.leaf)?;
        if node.count() == 0 {
            self.remove_child(&path, path.depth, path.leaf)?;
        } else if node.used() < MERGE_BELOW {
            self.merge(&path)?;
        }
        Ok(true)
    }

    /// Takes an empty node away, and those above that become empty by that.
    fn remove_child(&mut self, path: &Path, depth: usize, empty: u64) -> Step<()> {
        let mut empty = empty;
        for above in (0..depth).rev() {
            let (block, index) = path.nodes[above];
            self.free_node(empty)?;
            let node = self.node(block)?;
            let (count, key) = (node.count(), node.key(index));
            let mut node = self.node_mut(block)?;
            node.remove_child(index);
            if count > 1 {
                if index == 0 {
                    node.set_key(0, key);
                    let next = self.node(block)?.child(0);
                    self.lower_first_key(next, key)?;
                }
                return self.lower_root();
            }
            empty = block;
        }
        // Nothing is left: the root is a leaf again.
        NodeMut(self.cache.change(empty, Role::Node)?).clear(empty, 0);
        self.superblock.root = empty;
        self.superblock.root_level = 0;
        Ok(())
    }

    /// The first entries below `block` get the key that its own entry now has.
    fn lower_first_key(&mut self, block: u64, key: Key) -> Step<()> {
        let mut block = block;
        for _ in 0..LEVELS_MAX {
            let node = self.node(block)?;
            if node.level() == 0 {
                break;
            }
            let child = node.child(0);
            self.node_mut(block)?.set_key(0, key);
            block = child;
        }
        Ok(())
    }

    /// A root with a single child gives its place to that.
    fn lower_root(&mut self) -> Step<()> {
        for _ in 0..LEVELS_MAX {
            let root = self.superblock.root;
            let node = self.node(root)?;
            if node.level() == 0 || node.count() > 1 {
                break;
            }
            let child = node.child(0);
            self.free_node(root)?;
            self.superblock.root = child;
            self.superblock.root_level -= 1;
        }
        Ok(())
    }

    /// Puts the path's leaf together with a neighbour under the same parent, if both fit.
    fn merge(&mut self, path: &Path) -> Step<()> {
        let Some(depth) = path.depth.checked_sub(1) else { return Ok(()) };
        let (parent, index) = path.nodes[depth];
        let node = self.node(parent)?;
        if node.count() < 2 {
            return Ok(());
        }
        let left = if index + 1 < node.count() { index } else { index - 1 };
        let (left_block, right_block) = (node.child(left), node.child(left + 1));
        let together = self.node(left_block)?.used() + self.node(right_block)?.used();
        if together > MERGED_MAX {
            return Ok(());
        }
        let mut copy: Block = *self.cache.read(right_block, Role::Node)?;
        NodeMut(&mut copy).move_tail(0, &mut self.node_mut(left_block)?);
        self.free_node(right_block)?;
        self.node_mut(parent)?.remove_child(left + 1);
        self.lower_root()
    }
}

/// Where a full leaf is cut, and whether the new item goes to the right part.
fn split_point(node: Node<'_>, index: usize, size: usize) -> (usize, bool) {
    let count = node.count();
    if index == count {
        // What grows at its end stays full behind it.
        return (count, true);
    }
    let weight = |range: std::ops::Range<usize>| -> usize {
        range.map(|entry| node.item(entry).len() + ENTRY).sum()
    };
    let (total, new) = (weight(0..count), size + ENTRY);
    let mut best: Option<(usize, usize, bool)> = None;
    let mut left = 0;
    for from in 0..=count {
        for right_gets_it in [false, true] {
            let allowed = if right_gets_it { index >= from } else { index <= from };
            let with_new = left + if right_gets_it { 0 } else { new };
            let rest = total + new - with_new;
            let is_whole = with_new > 0 && rest > 0 && with_new.max(rest) <= LEAF_ROOM;
            let uneven = with_new.abs_diff(rest);
            if allowed && is_whole && best.is_none_or(|(least, ..)| uneven < least) {
                best = Some((uneven, from, right_gets_it));
            }
        }
        if from < count {
            left += weight(from..from + 1);
        }
    }
    let (_, from, right_gets_it) = best.expect("two halves hold what one leaf and an item are");
    (from, right_gets_it)
}
