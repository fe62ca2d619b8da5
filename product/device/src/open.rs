//! Opening a file or a disk by its path: which engine drives it, and with which limits.

use crate::contract::Device;
use crate::medium::Target;
use crate::open_error::OpenError;
use crate::open_options::{Engine, OpenOptions, QUEUE_DEPTH_MAX, THREADS_MAX};
use crate::passthrough::PassthroughDevice;
use crate::threads::ThreadDevice;
use crate::uring::UringDevice;
use std::env;
use std::path::Path;

/// Set to anything but `0` or nothing, it makes [`Engine::Automatic`] use threads.
pub const NO_IO_URING_VARIABLE: &str = "COULTER_NO_IO_URING";

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
        match PassthroughDevice::on(target, options.queue_depth) {
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
    match UringDevice::on(target, options.queue_depth) {
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
