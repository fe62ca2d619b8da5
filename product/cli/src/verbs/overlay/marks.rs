//! Marks of files that never got a record, because the daemon was killed between the two.
//!
//! No record names such a file, so that only a search finds it. The directory notes that a daemon was killed; else
//! there are none.

use crate::terminal;
use coulter_overlay::MARK;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes of a mark, and those of them that are the overlay's.
const MARK_SIZE: usize = 16;
const IDENTITY_SIZE: usize = 8;

/// Takes the marks of the overlay of this identity from all files of a directory, which nothing serves.
///
/// # Errors
/// The first one; the search goes on behind it.
pub(super) fn take_away(directory: &Path, identity: [u8; 16]) -> io::Result<()> {
    let device = fs::metadata(directory)?.dev();
    let bar = terminal::spinner("searching for marks of killed daemons");
    let mut first = None;
    let mut places = vec![directory.to_owned()];
    while let Some(place) = places.pop() {
        for found in entries(&place, &mut first) {
            let looked = look(&found, device, identity).map(|is_directory| {
                if is_directory {
                    places.push(found);
                }
            });
            first = first.or(looked.err());
        }
    }
    bar.finish_and_clear();
    first.map_or(Ok(()), Err)
}

fn entries(place: &Path, first: &mut Option<io::Error>) -> Vec<PathBuf> {
    match fs::read_dir(place) {
        Ok(found) => found.flatten().map(|entry| entry.path()).collect(),
        Err(error) => {
            first.get_or_insert(error);
            Vec::new()
        }
    }
}

/// Takes the mark from one file; whether it is a directory of the same file system.
fn look(path: &Path, device: u64, identity: [u8; 16]) -> io::Result<bool> {
    let found = fs::symlink_metadata(path)?;
    if found.dev() != device {
        return Ok(false);
    }
    if found.is_file() {
        let mut mark = [0_u8; MARK_SIZE];
        let size = rustix::fs::lgetxattr(path, MARK, &mut mark[..]).unwrap_or(0);
        if size == MARK_SIZE && mark[..IDENTITY_SIZE] == identity[..IDENTITY_SIZE] {
            rustix::fs::lremovexattr(path, MARK)?;
        }
    }
    Ok(found.is_dir())
}
