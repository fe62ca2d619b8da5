//! The thread between `/dev/fuse` and a session.
//!
//! Each turn reads all messages of the kernel (with one system call each, because the protocol has
//! no batches), submits them with one kick, and replies to completed ones.
//!
//! # Invariants
//! - A payload is read next to its header straight into buffers that a session may have: the first
//!   block into one of a block, the rest into one of the largest size. A single block goes on as it
//!   is, and so does what is large, once its first block is put in front. What is between the two
//!   is copied, so that it does not hold a large buffer.
//! - All buffers are allocated at the start ([`STOCK`]), because most messages arrive when memory
//!   is low.
//! - Every message that wants a reply gets one, unless the mount is gone.

use super::node::{Answer, Nodes, WRITE_SIZE_MAX};
use super::wire::{
    InHeader, Message, OUT_HEADER_SIZE, WRITE_HEADER_SIZE, opcode, out_header, write_body,
};
use coulter::buffer::Buffer;
use coulter::service::{BLOCK_SIZE, Completion, Operation, Request, SECTOR_SIZE, Session};
use coulter_attach::hosting::LoopPlace;
use coulter_attach::linger::Linger;
use coulter_attach::pool::BufferPool;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

/// Requests in flight in the session.
const REQUEST_COUNT_MAX: usize = 512;
/// The buffers: 17 MiB, with ten for the largest message and two for the next message. Any message
/// may need a large buffer, so no message is read while none is free; the kernel waits then.
const STOCK: [(usize, usize); 4] =
    [(FIRST_SIZE, 129), (64 << 10, 40), (256 << 10, 12), (WRITE_SIZE_MAX, 11)];
/// Messages read before completions are checked.
const BATCH_MAX: usize = 64;
/// Size in bytes of the replies that are sent in one piece: replies to writes.
const SHORT_REPLY_SIZE_MAX: usize = 32;
/// Bytes of a payload that are read apart from the rest: those of most writes.
const FIRST_SIZE: usize = BLOCK_SIZE as usize;
/// Bytes of a page of memory where the kernel cuts writes by pages and not by bytes.
const PAGE_SIZE: usize = 4096;
/// Payloads of this size and more stay in the buffer that they were read into.
const HAND_OVER_SIZE_MIN: usize = 256 << 10;

pub(super) struct Pump {
    device: OwnedFd,
    /// Readable when the mount is to end.
    stop: OwnedFd,
    session: Box<dyn Session>,
    place: LoopPlace,
    nodes: Nodes,
    pool: BufferPool,
    /// Where the first block of the next message's payload goes.
    first: Buffer,
    /// Where the rest of it goes, behind room for the first block.
    staging: Buffer,
    pending: Vec<Pending>,
    idle_tags: Vec<u64>,
    completions: Vec<Completion>,
    submitted: usize,
    linger: Linger,
}

#[derive(Clone)]
struct Pending {
    unique: u64,
    /// What the reply carries.
    reply: ReplyBody,
}

#[derive(Clone)]
enum ReplyBody {
    Nothing,
    /// This part of the buffer: the request may have been widened to whole sectors.
    Content(Range<usize>),
    /// The size of a write.
    Written(u32),
}

/// The result of reading the device.
enum Taken {
    Message,
    Nothing,
    /// The mount is gone.
    End,
}

impl Pump {
    /// A pump between `device`, which must not block, and `session`. It ends when the mount is gone
    /// or `stop` is readable.
    pub(super) fn new(
        device: OwnedFd,
        stop: OwnedFd,
        session: Box<dyn Session>,
        place: LoopPlace,
        nodes: Nodes,
    ) -> Pump {
        let nothing = Pending { unique: 0, reply: ReplyBody::Nothing };
        let mut pool = BufferPool::stocked(&STOCK);
        let (first, staging) = (pool.take(FIRST_SIZE), pool.take(WRITE_SIZE_MAX));
        Pump {
            device,
            stop,
            session,
            place,
            nodes,
            pool,
            first,
            staging,
            pending: vec![nothing; REQUEST_COUNT_MAX],
            idle_tags: (0..REQUEST_COUNT_MAX as u64).rev().collect(),
            completions: Vec::with_capacity(REQUEST_COUNT_MAX),
            submitted: 0,
            linger: Linger::default(),
        }
    }

