//! What the items say, gathered by inode, and compared when all were seen.

use super::{Finding, Report};
use coulter_format::files::hash::hash;
use coulter_format::files::item::{PART_SIZE, XattrHead, decode_orphan};
use coulter_format::files::key::{ALIKE_BITS, PART_BITS};
use coulter_format::files::{Extent, Inode, Key, Kind, NameEntry, ROOT_INODE, Superblock, space};
use coulter_format::{Corrupt, Reason, Structure};
use std::collections::BTreeMap;

const KIND_MASK: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;
const SYMLINK: u32 = 0o120_000;

/// What there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[expect(missing_docs, reason = "named after what they count")]
pub struct Counters {
    pub nodes: u64,
    pub inodes: u64,
    pub directories: u64,
    pub names: u64,
    pub extents: u64,
    pub data_blocks: u64,
    pub attributes: u64,
    pub orphans: u64,
    pub free_blocks: u64,
    pub data_blocks_read: u64,
}

/// Blocks, one bit each.
pub(super) struct Bits(Vec<u64>);

impl Bits {
    pub(super) fn new(count: u64) -> Bits {
        Bits(vec![0; count.div_ceil(64) as usize])
    }

    /// Adds a block; false if it was there.
    pub(super) fn insert(&mut self, block: u64) -> bool {
        let bit = 1 << (block % 64);
        match self.0.get_mut((block / 64) as usize) {
            Some(word) if *word & bit == 0 => {
                *word |= bit;
                true
            }
            _ => false,
        }
    }

    pub(super) fn contains(&self, block: u64) -> bool {
        self.0.get((block / 64) as usize).is_some_and(|word| word & 1 << (block % 64) != 0)
    }
}

/// What is known of one inode.
#[derive(Default)]
struct Known {
    inode: Option<Inode>,
    /// Names that stand for it, and the directory of one of them.
    names: u64,
    named_in: u64,
    said_kind: Option<(u64, u8)>,
    /// Of a directory: names in it, their bytes, directories among them.
    children: u64,
    child_bytes: u64,
    subdirectories: u64,
    /// Of a file: blocks, and the end of the last extent.
    blocks: u64,
    extents_end: u64,
    target_bytes: u64,
    /// The part of an attribute that comes next, and bytes that are still to come.
    part: Option<(u64, u64)>,
    is_orphan: bool,
    /// It leads to the root.
    is_reached: bool,
}

/// See the module's documentation.
pub(super) struct Facts {
    pub(super) used: Bits,
    inodes: BTreeMap<u64, Known>,
}

fn corrupt(name: &'static str) -> Corrupt {
    Corrupt { structure: Structure::FilesItem, reason: Reason::Field(name) }
}

impl Facts {
    pub(super) fn new(superblock: &Superblock) -> Facts {
        Facts { used: Bits::new(superblock.block_count), inodes: BTreeMap::new() }
    }

    fn of(&mut self, inode: u64) -> &mut Known {
        self.inodes.entry(inode).or_default()
    }

    /// Takes an item in. Items come in the order of their keys.
    pub(super) fn add(
        &mut self,
        superblock: &Superblock,
        key: Key,
        item: &[u8],
        report: &mut Report,
    ) {
        let added =
            match key.kind() {
                Some(Kind::Orphan) if key.object() == 0 => decode_orphan(item).map(|_| {
                    report.counters.orphans += 1;
                    self.of(key.position()).is_orphan = true;
                }),
                Some(Kind::Orphan) | None => {
                    report.add(Finding::UnknownItem { key });
                    Ok(())
                }
                Some(_) if key.object() == 0 => {
                    report.add(Finding::UnknownItem { key });
                    Ok(())
                }
                Some(Kind::Inode) => Inode::decode(item).map(|inode| {
                    self.of(key.object()).inode = Some(inode);
                    report.counters.inodes += 1;
                }),
                Some(Kind::Name) => NameEntry::decode(item)
                    .map(|entry| self.add_name(superblock, key, entry, report)),
                Some(Kind::Extent) => Extent::decode(item)
                    .map(|extent| self.add_extent(superblock, key, extent, report)),
                Some(Kind::Xattr) => self.add_xattr(superblock, key, item, report),
                Some(Kind::Target) => {
                    self.of(key.object()).target_bytes += item.len() as u64;
                    if item.len() > PART_SIZE { Err(corrupt("target")) } else { Ok(()) }
                }
            };
        if let Err(corrupt) = added {
            report.add(Finding::Item { key, corrupt });
        }
    }

    fn add_name(
        &mut self,
        superblock: &Superblock,
        key: Key,
        entry: NameEntry<'_>,
        report: &mut Report,
    ) {
        report.counters.names += 1;
        let directory = key.object();
        let base = Key::of_name(directory, hash(&superblock.hash_seed, entry.name));
        if key < base || key > base.plus((1 << ALIKE_BITS) - 1) {
            report.add(Finding::NameHash { directory, position: key.position() });
        }
        let is_directory = u32::from(entry.kind) << 12 == DIRECTORY;
        let above = self.of(directory);
        above.children += 1;
        above.child_bytes += entry.name.len() as u64;
        above.subdirectories += u64::from(is_directory);
        let named = self.of(entry.inode);
        named.names += 1;
        named.named_in = directory;
        named.said_kind = Some((directory, entry.kind));
    }

