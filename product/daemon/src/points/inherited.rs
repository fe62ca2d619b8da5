//! A socket that whoever started this process has opened for it, as systemd does: `LISTEN_FDS`
//! sockets from descriptor 3 on, meant for the process `LISTEN_PID`.

use crate::error::{DaemonError, Error};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The first of them.
const FIRST: RawFd = 3;

static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes the one socket that was passed.
///
/// # Errors
/// [`DaemonError::NoSocketPassed`] when there is none, more than one, or it was taken before.
pub(crate) fn take_socket() -> Result<OwnedFd, Error> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let ours = number("LISTEN_PID") == Some(std::process::id());
    let count = number("LISTEN_FDS").filter(|_| ours).unwrap_or(0);
    if count != 1 || IS_TAKEN.swap(true, Ordering::Relaxed) {
        return Err(DaemonError::NoSocketPassed { count }.into());
    }
    // SAFETY: by the protocol the descriptor was opened for this very process, which its number in
    // the environment proves, and it is taken only once.
    Ok(unsafe { OwnedFd::from_raw_fd(FIRST) })
}
