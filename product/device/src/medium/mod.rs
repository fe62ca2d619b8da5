//! A file or a disk, open and locked, with all that is to be known of it before the first command.
//!
//! What it does not do: transfers in any number or order; that is for the devices built on it.
//!
//! Invariants:
//! - whoever writes is alone. A file carries a `flock`, exclusive for writing and shared for
//!   reading, its own or its caller's; a disk is opened with `O_EXCL`, which also excludes mounted
//!   file systems; of a loop device the file below it is locked too;
//! - the lock of a file is given up in `drop`, not when the kernel closes the last copy of the
//!   descriptor, which for io_uring happens later and elsewhere.

mod alignment;
mod disk;
mod lock;
mod loops;
mod room;

pub use lock::LockedFile;

use crate::command::{ALIGNMENT_MAX, Prepare, Properties, SECTOR_SIZE};
use crate::open_error::OpenError;
use crate::open_options::OpenOptions;
use std::fs::{self, File, FileType};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

/// Bytes behind the end of a file at which punching holes is tried.
const PAST_THE_END: u64 = 1 << 30;

/// A file or a disk, open and locked.
#[derive(Debug)]
pub(crate) struct Target {
    file: File,
    path: PathBuf,
    kind: TargetKind,
    size: u64,
    alignment: u64,
    volatile_cache: bool,
    discard: bool,
    prepare: Prepare,
    read_only: bool,
    notes: Vec<String>,
    /// Held for its lock.
    _file_below: Option<loops::FileBelow>,
}

/// What is at the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetKind {
    /// A regular file.
    File,
    /// A block device: a disk or a part of one.
    Disk,
}

impl Target {
    /// Opens and locks what is at `path`, and finds out what it can do.
    pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Target, OpenError> {
        if let Some(size) = options.create_size {
            create(path, size)?;
        }
        let metadata = fs::metadata(path).map_err(|source| open_failed(path, options, source))?;
        let kind = kind_of(path, metadata.file_type())?;
        let (file, direct) = open_file(path, kind, options)?;
        let metadata = file.metadata().map_err(|source| failed(path, "look at", source))?;
        if kind_of(path, metadata.file_type())? != kind {
            return Err(OpenError::NotABlockDeviceOrFile { path: path.to_path_buf() });
        }
        let mut file_below = None;
        match kind {
            TargetKind::File => {
                if !options.locked {
                    lock::lock(&file, path, &metadata, options.read_only)?;
                }
                if !options.read_only
                    && let Some(device) = loops::over(path)
                {
                    return Err(OpenError::InUse { path: path.to_path_buf(), by: Some(device) });
                }
            }
            TargetKind::Disk => {
                let directory = disk::directory(metadata.rdev());
                file_below = loops::FileBelow::lock(path, &directory, options.read_only)?;
            }
        }
        // From here on a failure drops the target, which gives up the lock.
        let mut target = Target {
            file,
            path: path.to_path_buf(),
            kind,
            size: 0,
            alignment: SECTOR_SIZE,
            volatile_cache: true,
            discard: false,
            prepare: Prepare::Nothing,
            read_only: options.read_only,
            notes: Vec::new(),
            _file_below: file_below,
        };
        let end = target.file.seek(SeekFrom::End(0));
        let end = end.map_err(|source| failed(path, "measure", source))?;
        let too_small =
            |size_min| OpenError::TooSmall { path: path.to_path_buf(), size: end, size_min };
        if end < options.size_min.max(ALIGNMENT_MAX) {
            return Err(too_small(options.size_min.max(ALIGNMENT_MAX)));
        }
        target.size = end;
        match kind {
            TargetKind::File => target.examine_file(options, direct)?,
            TargetKind::Disk => target.examine_disk(metadata.rdev(), options, direct)?,
        }
        target.size -= target.size % target.alignment;
        if target.size < options.size_min {
            return Err(too_small(options.size_min));
        }
        Ok(target)
    }

