//! An I/O queue: commands out of PDUs, to the session; completions of the session, to PDUs. It knows no
//! socket.
//!
//! # Invariants
//! - One Write is one request, however many PDUs bring its data: it is atomic as the service says.
//! - A queue that was ended submits nothing more; see [`Queue`](super::controller::Queue).
//! - Data in a capsule always has room: a slot's worth each. Data that is asked for, and data that is read,
//!   waits its turn for a buffer; capsules behind it do not, so that the data of one command never waits
//!   behind the command of another. A turn comes with any buffer that is free again: a command was
//!   answered, an answer was sent, or, for a queue that holds nothing, others gave memory back.
//! - The data of all queues together, capsules apart, has the memory of the target's budget.
//! - Every command is answered once. A data digest that is wrong fails its command, and no other.

mod plan;

use self::plan::Plan;
use super::front::{Front, NSID, RANGE_BLOCKS_MAX};
use super::outcome;
use super::pdus::{IN_CAPSULE_SIZE, Pdu, Pdus};
use super::subsystem::QueueSeat;
use super::tally::Counts;
use coulter::buffer::Buffer;
use coulter::service::{Completion, Operation, Request, RequestError, Session};
use coulter_attach::pool::BufferPool;
use coulter_net::{Account, Alone, Budget, UNSENT_MAX};
use coulter_nvme::log::ErrorEntry;
use coulter_nvme::opcode::{self, io};
use coulter_nvme::range::{RANGE_SIZE, Range};
use coulter_nvme::tcp::{self, Fatal};
use coulter_nvme::{Cqe, Sqe, Status};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// Commands that are taken beyond those that fit the queue: some hosts count from one.
const SLOTS_BEYOND: usize = 16;
/// Bytes of idle buffers that a queue keeps for its next commands.
const IDLE_BYTES_MAX: usize = 8 << 20;
/// What a queue of this kernel's own initiator has, all of it from the start.
const STOCK: [(usize, usize); 4] = [(4 << 10, 64), (64 << 10, 12), (256 << 10, 4), (1 << 20, 2)];
/// The same for data in capsules: a slot's worth each.
const CAPSULE_STOCK_SIZE: usize = IN_CAPSULE_SIZE as usize;
/// Bytes of idle buffers that a queue keeps for capsules.
const CAPSULE_IDLE_MAX: usize = 1 << 20;

/// The mark of a payload whose buffer is of the pool.
pub(super) const OF_POOL: u64 = 1;

/// What an I/O queue is like.
pub(super) struct QueueTerms {
    /// Slots, as the host has them.
    pub(super) size: u32,
    pub(super) flow_control_disabled: bool,
    /// Bytes of buffers for data that does not come in capsules.
    pub(super) memory_max: usize,
    /// Bytes of all queues together; `None` if the host is this machine's own kernel: its queues
    /// have a stock each.
    pub(super) budget: Option<Arc<Budget>>,
}

pub(super) struct Io {
    session: Box<dyn Session>,
    slots: Vec<Slot>,
    idle: Vec<u16>,
    /// Slots that wait for a buffer, first come first served.
    waiting: VecDeque<u16>,
    /// The slot whose data is arriving.
    arriving: Option<u16>,
    pool: BufferPool,
    /// Of `pool`, unless that is a stock.
    account: Option<Account>,
    capsules: BufferPool,
    completions: Vec<Completion>,
    submitted: usize,
    alone: Alone,
    counts: Counts,
    block_size_log: u8,
    sq_head: u32,
    terms: QueueTerms,
    is_blocked: bool,
    is_over: bool,
    // The last to be dropped: when nothing of the queue is under way.
    seat: QueueSeat,
}

/// A command that is under way.
struct Slot {
    cid: u16,
    opcode: u8,
    offset: u64,
    length: u32,
    fua: bool,
    /// Its data came in its capsule, and its buffers are from there.
    in_capsule: bool,
    /// Bytes of its data that have arrived.
    received: u32,
    /// Whether the service may still be asked: its data is arriving.
    is_receiving: bool,
    buffer: Buffer,
    /// For what is compared with.
    second: Buffer,
    /// Requests that the session has of it.
    open: u32,
    status: Status,
}

