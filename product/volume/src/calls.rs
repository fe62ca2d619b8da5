//! Calls that wait: for programs that have nothing else to do meanwhile. Both kinds of volumes have
//! them.
//!
//! A call lends its memory to the loop instead of copying it. Each call under way has a session of
//! its own; sessions are kept for the next calls.

use crate::abort::AbortOnUnwind;
use crate::intake::AnyMemory;
use crate::memory::Memory;
use crate::service::{Change, Completion, Operation, RequestError};
use crate::validity::ByteRange;
use std::sync::{Mutex, PoisonError};

/// Sessions that are kept for calls to come.
const IDLE_COUNT_MAX: usize = 64;

/// A session for calls, one at a time.
pub(crate) struct Caller<S> {
    session: S,
    completions: Vec<Completion>,
}

impl<S: AnyMemory> Caller<S> {
    pub(crate) fn new(session: S) -> Caller<S> {
        Caller { session, completions: Vec::with_capacity(1) }
    }

    /// Carries out one request and waits for its end.
    pub(crate) fn call(
        &mut self,
        operation: Operation,
        range: ByteRange,
        memory: Memory,
    ) -> Result<Completion, RequestError> {
        self.ask(|session| session.enqueue(0, operation, false, range, memory))
    }

    /// The same for a read or a question that tells exactly which blocks are mapped.
    pub(crate) fn call_exact(
        &mut self,
        operation: Operation,
        range: ByteRange,
        memory: Memory,
    ) -> Result<Completion, RequestError> {
        self.ask(|session| session.enqueue(0, operation, true, range, memory))
    }

    /// Carries out one write of several ranges and waits for its end.
    pub(crate) fn call_many(
        &mut self,
        changes: &[Change],
        fua: bool,
        memory: Memory,
    ) -> Result<Completion, RequestError> {
        self.ask(|session| session.enqueue_many(0, changes, fua, memory))
    }

    fn ask(&mut self, enqueue: impl FnOnce(&mut S)) -> Result<Completion, RequestError> {
        self.session.assert_may_wait();
        let lent = AbortOnUnwind::new("memory that is lent to a volume was about to be lost");
        enqueue(&mut self.session);
        while self.session.outstanding() > 0 {
            self.session.complete(&mut self.completions, None);
        }
        lent.end();
        let completion = self.completions.pop().ok_or(RequestError::Closed)?;
        completion.result.map(|()| completion)
    }
}

/// Callers that wait for calls from any thread.
pub(crate) struct IdleCallers<S> {
    idle: Mutex<Vec<Caller<S>>>,
}

impl<S> Default for IdleCallers<S> {
    fn default() -> IdleCallers<S> {
        IdleCallers { idle: Mutex::default() }
    }
}

impl<S> IdleCallers<S> {
    pub(crate) fn take(&self) -> Option<Caller<S>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    pub(crate) fn give(&self, caller: Caller<S>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_COUNT_MAX {
            idle.push(caller);
        }
    }
}

