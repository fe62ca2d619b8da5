//! One command at a time, waiting for each: for formatting, checking and tests, where there is no
//! loop to keep going.
//!
//! Invariants:
//! - nothing else is outstanding on the device: a completion of another command would be lost, so
//!   its appearance is a panic;
//! - a wake that arrives in between is handed on to the next sleep.
//!
//! The calls count as use: a device that was used by them stays on that thread.

use crate::aligned::AlignedMemory;
use crate::command::{Command, Completion, Wait};
use crate::contract::Device;
use crate::device_error::DeviceError;

/// The tag of the only command in flight.
const TAG: u64 = 0;

/// Reads `memory.len()` bytes from `offset`.
///
/// # Errors
/// What the command met.
pub fn read<D: Device + ?Sized>(
    device: &mut D,
    offset: u64,
    memory: &mut AlignedMemory,
) -> Result<(), DeviceError> {
    let command = Command::read(TAG, offset, memory.len() as u64, memory.as_mut_pointer());
    // SAFETY: `memory` is borrowed until the completion was taken.
    unsafe { perform(device, command) }
}

/// Writes `memory` to `offset`.
///
/// # Errors
/// What the command met.
pub fn write<D: Device + ?Sized>(
    device: &mut D,
    offset: u64,
    memory: &mut AlignedMemory,
) -> Result<(), DeviceError> {
    let command = Command::write(TAG, offset, memory.len() as u64, memory.as_mut_pointer());
    // SAFETY: `memory` is borrowed until the completion was taken.
    unsafe { perform(device, command) }
}

/// Makes everything written durable.
///
/// # Errors
/// What the command met.
pub fn flush<D: Device + ?Sized>(device: &mut D) -> Result<(), DeviceError> {
    // SAFETY: a flush uses no memory.
    unsafe { perform(device, Command::flush(TAG)) }
}

/// Gives up `length` bytes from `offset`.
///
/// # Errors
/// What the command met.
pub fn discard<D: Device + ?Sized>(
    device: &mut D,
    offset: u64,
    length: u64,
) -> Result<(), DeviceError> {
    // SAFETY: a discard uses no memory.
    unsafe { perform(device, Command::discard(TAG, offset, length)) }
}

/// Submits one command and waits for its end.
///
/// # Safety
/// The command's memory is valid and unaliased for the time of the call.
pub(crate) unsafe fn perform<D: Device + ?Sized>(
    device: &mut D,
    command: Command,
) -> Result<(), DeviceError> {
    let tag = command.tag;
    // SAFETY: the caller's promise.
    unsafe { device.submit(command) };
    let mut completions: Vec<Completion> = Vec::with_capacity(1);
    let mut was_woken = false;
    while completions.is_empty() {
        if let Err(error) = device.poll(&mut completions, Wait::Forever) {
            // The memory is the caller's again when this returns or unwinds, but a device that
            // cannot be polled cannot be asked to let go of it: going on would be unsound.
            eprintln!("a device cannot be polled, with a command in flight: {error}");
            std::process::abort();
        }
        was_woken |= completions.is_empty();
    }
    if was_woken {
        device.waker().wake();
    }
    assert_eq!(completions.len(), 1, "one command was in flight");
    assert_eq!(completions[0].tag, tag, "no other command was in flight");
    completions[0].result
}
