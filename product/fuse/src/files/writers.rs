//! Which attributes the kernel may keep: all but those that a write changes without a word to it.
//!
//! - A write takes set-uid and set-gid away here (`HANDLE_KILLPRIV_V2`), and the kernel does not
//!   see that. So it asks for the attributes of a program with these bits before it runs it.
//! - With write-back the kernel has bytes that this side does not know, and asks for the blocks of
//!   a file only when its attributes are no longer valid. So the kernel does not keep them while a
//!   file is open for writing. Such a file has at least one sector, because some programs do not
//!   read a file without blocks.

use super::message::Access;
use coulter_files::Inode;
use std::collections::HashMap;

/// Seconds for which the kernel may cache names and most attributes; only this mount changes them.
pub(super) const VALID_SECONDS: u64 = 3600;
pub(super) const BLOCK_SIZE: u32 = 4096;

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Writers {
    /// The kernel writes back.
    writes_back: bool,
    /// How often each node is open for writing. Empty unless the kernel writes back.
    open: HashMap<u64, u32>,
}

impl Writers {
    pub(super) fn new(writes_back: bool) -> Writers {
        Writers { writes_back, open: HashMap::new() }
    }

    /// Counts a program more. Returns true if attributes that the kernel has are not to be kept.
    pub(super) fn open(&mut self, node: u64, access: Access) -> bool {
        if !self.writes_back || access == Access::Reads {
            return false;
        }
        let count = self.open.entry(node).or_default();
        *count += 1;
        *count == 1
    }

    /// The kernel has written back before.
    pub(super) fn release(&mut self, node: u64, access: Access) {
        let Some(count) = self.open.get_mut(&node).filter(|_| access == Access::Writes) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.open.remove(&node);
        }
    }

    /// Seconds for which the kernel may keep the attributes of a node.
    pub(super) fn valid_seconds(&self, node: u64, inode: &Inode) -> u64 {
        let is_file = inode.mode & libc::S_IFMT == libc::S_IFREG;
        let has_privileges = inode.mode & (libc::S_ISUID | libc::S_ISGID) != 0;
        let changes = is_file && has_privileges || self.open.contains_key(&node);
        if changes { 0 } else { VALID_SECONDS }
    }

    /// The blocks of a node, in sectors of 512 bytes.
    pub(super) fn sectors(&self, node: u64, inode: &Inode) -> u64 {
        let sectors = inode.blocks * u64::from(BLOCK_SIZE / 512);
        sectors.max(self.open.contains_key(&node).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(mode: u32, blocks: u64) -> Inode {
        Inode { mode: libc::S_IFREG | mode, blocks, ..Inode::default() }
    }

    #[test]
    fn what_a_write_changes_unasked_is_not_kept() {
        let mut writers = Writers::new(true);
        assert_eq!(writers.valid_seconds(7, &file(0o755, 1)), VALID_SECONDS);
        for mode in [0o4755, 0o2755, 0o6755] {
            assert_eq!(writers.valid_seconds(7, &file(mode, 1)), 0);
        }
        let directory = Inode { mode: libc::S_IFDIR | 0o2775, ..Inode::default() };
        assert_eq!(writers.valid_seconds(7, &directory), VALID_SECONDS);
        let open = |writers: &mut Writers, access| writers.open(7, access);
        assert!(!open(&mut writers, Access::Reads), "a reader changes nothing");
        assert!(open(&mut writers, Access::Writes) && !open(&mut writers, Access::Writes));
        assert_eq!(writers.valid_seconds(7, &file(0o644, 0)), 0);
        assert_eq!((writers.sectors(7, &file(0o644, 0)), writers.sectors(7, &file(0, 2))), (1, 16));
        assert_eq!(writers.valid_seconds(8, &file(0o644, 0)), VALID_SECONDS);
        writers.release(7, Access::Writes);
        writers.release(7, Access::Reads);
        assert_eq!(writers.valid_seconds(7, &file(0o644, 0)), 0);
        writers.release(7, Access::Writes);
        assert_eq!(writers.valid_seconds(7, &file(0o644, 0)), VALID_SECONDS);
        assert_eq!(writers.sectors(7, &file(0o644, 0)), 0);
    }

    #[test]
    fn where_writes_go_through_nothing_is_held_back() {
        let mut writers = Writers::new(false);
        assert!(!writers.open(7, Access::Writes));
        assert_eq!(writers.valid_seconds(7, &file(0o644, 0)), VALID_SECONDS);
        assert_eq!(writers.sectors(7, &file(0o644, 0)), 0);
    }
}
