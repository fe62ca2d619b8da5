//! What is mounted where, from `/proc/self/mountinfo`.
//!
//! Invariant: paths come back as they are, with the kernel's octal escapes undone.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// One mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Major and minor number of the device, `0:N` for one without a device.
    pub(crate) device_number: (u64, u64),
    /// Where it is mounted.
    pub(crate) mount_point: PathBuf,
    /// `ext4`, `fuse.coulter`, …
    pub(crate) kind: String,
    /// What is mounted, a device path for most.
    pub(crate) source: PathBuf,
}

/// Everything that is mounted in this mount namespace, in the order of mounting.
///
/// # Errors
/// When `/proc` cannot be read.
pub(crate) fn mounts() -> io::Result<Vec<Mount>> {
    let text = fs::read("/proc/self/mountinfo")?;
    Ok(text.split(|byte| *byte == b'\n').filter_map(parse_line).collect())
}

/// The file systems mounted from the block device at `device`.
///
/// # Errors
/// When `/proc` cannot be read.
pub(crate) fn mounts_of(device: &Path) -> io::Result<Vec<Mount>> {
    let number = fs::metadata(device).map(|m| split_number(m.rdev())).ok();
    let mut mounts = mounts()?;
    // Btrfs shows an anonymous device number, so the path counts as well.
    mounts.retain(|mount| Some(mount.device_number) == number || mount.source == device);
    Ok(mounts)
}

/// The topmost file system mounted exactly at `directory`, which must be absolute.
///
/// # Errors
/// When `/proc` cannot be read.
pub(crate) fn mount_at(directory: &Path) -> io::Result<Option<Mount>> {
    Ok(mounts()?.into_iter().rev().find(|mount| mount.mount_point == directory))
}

fn split_number(number: u64) -> (u64, u64) {
    (u64::from(libc::major(number)), u64::from(libc::minor(number)))
}

/// `36 35 98:0 /root /mount/point options optional… - kind source super-options`
fn parse_line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let separator = fields.iter().skip(6).position(|field| *field == b"-")? + 6;
    let (major, minor) = std::str::from_utf8(fields[2]).ok()?.split_once(':')?;
    Some(Mount {
        device_number: (major.parse().ok()?, minor.parse().ok()?),
        mount_point: unescape(fields[4]),
        kind: String::from_utf8_lossy(fields.get(separator + 1)?).into_owned(),
        source: unescape(fields.get(separator + 2)?),
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