impl Io {
    pub(super) fn new(seat: QueueSeat, terms: QueueTerms) -> Io {
        let front = seat.subsystem.front.as_ref().expect("I/O queues are of volumes");
        let count = terms.size as usize + SLOTS_BEYOND;
        let slot = || Slot {
            cid: 0,
            opcode: 0,
            offset: 0,
            length: 0,
            fua: false,
            in_capsule: false,
            received: 0,
            is_receiving: false,
            buffer: Buffer::empty(),
            second: Buffer::empty(),
            open: 0,
            status: Status::SUCCESS,
        };
        let capsules_max = 2 * count * CAPSULE_STOCK_SIZE;
        let (pool, capsules) = match terms.budget {
            None => {
                (BufferPool::stocked(&STOCK), BufferPool::stocked(&[(CAPSULE_STOCK_SIZE, count)]))
            }
            Some(_) => (
                BufferPool::on_demand(terms.memory_max, IDLE_BYTES_MAX),
                BufferPool::on_demand(capsules_max, CAPSULE_IDLE_MAX),
            ),
        };
        Io {
            session: front.connect(),
            block_size_log: front.block_size_log,
            slots: (0..count).map(|_| slot()).collect(),
            idle: (0..count as u16).rev().collect(),
            waiting: VecDeque::with_capacity(count),
            arriving: None,
            pool,
            account: terms.budget.clone().map(Account::new),
            capsules,
            completions: Vec::with_capacity(count),
            submitted: 0,
            alone: Alone::default(),
            counts: Counts::default(),
            sq_head: 0,
            terms,
            is_blocked: false,
            is_over: false,
            seat,
        }
    }

    fn front(&self) -> &Front {
        self.seat.subsystem.front.as_ref().expect("I/O queues are of volumes")
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether others have ended it: its host is not to hear of it.
    pub(super) fn was_ended(&self) -> bool {
        self.seat.queue.is_over()
    }

    pub(super) fn outstanding(&self) -> usize {
        self.session.outstanding()
    }

    pub(super) fn completion_fd(&self) -> Option<BorrowedFd<'_>> {
        (self.session.outstanding() > 0).then(|| self.session.completion_fd())
    }

