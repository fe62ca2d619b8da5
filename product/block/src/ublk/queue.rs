//! The loop between a ublk queue and a session: one thread, one ring, no hand-over.
//!
//! Each request slot (*tag*) of the queue has one command with the kernel at any time. The answer
//! to it is a request; committing its result offers the slot again with the same command. A turn
//! takes every request that there is, submits all with one kick, and commits what is complete with
//! one system call.
//!
//! It runs as a guest on the volume's own thread where it can, so that a request goes from the
//! queue to the device's ring without leaving the thread.
//!
//! # Invariants
//! - A tag is with the kernel, waits for a buffer, or is with the session; a request completes once.
//! - A buffer whose address the kernel has stays where it is until its command is answered.
//! - The loop ends when the kernel has taken back every tag, which it does after the block device
//!   is gone and all its requests were answered.

use super::Copy;
use super::abi::{
    IO_COMMIT_AND_FETCH, IO_F_FUA, IO_FETCH, IO_RESULT_OK, IoCommand, IoDescriptor, OP_DISCARD,
    OP_FLUSH, OP_MASK, OP_READ, OP_WRITE, OP_WRITE_ZEROES, data_position,
};
use coulter::buffer::Buffer;
use coulter::service::{Completion, Operation, Request, SECTOR_SIZE, Session};
use coulter_attach::hosting::LoopPlace;
use coulter_attach::pool::BufferPool;
use io_uring::{Builder, IoUring, opcode, squeue, types};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Commits that are worth a call of their own; fewer wait for the next sleep.
const BATCH_SIZE: usize = 16;
/// Set in the user data of polls; the descriptor is in the bits below. A slot's is its tag.
const POLL_MARK: u64 = 1 << 32;
/// Bytes of the buffers of which each slot can have one at any time, so that small requests never
/// wait, where the daemon copies.
const SMALL_SIZE: usize = 64 << 10;
/// Buffers for the largest request. With a request of that size eight keep any device busy.
const LARGE_COUNT: usize = 8;
/// Different descriptors that a session may ask to be polled.
const POLL_COUNT_MAX: u32 = 8;

/// What to ask of the kernel for the ring, the best first: Linux 6.1, 5.11.
const SETUPS: [fn(&mut Builder); 2] = [
    |builder| {
        builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
        builder.setup_submit_all();
    },
    |_| {},
];

/// What a queue is like; all of it is fixed when the device is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Request slots.
    pub(super) depth: u16,
    /// Bytes of the largest request.
    pub(super) io_size_max: u32,
    /// Who copies.
    pub(super) copy: Copy,
}

/// The descriptors by which a queue talks to the driver.
pub(super) struct Lines {
    /// Takes commands, and is mapped for what is requested.
    pub(super) commands: OwnedFd,
    /// Where the daemon copies data to and from.
    pub(super) content: OwnedFd,
}

/// A queue whose slots the kernel has, ready to be run.
pub(super) struct Queue {
    ring: IoUring,
    lines: Lines,
    descriptors: Descriptors,
    session: Box<dyn Session>,
    place: LoopPlace,
    shape: Shape,
    /// By tag; a request's buffer is with the session while the session has the request.
    slots: Vec<Slot>,
    /// Where the daemon copies.
    pool: BufferPool,
    /// Slots whose requests wait for a buffer of it, the longest waiting first.
    waiting: VecDeque<u16>,
    completions: Vec<Completion>,
    /// Descriptors of the session that the ring polls. One that fires late costs a turn.
    polled: Vec<RawFd>,
    /// Tags that the kernel has not taken back.
    live: usize,
    submitted: bool,
}

#[derive(Default)]
struct Slot {
    /// Whether the session has it.
    is_busy: bool,
    /// Bytes that it asks for; what a success answers.
    length: u32,
    is_read: bool,
    /// Where the driver copies: the buffer that the kernel knows.
    buffer: Buffer,
}

impl Queue {
    /// Offers every slot of `device`, the character device, to the kernel. To be called, and run,
    /// on the thread that is to serve.
    ///
    /// # Errors
    /// What kept a ring or the mapping from being had.
    pub(super) fn offer(
        device: OwnedFd,
        session: Box<dyn Session>,
        place: LoopPlace,
        shape: Shape,
    ) -> io::Result<Queue> {
        let descriptors = Descriptors::map(&device, shape.depth)?;
        let content = device.try_clone()?;
        let lines = Lines { commands: device, content };
        Queue::new(lines, descriptors, session, place, shape)
    }

