//! Attach points: what a host talks to, in front of whatever serves blocks.
//!
//! - [`nbd`]: a server for any NBD client, virtual machines included. Needs no privilege.
//! - [`fuse`]: one file in a FUSE mount. Needs root.
//! - [`nvme`]: an NVMe/TCP target for any NVMe host. Needs no privilege.
//!
//! All keep the contract of [`point`]. They see requests
//! and completions only ([`coulter::service`]), never where data lies.

pub mod fuse;
pub mod harden;
pub mod nbd;
pub mod net;
pub mod nvme;
pub mod point;

pub mod hosting;
mod linger;
pub mod pool;
