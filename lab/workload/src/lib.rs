//! What hosts do: addresses, operations and contents, reproducible from a seed.
//!
//! Everything here is an endless iterator or a pure function. The same seed gives the same
//! sequence on every machine and in every release, or the release notes say otherwise.
//!
//! - [`Pattern`] chooses addresses: uniform, Zipf, sequential, hot and cold.
//! - [`Mix`] chooses operations: reads, writes, discards and flushes, of several sizes.
//! - [`Permutation`] visits every address once, in random order, without a list of them.
//! - [`trace`] reads block traces in their common formats.
//! - [`Content`] fills blocks with bytes that do not compress and that say where they belong.
//!
//! # Does not
//! write anything, keep time, or know of stores and volumes. Addresses are plain block numbers, since
//! the same generators serve volumes, files and emulated flash.

#![deny(unsafe_code)]

mod content;
mod mix;
mod pattern;
mod permutation;
mod random;
pub mod trace;
mod zipf;

pub use content::{BLOCK_SIZE, Content, Origin};
pub use mix::{Kind, Mix, Operation, Operations};
pub use pattern::{Addresses, ParsePatternError, Pattern};
pub use permutation::Permutation;
pub use random::Random;
pub use zipf::Zipf;
