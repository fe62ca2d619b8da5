//! Protection of a process that a file system depends on.
//!
//! When memory is short, the kernel writes dirty pages to the block device, which may be us. If we
//! then need memory ourselves, the two wait for each other. Three measures against that:
//! - *I/O flusher* (`PR_SET_IO_FLUSHER`): our allocations never wait for I/O.
//! - *Locked memory* (`mlockall`, on fault): what was once touched is never paged out, so that
//!   serving a request reads no page from a disk. What a request needs is touched before the
//!   first one comes: the buffers of a volume, and those of an attach point whose host may be the
//!   kernel itself. The map is not, so that room for a large one costs nothing; it grows by little
//!   at a time.
//! - *Spared by the OOM killer* (`oom_score_adj` of -1000): killing us frees little, and whatever
//!   waits for the device could then not even be killed in turn.
//!
//! All want privileges, and none is needed to work: the caller is told which were had.

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::configure_io_flusher_behavior;
use std::fmt;
use std::io;

/// Value for `/proc/self/oom_score_adj`: never. With -999 it would still be its turn once whatever
/// else is large waits for this very device, unkillable.
const OOM_SCORE_ADJUSTMENT: &str = "-1000";

/// What [`harden_process`] achieved.
#[derive(Debug)]
pub struct Hardening {
    /// Allocations never wait for I/O.
    pub io_flusher: io::Result<()>,
    /// Pages once touched stay in memory.
    pub memory_locked: io::Result<()>,
    /// The OOM killer looks elsewhere first.
    pub oom_spared: io::Result<()>,
}

impl Hardening {
    /// Whether every measure was had.
    pub fn is_complete(&self) -> bool {
        self.io_flusher.is_ok() && self.memory_locked.is_ok() && self.oom_spared.is_ok()
    }
}

impl fmt::Display for Hardening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let measures = [
            ("I/O flusher", &self.io_flusher),
            ("locked memory", &self.memory_locked),
            ("spared by the OOM killer", &self.oom_spared),
        ];
        for (index, (name, result)) in measures.into_iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            match result {
                Ok(()) => write!(f, "{separator}{name}: yes")?,
                Err(error) => write!(f, "{separator}{name}: no ({error})")?,
            }
        }
        Ok(())
    }
}

/// Takes all measures for this process. To be called before any thread is started: the first one
/// is a property of threads, which new threads inherit.
pub fn harden_process() -> Hardening {
    let lock = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    Hardening {
        io_flusher: configure_io_flusher_behavior(true).map_err(Into::into),
        memory_locked: mlockall(lock).map_err(Into::into),
        oom_spared: std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJUSTMENT),
    }
}
