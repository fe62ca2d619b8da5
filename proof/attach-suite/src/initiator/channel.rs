//! One queue: a socket, commands that are under way on it, and their data.

use super::InitiatorError;
use coulter::buffer::Buffer;
use coulter_net::Address;
use coulter_net::socket::{receive, receive_exactly, send_all};
use coulter_nvme::digest::{DIGEST_SIZE, crc32c};
use coulter_nvme::tcp::{self, Data, Digests, Header, IcReq, IcResp, flag, kind};
use coulter_nvme::{Cqe, DataPointer, Sqe};
use std::io;
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Bytes of data that go out with a command of an admin queue, or before a controller has said how many may.
const IN_CAPSULE_MAX: usize = 8 << 10;
/// Bytes received at a time.
const READ_SIZE: usize = 256 << 10;

/// A queue of commands to a target.
pub struct Channel {
    socket: OwnedFd,
    digests: Digests,
    timeout: Duration,
    data_size_max: u32,
    /// Bytes of data that go out with a command.
    in_capsule_max: usize,
    slots: Vec<Option<Pending>>,
    idle: Vec<usize>,
    outgoing: Vec<u8>,
    /// What was received lies at `unread`; the rest is room.
    incoming: Vec<u8>,
    unread: Range<usize>,
    end: Option<InitiatorError>,
}

struct Pending {
    outward: Buffer,
    inward: Buffer,
    received: usize,
}

/// The end of a command.
#[derive(Debug)]
pub struct Finished {
    /// What [`Channel::submit`] gave.
    pub slot: usize,
    /// The completion; none if the connection ended before.
    pub outcome: Option<Cqe>,
    /// Where data came in, or went out from.
    pub buffer: Buffer,
}

impl Channel {
    /// Connects, and exchanges greetings.
    ///
    /// # Errors
    /// When the target cannot be reached, or does not greet.
    pub fn open(
        address: &Address,
        digests: Digests,
        timeout: Duration,
    ) -> Result<Channel, InitiatorError> {
        let Address::Tcp { host, port } = address else {
            return Err(InitiatorError::Protocol("NVMe is spoken over TCP"));
        };
        let stream = TcpStream::connect((host.as_str(), *port))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let socket = OwnedFd::from(stream);
        let deadline = Instant::now() + timeout;
        let request = IcReq { format: 0, alignment: 0, digests, r2t_max: 1 };
        send_all(&socket, &request.encode(), deadline, None)?;
        let mut bytes = [0; tcp::IC_SIZE];
        receive_exactly(&socket, &mut bytes, deadline)?;
        let header = Header::decode(bytes.first_chunk().expect("it is whole"));
        let answer = IcResp::decode(&bytes);
        // What this kernel's initiator insists on.
        let is_right = header.kind == kind::IC_RESP
            && header.layout(Digests::default()).is_ok()
            && (answer.format, answer.alignment, answer.digests) == (0, 0, digests)
            && answer.data_size_max >= 4096
            && answer.data_size_max.is_multiple_of(4);
        if !is_right {
            return Err(InitiatorError::Protocol("the target greets in another way"));
        }
        let slot_count = 32;
        Ok(Channel {
            socket,
            digests,
            timeout,
            data_size_max: answer.data_size_max,
            in_capsule_max: IN_CAPSULE_MAX,
            slots: (0..slot_count).map(|_| None).collect(),
            idle: (0..slot_count).rev().collect(),
            outgoing: Vec::new(),
            incoming: vec![0; READ_SIZE],
            unread: 0..0,
            end: None,
        })
    }

    pub(super) fn set_queue_size(&mut self, size: u32) {
        let count = size as usize - 1;
        self.slots = (0..count).map(|_| None).collect();
        self.idle = (0..count).rev().collect();
    }

    pub(super) fn set_in_capsule_max(&mut self, size: usize) {
        self.in_capsule_max = size;
    }

    pub(super) fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// Whether no more commands may be submitted.
    pub fn is_full(&self) -> bool {
        self.idle.is_empty()
    }

    /// Commands that are under way.
    pub fn outstanding(&self) -> usize {
        self.slots.len() - self.idle.len()
    }

