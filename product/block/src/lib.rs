//! Block devices of this kernel whose requests a block service answers.
//!
//! - [`ublk`]: the driver asks the volume's own thread.
//! - [`nbd_device`]: the kernel's NBD client, over the server of this process.
//! - [`loop_device`]: a loop device over a file in a FUSE mount.
//! - [`nvme_device`]: the kernel's NVMe initiator, over the target of this process.
//!
//! All need root, and keep the contract of [`coulter_attach::point`].
//!
//! # Invariants
//! - A device is removed only after its users are gone, or by force (`claim`).
//! - A step that may wait for a device of this process is taken by another process (`apart`).
//! - Before a device goes, what the kernel keeps for it in memory is written out ([`write_out`]).

pub mod block_device;
pub mod loop_device;
pub mod nbd_device;
pub mod nvme_device;
pub mod ublk;
pub mod write_out;

mod apart;
mod claim;
