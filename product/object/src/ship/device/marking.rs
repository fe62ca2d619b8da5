//! A device that marks what is written to it while nothing is shipped, so that the next opening ships it.

use super::{CHUNK_SIZE, ReplicaError};
use crate::ship::marks::{Marks, Owner};
use coulter_device::{
    Command, CommandKind, Completion, Device, DeviceError, DeviceErrorKind, Properties, Region,
    Revocation, Wait, Waker,
};
use std::io;
use std::os::fd::BorrowedFd;

/// Marks the chunks that are written through it, so that the next shipment includes them.
#[derive(Debug)]
pub struct MarkingDevice<D: Device> {
    inner: D,
    marks: Marks,
    failed: Vec<Completion>,
}

impl<D: Device> MarkingDevice<D> {
    /// Surrounds the device that the marks are of, which may have grown since.
    ///
    /// # Errors
    /// [`ReplicaError::File`] when the marks cannot be kept.
    pub fn new(inner: D, mut marks: Marks) -> Result<MarkingDevice<D>, ReplicaError> {
        let device_size = inner.properties().size;
        if let Some(owner) = marks.owner().filter(|owner| owner.device_size < device_size) {
            let grown = marks.adopt(Owner { device_size, ..owner }, false);
            grown.map_err(ReplicaError::File)?;
        }
        Ok(MarkingDevice { inner, marks, failed: Vec::new() })
    }

    /// Marks what a command changes, durably.
    fn mark(&mut self, command: &Command) -> io::Result<()> {
        // Marks of nothing mean that all may differ.
        let Some(owner) = self.marks.owner() else { return Ok(()) };
        assert_eq!(owner.chunk_size, CHUNK_SIZE, "chunks have one size");
        let chunk_size = u64::from(CHUNK_SIZE);
        let end = (command.offset + command.length).div_ceil(chunk_size);
        let chunks = (command.offset / chunk_size..end).filter(|chunk| !self.marks.is_set(*chunk));
        let chunks: Vec<u64> = chunks.collect();
        if chunks.is_empty() { Ok(()) } else { self.marks.set(&chunks) }
    }
}

// SAFETY: each command is passed on once, or fails here and is touched by nothing else.
unsafe impl<D: Device> Device for MarkingDevice<D> {
    fn properties(&self) -> &Properties {
        self.inner.properties()
    }

    unsafe fn register(&mut self, regions: &[Region]) -> io::Result<()> {
        // SAFETY: the caller's promises are the same.
        unsafe { self.inner.register(regions) }
    }

    unsafe fn submit(&mut self, command: Command) {
        let changes = match command.kind {
            CommandKind::Write | CommandKind::Discard | CommandKind::Prepare => true,
            CommandKind::Read | CommandKind::Flush => false,
        };
        let is_sound = self.inner.properties().check(&command).is_ok();
        if changes
            && is_sound
            && let Err(error) = self.mark(&command)
        {
            let errno = error.raw_os_error().unwrap_or(5);
            let result = Err(DeviceError { kind: DeviceErrorKind::Io, errno });
            self.failed.push(Completion { tag: command.tag, result });
            return;
        }
        // SAFETY: the caller's promises are the same.
        unsafe { self.inner.submit(command) };
    }

    fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        let wait = if self.failed.is_empty() { wait } else { Wait::No };
        self.inner.poll(out, wait)?;
        out.append(&mut self.failed);
        Ok(())
    }

    fn arm(&mut self) -> io::Result<BorrowedFd<'_>> {
        if !self.failed.is_empty() {
            self.inner.waker().wake();
        }
        self.inner.arm()
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn revocation(&self) -> Option<Revocation> {
        self.inner.revocation()
    }
}
