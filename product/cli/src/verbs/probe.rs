//! `coulter probe`: what udev asks of a block device.

use crate::error::{CliError, StoreError};
use crate::terminal;
use clap::Args;
use coulter_check::FileBlocks;
use coulter_check::dump::{self, SuperblockFields, SuperblockState};
use coulter_system::seekable;
use std::fmt::Write;
use std::io::ErrorKind;
use std::path::PathBuf;

/// Bytes of a block.
const BLOCK_SIZE: u64 = coulter::service::BLOCK_SIZE;

/// Bytes that stay as they are in names of links, besides letters and digits, as in udev's `blkid`.
const PLAIN: &[u8] = b"#+-.:=@_";

/// Tell whether a device or a file holds a store, as udev properties.
///
/// Only the superblocks are read, and nothing is written or locked: an attached store can be probed. The exit code is
/// 2 if there is no store. The udev rule of the package calls this for each block device, so that `lsblk -f`,
/// `udevadm info` and the links in /dev/disk/by-uuid and /dev/disk/by-label know stores on disks. Programs that ask
/// libblkid directly do not know them.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter probe /dev/sdb                   ID_FS_TYPE=coulter, ID_FS_UUID=…, or exit code 2
  coulter probe disk.img")]
pub(crate) struct Probe {
    /// Device or file to look at
    pub(crate) path: PathBuf,
}

impl Probe {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let path = &self.path;
        let failed = |source| CliError::io("look at", path, source);
        let file = match seekable::open(path) {
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                return Err(StoreError::NoStore { path: path.clone() }.into());
            }
            opened => opened.map_err(failed)?,
        };
        let mut blocks = FileBlocks::new(file).map_err(failed)?;
        let copies = dump::superblock(&mut blocks).value.unwrap_or_default();
        let newest = copies.into_iter().find_map(|copy| match copy.state {
            SuperblockState::Valid(fields) if fields.newest => Some(fields),
            _ => None,
        });
        let Some(fields) = newest else {
            return Err(StoreError::NoStore { path: path.clone() }.into());
        };
        terminal::print(properties(&fields).trim_end())
    }
}

/// Properties by the names that udev's own `blkid` uses.
fn properties(fields: &SuperblockFields) -> String {
    let SuperblockFields { uuid, label, version, .. } = fields;
    let mut text = String::new();
    let mut property = |name: &str, value: &str| {
        let _ = writeln!(text, "{name}={value}");
    };
    property("ID_FS_TYPE", "coulter");
    // It is no file system: nothing mounts it.
    property("ID_FS_USAGE", "other");
    property("ID_FS_VERSION", &version.to_string());
    property("ID_FS_UUID", uuid);
    property("ID_FS_UUID_ENC", uuid);
    if !label.is_empty() {
        property("ID_FS_LABEL", &safe(label));
        property("ID_FS_LABEL_ENC", &encoded(label));
    }
    property("ID_FS_BLOCKSIZE", &BLOCK_SIZE.to_string());
    property("ID_FS_SIZE", &(fields.device_blocks * BLOCK_SIZE).to_string());
    property("COULTER_VOLUME_SIZE", &fields.volume_blocks.saturating_mul(BLOCK_SIZE).to_string());
    if fields.root_limit > 0 {
        let size = |count: u64| count.saturating_mul(BLOCK_SIZE).to_string();
        property("COULTER_CAPACITY", &size(fields.capacity_blocks));
        let limit = u64::from(fields.root_limit) * coulter::STRETCH_SIZE;
        property("COULTER_TOUCHED_LIMIT", &limit.to_string());
    }
    text
}

fn is_plain(character: char) -> bool {
    match u8::try_from(character) {
        Ok(byte) if character.is_ascii() => byte.is_ascii_alphanumeric() || PLAIN.contains(&byte),
        _ => !character.is_control(),
    }
}

/// For people: without anything that a rule or a shell could misread.
fn safe(label: &str) -> String {
    label.chars().map(|it| if is_plain(it) { it } else { '_' }).collect()
}

/// For names of links: what is not plain as `\x20`.
fn encoded(label: &str) -> String {
    let mut text = String::new();
    for character in label.chars() {
        if is_plain(character) {
            text.push(character);
            continue;
        }
        for byte in character.to_string().bytes() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_becomes_the_name_of_a_link_as_udev_writes_it() {
        assert_eq!(encoded("fast disk"), "fast\\x20disk");
        assert_eq!(encoded("a/b\"\\$(c)"), "a\\x2fb\\x22\\x5c\\x24\\x28c\\x29");
        assert_eq!(encoded("größe-1.2"), "größe-1.2");
        assert_eq!(safe("a b\n'c'"), "a_b__c_");
    }
}
