//! What Coulter's engine writes to: memory, files and disks, and devices around devices.
//!
//! Start at [`Device`] and its [contract]. [`MemoryStore`] makes devices in memory. [`wrap`] holds
//! devices around devices, for measuring and for faults.

pub mod alarm;
pub mod aligned;
pub mod blocking;
mod command;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod contract;
pub mod device_error;
mod event;
mod medium;
pub mod memory;
pub mod open;
pub mod open_error;
mod open_options;
mod passthrough;
mod read_source;
pub mod revocation;
mod ring;
mod slots;
mod threads;
mod transfer;
mod uring;
pub mod wake;
pub mod wrap;

pub use aligned::AlignedMemory;
pub use command::{
    ALIGNMENT_MAX, Command, CommandKind, Completion, Prepare, Properties, Region, SECTOR_SIZE, Wait,
};
pub use contract::Device;
pub use device_error::{DeviceError, DeviceErrorKind};
pub use medium::LockedFile;
pub use memory::{MemoryDevice, MemoryStore};
pub use open::open_path;
pub use open_error::OpenError;
pub use open_options::{Engine, OpenOptions, QUEUE_DEPTH_MAX, THREADS_MAX};
pub use read_source::ReadSource;
pub use revocation::Revocation;
pub use threads::ThreadDevice;
pub use wake::Waker;
