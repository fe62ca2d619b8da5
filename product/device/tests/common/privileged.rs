//! File systems and disks for tests that run as root. Nothing is left behind, even by a test that
//! is killed: mounts live in a namespace of the test's thread, and loop devices detach themselves
//! when they are closed.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::{io, mem, thread};

/// Runs a test on a thread with mounts of its own, if that is allowed.
pub(crate) fn with_private_mounts(name: &str, test: impl FnOnce() + Send) {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        println!("{name}: skipped, for it needs root to mount");
        return;
    }
    let outcome = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: no pointers; it concerns this thread only.
            if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
                println!("{name}: skipped, for root may not mount here");
                return;
            }
            change_mount(Path::new("/"), libc::MS_REC | libc::MS_PRIVATE);
            leave_those_of_others();
            test();
        });
        thread.join()
    });
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

/// Takes away the copies that a new namespace has of what other programs have mounted for a while: as long as
/// one is there, the file system stays on its device although they have unmounted it.
fn leave_those_of_others() {
    let table = fs::read_to_string("/proc/thread-self/mounts").expect("/proc is readable");
    let points = table.lines().filter_map(|line| line.split(' ').nth(1));
    let theirs =
        points.filter(|point| point.starts_with("/tmp/") || point.starts_with("/var/tmp/"));
    for point in theirs.map(c_string) {
        // SAFETY: the string lives until the call returns. One below another is gone with that one.
        unsafe { libc::umount2(point.as_ptr(), libc::MNT_DETACH) };
    }
}

/// Something mounted, seen by this thread and those it makes, for as long as this value lives.
#[derive(Debug)]
pub(crate) struct Mount {
    place: CString,
}

impl Mount {
    /// Mounts `source` on a directory that is made for it.
    pub(crate) fn new(source: &str, place: &Path, kind: &str, options: &str) -> Mount {
        fs::create_dir_all(place).expect("a mount point");
        call_mount(source, place, Some(kind), 0, options);
        Mount { place: c_string(place.to_str().expect("a plain path")) }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // SAFETY: the string lives until the call returns.
        unsafe { libc::umount2(self.place.as_ptr(), libc::MNT_DETACH) };
    }
}

/// Changes how a mount behaves.
pub(crate) fn change_mount(place: &Path, flags: u64) {
    call_mount("none", place, None, flags, "");
}

fn call_mount(source: &str, place: &Path, kind: Option<&str>, flags: u64, options: &str) {
    let (source, place) = (c_string(source), c_string(place.to_str().expect("a plain path")));
    let (kind, options) = (kind.map(c_string), c_string(options));
    let kind = kind.as_ref().map_or(std::ptr::null(), |kind| kind.as_ptr());
    // SAFETY: each pointer is null or a string that lives until the call returns.
    let result = unsafe {
        libc::mount(source.as_ptr(), place.as_ptr(), kind, flags, options.as_ptr().cast())
    };
    checked(result, "mount");
}

fn c_string(text: &str) -> CString {
    CString::new(text).expect("no zero inside")
}

#[track_caller]
pub(crate) fn checked(result: libc::c_int, what: &str) -> libc::c_int {
    assert!(result >= 0, "{what}: {}", io::Error::last_os_error());
    result
}

const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// The kernel's `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    before_flags: [u8; 52],
    flags: u32,
    behind_flags: [u8; 176],
    reserved: [u64; 8],
}

const _: () = assert!(mem::size_of::<LoopConfig>() == 8 + 232 + 64);
const _: () = assert!(mem::offset_of!(LoopConfig, flags) == 8 + 52);

/// A disk made of a file, there for as long as this value lives.
#[derive(Debug)]
pub(crate) struct LoopDisk {
    pub(crate) path: PathBuf,
    _held_open: File,
}

impl LoopDisk {
    pub(crate) fn new(backing: &Path, block_size: u32, read_only: bool) -> LoopDisk {
        let open = |path: &Path, write| {
            let file = OpenOptions::new().read(true).write(write).open(path);
            file.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let control = open(Path::new("/dev/loop-control"), true);
        let backing = open(backing, true);
        for _ in 0..20 {
            // SAFETY: this request has no argument.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
            let number = checked(number, "a free loop device");
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = open(&path, !read_only);
            let read_only = if read_only { LO_FLAGS_READ_ONLY } else { 0 };
            let config = LoopConfig {
                fd: backing.as_raw_fd() as u32,
                block_size,
                before_flags: [0; 52],
                flags: LO_FLAGS_AUTOCLEAR | read_only,
                behind_flags: [0; 176],
                reserved: [0; 8],
            };
            // SAFETY: this request reads a `struct loop_config` from the address.
            let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &config) };
            if result == 0 {
                return LoopDisk { path, _held_open: device };
            }
            // Somebody else took it in between.
            let error = io::Error::last_os_error();
            assert_eq!(error.raw_os_error(), Some(libc::EBUSY), "{}: {error}", path.display());
        }
        panic!("every loop device was taken by somebody else");
    }
}
