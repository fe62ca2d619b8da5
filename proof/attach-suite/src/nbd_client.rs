//! An NBD client that is a [`Session`]: whatever speaks to a volume can speak to a server instead.
//!
//! Many requests may be under way at a time; nothing waits but [`Session::complete`].
//!
//! A caller that sleeps outside asks for [`Session::completion_fd`] anew before each sleep: which
//! descriptor it is depends on what the client waits for.
//!
//! # What it does not do
//! It does not reconnect: when the server goes, all requests complete with
//! [`RequestError::Closed`]. A `Discard` or `WriteZeroes` of 4 GiB or more is refused, since the
//! protocol cannot say it.
//!
//! # Invariants
//! - No bytes from the server make it panic; those that make no sense end the connection.
//! - Every request completes once, its buffer with it, whatever the server does.

use coulter::buffer::Buffer;
use coulter::service::{
    Completion, Extent, Operation, Request, RequestError, SECTOR_SIZE, Session,
};
use coulter_net::nbd::wire::{
    ChunkHeader, Cursor, ReplyHeader, RequestHeader, chunk, command, command_flag, extent_state,
    transmission_flag,
};
use coulter_net::nbd::{ClientError, ClientOptions, Terms, errno, negotiate, open};
use coulter_net::socket::timespec;
use coulter_net::{Address, Malformed, Outgoing, SLICES_MAX};
use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Bytes of the buffer that replies are read into.
const SHARED_SIZE: usize = 256 << 10;
/// The longest chunk without content that is believed.
const CHUNK_SIZE_MAX: u32 = 128 << 10;

/// A connection to an NBD server.
pub struct Client {
    socket: OwnedFd,
    terms: Terms,
    outgoing: Outgoing,
    incoming: Incoming,
    /// Requests under way, by cookie.
    pending: Vec<Option<Pending>>,
    idle: Vec<u64>,
    done: Vec<Completion>,
    /// Readable for ever: stands for completions that are here already.
    ready: OwnedFd,
    /// Readable when the socket is readable or writable.
    progress: OwnedFd,
    /// No more can come of this connection.
    broken: bool,
}

struct Pending {
    tag: u64,
    operation: Operation,
    offset: u64,
    length: u64,
    /// With the socket while a write's payload is being sent.
    buffer: Option<Buffer>,
    /// Bytes of a read that have arrived.
    arrived: u64,
    result: Result<(), RequestError>,
    extents: Vec<Extent>,
    answered: bool,
}

/// Bytes that have arrived, and what they are the middle of.
struct Incoming {
    shared: Box<[u8]>,
    start: usize,
    end: usize,
    /// Content that goes straight to its buffer.
    content: Option<Content>,
}

#[derive(Clone, Copy)]
struct Content {
    cookie: u64,
    /// Where in the buffer the next byte goes.
    at: usize,
    left: usize,
    ends_reply: bool,
}

impl Client {
    /// Connects and negotiates.
    pub fn connect(address: &Address, options: &ClientOptions) -> Result<Client, ClientError> {
        Client::over(open(address).map_err(ClientError::Io)?, options)
    }

    /// Negotiates over a stream socket that is already connected, and must not block.
    pub fn over(socket: OwnedFd, options: &ClientOptions) -> Result<Client, ClientError> {
        let deadline = Instant::now() + options.timeout;
        let terms = negotiate(&socket, options, deadline)?;
        let system = |error: Errno| ClientError::Io(error.into());
        let ready = eventfd(1, EventfdFlags::CLOEXEC).map_err(system)?;
        let progress = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
        let events = epoll::EventFlags::IN | epoll::EventFlags::OUT;
        epoll::add(&progress, &socket, epoll::EventData::new_u64(0), events).map_err(system)?;
        Ok(Client {
            socket,
            ready,
            progress,
            terms,
            outgoing: Outgoing::default(),
            incoming: Incoming {
                shared: vec![0; SHARED_SIZE].into_boxed_slice(),
                start: 0,
                end: 0,
                content: None,
            },
            pending: Vec::new(),
            idle: Vec::new(),
            done: Vec::new(),
            broken: false,
        })
    }

