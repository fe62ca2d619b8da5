//! Asks the daemon of a mount for an answer before anything is asked of the mount: a call that a
//! mount does not answer waits for ever, and often not even a signal ends it.

use crate::error::{CliError, DaemonError, Error};
use coulter_daemon::control::{self, Request};
use coulter_daemon::points;
use coulter_daemon::state::{Entry, StateDirectory};
use coulter_system::mounts;
use std::path::{Component, Path, PathBuf};

/// Links that a path may lead through.
const LINKS_MAX: usize = 40;

/// That the daemon answers which serves what `path` lies on, if a mount of Coulter's does and its
/// daemon runs.
///
/// # Errors
/// [`DaemonError::DaemonSilent`]. Whatever else there is to say is left to what is asked for then.
pub(crate) fn check(state: &StateDirectory, path: &Path) -> Result<(), CliError> {
    let Some(mount) = covering(path) else { return Ok(()) };
    let serves = |entry: &Entry| points::gives_directory(entry) && entry.store == mount;
    let found = state.entries()?.into_iter().find(serves);
    let Some(entry) = found.filter(|entry| state.is_alive(entry)) else { return Ok(()) };
    match control::ask(state, &entry, &Request::Status) {
        Err(error @ Error::Daemon(DaemonError::DaemonSilent { .. })) => Err(error.into()),
        _ => Ok(()),
    }
}

/// The source of the mount of Coulter's that a path leads into, if it leads into one. Asks no such
/// mount.
fn covering(path: &Path) -> Option<PathBuf> {
    let mut whole = std::path::absolute(path).ok()?;
    for _ in 0..LINKS_MAX {
        let mut at = PathBuf::new();
        let mut parts = whole.components();
        let mut link = None;
        for part in parts.by_ref() {
            match part {
                Component::ParentDir => _ = at.pop(),
                part => at.push(part),
            }
            let mount = mounts::covering(&at).ok().flatten();
            if let Some(mount) = mount.filter(|mount| mount.kind == "fuse.coulter") {
                return Some(mount.source);
            }
            if let Ok(target) = std::fs::read_link(&at) {
                at.pop();
                link = Some(at.join(target));
                break;
            }
        }
        whole = link?.join(parts.as_path());
    }
    None
}
