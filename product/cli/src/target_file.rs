//! A regular file that is to become a store, or a larger one: locked, made as long as that shall be,
//! and taken back unless it has become one.
//!
//! Invariants:
//! - the lock is held from before the file is looked at until it is a store, or is as it was: whoever
//!   has the file open as a store is never disturbed, and nobody makes another store of it meanwhile;
//! - a file is removed only if it was made here, was empty when it was locked, and is still the one
//!   that its path leads to.

use crate::error::{CliError, OpenError, StoreError};
use crate::interrupt::Interrupt;
use crate::room;
use crate::store;
use coulter_device::{Device, LockedFile};
use coulter_format::BLOCK_SIZE;
use coulter_format::checkpoint::BODY_SIZE_MAX;
use coulter_system::{private, sparse};
use rustix::fs::{CWD, FallocateFlags, RenameFlags, fallocate, renameat_with};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes that are reserved at once: between two such pieces an interrupt is heeded.
const RESERVED_AT_ONCE: u64 = 256 << 20;

/// A locked file.
#[derive(Debug)]
pub(crate) struct TargetFile {
    file: LockedFile,
    path: PathBuf,
    before: Before,
    reserved: bool,
}

/// What there was before, which is to be there again if it comes to nothing.
#[derive(Clone, Copy, Debug)]
enum Before {
    /// No file.
    Nothing,
    /// A file of so many bytes; whether room is reserved for all of them.
    File { length: u64, reserved: bool },
    /// Whatever it was, it is a store now.
    Store,
}

