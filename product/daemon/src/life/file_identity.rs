//! Which file it is, whatever it is called: a path may come to lead to another one.

use serde::{Deserialize, Serialize};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// A file or a disk, as long as somebody has it open. Documented in `docs/json.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileIdentity {
    /// The device that a file lies on; a disk's own number.
    pub device: u64,
    /// The file's number there; 0 of a disk, which any number of nodes may name.
    pub inode: u64,
}

impl FileIdentity {
    /// Of what is at `path`.
    ///
    /// # Errors
    /// When it cannot be looked at.
    pub fn at(path: &Path) -> io::Result<FileIdentity> {
        fs::metadata(path).map(|metadata| FileIdentity::of(&metadata))
    }

    /// Of what this is known of.
    pub fn of(metadata: &Metadata) -> FileIdentity {
        if metadata.file_type().is_block_device() {
            FileIdentity { device: metadata.rdev(), inode: 0 }
        } else {
            FileIdentity { device: metadata.dev(), inode: metadata.ino() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_stays_itself_under_other_names_and_another_is_another() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = |name: &str| directory.path().join(name);
        let at = |name: &str| FileIdentity::at(&path(name)).expect("it is there");
        fs::write(path("a"), "").expect("it is writable");
        fs::write(path("b"), "").expect("it is writable");
        fs::hard_link(path("a"), path("c")).expect("links can be made");
        let a = at("a");
        assert_eq!(a, at("c"));
        assert_ne!(a, at("b"));
        fs::rename(path("b"), path("a")).expect("it is writable");
        assert_ne!(a, at("a"));
        assert!(FileIdentity::at(&path("b")).is_err());
    }
}