    fn examine_file(&mut self, options: &OpenOptions, direct: bool) -> Result<(), OpenError> {
        if !self.read_only {
            self.prepare = room::of_file(&self.file, self.size)
                .map_err(|source| failed(&self.path, "look at", source))?;
            // What is allocated is to stay so: see `room`.
            self.discard = self.prepare != Prepare::Blocks && punches_holes(&self.file, self.size);
        }
        if options.direct && !direct {
            self.note_buffered();
        }
        if !direct {
            return Ok(());
        }
        match alignment::of_direct(&self.file) {
            Some(alignment) => self.alignment = alignment,
            None => {
                set_buffered(&self.file).map_err(|source| failed(&self.path, "open", source))?;
                self.note_buffered();
            }
        }
        Ok(())
    }

    fn examine_disk(
        &mut self,
        number: u64,
        options: &OpenOptions,
        direct: bool,
    ) -> Result<(), OpenError> {
        let facts = disk::facts(&self.file, number);
        let facts = facts.map_err(|source| failed(&self.path, "examine", source))?;
        if facts.logical_block_size > ALIGNMENT_MAX {
            return Err(OpenError::BlocksTooLarge {
                path: self.path.clone(),
                logical_block_size: facts.logical_block_size,
            });
        }
        if facts.read_only && !self.read_only {
            return Err(OpenError::ReadOnlyMedium { path: self.path.clone() });
        }
        self.alignment =
            if facts.logical_block_size > SECTOR_SIZE { ALIGNMENT_MAX } else { SECTOR_SIZE };
        self.discard = facts.discard && !self.read_only;
        self.volatile_cache = facts.volatile_cache || !direct;
        if options.direct && !direct {
            self.note_buffered();
        }
        Ok(())
    }

    /// Adds what people should know of it.
    pub(crate) fn add_note(&mut self, note: Option<String>) {
        self.notes.extend(note);
    }

    fn note_buffered(&mut self) {
        self.notes.push("through the page cache: the file system refuses O_DIRECT".to_string());
    }

    /// What a device on this target, driven by `engine`, says of itself.
    pub(crate) fn properties(
        &self,
        engine: &str,
        queue_depth: usize,
        note: Option<String>,
    ) -> Properties {
        let what = match self.kind {
            TargetKind::File => "file",
            TargetKind::Disk => "disk",
        };
        let properties = Properties {
            size: self.size,
            alignment: self.alignment,
            volatile_cache: self.volatile_cache,
            discard: self.discard,
            prepare: self.prepare,
            atomic_page: 0,
            read_only: self.read_only,
            queue_depth,
            description: format!("{what} {} by {engine}", self.path.display()),
            note: self.note(note),
        };
        properties.assert_consistent();
        properties
    }

