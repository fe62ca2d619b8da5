//! The data of files: each block that an extent refers to can be read, by the volume's checksums.

use super::facts::Bits;
use super::{Finding, Report};
use coulter_format::Block;
use coulter_format::files::node::{self, LEVELS_MAX};
use coulter_format::files::{Extent, Key, Kind, Node};

type Read<'a, E> = &'a mut dyn FnMut(u64) -> Result<Block, E>;

/// Reads every block of every file, after [`super::check`] has looked at the rest. Calls
/// `progress` for each block.
pub fn check_data<E>(read: Read<'_, E>, report: &mut Report, progress: &mut dyn FnMut()) {
    let Some(superblock) = report.superblock else { return };
    let mut seen = Bits::new(superblock.block_count);
    let mut todo = vec![(superblock.root, superblock.root_level.min(LEVELS_MAX))];
    while let Some((block, level)) = todo.pop() {
        if !seen.insert(block) {
            continue;
        }
        let Some(data) = read(block).ok().filter(|data| node::check(data, block).is_ok()) else {
            continue;
        };
        let node = Node(&data);
        if node.level() != level {
            continue;
        }
        for index in (0..node.count()).rev() {
            match level {
                0 => check_item(read, node.key(index), node.item(index), report, progress),
                _ => todo.push((node.child(index), level - 1)),
            }
        }
    }
}

fn check_item<E>(
    read: Read<'_, E>,
    key: Key,
    item: &[u8],
    report: &mut Report,
    progress: &mut dyn FnMut(),
) {
    let blocks = report.superblock.map_or(0, |superblock| superblock.block_count);
    let Some(extent) = Extent::decode(item).ok().filter(|_| key.kind() == Some(Kind::Extent))
    else {
        return;
    };
    // `check` has named blocks beyond the end.
    let count = u64::from(extent.count).min(blocks.saturating_sub(extent.block));
    let (inode, mut lost) = (key.object(), None);
    for index in 0..count {
        progress();
        report.counters.data_blocks_read += 1;
        match (read(extent.block + index), &mut lost) {
            (Err(_), Some((_, lost))) => *lost += 1,
            (Err(_), none) => *none = Some((key.position() + index, 1)),
            (Ok(_), some) => {
                if let Some((block, count)) = some.take() {
                    report.add(Finding::Data { inode, block, count });
                }
            }
        }
    }
    if let Some((block, count)) = lost {
        report.add(Finding::Data { inode, block, count });
    }
}
