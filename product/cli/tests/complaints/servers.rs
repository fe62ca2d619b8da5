//! What a server of files does: it names files by handles, for as long as it likes.

use crate::overlaid::{BLOCK, Overlaid, assert_holds};
use crate::sandbox::{can_mount, wait_until};
use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The kernel's `file_handle`, with room for the longest one.
#[repr(C)]
struct Handle {
    size: u32,
    kind: i32,
    bytes: [u8; 128],
}

fn handle_of(path: &Path) -> Handle {
    let mut handle = Handle { size: 128, kind: 0, bytes: [0; 128] };
    let (mut mount, mut name) = (0, path.as_os_str().as_bytes().to_vec());
    name.push(0);
    // SAFETY: `handle` has the kernel's layout with `size` bytes of room; the name ends with a zero.
    let result = unsafe {
        let (name, handle) = (name.as_ptr().cast(), (&raw mut handle).cast());
        libc::name_to_handle_at(libc::AT_FDCWD, name, handle, &raw mut mount, 0)
    };
    assert_eq!(result, 0, "{}: {}", path.display(), std::io::Error::last_os_error());
    handle
}

fn open(mount: &File, handle: &mut Handle, flags: i32) -> std::io::Result<File> {
    // SAFETY: `handle` has the kernel's layout, filled in by `name_to_handle_at`.
    let opened =
        unsafe { libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut *handle).cast(), flags) };
    if opened < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made it.
    Ok(unsafe { File::from_raw_fd(opened) })
}

/// Has the kernel forget all that nobody uses.
fn forget() {
    fs::write("/proc/sys/vm/drop_caches", "2").expect("root may");
}

#[test]
fn a_handle_names_its_file_after_the_kernel_has_forgotten_it() {
    let Some(_right) = can_mount("handles of files") else { return };
    let overlaid = Overlaid::new();
    fs::create_dir(overlaid.path("below")).expect("it is new");
    let (file, mut expected) = overlaid.scattered("below/file", 1);
    drop(file);
    let (file, removed) = overlaid.scattered("below/removed", 2);
    let mount = File::open(&overlaid.directory).expect("it is there");
    let [mut named, mut gone, mut directory] =
        ["below/file", "below/removed", "below"].map(|name| handle_of(&overlaid.path(name)));
    for round in 0..2 {
        forget();
        let found = open(&mount, &mut named, libc::O_RDWR).expect("it is named still");
        assert_holds(&found, &expected);
        found.write_all_at(&[round; BLOCK], 50 * BLOCK as u64).expect("it is writable");
        expected[50 * BLOCK..51 * BLOCK].fill(round);
        drop(found);
        let [from, to] = ["below/file", "below/other"].map(|name| overlaid.path(name));
        fs::rename(&from, &to).and_then(|()| fs::rename(&to, &from)).expect("it is there");
    }
    forget();
    let found = open(&mount, &mut directory, libc::O_RDONLY | libc::O_DIRECTORY);
    found.expect("so is a directory").sync_all().expect("it can be synced");

    // One without a name is there as long as somebody has it open, and then no more.
    fs::remove_file(overlaid.path("below/removed")).expect("it is there");
    forget();
    assert_holds(&file, &removed);
    drop(file);
    // The daemon hears of the last close a little later.
    wait_until("nobody has it any more", || {
        let stale = open(&mount, &mut gone, libc::O_RDONLY).err();
        stale.is_some_and(|error| error.raw_os_error() == Some(libc::ESTALE))
    });
    drop(mount);
    overlaid.detach();
    assert_holds(&File::open(overlaid.path("below/file")).expect("it is there"), &expected);
}

/// The kernel asks for the parent of each directory that it finds by a handle, and that is the mount's own root.
#[test]
fn a_directory_right_below_the_root_is_found_again_by_its_handle() {
    let Some(_right) = can_mount("handles of directories") else { return };
    let overlaid = Overlaid::new();
    fs::create_dir_all(overlaid.path("below/deeper")).expect("it is new");
    let mount = File::open(&overlaid.directory).expect("it is there");
    let handles = ["below", "below/deeper", "."].map(|name| handle_of(&overlaid.path(name)));
    for mut handle in handles {
        forget();
        let found = open(&mount, &mut handle, libc::O_RDONLY | libc::O_DIRECTORY);
        found.expect("it is named still").sync_all().expect("it can be synced");
    }
    drop(mount);
    overlaid.detach();
}
