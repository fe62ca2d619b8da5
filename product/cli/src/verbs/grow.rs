//! `coulter grow`: a store takes in more of its file or disk.

use crate::error::{CliError, DaemonError, DoorError, Error, StoreError};
use crate::inside::{self, Inside};
use crate::interrupt::{self, Interrupt, Left};
use crate::named_store;
use crate::new_store::parse_percent;
use crate::room;
use crate::store;
use crate::target_file::TargetFile;
use crate::terminal;
use clap::Args;
use coulter::service::BLOCK_SIZE;
use coulter::{Geometry, GrowError, GrowOptions, OpenErrorKind};
use coulter_check::FileBlocks;
use coulter_check::dump::{self, SuperblockState};
use coulter_daemon::control::{self, Reply, Request};
use coulter_daemon::growth::Growth;
use coulter_daemon::points;
use coulter_daemon::replication;
use coulter_daemon::state::{Entry, StateDirectory};
use coulter_daemon::store_fate::StoreFate;
use coulter_device::Device;
use coulter_terminal::{Size, SizeError};
use serde::Serialize;
use std::fmt;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Grow a store and its volume; data is neither moved nor changed.
///
/// Of an attached volume requests wait while the store is closed, grown and opened again; then its
/// device has the new size (loop, NVMe), or clients see it when they reconnect (NBD server). ublk, the
/// kernel's NBD client and mounted Coulter file systems must be detached first. After a power cut the
/// store has either its old or its new size.
/// A Coulter file system grows with its volume. Grow another one afterwards with its own tool, such as
/// resize2fs, xfs_growfs or `btrfs filesystem resize`. A store cannot shrink.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter grow disk.img --size 20G         the volume, and its file as far as it takes
  coulter grow /dev/sdb                    after the disk has grown
  coulter grow disk --size +5G             an attached volume, by 5 GiB
  coulter grow disk.img --store-size 30G --size 20G   more spare space")]
pub(crate) struct Grow {
    /// File or disk that holds the store, or the name of an attached volume
    #[arg(value_parser = named_store::parser())]
    pub(crate) path: PathBuf,

    /// New size of the volume, as the host sees it; +SIZE adds to what it has [default: the
    /// store without its over-provisioning]
    #[arg(long, alias = "volume-size", allow_hyphen_values = true)]
    pub(crate) size: Option<NewSize>,

    /// New size of the file, or +SIZE; a disk is used whole [default: what a volume of --size
    /// needs]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) store_size: Option<NewSize>,

    /// Over-provisioning: spare space for cleaning, as a share of the volume; refused if the volume
    /// would shrink [default: its current share]
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, allow_hyphen_values = true)]
    pub(crate) spare: Option<u32>,

    /// Print the new sizes as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A size to grow to: in all, or more than there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewSize {
    Total(Size),
    More(Size),
}

impl NewSize {
    /// In bytes, where there are `present` ones.
    fn of(self, present: u64) -> u64 {
        match self {
            NewSize::Total(size) => size.0,
            NewSize::More(size) => present.saturating_add(size.0),
        }
    }
}

impl fmt::Display for NewSize {
    /// As it stands on a command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NewSize::Total(size) => write!(f, "{}", size.0),
            NewSize::More(size) => write!(f, "+{}", size.0),
        }
    }
}

impl FromStr for NewSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<NewSize, SizeError> {
        match text.trim().strip_prefix('+') {
            Some(more) => more.parse().map(NewSize::More),
            None => text.parse().map(NewSize::Total),
        }
    }
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
    /// Bytes of a Coulter file system on the volume, which has grown with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    file_system_size_bytes: Option<u64>,
}

