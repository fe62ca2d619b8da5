//! Devices whose process has died: those that wait for another one, and what is left of those that do not.
//! Found, and taken away.

use super::abi::{DeviceInfo, F_USER_RECOVERY, STATE_DEAD, STATE_LIVE, STATE_QUIESCED};
use super::control::Control;
use super::error::UblkError;
use super::{block_path, retry_while_busy};
use crate::block_device::StepFailed;
use coulter_system::process::Process;
use std::path::{Path, PathBuf};

/// A device that waits for a process to serve it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its number.
    pub id: u32,
    /// The block device.
    pub device: PathBuf,
    /// What it was made with ([`UblkOptions::identity`](super::UblkOptions::identity)).
    pub identity: u64,
}

/// The devices that wait, whoever made them.
///
/// # Errors
/// [`UblkError`] where there is no driver to be asked.
pub fn waiting() -> Result<Vec<Waiting>, UblkError> {
    let waits = |info: &DeviceInfo| {
        let is_dead = info.state == STATE_LIVE && !is_alive(info.pid);
        is_recoverable(info) && (is_dead || info.state == STATE_QUIESCED)
    };
    let mut found: Vec<Waiting> = devices()?
        .into_iter()
        .filter(waits)
        .map(|DeviceInfo { id, identity, .. }| Waiting { id, device: block_path(id), identity })
        .collect();
    found.sort_by_key(|waiting| waiting.id);
    Ok(found)
}

/// Takes away what is left of devices with this identity that were to end with their process
/// ([`UblkOptions::is_mortal`](super::UblkOptions::is_mortal)), and have.
///
/// # Errors
/// As [`remove`]; and where there is no driver to be asked.
pub fn remove_remnants(identity: u64) -> Result<(), UblkError> {
    let is_remnant = |info: &DeviceInfo| {
        let is_over = info.state == STATE_DEAD || !is_alive(info.pid);
        info.identity == identity && !is_recoverable(info) && is_over
    };
    devices()?.into_iter().filter(is_remnant).try_for_each(|info| remove(info.id))
}

/// Whether a new process may serve it.
fn is_recoverable(info: &DeviceInfo) -> bool {
    info.flags & F_USER_RECOVERY != 0
}

/// All that there are, whoever made them.
fn devices() -> Result<Vec<DeviceInfo>, UblkError> {
    let mut control = Control::open()?;
    let entries = std::fs::read_dir("/sys/class/ublk-char").into_iter().flatten().flatten();
    let ids = entries
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("ublkc")?.parse::<u32>().ok());
    // One may go meanwhile.
    Ok(ids.filter_map(|id| control.info(id).ok()).collect())
}

/// What was kept with the block device when it was made; `None` if it is gone, or no ublk device.
pub fn identity_of(device: &Path) -> Option<u64> {
    let id = device.file_name()?.to_str()?.strip_prefix("ublkb")?.parse().ok()?;
    Some(Control::open().ok()?.info(id).ok()?.identity)
}

/// Takes away a device that waits. What uses it gets I/O errors, and what it was asked and had not
/// answered is lost.
///
/// # Errors
/// [`UblkError::Served`] if a living process serves it.
pub fn remove(id: u32) -> Result<(), UblkError> {
    let mut control = Control::open()?;
    let failed =
        |step, source| UblkError::System(StepFailed { step, target: block_path(id), source });
    let info = control.info(id).map_err(|error| failed("look at", error))?;
    if info.state == STATE_LIVE && is_alive(info.pid) {
        return Err(UblkError::Served { device: block_path(id), pid: info.pid });
    }
    retry_while_busy(|| control.stop(id)).map_err(|error| failed("stop", error))?;
    control.delete(id).map_err(|error| failed("delete", error))
}

/// Whether there is such a process that is not a corpse.
pub(super) fn is_alive(pid: i32) -> bool {
    u32::try_from(pid).is_ok_and(|pid| Process::with_pid(pid).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_alive_until_it_ends() {
        assert!(is_alive(std::process::id().cast_signed()));
        assert!(!is_alive(i32::MAX));
        let mut child = std::process::Command::new("true").spawn().expect("`true` can be run");
        let pid = child.id().cast_signed();
        // A corpse that nobody has fetched yet counts as dead.
        while is_alive(pid) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        child.wait().expect("the child can be reaped");
    }
}
