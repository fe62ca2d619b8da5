//! Several hosts that ship one volume to one bucket, in a world where everything goes wrong.
//!
//! Each host runs the real shipper, housekeeper, take-over and snapshots over a device of a few
//! cells. The bucket carries a request out, or not, or later, or carries it out and loses the
//! answer; hosts are killed in the middle of a request, lose power, and take the volume from each
//! other. An oracle knows which states the promises allow.
//!
//! A host is a thread, because the code under test waits for its requests. Only one runs at any time, and the
//! [`chooser`] alone decides which: at each request the next one is chosen. So the same seed gives the same
//! run, whatever the system's scheduler does.
//!
//! # Promises that are checked
//! - What an opener finds is a state that the volume had after some write, of the host before it.
//! - It holds everything that a flush of that host has ever acknowledged, before and after.
//! - A host finds itself fenced only if another has claimed the volume.
//! - A snapshot is the state that it was, until it is given up; nothing that it needs is missing.
//! - The local store holds after a power cut what was acknowledged.

pub mod canary;
mod careless;
pub mod chooser;
mod contents;
pub mod exhaustive;
mod host;
pub mod oracle;
pub mod plan;
pub mod service;
pub mod tally;
pub mod world;

pub use canary::Canary;
pub use plan::Plan;
pub use tally::Tally;
pub use world::{Violation, run, run_seed};
