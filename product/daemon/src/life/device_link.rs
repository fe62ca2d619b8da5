//! `/dev/coulter/NAME`: a name for the device of a volume that stays, whichever number the kernel
//! gives it.
//!
//! The links are a convenience: what keeps one from being made is told in the log and nothing else.
//! One that leads to another device that is there is left alone, for volumes of another state
//! directory may have the same name.

use crate::life::state::Entry;
use crate::points;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

const DIRECTORY: &str = "/dev/coulter";

fn link_of(entry: &Entry) -> PathBuf {
    assert!(!entry.name.contains('/'), "a link outside of {DIRECTORY}");
    Path::new(DIRECTORY).join(&entry.name)
}

/// The device that a link may lead to.
fn device_of(entry: &Entry) -> Option<&Path> {
    let device = entry.device.as_deref().filter(|_| points::gives_device(entry));
    device.map(Path::new)
}

/// Makes the link of a volume that is served.
pub(crate) fn make(entry: &Entry) {
    let Some(device) = device_of(entry) else { return };
    if let Err(error) = try_make(&link_of(entry), device) {
        log::debug!(name = entry.name, error:%; "no link in {DIRECTORY}");
    }
}

fn try_make(link: &Path, device: &Path) -> io::Result<()> {
    match (fs::canonicalize(link), fs::symlink_metadata(link)) {
        // udev may have been quicker.
        (Ok(target), _) if target == device => return Ok(()),
        (Ok(_), _) => return Err(io::ErrorKind::AlreadyExists.into()),
        (Err(_), Ok(_)) => fs::remove_file(link)?,
        (Err(_), Err(_)) => {}
    }
    fs::create_dir_all(DIRECTORY)?;
    symlink(device, link)
}

/// Takes the link of a volume away that is served no more, if it is its own.
pub(crate) fn remove(entry: &Entry) {
    let link = link_of(entry);
    let is_own = fs::read_link(&link).is_ok_and(|target| device_of(entry) == Some(&target));
    if is_own && let Err(error) = fs::remove_file(&link) {
        log::debug!(name = entry.name, error:%; "its link in {DIRECTORY} stays");
    }
}
