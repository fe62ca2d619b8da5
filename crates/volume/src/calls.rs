//! Calls that wait: for programs that have nothing else to do meanwhile.
//!
//! A call lends its memory to the loop instead of copying it. Each call under way has a session of
//! its own; sessions are kept for the next calls.

use crate::abort::AbortOnUnwind;
use crate::memory::Memory;
use crate::service::{Completion, Extent, Operation, REQUEST_SIZE_MAX, RequestError, Session};
use crate::session::VolumeSession;
use crate::validity::ByteRange;
use crate::volume::Volume;
use std::sync::{Mutex, PoisonError};

/// Sessions that are kept for calls to come.
const IDLE_COUNT_MAX: usize = 64;

/// Sessions that no call is using.
#[derive(Default)]
pub(crate) struct Callers {
    idle: Mutex<Vec<Caller>>,
}

struct Caller {
    session: VolumeSession,
    completions: Vec<Completion>,
}

impl Volume {
    /// Fills `bytes` from `offset` on. Both are multiples of 512. Memory at a multiple of 4096 is
    /// filled by the device itself, other memory by way of a copy.
    ///
    /// # Errors
    /// [`RequestError`]; `bytes` is unspecified then.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), RequestError> {
        let mut at = offset;
        for piece in bytes.chunks_mut(REQUEST_SIZE_MAX as usize) {
            let (start, length) = (piece.as_mut_ptr(), piece.len());
            // SAFETY: `call` returns when the request has completed, and until then the bytes are
            // mutably borrowed.
            let memory = unsafe { Memory::lent(start, length) };
            self.call(Operation::Read, at, length as u64, memory)?;
            at = at.saturating_add(length as u64);
        }
        Ok(())
    }

    /// Stores `bytes` from `offset` on. Both are multiples of 512. At most 1 MiB, aligned to 4096,
    /// is stored whole or not at all, whatever happens.
    ///
    /// # Errors
    /// [`RequestError`]; any part may have been stored then.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), RequestError> {
        self.write(offset, bytes, false)
    }

    /// The same, and makes it durable, but nothing else.
    ///
    /// # Errors
    /// As [`Volume::write_at`].
    pub fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), RequestError> {
        self.write(offset, bytes, true)
    }

    fn write(&self, offset: u64, bytes: &[u8], fua: bool) -> Result<(), RequestError> {
        let mut at = offset;
        for piece in bytes.chunks(REQUEST_SIZE_MAX as usize) {
            let start = piece.as_ptr().cast_mut();
            // SAFETY: `call` returns when the request has completed, and until then the bytes are
            // borrowed; those of a write are not written to.
            let memory = unsafe { Memory::lent(start, piece.len()) };
            self.call(Operation::Write { fua }, at, piece.len() as u64, memory)?;
            at = at.saturating_add(piece.len() as u64);
        }
        Ok(())
    }

    /// Makes durable every write that completed before.
    ///
    /// # Errors
    /// [`RequestError`]; the volume is read-only then.
    pub fn flush(&self) -> Result<(), RequestError> {
        self.call(Operation::Flush, 0, 0, Memory::empty()).map(drop)
    }

    /// Unmaps `length` bytes from `offset` on, both multiples of 512; they read as zeros.
    ///
    /// # Errors
    /// [`RequestError`]; any part may be unmapped then.
    pub fn discard(&self, offset: u64, length: u64) -> Result<(), RequestError> {
        self.call(Operation::Discard, offset, length, Memory::empty()).map(drop)
    }

    /// Makes `length` bytes from `offset` on zero, both multiples of 512.
    ///
    /// # Errors
    /// [`RequestError`]; any part may be zero then.
    pub fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), RequestError> {
        let operation = Operation::WriteZeroes { fua: false };
        self.call(operation, offset, length, Memory::empty()).map(drop)
    }

    /// Which parts of `length` bytes from `offset` on hold data: runs that cover some of it, from
    /// its start on.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn extents(&self, offset: u64, length: u64) -> Result<Vec<Extent>, RequestError> {
        self.call(Operation::Extents, offset, length, Memory::empty())
            .map(|completion| completion.extents)
    }

    /// Carries out one request and waits for its end.
    fn call(
        &self,
        operation: Operation,
        offset: u64,
        length: u64,
        memory: Memory,
    ) -> Result<Completion, RequestError> {
        let _guard = AbortOnUnwind("memory that is lent to a volume was about to be lost");
        let mut caller = self.callers.take().unwrap_or_else(|| Caller {
            session: self.session(),
            completions: Vec::with_capacity(1),
        });
        caller.session.enqueue(0, operation, ByteRange { offset, length }, memory);
        while caller.session.outstanding() > 0 {
            caller.session.complete(&mut caller.completions, None);
        }
        let completion = caller.completions.pop().ok_or(RequestError::Closed)?;
        self.callers.give(caller);
        completion.result.map(|()| completion)
    }
}

impl Callers {
    fn take(&self) -> Option<Caller> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn give(&self, caller: Caller) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_COUNT_MAX {
            idle.push(caller);
        }
    }
}
