//! What an attach point is, and what all of them share. An attach point is what a host talks to, in
//! front of a block service: it sees requests and completions ([`coulter::service`]), never where
//! data lies.
//!
//! - [`point`]: the contract that all keep.
//! - [`hosting`]: where the loop of an attach point runs.
//! - [`linger`]: how long an idle loop looks again before it sleeps.
//! - [`pool`]: buffers that are used again.
//! - [`harden`]: a process that serves a device is not swapped out or killed for want of memory.
//!
//! The attach points themselves are in crates of their own: servers in `coulter-net` and
//! `coulter-nvme-target`, mounts in `coulter-fuse`, devices of this kernel in `coulter-block`.
//!
//! # Invariants
//! - Nothing here knows a protocol, a socket or a device.

pub mod harden;
pub mod hosting;
pub mod linger;
pub mod point;
pub mod pool;