    /// Size of the export in bytes.
    pub fn size(&self) -> u64 {
        self.terms.size
    }

    /// Whether the server refuses writes.
    pub fn read_only(&self) -> bool {
        self.has(transmission_flag::READ_ONLY)
    }

    /// The export's transmission flags.
    pub fn flags(&self) -> u16 {
        self.terms.flags
    }

    /// Least, preferred and greatest length of a request in bytes, if the server said.
    pub fn block_sizes(&self) -> Option<[u32; 3]> {
        self.terms.block_sizes
    }

    /// Whether [`Operation::Extents`] can be asked for.
    pub fn has_block_status(&self) -> bool {
        self.terms.context.is_some()
    }

    /// Says goodbye, so that the server knows that no more will come. Requests under way are
    /// finished first; their completions are lost. Dropping a client is going away without a word.
    pub fn disconnect(mut self) {
        let mut completions = Vec::new();
        while self.outstanding() > 0 {
            self.complete(&mut completions, None);
        }
        let bye =
            RequestHeader { flags: 0, command: command::DISC, cookie: 0, offset: 0, length: 0 };
        self.outgoing.push_header(&bye.encode());
        // Nothing else is under way, so the socket takes 28 bytes at once.
        self.send();
    }

    fn has(&self, flag: u16) -> bool {
        self.terms.flags & flag != 0
    }

    /// The request in the protocol's words, or why there are none.
    fn header(&self, request: &Request, cookie: u64) -> Result<RequestHeader, RequestError> {
        let unsupported = Err(RequestError::Device { errno: libc::EOPNOTSUPP });
        let fua = |fua: bool| if fua { command_flag::FUA } else { 0 };
        let (command, flags, needed) = match request.operation {
            Operation::Read => (command::READ, 0, 0),
            Operation::Write { fua: durable } => (command::WRITE, fua(durable), 0),
            Operation::Flush => (command::FLUSH, 0, transmission_flag::SEND_FLUSH),
            Operation::Discard => (command::TRIM, 0, transmission_flag::SEND_TRIM),
            Operation::WriteZeroes { fua: durable } => {
                (command::WRITE_ZEROES, fua(durable), transmission_flag::SEND_WRITE_ZEROES)
            }
            Operation::Extents if self.terms.context.is_none() => return unsupported,
            Operation::Extents => (command::BLOCK_STATUS, 0, 0),
        };
        let fua_needed = if flags == 0 { 0 } else { transmission_flag::SEND_FUA };
        if !self.has_all(needed | fua_needed) {
            return unsupported;
        }
        let carries = matches!(request.operation, Operation::Read | Operation::Write { .. });
        if carries && request.buffer.len() as u64 != request.length {
            return Err(RequestError::Invalid);
        }
        let mut header =
            RequestHeader { flags, command, cookie, offset: request.offset, length: 0 };
        if request.operation == Operation::Flush {
            header.offset = 0;
            return Ok(header);
        }
        let length_max = u64::from(u32::MAX) / SECTOR_SIZE * SECTOR_SIZE;
        header.length = match request.operation {
            // An answer about a part of the range is an answer.
            Operation::Extents => request.length.min(length_max) as u32,
            _ => u32::try_from(request.length).map_err(|_| RequestError::Invalid)?,
        };
        Ok(header)
    }

    fn has_all(&self, flags: u16) -> bool {
        self.terms.flags & flags == flags
    }

