//! What Coulter's programs ask Linux: files, mounts, loop devices and processes, behind safe functions.
//!
//! It knows nothing of volumes. What `/proc` and `/sys` say is for explaining and for finding; a caller that
//! must be sure asks the kernel by taking a lock or a claim.

pub mod dead_mounts;
pub mod freeze;
mod further_devices;
pub mod holders;
pub mod loop_devices;
pub mod mounts;
pub mod private;
pub mod process;
pub mod processes;
pub mod raw;
pub mod readiness;
pub mod seekable;
pub mod sparse;
