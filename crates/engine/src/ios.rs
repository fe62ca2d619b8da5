//! Device commands: those that wait to be taken and those that are out.

use crate::api::{Command, Io, IoId, RecordRef};
use crate::units::SegmentIndex;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Why a command was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A part of a host read: the request's slot and what it covers.
    Read(ReadPart),
    /// A record's write.
    Record(RecordRef),
    /// A map page; the load's index.
    Load(u16),
    /// A flush for the host.
    Flush,
    /// The checkpoint's flushes and its superblock.
    Checkpoint,
    /// Discarding a freed segment.
    Trim(SegmentIndex),
    /// The cleaner's read; the chunk's slot.
    Clean(u8),
    /// A piece of a range that is put in the host's order; where it lies.
    Defrag(SegmentIndex),
    /// Recovery's read.
    Recover(u32),
}

/// A run of blocks of one host read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadPart {
    pub(crate) request: u32,
    /// First block, counted from the request's start.
    pub(crate) first: u32,
    pub(crate) segment: SegmentIndex,
}

struct Slot {
    purpose: Option<Purpose>,
    /// Checksums that a host read expects.
    expected: Vec<u32>,
}

/// The table of commands.
pub(crate) struct Ios {
    slots: Vec<Slot>,
    free: Vec<IoId>,
    queue: VecDeque<Io>,
    out: usize,
}

impl Ios {
    pub(crate) fn new(capacity: usize) -> Ios {
        let slot = |_| Slot { purpose: None, expected: Vec::new() };
        Ios {
            slots: (0..capacity).map(slot).collect(),
            free: (0..capacity as u32).rev().map(IoId).collect(),
            queue: VecDeque::with_capacity(capacity),
            out: 0,
        }
    }

    /// Queues a command.
    pub(crate) fn start(&mut self, purpose: Purpose, command: Command) -> IoId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { purpose: None, expected: Vec::new() });
            IoId(self.slots.len() as u32 - 1)
        });
        self.slots[id.0 as usize].purpose = Some(purpose);
        self.out += 1;
        self.queue.push_back(Io { id, command });
        id
    }

    /// Queues a host read with the checksums that it must find.
    pub(crate) fn start_read(&mut self, part: ReadPart, command: Command, expected: &[u32]) {
        let id = self.start(Purpose::Read(part), command);
        let slot = &mut self.slots[id.0 as usize];
        slot.expected.clear();
        slot.expected.extend_from_slice(expected);
    }

    /// The checksums of a host read that has just completed.
    pub(crate) fn expected(&self, id: IoId) -> &[u32] {
        &self.slots[id.0 as usize].expected
    }

    /// What a command was for. Its slot stays until [`Ios::recycle`].
    pub(crate) fn complete(&mut self, id: IoId) -> Purpose {
        let purpose = self.slots[id.0 as usize].purpose.take();
        self.out -= 1;
        purpose.expect("a command completes once")
    }

    /// Frees the slot.
    pub(crate) fn recycle(&mut self, id: IoId) {
        self.free.push(id);
    }

    pub(crate) fn take(&mut self) -> Option<Io> {
        self.queue.pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Commands queued or out.
    pub(crate) fn out_count(&self) -> usize {
        self.out
    }
}
