//! Whether a directory lies in memory, where no disk is measured.

use std::path::Path;

/// File systems in memory: tmpfs, and ramfs, which never swaps.
const MAGICS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// Whether what is written to the directory stays in memory; not, if that is not known.
pub(super) fn is_in_memory(directory: &Path) -> bool {
    rustix::fs::statfs(directory).is_ok_and(|system| MAGICS.contains(&(system.f_type as u64)))
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