    /// Sends as much as the socket takes.
    fn send(&mut self) {
        while !self.broken && !self.outgoing.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = self.outgoing.slices(&mut slices);
            let mut control = SendAncillaryBuffer::default();
            match sendmsg(&self.socket, &slices[..count], &mut control, SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    let (pending, done, idle) = (&mut self.pending, &mut self.done, &mut self.idle);
                    self.outgoing.sent(sent, |cookie, buffer| {
                        give_back(pending, done, idle, cookie, buffer);
                    });
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(_) => self.fail(),
            }
        }
    }

    /// Receives what the socket has, once; whether there was anything.
    fn receive(&mut self) -> bool {
        if self.broken {
            return false;
        }
        let incoming = &mut self.incoming;
        incoming.shared.copy_within(incoming.start..incoming.end, 0);
        incoming.end -= incoming.start;
        incoming.start = 0;
        let place = match incoming.content {
            Some(Content { cookie, at, left, .. }) => {
                match self.pending[cookie as usize].as_mut().and_then(|p| p.buffer.as_mut()) {
                    Some(buffer) => &mut buffer[at..at + left],
                    None => &mut [],
                }
            }
            None => &mut [],
        };
        let placed_max = place.len();
        let mut slices =
            [IoSliceMut::new(place), IoSliceMut::new(&mut incoming.shared[incoming.end..])];
        let mut control = RecvAncillaryBuffer::default();
        match recvmsg(&self.socket, &mut slices, &mut control, RecvFlags::empty()) {
            Ok(message) if message.bytes > 0 => {
                let placed = message.bytes.min(placed_max);
                self.incoming.end += message.bytes - placed;
                self.advance_content(placed);
                if self.parse().is_err() {
                    self.fail();
                }
                true
            }
            Err(Errno::AGAIN | Errno::INTR) => false,
            _ => {
                self.fail();
                false
            }
        }
    }

    /// Takes note of `count` bytes of content in their place.
    fn advance_content(&mut self, count: usize) {
        let Some(content) = &mut self.incoming.content else { return };
        content.at += count;
        content.left -= count;
        if content.left == 0 {
            let Content { cookie, ends_reply, .. } = *content;
            self.incoming.content = None;
            if ends_reply {
                self.answered(cookie);
            }
        }
    }

    fn parse(&mut self) -> Result<(), Malformed> {
        loop {
            if let Some(Content { cookie, at, left, .. }) = self.incoming.content {
                let incoming = &mut self.incoming;
                let count = left.min(incoming.end - incoming.start);
                let bytes = &incoming.shared[incoming.start..incoming.start + count];
                if let Some(buffer) = self.pending[cookie as usize]
                    .as_mut()
                    .and_then(|pending| pending.buffer.as_mut())
                {
                    buffer[at..at + count].copy_from_slice(bytes);
                }
                incoming.start += count;
                self.advance_content(count);
                if count < left {
                    return Ok(());
                }
                continue;
            }
            let bytes = &self.incoming.shared[self.incoming.start..self.incoming.end];
            let Some((header, size)) = ReplyHeader::decode(bytes)? else { return Ok(()) };
            let used = match header {
                ReplyHeader::Simple(reply) => {
                    self.simple(reply.cookie, reply.error)?;
                    size
                }
                ReplyHeader::Chunk(header) => match self.chunk(header, size)? {
                    Some(used) => used,
                    None => return Ok(()),
                },
            };
            self.incoming.start += used;
        }
    }

    fn simple(&mut self, cookie: u64, error: u32) -> Result<(), Malformed> {
        let structured = self.terms.structured_replies;
        let pending = self.find(cookie)?;
        if pending.operation == Operation::Read && error == 0 {
            if structured {
                return Err(Malformed("a simple reply to a read, where chunks were agreed on"));
            }
            let left = pending.length as usize;
            pending.arrived = pending.length;
            self.incoming.content = Some(Content { cookie, at: 0, left, ends_reply: true });
            return Ok(());
        }
        if error != 0 {
            pending.result = Err(errno::to_request_error(error, pending.operation));
        }
        self.answered(cookie);
        Ok(())
    }

    /// Handles a chunk; how many bytes it took, or `None` while it is not whole.
    fn chunk(&mut self, header: ChunkHeader, size: usize) -> Result<Option<usize>, Malformed> {
        let ends_reply = header.flags & chunk::FLAG_DONE != 0;
        let start = self.incoming.start + size;
        let has_content = header.kind == chunk::OFFSET_DATA;
        if !has_content && header.length > CHUNK_SIZE_MAX {
            return Err(Malformed("a chunk is far too long"));
        }
        let body_size = if has_content { 8 } else { header.length as usize };
        let end = start + body_size;
        if end > self.incoming.end {
            return Ok(None);
        }
        // Taken out for the time of the call, so that the body can be looked at meanwhile.
        let shared = std::mem::take(&mut self.incoming.shared);
        let outcome = self.chunk_body(header, &shared[start..end], ends_reply);
        self.incoming.shared = shared;
        outcome?;
        if ends_reply && !has_content {
            self.answered(header.cookie);
        }
        Ok(Some(size + body_size))
    }

    fn chunk_body(
        &mut self,
        header: ChunkHeader,
        body: &[u8],
        ends_reply: bool,
    ) -> Result<(), Malformed> {
        let cookie = header.cookie;
        let context = self.terms.context;
        let pending = self.find(cookie)?;
        let mut cursor = Cursor(body);
        let malformed = Malformed("a chunk is cut short");
        match header.kind {
            chunk::NONE if body.is_empty() && ends_reply => {}
            chunk::OFFSET_DATA => {
                let offset = cursor.u64().ok_or(malformed)?;
                let length = u64::from(header.length).checked_sub(8).ok_or(malformed)?;
                let at = pending.place(offset, length)?;
                let left = length as usize;
                self.incoming.content = Some(Content { cookie, at, left, ends_reply });
            }
            chunk::OFFSET_HOLE => {
                let offset = cursor.u64().ok_or(malformed)?;
                let length = cursor.u32().ok_or(malformed)?;
                let at = pending.place(offset, u64::from(length))?;
                if let Some(buffer) = &mut pending.buffer {
                    buffer[at..at + length as usize].fill(0);
                }
            }
            chunk::BLOCK_STATUS if pending.operation == Operation::Extents => {
                if cursor.u32() != context {
                    return Err(Malformed("block status of a context that was not asked for"));
                }
                pending.extents = read_extents(cursor, pending.length)?;
            }
            kind if kind & chunk::ERROR_BIT != 0 => {
                let error = cursor.u32().ok_or(malformed)?;
                pending.result = Err(errno::to_request_error(error, pending.operation));
            }
            _ => return Err(Malformed("an unexpected chunk")),
        }
        Ok(())
    }

    fn find(&mut self, cookie: u64) -> Result<&mut Pending, Malformed> {
        let slot = usize::try_from(cookie).ok().and_then(|index| self.pending.get_mut(index));
        match slot.and_then(Option::as_mut) {
            Some(pending) if !pending.answered => Ok(pending),
            _ => Err(Malformed("a reply to no request")),
        }
    }

    /// Notes that the last of a reply is here.
    fn answered(&mut self, cookie: u64) {
        let Some(slot) = self.pending.get_mut(cookie as usize) else { return };
        let Some(pending) = slot else { return };
        pending.answered = true;
        let short = pending.operation == Operation::Read && pending.arrived < pending.length;
        let silent = pending.operation == Operation::Extents && pending.extents.is_empty();
        if pending.result.is_ok() && (short || silent) {
            // The server claims success and left something out.
            pending.result = Err(RequestError::Device { errno: libc::EIO });
        }
        if pending.buffer.is_some() {
            finish(slot, &mut self.done);
            self.idle.push(cookie);
        }
    }

    /// Ends the connection: every request completes with `Closed`.
    fn fail(&mut self) {
        self.broken = true;
        self.incoming.content = None;
        let (pending, done, idle) = (&mut self.pending, &mut self.done, &mut self.idle);
        for waiting in pending.iter_mut().flatten().filter(|waiting| !waiting.answered) {
            waiting.answered = true;
            waiting.result = Err(RequestError::Closed);
        }
        self.outgoing.clear(|cookie, buffer| give_back(pending, done, idle, cookie, buffer));
        for (cookie, slot) in pending.iter_mut().enumerate().filter(|(_, slot)| slot.is_some()) {
            finish(slot, done);
            idle.push(cookie as u64);
        }
    }
}

