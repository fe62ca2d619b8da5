//! Who keeps a block device or a mount point busy.
//!
//! This explains a refusal to a person; it decides nothing by itself, since a process may come or
//! go between two looks. Processes of other users are seen only by root.

use crate::mounts;
use crate::process;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Most holders that are named; the rest is not worth a screen.
const HOLDERS_MAX: usize = 20;

/// One reason why something is busy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Holder {
    /// A file system is mounted from it.
    Mount {
        /// Where.
        mount_point: PathBuf,
    },
    /// A process has it, or a file below it, open.
    Process {
        /// The process.
        pid: u32,
        /// Its command.
        command: String,
        /// What it uses.
        path: PathBuf,
    },
    /// It is swapped to.
    Swap,
    /// A device mapping or RAID array is built on it.
    Layer {
        /// Its kernel name.
        name: String,
    },
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Mount { mount_point } => write!(f, "mounted at {}", mount_point.display()),
            Holder::Process { pid, command, path } => {
                write!(f, "process {pid} ({command}) uses {}", path.display())
            }
            Holder::Swap => write!(f, "used as swap space"),
            Holder::Layer { name } => write!(f, "used by block device {name}"),
        }
    }
}

/// Who uses the block device at `device`, save the process `except`, which serves it.
///
/// # Errors
/// When `/proc` cannot be read.
pub(crate) fn holders_of_device(device: &Path, except: u32) -> io::Result<Vec<Holder>> {
    let mut holders = Vec::new();
    for mount in mounts::mounts_of(device)? {
        holders.push(Holder::Mount { mount_point: mount.mount_point });
    }
    if fs::read_to_string("/proc/swaps").is_ok_and(|swaps| is_swap(&swaps, device)) {
        holders.push(Holder::Swap);
    }
    if let Some(name) = device.file_name() {
        let layers = Path::new("/sys/block").join(name).join("holders");
        for layer in fs::read_dir(layers).into_iter().flatten().flatten() {
            holders.push(Holder::Layer { name: layer.file_name().to_string_lossy().into_owned() });
        }
    }
    holders.extend(processes(except, &|path| path == device)?);
    holders.truncate(HOLDERS_MAX);
    Ok(holders)
}

/// Which processes use files below the mount point `directory`.
///
/// # Errors
/// When `/proc` cannot be read.
pub(crate) fn holders_of_mount(directory: &Path) -> io::Result<Vec<Holder>> {
    let mut holders = Vec::new();
    for mount in mounts::mounts()? {
        if mount.mount_point != directory && mount.mount_point.starts_with(directory) {
            holders.push(Holder::Mount { mount_point: mount.mount_point });
        }
    }
    holders.extend(processes(std::process::id(), &|path| path.starts_with(directory))?);
    holders.truncate(HOLDERS_MAX);
    Ok(holders)
}

fn is_swap(swaps: &str, device: &Path) -> bool {
    swaps.lines().skip(1).any(|line| {
        line.split_ascii_whitespace().next().is_some_and(|path| Path::new(path) == device)
    })
}

/// Each process but `except` that uses a path for which `wanted` holds, with the first such path.
fn processes(except: u32, wanted: &dyn Fn(&Path) -> bool) -> io::Result<Vec<Holder>> {
    let mut holders = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if pid == except {
            continue;
        }
        if let Some(path) = paths_of(&entry.path()).into_iter().find(|path| wanted(path)) {
            holders.push(Holder::Process { pid, command: process::command_of(pid), path });
        }
    }
    Ok(holders)
}

/// The directories, files and mapped files of the process at `/proc/PID`.
fn paths_of(process: &Path) -> Vec<PathBuf> {
    let fixed = ["cwd", "root", "exe"].map(|name| process.join(name));
    let listed = ["fd", "map_files"]
        .into_iter()
        .flat_map(|name| fs::read_dir(process.join(name)).into_iter().flatten().flatten())
        .map(|entry| entry.path());
    fixed.into_iter().chain(listed).filter_map(|link| fs::read_link(link).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_file_and_a_working_directory_are_found() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().canonicalize().expect("it exists");
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .current_dir(&path)
            .spawn()
            .expect("`sleep` can be run");
        let holders = holders_of_mount(&path).expect("/proc is readable");
        child.kill().expect("the child can be ended");
        child.wait().expect("the child can be reaped");
        let Some(Holder::Process { pid, path: used, .. }) = holders.first() else {
            panic!("no process is found: {holders:?}");
        };
        assert_eq!((*pid, used), (child.id(), &path));
    }

    #[test]
    fn nobody_uses_an_empty_directory() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        assert_eq!(holders_of_mount(directory.path()).expect("/proc is readable"), []);
    }

    #[test]
    fn swap_devices_are_matched_whole() {
        let swaps = "Filename Type Size\n/dev/loop1 partition 1024 0 -2\n";
        assert!(is_swap(swaps, Path::new("/dev/loop1")));
        assert!(!is_swap(swaps, Path::new("/dev/loop")));
        assert!(!is_swap(swaps, Path::new("Filename")));
    }
}
