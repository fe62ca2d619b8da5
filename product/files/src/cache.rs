//! The blocks of metadata in memory: nodes and bitmaps.
//!
//! # Invariants
//! - A block that was changed since the last set, or is being written, stays.
//! - Between [`Cache::begin`] and [`Cache::commit`], [`Cache::roll_back`] undoes every change: a
//!   step that finds a block missing, or fails, leaves no trace.
//! - A block that was loaded stays until some step has come to its end: else steps that need more
//!   blocks than there is room for would take them from each other, or from themselves, for ever.
//! - A block that was freed is not written any more, whatever it held.

use crate::stop::{Role, Step, Stop};
use coulter_format::{BLOCK_SIZE, Block};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Block numbers need no protection from whoever chooses them.
#[derive(Default)]
pub(crate) struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }
    fn write_u64(&mut self, value: u64) {
        let mixed = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

pub(crate) type BlockMap<T> = HashMap<u64, T, BuildHasherDefault<BlockHasher>>;

/// Slots that are passed by for having been used when one is looked for that can be let go. The
/// next one that need not stay goes then, used or not: no step waits for a look at all of a large
/// cache.
const PASSED_MAX: usize = 64;

struct Slot {
    block: u64,
    data: Box<Block>,
    /// Changed since the last set.
    dirty: bool,
    /// Sets that it is part of and that are not complete.
    writing: u32,
    /// Used since the hand last came by.
    used: bool,
    /// The attempt that saved what it held before.
    saved_by: u64,
    /// How many steps had come to their end when it was loaded; `None` if it was made here.
    loaded_after: Option<u64>,
}

struct Saved {
    slot: usize,
    before: Box<Block>,
    was_dirty: bool,
}

/// See the module's documentation.
pub(crate) struct Cache {
    slots: Vec<Slot>,
    places: BlockMap<usize>,
    capacity: usize,
    hand: usize,
    attempt: u64,
    /// Steps that have come to their end, well or not.
    steps: u64,
    saved: Vec<Saved>,
    spare: Vec<Box<Block>>,
    /// Slots that were marked as changed since the last set. Some are there twice, or not changed
    /// any more.
    changed: Vec<usize>,
    /// How many of them there were before the step.
    changed_before: usize,
    dirty: usize,
    damaged: Vec<u64>,
    /// A block that could not be read just now, and the error number.
    failed_load: Option<(u64, i32)>,
    /// Slots that were looked at to find changed ones, or one that can be let go.
    #[cfg(test)]
    looks: usize,
}

impl Cache {
    /// A cache of at most `capacity` blocks, and those that cannot be let go.
    pub(crate) fn new(capacity: usize) -> Cache {
        Cache {
            slots: Vec::new(),
            places: BlockMap::default(),
            capacity,
            hand: 0,
            attempt: 1,
            steps: 0,
            saved: Vec::new(),
            spare: Vec::new(),
            changed: Vec::new(),
            changed_before: 0,
            dirty: 0,
            damaged: Vec::new(),
            failed_load: None,
            #[cfg(test)]
            looks: 0,
        }
    }

    pub(crate) fn read(&mut self, block: u64, role: Role) -> Step<&Block> {
        match self.places.get(&block) {
            Some(place) => {
                let slot = &mut self.slots[*place];
                slot.used = true;
                Ok(&slot.data)
            }
            None if self.damaged.contains(&block) => Err(Stop::Errno(libc::EIO)),
            None => match self.failed_load {
                Some((failed, errno)) if failed == block => Err(Stop::Errno(errno)),
                _ => Err(Stop::Miss(block, role)),
            },
        }
    }

    /// The block, to be changed in this attempt.
    pub(crate) fn change(&mut self, block: u64, role: Role) -> Step<&mut Block> {
        self.read(block, role)?;
        let place = self.places[&block];
        assert_eq!(self.slots[place].block, block, "a block is where it is noted");
        self.save(place);
        self.mark(place);
        Ok(&mut self.slots[place].data)
    }

    /// A block that holds nothing yet.
    pub(crate) fn add(&mut self, block: u64) -> &mut Block {
        self.damaged.retain(|other| *other != block);
        let place = match self.places.get(&block) {
            Some(place) => *place,
            None => self.place_for(block, Box::new([0; BLOCK_SIZE])),
        };
        self.save(place);
        self.mark(place);
        &mut self.slots[place].data
    }

    fn mark(&mut self, place: usize) {
        if !std::mem::replace(&mut self.slots[place].dirty, true) {
            self.dirty += 1;
            self.changed.push(place);
        }
    }

    /// The block is free: what it holds is not to be written.
    pub(crate) fn release(&mut self, block: u64) {
        if let Some(place) = self.places.get(&block).copied() {
            self.save(place);
            if std::mem::take(&mut self.slots[place].dirty) {
                assert!(self.dirty > 0, "changed blocks are counted");
                self.dirty -= 1;
            }
        }
    }

    /// A block has come from the volume.
    pub(crate) fn handle_loaded(&mut self, block: u64, data: &[u8]) {
        if self.places.contains_key(&block) {
            // It was made anew meanwhile.
            return;
        }
        let mut copy = self.spare.pop().unwrap_or_else(|| Box::new([0; BLOCK_SIZE]));
        copy.copy_from_slice(data);
        let place = self.place_for(block, copy);
        self.slots[place].loaded_after = Some(self.steps);
    }

    /// A block could not be read. Until [`Cache::forget_failed_load`] it fails all that want it.
    pub(crate) fn handle_failed_load(&mut self, block: u64, errno: i32) {
        self.failed_load = Some((block, errno));
    }

    pub(crate) fn forget_failed_load(&mut self) {
        self.failed_load = None;
    }

    /// A block cannot be had.
    pub(crate) fn handle_damaged(&mut self, block: u64) {
        if !self.damaged.contains(&block) {
            self.damaged.push(block);
        }
    }

    pub(crate) fn damaged(&self) -> &[u64] {
        &self.damaged
    }

    /// A step begins.
    pub(crate) fn begin(&mut self) {
        assert!(self.saved.is_empty(), "steps do not nest");
        self.attempt += 1;
        self.changed_before = self.changed.len();
    }

    /// The step stands.
    pub(crate) fn commit(&mut self) {
        self.end_step();
        self.attempt += 1;
        let saved = std::mem::take(&mut self.saved);
        self.saved = self.put_away(saved, |_, _| {});
    }

    /// A step has come to its end: what was loaded for it may go.
    pub(crate) fn end_step(&mut self) {
        self.steps += 1;
    }

    /// The step never was.
    pub(crate) fn roll_back(&mut self) {
        self.attempt += 1;
        assert!(self.changed_before <= self.changed.len(), "a step only adds to what is changed");
        self.changed.truncate(self.changed_before);
        let saved = std::mem::take(&mut self.saved);
        self.saved = self.put_away(saved, |cache, saved| {
            let slot = &mut cache.slots[saved.slot];
            std::mem::swap(&mut slot.data, &mut saved.before);
            match (slot.dirty, saved.was_dirty) {
                (true, false) => {
                    slot.dirty = false;
                    cache.dirty -= 1;
                }
                (false, true) => {
                    slot.dirty = true;
                    cache.dirty += 1;
                }
                _ => {}
            }
        });
    }

    fn put_away(
        &mut self,
        mut list: Vec<Saved>,
        mut each: impl FnMut(&mut Cache, &mut Saved),
    ) -> Vec<Saved> {
        for mut saved in list.drain(..).rev() {
            each(self, &mut saved);
            self.spare.push(saved.before);
        }
        list
    }

    /// Blocks that the next set has to hold.
    pub(crate) fn dirty_count(&self) -> usize {
        self.dirty
    }

    /// Blocks changed by the step so far.
    pub(crate) fn changed_in_step(&self) -> usize {
        self.saved.len()
    }

    /// Blocks in memory.
    pub(crate) fn count(&self) -> usize {
        self.slots.len()
    }

    /// Hands every changed block to `each`, in the order of their numbers; they are being written
    /// then.
    pub(crate) fn take_dirty(&mut self, mut each: impl FnMut(u64, &Block)) -> Vec<u64> {
        assert!(self.saved.is_empty(), "a set is taken between steps");
        #[cfg(test)]
        {
            self.looks += self.changed.len();
        }
        let marked = self.changed.drain(..).map(|place| &self.slots[place]);
        let mut blocks: Vec<u64> =
            marked.filter(|slot| slot.dirty).map(|slot| slot.block).collect();
        blocks.sort_unstable();
        blocks.dedup();
        assert!(blocks.len() == self.dirty, "changed blocks are counted");
        for block in &blocks {
            let slot = &mut self.slots[self.places[block]];
            assert!(slot.dirty, "only what is changed is written");
            each(*block, &slot.data);
            slot.dirty = false;
            slot.writing += 1;
        }
        self.dirty = 0;
        blocks
    }

    /// A set with these blocks is complete.
    pub(crate) fn handle_written(&mut self, blocks: &[u64]) {
        for block in blocks {
            let slot = &mut self.slots[self.places[block]];
            assert!(slot.writing > 0, "a set completes once");
            slot.writing -= 1;
        }
    }

    /// # Panics
    /// If places, slots and counts do not say the same. `writing` has the sets that are out by
    /// block.
    pub(crate) fn assert_invariants(&self, writing: &BlockMap<u32>) {
        assert!(self.saved.is_empty(), "between two inputs no step is under way");
        assert_eq!(self.places.len(), self.slots.len(), "each slot has its block");
        let (mut dirty, mut listed) = (0, vec![false; self.slots.len()]);
        self.changed.iter().for_each(|place| listed[*place] = true);
        for block in writing.keys() {
            assert!(self.places.contains_key(block), "block {block} is being written, so it stays");
        }
        for (place, slot) in self.slots.iter().enumerate() {
            let block = slot.block;
            assert_eq!(self.places.get(&block), Some(&place), "block {block} is where it is noted");
            let sets = writing.get(&block).copied().unwrap_or(0);
            assert_eq!(slot.writing, sets, "block {block} counts the sets it is in");
            let is_listed = !slot.dirty || listed[place];
            assert!(is_listed, "block {block} is changed, so it is listed");
            dirty += usize::from(slot.dirty);
        }
        assert_eq!(dirty, self.dirty, "changed blocks are counted");
        for block in &self.damaged {
            assert!(!self.places.contains_key(block), "damaged block {block} is not in memory");
        }
    }

    fn save(&mut self, place: usize) {
        let slot = &mut self.slots[place];
        if slot.saved_by == self.attempt {
            return;
        }
        slot.saved_by = self.attempt;
        let mut before = self.spare.pop().unwrap_or_else(|| Box::new([0; BLOCK_SIZE]));
        before.copy_from_slice(&slot.data[..]);
        self.saved.push(Saved { slot: place, before, was_dirty: slot.dirty });
    }

    fn place_for(&mut self, block: u64, data: Box<Block>) -> usize {
        let slot = Slot {
            block,
            data,
            dirty: false,
            writing: 0,
            used: true,
            saved_by: 0,
            loaded_after: None,
        };
        let place = match self.victim() {
            Some(place) => {
                let old = std::mem::replace(&mut self.slots[place], slot);
                assert!(!old.dirty && old.writing == 0, "what is let go is in the volume");
                let was_noted = self.places.remove(&old.block);
                assert_eq!(was_noted, Some(place), "a block is where it is noted");
                self.spare.push(old.data);
                self.spare.truncate(64);
                place
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        let before = self.places.insert(block, place);
        assert!(before.is_none(), "a block is in memory once");
        place
    }

    /// A slot whose block can be let go, if there is no room for one more.
    fn victim(&mut self) -> Option<usize> {
        if self.slots.len() < self.capacity {
            return None;
        }
        let mut passed = 0;
        for _ in 0..2 * self.slots.len() {
            #[cfg(test)]
            {
                self.looks += 1;
            }
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[self.hand];
            let is_wanted = slot.loaded_after == Some(self.steps);
            let stays =
                is_wanted || slot.dirty || slot.writing > 0 || slot.saved_by == self.attempt;
            if stays {
                continue;
            }
            if !std::mem::take(&mut slot.used) || passed >= PASSED_MAX {
                return Some(self.hand);
            }
            passed += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_step_did_is_undone_and_what_is_dirty_stays() {
        let mut cache = Cache::new(2);
        cache.begin();
        cache.add(10)[0] = 1;
        cache.commit();
        cache.begin();
        cache.change(10, Role::Node).unwrap()[0] = 2;
        cache.add(11)[0] = 3;
        cache.roll_back();
        assert_eq!(cache.read(10, Role::Node).unwrap()[0], 1);
        assert_eq!(cache.dirty_count(), 1);
        for block in 20..30 {
            cache.handle_loaded(block, &[block as u8; BLOCK_SIZE]);
            cache.end_step();
        }
        assert_eq!(cache.read(10, Role::Node).unwrap()[0], 1);
        let mut seen = Vec::new();
        let set = cache.take_dirty(|block, data| seen.push((block, data[0])));
        assert_eq!(seen, [(10, 1)]);
        cache.handle_written(&set);
        for block in 30..40 {
            cache.handle_loaded(block, &[block as u8; BLOCK_SIZE]);
            cache.end_step();
        }
        assert!(cache.read(10, Role::Node).is_err());
        assert!(cache.count() <= 3);
    }

    #[test]
    fn what_was_loaded_stays_until_a_step_has_used_it() {
        for capacity in [0, 1, 2] {
            let mut cache = Cache::new(capacity);
            for block in 10..20 {
                cache.handle_loaded(block, &[0; BLOCK_SIZE]);
            }
            assert!((10..20).all(|block| cache.read(block, Role::Node).is_ok()), "{capacity}");
            cache.begin();
            cache.commit();
            for block in 20..40 {
                cache.handle_loaded(block, &[0; BLOCK_SIZE]);
                cache.end_step();
            }
            assert!(cache.count() <= 10, "{capacity}: no more than one step has needed");
        }
    }

    #[test]
    fn neither_a_set_nor_a_miss_looks_at_all_of_a_large_cache() {
        const SLOTS: u64 = 8192;
        let mut cache = Cache::new(SLOTS as usize);
        for block in 0..SLOTS {
            cache.handle_loaded(block, &[0; BLOCK_SIZE]);
            cache.end_step();
        }
        assert_eq!(cache.looks, 0, "there is room");
        for round in 0..100 {
            cache.looks = 0;
            cache.begin();
            for block in [round, SLOTS / 2 + round, SLOTS - 1 - round] {
                cache.change(block, Role::Node).unwrap()[0] = 1;
            }
            cache.commit();
            let set = cache.take_dirty(|_, _| {});
            assert_eq!((set.len(), cache.looks), (3, 3), "a set looks at what is changed");
            cache.handle_written(&set);
        }
        for block in SLOTS..2 * SLOTS {
            cache.looks = 0;
            cache.handle_loaded(block, &[0; BLOCK_SIZE]);
            cache.end_step();
            // One that was just loaded stays.
            assert!(cache.looks <= PASSED_MAX + 2, "{} slots for block {block}", cache.looks);
        }
        assert_eq!(cache.count() as u64, SLOTS);
    }

    #[test]
    fn a_freed_block_is_not_written() {
        let mut cache = Cache::new(2);
        cache.begin();
        cache.add(10)[0] = 1;
        cache.release(10);
        cache.commit();
        assert_eq!(cache.take_dirty(|_, _| panic!("nothing is dirty")), []);
    }
}
