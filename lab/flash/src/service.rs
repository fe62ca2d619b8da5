//! An emulated drive by itself as a block service, so that attach points make a block device of it.
//!
//! Requests are carried out by the thread that submits them, in the order in which they come, all
//! sessions together; only their completions are held back. Nothing lies between host and drive: FUA
//! and trim go to the drive as they are.
//!
//! # Time contract
//! As for [`FlashDevice`](crate::FlashDevice). In virtual time all sessions share the drive's clock,
//! which jumps whenever one of them takes a completion: how much of the drive works at once depends
//! on how much the host has outstanding when it does so, and that on this machine. Counts of what the
//! drive did are exact all the same; times are close only in real time.
//!
//! # What a host should know
//! - A request for parts of a block reads the block and writes it again, as a drive that shows
//!   512-byte sectors does inside.
//! - The drive trims whole pages. What a discard covers of a page in part is overwritten with zeros,
//!   because the contract says that it reads so.

use crate::drive::{Blocks, CommandError};
use crate::held::HeldQueue;
use crate::store::{Clock, FlashStore, Pacing, State, Work};
use crate::units::{BLOCK_SIZE, Ns};
use coulter::buffer::Buffer;
use coulter::service::{
    BlockService, Completion, Description, Extent, Identity, Operation, REQUEST_SIZE_MAX, Request,
    RequestError, SECTOR_SIZE, Session, Watch,
};
use coulter_device::OpenError;
use coulter_device::alarm::Alarm;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Runs that one `Extents` request reports at most.
const EXTENTS_MAX: usize = 1024;

/// Blocks of zeros that are written at once where a discard covers parts of pages.
static ZEROS: [u8; 64 * BLOCK_SIZE as usize] = [0; 64 * BLOCK_SIZE as usize];

/// A drive as a block service. It is open until the last session is gone, too.
#[derive(Clone, Debug)]
pub struct DriveService {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    store: FlashStore,
    clock: Clock,
}

impl FlashStore {
    /// Serves the drive.
    ///
    /// # Errors
    /// `InUse` while somebody else has it.
    pub fn serve(&self, pacing: Pacing) -> Result<DriveService, OpenError> {
        let now = self.take()?.now;
        let clock = Clock::new(pacing, now);
        Ok(DriveService { shared: Arc::new(Shared { store: self.clone(), clock }) })
    }
}

impl Shared {
    /// Goes on to `due` in virtual time; answers with the time that it is now.
    fn advance(&self, due: Option<Ns>) -> Ns {
        let mut state = self.store.lock();
        let due = match self.clock.pacing {
            Pacing::Virtual => due.unwrap_or(0),
            Pacing::Real => self.clock.real(),
        };
        state.now = state.now.max(due);
        state.now
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.store.give_back(self.clock.real());
    }
}

impl BlockService for DriveService {
    fn size(&self) -> u64 {
        self.shared.store.properties().size
    }

    fn read_only(&self) -> bool {
        false
    }

    fn describe(&self) -> Description {
        Description::new(Identity::default(), self.size(), false)
    }

    /// Nothing about a drive changes.
    fn watch(&self, _: Weak<dyn Watch>) {}

    fn connect(&self) -> Box<dyn Session + Send> {
        // As with every thread and socket, a process without descriptors gets no further.
        let alarm = Alarm::alone().expect("a descriptor is left for another session");
        Box::new(DriveSession { shared: Arc::clone(&self.shared), held: HeldQueue::new(), alarm })
    }
}

/// A queue of requests.
struct DriveSession {
    shared: Arc<Shared>,
    held: HeldQueue<Completion>,
    alarm: Alarm,
}

/// A request that makes sense, at work.
struct Access<'a> {
    state: &'a mut State,
    /// When it came in.
    at: Ns,
    /// When all of its commands so far have ended.
    end: Ns,
}

impl Access<'_> {
    fn carry_out(&mut self, work: Work<'_>) -> Result<(), CommandError> {
        self.end = self.end.max(self.state.carry_out(self.at, work)?);
        Ok(())
    }

    /// A command that comes in after all before it have ended.
    fn carry_out_next(&mut self, work: Work<'_>) -> Result<(), CommandError> {
        self.end = self.state.carry_out(self.end, work)?;
        Ok(())
    }

    fn read(&mut self, range: Range<u64>, out: &mut [u8]) -> Result<(), CommandError> {
        if let Some(blocks) = whole(&range) {
            return self.carry_out(Work::Read { blocks, bytes: out });
        }
        let blocks = touched(&range);
        let mut bytes = vec![0; blocks.count as usize * BLOCK as usize];
        self.carry_out(Work::Read { blocks, bytes: &mut bytes })?;
        let skipped = (range.start % BLOCK) as usize;
        out.copy_from_slice(&bytes[skipped..skipped + out.len()]);
        Ok(())
    }

    fn write(&mut self, range: Range<u64>, bytes: &[u8], fua: bool) -> Result<(), CommandError> {
        if let Some(blocks) = whole(&range) {
            return self.carry_out(Work::Write { blocks, bytes, fua, stream: 0 });
        }
        let blocks = touched(&range);
        let mut merged = vec![0; blocks.count as usize * BLOCK as usize];
        self.carry_out(Work::Read { blocks, bytes: &mut merged })?;
        let skipped = (range.start % BLOCK) as usize;
        merged[skipped..skipped + bytes.len()].copy_from_slice(bytes);
        self.carry_out_next(Work::Write { blocks, bytes: &merged, fua, stream: 0 })
    }

    /// Gives up the whole pages in the range and zeroes the rest.
    fn clear(&mut self, range: Range<u64>, fua: bool) -> Result<(), CommandError> {
        let page = u64::from(self.state.drive.profile().geometry.page_size);
        let first = range.start.next_multiple_of(page);
        let end = range.end / page * page;
        if first >= end {
            return self.zero(range, fua);
        }
        let blocks = Blocks { first: first / BLOCK, count: count_of(first..end) };
        self.carry_out(Work::Trim { blocks })?;
        self.zero(range.start..first, fua)?;
        self.zero(end..range.end, fua)
    }

    fn zero(&mut self, range: Range<u64>, fua: bool) -> Result<(), CommandError> {
        let mut at = range.start;
        while at < range.end {
            let length = (range.end - at).min(ZEROS.len() as u64);
            self.write(at..at + length, &ZEROS[..length as usize], fua)?;
            at += length;
        }
        Ok(())
    }

    fn extents(&self, range: Range<u64>) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let next = ((at / BLOCK + 1) * BLOCK).min(range.end);
            let mapped = self.state.drive.is_mapped(at / BLOCK);
            let full = extents.len() == EXTENTS_MAX;
            match extents.last_mut() {
                Some(last) if last.mapped == mapped => last.length += next - at,
                _ if full => break,
                _ => extents.push(Extent { length: next - at, mapped }),
            }
            at = next;
        }
        extents
    }
}