    /// The same by whatever answers as the driver does.
    pub(super) fn new(
        lines: Lines,
        descriptors: Descriptors,
        session: Box<dyn Session>,
        place: LoopPlace,
        shape: Shape,
    ) -> io::Result<Queue> {
        let ring = ring(shape.depth)?;
        let slots = (0..shape.depth).map(|_| Slot::new(shape)).collect();
        let pool = match shape.copy {
            // Each slot has its own.
            Copy::ByDriver => BufferPool::stocked(&[]),
            Copy::ByDaemon => BufferPool::stocked(&[
                (SMALL_SIZE, usize::from(shape.depth)),
                (shape.io_size_max as usize, LARGE_COUNT),
            ]),
        };
        let mut queue = Queue {
            ring,
            lines,
            descriptors,
            session,
            place,
            shape,
            slots,
            pool,
            waiting: VecDeque::with_capacity(usize::from(shape.depth)),
            completions: Vec::with_capacity(usize::from(shape.depth)),
            polled: Vec::with_capacity(POLL_COUNT_MAX as usize),
            live: usize::from(shape.depth),
            submitted: false,
        };
        for tag in 0..shape.depth {
            queue.push(IO_FETCH, tag, 0);
        }
        queue.ring.submit()?;
        Ok(queue)
    }

    /// Serves until the kernel has taken back every slot.
    pub(super) fn run(mut self) {
        // A ring that does not work any more ends it; closing it takes the slots back.
        while self.live > 0 && self.turn().is_ok() {}
        self.finish();
    }

    /// Takes what was requested, commits what is complete, and sleeps if there was neither.
    ///
    /// # Errors
    /// Those after which the ring is of no use.
    pub(super) fn turn(&mut self) -> io::Result<()> {
        let taken = self.take_answers();
        if self.submitted {
            self.submitted = false;
            self.session.kick();
        }
        let completed = self.commit_completions(Some(Duration::ZERO));
        // A quiet turn follows a busy one, so what little is queued goes with the sleep.
        if taken || completed { self.advance() } else { self.sleep() }
    }

    /// Slots that the kernel has not taken back.
    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// Waits for what the session still has.
    pub(super) fn finish(&mut self) {
        while self.session.outstanding() > 0 {
            self.commit_completions(Some(Duration::from_millis(100)));
        }
    }

    /// Takes all answers of the ring that there are; whether there was one.
    fn take_answers(&mut self) -> bool {
        let mut any = false;
        loop {
            let Some(answer) = self.ring.completion().next() else { return any };
            any = true;
            match (answer.user_data(), answer.result()) {
                (mark, _) if mark & POLL_MARK != 0 => {
                    let descriptor = (mark & !POLL_MARK) as RawFd;
                    self.polled.retain(|polled| *polled != descriptor);
                }
                (tag, IO_RESULT_OK) => self.take_request(tag as u16),
                // The device is gone.
                _ => self.live -= 1,
            }
        }
    }

    /// Submits those that waited, as far as there are buffers now.
    fn take_waiting(&mut self) {
        while let Some(tag) = self.waiting.front().copied()
            && self.try_take_request(tag)
        {
            self.waiting.pop_front();
        }
    }

    fn take_request(&mut self, tag: u16) {
        if !self.try_take_request(tag) {
            self.waiting.push_back(tag);
        }
    }

    /// Submits the request of a slot, or refuses it; false if it has to wait for a buffer.
    fn try_take_request(&mut self, tag: u16) -> bool {
        let descriptor = self.descriptors.read(tag);
        match self.translate(tag, descriptor) {
            Ok(Some((operation, buffer))) => self.submit(tag, descriptor, operation, buffer),
            Ok(None) => return false,
            Err(errno) => self.push(IO_COMMIT_AND_FETCH, tag, -errno),
        }
        true
    }

    fn submit(&mut self, tag: u16, descriptor: IoDescriptor, operation: Operation, buffer: Buffer) {
        // A flush says nothing of a range.
        let is_flush = operation == Operation::Flush;
        let length = u64::from(descriptor.sector_count) * SECTOR_SIZE;
        let (offset, length) =
            if is_flush { (0, 0) } else { (descriptor.sector * SECTOR_SIZE, length) };
        let slot = &mut self.slots[usize::from(tag)];
        assert!(!slot.is_busy, "a slot has one request at a time");
        slot.is_busy = true;
        slot.is_read = operation == Operation::Read;
        // Only the bytes of data are counted; at most 32 MiB.
        slot.length = buffer.len() as u32;
        self.submitted = true;
        self.session.submit(Request { tag: u64::from(tag), operation, offset, length, buffer });
    }

