//! What is mounted where, from `/proc/*/mountinfo`.
//!
//! A file system is on a device if it is mounted from it, from a partition of it, or from a device
//! that the kernel has made of it: of LVM, of LUKS, of MD; and if it keeps a part of itself there, such as
//! a log.
//!
//! Invariant: paths come back as they are, with the kernel's octal escapes undone.

use crate::further_devices;
use crate::processes::pids;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Major and minor number of a device.
pub type DeviceNumber = (u64, u64);

/// One mounted file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    /// Major and minor number of the device, `0:N` for one without a device.
    pub device_number: (u64, u64),
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// `ext4`, `fuse.coulter`, …
    pub kind: String,
    /// What is mounted, a device path for most.
    pub source: PathBuf,
    /// The options of the file system, with commas between.
    pub options: String,
    /// A process in whose mount namespace it is mounted, unless it is our own.
    pub namespace_of: Option<u32>,
}

impl Mount {
    /// By which path this process reaches its root, as long as the process that it is mounted for runs.
    pub fn reachable_at(&self) -> PathBuf {
        self.path_here(&self.mount_point)
    }

    /// The path by which this process reaches what is at `path` where it is mounted.
    pub fn path_here(&self, path: &Path) -> PathBuf {
        let Some(pid) = self.namespace_of else { return path.to_owned() };
        let below = path.strip_prefix("/").unwrap_or(path);
        Path::new("/proc").join(pid.to_string()).join("root").join(below)
    }

    /// Where it is mounted, for people, who know that it has to do with `device`.
    pub fn place_of(&self, device: &Path) -> String {
        let mut place = format!("mounted on {}", self.mount_point.display());
        if self.source != device && self.source.starts_with("/dev") {
            place += &format!(" from {}", self.source.display());
        }
        if let Some(pid) = self.namespace_of {
            place += &format!(" in the mount namespace of process {pid}");
        }
        place
    }

    /// The numbers of all devices on which it lies directly, as far as they are known.
    pub fn numbers(&self) -> Vec<DeviceNumber> {
        let mut numbers = further_devices::of(self);
        numbers.push(self.device_number);
        // Btrfs shows an anonymous number. And only what can be a device is asked, for others may not
        // answer.
        if self.source.starts_with("/dev") {
            numbers.extend(block_device_number(&self.path_here(&self.source)));
        }
        numbers
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

/// The first file system that is mounted somewhere below `directory`, which must be absolute; not on it.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn first_below(directory: &Path) -> io::Result<Option<PathBuf>> {
    let mut points = mounts()?.into_iter().map(|mount| mount.mount_point);
    Ok(points.find(|point| point != directory && point.starts_with(directory)))
}

fn table(path: &Path, namespace_of: Option<u32>) -> io::Result<Vec<Mount>> {
    let text = fs::read(path)?;
    let mounts = text.split(|byte| *byte == b'\n').filter_map(parse_line);
    Ok(mounts.map(|mount| Mount { namespace_of, ..mount }).collect())
}

fn lies_on(mount: &Mount, device: &Path, numbers: &[DeviceNumber]) -> bool {
    mount.source == device || mount.numbers().iter().any(|number| numbers.contains(number))
}

/// The numbers of the block device, its partitions, and all that the kernel has made of them: each
/// behind one that it is made of.
pub fn numbers_on(device: &Path) -> Vec<DeviceNumber> {
    let mut found = Vec::from_iter(block_device_number(device));
    let mut next = 0;
    while let Some(&number) = found.get(next) {
        next += 1;
        for above in partitions_of(number).chain(made_of(number)) {
            if !found.contains(&above) {
                found.push(above);
            }
        }
    }
    found
}

/// The partitions of a device.
pub fn partitions_of(number: DeviceNumber) -> impl Iterator<Item = DeviceNumber> {
    let below = entries(&directory_of(number));
    below.filter(|entry| entry.join("partition").exists()).filter_map(|entry| number_in(&entry))
}

/// What the kernel has made of a device.
pub fn made_of(number: DeviceNumber) -> impl Iterator<Item = DeviceNumber> {
    entries(&directory_of(number).join("holders")).filter_map(|entry| number_in(&entry))
}

/// Where `/sys` describes a device.
fn directory_of((major, minor): DeviceNumber) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))
}

/// What is in a directory; nothing if it cannot be read.
pub fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// The number of the device that `/sys` describes in `directory`.
pub fn number_in(directory: &Path) -> Option<DeviceNumber> {
    parse_number(fs::read_to_string(directory.join("dev")).ok()?.trim_end())
}

/// The number of the block device at `path`; `None` if there is none.
pub fn block_device_number(path: &Path) -> Option<DeviceNumber> {
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
        options: unescape(fields.get(separator + 3).unwrap_or(&&b""[..])).to_string_lossy().into(),
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
        assert_eq!(mount.options, "rw");
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
