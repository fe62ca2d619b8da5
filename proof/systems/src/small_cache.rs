//! A page cache in proportion to the drive below it: what is dirty is written out four times a second.
//!
//! The page cache of a machine keeps all that a program writes in the seconds of a measurement. That of a board
//! with a few gigabytes of flash would not.

use crate::error::SystemsError;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const INTERVAL: Duration = Duration::from_millis(250);

/// Writes out what is dirty in the file system that `directory` lies in.
///
/// # Errors
/// What the file system says.
pub fn settle(directory: &Path) -> Result<(), SystemsError> {
    let failed = |error: std::io::Error| SystemsError::io("sync", directory, error);
    let opened = File::open(directory).map_err(failed)?;
    rustix::fs::syncfs(&opened).map_err(|error| failed(error.into()))
}

/// Does some work, and has what is dirty written out meanwhile.
///
/// # Panics
/// When the file system cannot write it out.
pub fn with_a_small_cache<R>(directory: &Path, work: impl FnOnce() -> R) -> R {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(INTERVAL);
                settle(directory).expect("what is dirty can be written out");
            }
        });
        // If the work panics, the thread ends as well.
        let over = Over(&is_over);
        let result = work();
        drop(over);
        result
    })
}

/// Sets a flag when it goes.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
