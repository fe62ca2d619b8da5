//! The devices of a file system besides the one that it is mounted from: the others of btrfs, the log and
//! the real-time device of XFS, the journal of ext4. No mount table shows them as the place of anything.
//!
//! Unreadable entries are skipped. A caller that must be sure asks the kernel whether the device is
//! held.

use crate::mounts::{DeviceNumber, Mount, block_device_number, entries, number_in};
use std::fs;
use std::path::{Path, PathBuf};

const BTRFS: &str = "/sys/fs/btrfs";
const EXT4: &str = "/sys/fs/ext4";
/// What the name of a journal's thread begins with; the name of the journal follows.
const JOURNAL_THREAD: &str = "jbd2/";

/// The numbers of the devices on which the file system lies besides, as far as they are known.
pub(crate) fn of(mount: &Mount) -> Vec<DeviceNumber> {
    match mount.kind.as_str() {
        "btrfs" => block_device_number(&mount.path_here(&mount.source))
            .map(|source| siblings_of(source, Path::new(BTRFS)))
            .unwrap_or_default(),
        "xfs" => named_in_options(mount).filter_map(|path| block_device_number(&path)).collect(),
        "ext3" | "ext4" => journal_of(mount.device_number).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// All devices of the file system that has `one` among its own: `FILE-SYSTEM/devices/NAME/dev`.
fn siblings_of(one: DeviceNumber, file_systems: &Path) -> Vec<DeviceNumber> {
    let mut all = entries(file_systems).map(|file_system| {
        let devices = entries(&file_system.join("devices"));
        devices.filter_map(|device| number_in(&device)).collect::<Vec<_>>()
    });
    all.find(|numbers| numbers.contains(&one)).unwrap_or_default()
}

/// The devices that XFS was told of when it was mounted.
fn named_in_options(mount: &Mount) -> impl Iterator<Item = PathBuf> {
    mount.options.split(',').filter_map(|option| {
        let path = option.strip_prefix("logdev=").or_else(|| option.strip_prefix("rtdev="))?;
        Some(mount.path_here(Path::new(path)))
    })
}

/// The external journal of the ext4 file system on this device: the journal's thread is called after the
/// device, that of an internal one after the device and an inode.
fn journal_of((major, minor): DeviceNumber) -> Option<DeviceNumber> {
    let link = fs::read_link(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let file_system = Path::new(EXT4).join(link.file_name()?);
    let thread = fs::read_to_string(file_system.join("journal_task")).ok()?;
    let name = fs::read_to_string(format!("/proc/{}/comm", thread.trim_end())).ok()?;
    number_in(&Path::new("/sys/class/block").join(name.trim_end().strip_prefix(JOURNAL_THREAD)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_devices_of_one_file_system_are_not_those_of_another() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        for (file_system, name, number) in
            [("a", "loop1", "7:1"), ("a", "loop2", "7:2"), ("b", "sda1", "8:1"), ("b", "x", "x")]
        {
            let device = directory.path().join(file_system).join("devices").join(name);
            fs::create_dir_all(&device).expect("it is writable");
            fs::write(device.join("dev"), format!("{number}\n")).expect("it is writable");
        }
        fs::create_dir(directory.path().join("features")).expect("it is writable");
        let siblings = |one| {
            let mut found = siblings_of(one, directory.path());
            found.sort_unstable();
            found
        };
        assert_eq!(siblings((7, 2)), [(7, 1), (7, 2)]);
        assert_eq!(siblings((8, 1)), [(8, 1)]);
        assert_eq!(siblings((7, 3)), []);
    }

    #[test]
    fn the_options_of_xfs_name_its_log_and_its_real_time_device() {
        let mount = Mount {
            kind: "xfs".into(),
            options: "rw,inode64,logdev=/dev/loop1,rtdev=/dev/sdx,noquota".into(),
            ..Mount::default()
        };
        let found: Vec<PathBuf> = named_in_options(&mount).collect();
        assert_eq!(found, [Path::new("/dev/loop1"), Path::new("/dev/sdx")]);
        let elsewhere = Mount { namespace_of: Some(7), ..mount };
        let found: Vec<PathBuf> = named_in_options(&elsewhere).collect();
        assert_eq!(found[0], Path::new("/proc/7/root/dev/loop1"));
    }
}
