//! The transmission phase of one connection: requests out of bytes, to the session; completions
//! of the session, to replies. It knows no socket, so that bytes of any kind can be thrown at it.
//!
//! # Invariants
//! - No bytes make it panic. A request that cannot be served is answered with an error and the
//!   stream stays in step, unless the protocol leaves no way; then [`Malformed`] ends it.
//! - Buffers held for the client never exceed what its [`Memory`] allows, nor requests
//!   [`REQUEST_COUNT_MAX`], nor the buffers of all clients together the server's [`Budget`]. At a
//!   limit the socket is not read, which stops the client.
//! - Every submitted request is answered once.
//! - A write is answered, be it refused, when its payload has been taken: a client that is still
//!   sending does not expect an answer, and some take one for the end of all sense.

use super::errno::{self, EINVAL, EOVERFLOW, EPERM};
use super::export::Export;
use super::handshake::{Agreement, BASE_ALLOCATION_ID};
use super::reply;
use super::wire::{
    REQUEST_HEADER_SIZE, RequestHeader, command, command_flag as flag, extent_state,
};
use crate::{Account, Alone, Budget, Exchange, Malformed, Outgoing, Receiver, UNSENT_MAX};
use coulter::buffer::Buffer;
use coulter::service::{
    Completion, Extent, Operation, REQUEST_SIZE_MAX, Request, SECTOR_SIZE, Session,
};
use coulter_attach::pool::BufferPool;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requests of one connection that are with the session at a time.
pub(super) const REQUEST_COUNT_MAX: usize = 512;
/// Bytes of a refused write that are read and dropped; a longer one ends the connection.
const SKIP_MAX: u32 = 2 * REQUEST_SIZE_MAX as u32;
/// Extents of one answer.
const EXTENT_COUNT_MAX: usize = 4096;
/// Bytes of idle buffers that a connection keeps for its next requests.
const IDLE_BYTES_MAX: usize = 8 << 20;
/// How long a connection that waits for memory of others sleeps before it looks again.
const WAIT_FOR_OTHERS: Duration = Duration::from_millis(10);
/// What a connection to this kernel's own client has: 4 MiB, mostly for large requests, since those
/// are what it sends when memory is short. Each device has several connections.
const STOCK: [(usize, usize); 4] = [(4 << 10, 64), (64 << 10, 12), (256 << 10, 4), (1 << 20, 2)];

/// The source of the memory for a client's data.
pub(super) enum Memory {
    /// Allocated on demand.
    OnDemand {
        /// Bytes of this connection, at least [`REQUEST_SIZE_MAX`].
        bytes_max: usize,
        /// Bytes of all connections.
        budget: Arc<Budget>,
    },
    /// All of it allocated when the connection begins.
    Stock,
}

impl Memory {
    fn pool(&self) -> (BufferPool, Option<Account>) {
        match self {
            Memory::OnDemand { bytes_max, budget } => {
                assert!(*bytes_max as u64 >= REQUEST_SIZE_MAX, "one request always fits");
                let pool = BufferPool::on_demand(*bytes_max, IDLE_BYTES_MAX);
                (pool, Some(Account::new(budget.clone())))
            }
            Memory::Stock => (BufferPool::stocked(&STOCK), None),
        }
    }
}

pub(super) struct Transmission {
    receiver: Receiver,
    replies: Outgoing,
    session: Box<dyn Session>,
    pool: BufferPool,
    /// None where the buffers are a stock.
    account: Option<Account>,
    size: u64,
    refuses_writes: bool,
    structured_replies: bool,
    block_status: bool,
    /// Requests with the session, by tag.
    pending: Vec<Pending>,
    idle_tags: Vec<u64>,
    /// The write whose payload is being received.
    arriving: Option<Pending>,
    /// The write whose payload is being dropped.
    refused: Option<Refused>,
    completions: Vec<Completion>,
    /// No more requests are taken: the client said goodbye, or is gone.
    ended: bool,
    blocked: bool,
    submitted: usize,
    alone: Alone,
}

#[derive(Clone, Copy)]
struct Pending {
    cookie: u64,
    operation: Operation,
    offset: u64,
    length: u64,
    one_extent: bool,
}

