//! What can be taken out of a file system whose tree is damaged.
//!
//! All nodes that the tree leads to are taken. If one of them is damaged, each block that is in use is looked
//! at, for leaves that only it led to: a node knows its own place, so that a copy elsewhere is not taken for
//! one. An item that the tree has is not replaced by one that is found so.

use coulter_format::Block;
use coulter_format::files::item::{FLAG_ACCESS_LIST, FLAG_CAPABILITY, XattrHead};
use coulter_format::files::key::{PART_BITS, POSITION_MAX};
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
    /// Names of those that are not whole; empty if the name is lost too.
    pub incomplete: Vec<Vec<u8>>,
    /// The key of the first part and the size of each, until all parts were seen.
    expected: Vec<(Key, usize)>,
}

impl Rescued {
    fn drop_incomplete(&mut self) {
        let expected = std::mem::take(&mut self.expected);
        let attributes = std::mem::take(&mut self.attributes);
        for ((name, value), (_, size)) in attributes.into_iter().zip(expected) {
            match value.len() == size {
                true => self.attributes.push((name, value)),
                false => self.incomplete.push(name),
            }
        }
        self.incomplete.dedup();
    }

    /// Blocks that the inode has by its attributes, and that no extent is there for.
    pub fn lost_blocks(&self) -> u64 {
        let found: u64 = self.extents.iter().map(|(_, extent)| u64::from(extent.count)).sum();
        self.inode.map_or(0, |inode| inode.blocks.saturating_sub(found))
    }

    /// Attributes that the inode's flags name and that are not there.
    pub fn lost_lists(&self) -> impl Iterator<Item = &'static str> {
        let flags = self.inode.map_or(0, |inode| inode.flags);
        let has = |prefix: &[u8]| {
            self.attributes.iter().any(|(name, _)| name.starts_with(prefix))
                || self.incomplete.iter().any(|name| name.starts_with(prefix))
        };
        let list = flags & FLAG_ACCESS_LIST != 0 && !has(b"system.posix_acl_");
        let capability = flags & FLAG_CAPABILITY != 0 && !has(b"security.capability");
        let lost = [(list, "access control list"), (capability, "capability")];
        lost.into_iter().filter(|(is_lost, _)| *is_lost).map(|(_, what)| what)
    }
}

/// A part of the tree that a damaged node led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gap {
    from: Key,
    /// The first key behind it; none if it goes on to the end.
    below: Option<Key>,
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
    gaps: Vec<Gap>,
    /// First and last key of each leaf that was found so.
    found: Vec<(Key, Key)>,
}

impl Rescue {
    /// Returns whether attributes of an inode may have been in a leaf that is lost.
    pub fn may_lack_attributes(&self, inode: u64) -> bool {
        let first = Key::new(inode, Kind::Xattr, 0);
        let last = Key::new(inode, Kind::Xattr, POSITION_MAX);
        let is_in = |gap: &Gap| gap.from <= last && gap.below.is_none_or(|below| first < below);
        let is_found = self.found.iter().any(|(from, to)| *from <= first && last <= *to);
        self.gaps.iter().any(is_in) && !is_found
    }
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
        Some(superblock) => walk(read, &superblock, &mut seen, &mut items, &mut rescue),
        None => {
            rescue.damaged.push(0);
            rescue.gaps.push(Gap { from: Key::MIN, below: None });
        }
    }
    if !rescue.damaged.is_empty() {
        rescue.found = scan(read, block_count, &seen, &mut items);
        rescue.found_leaves = rescue.found.len() as u64;
    }
    for (key, item) in &items {
        rescue.add(*key, item, block_count);
    }
    for rescued in rescue.inodes.values_mut() {
        rescued.drop_incomplete();
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
    rescue: &mut Rescue,
) {
    let all = Gap { from: Key::MIN, below: None };
    let mut todo = vec![(superblock.root, superblock.root_level.min(LEVELS_MAX), all)];
    while let Some((block, level, gap)) = todo.pop() {
        if block >= superblock.block_count || !seen.insert(block) {
            continue;
        }
        let data = read(block).ok().filter(|data| node::check(data, block).is_ok());
        let Some(data) = data.filter(|data| Node(data).level() == level) else {
            rescue.damaged.push(block);
            rescue.gaps.push(gap);
            continue;
        };
        let node = Node(&data);
        match level {
            0 => take_leaf(node, items),
            _ => todo.extend((0..node.count()).map(|index| {
                let next = (index + 1 < node.count()).then(|| node.key(index + 1));
                let part = Gap { from: node.key(index), below: next.or(gap.below) };
                (node.child(index), level - 1, part)
            })),
        }
    }
}

/// Looks at each block that may be in use: first and last key of the leaves that adds.
fn scan<E>(
    read: &mut dyn FnMut(u64) -> Result<Block, E>,
    block_count: u64,
    seen: &BTreeSet<u64>,
    items: &mut Items,
) -> Vec<(Key, Key)> {
    let mut found = Vec::new();
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
            if node::check(&data, block).is_ok() && node.level() == 0 && node.count() > 0 {
                take_leaf(node, items);
                found.push((node.key(0), node.key(node.count() - 1)));
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

    /// A part of an attribute; the parts come in order.
    fn add_attribute(&mut self, key: Key, item: &[u8]) {
        let part = key.position() % (1 << PART_BITS);
        let of = self.of(key.object());
        match XattrHead::decode(item) {
            Ok(head) if part == 0 => {
                of.attributes.push((head.name.to_vec(), head.value.to_vec()));
                of.expected.push((key, head.size as usize));
            }
            _ if part == 0 => of.incomplete.push(Vec::new()),
            _ => match (of.attributes.last_mut(), of.expected.last()) {
                (Some((_, value)), Some((first, _))) if first.plus(part) == key => {
                    value.extend_from_slice(item);
                }
                // Its first part is lost, and its name with it.
                _ => of.incomplete.push(Vec::new()),
            },
        }
    }
}