impl TargetFile {
    /// Locks the file at `path`.
    ///
    /// # Errors
    /// When somebody else has it, or it cannot be written.
    pub(crate) fn open(path: &Path) -> Result<TargetFile, CliError> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        TargetFile::lock(file.map_err(|source| CliError::io("open", path, source))?, path)
    }

    /// Makes an empty file at `path`, where there is none, and locks it. It may be an older one, and
    /// not empty, when somebody else was faster with the lock: it has to be looked at.
    ///
    /// # Errors
    /// When it cannot be made, or somebody else has it already.
    pub(crate) fn make(path: &Path) -> Result<TargetFile, CliError> {
        let file = private::create_new(path).map_err(|source| {
            match (source.kind(), fs::read_link(path)) {
                (io::ErrorKind::AlreadyExists, Ok(target)) if !path.exists() => {
                    OpenError::LinkToNothing { path: path.to_owned(), target }.into()
                }
                _ => CliError::io("make", path, source),
            }
        })?;
        let mut target = TargetFile::lock(file, path)?;
        if target.length()? == 0 {
            target.before = Before::Nothing;
        }
        Ok(target)
    }

    fn lock(file: File, path: &Path) -> Result<TargetFile, CliError> {
        let file = store::lock_file(file, path)?;
        let failed = |source| CliError::io("look at", path, source);
        let metadata = file.metadata().map_err(failed)?;
        let length = metadata.len();
        let before = Before::File { length, reserved: metadata.blocks() * 512 >= length };
        let path = path.canonicalize().map_err(failed)?;
        Ok(TargetFile { file, path, before, reserved: false })
    }

    /// The file, to be looked at.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Where it is, absolute.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that it has.
    ///
    /// # Errors
    /// When the system does not say.
    pub(crate) fn length(&self) -> Result<u64, CliError> {
        let failed = |source| CliError::io("look at", &self.path, source);
        Ok(self.file.metadata().map_err(failed)?.len())
    }

    /// Makes it as long as `size`, if it is shorter.
    ///
    /// # Errors
    /// What the system refuses.
    pub(crate) fn lengthen(&self, size: u64) -> Result<(), CliError> {
        if self.length()? >= size {
            return Ok(());
        }
        self.file.set_len(size).map_err(|source| CliError::io("extend", &self.path, source))
    }

    /// Whether all of it had its room when it was locked.
    pub(crate) fn was_reserved(&self) -> bool {
        matches!(self.before, Before::File { reserved: true, .. })
    }

    /// Reserves the room of all of it, so that a full disk shows now and not under load. False if the
    /// file system cannot reserve any.
    ///
    /// # Errors
    /// When there is not so much room, or `interrupt` is raised.
    pub(crate) fn reserve(&mut self, interrupt: &Interrupt) -> Result<bool, CliError> {
        let length = self.length()?;
        self.reserved = true;
        self.reserve_range(0..length, interrupt)
    }

    /// Reserves the room of what is written before the log: a checkpoint must not wait for room, and the
    /// space of segments alone is secured before it is used. `segment_size` bytes lie before the log.
    ///
    /// # Errors
    /// As [`TargetFile::reserve`].
    pub(crate) fn reserve_before_log(
        &mut self,
        segment_size: u64,
        interrupt: &Interrupt,
    ) -> Result<bool, CliError> {
        // A superblock begins either half, and the second copy of a checkpoint's body follows it.
        let half = segment_size / 2;
        let length = half.min(u64::from(BODY_SIZE_MAX) + BLOCK_SIZE as u64);
        Ok(self.reserve_range(0..length, interrupt)?
            && self.reserve_range(half..half + length, interrupt)?)
    }

    fn reserve_range(
        &mut self,
        range: Range<u64>,
        interrupt: &Interrupt,
    ) -> Result<bool, CliError> {
        let mut at = range.start;
        while at < range.end {
            interrupt.check()?;
            let piece = RESERVED_AT_ONCE.min(range.end - at);
            match fallocate(&*self.file, FallocateFlags::empty(), at, piece) {
                Ok(()) => at += piece,
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP) => return Ok(false),
                Err(errno) => return Err(self.not_reserved(range.end, errno)),
            }
        }
        interrupt.check()?;
        Ok(true)
    }

    /// Why there is no room for `size` bytes.
    fn not_reserved(&self, size: u64, errno: Errno) -> CliError {
        match errno {
            Errno::NOSPC | Errno::DQUOT => {
                // The file's own space is given back.
                let own = self.file.metadata().map_or(0, |found| found.blocks() * 512);
                let free = room::bytes_left(&self.path).unwrap_or(0) + own;
                StoreError::NoRoom { path: self.path.clone(), size, free }.into()
            }
            errno => CliError::io("reserve the space of", &self.path, errno.into()),
        }
    }

    /// Opens it as a device, under the same lock.
    ///
    /// # Errors
    /// What the device layer refuses, or when another file is at the path now.
    pub(crate) fn open_device(&self) -> Result<Box<dyn Device>, CliError> {
        let device = store::open_locked_device(&self.path)?;
        if !self.is_at_its_path() {
            let source = io::Error::other("another file has taken its place");
            return Err(CliError::io("open", &self.path, source));
        }
        Ok(device)
    }

    /// Gives it its name, which nothing has yet.
    ///
    /// # Errors
    /// When something has come to be there, or the system refuses.
    pub(crate) fn name(&mut self, path: &Path) -> Result<(), CliError> {
        let failed = |source| CliError::io("make", path, source);
        renameat_with(CWD, &self.path, CWD, path, RenameFlags::NOREPLACE)
            .or_else(|errno| match errno {
                // Not each file system knows of it.
                Errno::INVAL | Errno::NOSYS if fs::symlink_metadata(path).is_err() => {
                    fs::rename(&self.path, path).map_err(|_| errno)
                }
                errno => Err(errno),
            })
            .map_err(|errno| failed(errno.into()))?;
        self.path = path.canonicalize().map_err(failed)?;
        let above = self.path.parent().unwrap_or(Path::new("/"));
        File::open(above).and_then(|above| above.sync_all()).map_err(failed)
    }

    /// It is a store now, and stays.
    pub(crate) fn keep(&mut self) {
        self.before = Before::Store;
    }

    /// Makes it as short as it was, when the store in it has not grown after all.
    pub(crate) fn cut(&self, length: u64) {
        if let Err(error) = self.file.set_len(length) {
            log::warn!(path:% = self.path.display(), error:%; "the file stays longer than it was");
        }
    }

    fn is_at_its_path(&self) -> bool {
        let (Ok(ours), Ok(there)) = (self.file.metadata(), fs::symlink_metadata(&self.path)) else {
            return false;
        };
        (ours.dev(), ours.ino()) == (there.dev(), there.ino())
    }

    fn take_back(&self) -> io::Result<()> {
        match self.before {
            Before::Store => Ok(()),
            Before::Nothing if self.is_at_its_path() => fs::remove_file(&self.path),
            Before::Nothing => Ok(()),
            Before::File { length, reserved } => {
                if self.file.metadata()?.len() > length {
                    self.file.set_len(length)?;
                }
                // Of a file for which room was reserved in part, that part is given back as well:
                // which it was is not known any more.
                match self.reserved && !reserved {
                    true => sparse::punch_holes(&self.file, length),
                    false => Ok(()),
                }
            }
        }
    }
}

