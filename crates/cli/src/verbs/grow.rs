//! `coulter grow`: a store takes in more of its file or disk.

use crate::error::{CliError, StoreError};
use crate::size::Size;
use crate::state::StateDirectory;
use crate::store;
use crate::terminal;
use crate::verbs::create::parse_percent;
use clap::Args;
use coulter::{GrowError, GrowOptions};
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Let a store and its volume grow. What is stored stays, and stays where it is.
///
/// The store must not be attached. A power cut leaves it as it was or as it should be. A file system
/// on the volume grows by its own tool afterwards, such as resize2fs, xfs_growfs or `btrfs filesystem
/// resize`. Nothing ever shrinks.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter grow disk.img --size 20G         the file and the volume
  coulter grow /dev/sdb                    after the disk has grown
  coulter grow disk.img --size 20G --volume-size 10G   more spare space")]
pub(crate) struct Grow {
    /// File or disk that holds the store
    pub(crate) path: PathBuf,

    /// New size of the file; a disk is used whole
    #[arg(long)]
    pub(crate) size: Option<Size>,

    /// New size that the host sees [default: all that the spare leaves, and no less than now]
    #[arg(long)]
    pub(crate) volume_size: Option<Size>,

    /// Space kept free for cleaning, as a share of the volume
    #[arg(long, default_value = "20%", value_name = "PERCENT", value_parser = parse_percent)]
    pub(crate) spare: u32,

    /// Print the new sizes as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What `grow --json` prints.
#[derive(Serialize)]
struct Grown {
    store: PathBuf,
    uuid: String,
    store_size_bytes: u64,
    volume_size_bytes: u64,
    segments_total: u64,
    map_memory_bytes: u64,
}

impl Grow {
    pub(crate) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        let path = store::existing(&self.path)?;
        if let Some(entry) = state.attached()?.into_iter().find(|entry| entry.store == path) {
            return Err(StoreError::Attached { path, name: entry.name }.into());
        }
        let extended = self.extend(&path)?;
        let device = store::open_device(&path, false)?;
        let options = GrowOptions {
            volume_size: self.volume_size.map(|size| size.0),
            spare_percent: self.spare,
        };
        let geometry = coulter::grow(device, &options).map_err(|error| {
            let is_usage = matches!(&error, GrowError::Open(error)
                if matches!(error.kind, coulter::OpenErrorKind::Growth { .. }));
            StoreError::Grow { path: path.clone(), reason: error.to_string(), is_usage }
        })?;
        extended.keep();
        let grown = Grown {
            uuid: geometry.uuid_text(),
            store: path,
            store_size_bytes: geometry.store_size_bytes,
            volume_size_bytes: geometry.volume_size_bytes,
            segments_total: geometry.segment_count,
            map_memory_bytes: geometry.map_memory_min_bytes,
        };
        if self.json {
            return terminal::print_json(&grown);
        }
        terminal::print(&format!(
            "{}: a store of {} for a volume of {}",
            self.path.display(),
            Size(grown.store_size_bytes),
            Size(grown.volume_size_bytes),
        ))
    }

    /// Makes the file as long as it should be.
    fn extend(&self, path: &Path) -> Result<Extended, CliError> {
        let failed = |source| CliError::io("extend", path, source);
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let size = match self.size {
            None => return Ok(Extended(None)),
            Some(_) if metadata.file_type().is_block_device() => {
                return Err(StoreError::SizeOfDisk { path: path.to_owned() }.into());
            }
            Some(size) => size.0,
        };
        let present = metadata.len();
        if size < present {
            let path = path.to_owned();
            return Err(StoreError::Shrinks { path, size, present }.into());
        }
        file.set_len(size).map_err(failed)?;
        Ok(Extended(Some((file, present))))
    }
}

/// A file that was made longer, and its length before: it is cut again unless the store has grown.
struct Extended(Option<(File, u64)>);

impl Extended {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Extended {
    fn drop(&mut self) {
        if let Some((file, length)) = &self.0
            && let Err(error) = file.set_len(*length)
        {
            log::warn!(error:%; "the file stays longer than it was");
        }
    }
}
