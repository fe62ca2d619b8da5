//! File systems on block devices: which one is there, making, mounting, unmounting, checking.

use crate::dead_loops;
use crate::error::{CliError, MountError};
use crate::tool;
use clap::ValueEnum;
use coulter_daemon::signatures::{self, Signature};
use coulter_system::holders;
use coulter_system::mounts;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::Path;

/// File systems that can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(
    missing_docs,
    reason = "the words of the command line; what stands here would be in the help"
)]
pub enum FileSystem {
    Ext4,
    Xfs,
    Btrfs,
}

impl FileSystem {
    /// The name that `mount -t` knows.
    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
            FileSystem::Btrfs => "btrfs",
        }
    }

    /// The package that has its programs.
    fn package(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "e2fsprogs",
            FileSystem::Xfs => "xfsprogs",
            FileSystem::Btrfs => "btrfs-progs",
        }
    }

    /// Makes one on `device`.
    ///
    /// # Errors
    /// What its program says; [`MountError::DeadLoopDevices`] when others are to blame.
    pub fn make(self, device: &Path, options: &[&str]) -> Result<(), CliError> {
        let program = format!("mkfs.{}", self.name());
        let options = ["-q"].iter().chain(options).map(OsStr::new);
        let arguments: Vec<&OsStr> = options.chain([device.as_os_str()]).collect();
        let made = tool::run(&program, self.package(), &arguments).map(drop);
        made.map_err(|error| {
            let cause = error.report();
            let dead = dead_loops::blamed_by(cause.why.as_deref().unwrap_or_default());
            if dead.is_empty() {
                return error;
            }
            let (device, cause) = (device.to_owned(), Box::new(cause));
            MountError::DeadLoopDevices { device, cause, dead }.into()
        })
    }
}

/// What is on the block device `device`, most telling first.
///
/// # Errors
/// When it cannot be read.
pub fn found_on(device: &Path) -> Result<Vec<Signature>, CliError> {
    let failed = |source| CliError::io("read", device, source);
    let mut file = File::open(device).map_err(failed)?;
    let size = file.seek(SeekFrom::End(0)).map_err(failed)?;
    signatures::detect(&file, size).map_err(failed)
}

/// Mounts `device` on `directory`.
///
/// # Errors
/// What `mount` says.
pub fn mount(kind: &str, device: &Path, directory: &Path, options: &str) -> Result<(), CliError> {
    let options = if options.is_empty() { "defaults" } else { options };
    let arguments = ["-t", kind, "-o", options].map(OsStr::new);
    let ends = [device.as_os_str(), directory.as_os_str()];
    let arguments: Vec<&OsStr> = arguments.into_iter().chain(ends).collect();
    tool::run("mount", "mount", &arguments).map(drop)
}

/// Unmounts `directory`. That somebody else did so just before is as well.
///
/// # Errors
/// [`MountError::MountBusy`] with the processes that use it.
pub fn unmount(directory: &Path) -> Result<(), CliError> {
    match rustix::mount::unmount(directory, UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::INVAL) if mounts::mount_at(directory).is_ok_and(|mount| mount.is_none()) => {
            Ok(())
        }
        Err(Errno::BUSY) => {
            let holders = holders::of_directory(directory);
            Err(MountError::MountBusy { directory: directory.to_owned(), holders }.into())
        }
        Err(errno) => Err(CliError::io("unmount", directory, errno.into())),
    }
}
