//! Ships what a device holds to object storage, and brings it back.
//!
//! A store recovers from every state that a power cut can leave on its device. So "all device writes that
//! had completed by some instant" is a store, too: this crate ships device writes, in steps that count as
//! a whole, and knows nothing of records, segments or maps.
//!
//! # Parts
//! - [`bucket`]: where objects are kept: memory, a directory, an S3-compatible service.
//! - [`publish`]: requests that have an outcome, made of tries that may have none.
//! - [`layout`], [`names`], [`pieces`]: the objects. `docs/objects.md` has their bytes.
//! - [`shipper`]: what goes where and when; a state machine without I/O.
//! - [`device`]: a device that ships, around a device that stores; [`kept`]: what it need not read back.
//! - [`fill`]: a device whose content comes from the bucket while it is in use.
//! - [`clerk`]: the volume's record, and what is deleted.
//! - [`lineage`]: clones, which share the objects of a snapshot.
//! - [`history`], [`takeover`], [`restore`], [`snapshot`], [`rollback`]: the way back.
//! - [`mod@verify`]: reads all of it and names what is damaged.
//!
//! # Invariants
//! - The remote copy is at every moment a state that the device was in, as after a power cut.
//! - A name stands for one content for ever. (`volume` and `pins` are swapped; their versions differ.)
//! - Of two hosts that have a volume one is fenced before the other begins; no clock is asked.
//! - Nothing that a manifest, a later commit or a snapshot names is ever deleted.
//! - Nothing is listed but by a scrub.
//!
//! # Does not
//! compress or encrypt, or share data between volumes save those of clones.

pub mod bucket;
pub mod clerk;
mod courier;
pub mod device;
pub mod fill;
pub mod history;
pub mod kept;
pub mod layout;
pub mod lineage;
pub mod marks;
pub mod names;
pub mod pieces;
pub mod probe;
pub mod publish;
mod random;
pub mod ranges;
pub mod restore;
pub mod rollback;
#[cfg(feature = "faults")]
pub mod service;
mod shared_map;
pub mod shipper;
mod side_by_side;
pub mod snapshot;
pub mod takeover;
pub mod url;
pub mod verify;

pub use bucket::{Bucket, BucketError, BucketErrorKind};
pub use device::{Replica, ShippedDevice};
pub use history::ReplicaError;
pub use shipper::{Ack, Pace, Settings, Shipper};
pub use url::Url;
