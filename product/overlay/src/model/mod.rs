//! Crashes in memory: of the store, which keeps a prefix of what it was given, and of the lower
//! file system, which may lose what was not synced. At every point of short workloads, and by
//! chance with anything in flight.
//!
//! `crashes::Mount` is an overlay on both, for any test. `calls` has the lower directory's calls.

mod asking;
mod bytes;
mod calls;
mod chance;
mod crashes;
mod failing;
mod in_flight;
mod interleaved;
mod lives;
mod lower;
mod many;
mod recovery;
mod shadow;
mod volume;

use std::cell::RefCell;
use std::sync::OnceLock;

/// With `TRACE=1` a life by chance tells what it does.
fn trace(text: impl FnOnce() -> String) {
    static IS_ON: OnceLock<bool> = OnceLock::new();
    if *IS_ON.get_or_init(|| std::env::var_os("TRACE").is_some()) {
        let text = text();
        eprintln!("{}", text.chars().take(200).collect::<String>());
    }
}

thread_local! {
    /// The rule that is broken on purpose.
    pub(crate) static BROKEN: RefCell<Option<String>> = const { RefCell::new(None) };
}
