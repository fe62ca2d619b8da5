//! Real kernels in virtual machines: scenarios run as scripts in a guest that has nothing but a
//! kernel of Debian's, a few programs of this host, and `coulter`.
//!
//! ```text
//!   kernel (apt) ──► image (kernel, modules, programs, scripts) ──► machine (QEMU)
//!                                                                      │ ttyS0: console, to a log
//!   campaign: begins, limits and judges scenarios ◄── ttyS1: reports ──┘
//! ```
//!
//! What it does not do: say how fast anything is. Under emulation only ratios within one run mean
//! something.
//!
//! # Invariants
//! - A scenario that does not end in its time is a failure. After a failure the next scenario gets
//!   a new machine.
//! - Nothing is installed on the host: kernels are unpacked below one directory.
//! - Machines are processes that end with this one.

mod campaign;
mod image;
mod kernel;
mod machine;
mod power_cut;
mod scenario;
mod table;

pub use campaign::{Options, Report, run};
pub use kernel::{Kernel, KernelName};
pub use machine::Accelerator;
pub use scenario::{SCENARIOS, Scenario, Set};
pub use table::{summary, write_table};
