//! Whether a directory lies in memory, where no disk is measured.

use nix::sys::statfs::{FsType, TMPFS_MAGIC, statfs};
use std::path::Path;

/// What the kernel calls a file system in memory that never swaps.
const RAMFS_MAGIC: FsType = FsType(0x8584_58f6);

/// Whether what is written to the directory stays in memory; not, if that is not known.
pub(super) fn is_in_memory(directory: &Path) -> bool {
    let kind = statfs(directory).map(|system| system.filesystem_type());
    matches!(kind, Ok(TMPFS_MAGIC | RAMFS_MAGIC))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_such_file_system_is_not_in_memory() {
        assert!(!is_in_memory(Path::new("/proc")));
        assert!(!is_in_memory(Path::new("/no/such/directory")));
    }
}
