//! What a volume holds, brought in from an image and taken out to one.
//!
//! Both copy what is there and nothing else: holes of the source, and blocks of zeros, are not stored.
//! The volume is the library's, opened in this process; nobody else can have the store meanwhile.
//!
//! Invariants:
//! - the source is only read;
//! - each step heeds an interrupt, and the caller takes back what was made so far.

use crate::error::{CliError, OpenError, StoreError};
use crate::image::Image;
use crate::interrupt::Interrupt;
use crate::store::refused;
use crate::terminal;
use coulter::service::{BLOCK_SIZE, RequestError};
use coulter::{OpenOptions, Volume};
use coulter_check::salvage::Lba;
use coulter_daemon::file_identity::FileIdentity;
use coulter_daemon::signatures;
use coulter_device::Device;
use coulter_system::sparse;
use std::fs::{File, OpenOptions as FileOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes copied at once.
const PIECE_SIZE: usize = 1 << 20;

/// Bytes of a volume whose map is asked for at once.
const QUESTION_SIZE: u64 = 1 << 30;

/// An image, or a disk, whose content a new volume is to have.
pub struct Origin {
    file: File,
    path: PathBuf,
    size: u64,
}

impl Origin {
    /// What is at `path`, for a store at `store`.
    ///
    /// # Errors
    /// [`StoreError::OriginUnfit`] when it is neither a file nor a disk, holds nothing, or is the store
    /// itself; when somebody uses the disk, or it cannot be read.
    pub fn open(path: &Path, store: &Path) -> Result<Origin, CliError> {
        let unfit = |reason| StoreError::OriginUnfit { path: path.to_owned(), reason };
        let failed = |source| CliError::io("open", path, source);
        let metadata = std::fs::metadata(path).map_err(failed)?;
        let is_disk = metadata.file_type().is_block_device();
        if !is_disk && !metadata.is_file() {
            return Err(unfit("it is neither a regular file nor a block device").into());
        }
        let is_store = FileIdentity::at(store).is_ok_and(|it| it == FileIdentity::of(&metadata));
        if is_store {
            return Err(unfit("that is the store itself").into());
        }
        // A disk that is mounted changes while it is read.
        let flags = if is_disk { libc::O_EXCL } else { 0 };
        let mut file =
            FileOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
        let size = file.seek(SeekFrom::End(0)).map_err(failed)?;
        let marks = signatures::detect(&file, size).map_err(failed)?;
        if marks.iter().any(|mark| mark.what == signatures::COULTER) {
            return Err(StoreError::OriginIsStore { path: path.to_owned() }.into());
        }
        match size {
            0 => Err(unfit("it is empty").into()),
            _ => Ok(Origin { file, path: path.to_owned(), size }),
        }
    }

    /// Bytes of the smallest volume that holds it.
    pub fn volume_size(&self) -> u64 {
        self.size.next_multiple_of(BLOCK_SIZE)
    }

    /// Writes it to the volume of the new store on `device`, which is at `store`.
    ///
    /// # Errors
    /// [`StoreError::OriginUnfit`] when it does not fit; when one of both fails; when interrupted.
    pub fn bring_in(
        &self,
        store: &Path,
        device: Box<dyn Device>,
        interrupt: &Interrupt,
    ) -> Result<(), CliError> {
        let volume = Volume::open(device, OpenOptions::default())
            .map_err(|error| refused(store.to_owned(), &error.kind))?;
        let copied = self.copy_to(&volume, store, interrupt);
        let closed = volume.close().map_err(|error| {
            let reason = error.to_string();
            CliError::from(OpenError::NotClosed { path: store.to_owned(), reason })
        });
        copied.and(closed)
    }

    fn copy_to(
        &self,
        volume: &Volume,
        store: &Path,
        interrupt: &Interrupt,
    ) -> Result<(), CliError> {
        if self.size > volume.size() {
            let reason = "it is larger than the volume";
            return Err(StoreError::OriginUnfit { path: self.path.clone(), reason }.into());
        }
        let read = |source| CliError::io("read", &self.path, source);
        let bar = terminal::progress("bringing it in", self.size);
        let mut piece = vec![0; PIECE_SIZE];
        let mut at = 0;
        while let Some(run) = sparse::next_data(&self.file, at, self.size).map_err(read)? {
            // Whole blocks of the volume, or its own half would be read for each end of a run.
            at = run.start - run.start % BLOCK_SIZE;
            while at < run.end {
                interrupt.check()?;
                let length = (PIECE_SIZE as u64).min(self.size - at) as usize;
                // What is behind the end of the image reads as zeros.
                let padded = length.next_multiple_of(BLOCK_SIZE as usize);
                piece[length..padded].fill(0);
                self.file.read_exact_at(&mut piece[..length], at).map_err(read)?;
                write_blocks(volume, at, &piece[..padded]).map_err(|error| failed(store, error))?;
                at += length as u64;
                bar.set_position(at);
            }
        }
        bar.finish_and_clear();
        volume.flush().map_err(|error| failed(store, error))
    }
}

/// Writes the blocks of `bytes` that are not zeros, neighbours together.
fn write_blocks(volume: &Volume, offset: u64, bytes: &[u8]) -> Result<(), RequestError> {
    let block = BLOCK_SIZE as usize;
    let is_data = |index: usize| bytes[index * block..][..block].iter().any(|byte| *byte != 0);
    let count = bytes.len() / block;
    let mut index = 0;
    while index < count {
        let begin = index;
        while index < count && is_data(index) {
            index += 1;
        }
        if index > begin {
            let data = &bytes[begin * block..index * block];
            volume.write_at(offset + (begin * block) as u64, data)?;
        }
        index += 1;
    }
    Ok(())
}

/// Writes what `volume`, of the store at `store`, holds to `image`. How many bytes were mapped.
///
/// # Errors
/// When one of both fails, or when interrupted.
pub(crate) fn take_out(volume: &Volume, store: &Path, image: &mut Image) -> Result<u64, CliError> {
    let bar = terminal::progress("taking it out", volume.size());
    let mut piece = vec![0; PIECE_SIZE];
    let (mut at, mut taken) = (0, 0);
    while at < volume.size() {
        let length = QUESTION_SIZE.min(volume.size() - at);
        let extents = volume.exact_extents(at, length).map_err(|error| failed(store, error))?;
        assert!(extents.iter().any(|extent| extent.length > 0), "an answer covers something");
        for extent in extents {
            let end = at + extent.length;
            while extent.mapped && at < end {
                let length = (PIECE_SIZE as u64).min(end - at) as usize;
                let bytes = &mut piece[..length];
                volume.read_at(at, bytes).map_err(|error| failed(store, error))?;
                image.write(Lba(at / BLOCK_SIZE), bytes)?;
                at += length as u64;
                taken += length as u64;
                bar.set_position(at);
            }
            at = end;
        }
    }
    bar.finish_and_clear();
    Ok(taken)
}

fn failed(store: &Path, error: RequestError) -> CliError {
    CliError::io("copy the content of", store, io::Error::from_raw_os_error(error.errno()))
}
