//! The checker of `coulter-check` on a volume in memory.

use super::{Block, Volume};

/// The findings of the checker.
pub fn check(volume: &Volume) -> Vec<String> {
    let mut read = |block: u64| Ok::<Block, ()>(volume.block(block));
    let report = coulter_check::files::check(&mut read, volume.block_count);
    report.findings.iter().map(ToString::to_string).collect()
}

/// Inodes that wait to be taken away.
pub fn orphan_count(volume: &Volume) -> u64 {
    let mut read = |block: u64| Ok::<Block, ()>(volume.block(block));
    coulter_check::files::check(&mut read, volume.block_count).counters.orphans
}