impl Grow {
    pub(crate) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        if let Some(entry) = state.attached_at(&self.path) {
            return self.grow_attached(state, &entry);
        }
        let path = store::find(&self.path, Some(state))?;
        let inside = Inside::of(&path);
        if inside == Inside::Overlay {
            return Err(DoorError::GrowOverlay { path }.into());
        }
        let place = self.find(&path)?;
        let options =
            GrowOptions { volume_size: self.volume_size(&path)?, spare_percent: self.spare };
        let geometry = place.grow(&options).map_err(|error| -> CliError {
            if let GrowError::Open(coulter::OpenError {
                kind: kind @ OpenErrorKind::NotAStore,
                ..
            }) = &error
            {
                return Error::from(store::refused(path.clone(), kind)).into();
            }
            let is_usage = matches!(&error, GrowError::Open(error)
                if matches!(error.kind, OpenErrorKind::Growth { .. }));
            StoreError::Grow { path: path.clone(), reason: error.to_string(), is_usage }.into()
        })?;
        let file_system_size_bytes = match inside {
            Inside::Files => Some(inside::grow_files(&path)?),
            Inside::Overlay | Inside::Other => None,
        };
        self.told(&Grown {
            file_system_size_bytes,
            uuid: geometry.uuid_text(),
            store: path,
            store_size_bytes: geometry.store_size_bytes,
            volume_size_bytes: geometry.volume_size_bytes,
            segments_total: geometry.segment_count,
            map_memory_bytes: geometry.map_memory_min_bytes,
        })
    }

    /// Has the daemon close, grow and open the store again. The file is made longer before.
    fn grow_attached(&self, state: &StateDirectory, entry: &Entry) -> Result<(), CliError> {
        let path = entry.store.clone();
        if points::gives_directory(entry) {
            let directory = entry.device.as_deref().map(PathBuf::from).unwrap_or_default();
            let is_overlay = points::is_overlay(entry);
            let (again, options) = (entry.again.clone().unwrap_or_default(), self.words());
            let mounted = DoorError::GrowMounted { path, directory, is_overlay, options, again };
            return Err(mounted.into());
        }
        // Another file may be at its path by now.
        if let Some(fate) = StoreFate::of(entry) {
            let reason = format!(
                "it is attached as '{0}', and what was at {1} is {2}: run `coulter detach {0}` first",
                entry.name,
                path.display(),
                fate.word(entry)
            );
            return Err(
                StoreError::Grow { path: self.path.clone(), reason, is_usage: false }.into()
            );
        }
        let failed = |source| CliError::io("grow", &path, source);
        let metadata = fs::metadata(&path).map_err(failed)?;
        let volume_size = self.size.map(|size| size.of(entry.volume_size_bytes));
        let growth = Growth { volume_size, spare_percent: self.spare };
        let file = match metadata.is_file() {
            true => Some(File::options().read(true).write(true).open(&path).map_err(failed)?),
            false if self.store_size.is_some() => {
                return Err(StoreError::SizeOfDisk { path }.into());
            }
            false => None,
        };
        if let Some(file) = &file {
            let size = self.file_size(&path, file, metadata.len())?;
            lengthen_in_use(file, &metadata, size).map_err(failed)?;
        }
        let (why, help) = interrupt::asked_of(&entry.name, "grow");
        let _left = Left::take_over(why, help)?;
        let grown = match control::ask(state, entry, &Request::Grow { growth }) {
            Ok(Reply::Grown(grown)) => grown,
            Ok(_) => return Err(DaemonError::silent(entry).into()),
            Err(error) => {
                // As without a daemon: what a superblock claims stays.
                let claimed = file.as_ref().and_then(store_length).unwrap_or(u64::MAX);
                if let Some(file) = file.filter(|_| claimed <= metadata.len()) {
                    let _ = file.set_len(metadata.len());
                }
                return Err(error.into());
            }
        };
        self.told(&Grown {
            file_system_size_bytes: None,
            uuid: entry.uuid.clone(),
            store: path,
            store_size_bytes: grown.store_size_bytes,
            volume_size_bytes: grown.volume_size_bytes,
            segments_total: grown.segments_total,
            map_memory_bytes: grown.map_memory_bytes,
        })
    }

    /// Its options, to be given again.
    fn words(&self) -> String {
        let size = self.size.map(|size| format!(" --size {size}"));
        let store_size = self.store_size.map(|size| format!(" --store-size {size}"));
        let spare = self.spare.map(|spare| format!(" --spare {spare}"));
        [size, store_size, spare].into_iter().flatten().collect()
    }

    /// Bytes that the volume of the store at `path` is to have. Whether there is a store the
    /// library looks at.
    fn volume_size(&self, path: &Path) -> Result<Option<u64>, CliError> {
        let Some(size @ NewSize::More(_)) = self.size else {
            return Ok(self.size.map(|size| size.of(0)));
        };
        let file = File::open(path).map_err(|source| CliError::io("open", path, source))?;
        Ok(Some(size.of(volume_size(&file).unwrap_or(0))))
    }

    fn told(&self, grown: &Grown) -> Result<(), CliError> {
        self.tell(grown).inspect_err(|_| terminal::note("it has grown all the same"))
    }

    fn tell(&self, grown: &Grown) -> Result<(), CliError> {
        room::note_if_short(&grown.store);
        if self.json {
            return terminal::print_json(grown);
        }
        let files = match grown.file_system_size_bytes {
            Some(size) => format!(", with a file system of {}", Size(size)),
            None => String::new(),
        };
        terminal::print(&format!(
            "{}: a store of {} for a volume of {}{files}",
            terminal::path(&self.path),
            Size(grown.store_size_bytes),
            Size(grown.volume_size_bytes),
        ))
    }

    /// Bytes that the file at `path` is to have, of which it has `present`.
    fn file_size(&self, path: &Path, file: &File, present: u64) -> Result<u64, CliError> {
        let needed = || {
            let volume = self.size?.of(volume_size(file)?);
            store_size_for(file, volume).filter(|needed| *needed > present)
        };
        let size = match self.store_size {
            Some(size) => size.of(present),
            None => needed().unwrap_or(present),
        };
        if size < present {
            let path = path.to_owned();
            return Err(StoreError::Shrinks { path, size, present }.into());
        }
        Ok(size)
    }

    /// What is at `path`, locked and as long as it should be.
    fn find(&self, path: &Path) -> Result<StoreToGrow, CliError> {
        let metadata = fs::metadata(path).map_err(|source| CliError::io("open", path, source))?;
        if metadata.file_type().is_block_device() && self.store_size.is_some() {
            return Err(StoreError::SizeOfDisk { path: path.to_owned() }.into());
        }
        if !metadata.is_file() {
            let device = replication::marking(path, store::open_device(path, false)?)?;
            return Ok(StoreToGrow { device, file: None });
        }
        let mut file = TargetFile::open(path)?;
        let present = file.length()?;
        let size = self.file_size(path, file.file(), present)?;
        match store_length(file.file()) {
            // Longer, it would have holes in place of what is missing, and nobody would see it any more.
            Some(needed) if needed > present => {
                return Err(StoreError::CutShort { path: path.to_owned(), needed, present }.into());
            }
            Some(_) => {
                file.lengthen(size)?;
                if file.was_reserved() {
                    file.reserve(&Interrupt::default())?;
                }
            }
            // It is somebody's file, who may be writing to it; the library says what is wrong.
            None => {}
        }
        let device = replication::marking(path, file.open_device()?)?;
        Ok(StoreToGrow { device, file: Some((file, present)) })
    }
}

