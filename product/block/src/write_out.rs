//! Before a block device goes away under those who use it: what they keep for it in memory reaches it.
//!
//! File systems that are known to lie on it are written out, then the pages of the device itself and of
//! whatever the kernel has made of it. If the kernel says that somebody holds it and nobody is known to,
//! everything that this machine keeps in memory is written out.
//!
//! # Invariants
//! - Each step is taken apart (see `apart`): its pages may come to this very process.
//! - No step holds up the end for longer than [`STEP_PATIENCE`].

use crate::apart;
use coulter_system::holders;
use coulter_system::mounts::{self, DeviceNumber, Mount};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long one file system or device may take. What is not written by then is given up.
pub const STEP_PATIENCE: Duration = Duration::from_secs(300);
/// How long everything may take: others than ours may not answer.
const EVERYTHING_PATIENCE: Duration = Duration::from_secs(30);

/// Somebody who uses the device, and how the writing out of what he keeps for it went.
#[derive(Debug)]
pub struct WrittenOut {
    /// Who, in words.
    pub user: String,
    /// The system's error.
    pub outcome: io::Result<()>,
}

/// Writes out everything that is kept in memory for the block device, and names those who use it.
pub fn write_out(device: &Path) -> Vec<WrittenOut> {
    let mounts = mounts::mounts_of_everywhere(device);
    let mut users: Vec<WrittenOut> =
        mounts.iter().map(|mount| file_system(mount, device)).collect();
    let on_it = mounts::numbers_on(device);
    // What lies on others comes first.
    users.extend(on_it.iter().rev().filter_map(|number| pages_of(*number)));
    let held: Vec<DeviceNumber> = on_it.into_iter().filter(|number| is_held(*number)).collect();
    let known: Vec<DeviceNumber> = mounts.iter().flat_map(Mount::numbers).collect();
    let is_explained =
        |number: &DeviceNumber| known.contains(number) || holds_for_others(*number, &held);
    if !held.iter().all(is_explained) {
        users.push(everything());
    }
    users
}

fn file_system(mount: &Mount, device: &Path) -> WrittenOut {
    let path = mount.reachable_at();
    let outcome = on_path(&path, OFlags::DIRECTORY, |file| rustix::fs::syncfs(file));
    WrittenOut { user: format!("{}, {}", mount.kind, mount.place_of(device)), outcome }
}

/// The pages of the device itself. Most have none; nobody is named who has not got it open.
fn pages_of(number: DeviceNumber) -> Option<WrittenOut> {
    let node = node_of(number)?;
    let openers = holders::openers_of_block_device(&node, None);
    let outcome = on_path(&node, OFlags::empty(), |file| rustix::fs::fsync(file));
    let user = format!("{}, {}", node.display(), openers.join("; "));
    (!openers.is_empty() || outcome.is_err()).then_some(WrittenOut { user, outcome })
}

fn everything() -> WrittenOut {
    let outcome = apart::run_within(EVERYTHING_PATIENCE, &|| {
        rustix::fs::sync();
        Ok(())
    });
    let user = "somebody whom neither /proc nor /sys shows".to_owned();
    WrittenOut { user, outcome: outcome.map_err(io::Error::from) }
}

fn on_path(
    path: &Path,
    flags: OFlags,
    step: impl Fn(&OwnedFd) -> Result<(), Errno>,
) -> io::Result<()> {
    // Made here, since the step is not to allocate.
    let path = CString::new(path.as_os_str().as_bytes())?;
    let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC;
    let step = || step(&rustix::fs::open(path.as_c_str(), flags, Mode::empty())?);
    Ok(apart::run_within(STEP_PATIENCE, &step)?)
}

/// Whether another process has claimed the device exclusively.
fn is_held(number: DeviceNumber) -> bool {
    let Some(node) = node_of(number) else { return false };
    let claim = on_path(&node, OFlags::EXCL, |_| Ok(()));
    claim.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
}

/// Whether the device is held for the sake of another one: made of it, or a partition of it that is
/// held. Or for what is in no file: swap.
fn holds_for_others(number: DeviceNumber, held: &[DeviceNumber]) -> bool {
    mounts::made_of(number).next().is_some()
        || mounts::partitions_of(number).any(|partition| held.contains(&partition))
        || node_of(number).is_some_and(|node| holders::is_swap(&node))
}

/// The device's file. One of another name may lead to the same device.
fn node_of((major, minor): DeviceNumber) -> Option<PathBuf> {
    let text = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/uevent")).ok()?;
    let name = text.lines().find_map(|line| line.strip_prefix("DEVNAME="))?;
    Some(Path::new("/dev").join(name))
}
