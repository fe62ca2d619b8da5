//! Making a store: the file if there is none, the guard against losing somebody's data, the
//! format.
//!
//! Invariants:
//! - [`Target::prepare`] only looks, under the lock against others that [`format()`] goes on with;
//! - [`format()`] first finds out whether the store can be, then reserves its room, and last of all
//!   erases what was there: until then a failure leaves the target as it was.

use crate::contents::Origin;
use crate::error::{CliError, OpenError, StoreError};
use crate::interrupt::Interrupt;
use crate::new_store::{Made, Shape};
use crate::room;
use crate::second_look;
use crate::store;
use crate::target_file::TargetFile;
use coulter_daemon::signatures::{self, Signature};
use coulter_device::Device;
use coulter_system::sparse::{self, Content};
use coulter_terminal::Size;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Bytes of zeros in a file that are read before it counts as blank. Holes and room that was only
/// reserved are not read, so that this is a file that was written full of zeros, and nobody waits for
/// minutes to hear that it is one.
const ZEROS_READ_MAX: u64 = 16 << 30;

/// Something that may be formatted: locked, and free of data if that was asked for. Nothing has
/// been done to it yet.
pub struct Target {
    path: PathBuf,
    place: Destination,
    /// What is to be erased.
    marks: Vec<Signature>,
    interrupt: Interrupt,
}

impl Target {
    /// Finds and locks what is at `path`, and refuses it when it carries a known signature, or is a
    /// file that holds anything else, unless `force`, with which the signatures will be erased.
    ///
    /// # Errors
    /// [`StoreError::HoldsData`] and its neighbours; whatever the system refuses.
    pub fn prepare(path: &Path, shape: &Shape, force: bool) -> Result<Target, CliError> {
        second_look::refuse_url(path)?;
        store::check_limits(path, shape)?;
        let place = find_place(path, shape)?;
        let absolute = || path.canonicalize().map_err(|e| CliError::io("find", path, e));
        let (path, marks) = match &place {
            Destination::Missing { .. } => (path.to_owned(), Vec::new()),
            Destination::File { file, .. } => {
                // At its own length: what is marked at its end is not to be found any more once it
                // is longer.
                let marks = look(file.file(), file.path(), file.length()?, force)?;
                (file.path().to_owned(), marks)
            }
            Destination::Disk { device } => {
                let path = absolute()?;
                let disk = File::open(&path).map_err(|e| CliError::io("look at", &path, e))?;
                let marks = look(&disk, &path, device.properties().size, force)?;
                (path, marks)
            }
        };
        Ok(Target { path, place, marks, interrupt: Interrupt::default() })
    }

    /// Gives up when `interrupt` is raised.
    pub fn heeding(self, interrupt: Interrupt) -> Target {
        Target { interrupt, ..self }
    }
}

/// Formats `target`.
///
/// # Errors
/// What the library refuses, such as a segment size that does not fit the device; whatever the system
/// refuses. The target is as it was, unless the device itself has failed.
pub fn format(target: Target, shape: &Shape, map_memory: Option<Size>) -> Result<Made, CliError> {
    format_from(target, shape, map_memory, None)
}

/// The same, and the new volume holds what `origin` does.
///
/// # Errors
/// As [`format()`], and as [`Origin::bring_in`]: a file that was made for it goes again then; a disk
/// keeps a store that holds a part of it.
pub fn format_from(
    target: Target,
    shape: &Shape,
    map_memory: Option<Size>,
    origin: Option<&Origin>,
) -> Result<Made, CliError> {
    let Target { path, place, marks, interrupt } = target;
    let options = store::create_options(shape, map_memory);
    store::check_create(&path, place.size(), &options)?;
    let (mut file, size) = match place {
        Destination::Disk { device } => {
            let disk = OpenOptions::new().write(true).open(&path);
            erase(&disk.map_err(|e| CliError::io("open", &path, e))?, &path, &marks)?;
            let made = store::create(&path, device, &options)?;
            if let Some(origin) = origin {
                origin.bring_in(&path, store::open_device(&path, false)?, &interrupt)?;
            }
            return Ok(made);
        }
        Destination::File { file, size } => (file, size),
        Destination::Missing { size } => {
            let file = TargetFile::make(&path)?;
            // Empty, unless somebody else has been there in the meantime.
            look(file.file(), &path, file.length()?, false)?;
            (file, size)
        }
    };
    file.lengthen(size)?;
    if !shape.sparse && !file.reserve(&interrupt)? {
        room::note_that_none_is_reserved(&path);
    }
    let device = file.open_device()?;
    // Some marks are looked for at a distance from the end, which is elsewhere now.
    let mut marks = marks;
    marks.extend(look(file.file(), file.path(), size, true)?);
    interrupt.check()?;
    erase(file.file(), file.path(), &marks)?;
    let made = store::create(file.path(), device, &options)?;
    if shape.sparse {
        file.reserve_before_log(made.segment_size_bytes, &interrupt)?;
    }
    if let Some(origin) = origin {
        origin.bring_in(file.path(), file.open_device()?, &interrupt)?;
    }
    file.keep();
    Ok(made)
}