/// Gives a volume its calls. They are made by `call(operation, range, memory)`, which waits.
macro_rules! calls {
    ($volume:ty) => {
        impl $volume {
            /// Fills `bytes` from `offset` on. Both are multiples of 512. Memory at a multiple of
            /// 4096 is filled by the device itself, other memory by way of a copy.
            ///
            /// # Errors
            /// [`RequestError`]; `bytes` is unspecified then.
            pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), RequestError> {
                let mut at = offset;
                for piece in bytes.chunks_mut(REQUEST_SIZE_MAX as usize) {
                    let (start, length) = (piece.as_mut_ptr(), piece.len());
                    // SAFETY: `call` returns when the request has completed, and until then the
                    // bytes are mutably borrowed.
                    let memory = unsafe { Memory::lent(start, length) };
                    self.call(
                        Operation::Read,
                        ByteRange { offset: at, length: length as u64 },
                        memory,
                    )?;
                    at = at.saturating_add(length as u64);
                }
                Ok(())
            }

            /// Stores `bytes` from `offset` on. Both are multiples of 512. At most 1 MiB, aligned
            /// to 4096, is stored whole or not at all, whatever happens.
            ///
            /// # Errors
            /// [`RequestError`]; any part may have been stored then.
            pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), RequestError> {
                self.write_lent(offset, bytes, false)
            }

            /// The same, and makes it durable, but nothing else.
            ///
            /// # Errors
            /// As [`Self::write_at`].
            pub fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), RequestError> {
                self.write_lent(offset, bytes, true)
            }

            fn write_lent(&self, offset: u64, bytes: &[u8], fua: bool) -> Result<(), RequestError> {
                let mut at = offset;
                for piece in bytes.chunks(REQUEST_SIZE_MAX as usize) {
                    let start = piece.as_ptr().cast_mut();
                    // SAFETY: `call` returns when the request has completed, and until then the
                    // bytes are borrowed; those of a write are not written to.
                    let memory = unsafe { Memory::lent(start, piece.len()) };
                    self.call(
                        Operation::Write { fua },
                        ByteRange { offset: at, length: piece.len() as u64 },
                        memory,
                    )?;
                    at = at.saturating_add(piece.len() as u64);
                }
                Ok(())
            }

            /// Stores and unmaps several ranges, all of them or none, whatever happens. `data` holds
            /// the bytes of the ranges to be written, one behind the other in the order of
            /// `changes`. With `fua` it is durable when this returns. See
            /// [`WriteMany`](crate::service::WriteMany) for what a
            /// write may hold.
            ///
            /// # Errors
            /// [`RequestError`]. What was refused changed nothing; after an error of the device
            /// all of it may be there after the next opening, or nothing.
            pub fn write_many(
                &self,
                changes: &[Change],
                data: &[u8],
                fua: bool,
            ) -> Result<(), RequestError> {
                // SAFETY: `call_many` returns when the request has completed, and until then the
                // bytes are borrowed; those of a write are not written to.
                let memory = unsafe { Memory::lent(data.as_ptr().cast_mut(), data.len()) };
                self.call_many(changes, fua, memory).map(drop)
            }

            /// Makes durable every write that completed before.
            ///
            /// # Errors
            /// [`RequestError`]; the volume is read-only then.
            pub fn flush(&self) -> Result<(), RequestError> {
                let nothing = ByteRange { offset: 0, length: 0 };
                self.call(Operation::Flush, nothing, Memory::empty()).map(drop)
            }

            /// Unmaps `length` bytes from `offset` on, both multiples of 512; they read as zeros. Answered
            /// from memory, as the hint that it is: it lasts when a write or a flush was answered after it.
            ///
            /// # Errors
            /// [`RequestError`]; any part may be unmapped then.
            pub fn discard(&self, offset: u64, length: u64) -> Result<(), RequestError> {
                self.call(Operation::Discard, ByteRange { offset, length }, Memory::empty())
                    .map(drop)
            }

            /// Makes `length` bytes from `offset` on zero, both multiples of 512.
            ///
            /// # Errors
            /// [`RequestError`]; any part may be zero then.
            pub fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), RequestError> {
                let operation = Operation::WriteZeroes { fua: false };
                self.call(operation, ByteRange { offset, length }, Memory::empty()).map(drop)
            }

            /// Which parts of `length` bytes from `offset` on hold data: runs that cover some of
            /// it, from its start on.
            ///
            /// # Errors
            /// [`RequestError`].
            pub fn extents(&self, offset: u64, length: u64) -> Result<Vec<Extent>, RequestError> {
                self.call(Operation::Extents, ByteRange { offset, length }, Memory::empty())
                    .map(|completion| completion.extents)
            }

            /// The same, exactly: parts of the map that are not in memory are read from the store.
            ///
            /// # Errors
            /// [`RequestError`].
            pub fn exact_extents(
                &self,
                offset: u64,
                length: u64,
            ) -> Result<Vec<Extent>, RequestError> {
                let range = ByteRange { offset, length };
                self.call_exact(Operation::Extents, range, Memory::empty())
                    .map(|completion| completion.extents)
            }

            /// Fills `bytes` from `offset` on, and tells exactly which of them were mapped then: runs
            /// that cover all of them. Both are multiples of 512; at most 32 MiB at a time.
            ///
            /// # Errors
            /// [`RequestError`]; `bytes` is unspecified then.
            pub fn read_present_at(
                &self,
                offset: u64,
                bytes: &mut [u8],
            ) -> Result<Vec<Extent>, RequestError> {
                let range = ByteRange { offset, length: bytes.len() as u64 };
                // SAFETY: `call_exact` returns when the request has completed, and until then the
                // bytes are mutably borrowed.
                let memory = unsafe { Memory::lent(bytes.as_mut_ptr(), bytes.len()) };
                self.call_exact(Operation::Read, range, memory).map(|completion| completion.extents)
            }
        }
    };
}

pub(crate) use calls;
