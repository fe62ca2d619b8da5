//! `coulter create`: formats a file or a disk as a store.

use crate::contents::Origin;
use crate::error::{CliError, StoreError};
use crate::format_store::{self, Target};
use crate::interrupt::Interrupt;
use crate::new_store::{Made, Shape};
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
