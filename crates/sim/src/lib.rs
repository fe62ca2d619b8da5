//! A deterministic world for the engine: a device that completes commands in any order and, when
//! the power is cut, keeps any part of what was not flushed; random requests; and an oracle that
//! knows which states the promises allow.
//!
//! The same seed gives the same run, byte for byte. There is no clock, no thread and no system
//! call in here.

pub mod buffers;
pub mod device;
pub mod hand;
pub mod oracle;
pub mod random;
pub mod scene;
pub mod world;

pub use world::{Outcome, Plan, World};