impl Drop for TargetFile {
    fn drop(&mut self) {
        // The lock goes with the file, behind this.
        if let Err(error) = self.take_back() {
            log::warn!(path:% = self.path.display(), error:%; "cannot be left as it was");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(directory: &tempfile::TempDir) -> TargetFile {
        TargetFile::make(&directory.path().join("a.img")).expect("it can be made")
    }

    fn scratch() -> tempfile::TempDir {
        tempfile::tempdir_in("/var/tmp").expect("a temporary directory can be made")
    }

    #[test]
    fn a_file_that_was_made_goes_unless_it_is_kept() {
        let directory = scratch();
        let file = made(&directory);
        let path = file.path().to_owned();
        drop(file);
        assert!(!path.exists());
        made(&directory).keep();
        assert!(path.exists());
    }

    #[test]
    fn a_file_that_another_has_put_in_its_place_stays() {
        let directory = scratch();
        let file = made(&directory);
        let path = file.path().to_owned();
        fs::remove_file(&path).expect("it is there");
        fs::write(&path, "another's store").expect("the directory is writable");
        assert!(file.open_device().is_err(), "another file was opened");
        drop(file);
        assert_eq!(fs::read_to_string(&path).expect("it was removed"), "another's store");
    }

    #[test]
    fn a_file_that_another_has_locked_is_neither_taken_nor_removed() {
        let directory = scratch();
        let first = made(&directory);
        let path = first.path().to_owned();
        first.lengthen(1 << 20).expect("there is room");
        assert!(TargetFile::open(&path).is_err());
        assert_eq!(fs::metadata(&path).expect("it is there").len(), 1 << 20);
    }

    #[test]
    fn a_file_that_came_to_nothing_is_as_long_and_as_sparse_as_before() {
        let directory = scratch();
        let path = directory.path().join("a.img");
        fs::write(&path, vec![1; 4096]).expect("the directory is writable");
        let length = 8 << 20;
        OpenOptions::new()
            .write(true)
            .open(&path)
            .expect("it is there")
            .set_len(length)
            .expect("ok");
        let before = fs::metadata(&path).expect("it is there").blocks();
        let mut file = TargetFile::open(&path).expect("nobody has it");
        file.lengthen(16 << 20).expect("there is room");
        file.reserve(&Interrupt::default()).expect("there is room");
        assert!(file.file().metadata().expect("it is there").blocks() * 512 >= 16 << 20);
        drop(file);
        let after = fs::metadata(&path).expect("it is there");
        assert_eq!((after.len(), after.blocks()), (length, before));
    }

    #[test]
    fn an_interrupt_ends_the_reservation_and_the_file_goes() {
        let directory = scratch();
        let mut file = made(&directory);
        let path = file.path().to_owned();
        file.lengthen(1 << 20).expect("there is room");
        let interrupt = Interrupt::default();
        interrupt.raise();
        assert!(file.reserve(&interrupt).is_err());
        drop(file);
        assert!(!path.exists());
    }
}
