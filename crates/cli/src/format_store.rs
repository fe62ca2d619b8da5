//! Making a store: the file if there is none, the guard against losing somebody's data, the
//! format.
//!
//! Invariants:
//! - a target is looked at, at its own size, before it is made longer, and once more when it is
//!   locked against others; only then is anything written to it;
//! - a file that was made here is removed again when a later step fails.

use crate::error::{CliError, StoreError};
use crate::signatures::{self, Signature};
use crate::size::Size;
use crate::store;
use crate::verbs::create::Shape;
use coulter_device::Device;
use serde::Serialize;
use std::fs::{self, File, OpenOptions};
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
    /// Makes or extends the file at `path` if need be, locks it, and refuses it when it carries a
    /// known signature, or is a file that holds anything else, unless `force`, which erases the
    /// signatures.
    ///
    /// # Errors
    /// [`StoreError::HoldsData`] and its neighbours; whatever the system refuses.
    pub(crate) fn prepare(path: &Path, shape: &Shape, force: bool) -> Result<Target, CliError> {
        let room = find_room(path, shape)?;
        let created = match room {
            Room::Missing { size } => Some(make_file(path, size)?),
            Room::File { .. } | Room::Disk => None,
        };
        let path = path.canonicalize().map_err(|e| CliError::io("find", path, e))?;
        let mut marks = Vec::new();
        if let Room::File { present, size } = room {
            // What is marked at its end is not to be found any more once it is longer.
            marks = look(&path, present, force)?;
            if size > present {
                extend(&path, size)?;
            }
        }
        let device = store::open_device(&path, false)?;
        marks.extend(look(&path, device.properties().size, force)?);
        erase(&path, &marks)?;
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

/// What there is at a path, and the size that it is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// Nothing yet.
    Missing { size: u64 },
    /// A file of `present` bytes that becomes no shorter.
    File { present: u64, size: u64 },
    /// A disk, used whole.
    Disk,
}

/// What is at `path`, if a store of that shape can be there.
fn find_room(path: &Path, shape: &Shape) -> Result<Room, CliError> {
    let asked = shape.size.map(|size| size.0);
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let Some(size) = asked else {
                return Err(StoreError::SizeNeeded { path: path.to_owned() }.into());
            };
            return Ok(Room::Missing { size });
        }
        Err(error) => return Err(CliError::io("find", path, error)),
    };
    if metadata.file_type().is_block_device() {
        return match asked {
            Some(_) => Err(StoreError::SizeOfDisk { path: path.to_owned() }.into()),
            None => Ok(Room::Disk),
        };
    }
    if !metadata.is_file() {
        return Err(StoreError::NotAStorePath { path: path.to_owned() }.into());
    }
    let present = metadata.len();
    match asked {
        None if present == 0 => Err(StoreError::SizeNeeded { path: path.to_owned() }.into()),
        Some(size) if size < present => {
            Err(StoreError::SizeShrinks { path: path.to_owned(), size, present }.into())
        }
        asked => Ok(Room::File { present, size: asked.unwrap_or(present) }),
    }
}