/// An error for the client, and a text that explains it.
struct Refusal(u32, &'static str);

/// A write that gets this answer.
struct Refused {
    cookie: u64,
    refusal: Refusal,
}

impl Transmission {
    pub(super) fn new(
        export: &Export,
        agreement: Agreement,
        leftover: &[u8],
        memory: &Memory,
    ) -> Transmission {
        let nothing = Pending {
            cookie: 0,
            operation: Operation::Flush,
            offset: 0,
            length: 0,
            one_extent: false,
        };
        let (pool, account) = memory.pool();
        Transmission {
            receiver: Receiver::new(leftover),
            replies: Outgoing::default(),
            session: export.service.connect(),
            pool,
            account,
            size: export.service.size(),
            refuses_writes: export.refuses_writes(),
            structured_replies: agreement.structured_replies,
            block_status: agreement.block_status,
            pending: vec![nothing; REQUEST_COUNT_MAX],
            idle_tags: (0..REQUEST_COUNT_MAX as u64).rev().collect(),
            arriving: None,
            refused: None,
            completions: Vec::with_capacity(REQUEST_COUNT_MAX),
            ended: false,
            blocked: false,
            submitted: 0,
            alone: Alone::default(),
        }
    }

    fn take_requests(&mut self) -> Result<(), Malformed> {
        self.blocked = false;
        while !self.ended && self.receiver.skipped() {
            if let Some(Refused { cookie, refusal }) = self.refused.take() {
                self.push_error(cookie, refusal.0, refusal.1);
            }
            if let Some(pending) = self.arriving {
                let Some(buffer) = self.receiver.take_payload() else { break };
                self.arriving = None;
                self.submit(pending, buffer);
                continue;
            }
            let Some(bytes) = self.receiver.peek().first_chunk() else { break };
            let header = RequestHeader::decode(bytes)?;
            if !self.has_room_for(&header) {
                self.blocked = true;
                break;
            }
            self.receiver.consume(REQUEST_HEADER_SIZE);
            self.begin(header)?;
        }
        Ok(())
    }

    fn has_room_for(&mut self, header: &RequestHeader) -> bool {
        let carries = matches!(header.command, command::READ | command::WRITE);
        let legal = u64::from(header.length) <= REQUEST_SIZE_MAX;
        let length = if carries && legal { header.length as usize } else { 0 };
        !self.idle_tags.is_empty()
            && self.replies.header_bytes() < UNSENT_MAX
            && self.pool.can_take(length)
            && match &mut self.account {
                Some(account) => account.may_take(&mut self.pool, length, 1),
                None => true,
            }
    }

    /// Takes a buffer back that the pool gave.
    fn give(&mut self, buffer: Buffer) {
        self.pool.give(buffer);
        self.settle();
    }

    fn settle(&mut self) {
        if let Some(account) = &mut self.account {
            account.settle(&mut self.pool);
        }
    }

    fn begin(&mut self, header: RequestHeader) -> Result<(), Malformed> {
        if header.command == command::DISC {
            self.end_input();
            return Ok(());
        }
        match self.check(&header) {
            Ok(pending) => {
                let carries =
                    matches!(pending.operation, Operation::Read | Operation::Write { .. });
                let length = if carries { header.length as usize } else { 0 };
                let buffer = self.pool.take(length);
                if matches!(pending.operation, Operation::Write { .. }) {
                    self.receiver.begin_payload(buffer);
                    self.arriving = Some(pending);
                } else {
                    self.submit(pending, buffer);
                }
                Ok(())
            }
            Err(refusal) if header.command == command::WRITE => {
                if header.length > SKIP_MAX {
                    return Err(Malformed("a write is far longer than any that is allowed"));
                }
                self.receiver.begin_skip(header.length as usize);
                self.refused = Some(Refused { cookie: header.cookie, refusal });
                Ok(())
            }
            Err(Refusal(error, text)) => {
                self.push_error(header.cookie, error, text);
                Ok(())
            }
        }
    }

    fn check(&self, header: &RequestHeader) -> Result<Pending, Refusal> {
        let fua = header.flags & flag::FUA != 0;
        let (operation, flags) = match header.command {
            command::READ => {
                let df = if self.structured_replies { flag::DF } else { 0 };
                (Operation::Read, df)
            }
            command::WRITE => (Operation::Write { fua }, 0),
            command::FLUSH => (Operation::Flush, 0),
            // A discard has no FUA in the contract; zeroing does the same and has.
            command::TRIM if fua => (Operation::WriteZeroes { fua }, 0),
            command::TRIM => (Operation::Discard, 0),
            command::WRITE_ZEROES => {
                (Operation::WriteZeroes { fua }, flag::NO_HOLE | flag::FAST_ZERO)
            }
            command::BLOCK_STATUS => (Operation::Extents, flag::REQ_ONE),
            _ => return Err(Refusal(EINVAL, "unknown command")),
        };
        // FUA is valid for every command once it is advertised.
        if header.flags & !(flags | flag::FUA) != 0 {
            return Err(Refusal(EINVAL, "a flag that this command does not know"));
        }
        self.check_range(header, operation)?;
        Ok(Pending {
            cookie: header.cookie,
            operation,
            offset: header.offset,
            length: u64::from(header.length),
            one_extent: header.flags & flag::REQ_ONE != 0,
        })
    }

    fn check_range(&self, header: &RequestHeader, operation: Operation) -> Result<(), Refusal> {
        let length = u64::from(header.length);
        if operation == Operation::Flush {
            let empty = header.offset == 0 && length == 0;
            return if empty { Ok(()) } else { Err(Refusal(EINVAL, "a flush has no range")) };
        }
        let changes = !matches!(operation, Operation::Read | Operation::Extents);
        if changes && self.refuses_writes {
            return Err(Refusal(EPERM, "the export is read-only"));
        }
        if operation == Operation::Extents && !self.block_status {
            return Err(Refusal(EINVAL, "no metadata context was agreed on"));
        }
        let carries = matches!(operation, Operation::Read | Operation::Write { .. });
        if carries && length > REQUEST_SIZE_MAX {
            let unfragmented = header.flags & flag::DF != 0;
            let error = if unfragmented { EOVERFLOW } else { EINVAL };
            return Err(Refusal(error, "longer than the maximum block size"));
        }
        if length == 0 {
            return Err(Refusal(EINVAL, "a request of no bytes"));
        }
        if !header.offset.is_multiple_of(SECTOR_SIZE) || length % SECTOR_SIZE != 0 {
            return Err(Refusal(EINVAL, "offset and length must be multiples of 512"));
        }
        match header.offset.checked_add(length) {
            Some(end) if end <= self.size => Ok(()),
            _ => {
                // To the client a trim with FUA is a trim, although zeroes are written for it.
                let operation = match header.command {
                    command::TRIM => Operation::Discard,
                    _ => operation,
                };
                Err(Refusal(errno::out_of_range(operation), "beyond the end of the export"))
            }
        }
    }

    fn submit(&mut self, pending: Pending, buffer: Buffer) {
        let Some(tag) = self.idle_tags.pop() else {
            unreachable!("room was checked before the request was taken")
        };
        self.pending[tag as usize] = pending;
        self.submitted += 1;
        let Pending { operation, offset, length, .. } = pending;
        self.session.submit(Request { tag, operation, offset, length, buffer });
    }

    fn answer(&mut self, completion: Completion) {
        let Completion { tag, result, buffer, extents } = completion;
        let pending = self.pending[tag as usize];
        self.idle_tags.push(tag);
        assert!(self.idle_tags.len() <= REQUEST_COUNT_MAX, "a request completes once");
        let Pending { cookie, operation, .. } = pending;
        match (result, operation) {
            (Ok(()), Operation::Read) => {
                let offset = self.structured_replies.then_some(pending.offset);
                reply::push_data(&mut self.replies, cookie, offset, buffer);
                return;
            }
            (Ok(()), Operation::Extents) => self.push_extents(pending, &extents),
            (Ok(()), _) => reply::push_simple(&mut self.replies, cookie, 0),
            (Err(error), _) => {
                let number = errno::from_request_error(error, operation);
                self.push_error(cookie, number, &error.to_string());
            }
        }
        self.give(buffer);
    }

    fn push_extents(&mut self, pending: Pending, extents: &[Extent]) {
        let replies = &mut self.replies;
        let mut left = pending.length;
        let within = extents.iter().take_while(|extent| {
            let fits = left > 0 && extent.length > 0;
            left = left.saturating_sub(extent.length);
            fits
        });
        let count = within.count().min(if pending.one_extent { 1 } else { EXTENT_COUNT_MAX });
        if count == 0 {
            // "May be data" is always a true answer.
            let whole = std::iter::once((pending.length as u32, 0));
            return reply::push_block_status(replies, pending.cookie, BASE_ALLOCATION_ID, whole);
        }
        let mut left = pending.length;
        let states = extents[..count].iter().map(|extent| {
            let length = extent.length.min(left);
            left -= length;
            let hole = extent_state::HOLE | extent_state::ZERO;
            (length as u32, if extent.mapped { 0 } else { hole })
        });
        reply::push_block_status(replies, pending.cookie, BASE_ALLOCATION_ID, states);
    }

    fn push_error(&mut self, cookie: u64, error: u32, text: &str) {
        if self.structured_replies {
            reply::push_error_chunk(&mut self.replies, cookie, error, text);
        } else {
            reply::push_simple(&mut self.replies, cookie, error);
        }
    }
}

impl Exchange for Transmission {
    fn receiver(&mut self) -> &mut Receiver {
        &mut self.receiver
    }

    fn replies(&self) -> &Outgoing {
        &self.replies
    }

    fn wants_input(&self) -> bool {
        !self.ended && !self.blocked
    }

    fn is_blocked(&self) -> bool {
        self.blocked
    }

    fn is_finished(&self) -> bool {
        self.ended && self.replies.is_empty() && self.session.outstanding() == 0
    }

    fn end_input(&mut self) {
        self.ended = true;
        self.arriving = None;
        self.refused = None;
        if let Some(buffer) = self.receiver.abandon_payload() {
            self.give(buffer);
        }
    }

    fn handle_input(&mut self) -> Result<(), Malformed> {
        let outcome = self.take_requests();
        if self.submitted > 0 {
            self.submitted = 0;
            if self.alone.is_usual(self.session.outstanding() == 1) {
                self.session.kick_in_place();
            } else {
                self.session.kick();
            }
        }
        outcome
    }

    fn handle_completions(&mut self) -> bool {
        if self.session.outstanding() == 0 {
            return false;
        }
        let mut completions = std::mem::take(&mut self.completions);
        self.session.complete(&mut completions, Some(Duration::ZERO));
        let any = !completions.is_empty();
        completions.drain(..).for_each(|completion| self.answer(completion));
        self.completions = completions;
        any
    }

    fn handle_sent(&mut self, count: usize) {
        let pool = &mut self.pool;
        self.replies.sent(count, |_, buffer| pool.give(buffer));
        self.settle();
    }

    fn outstanding(&self) -> usize {
        self.session.outstanding()
    }

    fn completion_fd(&self) -> Option<BorrowedFd<'_>> {
        (self.session.outstanding() > 0).then(|| self.session.completion_fd())
    }

    fn deadline(&self) -> Option<Instant> {
        let waits = self.account.as_ref().is_some_and(Account::waits);
        (self.blocked && waits).then(|| Instant::now() + WAIT_FOR_OTHERS)
    }

    fn abandon(&mut self) {
        self.end_input();
        while self.session.outstanding() > 0 {
            self.session.complete(&mut self.completions, Some(Duration::from_millis(100)));
            self.completions.clear();
        }
        self.replies.clear(|_, _| {});
    }
}

