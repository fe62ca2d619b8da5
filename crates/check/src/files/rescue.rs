//! What can be taken out of a file system whose tree is damaged.
//!
//! All nodes that the tree leads to are taken. If one of them is damaged, each block that is in use is looked
//! at, for leaves that only it led to: a node knows its own place, so that a copy elsewhere is not taken for
//! one. An item that the tree has is not replaced by one that is found so.

use coulter_format::Block;
use coulter_format::files::item::XattrHead;
use coulter_format::files::key::PART_BITS;
use coulter_format::files::node::{self, LEVELS_MAX};
use coulter_format::files::{Extent, Inode, Key, Kind, NameEntry, Node, Superblock, space};
use std::collections::{BTreeMap, BTreeSet};

/// What is known of one inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rescued {
    /// Its attributes, unless they are lost.
    pub inode: Option<Inode>,
    /// Where its blocks are: the first one's number in the file, and the run.
    pub extents: Vec<(u64, Extent)>,
    /// Where it points, if it is a symbolic link.
    pub target: Vec<u8>,
    /// Extended attributes that are whole: names and values.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The directory that it is in.
    pub directory: u64,
    /// The name: no slash, no zero, neither `.` nor `..`.
    pub name: Vec<u8>,
    /// What it stands for.
    pub inode: u64,
    /// What kind of thing that is, as `d_type`.
    pub kind: u8,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rescue {
    /// By number.
    pub inodes: BTreeMap<u64, Rescued>,
    /// In the order of directories.
    pub names: Vec<Named>,
    /// Blocks of the tree that are damaged or cannot be read.
    pub damaged: Vec<u64>,
    /// Leaves that were found by looking at each block.
    pub found_leaves: u64,
}

/// Extracts all files from a volume with this number of blocks.
pub fn rescue<E>(read: &mut dyn FnMut(u64) -> Result<Block, E>, volume_blocks: u64) -> Rescue {
    let mut rescue = Rescue::default();
    let superblock = read(0).ok().and_then(|block| Superblock::decode(&block).ok());
    let mut items = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let block_count =
        superblock.map_or(volume_blocks, |found| found.block_count.min(volume_blocks));
    match superblock {
        Some(superblock) => walk(read, &superblock, &mut seen, &mut items, &mut rescue.damaged),
        None => rescue.damaged.push(0),
    }
    if !rescue.damaged.is_empty() {
        rescue.found_leaves = scan(read, block_count, &seen, &mut items);
    }
    for (key, item) in &items {
        rescue.add(*key, item, block_count);
    }
    rescue
}

type Items = BTreeMap<Key, Vec<u8>>;

fn take_leaf(node: Node<'_>, items: &mut Items) {
    for index in 0..node.count() {
        items.entry(node.key(index)).or_insert_with(|| node.item(index).to_vec());
    }
}

fn walk<E>(
    read: &mut dyn FnMut(u64) -> Result<Block, E>,
    superblock: &Superblock,
    seen: &mut BTreeSet<u64>,
    items: &mut Items,
    damaged: &mut Vec<u64>,
) {
    let mut todo = vec![(superblock.root, superblock.root_level.min(LEVELS_MAX))];
    while let Some((block, level)) = todo.pop() {
        if block >= superblock.block_count || !seen.insert(block) {
            continue;
        }
        let data = read(block).ok().filter(|data| node::check(data, block).is_ok());
        let Some(data) = data.filter(|data| Node(data).level() == level) else {
            damaged.push(block);
            continue;
        };
        let node = Node(&data);
        match level {
            0 => take_leaf(node, items),
            _ => todo.extend((0..node.count()).map(|index| (node.child(index), level - 1))),
        }
    }
}

/// Looks at each block that may be in use; how many leaves that adds.
fn scan<E>(
    read: &mut dyn FnMut(u64) -> Result<Block, E>,
    block_count: u64,
    seen: &BTreeSet<u64>,
    items: &mut Items,
) -> u64 {
    let mut found = 0;
    for group in 0..space::group_count(block_count) {
        let bitmap = read(space::bitmap_block(group)).ok();
        let is_free =
            |bit| bitmap.as_ref().is_some_and(|bitmap| !space::is_used(bitmap, group, bit));
        for bit in space::reserved_blocks(group)..space::group_size(group, block_count) {
            let block = group * space::GROUP_BLOCKS + bit;
            if is_free(bit) || seen.contains(&block) {
                continue;
            }
            let Ok(data) = read(block) else { continue };
            let node = Node(&data);
            if node::check(&data, block).is_ok() && node.level() == 0 {
                take_leaf(node, items);
                found += 1;
            }
        }
    }
    found
}

impl Rescue {
    fn of(&mut self, inode: u64) -> &mut Rescued {
        self.inodes.entry(inode).or_default()
    }

    /// Takes in what an item says, if it says anything.
    fn add(&mut self, key: Key, item: &[u8], block_count: u64) {
        let object = key.object();
        match key.kind() {
            Some(Kind::Inode) => {
                if let Ok(inode) = Inode::decode(item) {
                    self.of(object).inode = Some(inode);
                }
            }
            Some(Kind::Name) => {
                if let Ok(NameEntry { inode, kind, name }) = NameEntry::decode(item) {
                    let name = name.to_vec();
                    self.names.push(Named { directory: object, name, inode, kind });
                }
            }
            Some(Kind::Extent) => {
                let extent = Extent::decode(item).ok().filter(|extent| {
                    extent.block.saturating_add(extent.count.into()) <= block_count
                });
                if let Some(extent) = extent {
                    self.of(object).extents.push((key.position(), extent));
                }
            }
            Some(Kind::Xattr) => self.add_attribute(key, item),
            Some(Kind::Target) => self.of(object).target.extend_from_slice(item),
            Some(Kind::Orphan) | None => {}
        }
    }

    /// A part of an attribute; the parts come in order. One that is not whole stays short of its size.
    fn add_attribute(&mut self, key: Key, item: &[u8]) {
        let is_first = key.position().is_multiple_of(1 << PART_BITS);
        let attributes = &mut self.of(key.object()).attributes;
        match XattrHead::decode(item) {
            Ok(head) if is_first => attributes.push((head.name.to_vec(), head.value.to_vec())),
            _ if is_first => {}
            _ => {
                if let Some((_, value)) = attributes.last_mut() {
                    value.extend_from_slice(item);
                }
            }
        }
    }
}