fn extend(path: &Path, size: u64) -> Result<(), CliError> {
    let file = OpenOptions::new().write(true).open(path);
    file.and_then(|file| file.set_len(size)).map_err(|source| CliError::io("extend", path, source))
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

/// The signatures in the first `size` bytes of what is at `path`.
///
/// # Errors
/// Unless `force` is given, when there is any; and for a file, when it is not blank. A disk that
/// was in use before and was cleared of its signatures is formatted, as by every `mkfs`; a file of
/// that name is likelier a slip of the hand.
fn look(path: &Path, size: u64, force: bool) -> Result<Vec<Signature>, CliError> {
    let failed = |source| CliError::io("look at", path, source);
    let file = File::open(path).map_err(failed)?;
    let is_disk = file.metadata().map_err(failed)?.file_type().is_block_device();
    let (signatures, in_use) = signatures::detect_anything(&file, size).map_err(failed)?;
    if force {
        return Ok(signatures);
    }
    if !signatures.is_empty() {
        return Err(StoreError::HoldsData { path: path.to_owned(), signatures }.into());
    }
    match in_use {
        Some(offset) if !is_disk => {
            Err(StoreError::HoldsSomething { path: path.to_owned(), offset }.into())
        }
        _ => Ok(signatures),
    }
}

/// Clears the marks of what was there away.
fn erase(path: &Path, marks: &[Signature]) -> Result<(), CliError> {
    if marks.is_empty() {
        return Ok(());
    }
    let file = OpenOptions::new().write(true).open(path);
    file.and_then(|file| signatures::erase(&file, marks))
        .map_err(|source| CliError::io("erase the signatures of", path, source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

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
    fn a_missing_file_is_made_only_with_a_size_and_stays_only_when_formatted() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().join("a.img");
        let refused = find_room(&path, &shape(None));
        assert!(matches!(refused, Err(CliError::Store(StoreError::SizeNeeded { .. }))));
        let target = Target::prepare(&path, &shape(Some(1 << 26)), false).expect("it can be made");
        assert_eq!(fs::metadata(&path).expect("it is there").len(), 1 << 26);
        drop(target);
        assert!(!path.exists(), "a file that was not formatted stays behind");
    }

    #[test]
    fn a_blank_file_grows_but_never_shrinks() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
        let length = || file.as_file().metadata().expect("it is there").len();
        let prepare = |size| Target::prepare(file.path(), &shape(size), false).map(drop);
        prepare(Some(1 << 20)).expect("an empty file may grow");
        assert_eq!(length(), 1 << 20);
        prepare(Some(1 << 21)).expect("it may grow");
        assert_eq!(length(), 1 << 21);
        prepare(None).expect("it may stay as it is");
        let refused = prepare(Some(1 << 20));
        assert!(matches!(refused, Err(CliError::Store(StoreError::SizeShrinks { .. }))));
        assert_eq!(length(), 1 << 21);
    }

    #[test]
    fn a_file_of_an_unknown_kind_is_refused_as_it_is() {
        for (size, at) in [(None, (1 << 21) - 1), (None, 0), (Some(1 << 22), (1 << 21) - 1)] {
            let file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
            file.as_file().set_len(1 << 21).expect("it can be extended");
            file.as_file().write_all_at(b"x", at).expect("it is writable");
            let refused = Target::prepare(file.path(), &shape(size), false).map(drop);
            let Err(CliError::Store(StoreError::HoldsSomething { offset, .. })) = refused else {
                panic!("a byte at {at} was not seen: {refused:?}");
            };
            assert_eq!(offset, at);
            assert_eq!(file.as_file().metadata().expect("it is there").len(), 1 << 21);
            Target::prepare(file.path(), &shape(size), true).expect("force allows it");
        }
    }

    #[test]
    fn a_mark_at_the_end_of_a_file_that_is_to_grow_is_found_and_erased() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
        file.as_file().set_len(1 << 21).expect("it can be extended");
        let at = (1 << 21) - 512;
        file.as_file().write_all_at(b"EFI PART", at).expect("it is writable");
        let prepare = |force| Target::prepare(file.path(), &shape(Some(1 << 24)), force).map(drop);
        let refused = prepare(false);
        assert!(matches!(refused, Err(CliError::Store(StoreError::HoldsData { .. }))));
        assert_eq!(file.as_file().metadata().expect("it is there").len(), 1 << 21);
        prepare(true).expect("force allows it");
        let mut mark = [0; 8];
        file.as_file().read_exact_at(&mut mark, at).expect("it is readable");
        assert_eq!(mark, [0; 8]);
    }

    #[test]
    fn directories_and_devices_without_blocks_are_refused() {
        for path in ["/", "/dev/null"] {
            let refused = find_room(Path::new(path), &shape(None));
            let kind = matches!(refused, Err(CliError::Store(StoreError::NotAStorePath { .. })));
            assert!(kind, "{path}");
        }
    }
}