/// Blocks that the range consists of, if it is whole blocks.
fn whole(range: &Range<u64>) -> Option<Blocks> {
    (range.start | range.end).is_multiple_of(BLOCK).then(|| touched(range))
}

/// Blocks that have a part in the range.
fn touched(range: &Range<u64>) -> Blocks {
    let first = range.start / BLOCK;
    Blocks { first, count: count_of(first * BLOCK..range.end.next_multiple_of(BLOCK)) }
}

fn count_of(range: Range<u64>) -> u32 {
    let count = u32::try_from((range.end - range.start) / BLOCK);
    count.expect("a drive has fewer than 2^32 blocks")
}

impl DriveSession {
    /// Carries a request out; answers with when it ends.
    fn carry_out(&self, request: &mut Request) -> (Ns, Result<Vec<Extent>, RequestError>) {
        let mut state = self.shared.store.lock();
        let at = state.now.max(self.shared.clock.real());
        if let Err(error) = check(request, self.shared.store.properties().size) {
            return (at, Err(error));
        }
        let range = request.offset..request.offset.saturating_add(request.length);
        let mut access = Access { state: &mut state, at, end: at };
        let buffer: &mut Buffer = &mut request.buffer;
        let done = match request.operation {
            Operation::Flush => access.carry_out(Work::Flush),
            // Nothing is asked of the drive.
            _ if range.is_empty() => Ok(()),
            Operation::Read => access.read(range, buffer),
            Operation::Write { fua } => access.write(range, buffer, fua),
            Operation::Discard => access.clear(range, false),
            Operation::WriteZeroes { fua } => access.clear(range, fua),
            Operation::Extents => return (at, Ok(access.extents(range))),
        };
        let result = done.map(|()| Vec::new()).map_err(|error| match error {
            CommandError::PowerCut => RequestError::Device { errno: libc::ENODEV },
            CommandError::OutOfRange => RequestError::OutOfRange,
        });
        (access.end, result)
    }

    /// Moves what is due to `out`; answers in how long the next will be.
    fn release(&mut self, out: &mut Vec<Completion>) -> Option<Duration> {
        let due = self.held.due()?;
        let now = self.shared.advance(Some(due));
        self.held.release(now, out);
        self.held.due().map(|due| Duration::from_nanos(due - now))
    }
}

impl Session for DriveSession {
    fn submit(&mut self, mut request: Request) {
        let (due, result) = self.carry_out(&mut request);
        let (result, extents) = match result {
            Ok(extents) => (Ok(()), extents),
            Err(error) => (Err(error), Vec::new()),
        };
        let Request { tag, buffer, .. } = request;
        self.held.hold(due, Completion { tag, result, buffer, extents });
    }

    fn kick(&mut self) {}

    fn complete(&mut self, out: &mut Vec<Completion>, timeout: Option<Duration>) {
        let before = out.len();
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let Some(next) = self.release(out) else { return };
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if out.len() > before || left == Some(Duration::ZERO) {
                return;
            }
            std::thread::sleep(left.map_or(next, |left| left.min(next)));
        }
    }

    fn completion_fd(&self) -> BorrowedFd<'_> {
        let due = self.held.due().map(|due| {
            let left = match self.shared.clock.pacing {
                Pacing::Virtual => 0,
                Pacing::Real => due.saturating_sub(self.shared.clock.real()),
            };
            Instant::now() + Duration::from_nanos(left)
        });
        self.alarm.set(due).expect("a timer takes every time");
        self.alarm.as_fd()
    }

    fn outstanding(&self) -> usize {
        self.held.len()
    }
}

fn check(request: &Request, size: u64) -> Result<(), RequestError> {
    if request.operation == Operation::Flush {
        return Ok(());
    }
    if !(request.offset | request.length).is_multiple_of(SECTOR_SIZE) {
        return Err(RequestError::Invalid);
    }
    let carries_data = matches!(request.operation, Operation::Read | Operation::Write { .. });
    let buffer_length = request.buffer.len() as u64;
    if carries_data && (request.length > REQUEST_SIZE_MAX || buffer_length != request.length) {
        return Err(RequestError::Invalid);
    }
    // An answer of at least one byte is promised.
    if request.operation == Operation::Extents && request.length == 0 {
        return Err(RequestError::Invalid);
    }
    match request.offset.checked_add(request.length) {
        Some(end) if end <= size => Ok(()),
        _ => Err(RequestError::OutOfRange),
    }
}
