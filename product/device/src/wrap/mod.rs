//! Devices around devices: to watch, to slow down, and to break, in any combination.
//!
//! Each keeps the [contract](crate::contract) of the device that it surrounds (and passes the
//! conformance suite), save for what it is there to do. Those that break things do so
//! deterministically: the same commands and the same seed meet the same faults.

mod counting;
#[cfg(feature = "faults")]
mod cut;
#[cfg(feature = "faults")]
mod faulty;
#[cfg(feature = "faults")]
mod slow;
mod traced;

pub use counting::{CountingDevice, Counts, KindCounts};
#[cfg(feature = "faults")]
pub use cut::{CutDevice, CutHandle, CutPolicy, SectorChoice};
#[cfg(feature = "faults")]
pub use faulty::{Effect, Fault, FaultHandle, FaultRates, FaultyDevice};
#[cfg(feature = "faults")]
pub use slow::{SlowDevice, SlowHandle, SlowModel};
pub use traced::{CsvTrace, TraceLog, TraceRecord, TraceSink, TracedDevice};
