//! Loop devices: two ways to the same bytes, a file and a disk, whose locks know nothing of each
//! other.
//!
//! Who opens a loop device locks the file below it too, as if the file had been opened; who opens a
//! file to write to it finds no loop device over it. So of one file only one of the two ways is open
//! at a time. What is not seen: a loop device that is set up over a file that is open already.

use super::lock;
use crate::open_error::OpenError;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// A lock on the file below a loop device.
#[derive(Debug)]
pub(super) struct FileBelow(File);

impl FileBelow {
    /// Locks what lies below the disk that the kernel describes in `directory`, if that is a loop
    /// device: against everybody, save that those who read share it, and those who use different parts
    /// of it do.
    ///
    /// # Errors
    /// [`OpenError::InUse`] when somebody has the file.
    pub(super) fn lock(
        disk: &Path,
        directory: &Path,
        read_only: bool,
    ) -> Result<Option<FileBelow>, OpenError> {
        let (backing, is_part) = match below(directory) {
            Some(backing) => (backing, is_part(directory)),
            // A partition.
            None => match below(&directory.join("..")) {
                Some(backing) => (backing, true),
                None => return Ok(None),
            },
        };
        // A file without a name, or of another namespace: nobody opens it by this path.
        let Ok(file) = File::open(&backing) else { return Ok(None) };
        let Ok(metadata) = file.metadata() else { return Ok(None) };
        match lock::lock(&file, disk, &metadata, read_only || is_part) {
            Ok(()) => Ok(Some(FileBelow(file))),
            Err(OpenError::InUse { path, by }) => {
                let by = by.unwrap_or_else(|| "something else".to_owned());
                let by = format!("{by}, which has {}, the file below it", backing.display());
                Err(OpenError::InUse { path, by: Some(by) })
            }
            // It lies where there are no locks.
            Err(_) => Ok(None),
        }
    }
}

impl Drop for FileBelow {
    fn drop(&mut self) {
        lock::unlock(&self.0);
    }
}

/// A loop device over the file at `path`, in words.
pub(super) fn over(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let mut devices = fs::read_dir("/sys/block").ok()?.flatten();
    let device = devices.find(|device| below(&device.path()).as_ref() == Some(&path))?;
    let name = device.file_name();
    let device = Path::new("/dev").join(name);
    let device = device.display();
    Some(format!("the loop device {device} (`losetup --detach {device}` takes it away)"))
}

/// The file below the loop device that the kernel describes in `directory`.
fn below(directory: &Path) -> Option<PathBuf> {
    let path = fs::read_to_string(directory.join("loop/backing_file")).ok()?;
    Some(PathBuf::from(path.trim_end_matches('\n')))
}

/// Whether the loop device shows a part of its file.
fn is_part(directory: &Path) -> bool {
    let is_zero = |name: &str| {
        fs::read_to_string(directory.join("loop").join(name)).is_ok_and(|text| text.trim() == "0")
    };
    !(is_zero("offset") && is_zero("sizelimit"))
}
