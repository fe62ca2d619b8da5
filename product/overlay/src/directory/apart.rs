//! A mount of the lower directory that no path leads to.
//!
//! The overlay is mounted over the directory. On the mount that it came from, `..` of what lies in it leads to the
//! overlay's own root: the daemon would ask itself, and wait for its own answer. Nothing is mounted on a mount
//! that is in no mount table, and its root is its own parent.

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;

/// The directory, on a mount of its own.
pub(super) fn own_mount(directory: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = rustix::mount::open_tree(directory, c"", flags)?;
    match make_private(&tree) {
        // Without this call the kernel passes nothing on to mounts that are in no table.
        Ok(()) | Err(Errno::NOSYS) => {}
        Err(error) => return Err(error),
    }
    // What the kernel has given names a place only; this one can be read and synced.
    let flags =
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::openat(&tree, c".", flags, rustix::fs::Mode::empty())
}

/// What is mounted over the directory later is not mounted here as well.
fn make_private(tree: &OwnedFd) -> rustix::io::Result<()> {
    let attributes =
        libc::mount_attr { attr_set: 0, attr_clr: 0, propagation: libc::MS_PRIVATE, userns_fd: 0 };
    // SAFETY: the path ends with a zero, and the structure lives over the call and is as long as is said.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::super::Directory;
    use crate::lower::{Lower, Outcome};
    use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
    use std::path::Path;

    /// What `..` in `below` is while something is mounted over `over`, and what it should be.
    fn parent_while_mounted_over(over: &Path, below: &Path) -> (Outcome<u64>, u64) {
        let mut directory = Directory::open(over).expect("it can be below an overlay");
        let root = directory.root();
        let expected = directory.status(&root).expect("it is there").number;
        let name = below.file_name().expect("it has a name").as_encoded_bytes();
        let node = directory.lookup(&root, name).expect("it is there").handle;
        rustix::mount::mount("none", over, "tmpfs", MountFlags::empty(), None).expect("root may");
        let found = directory.lookup(&node, b"..").map(|found| found.status.number);
        rustix::mount::unmount(over, UnmountFlags::DETACH).expect("it is mounted");
        (found, expected)
    }

    #[test]
    fn the_parent_of_what_lies_in_the_root_is_the_root_whatever_is_mounted_over_it() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("SKIPPED: the parent of what lies in the root: it takes root");
        }
        let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
        let below = folder.path().join("below");
        std::fs::create_dir(&below).expect("it is new");
        // SAFETY: this thread gets mounts of its own; it has no descriptors or memory of its own.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }
            .expect("root may");
        for kind in [MountPropagationFlags::DOWNSTREAM, MountPropagationFlags::SHARED] {
            let kind = kind | MountPropagationFlags::REC;
            rustix::mount::mount_change("/", kind).expect("root may");
            let (found, expected) = parent_while_mounted_over(folder.path(), &below);
            assert_eq!(found, Ok(expected), "{kind:?}");
        }
    }
}
