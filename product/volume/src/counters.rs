//! What the driver counts, on the thread of the loop.

use crate::failures::Failures;
use crate::service::{BLOCK_SIZE, Operation, RequestError};
use coulter_device::{Command, CommandKind, Completion};

/// Requests of hosts since the volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RequestCounts {
    /// Reads.
    pub reads: u64,
    /// Bytes that were to be read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes that were to be written.
    pub write_bytes: u64,
    /// Writes and write-zeroes with force unit access.
    pub durable_writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards and write-zeroes.
    pub discards: u64,
    /// Bytes that were to be discarded.
    pub discard_bytes: u64,
    /// Questions about extents.
    pub extents: u64,
    /// Writes and discards of parts of blocks, which were read and merged.
    pub merged: u64,
    /// Of those and the others, the ones that had to wait for a merge in the same block.
    pub blocked: u64,
    /// Reads that were copied, because they were not whole blocks or their memory not aligned.
    pub bounced: u64,
    /// Requests that the engine could not take at once.
    pub waits: u64,
    /// Requests that failed because data was damaged.
    pub corrupt: u64,
    /// Requests that failed because the device did.
    pub device_failures: u64,
    /// Requests that were refused because the volume is read-only.
    pub refused: u64,
}

/// Commands for the device since the volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DeviceCounts {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Bytes discarded.
    pub discard_bytes: u64,
    /// Commands that failed.
    pub failures: u64,
}

/// All that the driver counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: RequestCounts,
    pub(crate) device: DeviceCounts,
    /// Without the blocks that are damaged, which the engine counts.
    pub(crate) failures: Failures,
}

impl Counters {
    /// A session hands over a request of `length` bytes.
    pub(crate) fn accept(&mut self, operation: Operation, length: u64) {
        let counts = &mut self.requests;
        match operation {
            Operation::Read => {
                counts.reads += 1;
                counts.read_bytes += length;
            }
            Operation::Write { fua } => {
                counts.writes += 1;
                counts.write_bytes += length;
                counts.durable_writes += u64::from(fua);
            }
            Operation::Flush => counts.flushes += 1,
            Operation::Discard => {
                counts.discards += 1;
                counts.discard_bytes += length;
            }
            Operation::WriteZeroes { fua } => {
                counts.discards += 1;
                counts.discard_bytes += length;
                counts.durable_writes += u64::from(fua);
            }
            Operation::Extents => counts.extents += 1,
        }
    }

    /// A request for what begins at `offset` has come to its end.
    pub(crate) fn finish(&mut self, offset: u64, result: Result<(), RequestError>) {
        match result {
            Err(RequestError::Corrupt { block }) => {
                self.requests.corrupt += 1;
                self.failures.corrupt_offset = Some(block * BLOCK_SIZE);
            }
            Err(RequestError::Device { .. }) => {
                self.requests.device_failures += 1;
                self.failures.device_offset = Some(offset);
            }
            Err(RequestError::ReadOnly) => self.requests.refused += 1,
            _ => {}
        }
    }

    pub(crate) fn submit(&mut self, command: &Command) {
        let (counts, length) = (&mut self.device, command.length);
        match command.kind {
            CommandKind::Read => {
                counts.reads += 1;
                counts.read_bytes += length;
            }
            CommandKind::Write => {
                counts.writes += 1;
                counts.write_bytes += length;
            }
            CommandKind::Flush => counts.flushes += 1,
            CommandKind::Discard => {
                counts.discards += 1;
                counts.discard_bytes += length;
            }
            // The engine counts the blocks.
            CommandKind::Prepare => {}
        }
    }

    pub(crate) fn complete(&mut self, completion: &Completion) {
        if let Err(error) = completion.result {
            self.device.failures += 1;
            self.failures.device_commands += 1;
            self.failures.device_errno = error.errno;
        }
    }
}
