//! Mounts that nobody serves any more.

use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount,
};
use rustix::thread::UnshareFlags;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::thread;

/// True if the kernel says with this that a FUSE mount is not served any more. A request that its
/// daemon had not answered when it was killed ends with the second of these.
pub fn is_dead(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED))
}

/// Unmounts `directory`, also while programs use it: they see it go. Once this returns the
/// directory is free for another mount.
///
/// The kernel then frees what it kept of the files: four seconds for the inodes of 200,000 files, which the
/// next mount had to wait for. A thread waits for that here.
///
/// # Errors
/// When the system refuses it; nothing is mounted there, for one.
pub fn take_away(directory: &Path) -> io::Result<()> {
    // While the root is held, unmounting frees nothing. Such a descriptor asks nobody who serves the mount.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = open(directory, flags, Mode::empty());
    unmount(directory, UnmountFlags::DETACH)?;
    if let Ok(root) = root {
        let thread = thread::Builder::new().name("coulter-unmount".to_owned());
        // Without a thread it is dropped here, and waited for.
        let _ = thread.spawn(move || drop(root));
    }
    Ok(())
}

/// Opens the directory that lies below what is mounted on `directory`. For everybody else that
/// stays mounted.
///
/// # Errors
/// When the system refuses it.
pub fn look_below(directory: &Path) -> io::Result<OwnedFd> {
    let path = directory.to_owned();
    // Only the thread gets mounts of its own, and they end with it.
    let look = move || {
        // SAFETY: the thread has neither descriptors nor memory of its own then.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS | UnshareFlags::NEWNS) }?;
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        unmount(&path, UnmountFlags::DETACH)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(open(&path, flags, Mode::empty())?)
    };
    let thread = thread::Builder::new().name("look-below".to_owned()).spawn(look)?;
    thread.join().expect("it does not panic")
}

/// Mounts a dead mount on `directory`, as if the daemon of `source` had been killed: so that no
/// program goes on in the bare directory.
///
/// # Errors
/// When the system refuses it.
pub fn put_back(directory: &Path, source: &Path) -> io::Result<()> {
    let device = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
    let data = CString::new(data)?;
    Ok(mount(source, directory, "fuse.coulter", MountFlags::empty(), data.as_c_str())?)
}
