//! An NVMe/TCP target: volumes as namespaces, for any NVMe host.
//!
//! A volume is a subsystem with one namespace. Its names follow from the store's identity, and stay for
//! ever. A discovery service answers beside it. The bytes of the protocol are those of [`coulter_nvme`].
//!
//! It does not do TLS, multiple paths, reservations, namespace management or protection information; each
//! is left out of what a controller says of itself.
//!
//! # Layers
//! ```text
//! target      the volumes behind a server of `net`
//! subsystem   a volume's controllers and queues; a seat is a thread's place in it
//!   controller  what the threads of one controller share
//!   front     the volume as a namespace
//!   tally     counters for the health log
//! conversation  one connection: greeting, Connect, maybe proof, then an admin or an I/O queue; knows no socket
//!   auth      DH-HMAC-CHAP, for targets that have keys
//!   admin, answers  from what is known, without waiting for the volume
//!   io        commands to the session, completions to PDUs
//! pdus        PDUs in and out of bytes, with digests
//! ```

mod admin;
mod answers;
mod auth;
mod controller;
mod conversation;
mod discovery;
mod drive;
mod front;
mod identity;
mod io;
mod outcome;
mod pdus;
mod subsystem;
mod tally;
mod target;
mod wake;

pub use auth::{HostKey, Keys, KeysError, Private, Question, Role, Secret, random};
pub use coulter_nvme::auth::{Group, Hash};
pub use discovery::Elsewhere;
#[doc(hidden)]
pub use drive::{Reached, converse};
pub use identity::{host_name, subsystem_name, uuid_text};
pub use outcome::from_request_error;
pub use target::{Disk, Target, TargetOptions};
