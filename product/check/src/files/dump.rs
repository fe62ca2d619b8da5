//! Every item of the tree, one line each, in the order of the keys.

use coulter_format::Block;
use coulter_format::files::item::{XattrHead, decode_orphan};
use coulter_format::files::key::PART_BITS;
use coulter_format::files::{Extent, Inode, Key, Kind, NameEntry, Node, Superblock, node};

/// Shows what there is, until `show` says no. What is damaged is said in its place.
pub fn dump<E>(read: &mut dyn FnMut(u64) -> Result<Block, E>, show: &mut dyn FnMut(&str) -> bool) {
    let superblock = match read(0).map(|block| Superblock::decode(&block)) {
        Ok(Ok(superblock)) => superblock,
        Ok(Err(corrupt)) => {
            show(&format!("block 0: {corrupt}"));
            return;
        }
        Err(_) => {
            show("block 0 cannot be read");
            return;
        }
    };
    let Superblock { block_count, root, root_level, next_inode, free_blocks, .. } = superblock;
    let Superblock { inode_count, set_count, .. } = superblock;
    if !show(&format!(
        "superblock: {block_count} blocks, {free_blocks} free, {inode_count} inodes, next {next_inode}, \
         root {root} on level {root_level}, {set_count} sets"
    )) {
        return;
    }
    // No node is shown twice, so that a loop ends.
    let mut seen = std::collections::BTreeSet::new();
    let mut todo = vec![root];
    while let Some(block) = todo.pop() {
        if !seen.insert(block) || block >= block_count {
            continue;
        }
        let line = match read(block) {
            Err(_) => format!("node {block} cannot be read"),
            Ok(data) => match node::check(&data, block) {
                Err(corrupt) => format!("node {block}: {corrupt}"),
                Ok(()) => {
                    let node = Node(&data);
                    if !show(&format!(
                        "node {block}: level {}, {} entries",
                        node.level(),
                        node.count()
                    )) || !show_items(node, show)
                    {
                        return;
                    }
                    if node.level() > 0 {
                        todo.extend((0..node.count()).rev().map(|index| node.child(index)));
                    }
                    continue;
                }
            },
        };
        if !show(&line) {
            return;
        }
    }
}

fn show_items(node: Node<'_>, show: &mut dyn FnMut(&str) -> bool) -> bool {
    (0..node.count()).all(|index| {
        let key = node.key(index);
        let line = match node.level() {
            0 => format!("  {key:?} {}", describe(key, node.item(index))),
            _ => format!("  {key:?} -> {}", node.child(index)),
        };
        show(&line)
    })
}

fn describe(key: Key, item: &[u8]) -> String {
    let described = match key.kind() {
        Some(Kind::Inode) => Inode::decode(item).map(|inode| {
            format!(
                "mode {:o} owner {}:{} links {} size {} blocks {} modified {}.{:09}",
                inode.mode,
                inode.uid,
                inode.gid,
                inode.links,
                inode.size,
                inode.blocks,
                inode.modified.seconds,
                inode.modified.nanoseconds
            )
        }),
        Some(Kind::Name) => NameEntry::decode(item).map(|entry| {
            format!("\"{}\" = {} kind {}", entry.name.escape_ascii(), entry.inode, entry.kind)
        }),
        Some(Kind::Extent) => Extent::decode(item)
            .map(|extent| format!("{} blocks at {}", extent.count, extent.block)),
        Some(Kind::Xattr) if key.position().is_multiple_of(1 << PART_BITS) => {
            XattrHead::decode(item)
                .map(|head| format!("\"{}\", {} bytes", head.name.escape_ascii(), head.size))
        }
        Some(Kind::Target) => Ok(format!("\"{}\"", item.escape_ascii())),
        Some(Kind::Orphan) => decode_orphan(item).map(|from| format!("from block {from}")),
        _ => Ok(format!("{} bytes", item.len())),
    };
    described.unwrap_or_else(|corrupt| corrupt.to_string())
}
