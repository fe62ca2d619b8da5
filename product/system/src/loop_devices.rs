//! The loop devices that are set up, from `/sys`.

use crate::mounts::entries;
use std::fs;
use std::path::{Path, PathBuf};

/// All of them, sorted, each with its backing file as the kernel names it.
pub fn all() -> Vec<(PathBuf, PathBuf)> {
    let named = entries(Path::new("/sys/block")).filter_map(|entry| {
        let device = Path::new("/dev").join(entry.file_name()?);
        path_below(&device).map(|file| (device, file))
    });
    let mut devices: Vec<(PathBuf, PathBuf)> = named.collect();
    devices.sort();
    devices
}

/// The path of the file below a loop device, as the kernel sees it, if the device is set up.
pub fn path_below(device: &Path) -> Option<PathBuf> {
    let name = device.file_name()?;
    let path =
        fs::read_to_string(Path::new("/sys/block").join(name).join("loop/backing_file")).ok()?;
    Some(PathBuf::from(path.trim_end_matches('\n')))
}