    pub(super) fn readable(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Queues a command with the data that goes out with it, and the room for what comes in. Short data
    /// goes in the capsule.
    ///
    /// # Panics
    /// When the queue is full.
    pub fn submit(&mut self, sqe: Sqe, outward: Buffer, inward: Buffer) -> usize {
        let in_capsule = !outward.is_empty() && outward.len() <= self.in_capsule_max;
        let length = outward.len().max(inward.len()) as u32;
        let pointer = match length {
            0 => DataPointer::None,
            _ if in_capsule => DataPointer::InCapsule { length, offset: 0 },
            _ => DataPointer::Transport { length },
        };
        let data = if in_capsule { &outward[..] } else { &[] };
        let sqe = sqe.with_data_pointer(pointer);
        let slot = self.idle.pop().expect("there is room in the queue");
        let sqe = sqe.with_cid(slot as u16);
        self.push(&tcp::command(&sqe, data.len() as u32, self.digests), data);
        self.slots[slot] = Some(Pending { outward, inward, received: 0 });
        slot
    }

    /// Queues a command as it is, with these bytes in its capsule; for tests that lie.
    ///
    /// # Panics
    /// When the queue is full.
    pub fn submit_raw(&mut self, sqe: Sqe, in_capsule: &[u8], inward: usize) -> usize {
        let slot = self.idle.pop().expect("there is room in the queue");
        let sqe = sqe.with_cid(slot as u16);
        self.push(&tcp::command(&sqe, in_capsule.len() as u32, self.digests), in_capsule);
        let (outward, inward) = (Buffer::empty(), Buffer::zeroed(inward));
        self.slots[slot] = Some(Pending { outward, inward, received: 0 });
        slot
    }

    fn push(&mut self, header: &[u8], data: &[u8]) {
        self.outgoing.extend_from_slice(header);
        if self.digests.header {
            self.outgoing.extend_from_slice(&crc32c(header).to_le_bytes());
        }
        if !data.is_empty() {
            self.outgoing.extend_from_slice(data);
            if self.digests.data {
                self.outgoing.extend_from_slice(&crc32c(data).to_le_bytes());
            }
        }
    }

    /// Queues bytes as they are; for tests that lie.
    pub fn push_raw(&mut self, bytes: &[u8]) {
        self.outgoing.extend_from_slice(bytes);
    }

    /// Changes the last byte that is queued; for tests that lie.
    pub fn spoil_last_byte(&mut self) {
        if let Some(last) = self.outgoing.last_mut() {
            *last ^= 0x40;
        }
    }

    /// Sends what is queued.
    pub fn flush(&mut self) {
        let bytes = std::mem::take(&mut self.outgoing);
        if self.end.is_none()
            && let Err(error) = send_all(&self.socket, &bytes, Instant::now() + self.timeout, None)
        {
            self.end = Some(error.into());
        }
        self.outgoing = bytes;
        self.outgoing.clear();
    }

    /// Moves the commands that have ended to `out`; waits up to `timeout` for the first, for ever if
    /// `None`.
    pub fn poll(&mut self, out: &mut Vec<Finished>, timeout: Option<Duration>) {
        let before = out.len();
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            if self.end.is_none()
                && let Err(error) = self.take_pdus(out)
            {
                self.end = Some(error);
            }
            // The target may have asked for data.
            self.flush();
            if self.end.is_some() {
                self.fail_all(out);
            }
            if out.len() > before || self.outstanding() == 0 {
                return;
            }
            let until = deadline.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
            match self.receive_some(until) {
                Ok(()) => {}
                Err(InitiatorError::Io(error)) if error.kind() == io::ErrorKind::TimedOut => {
                    if deadline.is_some() {
                        return;
                    }
                }
                Err(error) => self.end = Some(error),
            }
        }
    }

    fn receive_some(&mut self, deadline: Instant) -> Result<(), InitiatorError> {
        // Bytes move only when they would leave too little room, so a turn costs no copy of its own.
        if self.unread.is_empty() {
            self.unread = 0..0;
        } else if self.incoming.len() - self.unread.end < READ_SIZE / 2 {
            self.incoming.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
            let needed = self.unread.end + READ_SIZE;
            self.incoming.resize(needed.max(self.incoming.len()), 0);
        }
        let room = &mut self.incoming[self.unread.end..];
        match receive(&self.socket, room, deadline, None)? {
            0 => Err(InitiatorError::Ended(None)),
            count => {
                self.unread.end += count;
                Ok(())
            }
        }
    }

