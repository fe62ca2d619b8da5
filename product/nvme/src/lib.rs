//! NVMe as bytes: what is in a command, a completion, an Identify page, a log, a PDU; and nothing of
//! when it is sent, or what it does.
//!
//! It follows the NVM Express base specification 2.0, the NVM command set 1.0, and the TCP transport
//! 1.0. Both sides use it: the target, the initiator that tests it, and the device that passes
//! commands through.
//!
//! # Invariants
//! - Every decoder is total: any bytes give a value or `None`, never a panic.
//! - Nothing allocates, does I/O, or keeps state. Structures that are not sent whole are written into
//!   bytes of the caller's.
//! - A field that the specification counts from zero is a count from one here; its encoder subtracts.
//!
//! # Map
//! | file | structure |
//! |---|---|
//! | [`sqe`], [`cqe`] | commands of 64 bytes, completions of 16 |
//! | [`status`], [`opcode`] | numbers with a meaning |
//! | [`identify`] | controllers, namespaces, lists |
//! | [`log`], [`feature`] | log pages, features |
//! | [`fabrics`] | Connect, properties |
//! | [`discovery`] | the discovery log |
//! | [`tcp`], [`digest`] | PDUs and their checksums |
//! | [`auth`] | messages of DH-HMAC-CHAP |
//! | [`range`](mod@range) | ranges of Dataset Management |
//! | [`passthrough`] | what the kernel takes through io_uring |

#![no_std]
#![forbid(unsafe_code)]

pub mod auth;
mod bytes;
pub mod cqe;
pub mod digest;
pub mod discovery;
pub mod fabrics;
pub mod feature;
pub mod fuzz;
pub mod identify;
pub mod log;
pub mod opcode;
pub mod passthrough;
pub mod range;
pub mod sqe;
pub mod status;
pub mod tcp;

pub use cqe::Cqe;
pub use sqe::{DataPointer, Sqe};
pub use status::Status;

/// Bytes of an Identify structure, whatever it is of.
pub const IDENTIFY_SIZE: usize = 4096;
/// Bytes of the longest NVMe qualified name, without the final zero.
pub const NQN_SIZE_MAX: usize = 223;
/// The namespace id that means all of them.
pub const NSID_ALL: u32 = u32::MAX;
