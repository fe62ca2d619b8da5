//! The lock of a state directory.

use std::fs::File;

/// While a process holds this, no other process adds or removes entries.
pub struct StateLock(pub(crate) File);

impl Drop for StateLock {
    fn drop(&mut self) {
        // A program that is being started may have the file open for a moment longer.
        let _ = self.0.unlock();
    }
}
