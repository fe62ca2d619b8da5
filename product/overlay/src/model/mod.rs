//! Crashes at every point of short workloads, in memory: of the store, which keeps a prefix of what it was
//! given, and of the lower file system, which may lose what was not synced.

mod crashes;
mod in_flight;
mod interleaved;
mod lower;
mod volume;

use std::cell::RefCell;

thread_local! {
    /// The rule that is broken on purpose.
    pub(crate) static BROKEN: RefCell<Option<String>> = const { RefCell::new(None) };
}
