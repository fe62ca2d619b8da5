//! Whether tests may mount, and where.

use std::fs::File;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where O_DIRECT works on what is mounted, and paths are short enough for sockets.
pub(crate) const PARENT: &str = "/var/tmp";

/// One test at a time: they would only slow each other down.
pub(crate) fn may_mount() -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    let root = rustix::process::geteuid().is_root();
    let usable = |path: &str| File::options().read(true).write(true).open(path).is_ok();
    if root && usable("/dev/fuse") && usable("/dev/loop-control") {
        return Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner));
    }
    skipped("file systems on volumes need root, /dev/fuse and loop devices");
    None
}

pub(crate) fn skipped(what: &str) {
    let _ = writeln!(io::stderr(), "\nSKIPPED: {what}");
}
