//! Attach points: what a host talks to, in front of whatever serves blocks.
//!
//! - [`nbd`]: a server for any NBD client, virtual machines included. Needs no privilege.
//! - [`fuse`]: one file in a FUSE mount. Needs root.
//! - [`loop_device`]: a block device over that file. Needs root.
//! - [`ublk`]: a block device whose driver asks the volume's own thread. Needs root.
//! - [`nvme`]: an NVMe/TCP target for any NVMe host. Needs no privilege.
//! - [`nbd_device`]: a block device of the kernel's NBD client, over the server. Needs root.
//! - [`nvme_device`]: a block device of the kernel's NVMe initiator, over the target. Needs root.
//!
//! All keep the contract of [`point`]. They see requests
//! and completions only ([`coulter::service`]), never where data lies.

pub mod block_device;
pub mod fuse;
pub mod harden;
pub mod loop_device;
pub mod nbd;
pub mod nbd_device;
pub mod net;
pub mod nvme;
pub mod nvme_device;
pub mod point;
pub mod ublk;
pub mod write_out;

mod apart;
mod claim;
mod hosting;
mod linger;
mod pool;
