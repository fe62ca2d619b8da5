//! A daemon at work: it claims, opens, serves, answers, and ends.
//!
//! Purpose: [`run()`] is the whole of it. Commands start one by [`launch`] and speak to it by
//! [`control`].
//!
//! It does not: decide what a daemon is from outside, which is `life`'s, or know what it serves.
//!
//! Invariants:
//! - the loop of `serving` waits for no client: requests are read as far as they are there;
//! - what was set up in steps is taken down in the reverse order, whichever of them failed.
//!
//! Contract: what a request changes is answered after it is done; an answer that its client does
//! not take is dropped.

pub mod attach_point;
pub mod control;
pub mod detach;
mod events;
pub(crate) mod failure_log;
mod first_data;
mod handover;
pub mod launch;
mod metrics;
mod notify;
mod panics;
mod protect;
mod requests;
mod run;
mod scrapes;
pub mod scrub;
mod serving;
mod starting;
pub mod status;
mod steps;
mod uevent;

pub use run::{leave_session, run};
