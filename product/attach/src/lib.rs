//! Attach points: what a host talks to, in front of whatever serves blocks.
//!
//! - [`fuse`]: one file in a FUSE mount. Needs root.
//!
//! All keep the contract of [`point`]. They see requests
//! and completions only ([`coulter::service`]), never where data lies.

pub mod fuse;
pub mod harden;
pub mod point;

pub mod hosting;
pub mod linger;
pub mod pool;
