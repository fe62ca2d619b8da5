//! Who holds a device or a mount: read from `/proc` and `/sys`, for people to read.
//!
//! What cannot be read is left out: the answer explains a refusal, it does not decide one.

use crate::loop_device::path_below;
use crate::mounts;
use crate::processes::pids;
use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Entries of a list before the rest is summed up.
const HOLDERS_MAX: usize = 8;

/// Who uses the block device `device`: mounts in any namespace, devices on top, swap, processes
/// that have it open. Never empty.
pub(crate) fn of_block_device(device: &Path) -> Vec<String> {
    let mut holders = Vec::new();
    let Ok(number) = fs::metadata(device).map(|metadata| metadata.st_rdev()) else {
        return vec!["unknown".into()];
    };
    let mounts = mounts::mounts_of_everywhere(device);
    holders.extend(mounts.iter().map(|mount| mount.place_of(device)));
    let name = device.file_name().unwrap_or_default();
    let above = mounts::entries(&Path::new("/sys/block").join(name).join("holders"));
    let named = |path: PathBuf| Some(format!("device /dev/{}", path.file_name()?.display()));
    holders.extend(above.filter_map(named));
    if is_swap(device) {
        holders.push("swap".into());
    }
    holders.extend(openers(None, |target| is_device(target, number)));
    summed_up(holders, "something that /proc does not show")
}

/// Whether the block device is swapped to.
pub(crate) fn is_swap(device: &Path) -> bool {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    swaps
        .lines()
        .any(|line| line.split_whitespace().next().is_some_and(|it| Path::new(it) == device))
}

/// Processes that have the block device open otherwise than by our own descriptor `except`.
pub(crate) fn openers_of_block_device(
    device: &Path,
    except: Option<BorrowedFd<'_>>,
) -> Vec<String> {
    let except = except.map(|descriptor| descriptor.as_raw_fd());
    match fs::metadata(device).map(|metadata| metadata.st_rdev()) {
        Ok(number) => openers(except, |target| is_device(target, number)),
        Err(_) => Vec::new(),
    }
}

/// Who uses the mount on `directory`: processes with files open there, loop devices over them.
/// Never empty.
pub(crate) fn of_directory(directory: &Path) -> Vec<String> {
    let mut holders: Vec<String> = loop_devices()
        .into_iter()
        .filter(|(_, file)| file.starts_with(directory))
        .map(|(device, _)| format!("loop device {}", device.display()))
        .collect();
    holders.extend(openers(None, |target| target.starts_with(directory)));
    summed_up(holders, "something that /proc does not show")
}

/// Processes, of whatever mount namespace, that have files open in the mount on `directory`.
pub(crate) fn openers_below(directory: &Path) -> Vec<String> {
    match openers(None, |target| target.starts_with(directory)) {
        openers if openers.is_empty() => openers,
        openers => summed_up(openers, ""),
    }
}

/// All loop devices that are set up, with their backing files as the kernel names them.
pub(crate) fn loop_devices() -> Vec<(PathBuf, PathBuf)> {
    let Ok(entries) = fs::read_dir("/sys/block") else { return Vec::new() };
    let mut devices: Vec<(PathBuf, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| {
            let device = Path::new("/dev").join(entry.file_name());
            path_below(&device).map(|file| (device, file))
        })
        .collect();
    devices.sort();
    devices
}

fn summed_up(mut holders: Vec<String>, unknown: &str) -> Vec<String> {
    let more = holders.len().saturating_sub(HOLDERS_MAX);
    if more > 0 {
        holders.truncate(HOLDERS_MAX);
        holders.push(format!("and {more} more"));
    }
    if holders.is_empty() {
        holders.push(unknown.into());
    }
    holders
}

fn is_device(path: &Path, number: u64) -> bool {
    // Asking only what can be a device spares a file system that does not answer.
    path.starts_with("/dev") && fs::metadata(path).is_ok_and(|found| found.st_rdev() == number)
}

/// Processes that have a file open whose path `matches`, our own descriptor `except` left out.
fn openers(except: Option<RawFd>, matches: impl Fn(&Path) -> bool) -> Vec<String> {
    let own = std::process::id();
    let mut found = Vec::new();
    for pid in pids() {
        let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        let excepted = except.filter(|_| pid == own).map(|fd| fd.to_string());
        let holds = |entry: fs::DirEntry| {
            let counts = entry.file_name().to_str() != excepted.as_deref();
            counts && fs::read_link(entry.path()).is_ok_and(|target| matches(&target))
        };
        if entries.flatten().any(holds) {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            found.push(format!("open in {} (process {pid})", name.trim_end()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_summed_up() {
        let holders = (0..20).map(|i| i.to_string()).collect();
        let summed = summed_up(holders, "?");
        assert_eq!(summed.len(), HOLDERS_MAX + 1);
        assert_eq!(summed[HOLDERS_MAX], "and 12 more");
        assert_eq!(summed_up(Vec::new(), "?"), ["?"]);
    }
}