/// Makes the file of a store that a daemon serves longer. If all its space was allocated, so is the rest.
fn lengthen_in_use(file: &File, before: &Metadata, size: u64) -> io::Result<()> {
    if size <= before.len() {
        return Ok(());
    }
    if before.blocks() * 512 < before.len() {
        return file.set_len(size);
    }
    let (start, length) = (before.len(), size - before.len());
    Ok(rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), start, length)?)
}

/// Where a store is.
struct StoreToGrow {
    device: Box<dyn Device>,
    /// Of a file, the lock and the length before.
    file: Option<(TargetFile, u64)>,
}

impl StoreToGrow {
    /// Lets the store grow. If it does not, its file is as long as before.
    fn grow(self, options: &GrowOptions) -> Result<Geometry, GrowError> {
        let Some((mut file, before)) = self.file else {
            return coulter::grow(self.device, options);
        };
        // Before the first write: from then on, only the store itself says whether it has grown.
        file.keep();
        let grown = coulter::grow(self.device, options);
        // What failed behind the write of a superblock reaches as far as that says, and may have its
        // checkpoint there: cut, it would be lost.
        let reaches = || store_length(file.file()).unwrap_or(u64::MAX);
        if grown.is_err() && reaches() <= before {
            file.cut(before);
        }
        grown
    }
}

/// Bytes of the store in `file` with a volume of this size and the share of spare space that it has now; `None` if
/// there is no store, or its volume is as large already.
fn store_size_for(file: &File, volume: u64) -> Option<u64> {
    let mut blocks = FileBlocks::new(file.try_clone().ok()?).ok()?;
    let copies = dump::superblock(&mut blocks).value.unwrap_or_default();
    copies.iter().find_map(|copy| {
        let SuperblockState::Valid(fields) = &copy.state else { return None };
        let (store, present) = (fields.device_blocks, fields.volume_blocks);
        let grown = u128::from(volume) * u128::from(store) / u128::from(present.max(1));
        let segment = u64::from(fields.segment_blocks) * BLOCK_SIZE;
        let size = u64::try_from(grown).ok()?.checked_next_multiple_of(segment.max(1))?;
        (volume > present * BLOCK_SIZE).then_some(size)
    })
}

/// Bytes of the volume of the store in `file`; `None` if there is none that can be read.
fn volume_size(file: &File) -> Option<u64> {
    let mut blocks = FileBlocks::new(file.try_clone().ok()?).ok()?;
    let copies = dump::superblock(&mut blocks).value.unwrap_or_default();
    copies.iter().find_map(|copy| match &copy.state {
        SuperblockState::Valid(fields) => Some(fields.volume_blocks * BLOCK_SIZE),
        SuperblockState::Damaged { .. } => None,
    })
}

/// Bytes that the store in `file` has, by whichever of its superblocks claims more; `None` if there is
/// none that can be read.
fn store_length(file: &File) -> Option<u64> {
    let mut blocks = FileBlocks::new(file.try_clone().ok()?).ok()?;
    let copies = dump::superblock(&mut blocks).value.unwrap_or_default();
    let claims = copies.iter().filter_map(|copy| match &copy.state {
        SuperblockState::Valid(fields) => Some(fields.device_blocks),
        SuperblockState::Damaged { .. } => None,
    });
    claims.max().map(|blocks| blocks * BLOCK_SIZE)
}
