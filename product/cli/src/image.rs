//! Where `salvage` and `export` put what they take out: a file that is made for it, or a disk.
//!
//! Invariants:
//! - nothing that is there is overwritten unless that was asked for;
//! - a file has its name only once it is whole: until then it is called NAME.partial;
//! - a file that was made here is removed if it does not come to be whole;
//! - what is not written reads as zeros, on a disk too.

use crate::error::{CliError, StoreError};
use crate::interrupt::Interrupt;
use crate::target_file::TargetFile;
use coulter_check::salvage::{Block, Lba, Sink};
use coulter_daemon::file_identity::FileIdentity;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// An image in the making.
pub(crate) struct Image {
    place: ImageMedium,
    path: PathBuf,
    interrupt: Interrupt,
    /// What kept a block from being written.
    refused: Option<CliError>,
}

enum ImageMedium {
    /// With the name that it gets.
    File(TargetFile, PathBuf),
    Disk(File),
}

impl Image {
    /// Makes an image of so many bytes, all zeros, at `path`; only with `force` where something is. It must
    /// not be the store itself.
    ///
    /// # Errors
    /// When that is not allowed, or the system refuses.
    pub(crate) fn make(
        path: &Path,
        store: &Path,
        size: u64,
        force: bool,
        interrupt: Interrupt,
    ) -> Result<Image, CliError> {
        let place = match std::fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => fresh(path, size)?,
            Err(source) => return Err(CliError::io("look at", path, source)),
            Ok(metadata) => {
                let is_disk = metadata.file_type().is_block_device();
                if !is_disk && !metadata.is_file() {
                    return Err(StoreError::NoImage { path: path.to_owned() }.into());
                }
                if FileIdentity::at(path).ok() == FileIdentity::at(store).ok() {
                    return Err(StoreError::ImageIsStore { path: path.to_owned() }.into());
                }
                if !force {
                    return Err(StoreError::ImageExists { path: path.to_owned(), is_disk }.into());
                }
                if is_disk { disk(path, size)? } else { emptied(path, size)? }
            }
        };
        Ok(Image { place, path: path.to_owned(), interrupt, refused: None })
    }

    fn file(&self) -> &File {
        match &self.place {
            ImageMedium::File(file, _) => file.file(),
            ImageMedium::Disk(file) => file,
        }
    }

    /// What kept a block from being written, if that ended it all.
    pub(crate) fn take_refusal(&mut self) -> Option<CliError> {
        self.refused.take()
    }

    /// Writes whole blocks, from `lba` on.
    ///
    /// # Errors
    /// When one cannot be written, or the person pressed Ctrl-C.
    pub(crate) fn write(&mut self, lba: Lba, bytes: &[u8]) -> Result<(), CliError> {
        let (blocks, rest) = bytes.as_chunks();
        assert!(rest.is_empty(), "only whole blocks are written");
        for (index, block) in blocks.iter().enumerate() {
            if let Err(source) = self.block(Lba(lba.0 + index as u64), block) {
                let refusal = self.refused.take();
                return Err(refusal.unwrap_or_else(|| CliError::io("write", &self.path, source)));
            }
        }
        Ok(())
    }

    /// It is whole, and stays.
    ///
    /// # Errors
    /// When it cannot be made durable.
    pub(crate) fn keep(mut self) -> Result<(), CliError> {
        self.file().sync_all().map_err(|source| CliError::io("flush", &self.path, source))?;
        if let ImageMedium::File(file, name) = &mut self.place {
            file.name(name)?;
            file.keep();
        }
        Ok(())
    }
}

impl Sink for Image {
    fn block(&mut self, lba: Lba, content: &Block) -> io::Result<()> {
        if self.interrupt.is_raised() {
            self.refused = self.interrupt.check().err();
            return Err(io::ErrorKind::Interrupted.into());
        }
        if content.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let written = self.file().write_all_at(content, lba.0 * content.len() as u64);
        written.inspect_err(|error| {
            let source = io::Error::from(error.kind());
            let source = error.raw_os_error().map_or(source, io::Error::from_raw_os_error);
            self.refused = Some(CliError::io("write", &self.path, source));
        })
    }
}

/// The name of a file that is not whole yet.
fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// A new file. What an earlier program left of it when it was killed goes.
fn fresh(path: &Path, size: u64) -> Result<ImageMedium, CliError> {
    if std::fs::read_link(path).is_ok() {
        // It leads to nothing, which is told.
        TargetFile::make(path)?;
    }
    let part = partial(path);
    if std::fs::symlink_metadata(&part).is_ok_and(|found| found.is_file()) {
        // A program that is still writing it holds its lock.
        let left = TargetFile::open(&part)?;
        std::fs::remove_file(left.path()).map_err(|e| CliError::io("remove", &part, e))?;
    }
    let file = TargetFile::make(&part)?;
    file.lengthen(size)?;
    Ok(ImageMedium::File(file, path.to_owned()))
}

/// A file whose content is given up.
fn emptied(path: &Path, size: u64) -> Result<ImageMedium, CliError> {
    let path = path.canonicalize().map_err(|source| CliError::io("find", path, source))?;
    // Under a lock: no other program has it open.
    let mut file = TargetFile::open(&path)?;
    file.name(&partial(&path))?;
    file.file().set_len(0).map_err(|source| CliError::io("empty", &path, source))?;
    file.lengthen(size)?;
    Ok(ImageMedium::File(file, path))
}

/// A disk that nobody uses, zeroed as far as the image goes.
fn disk(path: &Path, size: u64) -> Result<ImageMedium, CliError> {
    let failed = |source| CliError::io("open", path, source);
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_EXCL);
    let mut file = options.open(path).map_err(failed)?;
    let present = file.seek(SeekFrom::End(0)).map_err(failed)?;
    if present < size {
        return Err(StoreError::ImageTooSmall { path: path.to_owned(), size, present }.into());
    }
    let zero = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, zero, 0, size).map_err(|errno| CliError::io("zero", path, errno.into()))?;
    Ok(ImageMedium::Disk(file))
}
