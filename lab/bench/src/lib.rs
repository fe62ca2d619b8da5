//! Measures Coulter, side by side with what it is compared to, in one run.
//!
//! - [`engine`]: the engine alone on one core, without a device.
//! - [`recovery`]: from a crash to the first I/O, with a large map and little memory.
//! - [`replay`]: what a trace would cost.
//! - [`volume`]: a volume against the very file that it lies on.
//! - [`cleaning`]: write amplification in steady state, by its causes, without a device.
//! - [`replicate`]: a store that is shipped to a service of objects, against the same store alone.
//! - [`sparse`]: what the map takes of memory where a volume is touched here and there.
//! - [`fill`]: a full volume, overwritten for a long time.
//! - [`BareService`]: a device without a log in front of it, served as a volume is; for comparing them
//!   below other programs.
//!
//! Each has `run(&Options) -> Result<Report, BenchError>`. A report serialises with the field names
//! that `docs/benchmarking.md` explains, units in the name, and prints itself as a table.
//!
//! # Method
//! - Figures that are compared are taken in turns, in rounds, and the median round counts: a
//!   disturbance hits one round and not the result.
//! - What needs no device is measured in CPU time of the one thread that does it all, so that other
//!   users of the machine do not change it much. What waits is measured in wall time.

#![deny(unsafe_code)]

mod backing;
mod bare;
pub mod cleaning;
pub mod engine;
mod error;
mod figures;
pub mod fill;
pub mod fragmentation;
mod least_size;
mod limits;
mod metadata;
mod model_store;
mod progress;
pub mod recovery;
pub mod replay;
pub mod replicate;
mod sequentiality;
mod side;
pub mod sparse;
mod standin;
mod timing;
pub mod turns;
pub mod volume;
mod written;

pub use bare::{BareService, BareSession};
pub use error::BenchError;
pub use limits::Limits;
pub use metadata::MetadataShares;
pub use progress::Progress;
pub use sequentiality::{HEADS_MAX, RunLengths, Sequentiality};
pub use written::WrittenShares;
