//! `coulter create`: formats a file or a disk as a store.

use crate::contents::Origin;
use crate::error::{CliError, StoreError};
use crate::format_store::{self, Made, Target};
use crate::interrupt::Interrupt;
use crate::room;
use crate::store;
use crate::terminal;
use clap::Args;
use coulter_daemon::state::StateDirectory;
use coulter_terminal::Size;
use std::path::PathBuf;

/// Format a file or a disk as a store.
///
/// A file that does not exist is made, and all its space is allocated unless --sparse is given. All
/// data on the target is lost. Without --force, a target with a known signature (a file system, a
/// partition table, LUKS, LVM, RAID, another store) is refused, and so is an existing file that
/// holds anything but zeros. When the store cannot be made, the target is unchanged.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter create disk.img --size 10G       a volume of 10 GiB in a file, which is larger
  coulter create disk.img --size 1T --sparse   takes space only when it is written
  coulter create disk.img --size 1T --capacity 100G   1 TiB of addresses, of which 100 GiB may be in use
  coulter create disk.img --size 1P --capacity 100G --touched-limit 200T   and they may lie in 204800 places
  coulter create /dev/sdb                  a whole disk; the volume gets what the over-provisioning leaves
  coulter create disk.img --store-size 1T --segment-size 256M --over-provisioning 10%
  coulter create disk.img --from /dev/sdc  a volume with the data of that disk")]
pub(crate) struct Create {
    /// File or disk to format
    pub path: PathBuf,

    #[command(flatten)]
    pub(crate) shape: Shape,

    /// Limit of the map's memory when the store is opened [default: the whole map, 8.5 bytes per
    /// block and 256 KiB; and 4 bytes per block, at most 16 MiB, for updates that wait to be
    /// written]
    #[arg(long, value_name = "SIZE")]
    pub map_memory: Option<Size>,

    /// Copy the data of this image or disk into the volume; the source is not changed [default: an
    /// empty volume]
    #[arg(long, value_name = "IMAGE|DISK", conflicts_with = "capacity")]
    pub from: Option<PathBuf>,

    /// Format even if the target holds data, and erase its signatures
    #[arg(long)]
    pub force: bool,

    /// Print the geometry as JSON
    #[arg(long)]
    pub json: bool,
}

/// What a new store looks like; shared with `mount`, which may make one.
#[derive(Clone, Debug, Args)]
pub struct Shape {
    /// Size of the volume, as the host sees it [default: the store without its over-provisioning]
    #[arg(long, alias = "volume-size", allow_hyphen_values = true)]
    pub size: Option<Size>,

    /// Size of the file that holds the store [default: what a volume of --size needs]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub store_size: Option<Size>,

    /// Unit of allocation and cleaning, a power of two from 2M to 1G; best a multiple of the
    /// device's erase unit or zone [default: 32M; down to 4M for small stores, 64M above 8T]
    #[arg(long, allow_hyphen_values = true)]
    pub segment_size: Option<Size>,

    /// Page size of the flash below, from 8K to 256K, if --segment-size is its erase block: records begin at
    /// pages, and nothing is written to a page of which any block is needed
    #[arg(long, value_name = "SIZE", requires_all = ["reclaim", "segment_size"], allow_hyphen_values = true)]
    pub page_size: Option<Size>,

    /// How a store with a page size reclaims space, always: host data goes into holes of segments
    #[arg(long, value_name = "WAY", value_parser = ["threaded"], requires = "page_size")]
    pub reclaim: Option<String>,

    /// Over-provisioning: spare space for cleaning, as a share of the volume; more means less
    /// copying; at least 4%, 7% with segments of 2M [default: 20%]
    #[arg(long, visible_alias = "over-provisioning", value_name = "PERCENT", value_parser = parse_percent, allow_hyphen_values = true)]
    pub spare: Option<u32>,

    /// Name of the store, kept in it: at most 64 bytes, without control characters
    #[arg(long, default_value = "", hide_default_value = true)]
    pub label: String,

    /// Do not allocate the space of a file: the file takes space as it is written, and freed
    /// segments are punched out. Programs that sync often lose a quarter to a third of their speed,
    /// and writes wait while the file system is full
    #[arg(long)]
    pub sparse: bool,

    /// Bytes that may be stored at once, if that is less than --size: a sparse volume. Overwrites and discards
    /// always succeed; a write for which there is no room fails with ENOSPC and changes nothing
    #[arg(long, value_name = "SIZE", requires = "size", allow_hyphen_values = true)]
    pub capacity: Option<Size>,

    /// Addresses of a sparse volume that may be in use at once, counted in stretches of 1G: each that holds anything
    /// counts as one. A multiple of 1G, up to 4P; takes 12K of map memory for each, above 32T 1K [default: 16
    /// times the capacity, at least 256G, at most 32T]
    #[arg(long, value_name = "SIZE", requires = "capacity", allow_hyphen_values = true)]
    pub touched_limit: Option<Size>,

    /// Bytes of addresses, of a store that has as much capacity as fits into it
    #[arg(skip)]
    pub address_space: Option<u64>,
}

/// For the command line: a share of something in whole percent.
///
/// # Errors
/// What is wrong with it, in words.
pub fn parse_percent(text: &str) -> Result<u32, String> {
    let number = text.trim().trim_end_matches('%').trim_end();
    match number.parse() {
        Ok(percent) if percent <= 1000 => Ok(percent),
        Ok(_) => Err("more than ten times the volume".to_owned()),
        Err(_) => Err("write a whole number of percent, such as 20%".to_owned()),
    }
}

impl Create {
    pub(crate) fn run(&self, state: Option<&StateDirectory>) -> Result<(), CliError> {
        if self.json && self.path.to_str().is_none() {
            return Err(StoreError::PathNotInJson { path: self.path.clone() }.into());
        }
        let origin = self.from.as_deref().map(|from| Origin::open(from, &self.path)).transpose()?;
        let mut shape = self.shape.clone();
        if let Some(origin) = &origin {
            shape.size.get_or_insert(Size(origin.volume_size()));
        }
        let mut target = Target::prepare(&self.path, &shape, self.force)
            .map_err(|error| store::naming_volume(error.into(), &self.path, state))?;
        store::refuse_attached(&self.path, state)?;
        if !shape.sparse || origin.is_some() {
            // It may take long, and a file that is only half made is not to stay behind.
            target = target.heeding(Interrupt::take_over()?);
        }
        let made = format_store::format_from(target, &shape, self.map_memory, origin.as_ref())?;
        room::note_if_short(&self.path);
        self.tell(&made).inspect_err(|_| terminal::note("the store was made all the same"))
    }

    fn tell(&self, made: &Made) -> Result<(), CliError> {
        if self.json {
            return terminal::print_json(made);
        }
        let capacity = match made.touched_limit_bytes {
            Some(limit) => format!(
                ", of which {} may be in use, in {} of addresses",
                Size(made.capacity_bytes),
                Size(limit)
            ),
            None => String::new(),
        };
        terminal::print(&format!(
            "{}: a store of {} for a volume of {}{capacity}",
            terminal::path(&self.path),
            Size(made.store_size_bytes),
            Size(made.volume_size_bytes),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_written_with_or_without_its_sign() {
        assert_eq!(parse_percent("20%"), Ok(20));
        assert_eq!(parse_percent("7"), Ok(7));
        assert_eq!(parse_percent("7 %"), Ok(7));
        for text in ["", "%", "-1", "1.5%", "x", "1001"] {
            assert!(parse_percent(text).is_err(), "{text}");
        }
    }
}