    /// What people should know of the target, and of the engine on it.
    pub(crate) fn note(&self, of_engine: Option<String>) -> Option<String> {
        let notes: Vec<String> = self.notes.iter().cloned().chain(of_engine).collect();
        if notes.is_empty() { None } else { Some(notes.join("; ")) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn kind(&self) -> TargetKind {
        self.kind
    }

    pub(crate) fn prepare(&self) -> Prepare {
        self.prepare
    }

    /// Whether part of a range of the file was never written.
    pub(crate) fn has_hole(&self, offset: u64, length: u64) -> bool {
        room::has_hole(&self.file, offset, length)
    }

    pub(crate) fn alignment(&self) -> u64 {
        self.alignment
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// The same once more, to be read from, and without a lock: an open file of its own.
    pub(crate) fn reopened_to_read(&self) -> io::Result<Target> {
        // SAFETY: no pointers; the descriptor is open.
        let flags = unsafe { libc::fcntl(self.fd(), libc::F_GETFL) };
        if flags < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut open = fs::OpenOptions::new();
        open.read(true).custom_flags(flags & libc::O_DIRECT);
        // The very file that is open, whatever its path leads to by now.
        let file = open.open(format!("/proc/self/fd/{}", self.fd()))?;
        Ok(Target {
            file,
            path: self.path.clone(),
            kind: self.kind,
            size: self.size,
            alignment: self.alignment,
            volatile_cache: self.volatile_cache,
            discard: false,
            prepare: Prepare::Nothing,
            read_only: true,
            notes: Vec::new(),
            _file_below: None,
        })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.kind == TargetKind::File {
            lock::unlock(&self.file);
        }
    }
}

/// Makes a file if there is nothing, durably: its name survives a power cut too.
fn create(path: &Path, size: u64) -> Result<(), OpenError> {
    let creation = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = match creation {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        Err(source) => {
            let options = OpenOptions::default();
            return Err(open_failed(path, &options, source));
        }
    };
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let made = file
        .set_len(size)
        .and_then(|()| file.sync_all())
        .and_then(|()| File::open(directory)?.sync_all());
    made.map_err(|source| {
        // It is this call's own, and of no use.
        let _ = fs::remove_file(path);
        failed(path, "create", source)
    })
}

fn kind_of(path: &Path, file_type: FileType) -> Result<TargetKind, OpenError> {
    if file_type.is_file() {
        Ok(TargetKind::File)
    } else if file_type.is_block_device() {
        Ok(TargetKind::Disk)
    } else {
        Err(OpenError::NotABlockDeviceOrFile { path: path.to_path_buf() })
    }
}

/// Opens the file, past the page cache if that is wanted and possible; says whether it was.
fn open_file(
    path: &Path,
    kind: TargetKind,
    options: &OpenOptions,
) -> Result<(File, bool), OpenError> {
    let exclusive = if kind == TargetKind::Disk { libc::O_EXCL } else { 0 };
    let start = Instant::now();
    let open = |flags| {
        let mut open = fs::OpenOptions::new();
        open.read(true).write(!options.read_only).custom_flags(exclusive | flags);
        loop {
            match open.open(path) {
                // As with a lock: a ring that is being taken down may have the disk yet.
                Err(error)
                    if error.raw_os_error() == Some(libc::EBUSY)
                        && start.elapsed() < disk::PATIENCE
                        && disk::holder(path).is_none() =>
                {
                    thread::sleep(lock::PAUSE);
                }
                outcome => return outcome,
            }
        }
    };
    let opened = if options.direct {
        match open(libc::O_DIRECT) {
            Ok(file) => return Ok((file, true)),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open(0),
            Err(error) => Err(error),
        }
    } else {
        open(0)
    };
    let file = opened.map_err(|source| open_failed(path, options, source))?;
    Ok((file, false))
}

/// What an error of `open` means.
fn open_failed(path: &Path, options: &OpenOptions, source: io::Error) -> OpenError {
    let path = path.to_path_buf();
    let writing = !options.read_only;
    match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => OpenError::NotFound { path },
        Some(libc::EROFS) => OpenError::ReadOnlyMedium { path },
        Some(libc::EACCES | libc::EPERM) if writing && disk::is_read_only(&path) => {
            OpenError::ReadOnlyMedium { path }
        }
        Some(libc::EACCES | libc::EPERM) => OpenError::PermissionDenied { path, writing },
        Some(libc::EBUSY) => {
            let by = disk::holder(&path);
            OpenError::InUse { path, by }
        }
        Some(libc::ETXTBSY) => {
            OpenError::InUse { path, by: Some("a program that runs from it".to_string()) }
        }
        Some(libc::EISDIR) => OpenError::NotABlockDeviceOrFile { path },
        _ => OpenError::Io { path, doing: "open", source },
    }
}

fn failed(path: &Path, doing: &'static str, source: io::Error) -> OpenError {
    OpenError::Io { path: path.to_path_buf(), doing, source }
}

/// Whether ranges can be given back. Tried so far past the end that there is nothing to lose, even if
/// the file is none of ours and somebody is just appending to it.
fn punches_holes(file: &File, size: u64) -> bool {
    let offset = size.saturating_add(PAST_THE_END).next_multiple_of(ALIGNMENT_MAX);
    let (Ok(offset), length) = (i64::try_from(offset), 4096) else {
        return false;
    };
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: no pointers; the descriptor is open.
    unsafe { libc::fallocate64(file.as_raw_fd(), mode, offset, length) == 0 }
}

/// Sends transfers through the page cache from now on.
fn set_buffered(file: &File) -> io::Result<()> {
    let fd = file.as_raw_fd();
    // SAFETY: no pointers; the descriptor is open.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    if unsafe { libc::fcntl(fd, libc::F_SETFL, flags & !libc::O_DIRECT) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
