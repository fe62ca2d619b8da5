//! The content of a volume that no daemon serves, as far as it is Coulter's own.

use crate::error::CliError;
use crate::store;
use coulter::{LocalVolume, OpenOptions};
use coulter_files::EMPTY_BITMAP;
use coulter_format::files::Superblock;
use coulter_format::{BLOCK_SIZE, Block, overlay};
use std::path::Path;

/// Kinds of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inside {
    /// A file system of Coulter's own.
    Files,
    /// The data of an overlay.
    Overlay,
    /// Anything else, or nothing.
    Other,
}

impl Inside {
    /// The content of the store at `path`. The caller finds out why a store cannot be opened.
    pub(crate) fn of(path: &Path) -> Inside {
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let volume = store::open_device(path, true).ok();
        let volume = volume.and_then(|device| LocalVolume::open(device, options).ok());
        volume.map_or(Inside::Other, |volume| Inside::of_volume(&volume))
    }

    /// The same of an open volume.
    pub(crate) fn of_volume(volume: &LocalVolume) -> Inside {
        let mut block: Block = [0; BLOCK_SIZE];
        if volume.read_at(0, &mut block).is_err() {
            return Inside::Other;
        }
        match () {
            () if Superblock::decode(&block).is_ok() => Inside::Files,
            () if block.starts_with(&overlay::MAGIC) => Inside::Overlay,
            () => Inside::Other,
        }
    }
}

/// Lets the file system in the store at `path` take in all of its volume; gives back its bytes.
///
/// # Errors
/// When the store cannot be opened or written.
pub(crate) fn grow_files(path: &Path) -> Result<u64, CliError> {
    let failed =
        |error: String| CliError::io("grow the file system of", path, std::io::Error::other(error));
    let volume = LocalVolume::open(store::open_device(path, false)?, OpenOptions::default())
        .map_err(|error| failed(error.to_string()))?;
    let mut block: Block = [0; BLOCK_SIZE];
    volume.read_at(0, &mut block).map_err(|error| failed(error.to_string()))?;
    let superblock = Superblock::decode(&block).map_err(|error| failed(error.to_string()))?;
    let size = BLOCK_SIZE as u64;
    let Some(growth) = coulter_files::grow(&superblock, volume.size() / size) else {
        volume.close().map_err(|error| failed(error.to_string()))?;
        return Ok(superblock.block_count * size);
    };
    // Each bitmap before the superblock that makes it count.
    let mut bitmaps = growth.bitmaps.iter();
    bitmaps
        .try_for_each(|bitmap| volume.write_at(bitmap * size, &EMPTY_BITMAP))
        .and_then(|()| volume.flush())
        .map_err(|error| failed(error.to_string()))?;
    growth.superblock.encode(&mut block);
    volume
        .write_at(0, &block)
        .and_then(|()| volume.flush())
        .map_err(|error| failed(error.to_string()))?;
    volume.close().map_err(|error| failed(error.to_string()))?;
    Ok(growth.superblock.block_count * size)
}
