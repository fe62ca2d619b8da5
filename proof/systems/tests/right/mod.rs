//! Whether tests may mount, and where.

pub(crate) use coulter_systems::requirement::skipped;

use coulter_systems::requirement::{Need, has};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where O_DIRECT works on what is mounted, and paths are short enough for sockets.
pub(crate) const PARENT: &str = "/var/tmp";

/// One test at a time: they would only slow each other down.
pub(crate) fn may_mount() -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    has("file systems on volumes", &[Need::Root, Need::Fuse, Need::Loop])
        .then(|| ALONE.lock().unwrap_or_else(PoisonError::into_inner))
}
