//! Making, mounting, unmounting and checking the three file systems.

use crate::error::SystemsError;
use crate::tool;
use coulter_system::mounts::{mount_at, mounts_of_everywhere};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use std::fmt;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a mount may stay busy with giving up a device that is gone, and other mount namespaces may
/// keep a copy of it.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);

/// A kind of file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileSystem {
    /// The fourth extended file system.
    Ext4,
    /// XFS.
    Xfs,
    /// Btrfs.
    Btrfs,
}

impl FileSystem {
    /// All of them.
    pub const ALL: [FileSystem; 3] = [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs];

    /// The name that `mount -t` knows.
    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
            FileSystem::Btrfs => "btrfs",
        }
    }

    fn package(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "e2fsprogs",
            FileSystem::Xfs => "xfsprogs",
            FileSystem::Btrfs => "btrfs-progs",
        }
    }

    /// Whether its programs are installed.
    pub fn is_installed(self) -> bool {
        tool::is_installed(&format!("mkfs.{}", self.name()))
    }

    /// Makes one on `device`, whole: ext4 would write its tables later, beside what is measured,
    /// and only where the device cannot write zeros by itself.
    ///
    /// # Errors
    /// What `mkfs` says.
    pub fn make(self, device: &Path) -> Result<(), SystemsError> {
        let mut command = tool::command(&format!("mkfs.{}", self.name()));
        if self == FileSystem::Ext4 {
            command.args(["-E", "lazy_itable_init=0,lazy_journal_init=0"]);
        }
        tool::run(command.arg("-q").arg(device), self.package()).map(drop)
    }

    /// Mounts `device` with online discard, so that trims take part.
    ///
    /// # Errors
    /// What `mount` says.
    pub fn mount(self, device: &Path, directory: &Path) -> Result<(), SystemsError> {
        let discard = match self {
            FileSystem::Ext4 | FileSystem::Xfs => "discard",
            FileSystem::Btrfs => "discard=sync",
        };
        let mut command = tool::command("mount");
        command.args(["-t", self.name(), "-o", discard]).args([device, directory]);
        tool::run(&mut command, "mount").map(drop)
    }

    /// Unmounts what is mounted on `directory`, if anything is, and waits until it lies on its device no
    /// more: a mount namespace that another process has made meanwhile keeps a copy of the mount.
    ///
    /// # Errors
    /// When it stays busy, or is refused.
    pub fn unmount(directory: &Path) -> Result<(), SystemsError> {
        let deadline = Instant::now() + UNMOUNT_PATIENCE;
        let mounted = mount_at(directory)
            .map_err(|error| SystemsError::io("read", Path::new("/proc/self/mountinfo"), error))?;
        loop {
            match unmount(directory, UnmountFlags::NOFOLLOW) {
                Ok(()) => break,
                // Nothing is mounted there.
                Err(Errno::INVAL) => return Ok(()),
                Err(Errno::BUSY) if Instant::now() < deadline => std::thread::sleep(PAUSE),
                Err(error) => return Err(SystemsError::io("unmount", directory, error.into())),
            }
        }
        let device = mounted.map(|mount| mount.source).filter(|source| source.starts_with("/dev"));
        device.map_or(Ok(()), |device| wait_until_given_up(&device, deadline))
    }

    /// Has the file system's own checker read `device`, which must not be mounted.
    ///
    /// # Errors
    /// A violation with what it found.
    pub fn check(self, device: &Path) -> Result<(), SystemsError> {
        let (program, arguments): (_, &[&str]) = match self {
            FileSystem::Ext4 => ("e2fsck", &["-f", "-n"]),
            FileSystem::Xfs => ("xfs_repair", &["-n"]),
            FileSystem::Btrfs => ("btrfs", &["check", "--readonly"]),
        };
        let mut command = tool::command(program);
        let output = tool::finish(command.args(arguments).arg(device), self.package())?;
        if output.status.success() {
            return Ok(());
        }
        let found = tool::words_of(&output);
        Err(SystemsError::violation(format!("{}: {found}", tool::described(&command))))
    }
}

/// Waits until no file system has `device` for itself.
fn wait_until_given_up(device: &Path, deadline: Instant) -> Result<(), SystemsError> {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    while let Err(Errno::BUSY) = open(device, flags, Mode::empty()) {
        if Instant::now() > deadline {
            let places: Vec<String> =
                mounts_of_everywhere(device).iter().map(|mount| mount.place_of(device)).collect();
            let error = io::Error::new(io::ErrorKind::ResourceBusy, places.join(", "));
            return Err(SystemsError::io("have for ourselves", device, error));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
