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
//! Folders:
//! - `life`: a store's daemon as it is found from outside, and its name in the state directory;
//! - `service`: a daemon at work, from its claim to a clean end, and what it answers;
//! - `copy`: the copy of a store elsewhere, and the cache that is filled from one;
//! - `points`: the attach points, a row for each.
//!
//! The crate runs no verb and knows no command line: a program makes a [`Job`] and calls
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
pub mod backing;
mod copy;
pub mod error;
pub mod growth;
pub mod job;
mod journal;
mod life;
pub mod logging;
pub mod opening;
pub mod points;
pub mod service;
pub mod setting;
pub mod signatures;
pub mod store;
mod store_file;

pub use backing::{Backing, Source};
pub use copy::{cache, copying, moving, replication};
pub use error::Error;
pub use job::Job;
pub use life::{
    daemon_state, ending, file_identity, killed, left_over, reclaim, state, store_fate, verbs,
};
pub use opening::Opening;
pub use points::{Kind, Point};
pub use service::{attach_point, control, detach, launch, scrub, status};
pub use state::{Entry, StateDirectory, Via};
