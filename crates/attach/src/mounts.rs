//! What is mounted where, from `/proc/*/mountinfo`.
//!
//! A file system is on a device if it is mounted from it, from a partition of it, or from a device
//! that the kernel has made of it: of LVM, of LUKS, of MD.
//!
//! Invariant: paths come back as they are, with the kernel's octal escapes undone.

use crate::processes::pids;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Major and minor number of a device.
type DeviceNumber = (u64, u64);

/// One mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Major and minor number of the device, `0:N` for one without a device.
    pub device_number: (u64, u64),
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// `ext4`, `fuse.coulter`, …
    pub kind: String,
    /// What is mounted, a device path for most.
    pub source: PathBuf,
    /// A process in whose mount namespace it is mounted, unless it is our own.
    pub namespace_of: Option<u32>,
}

impl Mount {
    /// By which path this process reaches its root, as long as the process that it is mounted for runs.
    pub fn reachable_at(&self) -> PathBuf {
        let Some(pid) = self.namespace_of else { return self.mount_point.clone() };
        let below = self.mount_point.strip_prefix("/").unwrap_or(&self.mount_point);
        Path::new("/proc").join(pid.to_string()).join("root").join(below)
    }
}

/// Everything that is mounted in this mount namespace, in the order of mounting.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn mounts() -> io::Result<Vec<Mount>> {
    table(Path::new("/proc/self/mountinfo"), None)
}

/// The file systems that are mounted in this mount namespace and lie on the block device at `device`.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn mounts_of(device: &Path) -> io::Result<Vec<Mount>> {
    let mut mounts = mounts()?;
    let numbers = numbers_on(device);
    mounts.retain(|mount| lies_on(mount, device, &numbers));
    Ok(mounts)
}

/// The same in every mount namespace of a running process, our own first. What cannot be read is left
/// out.
pub fn mounts_of_everywhere(device: &Path) -> Vec<Mount> {
    let numbers = numbers_on(device);
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for pid in std::iter::once(None).chain(pids().map(Some)) {
        let process = pid.map_or_else(|| "/proc/self".into(), |pid| format!("/proc/{pid}"));
        let Ok(namespace) = fs::read_link(format!("{process}/ns/mnt")) else { continue };
        if seen.insert(namespace) {
            let table = table(Path::new(&format!("{process}/mountinfo")), pid);
            found.extend(table.unwrap_or_default());
        }
    }
    found.retain(|mount| lies_on(mount, device, &numbers));
    found
}

/// The topmost file system mounted exactly at `directory`, which must be absolute.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn mount_at(directory: &Path) -> io::Result<Option<Mount>> {
    Ok(mounts()?.into_iter().rev().find(|mount| mount.mount_point == directory))
}

fn table(path: &Path, namespace_of: Option<u32>) -> io::Result<Vec<Mount>> {
    let text = fs::read(path)?;
    let mounts = text.split(|byte| *byte == b'\n').filter_map(parse_line);
    Ok(mounts.map(|mount| Mount { namespace_of, ..mount }).collect())
}

fn lies_on(mount: &Mount, device: &Path, numbers: &BTreeSet<DeviceNumber>) -> bool {
    // Btrfs shows an anonymous device number, so the path counts as well. In another namespace it may
    // lead elsewhere; and only what can be a device is asked, for others may not answer.
    let of_source = || {
        let is_ours = mount.namespace_of.is_none() && mount.source.starts_with("/dev");
        is_ours.then(|| block_device_number(&mount.source)).flatten()
    };
    numbers.contains(&mount.device_number)
        || mount.source == device
        || of_source().is_some_and(|number| numbers.contains(&number))
}

/// The numbers of the block device, its partitions, and all that the kernel has made of them.
fn numbers_on(device: &Path) -> BTreeSet<DeviceNumber> {
    let mut found = BTreeSet::new();
    let mut next = Vec::from_iter(block_device_number(device));
    while let Some((major, minor)) = next.pop() {
        if !found.insert((major, minor)) {
            continue;
        }
        let described = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        let below = |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten();
        let partitions = below(&described).filter(|entry| entry.path().join("partition").exists());
        let made_of_it = below(&described.join("holders"));
        let numbers = partitions.chain(made_of_it).filter_map(|entry| {
            let text = fs::read_to_string(entry.path().join("dev")).ok()?;
            parse_number(text.trim_end())
        });
        next.extend(numbers);
    }
    found
}

fn block_device_number(path: &Path) -> Option<DeviceNumber> {
    let metadata = fs::metadata(path).ok()?;
    let number = metadata.rdev();
    let is_one = metadata.file_type().is_block_device();
    is_one.then(|| (u64::from(libc::major(number)), u64::from(libc::minor(number))))
}

fn parse_number(text: &str) -> Option<DeviceNumber> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// `36 35 98:0 /root /mount/point options optional… - kind source super-options`
fn parse_line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let separator = fields.iter().skip(6).position(|field| *field == b"-")? + 6;
    Some(Mount {
        device_number: parse_number(std::str::from_utf8(fields[2]).ok()?)?,
        mount_point: unescape(fields[4]),
        kind: String::from_utf8_lossy(fields.get(separator + 1)?).into_owned(),
        source: unescape(fields.get(separator + 2)?),
        namespace_of: None,
    })
}

/// Undoes `\040` and its kin.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        match octal(rest) {
            Some(byte) => {
                bytes.push(byte);
                rest = &rest[4..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// The byte that an escape at the start of `text` stands for.
fn octal(text: &[u8]) -> Option<u8> {
    let [b'\\', digits @ ..] = text.get(..4)? else { return None };
    digits.iter().try_fold(0_u8, |value, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 8)?;
        value.checked_mul(8)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_with_escapes_and_optional_fields() {
        let line =
            b"36 35 7:3 / /mnt/with\\040space rw,noatime shared:1 master:2 - ext4 /dev/loop3 rw";
        let mount = parse_line(line).expect("the line is well formed");
        assert_eq!(mount.device_number, (7, 3));
        assert_eq!(mount.mount_point, Path::new("/mnt/with space"));
        assert_eq!(mount.kind, "ext4");
        assert_eq!(mount.source, Path::new("/dev/loop3"));
    }

    #[test]
    fn lines_that_make_no_sense_are_passed_over() {
        for line in [&b""[..], b"36 35", b"36 35 x / /m rw - ext4 /dev/a rw", b"a b c d e f g -"] {
            assert_eq!(parse_line(line), None);
        }
    }

    #[test]
    fn a_backslash_that_escapes_nothing_stays() {
        assert_eq!(unescape(b"a\\9\\1340\\04"), Path::new("a\\9\\0\\04"));
        assert_eq!(unescape(b"\\777"), Path::new("\\777"));
    }

    #[test]
    fn the_root_file_system_is_mounted() {
        assert!(mount_at(Path::new("/")).expect("/proc is readable").is_some());
    }
}
