//! Who holds a device or a mount: read from `/proc` and `/sys`, for people to read.
//!
//! What cannot be read is left out: the answer explains a refusal, it does not decide one.

use crate::loop_devices;
use crate::mounts;
use crate::process::command_of;
use crate::processes::pids;
use rustix::fs::{AtFlags, CWD, StatxFlags};
use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Entries of a list before the rest is summed up.
const HOLDERS_MAX: usize = 8;

/// Who uses the block device `device`: mounts in any namespace, devices on top, swap, processes
/// that have it open. Never empty.
pub fn of_block_device(device: &Path) -> Vec<String> {
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
pub fn is_swap(device: &Path) -> bool {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    swaps
        .lines()
        .any(|line| line.split_whitespace().next().is_some_and(|it| Path::new(it) == device))
}

/// Processes that have the block device open otherwise than by our own descriptor `except`.
pub fn openers_of_block_device(device: &Path, except: Option<BorrowedFd<'_>>) -> Vec<String> {
    let except = except.map(|descriptor| descriptor.as_raw_fd());
    match fs::metadata(device).map(|metadata| metadata.st_rdev()) {
        Ok(number) => openers(except, |target| is_device(target, number)),
        Err(_) => Vec::new(),
    }
}

/// Who uses the mount on `directory`: mounts below it, loop devices over its files, processes that work
/// in it, run from it, or have files of it open or mapped. Never empty.
///
/// Processes of other users are seen only by root.
pub fn of_directory(directory: &Path) -> Vec<String> {
    let mounts = mounts::mounts().unwrap_or_default().into_iter();
    let below =
        mounts.filter(|it| it.mount_point != directory && it.mount_point.starts_with(directory));
    let mut holders: Vec<String> = below
        .map(|mount| format!("{} is mounted at {}", mount.kind, mount.mount_point.display()))
        .collect();
    let over = loop_devices::all().into_iter().filter(|(_, file)| file.starts_with(directory));
    holders.extend(over.map(|(device, _)| format!("loop device {}", device.display())));
    for pid in pids() {
        if let Some(path) = paths_of(pid).into_iter().find(|path| path.starts_with(directory)) {
            holders.push(format!("process {pid} ({}) uses {}", command_of(pid), path.display()));
        }
    }
    summed_up(holders, "something that /proc does not show")
}

/// Processes that use files of a file system which is mounted nowhere any more. `device` has the
/// major and minor number of its files. The list is never empty, and the file system is not asked.
pub fn of_unmounted(device: (u32, u32)) -> Vec<String> {
    let is_on = |link: &PathBuf| {
        let flags = AtFlags::STATX_DONT_SYNC;
        let status = rustix::fs::statx(CWD, link, flags, StatxFlags::TYPE);
        status.is_ok_and(|status| (status.stx_dev_major, status.stx_dev_minor) == device)
    };
    let users = pids().filter(|pid| links_of(*pid).iter().any(is_on));
    let told = |pid| format!("process {pid} ({}), since before it was unmounted", command_of(pid));
    summed_up(users.map(told).collect(), "something that /proc does not show")
}

/// Where the file system mounted on `directory` is mounted besides, or is a layer of overlayfs,
/// and stays when it is unmounted there: then it
/// goes on being used, and the directory shows what lies below.
pub fn elsewhere(directory: &Path) -> Vec<String> {
    let others = mounts::others_of(directory).unwrap_or_default();
    let place = |mount: &mounts::Mount| mount.place_of(&mount.source);
    let layered = mounts::layered_on(directory);
    let layered =
        layered.iter().map(|it| format!("overlayfs has a layer in it, and is {}", place(it)));
    match others.iter().map(place).chain(layered).collect::<Vec<_>>() {
        places if places.is_empty() => places,
        places => summed_up(places, ""),
    }
}

/// The directories, files and mapped files of a process. Of our own only the open files: who started it
/// works in the same directory, and is what a person can act on.
fn paths_of(pid: u32) -> Vec<PathBuf> {
    links_of(pid).into_iter().filter_map(|link| fs::read_link(link).ok()).collect()
}

/// The links in /proc that lead to them.
fn links_of(pid: u32) -> Vec<PathBuf> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let is_own = pid == std::process::id();
    let fixed: &[&str] = if is_own { &[] } else { &["cwd", "root", "exe"] };
    let listed: &[&str] = if is_own { &["fd"] } else { &["fd", "map_files"] };
    let listed = listed.iter().flat_map(|name| mounts::entries(&process.join(name)));
    fixed.iter().map(|name| process.join(name)).chain(listed).collect()
}

/// Processes, of whatever mount namespace, that have files open in the mount on `directory`.
pub fn openers_below(directory: &Path) -> Vec<String> {
    match openers(None, |target| target.starts_with(directory)) {
        openers if openers.is_empty() => openers,
        openers => summed_up(openers, ""),
    }
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
            found.push(format!("open in {} (process {pid})", command_of(pid)));
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

    #[test]
    fn a_process_that_works_in_a_directory_is_named() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().canonicalize().expect("it exists");
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .current_dir(&path)
            .spawn()
            .expect("`sleep` can be run");
        let holders = of_directory(&path);
        child.kill().expect("the child can be ended");
        child.wait().expect("the child can be reaped");
        let expected = format!("process {} (sleep) uses {}", child.id(), path.display());
        assert_eq!(holders, [expected]);
    }

    #[test]
    fn of_this_process_only_open_files_count() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().canonicalize().expect("it exists");
        assert_eq!(of_directory(&path), ["something that /proc does not show"]);
        let _open = fs::File::create(path.join("file")).expect("it is writable");
        let holders = of_directory(&path);
        assert!(holders.len() == 1 && holders[0].ends_with("/file"), "{holders:?}");
    }
}
