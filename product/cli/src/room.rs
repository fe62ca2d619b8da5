//! What room a file system has left, and whether it suffices for what a store may still take of it.

use crate::terminal;
use coulter_terminal::Size;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes of a unit of [`MetadataExt::blocks`], whatever the file system's blocks are.
const SECTOR_SIZE: u64 = 512;

/// Tells, as a note, if the file at `path` is sparse and its file system has less left than its holes
/// take. That is how many use sparse files, and no error; but few expect what comes of it.
pub fn note_if_short(path: &Path) {
    // Whoever cannot be asked will be met by the one who opens it.
    let Ok(metadata) = std::fs::metadata(path) else { return };
    let Ok(left) = bytes_left(path) else { return };
    let holes = holes_of(&metadata);
    if holes > left {
        let path = terminal::path(path);
        terminal::note(&format!(
            "{path} may grow by {}, and its file system has {} left: once that is full, writes wait \
             until there is room again",
            Size(holes),
            Size(left)
        ));
    }
}

/// Tells, as a note, that the file system of `path` cannot reserve the space of a file.
pub(crate) fn note_that_none_is_reserved(path: &Path) {
    let path = terminal::path(path);
    terminal::note(&format!(
        "the file system of {path} cannot reserve space, so the store is as with --sparse"
    ));
}

/// Bytes that are left on the file system at `path`.
///
/// # Errors
/// When it cannot be asked.
pub fn bytes_left(path: &Path) -> io::Result<u64> {
    let system = rustix::fs::statvfs(path)?;
    Ok(system.f_bavail * system.f_frsize)
}

/// Bytes of a regular file that have no space of their own.
fn holes_of(metadata: &Metadata) -> u64 {
    if metadata.is_file() { metadata.len().saturating_sub(allocated(metadata)) } else { 0 }
}

/// Bytes that the file system has given to a file.
pub(crate) fn allocated(metadata: &Metadata) -> u64 {
    metadata.blocks().saturating_mul(SECTOR_SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_what_has_no_space() {
        let file = tempfile::NamedTempFile::new().expect("room");
        file.as_file().set_len(1 << 30).expect("it can be extended");
        assert_eq!(holes_of(&file.as_file().metadata().expect("it is there")), 1 << 30);
        std::fs::write(file.path(), vec![1; 1 << 20]).expect("room");
        file.as_file().sync_all().expect("it works");
        assert_eq!(holes_of(&file.as_file().metadata().expect("it is there")), 0);
        assert_eq!(holes_of(&std::fs::metadata("/dev/null").expect("Linux has it")), 0);
    }
}