    /// Serves until the end, and finishes all submitted requests. Closing the device at the return
    /// fails all other requests.
    pub(super) fn run(mut self) {
        loop {
            let mut taken = 0;
            while taken < BATCH_MAX && self.has_room() {
                match self.take_message() {
                    Taken::Message => taken += 1,
                    Taken::Nothing => break,
                    Taken::End => return self.finish(),
                }
            }
            if self.submitted > 0 {
                self.submitted = 0;
                self.session.kick();
            }
            let completed = self.handle_completions(Some(Duration::ZERO));
            if taken > 0 || completed {
                self.linger.found(Instant::now);
            } else if self.linger.looks_again(Instant::now()) {
                thread::yield_now();
            } else if self.sleep() {
                return self.finish();
            }
        }
    }

    fn finish(mut self) {
        self.session.kick();
        while self.session.outstanding() > 0 {
            self.handle_completions(Some(Duration::from_millis(100)));
        }
    }

    fn has_room(&self) -> bool {
        !self.idle_tags.is_empty() && self.pool.can_take(WRITE_SIZE_MAX)
    }

    /// Sleeps until there is work. Returns whether to stop.
    fn sleep(&self) -> bool {
        let flags = if self.has_room() { PollFlags::IN } else { PollFlags::empty() };
        // Asked for anew before each sleep, so that a session may use the call to arm itself.
        let completions = self.session.completion_fd();
        // A session that is over has nothing to say, and says so for ever.
        let waits = self.place == LoopPlace::Guest || self.session.outstanding() > 0;
        let wanted = if waits { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = [
            PollFd::new(&self.stop, PollFlags::IN),
            PollFd::new(&self.device, flags),
            PollFd::from_borrowed_fd(completions, wanted),
        ];
        // An interrupted sleep only means one more turn.
        let _ = poll(&mut fds, None);
        let gone = fds[1].revents().intersects(PollFlags::ERR);
        gone || fds[0].revents().intersects(PollFlags::IN)
    }

    fn take_message(&mut self) -> Taken {
        let mut head = [0; WRITE_HEADER_SIZE];
        let slices = &mut [
            IoSliceMut::new(&mut head),
            IoSliceMut::new(&mut self.first),
            IoSliceMut::new(&mut self.staging[FIRST_SIZE..]),
        ];
        let length = match rustix::io::readv(&self.device, slices) {
            Ok(length) => length,
            Err(Errno::AGAIN) => return Taken::Nothing,
            // The request was taken back while it was being read; there may be others.
            Err(Errno::INTR | Errno::NOENT) => return Taken::Message,
            Err(_) => return Taken::End,
        };
        let beyond = length.saturating_sub(WRITE_HEADER_SIZE);
        let head = &head[..length.min(WRITE_HEADER_SIZE)];
        let Some((header, body)) = InHeader::decode(head) else { return Taken::End };
        if beyond == 0 || header.opcode == opcode::WRITE {
            self.dispatch(header, Message::decode(header.opcode, body), beyond);
        } else {
            // A long name or the like, which is rare.
            let first = beyond.min(FIRST_SIZE);
            let rest = &self.staging[FIRST_SIZE..FIRST_SIZE + beyond - first];
            let body = [body, &self.first[..first], rest].concat();
            self.dispatch(header, Message::decode(header.opcode, &body), 0);
        }
        Taken::Message
    }

    fn dispatch(&mut self, header: InHeader, message: Option<Message<'_>>, payload_size: usize) {
        let outcome = match message {
            None => Some(Err(libc::EINVAL)),
            Some(Message::Read { offset, size }) => self.read(header, offset, size),
            Some(Message::Write { offset, size, flags }) if size as usize == payload_size => {
                self.write(header, offset, size, flags)
            }
            Some(Message::Write { .. }) => Some(Err(libc::EINVAL)),
            Some(Message::Fsync) => {
                self.submit(header, Operation::Flush, 0..0, Buffer::empty(), ReplyBody::Nothing);
                None
            }
            Some(Message::Fallocate { offset, length, mode }) => {
                self.fallocate(header, offset, length, mode)
            }
            Some(message) => self.nodes.answer(header, message),
        };
        if let Some(answer) = outcome {
            self.reply(header.unique, answer);
        }
    }

    /// Submits the read, widened to whole sectors. A read beyond the end returns fewer bytes or
    /// none.
    fn read(&mut self, header: InHeader, offset: u64, size: u32) -> Option<Answer> {
        let end = offset.saturating_add(u64::from(size)).min(self.nodes.size);
        if offset >= end {
            return Some(Ok(Vec::new()));
        }
        let range = offset / SECTOR_SIZE * SECTOR_SIZE..end.next_multiple_of(SECTOR_SIZE);
        let length = (range.end - range.start) as usize;
        if length > WRITE_SIZE_MAX + SECTOR_SIZE as usize {
            return Some(Err(libc::EINVAL));
        }
        let content = (offset - range.start) as usize..(end - range.start) as usize;
        let buffer = self.pool.take(length);
        self.submit(header, Operation::Read, range, buffer, ReplyBody::Content(content));
        None
    }

    fn write(&mut self, header: InHeader, offset: u64, size: u32, flags: u32) -> Option<Answer> {
        if self.nodes.read_only {
            return Some(Err(libc::EROFS));
        }
        // The kernel cuts a long write where a page of the writer's memory ends, which may be within a
        // sector. What is whole is taken, and the writer comes back with the rest.
        let is_cut = size as usize > WRITE_SIZE_MAX - PAGE_SIZE;
        let size = if is_cut { size - size % SECTOR_SIZE as u32 } else { size };
        let range = match self.range(offset, u64::from(size)) {
            Ok(range) => range,
            Err(errno) => return Some(Err(errno)),
        };
        let buffer = self.take_payload(size as usize);
        let fua = flags & (libc::O_DSYNC | libc::O_SYNC) as u32 != 0;
        self.submit(header, Operation::Write { fua }, range, buffer, ReplyBody::Written(size));
        None
    }

    /// The payload of `length` bytes that was read last.
    fn take_payload(&mut self, length: usize) -> Buffer {
        if length <= FIRST_SIZE {
            let next = self.pool.take(FIRST_SIZE);
            let mut buffer = std::mem::replace(&mut self.first, next);
            buffer.set_length(length);
            buffer
        } else if length >= HAND_OVER_SIZE_MIN {
            let next = self.pool.take(WRITE_SIZE_MAX);
            let mut buffer = std::mem::replace(&mut self.staging, next);
            buffer[..FIRST_SIZE].copy_from_slice(&self.first);
            buffer.set_length(length);
            buffer
        } else {
            let mut buffer = self.pool.take(length);
            let (first, rest) = buffer.split_at_mut(FIRST_SIZE);
            first.copy_from_slice(&self.first);
            rest.copy_from_slice(&self.staging[FIRST_SIZE..length]);
            buffer
        }
    }

    fn fallocate(
        &mut self,
        header: InHeader,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> Option<Answer> {
        const PUNCH: u32 = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u32;
        const ZERO: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;
        const ZERO_KEEP: u32 = ZERO | libc::FALLOC_FL_KEEP_SIZE as u32;
        let operation = match mode {
            PUNCH => Operation::Discard,
            ZERO | ZERO_KEEP => Operation::WriteZeroes { fua: false },
            // Never ENOSYS: the kernel would then refuse every mode, discards included.
            _ => return Some(Err(libc::EOPNOTSUPP)),
        };
        if self.nodes.read_only {
            return Some(Err(libc::EROFS));
        }
        let range = match self.range(offset, length) {
            Ok(range) => range,
            Err(errno) => return Some(Err(errno)),
        };
        self.submit(header, operation, range, Buffer::empty(), ReplyBody::Nothing);
        None
    }

    /// The bytes from `offset` on, if they are whole sectors of the volume.
    fn range(&self, offset: u64, length: u64) -> Result<Range<u64>, i32> {
        if !offset.is_multiple_of(SECTOR_SIZE) || !length.is_multiple_of(SECTOR_SIZE) {
            return Err(libc::EINVAL);
        }
        match offset.checked_add(length) {
            Some(end) if end <= self.nodes.size => Ok(offset..end),
            _ => Err(libc::ENOSPC),
        }
    }

    fn submit(
        &mut self,
        header: InHeader,
        operation: Operation,
        range: Range<u64>,
        buffer: Buffer,
        reply: ReplyBody,
    ) {
        let Some(tag) = self.idle_tags.pop() else {
            unreachable!("room was checked before the message was taken")
        };
        self.pending[tag as usize] = Pending { unique: header.unique, reply };
        self.submitted += 1;
        let (offset, length) = (range.start, range.end - range.start);
        self.session.submit(Request { tag, operation, offset, length, buffer });
    }

    /// Replies to completed requests. Returns whether there were any.
    fn handle_completions(&mut self, timeout: Option<Duration>) -> bool {
        let mut completions = std::mem::take(&mut self.completions);
        self.session.complete(&mut completions, timeout);
        let any = !completions.is_empty();
        completions.drain(..).for_each(|completion| self.handle_completion(completion));
        self.completions = completions;
        any
    }

    fn handle_completion(&mut self, completion: Completion) {
        let Completion { tag, result, buffer, .. } = completion;
        let pending = self.pending[tag as usize].clone();
        self.idle_tags.push(tag);
        assert!(self.idle_tags.len() <= REQUEST_COUNT_MAX, "a request completes once");
        match (result, pending.reply) {
            (Err(error), _) => self.send(pending.unique, error.errno(), &[]),
            (Ok(()), ReplyBody::Nothing) => self.send(pending.unique, 0, &[]),
            (Ok(()), ReplyBody::Content(range)) => self.send(pending.unique, 0, &buffer[range]),
            (Ok(()), ReplyBody::Written(size)) => self.send(pending.unique, 0, &write_body(size)),
        }
        self.pool.give(buffer);
    }

    fn reply(&self, unique: u64, answer: Answer) {
        match answer {
            Ok(body) => self.send(unique, 0, &body),
            Err(errno) => self.send(unique, errno, &[]),
        }
    }

    fn send(&self, unique: u64, errno: i32, body: &[u8]) {
        let header = out_header(unique, errno, body.len());
        let whole = OUT_HEADER_SIZE + body.len();
        // It fails when the request was cancelled or the mount is gone; no process waits for the
        // reply then.
        if whole <= SHORT_REPLY_SIZE_MAX {
            // In one piece: the kernel pins the pages of each piece.
            let mut reply = [0; SHORT_REPLY_SIZE_MAX];
            reply[..OUT_HEADER_SIZE].copy_from_slice(&header);
            reply[OUT_HEADER_SIZE..whole].copy_from_slice(body);
            while let Err(Errno::INTR) = rustix::io::write(&self.device, &reply[..whole]) {}
        } else {
            let slices = [IoSlice::new(&header), IoSlice::new(body)];
            while let Err(Errno::INTR) = rustix::io::writev(&self.device, &slices) {}
        }
    }
}