/// What there is at a path, and the size that it is to have.
enum Destination {
    /// Nothing yet.
    Missing { size: u64 },
    /// A file, which becomes no shorter.
    File { file: TargetFile, size: u64 },
    /// A disk, used whole.
    Disk { device: Box<dyn Device> },
}

impl Destination {
    /// Bytes of the store.
    fn size(&self) -> u64 {
        match self {
            Destination::Missing { size } | Destination::File { size, .. } => *size,
            Destination::Disk { device } => device.properties().size,
        }
    }
}

/// What is at `path`, locked, if it may become as large as is asked.
fn find_place(path: &Path, shape: &Shape) -> Result<Destination, CliError> {
    let asked = shape.store_size.map(|size| size.0);
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let missing = store::missing(path);
            if !matches!(missing, OpenError::StoreMissing { .. }) {
                return Err(missing.into());
            }
            let size = match asked {
                Some(size) => size,
                None => store::size_for_volume(path, shape)?
                    .ok_or_else(|| StoreError::SizeNeeded { path: path.to_owned() })?,
            };
            return Ok(Destination::Missing { size });
        }
        Err(error) => return Err(CliError::io("find", path, error)),
    };
    if metadata.file_type().is_block_device() {
        return match asked {
            Some(_) => Err(StoreError::SizeOfDisk { path: path.to_owned() }.into()),
            None => Ok(Destination::Disk { device: store::open_device(path, false)? }),
        };
    }
    if !metadata.is_file() {
        return Err(StoreError::NotAStorePath { path: path.to_owned() }.into());
    }
    let file = TargetFile::open(path)?;
    let present = file.length()?;
    let asked = match (asked, store::size_for_volume(path, shape)?) {
        // A blank file may have more than enough room already.
        (None, Some(needed)) => Some(needed.max(present)),
        (asked, _) => asked,
    };
    match asked {
        None if present == 0 => Err(StoreError::SizeNeeded { path: path.to_owned() }.into()),
        Some(size) if size < present => {
            Err(StoreError::SizeShrinks { path: path.to_owned(), size, present }.into())
        }
        asked => Ok(Destination::File { file, size: asked.unwrap_or(present) }),
    }
}

/// The signatures in the first `size` bytes of `file`, which is at `path`.
///
/// # Errors
/// Unless `force` is given, when there is any; and for a regular file, when it is not blank. A disk
/// that was in use before and was cleared of its signatures is formatted, as by every `mkfs`; a file
/// of that name is likelier a slip of the hand.
fn look(file: &File, path: &Path, size: u64, force: bool) -> Result<Vec<Signature>, CliError> {
    let failed = |source| CliError::io("look at", path, source);
    let is_disk = file.metadata().map_err(failed)?.file_type().is_block_device();
    let (signatures, in_use) = signatures::detect_anything(file, size).map_err(failed)?;
    if force {
        return Ok(signatures);
    }
    if !signatures.is_empty() {
        return Err(StoreError::HoldsData { path: path.to_owned(), signatures }.into());
    }
    if is_disk {
        return Ok(signatures);
    }
    let content = match in_use {
        Some(offset) => Content::From(offset),
        None => sparse::content(file, size, ZEROS_READ_MAX).map_err(failed)?,
    };
    match content {
        Content::From(offset) => {
            Err(StoreError::HoldsSomething { path: path.to_owned(), offset }.into())
        }
        Content::Zeros | Content::ZerosSoFar => Ok(signatures),
    }
}

