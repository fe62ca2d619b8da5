//! Makes sure that a block device is unused, and stays unused, before it is removed.

use coulter_attach::point::DetachError;
use coulter_system::holders;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a device may stay in use after it was asked to go: `blkid` and its like look at a
/// device for a moment whenever it changes.
const BUSY_PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(10);

/// Claims the device so that it cannot be mounted any more, and waits for short-lived openers.
///
/// # Errors
/// [`DetachError::Busy`] with who uses it; [`DetachError::System`] if it cannot be opened.
pub(crate) fn claim(device: &Path) -> Result<OwnedFd, DetachError> {
    let address = || device.display().to_string();
    let limit = Instant::now() + BUSY_PATIENCE;
    loop {
        let holders = match open(device, OFlags::RDONLY | OFlags::EXCL) {
            Ok(claim) => {
                let openers = holders::openers_of_block_device(device, Some(claim.as_fd()));
                if openers.is_empty() {
                    return Ok(claim);
                }
                openers
            }
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                holders::of_block_device(device)
            }
            Err(source) => {
                return Err(DetachError::System { step: "open", target: address(), source });
            }
        };
        if Instant::now() >= limit {
            return Err(DetachError::Busy { address: address(), holders });
        }
        std::thread::sleep(PAUSE);
    }
}

/// Opens a device, whatever signals come.
///
/// # Errors
/// As the system says.
pub(crate) fn open(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    loop {
        match rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()) {
            Err(Errno::INTR) => {}
            outcome => return outcome.map_err(Into::into),
        }
    }
}
