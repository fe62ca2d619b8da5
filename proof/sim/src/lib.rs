//! A deterministic world for the engine: a device that completes commands in any order and, when
//! the power is cut, keeps any part of what was not flushed; requests of every kind; and an oracle
//! that knows which states the promises allow.
//!
//! The same seed gives the same run, byte for byte. There is no clock, no thread and no system
//! call in here.
//!
//! | to | use |
//! |---|---|
//! | run many seeds | [`lives`] |
//! | run one plan, or read its story | [`world::Simulator`] |
//! | make a failing plan short | [`shrink`] |
//! | cut after every command of every short plan | [`exhaustive`] |
//! | write a directed test | [`scene`], [`hand`] |

pub mod buffers;
pub mod device;
pub mod exhaustive;
pub mod forge;
pub mod full;
pub mod generate;
pub mod hand;
pub mod lives;
pub mod oracle;
pub mod plan;
pub mod random;
pub mod ruined;
pub mod scarce;
pub mod scene;
pub mod shrink;
pub mod tight;
pub mod world;

pub use plan::Plan;
pub use world::{Outcome, Simulator};