/// Clears the marks of what was there away.
fn erase(file: &File, path: &Path, marks: &[Signature]) -> Result<(), CliError> {
    if marks.is_empty() {
        return Ok(());
    }
    signatures::erase(file, marks)
        .map_err(|source| CliError::io("erase the signatures of", path, source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    const MIB: u64 = 1 << 20;

    fn shape(size: Option<u64>) -> Shape {
        Shape {
            size: None,
            store_size: size.map(Size),
            segment_size: Some(Size(2 << 20)),
            spare: None,
            page_size: None,
            reclaim: None,
            label: String::new(),
            sparse: false,
            capacity: None,
            touched_limit: None,
            address_space: None,
        }
    }

    fn make(path: &Path, shape: &Shape, force: bool) -> Result<Made, CliError> {
        format(Target::prepare(path, shape, force)?, shape, None)
    }

    fn blank(size: u64) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
        file.as_file().set_len(size).expect("it can be extended");
        file
    }

    fn length(file: &tempfile::NamedTempFile) -> u64 {
        file.as_file().metadata().expect("it is there").len()
    }

    #[test]
    fn a_missing_file_is_made_only_with_a_size_and_stays_only_when_formatted() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().join("a.img");
        let refused = find_place(&path, &shape(None));
        assert!(matches!(refused, Err(CliError::Store(StoreError::SizeNeeded { .. }))));
        drop(Target::prepare(&path, &shape(Some(64 * MIB)), false).expect("it can be made"));
        assert!(!path.exists(), "a file that was not formatted stays behind");
        let impossible = Shape { size: Some(Size(1 << 40)), ..shape(Some(64 * MIB)) };
        make(&path, &impossible, false).expect_err("so much does not fit");
        assert!(!path.exists(), "a file that could not be formatted stays behind");
        make(&path, &shape(Some(64 * MIB)), false).expect("it can be made");
        assert_eq!(fs::metadata(&path).expect("it is there").len(), 64 * MIB);
    }

    #[test]
    fn a_file_that_another_makes_meanwhile_is_looked_at() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().join("a.img");
        let target = Target::prepare(&path, &shape(Some(64 * MIB)), false).expect("it is missing");
        fs::write(&path, "another's").expect("the directory is writable");
        format(target, &shape(Some(64 * MIB)), None).expect_err("it is there now");
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "another's");
    }

    #[test]
    fn a_blank_file_grows_but_never_shrinks() {
        let file = blank(0);
        let refused = make(file.path(), &shape(None), false);
        assert!(matches!(refused, Err(CliError::Store(StoreError::SizeNeeded { .. }))));
        make(file.path(), &shape(Some(64 * MIB)), false).expect("an empty file may grow");
        assert_eq!(length(&file), 64 * MIB);
        make(file.path(), &shape(Some(65 * MIB)), true).expect("it may grow");
        assert_eq!(length(&file), 65 * MIB);
        make(file.path(), &shape(None), true).expect("it may stay as it is");
        let refused = make(file.path(), &shape(Some(64 * MIB)), true);
        assert!(matches!(refused, Err(CliError::Store(StoreError::SizeShrinks { .. }))));
        assert_eq!(length(&file), 65 * MIB);
    }

    #[test]
    fn a_file_of_an_unknown_kind_is_refused_as_it_is() {
        let last = 64 * MIB - 1;
        for (size, at) in [
            (None, last),
            (None, 0),
            (None, 30 * MIB),
            (Some(96 * MIB), last),
            (Some(96 * MIB), 30 * MIB),
        ] {
            let file = blank(64 * MIB);
            file.as_file().write_all_at(b"x", at).expect("it is writable");
            let refused = make(file.path(), &shape(size), false);
            let Err(CliError::Store(StoreError::HoldsSomething { offset, .. })) = refused else {
                panic!("a byte at {at} was not seen: {refused:?}");
            };
            assert_eq!(offset, at);
            assert_eq!(length(&file), 64 * MIB);
            make(file.path(), &shape(size), true).expect("force allows it");
        }
    }

    #[test]
    fn a_mark_at_the_end_of_a_file_that_is_to_grow_is_found_and_erased() {
        let file = blank(64 * MIB);
        let at = 64 * MIB - 512;
        file.as_file().write_all_at(b"EFI PART", at).expect("it is writable");
        let refused = make(file.path(), &shape(Some(96 * MIB)), false);
        assert!(matches!(refused, Err(CliError::Store(StoreError::HoldsData { .. }))));
        assert_eq!(length(&file), 64 * MIB);
        make(file.path(), &shape(Some(96 * MIB)), true).expect("force allows it");
        let mut mark = [0; 8];
        file.as_file().read_exact_at(&mut mark, at).expect("it is readable");
        assert_eq!(mark, [0; 8]);
    }

    #[test]
    fn directories_and_devices_without_blocks_are_refused() {
        for path in ["/", "/dev/null"] {
            let refused = find_place(Path::new(path), &shape(None));
            let kind = matches!(refused, Err(CliError::Store(StoreError::NotAStorePath { .. })));
            assert!(kind, "{path}");
        }
    }
}
