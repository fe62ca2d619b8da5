//! Requests that were accepted and not yet answered.

use crate::api::{BufferRef, Failure, RequestId, Response};
use crate::memory::{self, NoMemory};
use crate::units::Sequence;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use coulter_format::Lba;

/// What a request still needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Blocks to be looked up from `cursor` on, `outstanding` device reads.
    Read { lba: Lba, count: u32, buffer: BufferRef, wants: Wants, cursor: u32, outstanding: u32 },
    /// Records to be applied; then, with `fua`, a flush.
    Write { parts: u32, fua: bool },
    /// Ranges to be logged from `next` on, records to be applied.
    Discard { next: Lba, end: Lba, parts: u32, fua: bool },
    /// A flush.
    Flush,
}

/// What a lookup of blocks is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wants {
    /// Their data.
    Data,
    /// Only whether they are mapped.
    Presence,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestSlot {
    pub(crate) id: RequestId,
    pub(crate) work: Work,
    pub(crate) failure: Option<Failure>,
}

/// The table of requests.
pub(crate) struct Requests {
    slots: Vec<Option<RequestSlot>>,
    free: Vec<u32>,
    responses: VecDeque<Response>,
    /// Slots of requests that wait for durability, with the sequence that must be durable.
    waiting: VecDeque<(u32, Sequence)>,
    /// A discard is only partly logged.
    pub(crate) discard_under_way: bool,
    /// Waits for the last checkpoint.
    pub(crate) shutdown: Option<RequestId>,
}

impl Requests {
    pub(crate) fn new(capacity: u32) -> Result<Requests, NoMemory> {
        Ok(Requests {
            slots: memory::filled(None, capacity as usize)?,
            free: memory::listed((0..capacity).rev())?,
            responses: memory::queue(capacity as usize)?,
            waiting: memory::queue(capacity as usize)?,
            discard_under_way: false,
            shutdown: None,
        })
    }

    /// A slot for a request; `None` when all are taken.
    pub(crate) fn insert(&mut self, id: RequestId, work: Work) -> Option<u32> {
        let slot = self.free.pop()?;
        self.slots[slot as usize] = Some(RequestSlot { id, work, failure: None });
        Some(slot)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    #[inline]
    pub(crate) fn slot(&mut self, slot: u32) -> &mut RequestSlot {
        self.slots[slot as usize].as_mut().expect("a slot is held until its answer")
    }

    /// Answers a request.
    #[inline]
    pub(crate) fn finish(&mut self, slot: u32) {
        let request = self.slots[slot as usize].take().expect("a request is answered once");
        assert!(self.free.len() < self.slots.len(), "a slot is given back once");
        self.free.push(slot);
        self.respond(request.id, request.failure.map_or(Ok(()), Err));
    }

    /// Notes a failure; the first one is reported.
    pub(crate) fn fail(&mut self, slot: u32, failure: Failure) {
        self.slot(slot).failure.get_or_insert(failure);
    }

    /// Answers one that has no slot.
    #[inline]
    pub(crate) fn respond(&mut self, id: RequestId, result: Result<(), Failure>) {
        self.responses.push_back(Response { id, result });
    }

    /// Whether the answer to this request waits to be taken.
    pub(crate) fn has_answered(&self, id: RequestId) -> bool {
        self.responses.iter().any(|response| response.id == id)
    }

    /// The next answer.
    pub(crate) fn take_response(&mut self) -> Option<Response> {
        self.responses.pop_front()
    }

    /// The request is answered once this sequence is durable.
    pub(crate) fn wait_for(&mut self, slot: u32, sequence: Sequence) {
        assert!(self.slots[slot as usize].is_some(), "who waits holds a slot");
        self.waiting.push_back((slot, sequence));
    }

    /// Whether anybody waits for durability.
    pub(crate) fn wait_for_durability(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Answers those whose records are durable now; returns how many.
    pub(crate) fn durable_up_to(&mut self, durable: Sequence) -> u64 {
        let before = self.waiting.len();
        let mut waiting = core::mem::take(&mut self.waiting);
        waiting.retain(|(slot, target)| {
            if *target <= durable {
                self.finish(*slot);
            }
            *target > durable
        });
        assert!(self.waiting.is_empty(), "an answer makes nobody wait");
        self.waiting = waiting;
        (before - self.waiting.len()) as u64
    }

    /// Nothing becomes durable any more.
    pub(crate) fn fail_waiting(&mut self, failure: Failure) {
        while let Some((slot, _)) = self.waiting.pop_front() {
            self.fail(slot, failure);
            self.finish(slot);
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(feature = "verify")]
impl Requests {
    /// The requests, each with its slot.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &RequestSlot)> {
        (0..).zip(&self.slots).filter_map(|(index, slot)| Some((index, slot.as_ref()?)))
    }

    /// Whether one waits for durability.
    pub(crate) fn is_waiting(&self, slot: u32) -> bool {
        self.waiting.iter().any(|(waiting, _)| *waiting == slot)
    }

    /// # Panics
    /// If somebody waits for what has come, or never comes.
    pub(crate) fn assert_waiting(&self, durable: Sequence, applied: Sequence) {
        let comes = |(_, target): &(u32, Sequence)| *target > durable && *target <= applied;
        assert!(self.waiting.iter().all(comes), "nobody waits for what is durable, or never comes");
    }

    /// How many there can be.
    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// # Panics
    /// If the free slots are not those that are free.
    pub(crate) fn assert_invariants(&self) {
        assert_eq!(self.iter().count(), self.count(), "a slot is free or taken");
        let is_free = |slot: &u32| self.slots[*slot as usize].is_none();
        assert!(self.free.iter().all(is_free), "a slot that is free is empty");
    }
}
