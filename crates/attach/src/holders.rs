//! Who holds a device or a mount: read from `/proc` and `/sys`, for people to read.
//!
//! What cannot be read is left out: the answer explains a refusal, it does not decide one.

use crate::loop_device::path_below;
use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Entries of a list before the rest is summed up.
const HOLDERS_MAX: usize = 8;

/// A line of a mount table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MountEntry {
    /// `major:minor` of the device that is mounted.
    pub(crate) device: String,
    pub(crate) mount_point: PathBuf,
    pub(crate) file_system_type: String,
    pub(crate) source: String,
}

/// The mount table of this process.
pub(crate) fn mount_table() -> Vec<MountEntry> {
    read_mount_table("self")
}

/// Who uses the block device `device`: mounts in any namespace, devices on top, swap, processes
/// that have it open. Never empty.
pub(crate) fn of_block_device(device: &Path) -> Vec<String> {
    let mut holders = Vec::new();
    let Ok(number) = fs::metadata(device).map(|metadata| metadata.st_rdev()) else {
        return vec!["unknown".into()];
    };
    let text = device.display().to_string();
    holders.extend(mounts_of(&text, number));
    let name = device.file_name().unwrap_or_default();
    if let Ok(entries) = fs::read_dir(Path::new("/sys/block").join(name).join("holders")) {
        let names = entries.flatten().map(|entry| entry.file_name());
        holders.extend(names.map(|name| format!("device /dev/{}", name.display())));
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().any(|line| line.split_whitespace().next() == Some(&text)) {
        holders.push("swap".into());
    }
    holders.extend(openers(None, |target| is_device(target, number)));
    summed_up(holders, "something that /proc does not show")
}

/// Processes that have the block device open otherwise than by our own descriptor `except`.
pub(crate) fn openers_of_block_device(device: &Path, except: BorrowedFd<'_>) -> Vec<String> {
    match fs::metadata(device).map(|metadata| metadata.st_rdev()) {
        Ok(number) => openers(Some(except.as_raw_fd()), |target| is_device(target, number)),
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

/// Where the device is mounted, in our mount namespace and in those of other processes.
fn mounts_of(device: &str, number: u64) -> Vec<String> {
    let number = format!("{}:{}", libc::major(number), libc::minor(number));
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    let pids = std::iter::once("self".to_owned()).chain(pids().map(|pid| pid.to_string()));
    for pid in pids {
        let Ok(namespace) = fs::read_link(format!("/proc/{pid}/ns/mnt")) else { continue };
        if !seen.insert(namespace) {
            continue;
        }
        for entry in read_mount_table(&pid) {
            // Some file systems, btrfs for one, show a device number of their own.
            if entry.device == number || entry.source == device {
                let place = entry.mount_point.display();
                found.push(match pid.as_str() {
                    "self" => format!("mounted on {place}"),
                    pid => format!("mounted on {place} in the mount namespace of process {pid}"),
                });
            }
        }
    }
    found
}

fn read_mount_table(pid: &str) -> Vec<MountEntry> {
    let text = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    text.lines().filter_map(parse_mount).collect()
}

/// `ID PARENT MAJOR:MINOR ROOT MOUNT-POINT OPTIONS [OPTIONAL…] - TYPE SOURCE OPTIONS`
fn parse_mount(line: &str) -> Option<MountEntry> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(2);
    let (device, _root, mount_point) = (left.next()?, left.next()?, left.next()?);
    let mut right = right.split(' ');
    let (file_system_type, source) = (right.next()?, right.next()?);
    Some(MountEntry {
        device: device.to_owned(),
        mount_point: PathBuf::from(unescaped(mount_point)),
        file_system_type: file_system_type.to_owned(),
        source: unescaped(source),
    })
}

/// Undoes the `\040` by which the mount table writes spaces and the like.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) if *first == b'\\' => {
                bytes.push(code);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
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
    fn a_line_of_the_mount_table_is_taken_apart() {
        let line = r"36 35 7:3 / /mnt/a\040b rw,noatime shared:1 - ext4 /dev/loop3 rw";
        let entry = parse_mount(line).unwrap();
        assert_eq!(entry.device, "7:3");
        assert_eq!(entry.mount_point, Path::new("/mnt/a b"));
        assert_eq!(entry.file_system_type, "ext4");
        assert_eq!(entry.source, "/dev/loop3");
        assert_eq!(parse_mount("nonsense"), None);
        assert_eq!(unescaped(r"a\\b\04"), r"a\\b\04");
    }

    #[test]
    fn the_mount_table_has_the_root() {
        assert!(mount_table().iter().any(|entry| entry.mount_point == Path::new("/")));
    }

    #[test]
    fn long_lists_are_summed_up() {
        let holders = (0..20).map(|i| i.to_string()).collect();
        let summed = summed_up(holders, "?");
        assert_eq!(summed.len(), HOLDERS_MAX + 1);
        assert_eq!(summed[HOLDERS_MAX], "and 12 more");
        assert_eq!(summed_up(Vec::new(), "?"), ["?"]);
    }
}
