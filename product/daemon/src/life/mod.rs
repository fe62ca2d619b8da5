//! A store's daemon as it is found from outside, and the state directory that tells of it.
//!
//! Purpose: commands and the next daemon find out which daemon has a store, whether it lives, and
//! what a killed one left. A daemon takes its name here, and gives it back.
//!
//! It does not: serve, open a store, or send a request to a daemon; that is `service`'s.
//!
//! Invariants:
//! - nothing of a daemon that lives is taken away; only the holder of the directory's lock clears
//!   away;
//! - a daemon is told from the next one of its name by its process, never by the name alone;
//! - nothing here waits for a file system or a daemon that may not answer, save where it says so.
//!
//! A daemon's state is one closed enum, [`DaemonState`](daemon_state::DaemonState). `look` gathers
//! what is seen, `daemon_state` decides what it means, and `verbs` says what each verb does then;
//! claim, ending, killed and reclaim ask these and look at nothing themselves.
//!
//! Contract: an [`Entry`](entry::Entry) that was read may be outdated at once. Who acts on one
//! takes the lock, or accepts that the daemon has ended since.

pub(crate) mod claim;
pub mod daemon_state;
pub(crate) mod degraded;
pub(crate) mod device;
pub(crate) mod device_link;
pub mod ending;
pub(crate) mod entry;
pub mod file_identity;
pub mod killed;
pub mod left_over;
pub(crate) mod liveness;
mod look;
pub(crate) mod outside;
pub mod reclaim;
pub mod state;
mod state_lock;
pub mod store_fate;
pub(crate) mod trouble;
pub mod verbs;
