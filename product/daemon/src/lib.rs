//! Daemons that serve stores, and how commands find and talk to them.
//!
//! ```text
//!  a program's verb                       a command in another process
//!    | Job: what, where, how                | StateDirectory: who serves what
//!    v                                      v
//!  service::run ---- claim, entry ----> NAME.json        control::ask
//!    |   Source::open -> Backing            |                |
//!    |   AttachPoint                        |                v
//!    `-- Serving: signals, requests <--- NAME.sock <---------'
//! ```
//!
//! The crate knows no verb and no command line: a program makes a [`Job`] and calls
//! [`service::run`], in the foreground or in a process of its own that [`launch`] starts. It knows
//! of one thing that can be served, a store at a path ([`store::Store`]); whatever else a program
//! wants to serve it gives as a [`Source`], which opens a [`Backing`].
//!
//! Invariants:
//! - at most one process serves a store: the store's own lock sees to it, the state directory only
//!   explains it;
//! - nothing in the state directory is needed to open a store;
//! - a client that is slow or silent keeps no daemon from hearing the next one.

mod acknowledge;
pub mod attach_point;
pub mod backing;
pub mod cache;
mod claim;
pub mod control;
pub mod copying;
mod degraded;
pub mod detach;
mod device;
mod device_link;
pub mod ending;
mod entry;
pub mod error;
mod events;
mod failure_log;
pub mod file_identity;
mod first_data;
pub mod growth;
mod handover;
mod inherited;
pub mod job;
mod journal;
pub mod killed;
pub mod launch;
pub mod left_over;
mod liveness;
pub mod logging;
mod marks;
mod metrics;
pub mod moving;
mod notify;
pub mod opening;
mod outside;
mod owner;
mod panics;
pub mod points;
mod protect;
pub mod reclaim;
pub mod replication;
mod requests;
mod scrapes;
pub mod scrub;
pub mod service;
mod serving;
pub mod setting;
pub mod signatures;
mod starting;
pub mod state;
mod state_lock;
pub mod status;
mod steps;
pub mod store;
pub mod store_fate;
mod store_file;
mod trial;
mod trouble;
mod uevent;

pub use backing::{Backing, Source};
pub use error::Error;
pub use job::Job;
pub use opening::Opening;
pub use points::{Kind, Point};
pub use state::{Entry, StateDirectory, Via};
