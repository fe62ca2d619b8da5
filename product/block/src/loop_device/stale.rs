//! What a dead process leaves of its attach points, and how it goes away.
//!
//! With its process a FUSE mount is dead for good: every access gives `ENOTCONN`. The mount and
//! the loop device over it stay in the tables, until they are taken out.

use super::control::{clear, is_configured, is_named};
use crate::claim::open;
use coulter_fuse::FILE_NAME;
use coulter_fuse::{FILE_SYSTEM_TYPE, FuseError, require_root};
use coulter_system::mounts;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::path::{Path, PathBuf};

/// One attach point of a dead process that was taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stale {
    /// Where the file was mounted.
    pub mount_point: PathBuf,
    /// The source given at the mount, usually the path of the store.
    pub source: String,
    /// Loop devices over the file that are gone.
    pub cleared: Vec<PathBuf>,
    /// Loop devices over the file that somebody still uses. They give errors only, and go when
    /// their users do.
    pub lingering: Vec<PathBuf>,
}

/// Takes away what dead processes left at `mount_point`, or anywhere if `None`. What a living
/// process serves is not touched.
pub fn cleanup_stale(mount_point: Option<&Path>) -> Result<Vec<Stale>, FuseError> {
    let wanted = mount_point.map(resolved);
    let mut found = Vec::new();
    for entry in mounts::mounts().unwrap_or_default() {
        let asked_for = wanted.as_ref().is_none_or(|wanted| *wanted == entry.mount_point);
        let ours = entry.kind == FILE_SYSTEM_TYPE;
        if !ours || !asked_for || !is_dead(&entry.mount_point) {
            continue;
        }
        require_root()?;
        let (cleared, lingering) = clear_devices(&entry.mount_point.join(FILE_NAME));
        rustix::mount::unmount(&entry.mount_point, UnmountFlags::DETACH)
            .map_err(|error| FuseError::System { step: "unmount", source: error.into() })?;
        // It was made for the mount in most cases; one that is not empty is left.
        let _ = std::fs::remove_dir(&entry.mount_point);
        let source = entry.source.to_string_lossy().into_owned();
        found.push(Stale { mount_point: entry.mount_point, source, cleared, lingering });
    }
    Ok(found)
}

/// The canonical path of something that may not answer: its parent is asked instead.
fn resolved(path: &Path) -> PathBuf {
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    match (parent.canonicalize(), path.file_name()) {
        (Ok(parent), Some(name)) => parent.join(name),
        _ => path.to_owned(),
    }
}

/// Whether the process behind the mount is gone. Always asks that process, so it waits while the
/// process lives and does not answer.
fn is_dead(mount_point: &Path) -> bool {
    matches!(rustix::fs::statfs(mount_point), Err(Errno::NOTCONN | Errno::CONNABORTED))
}

/// Clears the loop devices over `file`: those that went, and those that somebody uses.
fn clear_devices(file: &Path) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let candidates = coulter_system::loop_devices::all().into_iter();
    let devices = candidates.filter(|(device, backing)| backing == file || is_named(device, file));
    let (mut cleared, mut lingering) = (Vec::new(), Vec::new());
    for (device, _) in devices {
        if let Ok(handle) = open(&device, OFlags::RDONLY) {
            let _ = clear(&handle);
        }
        let list = if is_configured(&device) { &mut lingering } else { &mut cleared };
        list.push(device);
    }
    (cleared, lingering)
}
