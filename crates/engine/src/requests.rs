//! Requests that were accepted and not yet answered.

use crate::api::{BufferRef, Failure, RequestId};
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
pub(crate) struct Slot {
    pub(crate) id: RequestId,
    pub(crate) work: Work,
    pub(crate) failure: Option<Failure>,
}

/// The table of requests.
pub(crate) struct Requests {
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
}

impl Requests {
    pub(crate) fn new(capacity: u32) -> Requests {
        Requests {
            slots: alloc::vec![None; capacity as usize],
            free: (0..capacity).rev().collect(),
        }
    }

    /// A slot for a request; `None` when all are taken.
    pub(crate) fn insert(&mut self, id: RequestId, work: Work) -> Option<u32> {
        let slot = self.free.pop()?;
        self.slots[slot as usize] = Some(Slot { id, work, failure: None });
        Some(slot)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    pub(crate) fn slot(&mut self, slot: u32) -> &mut Slot {
        self.slots[slot as usize].as_mut().expect("a slot is held until its answer")
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Slot {
        self.free.push(slot);
        self.slots[slot as usize].take().expect("a request is answered once")
    }

    pub(crate) fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

impl crate::Engine {
    /// Answers a request.
    pub(crate) fn finish_request(&mut self, slot: u32) {
        let request = self.requests.remove(slot);
        let result = request.failure.map_or(Ok(()), Err);
        self.respond(request.id, result);
    }

    /// Notes a failure; the first one is reported.
    pub(crate) fn fail_request(&mut self, slot: u32, failure: Failure) {
        self.requests.slot(slot).failure.get_or_insert(failure);
    }
}

#[cfg(feature = "verify")]
impl Requests {
    /// The requests, each with its slot.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Slot)> {
        (0..).zip(&self.slots).filter_map(|(index, slot)| Some((index, slot.as_ref()?)))
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
