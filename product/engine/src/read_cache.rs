//! The translation cache: where host blocks lie, for clients that read the device themselves.
//!
//! The loop's thread alone fills and empties it; any thread looks up. It is a table of fixed size, in
//! which every address has one slot, and a count of readers for every segment.
//!
//! # Protocol
//! ```text
//! a client                                the loop
//! 1. looks up: place and checksum         a. the map changes: the slot is changed or emptied
//! 2. counts itself in the segment         b. the write or discard is answered
//! 3. looks up again: the same?            c. later, before a segment is trimmed, opened or
//! 4. reads the device, compares              written into: does anybody read it?
//! 5. counts itself out
//! ```
//! Step 2 and step 3, and step a and step c, each have a sequentially consistent fence between them. So
//! either the client sees in step 3 that the slot has changed, and reads nothing, or the loop sees in step
//! c that the segment is read.
//!
//! # Invariants
//! - What a lookup finds equals the map. [`crate::Engine`]'s `assert_invariants` compares the two.
//! - A slot is changed before the request is answered that changes the map. A client that looks up after
//!   an answer, its own or one that it heard of, finds nothing older.
//! - Nothing is filled in while a write may be answered that has not taken effect: see
//!   [`ReadCache::allow_filling`].
//! - A client keeps what lies in a segment from being overwritten only between steps 2 and 5, and only
//!   that which was current in step 3.
//!
//! # Does not
//! read the device, compare checksums, or wait. An address that is not here is looked up by the loop.

use crate::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use alloc::boxed::Box;
use alloc::vec::Vec;
use coulter_format::{BlockPointer, Lba, Pba};

/// Blocks of one lookup at most.
pub const READ_BLOCKS_MAX: usize = 32;

/// Bytes of a slot.
pub const SLOT_SIZE: u64 = 16;

/// Bits of a key that hold the address, plus one. The others hold the generation.
const ADDRESS_BITS: u32 = 48;

/// Addresses of a range that are forgotten one by one. A longer one empties the whole cache, in one step.
const FORGOTTEN_ONE_BY_ONE_MAX: u64 = 4096;

/// Where one block lies. The order in which the two words change is the protocol: see [`Slot::set`].
struct Slot {
    /// Generation and address, plus one; zero if nothing is here.
    key: AtomicU64,
    /// Device address and checksum.
    value: AtomicU64,
}

impl Slot {
    /// The key is empty while the value changes: a reader that finds the same key, value, and key and value
    /// once more has seen the two together.
    fn set(&self, key: u64, value: u64) {
        self.key.store(0, Ordering::Release);
        self.value.store(value, Ordering::Release);
        self.key.store(key, Ordering::Release);
    }

    fn holds(&self, key: u64, value: u64) -> bool {
        self.key.load(Ordering::Acquire) == key && self.value.load(Ordering::Acquire) == value
    }
}

/// A word that shares its cache line with nothing.
#[repr(align(64))]
struct Apart<T>(T);

/// See the [module](self).
pub struct ReadCache {
    slots: Box<[Slot]>,
    /// By segment: clients that read it.
    readers: Box<[AtomicU32]>,
    first_segment: u32,
    segment_shift: u32,
    /// Entries of other generations are void.
    generation: Apart<AtomicU64>,
    /// The loop has found a segment being read that it would use.
    is_awaited: Apart<AtomicBool>,
    /// Only the loop looks at it.
    may_fill: AtomicBool,
    is_closed: AtomicBool,
}

/// What a client may read, once it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The first block; the others follow it, in the same segment.
    pub pba: Pba,
}

/// A lookup that found nothing, or not all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    /// The loop waits for a reader that is gone again: it must be woken.
    pub wakes: bool,
}

impl Miss {
    /// It counted nobody.
    const HERE: Miss = Miss { wakes: false };
}

impl ReadCache {
    /// A cache of at most `size` bytes, and four for each segment, for a volume of `volume_size` blocks.
    /// `None` if the size is less than a slot, the volume has more addresses than a key can tell apart, or
    /// there is no such memory: then the loop looks everything up.
    pub fn new(
        size: u64,
        volume_size: u64,
        first: Pba,
        segment_blocks: u32,
        segments: u32,
    ) -> Option<ReadCache> {
        assert!(segment_blocks.is_power_of_two(), "a segment is a power of two");
        let wanted = (size / SLOT_SIZE).min(volume_size.checked_next_power_of_two()?);
        if wanted == 0 || volume_size >= 1 << (ADDRESS_BITS - 1) {
            return None;
        }
        let count = 1_u64 << wanted.ilog2();
        assert!(count <= wanted, "the cache is no larger than was asked for");
        let empty = || Slot { key: AtomicU64::new(0), value: AtomicU64::new(0) };
        let (mut slots, mut readers) = (Vec::new(), Vec::new());
        slots.try_reserve_exact(count as usize).ok()?;
        slots.extend((0..count).map(|_| empty()));
        readers.try_reserve_exact(segments as usize).ok()?;
        readers.extend((0..segments).map(|_| AtomicU32::new(0)));
        Some(ReadCache {
            slots: slots.into_boxed_slice(),
            readers: readers.into_boxed_slice(),
            first_segment: first.0,
            segment_shift: segment_blocks.trailing_zeros(),
            generation: Apart(AtomicU64::new(1)),
            is_awaited: Apart(AtomicBool::new(false)),
            may_fill: AtomicBool::new(true),
            is_closed: AtomicBool::new(false),
        })
    }

