//! Opening a file or a disk by its path: which engine drives it, and with which limits.

use crate::contract::Device;
use crate::medium::Target;
use crate::open_error::OpenError;
use crate::passthrough::PassthroughDevice;
use crate::threads::ThreadDevice;
use crate::uring::UringDevice;
use std::env;
use std::path::Path;

/// Set to anything but `0` or nothing, it makes [`Engine::Automatic`] use threads.
pub const NO_IO_URING_VARIABLE: &str = "COULTER_NO_IO_URING";

/// The largest [`OpenOptions::queue_depth`].
pub const QUEUE_DEPTH_MAX: usize = 4096;

/// The largest [`OpenOptions::threads`].
pub const THREADS_MAX: usize = 256;

/// What carries the commands to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// io_uring, or threads where the system refuses that or [`NO_IO_URING_VARIABLE`] is set.
    #[default]
    Automatic,
    /// NVMe commands of our own, through io_uring, to a drive that is an NVMe namespace; where kernel or
    /// drive do not allow that, as [`Engine::Automatic`], with the reason in the device's note.
    NvmePassthrough,
    /// io_uring or nothing.
    Uring,
    /// A pool of threads that call pread and pwrite.
    Threads,
}

/// How to open a file or a disk.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Refuse writes, and share a file (not a disk) with others that read.
    pub read_only: bool,
    /// Go past the page cache (`O_DIRECT`) where the file system can. Without it, data is copied
    /// once more and the page cache grows.
    pub direct: bool,
    /// What carries the commands.
    pub engine: Engine,
    /// Commands executed at once, from 1 to [`QUEUE_DEPTH_MAX`].
    pub queue_depth: usize,
    /// Threads of [`Engine::Threads`], from 1 to [`THREADS_MAX`].
    pub threads: usize,
    /// Bytes that it must have.
    pub size_min: u64,
    /// If there is nothing at the path, make a file of so many bytes, readable by its owner only,
    /// without reserving room for it.
    pub create_size: Option<u64>,
    /// The caller has locked the file as a [`LockedFile`](crate::LockedFile), and keeps that for as
    /// long as the device is open: it is not locked once more. Of no meaning for a disk.
    pub locked: bool,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            read_only: false,
            direct: true,
            engine: Engine::Automatic,
            queue_depth: 256,
            threads: 16,
            size_min: 0,
            create_size: None,
            locked: false,
        }
    }
}

/// Opens a file or a disk, and locks it against everybody else until the device is dropped.
///
/// # Errors
/// Every way in which that fails has its [`OpenError`].
///
/// # Panics
/// When a number in `options` is outside its bounds.
pub fn open_path(path: &Path, options: &OpenOptions) -> Result<Box<dyn Device>, OpenError> {
    let queue_depths = 1..=QUEUE_DEPTH_MAX;
    assert!(queue_depths.contains(&options.queue_depth), "a queue depth is within its bounds");
    assert!((1..=THREADS_MAX).contains(&options.threads), "threads are within their bounds");
    let target = Target::open(path, options)?;
    if options.engine == Engine::Threads {
        return Ok(Box::new(ThreadDevice::new(target, options, None)?));
    }
    let (mut target, mut why_not) = (target, None);
    let is_automatic = matches!(options.engine, Engine::Automatic | Engine::NvmePassthrough);
    if options.engine == Engine::NvmePassthrough {
        match PassthroughDevice::new(target, options.queue_depth) {
            Ok(device) => return Ok(Box::new(device)),
            Err((given_back, reason)) => {
                target = given_back;
                why_not = Some(format!("no NVMe passthrough: {reason}"));
            }
        }
    }
    target.add_note(why_not);
    if is_automatic && is_set(NO_IO_URING_VARIABLE) {
        let note = format!("threads instead of io_uring: {NO_IO_URING_VARIABLE} is set");
        return Ok(Box::new(ThreadDevice::new(target, options, Some(note))?));
    }
    match UringDevice::new(target, options.queue_depth) {
        Ok(device) => Ok(Box::new(device)),
        Err((target, source)) if is_automatic => {
            let note = format!("threads instead of io_uring: the system refuses it ({source})");
            Ok(Box::new(ThreadDevice::new(target, options, Some(note))?))
        }
        Err((target, source)) => {
            Err(OpenError::NoIoUring { path: target.path().to_path_buf(), source })
        }
    }
}

fn is_set(variable: &str) -> bool {
    env::var_os(variable).is_some_and(|value| !value.is_empty() && value != "0")
}