    /// What the kernel asks for, in the service's words, with the data of a write; `None` while
    /// there is no buffer for it.
    fn translate(
        &mut self,
        tag: u16,
        what: IoDescriptor,
    ) -> Result<Option<(Operation, Buffer)>, i32> {
        let fua = what.operation_and_flags & IO_F_FUA != 0;
        let without_data = |operation| Ok(Some((operation, Buffer::empty())));
        let operation = match what.operation_and_flags & OP_MASK {
            OP_FLUSH => return without_data(Operation::Flush),
            OP_DISCARD => return without_data(Operation::Discard),
            OP_WRITE_ZEROES => return without_data(Operation::WriteZeroes { fua }),
            OP_READ => Operation::Read,
            OP_WRITE => Operation::Write { fua },
            _ => return Err(libc::EOPNOTSUPP),
        };
        let length = what.sector_count as usize * SECTOR_SIZE as usize;
        if length > self.shape.io_size_max as usize {
            return Err(libc::EINVAL);
        }
        let buffer = match self.shape.copy {
            Copy::ByDriver => Some(std::mem::take(&mut self.slots[usize::from(tag)].buffer)),
            Copy::ByDaemon if self.pool.can_take(length) => Some(self.pool.take(length)),
            Copy::ByDaemon => None,
        };
        let Some(mut buffer) = buffer else { return Ok(None) };
        buffer.set_length(length);
        if self.shape.copy == Copy::ByDaemon
            && operation != Operation::Read
            && let Err(errno) = self.fetch_data(tag, &mut buffer)
        {
            self.pool.give(buffer);
            return Err(errno);
        }
        Ok(Some((operation, buffer)))
    }

    /// Commits the results that there are; whether there was one.
    fn commit_completions(&mut self, timeout: Option<Duration>) -> bool {
        let mut completions = std::mem::take(&mut self.completions);
        self.session.complete(&mut completions, timeout);
        let any = !completions.is_empty();
        completions.drain(..).for_each(|completion| self.commit(completion));
        self.completions = completions;
        self.take_waiting();
        any
    }

    fn commit(&mut self, completion: Completion) {
        // It was submitted with this very number.
        let tag = completion.tag as u16;
        let slot = &mut self.slots[usize::from(tag)];
        assert!(slot.is_busy, "a request completes once");
        slot.is_busy = false;
        let (length, is_read) = (slot.length, slot.is_read);
        // Never above 32 MiB.
        let mut result = completion.result.map_or_else(|error| -error.errno(), |()| length as i32);
        match self.shape.copy {
            Copy::ByDriver if length > 0 => slot.buffer = completion.buffer,
            Copy::ByDriver => {}
            Copy::ByDaemon => {
                if is_read
                    && result > 0
                    && let Err(errno) = self.give_data(tag, &completion.buffer)
                {
                    result = -errno;
                }
                self.pool.give(completion.buffer);
            }
        }
        self.push(IO_COMMIT_AND_FETCH, tag, result);
    }

