//! Which processes keep a mount point busy.
//!
//! This explains a refusal to a person; it decides nothing, since a process may come or go between
//! two looks. Processes of other users are seen only by root. Who holds a block device is told by
//! its attach point, which also claims it.

use coulter_attach::mounts;
use coulter_attach::processes::pids;
use coulter_daemon::process;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Most holders that are named; the rest is not worth a screen.
const HOLDERS_MAX: usize = 20;

/// Who uses files below the mount point `directory`, in words.
///
/// # Errors
/// When `/proc` cannot be read.
pub(crate) fn holders_of_mount(directory: &Path) -> io::Result<Vec<String>> {
    let mut holders = Vec::new();
    for mount in mounts::mounts()? {
        let point = mount.mount_point;
        if point != directory && point.starts_with(directory) {
            holders.push(format!("{} is mounted at {}", mount.kind, point.display()));
        }
    }
    let own = std::process::id();
    for pid in pids().filter(|pid| *pid != own) {
        if let Some(path) = paths_of(pid).into_iter().find(|path| path.starts_with(directory)) {
            let command = process::command_of(pid);
            holders.push(format!("process {pid} ({command}) uses {}", path.display()));
        }
    }
    holders.truncate(HOLDERS_MAX);
    Ok(holders)
}

/// The directories, files and mapped files of a process.
fn paths_of(pid: u32) -> Vec<PathBuf> {
    let process = PathBuf::from(format!("/proc/{pid}"));
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
    fn a_process_that_works_in_a_directory_is_named() {
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
        let expected = format!("process {} (sleep) uses {}", child.id(), path.display());
        assert_eq!(holders, [expected]);
    }

    #[test]
    fn nobody_uses_an_empty_directory() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        assert_eq!(holders_of_mount(directory.path()).expect("/proc is readable").len(), 0);
    }
}
