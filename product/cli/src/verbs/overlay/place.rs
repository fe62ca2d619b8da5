//! The place of an overlay and of its store.

use super::unfit;
use crate::error::{CliError, Error};
use crate::terminal;
use coulter_fuse::files::overlay;
use coulter_system::dead_mounts;
use coulter_system::seekable;
use coulter_terminal::{Size, fault};
use std::path::Path;

/// Bytes of a new store at most, and share of the free space, unless somebody says otherwise.
const STORE_SIZE_MAX: u64 = 8 << 30;
const STORE_SHARE: u64 = 8;
/// Bytes of the smallest store that is worth it.
const STORE_SIZE_MIN: u64 = 256 << 20;
/// Bytes of the smallest store that there can be.
const STORE_SIZE_LEAST: u64 = 48 << 20;

/// Why no overlay can be put over a directory that something of Coulter's is mounted on, and what to do.
pub(super) fn why_taken(directory: &Path) -> (&'static str, String) {
    let word = terminal::word(directory);
    match overlay::report(directory) {
        Ok(_) => ("one is over it already", format!("see `coulter overlay status {word}`")),
        Err(error) if dead_mounts::is_dead(&error) => {
            ("what is mounted there answers no more", format!("run `coulter umount {word}` first"))
        }
        Err(_) => (
            "a Coulter file system is mounted there, which writes in sequence by itself",
            "take a directory on ext4, XFS or Btrfs".to_owned(),
        ),
    }
}

/// That a store of this size, which was asked for, can be made.
pub(super) fn check_size(directory: &Path, size: u64) -> Result<(), CliError> {
    if size >= STORE_SIZE_LEAST {
        return Ok(());
    }
    let why = format!("a store of {} is too small", Size(size));
    let help = format!("give --store-size {} at least", Size(STORE_SIZE_LEAST));
    Err(unfit(directory, why, help))
}

/// True if a file that need not be there lies in a directory or below it.
pub(super) fn lies_in(path: &Path, directory: &Path) -> bool {
    let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
    parent.is_some_and(|parent| parent.starts_with(directory))
}

pub(super) fn disk_size(path: &Path) -> Result<u64, CliError> {
    use std::io::{Seek, SeekFrom};
    let failed = |source| CliError::io("look at", path, source);
    seekable::open(path).and_then(|mut disk| disk.seek(SeekFrom::End(0))).map_err(failed)
}

pub(super) fn default_size(directory: &Path) -> Result<u64, CliError> {
    let found = rustix::fs::statvfs(directory)
        .map_err(|errno| CliError::io("look at", directory, errno.into()))?;
    let free = found.f_bavail * found.f_frsize;
    let size = (free / STORE_SHARE).min(STORE_SIZE_MAX) >> 20 << 20;
    if size < STORE_SIZE_MIN {
        let why = format!(
            "there is too little room for a store: {} are free; --store puts it elsewhere, \
             --store-size says how large it is to be",
            Size(free)
        );
        let what = format!("cannot put an overlay over {}", directory.display());
        return Err(Error::Told(fault(what).why(why)).into());
    }
    Ok(size)
}