    /// Copies the data of a write out of the request.
    fn fetch_data(&mut self, tag: u16, buffer: &mut Buffer) -> Result<(), i32> {
        let mut done = 0;
        while done < buffer.len() {
            let position = data_position(tag) + done as u64;
            match rustix::io::pread(&self.lines.content, &mut buffer[done..], position) {
                Ok(0) => return Err(libc::EIO),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.raw_os_error()),
            }
        }
        Ok(())
    }

    /// Copies the data of a read into the request.
    fn give_data(&mut self, tag: u16, buffer: &[u8]) -> Result<(), i32> {
        let mut done = 0;
        while done < buffer.len() {
            let position = data_position(tag) + done as u64;
            match rustix::io::pwrite(&self.lines.content, &buffer[done..], position) {
                Ok(0) => return Err(libc::EIO),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.raw_os_error()),
            }
        }
        Ok(())
    }

    fn push(&mut self, operation: u32, tag: u16, result: i32) {
        let buffer = &mut self.slots[usize::from(tag)].buffer;
        let address = match self.shape.copy {
            Copy::ByDriver => buffer.as_mut_pointer() as u64,
            Copy::ByDaemon => 0,
        };
        let command = IoCommand { tag, result, address };
        let fd = types::Fd(self.lines.commands.as_raw_fd());
        let entry = opcode::UringCmd16::new(fd, operation).cmd(command.encoded()).build();
        self.push_entry(&entry.user_data(u64::from(tag)));
    }

    /// Hands over what is queued if it is worth a call, and runs what the kernel has deferred.
    fn advance(&mut self) -> io::Result<()> {
        let queue = self.ring.submission();
        let is_due = queue.len() >= BATCH_SIZE || queue.taskrun() || queue.cq_overflow();
        drop(queue);
        if is_due { taken(self.ring.submit()) } else { Ok(()) }
    }

    /// Hands over what is queued, and sleeps until there is a request or a completion.
    fn sleep(&mut self) -> io::Result<()> {
        if self.place == LoopPlace::Guest || self.session.outstanding() > 0 {
            // Asked for anew before each sleep: the session arms itself by it.
            let descriptor = self.session.completion_fd().as_raw_fd();
            if !self.polled.contains(&descriptor) {
                let flags = PollFlags::IN.bits().into();
                let entry = opcode::PollAdd::new(types::Fd(descriptor), flags).build();
                let mark = POLL_MARK | u64::from(descriptor.cast_unsigned());
                self.polled.push(descriptor);
                self.push_entry(&entry.user_data(mark));
            }
        }
        taken(self.ring.submit_and_wait(1))
    }

    fn push_entry(&mut self, entry: &squeue::Entry) {
        // SAFETY: a poll points to nothing. The buffer of a command, if the kernel is given one,
        // has the size of the largest request, and stays in its slot until the command is
        // answered; the slots outlive the ring.
        let pushed = unsafe { self.ring.submission().push(entry) };
        assert!(pushed.is_ok(), "the ring has room for a command of every slot, and a few polls");
    }
}

/// Leaves only those errors after which the ring is of no use.
fn taken(entered: io::Result<usize>) -> io::Result<()> {
    match entered {
        Ok(_) => Ok(()),
        Err(error) => match error.raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
            _ => Err(error),
        },
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.live > 0 {
            // The kernel may still answer, into buffers that it knows.
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}

impl Slot {
    fn new(shape: Shape) -> Slot {
        let buffer = match shape.copy {
            Copy::ByDriver => Buffer::zeroed(shape.io_size_max as usize),
            Copy::ByDaemon => Buffer::empty(),
        };
        Slot { buffer, ..Slot::default() }
    }
}

fn ring(depth: u16) -> io::Result<IoUring> {
    let entries = (u32::from(depth) + POLL_COUNT_MAX).next_power_of_two();
    let mut refusal = io::Error::from_raw_os_error(libc::ENOSYS);
    for setup in SETUPS {
        let mut builder = IoUring::builder();
        setup(&mut builder);
        match builder.dontfork().build(entries) {
            Ok(ring) => return Ok(ring),
            // The kernel does not know one of the flags.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refusal = error,
            Err(error) => return Err(error),
        }
    }
    Err(refusal)
}

/// The requests by tag, in memory that the kernel writes.
pub(super) struct Descriptors {
    start: *mut c_void,
    size: usize,
    count: u16,
}

impl Descriptors {
    pub(super) fn map(device: &OwnedFd, count: u16) -> io::Result<Descriptors> {
        let size = (usize::from(count) * size_of::<IoDescriptor>()).next_multiple_of(4096);
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice harms nobody.
        let start =
            unsafe { mmap(std::ptr::null_mut(), size, ProtFlags::READ, flags, device.as_fd(), 0)? };
        Ok(Descriptors { start, size, count })
    }

    /// The request of a slot, whose fetch was answered.
    fn read(&self, tag: u16) -> IoDescriptor {
        assert!(tag < self.count, "the kernel names slots that it was offered");
        let first = self.start.cast::<IoDescriptor>();
        // SAFETY: the mapping holds `count` descriptors, any bytes are valid ones, and the kernel
        // writes this one only while it has the slot, which it gave away with the answer.
        unsafe { first.add(usize::from(tag)).read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this size; nothing borrows from it.
        let _ = unsafe { munmap(self.start, self.size) };
    }
}
