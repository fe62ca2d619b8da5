//! Device commands: those that wait to be taken and those that are out.
//!
//! What the cleaner and a scrub read waits behind all others, and only so much of it is out at once: a device does
//! what it was given in order, and where its bandwidth is capped, as in a cloud, two mebibytes that
//! nobody waits for take longer than a write of the host.
//!
//! # Invariants
//! - One command of the background may always be out, so who waits for it gets on.

use crate::api::{Command, Io, IoId, RecordRef};
use crate::memory::{self, NoMemory};
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
    /// Pages that a record in holes is written with; where they lie in its image.
    Pad { record: RecordRef, at: u16, count: u16 },
    /// A map page; the load's index.
    Load(u16),
    /// A flush for the host.
    Flush,
    /// The checkpoint's flushes and its superblock.
    Checkpoint,
    /// Discarding a freed segment.
    Trim(SegmentIndex),
    /// Preparing a queued segment.
    Prepare(SegmentIndex),
    /// The cleaner's read; the chunk's slot.
    Clean(u8),
    /// A piece of a range that is put in the host's order; where it lies.
    Defrag(SegmentIndex),
    /// A piece of what a scrub reads.
    Scrub(ScrubPiece),
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

/// A piece of a batch of the scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScrubPiece {
    /// The segment that it reads.
    pub(crate) segment: Option<SegmentIndex>,
    /// The first item, and how many.
    pub(crate) place: u16,
    pub(crate) count: u16,
}

impl Purpose {
    /// Whether the command may wait behind all others.
    fn is_background(self) -> bool {
        matches!(self, Purpose::Clean(_) | Purpose::Scrub(_))
    }
}

/// Blocks of a host read at most.
pub(crate) const EXPECTED_MAX: usize = coulter_format::record::ATOMIC_BLOCKS_MAX;

#[derive(Default)]
struct IoSlot {
    purpose: Option<Purpose>,
    /// Blocks that it counts for in the background, from when it is taken on.
    background: u32,
    /// The checksum that a host read of one block expects.
    single: [u32; 1],
    /// Those of a longer one; else a list without memory.
    expected: Vec<u32>,
}

/// The table of commands.
pub(crate) struct Ios {
    slots: Vec<IoSlot>,
    /// Lists of checksums that no read has, each with room for the longest. There are as many lists as host reads of
    /// several blocks were ever out at once, in whichever slots.
    lists: Vec<Vec<u32>>,
    free: Vec<IoId>,
    queue: VecDeque<Io>,
    background: VecDeque<Io>,
    /// Blocks of commands of the background that are out.
    background_out: u32,
    background_max: u32,
    out: usize,
}

impl Ios {
    pub(crate) fn new(capacity: usize) -> Result<Ios, NoMemory> {
        let slot = |_| IoSlot::default();
        Ok(Ios {
            slots: memory::listed((0..capacity).map(slot))?,
            lists: memory::list(capacity)?,
            free: memory::listed((0..capacity as u32).rev().map(IoId))?,
            queue: memory::queue(capacity)?,
            background: memory::queue(capacity)?,
            background_out: 0,
            background_max: u32::MAX,
            out: 0,
        })
    }