impl Session for Client {
    fn submit(&mut self, request: Request) {
        let cookie = self.idle.pop().unwrap_or(self.pending.len() as u64);
        let header = self.header(&request, cookie);
        let Request { tag, operation, offset, length, buffer } = request;
        let index = cookie as usize;
        if index == self.pending.len() {
            self.pending.push(None);
        }
        let slot = &mut self.pending[index];
        let refusal = if self.broken { Some(RequestError::Closed) } else { header.err() };
        let sends = refusal.is_none() && matches!(operation, Operation::Write { .. });
        let (kept, sent) = if sends { (None, Some(buffer)) } else { (Some(buffer), None) };
        *slot = Some(Pending {
            tag,
            operation,
            offset,
            length,
            buffer: kept,
            arrived: 0,
            result: refusal.map_or(Ok(()), Err),
            extents: Vec::new(),
            answered: false,
        });
        match header {
            Ok(header) if refusal.is_none() => {
                self.outgoing.push_header(&header.encode());
                if let Some(buffer) = sent {
                    self.outgoing.push_payload(cookie, buffer);
                }
            }
            _ => self.answered(cookie),
        }
    }

    fn kick(&mut self) {
        self.send();
    }

    fn complete(&mut self, out: &mut Vec<Completion>, timeout: Option<Duration>) {
        let limit = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            self.send();
            while self.receive() && self.done.is_empty() {}
            out.append(&mut self.done);
            let left = limit.map(|limit| limit.saturating_duration_since(Instant::now()));
            if !out.is_empty() || self.outstanding() == 0 || left == Some(Duration::ZERO) {
                return;
            }
            let mut flags = PollFlags::IN;
            if !self.outgoing.is_empty() {
                flags |= PollFlags::OUT;
            }
            let mut fds = [PollFd::new(&self.socket, flags)];
            // An interrupted sleep only means one more turn.
            let _ = poll(&mut fds, left.map(timespec).as_ref());
        }
    }

    fn completion_fd(&self) -> BorrowedFd<'_> {
        if !self.done.is_empty() {
            self.ready.as_fd()
        } else if !self.outgoing.is_empty() {
            self.progress.as_fd()
        } else {
            self.socket.as_fd()
        }
    }

    fn outstanding(&self) -> usize {
        self.pending.len() - self.idle.len() + self.done.len()
    }
}