    fn add_extent(
        &mut self,
        superblock: &Superblock,
        key: Key,
        extent: Extent,
        report: &mut Report,
    ) {
        report.counters.extents += 1;
        let (inode, first, count) = (key.object(), key.position(), u64::from(extent.count));
        let known = self.of(inode);
        known.blocks += count;
        if first < known.extents_end {
            report.add(Finding::Overlap { inode, block: first });
        }
        known.extents_end = first + count;
        if extent.block.saturating_add(count) > superblock.block_count {
            report.add(Finding::OutOfRange { block: extent.block, by: inode });
            return;
        }
        for block in extent.block..extent.block + count {
            let group = space::group_of(block);
            if block - group * space::GROUP_BLOCKS < space::reserved_blocks(group) {
                report.add(Finding::OutOfRange { block, by: inode });
            } else if !self.used.insert(block) {
                report.add(Finding::UsedTwice { block, by: inode });
            }
        }
        report.counters.data_blocks += count;
    }

    fn add_xattr(
        &mut self,
        superblock: &Superblock,
        key: Key,
        item: &[u8],
        report: &mut Report,
    ) -> Result<(), Corrupt> {
        let part = key.position() % (1 << PART_BITS);
        let known = self.of(key.object());
        if part > 0 {
            match known.part.take() {
                Some((next, left)) if next == key.position() && item.len() as u64 <= left => {
                    let left = left - item.len() as u64;
                    known.part = (left > 0).then_some((next + 1, left));
                    return Ok(());
                }
                _ => return Err(corrupt("xattr part")),
            }
        }
        if known.part.take().is_some() {
            report.add(Finding::Part { inode: key.object() });
        }
        let head = XattrHead::decode(item)?;
        let left = u64::from(head.size) - head.value.len() as u64;
        self.of(key.object()).part = (left > 0).then_some((key.position() + 1, left));
        report.counters.attributes += 1;
        let base = Key::of_xattr(key.object(), hash(&superblock.hash_seed, head.name));
        if key < base || key > base.plus((1 << (ALIKE_BITS + PART_BITS)) - 1) {
            return Err(corrupt("xattr hash"));
        }
        Ok(())
    }

    /// All items were seen, or those that could be.
    pub(super) fn compare(&mut self, superblock: &Superblock, is_whole: bool, report: &mut Report) {
        self.reach();
        let last = self.inodes.keys().next_back().copied().unwrap_or(0);
        if last >= superblock.next_inode {
            report.add(Finding::NextInode { said: superblock.next_inode, found: last });
        }
        for (inode, known) in &self.inodes {
            // Below a damaged node there may be what is missing.
            if is_whole {
                self.compare_one(*inode, known, report);
            }
        }
        if is_whole && superblock.inode_count != report.counters.inodes {
            let (said, found) = (superblock.inode_count, report.counters.inodes);
            report.add(Finding::InodeCount { said, found });
        }
    }

    fn compare_one(&self, number: u64, known: &Known, report: &mut Report) {
        let Some(inode) = known.inode else {
            match (known.said_kind, known.is_orphan) {
                (Some((directory, _)), _) => {
                    report.add(Finding::DanglingName { directory, inode: number });
                }
                (None, true) => report.add(Finding::Orphan { inode: number }),
                (None, false) => report.add(Finding::MissingInode { inode: number }),
            }
            return;
        };
        let is_directory = inode.mode & KIND_MASK == DIRECTORY;
        report.counters.directories += u64::from(is_directory);
        if known.part.is_some() {
            report.add(Finding::Part { inode: number });
        }
        if let Some((directory, kind)) = known.said_kind
            && u32::from(kind) << 12 != inode.mode & KIND_MASK
        {
            report.add(Finding::Kind { directory, inode: number });
        }
        if known.blocks != inode.blocks {
            let (said, found) = (inode.blocks, known.blocks);
            report.add(Finding::Blocks { inode: number, said, found });
        }
        let size = match inode.mode & KIND_MASK {
            DIRECTORY => known.child_bytes,
            SYMLINK => known.target_bytes,
            _ => inode.size,
        };
        if size != inode.size {
            report.add(Finding::Size { inode: number, said: inode.size, found: size });
        }
        if inode.links == 0 && !known.is_orphan {
            report.add(Finding::Lost { inode: number });
        }
        if is_directory {
            self.compare_directory(number, known, &inode, report);
        } else {
            if known.children > 0 {
                report.add(Finding::NotADirectory { inode: number });
            }
            if u64::from(inode.links) != known.names {
                report.add(Finding::Links { inode: number, said: inode.links, found: known.names });
            }
        }
    }

    fn compare_directory(&self, number: u64, known: &Known, inode: &Inode, report: &mut Report) {
        let is_root = number == ROOT_INODE;
        let names = u64::from(!is_root && inode.links > 0);
        if known.names != names {
            report.add(Finding::Names { inode: number, found: known.names });
        }
        let links = if inode.links == 0 { 0 } else { 2 + known.subdirectories };
        if u64::from(inode.links) != links {
            report.add(Finding::Links { inode: number, said: inode.links, found: links });
        }
        if names > 0 && inode.parent != known.named_in {
            let (said, found) = (inode.parent, known.named_in);
            report.add(Finding::Parent { inode: number, said, found });
        }
        if names > 0 && !known.is_reached {
            report.add(Finding::Unreachable { inode: number });
        }
    }

    /// Marks the directories that lead to the root, from the root on.
    fn reach(&mut self) {
        let mut below: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (inode, known) in &self.inodes {
            let is_directory = known.inode.is_some_and(|inode| inode.mode & KIND_MASK == DIRECTORY);
            if is_directory && known.names > 0 {
                below.entry(known.named_in).or_default().push(*inode);
            }
        }
        let mut todo = vec![ROOT_INODE];
        while let Some(inode) = todo.pop() {
            if let Some(known) = self.inodes.get_mut(&inode) {
                known.is_reached = true;
            }
            // Each is taken out once, so that a loop ends.
            todo.extend(below.remove(&inode).unwrap_or_default());
        }
    }
}
