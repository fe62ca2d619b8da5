//! Making a store: the file if there is none, the guard against losing somebody's data, the
//! format.
//!
//! Invariants:
//! - nothing is written to a target before it is locked against others and was looked at;
//! - a file that was made here is removed again when a later step fails.

use crate::error::{CliError, StoreError};
use crate::signatures;
use crate::size::Size;
use crate::store;
use crate::verbs::create::Shape;
use coulter_device::Device;
use serde::Serialize;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Something that may be formatted: present, large enough, locked, and free of known data.
pub(crate) struct Target {
    path: PathBuf,
    device: Box<dyn Device>,
    created: Option<CreatedFile>,
}

/// A new store, as `create --json` prints it; documented in `docs/cli.md`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Made {
    /// Absolute path.
    pub(crate) store: PathBuf,
    /// Its identity.
    pub(crate) uuid: String,
    /// The name given with `--label`.
    pub(crate) label: String,
    /// Bytes of the file or disk.
    pub(crate) store_size_bytes: u64,
    /// Bytes that the host sees.
    pub(crate) volume_size_bytes: u64,
    /// Bytes of a segment.
    pub(crate) segment_size_bytes: u64,
    /// Segments on the device.
    pub(crate) segments_total: u64,
    /// Map memory that opening may need.
    pub(crate) map_memory_bytes: u64,
}

/// Removes the file unless it is told to stay.
struct CreatedFile {
    path: PathBuf,
    stays: bool,
}

impl Drop for CreatedFile {
    fn drop(&mut self) {
        if !self.stays
            && let Err(error) = fs::remove_file(&self.path)
        {
            log::warn!(path:% = self.path.display(), error:%; "cannot remove");
        }
    }
}

impl Target {
    /// Makes or resizes the file at `path` if need be, locks it, and refuses it when it carries a
    /// known signature, unless `force`, which erases that.
    ///
    /// # Errors
    /// [`StoreError::HoldsData`] and its neighbours; whatever the system refuses.
    pub(crate) fn prepare(path: &Path, shape: &Shape, force: bool) -> Result<Target, CliError> {
        let created = make_room(path, shape)?;
        let path = path.canonicalize().map_err(|e| CliError::io("find", path, e))?;
        let device = store::open_device(&path, false)?;
        guard(&path, device.properties().size, force)?;
        if shape.preallocate {
            preallocate(&path)?;
        }
        Ok(Target { path, device, created })
    }
}

/// Formats `target`.
///
/// # Errors
/// What the library refuses, such as a segment size that does not fit the device.
pub(crate) fn format(
    target: Target,
    shape: &Shape,
    map_memory: Option<Size>,
) -> Result<Made, CliError> {
    let Target { path, device, created } = target;
    let made = store::create(&path, device, shape, map_memory)?;
    if let Some(mut file) = created {
        file.stays = true;
    }
    Ok(made)
}

/// Sees to it that there is something of the right size at `path`.
fn make_room(path: &Path, shape: &Shape) -> Result<Option<CreatedFile>, CliError> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let Some(size) = shape.size else {
                return Err(StoreError::SizeNeeded { path: path.to_owned() }.into());
            };
            return make_file(path, size.0).map(Some);
        }
        Err(error) => return Err(CliError::io("find", path, error)),
    };
    if metadata.file_type().is_block_device() {
        return match shape.size {
            Some(_) => Err(StoreError::SizeOfDisk { path: path.to_owned() }.into()),
            None => Ok(None),
        };
    }
    if !metadata.is_file() {
        return Err(StoreError::NotAStorePath { path: path.to_owned() }.into());
    }
    let present = metadata.len();
    match shape.size {
        None if present == 0 => Err(StoreError::SizeNeeded { path: path.to_owned() }.into()),
        Some(size) if size.0 < present => {
            Err(StoreError::SizeShrinks { path: path.to_owned(), size: size.0, present }.into())
        }
        Some(size) if size.0 > present => {
            let file = OpenOptions::new().write(true).open(path);
            file.and_then(|file| file.set_len(size.0))
                .map_err(|source| CliError::io("extend", path, source))?;
            Ok(None)
        }
        _ => Ok(None),
    }
}

fn make_file(path: &Path, size: u64) -> Result<CreatedFile, CliError> {
    let failed = |source| CliError::io("make", path, source);
    let file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    let created = CreatedFile { path: path.to_owned(), stays: false };
    file.set_len(size).map_err(failed)?;
    Ok(created)
}

/// Reserves the space of the file at `path`, so that a full disk shows now and not under load.
fn preallocate(path: &Path) -> Result<(), CliError> {
    let failed = |source| CliError::io("reserve the space of", path, source);
    let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Ok(());
    }
    // No file is longer than 2^63 bytes.
    let length = metadata.len() as libc::off_t;
    nix::fcntl::posix_fallocate(&file, 0, length).map_err(|errno| failed(errno.into()))
}

/// Refuses a target that holds something, or clears its marks away when `force` allows it.
fn guard(path: &Path, size: u64, force: bool) -> Result<(), CliError> {
    let failed = |source| CliError::io("look at", path, source);
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
    let found = signatures::detect(&file, size).map_err(failed)?;
    if found.is_empty() {
        return Ok(());
    }
    if !force {
        return Err(StoreError::HoldsData { path: path.to_owned(), signatures: found }.into());
    }
    signatures::erase(&file, &found).map_err(|e| CliError::io("erase the signatures of", path, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(size: Option<u64>) -> Shape {
        Shape {
            size: size.map(Size),
            volume_size: None,
            segment_size: Some(Size(2 << 20)),
            spare: 20,
            label: String::new(),
            preallocate: false,
        }
    }

    #[test]
    fn a_missing_file_is_made_only_with_a_size() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().join("a.img");
        let refused = make_room(&path, &shape(None));
        assert!(matches!(refused, Err(CliError::Store(StoreError::SizeNeeded { .. }))));
        let created = make_room(&path, &shape(Some(1 << 26))).expect("it can be made");
        assert_eq!(fs::metadata(&path).expect("it is there").len(), 1 << 26);
        drop(created);
        assert!(!path.exists(), "a file that was not formatted stays behind");
    }

    #[test]
    fn a_present_file_grows_but_never_shrinks() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
        let length = || file.as_file().metadata().expect("it is there").len();
        make_room(file.path(), &shape(Some(1 << 20))).expect("an empty file may grow");
        assert_eq!(length(), 1 << 20);
        make_room(file.path(), &shape(Some(1 << 21))).expect("it may grow");
        assert_eq!(length(), 1 << 21);
        make_room(file.path(), &shape(None)).expect("it may stay as it is");
        let refused = make_room(file.path(), &shape(Some(1 << 20)));
        assert!(matches!(refused, Err(CliError::Store(StoreError::SizeShrinks { .. }))));
        assert_eq!(length(), 1 << 21);
    }

    #[test]
    fn directories_and_devices_without_blocks_are_refused() {
        for path in ["/", "/dev/null"] {
            let refused = make_room(Path::new(path), &shape(None));
            let kind = matches!(refused, Err(CliError::Store(StoreError::NotAStorePath { .. })));
            assert!(kind, "{path}");
        }
    }
}