impl Pending {
    /// Where in the buffer content of this offset and length goes.
    fn place(&mut self, offset: u64, length: u64) -> Result<usize, Malformed> {
        let at = offset.checked_sub(self.offset);
        let fits = |at: &u64| at.checked_add(length).is_some_and(|end| end <= self.length);
        let Some(at) = at.filter(fits).filter(|_| length > 0) else {
            return Err(Malformed("content outside the request"));
        };
        if self.operation != Operation::Read {
            return Err(Malformed("content for something that is not a read"));
        }
        self.arrived += length;
        if self.arrived > self.length {
            return Err(Malformed("content that overlaps"));
        }
        Ok(at as usize)
    }
}

/// Takes a payload's buffer back, and completes its request if that was all that it waited for.
fn give_back(
    pending: &mut [Option<Pending>],
    done: &mut Vec<Completion>,
    idle: &mut Vec<u64>,
    cookie: u64,
    buffer: Buffer,
) {
    let slot = &mut pending[cookie as usize];
    let Some(waiting) = slot else { return };
    waiting.buffer = Some(buffer);
    if waiting.answered {
        finish(slot, done);
        idle.push(cookie);
    }
}

/// Turns a request that is answered and has its buffer into a completion.
fn finish(slot: &mut Option<Pending>, done: &mut Vec<Completion>) {
    let Some(pending) = slot.take() else { return };
    let extents = if pending.result.is_ok() { pending.extents } else { Vec::new() };
    let buffer = pending.buffer.unwrap_or_default();
    done.push(Completion { tag: pending.tag, result: pending.result, buffer, extents });
}

fn read_extents(mut cursor: Cursor<'_>, length: u64) -> Result<Vec<Extent>, Malformed> {
    let mut extents: Vec<Extent> = Vec::new();
    let mut left = length;
    while !cursor.0.is_empty() && left > 0 {
        let (Some(run), Some(state)) = (cursor.u32(), cursor.u32()) else {
            return Err(Malformed("an extent is cut short"));
        };
        if run == 0 {
            return Err(Malformed("an extent of no bytes"));
        }
        // The last run may reach beyond what was asked for.
        let run = u64::from(run).min(left);
        left -= run;
        let mapped = state & extent_state::ZERO == 0;
        extents.push(Extent { length: run, mapped });
    }
    Ok(extents)
}
