//! What devices of the ublk driver and of the kernel's NBD client have in common: they are the
//! kernel's, and outlive the process that serves them.

use crate::apart;
use crate::claim::claim;
use coulter_attach::point::{Detach, DetachError};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a device may take to go once it was told to.
const END_PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);

/// A step that the system refused.
#[derive(Debug)]
pub struct StepFailed {
    /// Which step; a verb.
    pub step: &'static str,
    /// On what.
    pub target: PathBuf,
    /// Why.
    pub source: io::Error,
}

impl fmt::Display for StepFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}: {}", self.step, self.target.display(), self.source)
    }
}

/// A device that is to be taken over, and was made for something else.
#[derive(Debug)]
pub struct ForeignDevice {
    /// The device.
    pub device: PathBuf,
    /// What differs.
    pub what: &'static str,
}

impl fmt::Display for ForeignDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not a device of this volume: {}", self.device.display(), self.what)
    }
}

/// A device as the way to its end sees it.
pub(crate) trait Surviving {
    /// The block device.
    fn path(&self) -> PathBuf;

    /// Whether it is still ours to take away.
    fn exists(&self) -> bool;

    /// Removes the device. The holder of `claim` keeps others from using it meanwhile; without one
    /// its users are cut off.
    fn take_away(&mut self, claim: Option<OwnedFd>) -> Result<(), DetachError>;
}

/// What [`AttachPoint::detach`](coulter_attach::point::AttachPoint::detach) does for such a device.
pub(crate) fn detach(device: &mut impl Surviving, how: Detach) -> Result<(), DetachError> {
    if !device.exists() {
        return Ok(());
    }
    let path = device.path();
    let claim = match how {
        Detach::IfIdle => Some(claim(&path)?),
        Detach::Always => None,
    };
    let flush = |claim: &OwnedFd| apart::run(&[claim.as_fd()], || rustix::fs::fsync(claim));
    let flushed = claim.as_ref().map_or(Ok(()), flush);
    device.take_away(claim)?;
    let address = path.display().to_string();
    flushed.map_err(|error| DetachError::Unflushed { address, source: error.into() })
}

/// Why such a device is not handed over.
pub(crate) fn not_handed_over() -> io::Error {
    // The device waits for a recovery; a descriptor would add nothing.
    let words = "a device of this kind is taken over by a new process, after the end of this one";
    io::Error::new(io::ErrorKind::Unsupported, words)
}

/// Waits until the kernel has forgotten a device.
pub(crate) fn await_end(device: &Path, is_there: impl Fn() -> bool) -> Result<(), DetachError> {
    let limit = Instant::now() + END_PATIENCE;
    while is_there() {
        if Instant::now() >= limit {
            let (target, source) = (device.display().to_string(), io::ErrorKind::TimedOut.into());
            return Err(DetachError::System { step: "see the end of", target, source });
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}