    /// Bytes that it takes.
    pub fn size(&self) -> u64 {
        self.slots.len() as u64 * SLOT_SIZE + self.readers.len() as u64 * 4
    }

    // The clients' side.

    /// Looks up `checksums.len()` blocks from `lba` on. If all are here and lie one behind the other in one
    /// segment, the caller is counted as a reader of it until [`ReadCache::end_read`], and `checksums` are
    /// those of the blocks.
    ///
    /// # Errors
    /// [`Miss`]: the loop has to look them up.
    ///
    /// # Panics
    /// If there are none or more than [`READ_BLOCKS_MAX`].
    pub fn begin_read(&self, lba: Lba, checksums: &mut [u32]) -> Result<Place, Miss> {
        assert!((1..=READ_BLOCKS_MAX).contains(&checksums.len()), "a lookup is of some blocks");
        let generation = self.generation.0.load(Ordering::Acquire);
        let first = self.look_up(generation, lba).ok_or(Miss::HERE)?;
        checksums[0] = first.checksum;
        for (index, checksum) in checksums.iter_mut().enumerate().skip(1) {
            let next = self.look_up(generation, Lba(lba.0 + index as u64)).ok_or(Miss::HERE)?;
            *checksum = next.checksum;
            if next.pba.0 != first.pba.0.wrapping_add(index as u32) {
                return Err(Miss::HERE);
            }
        }
        let last = first.pba.plus(checksums.len() as u32 - 1);
        if self.segment_of(first.pba) != self.segment_of(last) {
            return Err(Miss::HERE);
        }
        self.reader(first.pba).fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let is_current = self.generation.0.load(Ordering::Acquire) == generation
            && checksums.iter().enumerate().all(|(index, checksum)| {
                let lba = Lba(lba.0 + index as u64);
                let pointer =
                    BlockPointer { pba: first.pba.plus(index as u32), checksum: *checksum };
                self.slot(lba).holds(key(generation, lba), value(pointer))
            });
        if is_current || mistakes::unchecked() {
            return Ok(Place { pba: first.pba });
        }
        Err(Miss { wakes: self.end_read(Place { pba: first.pba }) })
    }

    /// The read has ended, however. True if the loop waits for that: it must be woken.
    #[must_use = "the loop may wait"]
    pub fn end_read(&self, place: Place) -> bool {
        let before = self.reader(place.pba).fetch_sub(1, Ordering::Release);
        assert!(before > 0, "a read ends once");
        fence(Ordering::SeqCst);
        self.is_awaited.0.load(Ordering::Relaxed) && self.is_awaited.0.swap(false, Ordering::AcqRel)
    }

