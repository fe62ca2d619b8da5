//! The processes that run, from `/proc`.

use std::fs;

/// Their numbers. None where `/proc` cannot be read.
pub fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}