/// Runs `bytes` through the transmission phase of a connection to `export`, as though they had
/// come in pieces of `piece` bytes, with memory of either kind; all replies. For tests that have no
/// socket.
pub fn drive(export: &Export, bytes: &[u8], piece: usize, stock: bool) -> Vec<u8> {
    let agreement = Agreement { export: 0, structured_replies: true, block_status: true };
    let bytes_max = 2 * REQUEST_SIZE_MAX as usize;
    let budget = Arc::new(Budget::new(2 * bytes_max, 1));
    let on_demand = Memory::OnDemand { bytes_max, budget };
    let memory = if stock { Memory::Stock } else { on_demand };
    let mut transmission = Transmission::new(export, agreement, &[], &memory);
    let mut output = Vec::new();
    for mut piece in bytes.chunks(piece) {
        while !piece.is_empty() && !transmission.ended {
            let mut taken = 0;
            for mut slice in transmission.receiver.slices() {
                let count = slice.len().min(piece.len() - taken);
                slice[..count].copy_from_slice(&piece[taken..taken + count]);
                taken += count;
            }
            piece = &piece[taken..];
            transmission.receiver.received(taken);
            if transmission.handle_input().is_err() {
                transmission.end_input();
            }
            transmission.drain(&mut output);
        }
    }
    transmission.end_input();
    transmission.drain(&mut output);
    assert!(transmission.is_finished(), "every request is answered");
    assert_eq!(transmission.pool.held_bytes(), 0, "every buffer comes back");
    output
}

impl Transmission {
    /// Completes and sends everything, to `output`.
    fn drain(&mut self, output: &mut Vec<u8>) {
        loop {
            self.handle_completions();
            while !self.replies.is_empty() {
                let mut slices = [std::io::IoSlice::new(&[]); crate::SLICES_MAX];
                let count = self.replies.slices(&mut slices);
                let before = output.len();
                slices[..count].iter().for_each(|slice| output.extend_from_slice(slice));
                let sent = output.len() - before;
                self.handle_sent(sent);
            }
            if !self.blocked && self.session.outstanding() == 0 {
                return;
            }
            if self.blocked && self.handle_input().is_err() {
                self.end_input();
            }
        }
    }
}
