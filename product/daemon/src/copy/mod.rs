//! The copy of a store elsewhere.
//!
//! Purpose: a store's device is wrapped so that its writes are shipped, a cache is filled from a
//! copy, and a store is handed over to another host. What is kept of that lies beside the store.
//!
//! It does not: speak to a bucket itself, which is `coulter_object`'s, or know a command line.
//!
//! Invariant: a store that is changed without being shipped is marked before, so that no commit
//! mixes two of its states.

pub mod cache;
pub mod copying;
pub(crate) mod marks;
pub mod moving;
pub(crate) mod owner;
pub mod replication;
pub(crate) mod trial;
