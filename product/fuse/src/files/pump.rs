//! The thread between `/dev/fuse`, the file system and the volume's session.
//!
//! Each turn reads the kernel's messages, runs the file system, submits its commands to the volume
//! with one kick, and replies to completed messages. The thread sleeps on the kernel and on the
//! session at once.
//!
//! # Invariants
//! - All payload buffers are allocated at the start, because most messages arrive when memory is
//!   low.
//! - Every message that wants a reply gets one, unless the mount is gone.
//! - At its end all acknowledged operations are durable, or it reports that they are not.

use super::answers::{Agreed, Body};
use super::commands::{io_error, submit};
use super::message::{
    HEADER_SIZE, Header, Message, SETTLE_IOCTL, SYNC_IOCTL, WRITE_HEADER_SIZE, opcode,
};
use super::requests::{Asked, changes, name_request};
use super::writers::Writers;
use coulter::buffer::Buffer;
use coulter::service::{Completion, Session};
use coulter_attach::hosting::LoopPlace;
use coulter_attach::linger::Linger;
use coulter_attach::pool::BufferPool;
use coulter_files::{
    Ending, FileService, Io, IoError, Name, Reply, Request, Response, Time, read_span,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The notification that attributes, and pages from an offset on, are not valid any more.
const NOTIFY_INVAL_INODE: i32 = 2;
/// Messages in flight at a time.
const PENDING_MAX: usize = 1024;
/// Bytes of one read or write.
pub(super) const WRITE_SIZE_MAX: usize = 1 << 20;
/// The buffers; see the pump of one file.
const STOCK: [(usize, usize); 5] =
    [(4096, 512), (64 << 10, 48), (256 << 10, 16), (WRITE_SIZE_MAX, 12), (2 * WRITE_SIZE_MAX, 2)];
/// Messages read before completions are checked.
const BATCH_MAX: usize = 64;
/// Payloads of this size and more stay in the buffer that they were read into.
const HAND_OVER_SIZE_MIN: usize = 256 << 10;
/// How often it is looked whether the volume lacks space while commands are out.
const LOOK_PERIOD_NS: u64 = 1_000_000_000;
/// How long the end of a mount waits for the volume at a time.
const END_PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy)]
struct Pending {
    unique: u64,
    asked: Asked,
}

/// The result of reading the device.
enum Taken {
    Message,
    Nothing,
    /// The mount is gone.
    End,
}

pub(super) struct Pump {
    device: OwnedFd,
    /// Readable when the mount is to end.
    stop: OwnedFd,
    session: Box<dyn Session>,
    place: LoopPlace,
    files: Box<dyn FileService>,
    writes_back: bool,
    writers: Writers,
    /// Set once the mount is to end soon.
    hurries: Arc<AtomicBool>,
    /// Whether a file that a program opens with `O_DIRECT` passes the page cache by.
    opens_direct: bool,
    /// Whether requests to set an attribute have their longer form.
    long_set_xattr: bool,
    pool: BufferPool,
    /// Where the next message's payload goes.
    staging: Buffer,
    pending: Vec<Option<Pending>>,
    idle: Vec<usize>,
    completions: Vec<Completion>,
    body: Body,
    begun: Instant,
    deadline_ns: Option<u64>,
    linger: Linger,
}

impl Pump {
    pub(super) fn new(
        device: OwnedFd,
        stop: OwnedFd,
        mut session: Box<dyn Session>,
        place: LoopPlace,
        files: Box<dyn FileService>,
        writes_back: bool,
        hurries: Arc<AtomicBool>,
    ) -> Pump {
        let mut pool = BufferPool::stocked(&STOCK);
        let staging = pool.take(WRITE_SIZE_MAX);
        session.hold_writes();
        Pump {
            device,
            stop,
            session,
            place,
            files,
            writes_back,
            writers: Writers::new(writes_back),
            hurries,
            opens_direct: false,
            long_set_xattr: false,
            pool,
            staging,
            pending: vec![None; PENDING_MAX],
            idle: (0..PENDING_MAX).rev().collect(),
            completions: Vec::with_capacity(PENDING_MAX),
            body: Body(Vec::with_capacity(WRITE_SIZE_MAX)),
            begun: Instant::now(),
            deadline_ns: None,
            linger: Linger::default(),
        }
    }

