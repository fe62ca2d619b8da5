//! Stores by what is written in them: `LABEL=fast`, `UUID=…`, as in fstab, wherever the disk turns up.
//!
//! Only block devices are looked at: a file has a path that stays.

use clap::builder::{OsStringValueParser, TypedValueParser};
use coulter_check::FileBlocks;
use coulter_check::dump::{self, SuperblockState};
use coulter_system::{mounts, seekable};
use std::fs;
use std::path::{Path, PathBuf};

/// What a store is looked for by.
enum Wanted<'a> {
    Label(&'a str),
    Uuid(String),
}

/// What a command line takes for a store; a path need not be text.
pub(crate) fn parser() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().try_map(|words| match words.to_str() {
        Some(text) => parse(text),
        None => Ok(PathBuf::from(words)),
    })
}

/// The path of a store as it stands on a command line: itself, or that of the disk which holds a store of this label
/// or UUID.
///
/// # Errors
/// When there is none, or more than one.
fn parse(text: &str) -> Result<PathBuf, String> {
    let wanted = match text.split_once('=') {
        Some(("LABEL", label)) if !label.is_empty() => Wanted::Label(label),
        Some(("UUID", uuid)) if !uuid.is_empty() => Wanted::Uuid(uuid.to_ascii_lowercase()),
        _ => return Ok(PathBuf::from(text)),
    };
    // Somebody may have a file of that name.
    if Path::new(text).exists() {
        return Ok(PathBuf::from(text));
    }
    let found: Vec<PathBuf> = disks().into_iter().filter(|disk| holds(disk, &wanted)).collect();
    match found.as_slice() {
        [one] => Ok(one.clone()),
        [] if !rustix::process::geteuid().is_root() => {
            Err("no disk that this user may read holds such a store; try it with sudo".to_owned())
        }
        [] => Err("no disk holds such a store; a store in a file is named by its path".to_owned()),
        several => {
            let names: Vec<_> = several.iter().map(|path| path.display().to_string()).collect();
            Err(format!(
                "several disks hold such a store, {}: name one by its path",
                names.join(", ")
            ))
        }
    }
}

/// Every disk and partition that does not depend on a daemon: a read of one whose daemon is gone or stopped may wait for
/// ever, and volumes hold no stores.
fn disks() -> Vec<PathBuf> {
    let devices = fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
    let own = devices.map(|device| device.path()).filter(|device| !is_served(device));
    let mut disks: Vec<_> =
        own.filter_map(|device| Some(Path::new("/dev").join(device.file_name()?))).collect();
    disks.sort();
    disks
}

/// Whether some process serves a device.
fn is_served(device: &Path) -> bool {
    let name = device.file_name().unwrap_or_default().to_string_lossy();
    if name.starts_with("ublk") || name.starts_with("nbd") {
        return true;
    }
    let backing = fs::read_to_string(device.join("loop/backing_file")).unwrap_or_default();
    let mounts = mounts::mounts().unwrap_or_default().into_iter();
    let mut fuse = mounts.filter(|mount| mount.kind.starts_with("fuse"));
    // The file of a daemon is called so, whichever namespace its mount is in.
    backing.trim_end().ends_with(".mount/volume")
        || fuse.any(|mount| Path::new(backing.trim_end()).starts_with(mount.mount_point))
}

fn holds(disk: &Path, wanted: &Wanted<'_>) -> bool {
    let Ok(mut blocks) = seekable::open(disk).and_then(FileBlocks::new) else { return false };
    let copies = dump::superblock(&mut blocks).value.unwrap_or_default();
    copies.iter().any(|copy| match (&copy.state, wanted) {
        (SuperblockState::Valid(fields), Wanted::Label(label)) => fields.label == *label,
        (SuperblockState::Valid(fields), Wanted::Uuid(uuid)) => fields.uuid == *uuid,
        (SuperblockState::Damaged { .. }, _) => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_itself_and_what_no_disk_holds_is_said() {
        for text in ["disk.img", "LABEL=", "a=b", "/srv/UUID=1"] {
            assert_eq!(parse(text), Ok(PathBuf::from(text)));
        }
        let error = parse("LABEL=no store has this label").expect_err("there is none");
        assert!(error.contains("holds such a store"), "{error}");
    }
}
