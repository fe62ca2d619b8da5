//! What the kernel says of a block device.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a disk is waited for that nothing known uses, for the reason that a
/// [lock](super::lock) is. Not as long: what uses it may be alive and nameless.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// What there is to know of a disk.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) logical_block_size: u64,
    pub(super) volatile_cache: bool,
    pub(super) discard: bool,
    pub(super) read_only: bool,
}

/// Asks the kernel about an open disk with the given device number.
pub(super) fn facts(file: &File, number: u64) -> io::Result<Facts> {
    let mut logical_block_size: libc::c_int = 0;
    // SAFETY: this request writes one `int` to the address.
    let result =
        unsafe { libc::ioctl(file.as_raw_fd(), libc::BLKSSZGET as _, &mut logical_block_size) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let directory = directory(number);
    Ok(Facts {
        logical_block_size: u64::try_from(logical_block_size).unwrap_or(0),
        // Where nothing is known, flushing once too often is the safe mistake.
        volatile_cache: of_queue(&directory, "write_cache").is_none_or(|is| is != "write through"),
        // Where nothing is known, the first discard will tell.
        discard: of_queue(&directory, "discard_max_bytes").is_none_or(|is| is != "0"),
        read_only: attribute(&directory.join("ro")).is_some_and(|is| is == "1"),
    })
}

/// Whether the path is a disk that is write-protected.
pub(super) fn is_read_only(path: &Path) -> bool {
    let number = fs::metadata(path).map(|metadata| metadata.rdev()).unwrap_or(0);
    number != 0 && attribute(&directory(number).join("ro")).is_some_and(|is| is == "1")
}

/// What uses a disk: a mounted file system, or another block device on top.
pub(super) fn holder(path: &Path) -> Option<String> {
    let number = fs::metadata(path).ok()?.rdev();
    // Not of the process: each thread may see mounts of its own.
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
    if let Some(place) = mounted_at(&mounts, &dev_name(number)) {
        return Some(format!("the file system mounted on {place}"));
    }
    let mut holders = fs::read_dir(directory(number).join("holders")).ok()?;
    let name = holders.next()?.ok()?.file_name();
    Some(format!("the block device {}", name.to_string_lossy()))
}

/// Finds the mount point of a device in lines such as
/// `36 35 98:0 /root /mnt rw,noatime master:1 - ext3 /dev/root rw`.
fn mounted_at<'a>(mounts: &'a str, device: &str) -> Option<&'a str> {
    mounts.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(2);
        let is_it = words.next()? == device;
        let place = words.nth(1)?;
        is_it.then_some(place)
    })
}

fn dev_name(number: u64) -> String {
    format!("{}:{}", libc::major(number), libc::minor(number))
}

pub(super) fn directory(number: u64) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{}", dev_name(number)))
}

/// An attribute of the disk's queue; a partition's queue is that of the whole disk.
fn of_queue(directory: &Path, name: &str) -> Option<String> {
    attribute(&directory.join("queue").join(name))
        .or_else(|| attribute(&directory.join("../queue").join(name)))
}

fn attribute(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_is_found_by_device_number() {
        let mounts = "36 35 98:0 / /mnt/one rw - ext3 /dev/a rw\n37 35 98:1 / /two rw - xfs b rw\n";
        assert_eq!(mounted_at(mounts, "98:1"), Some("/two"));
        assert_eq!(mounted_at(mounts, "98:2"), None);
    }
}
