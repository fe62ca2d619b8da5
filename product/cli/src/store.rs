//! Stores as the verbs see them that no daemon serves: made, and read from outside.

pub use coulter_daemon::store::{
    existing, existing_to_serve, existing_to_serve_or_make, is_blank, lock_file, missing,
    naming_volume, open_device, open_locked_device, refuse_attached, refused,
};

use crate::error::{CliError, Error, StoreError};
use crate::new_store::{Made, Shape};
use coulter::{CreateError, CreateOptions, OpenErrorKind};
use coulter_check::FileBlocks;
use coulter_check::dump::{self, SuperblockState};
use coulter_daemon::StateDirectory;
use coulter_daemon::ending;
use coulter_device::Device;
use coulter_terminal::Size;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long to wait for a daemon that is ending, before its store is opened.
const END_PATIENCE: Duration = Duration::from_secs(30);

/// The absolute path of the store that `path` means: a file, a disk, or the name or the directory
/// of an attached volume. Waits for a daemon that is about to let it go.
///
/// # Errors
/// As [`existing`].
pub fn find(path: &Path, state: Option<&StateDirectory>) -> Result<PathBuf, CliError> {
    let named = state.and_then(|state| state.attached_at(path)).map(|entry| entry.store);
    let store = named.map_or_else(|| existing(path), Ok)?;
    if let Some(state) = state {
        ending::await_end(state, &store, END_PATIENCE);
    }
    Ok(store)
}

/// That a store is at `path`, whatever state it is in.
///
/// # Errors
/// The thing that is there instead; [`OpenError::InUse`](crate::error::OpenError::InUse).
pub(crate) fn check_is_store(path: &Path, state: &StateDirectory) -> Result<(), CliError> {
    let mut blocks = LockedBlocks::open(path, Some(state))?;
    let copies = dump::superblock(&mut blocks.blocks).value.unwrap_or_default();
    if copies.iter().any(|copy| matches!(copy.state, SuperblockState::Valid(_))) {
        return Ok(());
    }
    Err(Error::from(refused(path.to_owned(), &OpenErrorKind::NotAStore)).into())
}

/// What `shape` asks for.
pub fn create_options(shape: &Shape, map_memory: Option<Size>) -> CreateOptions {
    let default = CreateOptions::default();
    let size = shape.size.map(|size| size.0);
    // What may be stored is the volume's size unless that is said to be less.
    let is_sparse = shape.capacity.is_some();
    CreateOptions {
        volume_size: shape.capacity.map(|capacity| capacity.0).or(size),
        segment_size: shape.segment_size.map(|size| size.0),
        page_size: shape.page_size.map(|size| size.0),
        spare_percent: shape.spare.unwrap_or(default.spare_percent),
        map_memory: map_memory.map(|size| size.0),
        label: shape.label.clone(),
        address_space: size.filter(|_| is_sparse).or(shape.address_space),
        stretch_limit: shape.touched_limit.map(stretches),
        ..default
    }
}

/// Bytes of a stretch of addresses that counts as in use if it holds anything.
const STRETCH_SIZE: u64 = coulter::STRETCH_SIZE;

/// Stretches of a limit that [`check_limits`] lets through.
fn stretches(limit: Size) -> u32 {
    u32::try_from(limit.0 / STRETCH_SIZE).unwrap_or(u32::MAX)
}

/// Refuses limits of a sparse volume that cannot be kept.
///
/// # Errors
/// [`StoreError::Create`], with the reason and what to give instead.
pub fn check_limits(path: &Path, shape: &Shape) -> Result<(), CliError> {
    match (shape.capacity, shape.size) {
        (Some(capacity), Some(size)) if capacity > size => {
            let reason = format!("--capacity {capacity} is more than --size {size}");
            Err(StoreError::Create { path: path.to_owned(), reason, is_usage: true }.into())
        }
        _ => check_touched_limit(path, shape),
    }
}

