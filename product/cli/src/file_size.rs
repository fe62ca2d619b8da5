//! Files that may not become as large as they should: by `ulimit -f`, a unit's `LimitFSIZE=`, or
//! what the file system allows.
//!
//! By default the signal that the system sends then ends the process without a word. What it refuses
//! is an error like that of a full disk, and told or borne as that is.

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Makes a write beyond the limit an error (`EFBIG`) of that write and nothing else.
///
/// By a handler that does nothing: that the signal is ignored would be inherited by the programs
/// that are started from here, and a handler is not.
pub fn make_excess_an_error() {
    let handler = SigHandler::Handler(do_nothing);
    let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler touches nothing, so that it may run at any moment and in any thread.
    let result = unsafe { sigaction(Signal::SIGXFSZ, &action) };
    assert!(result.is_ok(), "there is such a signal, and it can be handled: {result:?}");
}

extern "C" fn do_nothing(_: libc::c_int) {}