    pub(super) fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        // One that was ended need not hear it again.
        (!self.is_over).then(|| self.seat.queue.wake.fd())
    }

    /// Takes all commands and data that have arrived, and starts what can be.
    pub(super) fn handle_input(&mut self, pdus: &mut Pdus) -> Result<(), Fatal> {
        let outcome = self.take_pdus(pdus);
        self.kick();
        outcome
    }

    fn kick(&mut self) {
        if self.submitted > 0 {
            self.submitted = 0;
            if self.alone.is_usual(self.session.outstanding() == 1) {
                self.session.kick_in_place();
            } else {
                self.session.kick();
            }
        }
    }

    fn take_pdus(&mut self, pdus: &mut Pdus) -> Result<(), Fatal> {
        self.is_blocked = false;
        while pdus.receiver.skipped() {
            self.is_over |= self.seat.queue.is_over();
            if self.is_over {
                break;
            }
            if let Some(slot) = self.arriving {
                let Some((buffer, is_right)) = pdus.take_data() else { break };
                self.arriving = None;
                self.data_arrived(slot, buffer, is_right, pdus);
                continue;
            }
            match pdus.peek()? {
                None => break,
                Some(Pdu::Term) => self.is_over = true,
                Some(Pdu::Data(data, is_last)) => self.begin_data(data, is_last, pdus)?,
                Some(Pdu::Command(sqe, data_size)) => {
                    let is_full = pdus.replies.header_bytes() > UNSENT_MAX;
                    let Some(slot) = self.idle.pop_if(|_| !is_full) else {
                        self.is_blocked = true;
                        break;
                    };
                    self.begin(slot, &sqe, data_size, pdus)?;
                }
            }
        }
        Ok(())
    }

    fn begin(
        &mut self,
        slot: u16,
        sqe: &Sqe,
        data_size: u32,
        pdus: &mut Pdus,
    ) -> Result<(), Fatal> {
        let status = match self.plan(slot, sqe, data_size) {
            Ok(plan) => {
                self.start(slot, &plan, pdus);
                return Ok(());
            }
            Err(status) => status,
        };
        pdus.skip_data();
        self.slots[usize::from(slot)].status = status;
        self.finish(slot, pdus);
        Ok(())
    }

    fn start(&mut self, slot: u16, plan: &Plan, pdus: &mut Pdus) {
        let place = &mut self.slots[usize::from(slot)];
        match plan {
            Plan::Now => {
                pdus.skip_data();
                self.submit(slot, pdus);
            }
            Plan::Outward | Plan::Inward => {
                place.is_receiving = matches!(plan, Plan::Inward);
                pdus.skip_data();
                self.waiting.push_back(slot);
                self.grant(pdus);
            }
            Plan::InCapsule => {
                place.in_capsule = true;
                place.is_receiving = true;
                let length = place.length as usize;
                if place.opcode == io::COMPARE {
                    place.second = self.capsules.take(length);
                }
                pdus.begin_data(self.capsules.take(length), 0..length);
                self.arriving = Some(slot);
            }
        }
    }

    /// Gives buffers to those that wait for them, as long as there are any.
    fn grant(&mut self, pdus: &mut Pdus) {
        while let Some(slot) = self.waiting.front().copied() {
            let place = &mut self.slots[usize::from(slot)];
            let length = place.length as usize;
            let is_compared = place.opcode == io::COMPARE;
            let count = if is_compared { 2 } else { 1 };
            let may_take = self.pool.can_take(count * length)
                && match &mut self.account {
                    Some(account) => account.may_take(&mut self.pool, length, count),
                    None => true,
                };
            if !may_take {
                return;
            }
            self.waiting.pop_front();
            place.buffer = self.pool.take(length);
            if is_compared {
                place.second = self.pool.take(length);
            }
            if place.is_receiving {
                let (cid, length) = (place.cid, place.length);
                let wish = tcp::Data { cid, tag: slot, offset: 0, length };
                pdus.push_request_for_data(wish);
            } else {
                self.submit(slot, pdus);
            }
        }
    }

    /// Begins to take data that was asked for.
    fn begin_data(&mut self, data: tcp::Data, is_last: bool, pdus: &mut Pdus) -> Result<(), Fatal> {
        let tag = usize::from(data.tag);
        let place = self
            .slots
            .get_mut(tag)
            .filter(|place| place.is_receiving && !place.in_capsule && !place.buffer.is_empty());
        let Some(place) = place else { return Err(Fatal::InvalidField { offset: 10 }) };
        if place.cid != data.cid {
            return Err(Fatal::InvalidField { offset: 8 });
        }
        let end = data.offset.checked_add(data.length).filter(|end| *end <= place.length);
        let Some(end) = end.filter(|_| data.offset == place.received) else {
            return Err(Fatal::DataRange);
        };
        if is_last != (end == place.length) {
            return Err(Fatal::InvalidField { offset: 1 });
        }
        let range = data.offset as usize..end as usize;
        pdus.begin_data(std::mem::replace(&mut place.buffer, Buffer::empty()), range);
        place.received = end;
        self.arriving = Some(data.tag);
        Ok(())
    }

    fn data_arrived(&mut self, slot: u16, buffer: Buffer, is_right: bool, pdus: &mut Pdus) {
        let place = &mut self.slots[usize::from(slot)];
        place.buffer = buffer;
        if !is_right {
            // The rest of the data is still on its way, if there is a rest.
            place.status = Status::TRANSIENT_TRANSPORT_ERROR;
        }
        if !place.in_capsule && place.received < place.length {
            return;
        }
        place.is_receiving = false;
        if !place.status.is_success() {
            return self.finish(slot, pdus);
        }
        self.submit(slot, pdus);
    }

    /// Hands a command to the session; everything that it needs is there.
    fn submit(&mut self, slot: u16, pdus: &mut Pdus) {
        let place = &mut self.slots[usize::from(slot)];
        let tag = u64::from(slot);
        let (offset, length) = (place.offset, u64::from(place.length));
        let take = |buffer: &mut Buffer| std::mem::replace(buffer, Buffer::empty());
        let (operation, buffer) = match place.opcode {
            io::READ | io::VERIFY => (Operation::Read, take(&mut place.buffer)),
            io::WRITE => (Operation::Write { fua: place.fua }, take(&mut place.buffer)),
            io::COMPARE => (Operation::Read, take(&mut place.second)),
            io::WRITE_ZEROES => (Operation::WriteZeroes { fua: place.fua }, Buffer::empty()),
            io::FLUSH => (Operation::Flush, Buffer::empty()),
            _ => return self.submit_ranges(slot, pdus),
        };
        place.open = 1;
        self.submitted += 1;
        self.session.submit(Request { tag, operation, offset, length, buffer });
    }

    /// The ranges of a Dataset Management, each a discard. Of anything but deallocation nothing is done.
    fn submit_ranges(&mut self, slot: u16, pdus: &mut Pdus) {
        let limit = self.front().size() >> self.block_size_log;
        let place = &mut self.slots[usize::from(slot)];
        let count = place.offset as usize;
        let ranges = || {
            let bytes = place.buffer[..count * RANGE_SIZE].chunks_exact(RANGE_SIZE);
            bytes.map(|bytes| Range::decode(bytes.first_chunk().expect("it is whole")))
        };
        let is_wrong = |range: Range| {
            let end = range.slba.checked_add(range.count.into());
            end.is_none_or(|end| end > limit)
        };
        if ranges().any(is_wrong) {
            place.status = Status::LBA_OUT_OF_RANGE.final_one();
        } else if ranges().any(|range| range.count > RANGE_BLOCKS_MAX) {
            place.status = Status::INVALID_FIELD.final_one();
        } else if place.fua {
            for range in ranges().filter(|range| range.count > 0) {
                let request = Request {
                    tag: slot.into(),
                    operation: Operation::Discard,
                    offset: range.slba << self.block_size_log,
                    length: u64::from(range.count) << self.block_size_log,
                    buffer: Buffer::empty(),
                };
                self.session.submit(request);
                self.submitted += 1;
                place.open += 1;
            }
        }
        if place.open == 0 {
            self.finish(slot, pdus);
        }
    }

    /// Answers what the session has completed; whether that was anything.
    pub(super) fn handle_completions(&mut self, pdus: &mut Pdus) -> bool {
        if self.seat.queue.is_over() {
            self.is_over = true;
        }
        let mut any = false;
        if self.session.outstanding() > 0 {
            let mut completions = std::mem::take(&mut self.completions);
            self.session.complete(&mut completions, Some(Duration::ZERO));
            any = !completions.is_empty();
            completions.drain(..).for_each(|completion| self.complete(completion, pdus));
            self.completions = completions;
        }
        if any {
            self.seat.subsystem.tally.add(std::mem::take(&mut self.counts));
            self.settle();
        }
        // Also when nothing has completed: buffers come back with what was sent, too.
        if !self.is_over {
            self.grant(pdus);
            self.kick();
        }
        any
    }

    /// Gives back to the other queues what this one does not need any more.
    fn settle(&mut self) {
        if let Some(account) = &mut self.account {
            account.settle(&mut self.pool);
        }
    }

    /// True if commands wait for memory of other hosts: no event of the queue's own will wake it.
    pub(super) fn waits_for_others(&self) -> bool {
        !self.is_over && self.account.as_ref().is_some_and(Account::waits)
    }

    fn complete(&mut self, completion: Completion, pdus: &mut Pdus) {
        let Completion { tag, result, buffer, .. } = completion;
        let place = &mut self.slots[tag as usize];
        assert!(place.open > 0, "a request completes once");
        place.open -= 1;
        let is_compared = place.opcode == io::COMPARE;
        if let Err(error) = result {
            if error == RequestError::Closed {
                // There is no volume any more: the host is to come back.
                self.is_over = true;
            }
            let operation = if opcode::receives_data(place.opcode) || is_compared {
                Operation::Read
            } else {
                Operation::Flush
            };
            if matches!(error, RequestError::Corrupt { .. }) {
                self.counts.media_errors += 1;
            }
            place.status = outcome::from_request_error(error, operation);
        }
        match place.opcode {
            io::COMPARE => {
                if place.status.is_success() && place.buffer[..] != buffer[..] {
                    place.status = Status::COMPARE_FAILURE.final_one();
                }
                place.second = buffer;
            }
            io::DATASET_MANAGEMENT => {}
            _ => place.buffer = buffer,
        }
        if place.open == 0 {
            self.finish(tag as u16, pdus);
        }
    }

    /// Answers a command, and gives back what it had.
    fn finish(&mut self, slot: u16, pdus: &mut Pdus) {
        let place = &mut self.slots[usize::from(slot)];
        let take = |buffer: &mut Buffer| std::mem::replace(buffer, Buffer::empty());
        let (buffer, second) = (take(&mut place.buffer), take(&mut place.second));
        let (cid, opcode, status) = (place.cid, place.opcode, place.status);
        let (in_capsule, length) = (place.in_capsule, u64::from(place.length));
        let lba = place.offset >> self.block_size_log;
        (place.in_capsule, place.is_receiving) = (false, false);
        self.idle.push(slot);
        assert!(self.idle.len() <= self.slots.len(), "a command is answered once");
        self.sq_head = (self.sq_head + 1) % self.terms.size;
        let has_data = opcode == io::READ && status.is_success();
        let is_all = has_data && self.terms.flow_control_disabled;
        self.count(opcode, status, length);
        if has_data {
            pdus.push_data(cid, buffer, OF_POOL, is_all);
        } else {
            let pool = if in_capsule { &mut self.capsules } else { &mut self.pool };
            pool.give(buffer);
            pool.give(second);
        }
        if status == Status::NAMESPACE_NOT_READY {
            // The volume is gone. With an answer some hosts would fail the command and others would try it again.
            // Without one the connection ends, and all hosts try the command again on the next.
            assert!(self.is_over, "nothing is answered after this");
            return;
        }
        if !status.is_success() {
            let sq_id = self.seat.queue.id;
            let entry = ErrorEntry { number: 0, sq_id, cid, status, lba, nsid: NSID };
            self.seat.subsystem.note_error(entry);
        }
        if !is_all {
            let no_head = self.terms.flow_control_disabled;
            let sq_head = if no_head { u16::MAX } else { self.sq_head as u16 };
            let sq_id = self.seat.queue.id;
            pdus.push_response(&Cqe { result: 0, sq_head, sq_id, cid, status });
        }
    }

    fn count(&mut self, opcode: u8, status: Status, length: u64) {
        if !status.is_success() {
            return;
        }
        match opcode {
            io::READ | io::COMPARE | io::VERIFY => {
                self.counts.reads += 1;
                self.counts.bytes_read += length;
            }
            io::WRITE => {
                self.counts.writes += 1;
                self.counts.bytes_written += length;
            }
            _ => {}
        }
    }

    /// A payload was sent.
    pub(super) fn give_back(&mut self, buffer: Buffer) {
        self.pool.give(buffer);
        self.settle();
    }

    /// Nothing more comes in: what was submitted is still answered.
    pub(super) fn end_input(&mut self, pdus: &mut Pdus) {
        self.is_over = true;
        self.waiting.clear();
        if let Some(slot) = self.arriving.take() {
            let in_capsule = self.slots[usize::from(slot)].in_capsule;
            let pool = if in_capsule { &mut self.capsules } else { &mut self.pool };
            if let Some(buffer) = pdus.abandon_data() {
                pool.give(buffer);
            }
        }
    }

    /// Returns once the session has handed every buffer back.
    pub(super) fn abandon(&mut self) {
        while self.session.outstanding() > 0 {
            self.session.complete(&mut self.completions, Some(Duration::from_millis(100)));
            self.completions.clear();
        }
    }
}