    /// Serves until the mount is gone or `stop` is readable. Then everything is made durable.
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
            self.deadline_ns = self.files.handle_time(self.now_ns());
            let worked = self.work(Some(Duration::ZERO));
            if taken > 0 || worked {
                self.linger.found(Instant::now);
            } else if self.linger.looks_again(Instant::now()) {
                thread::yield_now();
            } else if self.sleep() {
                return self.finish();
            }
        }
    }

    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    /// Submits commands, takes completions, sends replies. Returns whether there was any work.
    fn work(&mut self, timeout: Option<Duration>) -> bool {
        self.files.handle_wake();
        self.files.handle_space(self.session.lacks_space());
        let mut any = self.submit_ios();
        let mut completions = std::mem::take(&mut self.completions);
        self.session.complete(&mut completions, timeout);
        any |= !completions.is_empty();
        for completion in completions.drain(..) {
            let Completion { tag, result, buffer, .. } = completion;
            self.files.handle_completion(tag as u32, result.map_err(io_error), buffer);
        }
        self.completions = completions;
        any |= self.submit_ios();
        while let Some(response) = self.files.poll_response() {
            any = true;
            self.handle_response(response);
        }
        any
    }

    fn submit_ios(&mut self) -> bool {
        let mut any = false;
        while let Some(Io { id, command }) = self.files.poll_io() {
            any = true;
            let refused = submit(&mut *self.session, id, command);
            if let Err(buffer) = refused {
                self.files.handle_completion(id, Err(IoError::Failed(libc::EOPNOTSUPP)), buffer);
            }
        }
        if any {
            self.session.kick();
        }
        any
    }

    fn finish(mut self) {
        if let Some(slot) = self.idle.pop() {
            self.pending[slot] = Some(Pending { unique: 0, asked: Asked::Nobody });
            let ending = match self.hurries.load(Ordering::Acquire) {
                true => Ending::Stopped,
                false => Ending::Unmounted,
            };
            self.files.handle_end(slot as u64, ending, now());
        }
        loop {
            self.work(Some(END_PAUSE));
            if self.files.is_quiet() && self.session.outstanding() == 0 {
                return;
            }
            if self.session.lacks_space() {
                // It may never come. Closing the volume tells what is not durable.
                return;
            }
        }
    }

    fn has_room(&self) -> bool {
        let is_ready = !self.idle.is_empty() && self.pool.can_take(WRITE_SIZE_MAX);
        is_ready && !self.files.is_congested()
    }

    /// Sleeps until there is work. Returns whether to stop.
    fn sleep(&self) -> bool {
        let flags = if self.has_room() { PollFlags::IN } else { PollFlags::empty() };
        // Asked for anew before each sleep, so that a session may use the call to arm itself.
        let completions = self.session.completion_fd();
        // A session that is over has nothing to say, and says so for ever.
        let waits = self.place == LoopPlace::Guest || self.session.outstanding() > 0;
        let wanted = if waits { PollFlags::IN } else { PollFlags::empty() };
        let stop = PollFd::new(&self.stop, PollFlags::IN);
        let device = PollFd::new(&self.device, flags);
        let session = PollFd::from_borrowed_fd(completions, wanted);
        let wake = self.files.wake_fd();
        let others = wake.map(|wake| PollFd::from_borrowed_fd(wake, PollFlags::IN));
        let count = 3 + usize::from(others.is_some());
        let last = others.unwrap_or_else(|| PollFd::new(&self.stop, PollFlags::IN));
        let mut fds = [stop, device, session, last];
        // The volume does not wake this thread when it gives up waiting for space.
        let look_ns = (self.session.outstanding() > 0).then(|| self.now_ns() + LOOK_PERIOD_NS);
        let due = [self.deadline_ns, look_ns].into_iter().flatten().min();
        let left = due.map(|at| {
            let left = at.saturating_sub(self.now_ns()).max(100_000);
            Timespec {
                tv_sec: (left / 1_000_000_000) as i64,
                tv_nsec: (left % 1_000_000_000) as i64,
            }
        });
        // An interrupted sleep only means one more turn.
        let _ = poll(&mut fds[..count], left.as_ref());
        let gone = fds[1].revents().intersects(PollFlags::ERR);
        gone || fds[0].revents().intersects(PollFlags::IN)
    }

    fn take_message(&mut self) -> Taken {
        let mut head = [0; WRITE_HEADER_SIZE];
        let slices = &mut [IoSliceMut::new(&mut head), IoSliceMut::new(&mut self.staging)];
        let length = match rustix::io::readv(&self.device, slices) {
            Ok(length) => length,
            Err(Errno::AGAIN) => return Taken::Nothing,
            // The request was taken back while it was being read; there may be others.
            Err(Errno::INTR | Errno::NOENT) => return Taken::Message,
            Err(_) => return Taken::End,
        };
        let beyond = length.saturating_sub(WRITE_HEADER_SIZE);
        let head = &head[..length.min(WRITE_HEADER_SIZE)];
        let Some((header, body)) = Header::decode(head) else { return Taken::End };
        if header.opcode == opcode::WRITE {
            match Message::decode(header.opcode, body, self.long_set_xattr) {
                Some(Message::Write { offset, size, kills, sync }) if size as usize == beyond => {
                    let buffer = self.take_payload(beyond);
                    let kills_privileges = kills;
                    let request = Request::Write {
                        inode: header.node,
                        offset,
                        buffer,
                        kills_privileges,
                        sync,
                    };
                    self.ask(header, Asked::Written, request);
                }
                _ => self.send(header.unique, libc::EINVAL, &[]),
            }
            return Taken::Message;
        }
        if beyond == 0 {
            self.dispatch(header, Message::decode(header.opcode, body, self.long_set_xattr));
        } else {
            // Names, values and lists that are longer than a write's header.
            let staging = std::mem::take(&mut self.staging);
            let whole = [body, &staging[..beyond]].concat();
            self.staging = staging;
            self.dispatch(header, Message::decode(header.opcode, &whole, self.long_set_xattr));
        }
        Taken::Message
    }

    /// The payload that was read last.
    fn take_payload(&mut self, length: usize) -> Buffer {
        if length >= HAND_OVER_SIZE_MIN {
            let next = self.pool.take(WRITE_SIZE_MAX);
            let mut buffer = std::mem::replace(&mut self.staging, next);
            buffer.set_length(length);
            buffer
        } else {
            let mut buffer = self.pool.take(length);
            buffer.copy_from_slice(&self.staging[..length]);
            buffer
        }
    }

    fn dispatch(&mut self, header: Header, message: Option<Message<'_>>) {
        let Some(message) = message else { return self.send(header.unique, libc::EINVAL, &[]) };
        match message {
            Message::Init { major, minor, readahead_max, flags } => {
                let (version, size) = ((major, minor), WRITE_SIZE_MAX as u32);
                let agreed = self.body.init(version, readahead_max, flags, self.writes_back, size);
                self.opens_direct = agreed.is_ok_and(Agreed::opens_direct);
                self.long_set_xattr = agreed.is_ok_and(Agreed::has_long_set_xattr);
                self.send_body(header.unique, agreed.map(|_| ()));
            }
            Message::Forget(forgets) => {
                forgets.each(header.node, |node, lookups| self.files.forget(node, lookups));
            }
            Message::Silent => {}
            Message::Open { access, is_direct } => {
                if self.writers.open(header.node, access) {
                    self.drop_attributes(header.node);
                }
                self.body.open(is_direct && self.opens_direct);
                if !self.send_body(header.unique, Ok(())) {
                    self.writers.release(header.node, access);
                }
            }
            Message::Release { access } => {
                self.writers.release(header.node, access);
                self.send(header.unique, 0, &[]);
            }
            // Only the kernel knows what it has not written back: then it finds no holes at all.
            Message::Seek { .. } if self.writes_back => self.send(header.unique, libc::ENOSYS, &[]),
            Message::Nothing | Message::Destroy => self.send(header.unique, 0, &[]),
            Message::Unknown => self.send(header.unique, libc::ENOSYS, &[]),
            Message::Ioctl { command } if ![SYNC_IOCTL, SETTLE_IOCTL].contains(&command) => {
                self.send(header.unique, libc::ENOTTY, &[]);
            }
            Message::Read { offset, size } if size as usize > WRITE_SIZE_MAX => {
                let _ = offset;
                self.send(header.unique, libc::EINVAL, &[]);
            }
            message => match self.request(header, message) {
                Ok((asked, request)) => self.ask(header, asked, request),
                Err(errno) => self.send(header.unique, errno, &[]),
            },
        }
    }

    /// The message as a request, and how its answer looks.
    fn request(&mut self, header: Header, message: Message<'_>) -> Result<(Asked, Request), i32> {
        let (node, directory) = (header.node, header.node);
        let inode = node;
        Ok(match message {
            Message::Lookup { name } => {
                (Asked::Lookup, Request::Lookup { directory, name: Name::new(name)? })
            }
            Message::GetAttributes => (Asked::Attributes, Request::Attributes { inode }),
            Message::Statx => (Asked::Statx, Request::Attributes { inode }),
            Message::SetAttributes(set) => {
                (Asked::Attributes, Request::Change { inode, changes: changes(&set) })
            }
            Message::Read { offset, size } => {
                let buffer = self.pool.take(read_span(offset, size));
                (Asked::Data, Request::Read { inode, offset, length: size, buffer })
            }
            Message::Sync => (Asked::Done, Request::SyncNode { inode }),
            Message::Ioctl { command: SETTLE_IOCTL } if header.uid != 0 => return Err(libc::EPERM),
            Message::Ioctl { command: SETTLE_IOCTL } => (Asked::Ioctl, Request::Settle),
            // Others have their file synced, as `fsync` does for all who have it open.
            Message::Ioctl { .. } if header.uid != 0 => (Asked::Ioctl, Request::SyncNode { inode }),
            Message::Ioctl { .. } => (Asked::Ioctl, Request::Sync),
            Message::StatFs => (Asked::Usage, Request::Statistics),
            Message::List { cookie, size, plus } => {
                let size = size.min(WRITE_SIZE_MAX as u32);
                let request = Request::List { directory, cookie, size, with_attributes: plus };
                (Asked::Listing { plus }, request)
            }
            Message::Allocate { offset, length, mode } => {
                // Never ENOSYS: the kernel would then refuse every mode.
                let mode = mode.ok_or(libc::EOPNOTSUPP)?;
                (Asked::Done, Request::Allocate { inode, offset, length, mode })
            }
            Message::Seek { offset, whence } => {
                let whence = whence.ok_or(libc::EINVAL)?;
                (Asked::Offset, Request::Seek { inode, offset, whence })
            }
            Message::Copy { from_offset, to, to_offset, length, is_long } => {
                let request = Request::Copy { from: node, from_offset, to, to_offset, length };
                (Asked::Copied { is_long }, request)
            }
            message => return name_request(header, message),
        })
    }

    fn ask(&mut self, header: Header, asked: Asked, request: Request) {
        let Some(slot) = self.idle.pop() else {
            unreachable!("room was checked before the message was taken")
        };
        self.pending[slot] = Some(Pending { unique: header.unique, asked });
        self.files.handle_request(slot as u64, request, now());
    }

    fn handle_response(&mut self, response: Response) {
        let Response { id, result, buffer } = response;
        let pending = self.pending[id as usize].take();
        let Some(Pending { unique, asked }) = pending else {
            unreachable!("a request is answered once")
        };
        self.idle.push(id as usize);
        self.pool.give(buffer);
        match (asked, result) {
            (Asked::Nobody, _) => {}
            (Asked::Lookup, Err(libc::ENOENT)) => {
                self.body.no_entry();
                self.send_body(unique, Ok(()));
            }
            (_, Err(errno)) => self.send(unique, errno, &[]),
            (Asked::Data, Ok(Reply::Data(buffer, range))) => {
                self.send(unique, 0, &buffer[range]);
                self.pool.give(buffer);
            }
            (Asked::Written, Ok(Reply::Written(count, buffer))) => {
                self.pool.give(buffer);
                self.body.clear().u32(count).u32(0);
                self.send_body(unique, Ok(()));
            }
            (asked, Ok(reply)) => {
                let opened = match (asked, &reply) {
                    (Asked::Entry { opens }, Reply::Entry(entry)) => opens.zip(Some(entry.number)),
                    _ => None,
                };
                // Before its attributes are told.
                if let Some((access, node)) = opened {
                    self.writers.open(node, access);
                }
                let result = self.encode(asked, &reply);
                let is_taken = self.send_body(unique, result);
                if let (false, Reply::Entry(entry)) = (is_taken, &reply) {
                    // The kernel never heard of it.
                    self.files.forget(entry.number, 1);
                    if let Some((access, node)) = opened {
                        self.writers.release(node, access);
                    }
                }
            }
        }
    }

    /// The bytes of an answer in `body`; or an error number.
    fn encode(&mut self, asked: Asked, reply: &Reply) -> Result<(), i32> {
        let (body, writers) = (&mut self.body, &self.writers);
        match (asked, reply) {
            (Asked::Lookup, Reply::Entry(found)) => body.entry(found, false, writers),
            (Asked::Entry { opens }, Reply::Entry(found)) => {
                body.entry(found, opens.is_some(), writers);
            }
            (Asked::Attributes, Reply::Attributes(found)) => body.attributes(found, writers),
            (Asked::Statx, Reply::Attributes(found)) => body.statx(found, writers),
            (Asked::Copied { is_long: false }, Reply::Written(count, _)) => {
                body.clear().u32(*count).u32(0);
            }
            (Asked::Copied { is_long: true }, Reply::Written(count, _)) => {
                body.clear().u64((*count).into());
            }
            (Asked::Link, Reply::Bytes(bytes)) => body.clear().0.extend_from_slice(bytes),
            (Asked::Value { size: 0 }, Reply::Bytes(bytes)) => {
                body.clear().u32(bytes.len() as u32).u32(0);
            }
            (Asked::Value { size }, Reply::Bytes(bytes)) => {
                if bytes.len() > size as usize {
                    return Err(libc::ERANGE);
                }
                body.clear().0.extend_from_slice(bytes);
            }
            (Asked::Offset, Reply::Offset(offset)) => {
                body.clear().u64(*offset);
            }
            (Asked::Listing { plus }, Reply::Listing(listing)) => {
                body.listing(listing, plus, writers)
            }
            (Asked::Usage, Reply::Usage(usage)) => body.usage(usage),
            (Asked::Done, _) => {
                body.clear();
            }
            (Asked::Ioctl, _) => {
                body.clear().u64(0).u64(0);
            }
            (asked, reply) => unreachable!("{reply:?} is no answer to {asked:?}"),
        }
        Ok(())
    }

    /// Sends `body` or an error. Returns whether the kernel accepted it.
    fn send_body(&mut self, unique: u64, result: Result<(), i32>) -> bool {
        match result {
            Ok(()) => reply(&self.device, unique, 0, &self.body.0),
            Err(errno) => reply(&self.device, unique, errno, &[]),
        }
    }

    /// Has the kernel ask for the attributes of a node again. Its pages stay.
    fn drop_attributes(&self, node: u64) {
        let mut body = [0xff; 24];
        body[..8].copy_from_slice(&node.to_ne_bytes());
        // A notification has its kind in the place of the error. An unknown node has none to drop.
        reply(&self.device, 0, -NOTIFY_INVAL_INODE, &body);
    }

    fn send(&self, unique: u64, errno: i32, body: &[u8]) {
        reply(&self.device, unique, errno, body);
    }
}

/// Sends a reply. The kernel rejects it when the request was cancelled or the mount is gone.
fn reply(device: &OwnedFd, unique: u64, errno: i32, body: &[u8]) -> bool {
    let header = crate::wire::out_header(unique, errno, body.len());
    let slices = [IoSlice::new(&header), IoSlice::new(body)];
    loop {
        match rustix::io::writev(device, &slices) {
            Err(Errno::INTR) => {}
            result => return result.is_ok(),
        }
    }
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
}

const _: () = assert!(HEADER_SIZE < WRITE_HEADER_SIZE);