    /// Whether nothing is found here any more.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    fn look_up(&self, generation: u64, lba: Lba) -> Option<BlockPointer> {
        let slot = self.slot(lba);
        if slot.key.load(Ordering::Acquire) != key(generation, lba) {
            return None;
        }
        let value = slot.value.load(Ordering::Acquire);
        Some(BlockPointer { pba: Pba((value >> 32) as u32), checksum: value as u32 })
    }

    fn slot(&self, lba: Lba) -> &Slot {
        // Neighbours stay neighbours. What is further apart than the table is long is mixed.
        let count = self.slots.len() as u64;
        let lap = (lba.0 >> count.trailing_zeros()).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        &self.slots[(lba.0.wrapping_add(lap) & (count - 1)) as usize]
    }

    fn segment_of(&self, pba: Pba) -> usize {
        (pba.0.wrapping_sub(self.first_segment) >> self.segment_shift) as usize
    }

    fn reader(&self, pba: Pba) -> &AtomicU32 {
        &self.readers[self.segment_of(pba)]
    }

    // The loop's side.

    /// Whether from now on blocks may be filled in. They may not while a request is, or may be, answered that
    /// changes the map and has not changed it yet: what the map says is older than that.
    pub fn allow_filling(&self, may_fill: bool) {
        self.may_fill.store(may_fill, Ordering::Relaxed);
    }

    /// A block lies there. Whatever had its slot makes room.
    pub fn fill(&self, lba: Lba, pointer: BlockPointer) {
        if self.is_filling() {
            self.set(lba, pointer);
        }
    }

    /// A block lies elsewhere now: that is noted if it was here, or if its slot is free. What is here may
    /// always be changed, for it is forgotten when a request is answered that changes it later.
    pub fn update(&self, lba: Lba, pointer: BlockPointer) {
        let generation = self.generation.0.load(Ordering::Relaxed);
        let before = self.slot(lba).key.load(Ordering::Relaxed);
        let is_here = before == key(generation, lba);
        let is_free = before >> ADDRESS_BITS != generation;
        if (is_here || (is_free && self.is_filling())) && !mistakes::kept() {
            self.set(lba, pointer);
        }
    }

    fn is_filling(&self) -> bool {
        self.may_fill.load(Ordering::Relaxed) && !self.is_closed.load(Ordering::Relaxed)
    }

    fn set(&self, lba: Lba, pointer: BlockPointer) {
        assert!(pointer.is_mapped() && !pointer.is_lost(), "only what lies somewhere is read");
        assert!(self.segment_of(pointer.pba) < self.readers.len(), "and lies in a segment");
        let key = key(self.generation.0.load(Ordering::Relaxed), lba);
        self.slot(lba).set(key, value(pointer));
    }

    /// Nothing is known of a block any more.
    pub fn forget(&self, lba: Lba) {
        let slot = self.slot(lba);
        let key = key(self.generation.0.load(Ordering::Relaxed), lba);
        if slot.key.load(Ordering::Relaxed) == key && !mistakes::kept() {
            slot.key.store(0, Ordering::Release);
        }
    }

    /// Nothing is known of `count` blocks any more.
    pub fn forget_range(&self, lba: Lba, count: u64) {
        if count > FORGOTTEN_ONE_BY_ONE_MAX.min(self.slots.len() as u64) {
            self.forget_all();
        } else {
            (lba.0..lba.0 + count).for_each(|lba| self.forget(Lba(lba)));
        }
    }

    /// Nothing is known any more.
    pub fn forget_all(&self) {
        let next = self.generation.0.load(Ordering::Relaxed) + 1;
        assert!(next > 1, "no generation is that of an empty slot");
        let is_last = next >> (u64::BITS - ADDRESS_BITS) != 0;
        if is_last {
            // The first generation comes again; what was of it, long ago, must be gone.
            self.slots.iter().for_each(|slot| slot.key.store(0, Ordering::Release));
        }
        self.generation.0.store(if is_last { 1 } else { next }, Ordering::Release);
    }

    /// Nothing will be known any more.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.forget_all();
    }

    /// Whether a client reads a segment in which nothing that could be looked up now is to be kept. If so, the
    /// client that ends the read is told to wake the loop.
    pub fn is_read(&self, segment: usize) -> bool {
        fence(Ordering::SeqCst);
        if mistakes::readers_ignored() || self.readers[segment].load(Ordering::Acquire) == 0 {
            return false;
        }
        self.is_awaited.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.readers[segment].load(Ordering::Acquire) > 0
    }

    /// Whether the loop has found a segment being read, and was not woken since.
    pub fn is_awaited(&self) -> bool {
        self.is_awaited.0.load(Ordering::Relaxed)
    }

    /// Calls `each` with all that is known. For comparing it with the map, on the loop's thread.
    pub fn each(&self, mut each: impl FnMut(Lba, BlockPointer)) {
        let generation = self.generation.0.load(Ordering::Relaxed);
        for slot in &self.slots {
            let (key, value) =
                (slot.key.load(Ordering::Relaxed), slot.value.load(Ordering::Relaxed));
            if key >> ADDRESS_BITS == generation {
                let lba = Lba((key & ((1 << ADDRESS_BITS) - 1)) - 1);
                each(lba, BlockPointer { pba: Pba((value >> 32) as u32), checksum: value as u32 });
            }
        }
    }
}

impl core::fmt::Debug for ReadCache {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ReadCache").field("slots", &self.slots.len()).finish_non_exhaustive()
    }
}

fn key(generation: u64, lba: Lba) -> u64 {
    generation << ADDRESS_BITS | (lba.0 + 1)
}

fn value(pointer: BlockPointer) -> u64 {
    u64::from(pointer.pba.0) << 32 | u64::from(pointer.checksum)
}

/// Deliberate mistakes, for the simulator and the exhaustive model.
mod mistakes {
    use crate::canary::{Canary, sings};

    /// A client does not look up again when it is counted.
    pub(super) fn unchecked() -> bool {
        sings(Canary::CachedReadUnchecked)
    }

    /// What was overwritten stays.
    pub(super) fn kept() -> bool {
        sings(Canary::CacheNotEmptied)
    }

    /// Segments are used again while clients read them.
    pub(super) fn readers_ignored() -> bool {
        sings(Canary::CachedReaderIgnored)
    }
}