    /// Queues a command.
    pub(crate) fn start(&mut self, purpose: Purpose, command: Command) -> IoId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(IoSlot::default());
            IoId(self.slots.len() as u32 - 1)
        });
        self.slots[id.0 as usize].purpose = Some(purpose);
        self.out += 1;
        let queue = if purpose.is_background() { &mut self.background } else { &mut self.queue };
        queue.push_back(Io { id, command });
        id
    }

    /// Queues a host read with the checksums that it must find.
    pub(crate) fn start_read(&mut self, part: ReadPart, command: Command, expected: &[u32]) {
        let id = self.start(Purpose::Read(part), command);
        let slot = &mut self.slots[id.0 as usize];
        assert!(slot.expected.is_empty(), "the one before has given its list back");
        if let [only] = expected {
            slot.single = [*only];
            return;
        }
        let mut list = self.lists.pop().unwrap_or_else(|| Vec::with_capacity(EXPECTED_MAX));
        assert!(expected.len() <= EXPECTED_MAX, "a read is no longer");
        assert!(list.is_empty(), "a list comes back empty");
        list.extend_from_slice(expected);
        slot.expected = list;
    }

    /// The checksums of a host read that has just completed.
    pub(crate) fn expected(&self, id: IoId) -> &[u32] {
        let slot = &self.slots[id.0 as usize];
        if slot.expected.is_empty() { &slot.single } else { &slot.expected }
    }

    /// What a command was for. Its slot stays until [`Ios::recycle`].
    pub(crate) fn complete(&mut self, id: IoId) -> Purpose {
        let slot = &mut self.slots[id.0 as usize];
        assert!(self.out > 0, "what completes was out");
        self.out -= 1;
        self.background_out -= core::mem::take(&mut slot.background);
        slot.purpose.take().expect("a command completes once")
    }

    /// Frees the slot.
    pub(crate) fn recycle(&mut self, id: IoId) {
        let expected = &mut self.slots[id.0 as usize].expected;
        if expected.capacity() > 0 {
            let mut list = core::mem::take(expected);
            list.clear();
            self.lists.push(list);
        }
        self.free.push(id);
    }

    /// How many blocks of the background may be out, unless it is one command.
    pub(crate) fn limit_background(&mut self, blocks: u32) {
        self.background_max = blocks;
    }

    pub(crate) fn take(&mut self) -> Option<Io> {
        if let Some(io) = self.queue.pop_front() {
            return Some(io);
        }
        if !self.background_goes_on() {
            return None;
        }
        let io = self.background.pop_front()?;
        let blocks = io.command.blocks();
        self.slots[io.id.0 as usize].background = blocks;
        assert!(blocks > 0, "a read of the background has blocks");
        self.background_out += blocks;
        Some(io)
    }

    /// Whether there is nothing that may be taken now.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && !self.background_goes_on()
    }

    fn background_goes_on(&self) -> bool {
        let next = self.background.front().map(|io| io.command.blocks());
        let is_within = |blocks| blocks <= self.background_max.saturating_sub(self.background_out);
        next.is_some_and(|blocks| self.background_out == 0 || is_within(blocks))
    }

    /// Commands queued or out.
    pub(crate) fn out_count(&self) -> usize {
        self.out
    }
}

#[cfg(feature = "verify")]
impl Ios {
    /// What the commands are for that are queued or out.
    pub(crate) fn purposes(&self) -> impl Iterator<Item = Purpose> + '_ {
        self.slots.iter().filter_map(|slot| slot.purpose)
    }

    /// # Panics
    /// If the counters contradict the slots.
    pub(crate) fn assert_invariants(&self) {
        assert_eq!(self.purposes().count(), self.out, "commands are counted");
        assert_eq!(self.free.len() + self.out, self.slots.len(), "a slot is free or has a command");
        assert!(self.queue.len() + self.background.len() <= self.out, "what waits is not out yet");
        let blocks: u32 = self.slots.iter().map(|slot| slot.background).sum();
        assert_eq!(self.background_out, blocks, "blocks of the background are counted");
        for io in self.queue.iter().chain(&self.background) {
            assert!(self.slots[io.id.0 as usize].purpose.is_some(), "what waits has a purpose");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Target;
    use coulter_format::Pba;

    fn read(count: u32) -> Command {
        let target = Target::RecordPart { record: RecordRef(0), block: 0 };
        Command::Read { pba: Pba(1), count, target }
    }

    #[test]
    fn what_the_cleaner_reads_waits_behind_all_others_and_only_so_much_is_out() {
        let mut ios = Ios::new(8).expect("there is memory");
        ios.limit_background(128);
        let cleaning: Vec<IoId> =
            [64, 64, 64].map(|count| ios.start(Purpose::Clean(0), read(count))).into();
        let load = ios.start(Purpose::Load(0), read(1));
        let taken: Vec<IoId> = core::iter::from_fn(|| ios.take()).map(|io| io.id).collect();
        assert_eq!(taken, [load, cleaning[0], cleaning[1]]);
        assert!(ios.is_empty(), "nothing may be taken now");
        assert_eq!(ios.out_count(), 4);
        ios.complete(cleaning[0]);
        assert_eq!(ios.take().map(|io| io.id), Some(cleaning[2]));
    }

    #[test]
    fn one_command_of_the_cleaner_may_always_be_out() {
        let mut ios = Ios::new(8).expect("there is memory");
        ios.limit_background(0);
        let large = ios.start(Purpose::Clean(0), read(256));
        let next = ios.start(Purpose::Clean(1), read(1));
        assert_eq!(ios.take().map(|io| io.id), Some(large));
        assert_eq!(ios.take(), None);
        ios.complete(large);
        assert_eq!(ios.take().map(|io| io.id), Some(next));
    }
}
