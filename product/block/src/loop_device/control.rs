//! The loop driver's own calls, as far as they are needed here.

use crate::apart;
use coulter_system::loop_devices::path_below;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Ioctl, IoctlOutput, NoArg, Opcode, Setter, ioctl};
use std::ffi::{OsStr, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const LOOP_CLR_FD: Opcode = 0x4c01;
const LOOP_GET_STATUS64: Opcode = 0x4c05;
const LOOP_SET_CAPACITY: Opcode = 0x4c07;
const LOOP_CONFIGURE: Opcode = 0x4c0a;
const LOOP_CTL_GET_FREE: Opcode = 0x4c82;

const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_PARTSCAN: u32 = 8;
const LO_FLAGS_DIRECT_IO: u32 = 16;
/// Bytes that the driver keeps of a name, the final zero included.
const LO_NAME_SIZE: usize = 64;

/// Others may take the device that was just found free; so often we look for another.
const ATTEMPTS_MAX: u32 = 64;
/// Bytes of the device's blocks.
const BLOCK_SIZE: u32 = 4096;

/// The kernel's `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; LO_NAME_SIZE],
    crypt_name: [u8; LO_NAME_SIZE],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// The kernel's `struct loop_config`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo>() == 232);
const _: () = assert!(size_of::<LoopConfig>() == 304);

const NO_INFO: LoopInfo = LoopInfo {
    device: 0,
    inode: 0,
    rdevice: 0,
    offset: 0,
    size_limit: 0,
    number: 0,
    encrypt_type: 0,
    encrypt_key_size: 0,
    flags: 0,
    file_name: [0; LO_NAME_SIZE],
    crypt_name: [0; LO_NAME_SIZE],
    encrypt_key: [0; 32],
    init: [0; 2],
};

/// What a device is to be made of.
pub(super) struct LoopSetup<'a> {
    pub(super) backing: &'a OwnedFd,
    /// Kept by the driver as the device's name, by which `file_name` finds it again.
    pub(super) name: &'a Path,
    pub(super) read_only: bool,
    pub(super) partitions: bool,
}

/// Sets up a free loop device and returns its path.
pub(super) fn configure(setup: &LoopSetup<'_>) -> io::Result<PathBuf> {
    let mut info = NO_INFO;
    info.file_name = packed(setup.name);
    info.flags = LO_FLAGS_DIRECT_IO;
    info.flags |= if setup.read_only { LO_FLAGS_READ_ONLY } else { 0 };
    info.flags |= if setup.partitions { LO_FLAGS_PARTSCAN } else { 0 };
    let fd = u32::try_from(setup.backing.as_raw_fd()).expect("a descriptor is not negative");
    let config = LoopConfig { fd, block_size: BLOCK_SIZE, info, reserved: [0; 8] };
    let control = open(Path::new("/dev/loop-control"), OFlags::RDWR)?;
    for _ in 0..ATTEMPTS_MAX {
        // SAFETY: LOOP_CTL_GET_FREE takes no argument and returns a number.
        let number = unsafe { ioctl(&control, FreeNumber) }?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let access = if setup.read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let device = open(&path, access)?;
        let set_up = || {
            // SAFETY: LOOP_CONFIGURE reads a `struct loop_config`, whose layout `LoopConfig` has.
            unsafe { ioctl(&device, Setter::<LOOP_CONFIGURE, _>::new(config)) }
        };
        // It may look for partitions, by reading the file.
        match apart::run(&[device.as_fd(), setup.backing.as_fd()], set_up) {
            Ok(()) => return Ok(path),
            // Taken meanwhile.
            Err(Errno::BUSY) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::BUSY.into())
}

/// Clears the device, once nobody has it open.
pub(super) fn clear(device: &OwnedFd) -> rustix::io::Result<()> {
    // SAFETY: LOOP_CLR_FD takes no argument.
    match unsafe { ioctl(device, NoArg::<LOOP_CLR_FD>::new()) } {
        // Cleared already.
        Ok(()) | Err(Errno::NXIO) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes the device as large as the file below it. The kernel tells those who use the device.
pub(super) fn take_over_size(device: &OwnedFd) -> rustix::io::Result<()> {
    // SAFETY: LOOP_SET_CAPACITY takes no argument.
    unsafe { ioctl(device, NoArg::<LOOP_SET_CAPACITY>::new()) }
}

/// Whether the device is set up.
pub(super) fn is_configured(device: &Path) -> bool {
    path_below(device).is_some()
}

/// Whether the device was set up by us over the file `name`.
pub(super) fn is_named(device: &Path, name: &Path) -> bool {
    let Ok(handle) = open(device, OFlags::RDONLY) else { return false };
    status(&handle).is_ok_and(|info| info.file_name == packed(name))
}

/// The path of the file that the device was set up over, as whoever did so has told the driver; of a
/// long one the end.
pub fn name_of(device: &Path) -> Option<PathBuf> {
    let info = status(&open(device, OFlags::RDONLY).ok()?).ok()?;
    let name = info.file_name.split(|byte| *byte == 0).next()?;
    Some(PathBuf::from(OsStr::from_bytes(name)))
}

fn status(device: &OwnedFd) -> rustix::io::Result<LoopInfo> {
    // SAFETY: LOOP_GET_STATUS64 writes a `struct loop_info64`, whose layout `LoopInfo` has; any
    // bytes are a valid one.
    unsafe { ioctl(device, Getter::<LOOP_GET_STATUS64, LoopInfo>::new()) }
}

/// The file below a loop device, whatever it is called. While it is open, no other has both numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BackingFile {
    device: u64,
    inode: u64,
}

impl BackingFile {
    /// The open file itself.
    pub(super) fn of_file(file: &OwnedFd) -> io::Result<BackingFile> {
        let stat = rustix::fs::fstat(file)?;
        Ok(BackingFile { device: stat.st_dev, inode: stat.st_ino })
    }

    /// That it is what lies below the loop device.
    ///
    /// # Errors
    /// [`Errno::NODEV`] when nothing does, or something else; others when that is not to be known.
    pub(super) fn check_below(self, device: &OwnedFd) -> rustix::io::Result<()> {
        match status(device) {
            Ok(info) if self == (BackingFile { device: info.device, inode: info.inode }) => Ok(()),
            Ok(_) | Err(Errno::NXIO) => Err(Errno::NODEV),
            Err(error) => Err(error),
        }
    }

    /// What is below the loop device, if it is set up.
    pub(super) fn below(device: &OwnedFd) -> io::Result<Option<BackingFile>> {
        match status(device) {
            Ok(info) => Ok(Some(BackingFile { device: info.device, inode: info.inode })),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// The path as the driver keeps it: cut at the front if it is too long, since the end tells more.
fn packed(path: &Path) -> [u8; LO_NAME_SIZE] {
    let bytes = path.as_os_str().as_encoded_bytes();
    let kept = &bytes[bytes.len().saturating_sub(LO_NAME_SIZE - 1)..];
    let mut name = [0; LO_NAME_SIZE];
    name[..kept.len()].copy_from_slice(kept);
    name
}

pub(super) fn open(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())?)
}

/// LOOP_CTL_GET_FREE: the number of a free device.
struct FreeNumber;

// SAFETY: the opcode takes no argument, and its only output is the return value.
unsafe impl Ioctl for FreeNumber {
    type Output = i32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<i32> {
        Ok(out)
    }
}