    fn fail_all(&mut self, out: &mut Vec<Finished>) {
        for slot in 0..self.slots.len() {
            if let Some(pending) = self.slots[slot].take() {
                self.idle.push(slot);
                out.push(Finished { slot, outcome: None, buffer: pending.buffer() });
            }
        }
    }

    fn take_pdus(&mut self, out: &mut Vec<Finished>) -> Result<(), InitiatorError> {
        let incoming = std::mem::take(&mut self.incoming);
        let mut rest = &incoming[self.unread.clone()];
        let outcome = loop {
            let Some(common) = rest.first_chunk() else { break Ok(()) };
            let header = Header::decode(common);
            let size = header.size as usize;
            if size > (2 << 20) {
                break Err(InitiatorError::Protocol("a PDU is far too long"));
            }
            let Some(pdu) = rest.get(..size.max(tcp::COMMON_SIZE)) else { break Ok(()) };
            rest = &rest[pdu.len()..];
            if let Err(error) = self.take_pdu(header, pdu, out) {
                break Err(error);
            }
        };
        self.unread.start = self.unread.end - rest.len();
        self.incoming = incoming;
        outcome
    }

    fn take_pdu(
        &mut self,
        header: Header,
        pdu: &[u8],
        out: &mut Vec<Finished>,
    ) -> Result<(), InitiatorError> {
        let wrong = |what| Err(InitiatorError::Protocol(what));
        let Ok(layout) = header.layout(self.digests) else { return wrong("a PDU makes no sense") };
        let Some(fixed) = pdu.first_chunk::<{ tcp::DATA_HEADER_SIZE }>() else {
            return wrong("a PDU is too short");
        };
        if header.kind == kind::C2H_TERM {
            return Err(InitiatorError::Ended(Some(tcp::term_status(fixed))));
        }
        if self.digests.header && digest(&pdu[tcp::DATA_HEADER_SIZE..]) != crc32c(fixed) {
            return wrong("a header does not have its digest");
        }
        match header.kind {
            kind::RESPONSE => {
                let cqe = Cqe::decode(fixed[tcp::COMMON_SIZE..].first_chunk().expect("it fits"));
                self.finish(cqe, out)
            }
            kind::C2H_DATA => {
                let data = Data::decode(fixed);
                let bytes = &pdu[layout.data.clone()];
                if layout.has_data_digest && digest(&pdu[layout.data.end..]) != crc32c(bytes) {
                    return wrong("data does not have its digest");
                }
                self.take_data(data, bytes)?;
                if header.flags & flag::SUCCESS == 0 {
                    return Ok(());
                }
                let status = coulter_nvme::Status::SUCCESS;
                let sq_head = u16::MAX;
                self.finish(Cqe { result: 0, sq_head, sq_id: 0, cid: data.cid, status }, out)
            }
            kind::R2T => self.answer_wish(Data::decode(fixed)),
            _ => wrong("a PDU that a target does not send"),
        }
    }

    fn pending(&mut self, cid: u16) -> Result<&mut Pending, InitiatorError> {
        let unknown = InitiatorError::Protocol("there is no such command");
        self.slots.get_mut(usize::from(cid)).and_then(Option::as_mut).ok_or(unknown)
    }

    fn take_data(&mut self, data: Data, bytes: &[u8]) -> Result<(), InitiatorError> {
        let pending = self.pending(data.cid)?;
        let place = pending.inward.get_mut(data.offset as usize..);
        let place = place.and_then(|place| place.get_mut(..bytes.len()));
        let is_next = data.offset as usize == pending.received;
        match place {
            Some(place) if is_next && bytes.len() == data.length as usize => {
                place.copy_from_slice(bytes);
                pending.received += bytes.len();
                Ok(())
            }
            _ => Err(InitiatorError::Protocol("data that was not asked for")),
        }
    }

