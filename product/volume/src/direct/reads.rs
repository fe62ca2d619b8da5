//! Reads that a client's own thread carries out: it looks up where the blocks lie, reads the device, and
//! compares the checksums. What the cache does not know, or what does not match, goes to the loop.
//!
//! The protocol by which nothing old is seen, and nothing is overwritten while it is read, is that of
//! [`coulter_engine::read_cache`].
//!
//! Invariants:
//! - a client that was counted as a reader is counted out once, whatever becomes of the read;
//! - memory of a request is given up only when the device has let go of it: the ring is dropped first.

use super::Direct;
use crate::buffer::BUFFER_ALIGNMENT;
use crate::message::Submission;
use crate::service::{BLOCK_SIZE, Completion, Operation};
use crate::state::Shared;
use coulter_device::{self as device, Command, Device, DeviceError, Wait, Waker};
use coulter_engine::read_cache::{Place, READ_BLOCKS_MAX};
use coulter_format::checksum::{self, Kind};
use coulter_format::{Block, Lba};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};

/// Reads that one session has under way by itself; others go to the loop.
const FLIGHTS_MAX: usize = 256;

/// A read under way, its client counted as a reader.
struct Flight {
    submission: Submission,
    place: Place,
    count: usize,
    checksums: [u32; READ_BLOCKS_MAX],
}

impl Flight {
    /// True if every block has its checksum.
    fn is_sound(&self) -> bool {
        let Submission { memory, offset, .. } = &self.submission;
        let start = memory.start().cast::<Block>();
        // SAFETY: the memory is the request's own, of whole blocks, and the device is done with it.
        let blocks = unsafe { std::slice::from_raw_parts(start, self.count) };
        let first = offset / BLOCK_SIZE;
        let mut expected = blocks.iter().zip(&self.checksums).zip(first..);
        expected
            .all(|((block, expected), lba)| checksum::block(Kind::Data, lba, block) == *expected)
    }
}

/// A session's own reads.
pub(crate) struct DirectReads {
    shared: Arc<Shared>,
    direct: Option<Arc<Direct>>,
    /// First of what is dropped: it uses the memory of the flights.
    ring: Option<Ring>,
    flights: Vec<Option<Flight>>,
    free: Vec<u32>,
    /// Completions to be taken.
    pub(crate) done: Vec<Completion>,
    arrived: Vec<device::Completion>,
    /// Times that the shared histogram had no room for at once.
    times: Vec<u64>,
}

struct Ring {
    device: Box<dyn Device>,
    waker: Waker,
}

impl DirectReads {
    pub(crate) fn new(shared: Arc<Shared>) -> DirectReads {
        DirectReads {
            direct: shared.direct(),
            shared,
            ring: None,
            flights: Vec::new(),
            free: Vec::new(),
            done: Vec::new(),
            arrived: Vec::new(),
            times: Vec::new(),
        }
    }

    /// Reads under way.
    pub(crate) fn in_flight(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    /// Takes those reads out of `queued` that can be carried out here, and has the device begin them when it is
    /// polled next.
    pub(crate) fn begin(&mut self, queued: &mut VecDeque<Submission>) {
        if !self.is_open() || !queued.iter().any(is_plain_read) {
            return;
        }
        for _ in 0..queued.len() {
            let submission = queued.pop_front().expect("counted");
            if let Some(submission) = self.try_begin(submission) {
                queued.push_back(submission);
            }
        }
    }

    fn try_begin(&mut self, submission: Submission) -> Option<Submission> {
        if self.in_flight() == FLIGHTS_MAX || !is_plain_read(&submission) || !self.has_ring() {
            return Some(submission);
        }
        let flight = match self.look_up(submission) {
            Ok(flight) => flight,
            Err(submission) => return Some(submission),
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() as u32 - 1
        });
        let (memory, length) = (flight.submission.memory.start(), flight.submission.length);
        let command = Command::read(index.into(), flight.place.pba.byte_offset(), length, memory);
        self.flights[index as usize] = Some(flight);
        let ring = self.ring.as_mut().expect("it was made");
        // SAFETY: the memory belongs to the request, which stays in the table until the completion was taken
        // or the ring was dropped.
        unsafe { ring.device.submit(command) };
        None
    }

    /// Carries the only queued request out at once, waiting for the device, if that is a read that needs
    /// nobody else. Whether it was.
    pub(crate) fn try_read_in_place(&mut self, queued: &mut VecDeque<Submission>) -> bool {
        if queued.len() != 1 || !self.is_open() || !queued.iter().all(is_plain_read) {
            return false;
        }
        let submission = queued.pop_front().expect("there is one");
        let flight = match self.look_up(submission) {
            Ok(flight) => flight,
            Err(submission) => {
                queued.push_back(submission);
                return false;
            }
        };
        let direct = self.direct.as_ref().expect("it is open");
        let (memory, length) = (&flight.submission.memory, flight.submission.length as usize);
        let offset = flight.place.pba.byte_offset();
        // SAFETY: the memory is the request's own, and nobody else uses it before its completion.
        let result = unsafe { direct.source.read_at(memory.start(), length, offset) };
        match self.end(flight, result) {
            None => true,
            Some(submission) => {
                queued.push_back(submission);
                false
            }
        }
    }

    fn look_up(&self, submission: Submission) -> Result<Flight, Submission> {
        let direct = self.direct.as_ref().expect("it is open");
        let count = (submission.length / BLOCK_SIZE) as usize;
        let mut checksums = [0; READ_BLOCKS_MAX];
        match direct.cache.begin_read(Lba(submission.offset / BLOCK_SIZE), &mut checksums[..count])
        {
            Ok(place) => Ok(Flight { submission, place, count, checksums }),
            Err(miss) => {
                direct.misses.fetch_add(1, Ordering::Relaxed);
                if miss.wakes {
                    self.shared.mailbox.nudge();
                }
                Err(submission)
            }
        }
    }

