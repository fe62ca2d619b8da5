//! A small service that speaks as much of S3 as [`crate::bucket::S3Bucket`] does, and a proxy that fails: for tests
//! without a network.
//!
//! # Does not
//! check signatures, encrypt, or listen anywhere but on this machine.

mod http;
mod listener;
mod objects;
mod proxy;

pub use objects::Service;
pub use proxy::{Conditions, Fault, Proxy};