    fn answer_wish(&mut self, wish: Data) -> Result<(), InitiatorError> {
        let (digests, step) = (self.digests, self.data_size_max as usize);
        let pending = self.pending(wish.cid)?;
        let outward = std::mem::replace(&mut pending.outward, Buffer::empty());
        let start = wish.offset as usize;
        let Some(bytes) = outward.get(start..start + wish.length as usize) else {
            return Err(InitiatorError::Protocol("more data is wanted than there is"));
        };
        let mut offset = start;
        for part in bytes.chunks(step) {
            let is_last = offset + part.len() == start + bytes.len();
            let flags = if is_last { flag::LAST } else { 0 };
            let (offset32, length) = (offset as u32, part.len() as u32);
            let data = Data { cid: wish.cid, tag: wish.tag, offset: offset32, length };
            self.push(&data.encode(kind::H2C_DATA, flags, 0, digests), part);
            offset += part.len();
        }
        self.pending(wish.cid)?.outward = outward;
        Ok(())
    }

    fn finish(&mut self, cqe: Cqe, out: &mut Vec<Finished>) -> Result<(), InitiatorError> {
        let is_whole = {
            let pending = self.pending(cqe.cid)?;
            !cqe.status.is_success() || pending.received == pending.inward.len()
        };
        if !is_whole {
            return Err(InitiatorError::Protocol("a read succeeds without all of its data"));
        }
        let slot = usize::from(cqe.cid);
        if let Some(pending) = self.slots[slot].take() {
            self.idle.push(slot);
            out.push(Finished { slot, outcome: Some(cqe), buffer: pending.buffer() });
        }
        Ok(())
    }

    /// Waits for the command in `slot`; others must not be under way.
    fn wait(&mut self, slot: usize) -> Result<Finished, InitiatorError> {
        let mut finished = Vec::new();
        let timeout = Some(self.timeout);
        self.poll(&mut finished, timeout);
        let timed_out = || InitiatorError::Io(io::ErrorKind::TimedOut.into());
        let found = finished.into_iter().find(|finished| finished.slot == slot);
        let found = found.ok_or_else(timed_out)?;
        match found.outcome {
            Some(cqe) if cqe.status.is_success() => Ok(found),
            Some(cqe) => Err(InitiatorError::Status(cqe)),
            None => Err(self.end.take().unwrap_or(InitiatorError::Ended(None))),
        }
    }

    /// Sends a command with data, and waits for it. Nothing else must be under way.
    ///
    /// # Errors
    /// When it fails, or the connection ends.
    pub fn send(&mut self, sqe: Sqe, data: &[u8]) -> Result<Cqe, InitiatorError> {
        let outward = if data.is_empty() { Buffer::empty() } else { Buffer::copied_from(data) };
        let slot = self.submit(sqe, outward, Buffer::empty());
        let finished = self.wait(slot)?;
        Ok(finished.outcome.expect("a command that succeeds has a completion"))
    }

    /// Sends a command, and waits for its data.
    ///
    /// # Errors
    /// When it fails, or the connection ends.
    pub fn fetch(&mut self, sqe: Sqe, length: usize) -> Result<Vec<u8>, InitiatorError> {
        let slot = self.submit(sqe, Buffer::empty(), Buffer::zeroed(length));
        Ok(self.wait(slot)?.buffer.to_vec())
    }

    /// Sends a command as it is, with these bytes in its capsule, and waits for it; for tests that lie.
    ///
    /// # Errors
    /// When it fails, or the connection ends.
    pub fn send_raw(&mut self, sqe: Sqe, in_capsule: &[u8]) -> Result<Cqe, InitiatorError> {
        let slot = self.submit_raw(sqe, in_capsule, 0);
        let finished = self.wait(slot)?;
        Ok(finished.outcome.expect("a command that succeeds has a completion"))
    }
}

impl Pending {
    fn buffer(self) -> Buffer {
        if self.inward.is_empty() { self.outward } else { self.inward }
    }
}

/// The digest at the start of `bytes`; zero, which matches no data, if there is none.
fn digest(bytes: &[u8]) -> u32 {
    const { assert!(DIGEST_SIZE == 4) };
    bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}
