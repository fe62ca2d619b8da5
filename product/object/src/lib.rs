//! Ships what a device holds to object storage, and brings it back.
//!
//! A store recovers from every state that a power cut can leave on its device. So "all device writes that
//! had completed by some instant" is a store, too: this crate ships device writes, in steps that count as
//! a whole, and knows nothing of records, segments or maps.
//!
//! # Three doors
//! - [`ship`]: a device that ships what it stores; what is sent, when, and what is deleted
//!   afterwards.
//! - [`fill`]: a device whose content comes from the bucket while it is in use.
//! - [`history`]: the way back: states, snapshots, clones; restore, roll back, take over, verify.
//!
//! # Below them
//! - [`bucket`]: where objects are kept: memory, a directory, an S3-compatible service; [`url`]
//!   names one, [`probe`] tries it.
//! - [`publish`]: requests that have an outcome, made of tries that may have none.
//! - [`layout`], [`names`], [`pieces`]: the objects. `docs/objects.md` has their bytes.
//! - [`ranges`]: sets of byte ranges.
//!
//! # Invariants
//! - The remote copy is at every moment a state that the device was in, as after a power cut.
//! - A name stands for one content for ever. (`volume` and `pins` are swapped; their versions differ.)
//! - Of two hosts that have a volume one is fenced before the other begins; no clock is asked.
//! - Nothing that a manifest, a later commit or a snapshot names is ever deleted.
//! - Nothing is listed but by a scrub, and once after an opening, for what killed hosts have left.
//!
//! # Does not
//! compress or encrypt, or share data between volumes save those of clones.

pub mod bucket;
pub mod fill;
pub mod history;
pub mod layout;
pub mod names;
pub mod pieces;
pub mod probe;
pub mod publish;
mod random;
pub mod ranges;
#[cfg(feature = "faults")]
pub mod service;
mod shared_map;
pub mod ship;
mod side_by_side;
pub mod url;

pub use bucket::{Bucket, BucketError, BucketErrorKind};
pub use history::ReplicaError;
pub use ship::device::{Replica, ShippedDevice};
pub use ship::shipper::{Ack, Pace, Settings, Shipper};
pub use url::Url;
