//! The Linux system calls that Coulter's programs share, behind safe functions.
//!
//! It knows files, mounts and processes, and nothing of volumes.

pub mod sparse;
