//! About emulated drives.

use coulter_terminal::Size;
use coulter_terminal::{Report, fault, usage};
use std::path::PathBuf;

/// About emulated drives.
#[derive(Debug)]
#[non_exhaustive]
pub(crate) enum EmulationError {
    /// There is no such drive, or its translation layer cannot do that.
    Impossible { drive: PathBuf, reason: String },
    /// What would be written to it does not fit into memory.
    NoMemory { drive: PathBuf, needed: u64, available: u64 },
}

impl EmulationError {
    /// What, why, and what to do.
    pub(crate) fn report(&self) -> Report {
        match self {
            EmulationError::Impossible { drive, reason } => {
                usage(format!("cannot emulate {}", drive.display())).why(reason.as_str())
            }
            EmulationError::NoMemory { drive, needed, available } => {
                fault(format!("cannot emulate {}", drive.display()))
                    .why(format!(
                        "what is written to it is held in memory: up to {}, and {} are available",
                        Size(*needed),
                        Size(*available)
                    ))
                    .help("choose a smaller --size")
            }
        }
    }
}