fn check_touched_limit(path: &Path, shape: &Shape) -> Result<(), CliError> {
    let (Some(limit), Some(capacity), Some(size)) =
        (shape.touched_limit, shape.capacity, shape.size)
    else {
        return Ok(());
    };
    let whole = |size: u64| Size(size.div_ceil(STRETCH_SIZE).saturating_mul(STRETCH_SIZE));
    let most = whole(size.0).0.min(CreateOptions::TOUCHED_LIMIT_MAX);
    let reason = if limit.0 == 0 || !limit.0.is_multiple_of(STRETCH_SIZE) {
        format!(
            "--touched-limit counts stretches of 1 GiB: give a multiple of 1G, such as {}",
            whole(limit.0.max(1))
        )
    } else if limit.0 > most {
        format!(
            "--touched-limit {limit} is more than {}: give {} at most, or leave it out",
            match size.0 < limit.0 {
                true => "the volume's --size",
                false => "a store can keep track of",
            },
            Size(most)
        )
    } else if limit.0 < capacity.0 {
        format!(
            "--touched-limit {limit} is less than --capacity {capacity}, which could never be filled: give {} at least",
            whole(capacity.0)
        )
    } else {
        return Ok(());
    };
    Err(StoreError::Create { path: path.to_owned(), reason, is_usage: true }.into())
}

/// Bytes of a store for the volume that `shape` asks for; `None` if it asks for none.
///
/// # Errors
/// [`StoreError::Create`].
pub fn size_for_volume(path: &Path, shape: &Shape) -> Result<Option<u64>, CliError> {
    let Some(volume) = shape.capacity.or(shape.size) else { return Ok(None) };
    let size = coulter::store_size_for(volume.0, &create_options(shape, None));
    size.map(Some).map_err(|error| not_created(path, &error))
}

/// Whether `options` make a store of `size` bytes; nothing is touched.
///
/// # Errors
/// [`StoreError::Create`].
pub fn check_create(path: &Path, size: u64, options: &CreateOptions) -> Result<(), CliError> {
    coulter::check_create(size, options).map_err(|error| not_created(path, &error))
}

fn not_created(path: &Path, error: &CreateError) -> CliError {
    let is_usage = !matches!(error, CreateError::Device { .. } | CreateError::NoRandomness);
    StoreError::Create { path: path.to_owned(), reason: error.to_string(), is_usage }.into()
}

/// Makes a store on all of `device`.
///
/// # Errors
/// [`StoreError::Create`].
pub fn create(
    path: &Path,
    device: Box<dyn Device>,
    options: &CreateOptions,
) -> Result<Made, CliError> {
    let geometry = coulter::create(device, options).map_err(|error| not_created(path, &error))?;
    Ok(Made {
        store: path.to_owned(),
        uuid: geometry.uuid_text(),
        label: geometry.label,
        store_size_bytes: geometry.store_size_bytes,
        volume_size_bytes: geometry.volume_size_bytes,
        capacity_bytes: geometry.capacity_bytes,
        touched_limit_bytes: geometry.touched_limit_bytes,
        segment_size_bytes: geometry.segment_size_bytes,
        segments_total: geometry.segment_count,
        map_memory_bytes: geometry.map_memory_min_bytes,
    })
}

/// A store that is read from outside, locked against whoever would write to it.
pub struct LockedBlocks {
    /// Its blocks.
    pub blocks: FileBlocks,
    /// Holds the lock.
    pub device: Box<dyn Device>,
}

impl LockedBlocks {
    /// Opens the store at `path` for reading only.
    ///
    /// # Errors
    /// [`OpenError::Refused`](crate::error::OpenError::Refused); [`OpenError::InUse`](crate::error::OpenError::InUse), for one when it is attached.
    pub fn open(path: &Path, state: Option<&StateDirectory>) -> Result<LockedBlocks, CliError> {
        let device = open_device(path, true).map_err(|error| naming_volume(error, path, state))?;
        refuse_attached(path, state)?;
        let blocks = FileBlocks::open(path).map_err(|e| CliError::io("read", path, e))?;
        Ok(LockedBlocks { blocks, device })
    }
}