    /// A read has ended. What did not succeed is given back, for the loop.
    fn end(&mut self, flight: Flight, result: Result<(), DeviceError>) -> Option<Submission> {
        let direct = self.direct.as_ref().expect("it has begun");
        let is_good = result.is_ok() && flight.is_sound();
        if direct.cache.end_read(flight.place) {
            self.shared.mailbox.nudge();
        }
        if !is_good {
            direct.mismatches.fetch_add(1, Ordering::Relaxed);
            return Some(flight.submission);
        }
        direct.hits.fetch_add(1, Ordering::Relaxed);
        direct.hit_bytes.fetch_add(flight.submission.length, Ordering::Relaxed);
        self.times.push(self.shared.now_ns().saturating_sub(flight.submission.begun_ns));
        let Submission { tag, memory, .. } = flight.submission;
        let buffer = memory.into_buffer();
        self.done.push(Completion { tag, result: Ok(()), buffer, extents: Vec::new() });
        None
    }

    /// Lets the device go on, and sleeps according to `wait` until it has completed something or
    /// [`DirectReads::waker`] is used. What must go to the loop is put to `queued`.
    pub(crate) fn poll(&mut self, wait: Wait, queued: &mut VecDeque<Submission>) {
        let Some(ring) = &mut self.ring else { return };
        let mut arrived = std::mem::take(&mut self.arrived);
        let polled = ring.device.poll(&mut arrived, wait);
        for completion in arrived.drain(..) {
            let index = completion.tag as usize;
            let flight = self.flights[index].take().expect("a command completes once");
            self.free.push(index as u32);
            queued.extend(self.end(flight, completion.result));
        }
        self.arrived = arrived;
        if polled.is_err() {
            self.give_up(queued);
        }
        self.tell_times();
    }

    /// The ring is of no use: all that it had goes to the loop.
    fn give_up(&mut self, queued: &mut VecDeque<Submission>) {
        // Before its memory is used otherwise: it waits for what it has begun.
        self.ring = None;
        let failed = DeviceError::from_errno(libc::EIO);
        for index in 0..self.flights.len() {
            if let Some(flight) = self.flights[index].take() {
                self.free.push(index as u32);
                queued.extend(self.end(flight, Err(failed)));
            }
        }
        self.direct = None;
    }

    /// Tells how long reads took, unless another session is just telling: then later.
    pub(crate) fn tell_times(&mut self) {
        if self.times.is_empty() {
            return;
        }
        let Some(direct) = &self.direct else { return };
        match direct.latency.try_lock() {
            Ok(mut latency) => self.times.drain(..).for_each(|time| latency.record(time)),
            Err(TryLockError::WouldBlock) if self.times.len() < FLIGHTS_MAX => {}
            Err(_) => self.times.clear(),
        }
    }

    /// Ends a sleep in [`DirectReads::poll`], or on [`DirectReads::arm`]'s descriptor.
    pub(crate) fn waker(&self) -> Option<&Waker> {
        self.ring.as_ref().map(|ring| &ring.waker)
    }

    /// A descriptor that is readable as soon as there is something to poll for.
    pub(crate) fn arm(&mut self) -> io::Result<BorrowedFd<'_>> {
        let ring = self.ring.as_mut().expect("reads are under way");
        ring.device.arm()
    }

    fn is_open(&mut self) -> bool {
        let is_closed = self.direct.as_ref().is_none_or(|direct| direct.cache.is_closed());
        if is_closed && self.in_flight() == 0 {
            (self.ring, self.direct) = (None, None);
        }
        !is_closed
    }

    fn has_ring(&mut self) -> bool {
        if self.ring.is_some() {
            return true;
        }
        let Some(direct) = &self.direct else { return false };
        match direct.source.open(FLIGHTS_MAX) {
            Ok(device) => {
                let waker = device.waker();
                self.ring = Some(Ring { device, waker });
                true
            }
            // Without one, the loop does it all, as it would without a cache.
            Err(_) => {
                self.direct = None;
                false
            }
        }
    }
}

impl Drop for DirectReads {
    fn drop(&mut self) {
        self.ring = None;
        let Some(direct) = &self.direct else { return };
        for flight in self.flights.drain(..).flatten() {
            if direct.cache.end_read(flight.place) {
                self.shared.mailbox.nudge();
            }
        }
    }
}

/// Whether it is a read that can be carried out here if the cache knows where.
fn is_plain_read(submission: &Submission) -> bool {
    let Submission { operation, exact, offset, length, memory, .. } = submission;
    let is_short = (1..=READ_BLOCKS_MAX as u64).contains(&(length / BLOCK_SIZE));
    let is_whole = offset.is_multiple_of(BLOCK_SIZE) && length.is_multiple_of(BLOCK_SIZE);
    let is_aligned = (memory.start() as usize).is_multiple_of(BUFFER_ALIGNMENT);
    *operation == Operation::Read && !exact && is_short && is_whole && is_aligned
}

/// The same descriptor, for longer than the borrow of what it was made from.
///
/// # Safety
/// It stays open for as long as it is used.
pub(crate) unsafe fn lasting<'a>(fd: BorrowedFd<'_>) -> BorrowedFd<'a> {
    // SAFETY: the caller's promise.
    unsafe { BorrowedFd::borrow_raw(fd.as_raw_fd()) }
}
