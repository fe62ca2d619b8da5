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
    /// Which directory of the file system is seen there.
    pub root: PathBuf,
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
    /// Its number, and that of the mount on which it is mounted.
    pub id: u64,
    /// See above.
    pub parent: u64,
    /// The group of mounts that pass on to each other what is mounted on them.
    pub shared: Option<u64>,
    /// The group that passes on to it.
    pub master: Option<u64>,
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
    let mut found: Vec<Mount> = tables().into_iter().flatten().collect();
    found.retain(|mount| lies_on(mount, device, &numbers));
    found
}

/// What is mounted in each mount namespace of a running process, our own first. What cannot be read is left out.
fn tables() -> Vec<Vec<Mount>> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for pid in std::iter::once(None).chain(pids().map(Some)) {
        let process = pid.map_or_else(|| "/proc/self".into(), |pid| format!("/proc/{pid}"));
        let Ok(namespace) = fs::read_link(format!("{process}/ns/mnt")) else { continue };
        if seen.insert(namespace) {
            let table = table(Path::new(&format!("{process}/mountinfo")), pid);
            found.push(table.unwrap_or_default());
        }
    }
    found
}

/// Mounts of the file system at `directory` that stay when it is unmounted there, in any mount namespace: bind
/// mounts of it or of a part, and copies to which the kernel does not pass the unmount on. None if nothing is
/// mounted there.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn others_of(directory: &Path) -> io::Result<Vec<Mount>> {
    let Some(this) = mount_at(directory)? else { return Ok(Vec::new()) };
    let tables = tables();
    let place = tables.first().and_then(|own| place_in_parent(&this, own));
    let mut found = Vec::new();
    for table in &tables {
        let goes_along = |mount: &Mount| match (place_in_parent(mount, table), &place) {
            // The kernel passes the unmount on from the parent to its peers and to those that follow it.
            (Some((parent, at)), Some((own_parent, own_at))) => {
                let group = own_parent.shared;
                at == *own_at && group.is_some() && [parent.shared, parent.master].contains(&group)
            }
            _ => false,
        };
        let is_it = |mount: &Mount| mount.namespace_of.is_none() && mount.id == this.id;
        let others = table.iter().filter(|mount| mount.device_number == this.device_number);
        found.extend(others.filter(|mount| !is_it(mount) && !goes_along(mount)).cloned());
    }
    Ok(found)
}

/// The mounts of overlayfs, in any mount namespace, that have a layer on what is mounted on
/// `directory`: they go on with it when it is unmounted there. Layers are known by the paths that
/// they were given by.
pub fn layered_on(directory: &Path) -> Vec<Mount> {
    let mut found: Vec<Mount> = tables().into_iter().flatten().collect();
    found.retain(|mount| {
        mount.kind == "overlay" && layers(&mount.options).any(|layer| layer.starts_with(directory))
    });
    found
}

/// The directories that an overlayfs is made of.
fn layers(options: &str) -> impl Iterator<Item = &Path> {
    let named = options.split(',').filter_map(|option| option.split_once('='));
    let layers = named.filter(|(name, _)| {
        let name = name.trim_end_matches('+');
        ["lowerdir", "upperdir", "workdir", "datadir"].contains(&name)
    });
    layers.flat_map(|(_, paths)| paths.split(':')).map(Path::new)
}

/// On which mount another one is mounted, and on which directory of its file system.
fn place_in_parent<'a>(mount: &Mount, table: &'a [Mount]) -> Option<(&'a Mount, PathBuf)> {
    let parent = table.iter().find(|parent| parent.id == mount.parent)?;
    let below = mount.mount_point.strip_prefix(&parent.mount_point).ok()?;
    Some((parent, parent.root.join(below)))
}

/// The topmost file system mounted exactly at `directory`, which must be absolute.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn mount_at(directory: &Path) -> io::Result<Option<Mount>> {
    Ok(mounts()?.into_iter().rev().find(|mount| mount.mount_point == directory))
}

/// The mount that `path`, which must be absolute, without links, and need not be there, lies on.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn covering(path: &Path) -> io::Result<Option<Mount>> {
    let mounts = mounts()?.into_iter().filter(|mount| path.starts_with(&mount.mount_point));
    // The last one at a place is on top.
    Ok(mounts.max_by_key(|mount| mount.mount_point.components().count()))
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
    let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse().ok();
    let tag =
        |name: &[u8]| fields[6..separator].iter().find_map(|it| number(it.strip_prefix(name)?));
    Some(Mount {
        id: number(fields[0])?,
        parent: number(fields[1])?,
        shared: tag(b"shared:"),
        master: tag(b"master:"),
        device_number: parse_number(std::str::from_utf8(fields[2]).ok()?)?,
        root: unescape(fields[3]),
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
        assert_eq!((mount.id, mount.parent, &*mount.root), (36, 35, Path::new("/")));
        assert_eq!((mount.shared, mount.master), (Some(1), Some(2)));
    }

    #[test]
    fn the_layers_of_overlayfs_are_found_in_its_options() {
        let options = "rw,lowerdir=/a:/srv/b,lowerdir+=/c,upperdir=/srv/d/up,workdir=/w,xino=off";
        let found: Vec<_> = layers(options).collect();
        assert_eq!(found, ["/a", "/srv/b", "/c", "/srv/d/up", "/w"].map(Path::new));
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
