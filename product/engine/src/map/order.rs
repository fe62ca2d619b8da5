//! Roots of a sparse volume in order of key.
//!
//! Keys come in any order and go in any order, and there may be millions. So they lie in chunks that are sorted, and
//! the chunks are in order: what one insertion or removal moves is one chunk, and now and then the list of chunks.
//! A chunk knows how many of its roots have something for the sweep, which passes those that have none.
//!
//! # Invariants
//! - Keys rise, within a chunk and from chunk to chunk; no chunk is empty.
//! - Two neighbours together have more keys than half a chunk holds.

use crate::memory::{self, NoMemory};
use alloc::vec::Vec;

/// Keys of a chunk at most.
const CHUNK: usize = 256;

/// Bytes of a chunk.
const CHUNK_SIZE: usize = CHUNK * (8 + 4) + size_of::<Chunk>() + size_of::<u64>();

/// Bytes that a key costs at most: see the invariants.
pub(super) const KEY_SIZE_MAX: usize = 4 * CHUNK_SIZE / CHUNK + 1;

/// This bit of a place says that the root has leaves to be swept.
const DIRTY: u32 = 1 << 31;

/// Some keys that follow each other.
struct Chunk {
    /// How many of its roots are dirty.
    dirty: usize,
    keys: Vec<u64>,
    /// Where each root lies, and whether it is dirty.
    places: Vec<u32>,
}

impl Chunk {
    fn new() -> Result<Chunk, NoMemory> {
        Ok(Chunk { dirty: 0, keys: memory::list(CHUNK)?, places: memory::list(CHUNK)? })
    }

    fn insert(&mut self, at: usize, key: u64, place: u32) {
        assert!(self.keys.len() < CHUNK, "there is room for one more");
        self.keys.insert(at, key);
        self.places.insert(at, place);
    }

    fn remove(&mut self, at: usize) {
        self.keys.remove(at);
        let place = self.places.remove(at);
        self.dirty -= usize::from(place & DIRTY != 0);
    }

    /// Takes over what lies in the other one from this place on, behind what is here.
    fn append(&mut self, other: &mut Chunk, from: usize) {
        assert!(
            self.keys.len() + other.keys.len() - from <= CHUNK,
            "there is room for all of them"
        );
        let moved = other.places[from..].iter();
        let dirty = moved.filter(|place| **place & DIRTY != 0).count();
        self.keys.extend(other.keys.drain(from..));
        self.places.extend(other.places.drain(from..));
        self.dirty += dirty;
        other.dirty -= dirty;
    }
}

/// All keys.
#[derive(Default)]
pub(super) struct Order {
    chunks: Vec<Chunk>,
    /// The first key of each.
    firsts: Vec<u64>,
    /// Chunks that were emptied: their memory is kept.
    spare: Vec<Chunk>,
}

impl Order {
    /// The chunk in which the key is, or belongs.
    fn chunk_of(&self, key: u64) -> usize {
        self.firsts.partition_point(|first| *first <= key).saturating_sub(1)
    }

    /// Where the root of this key lies.
    pub(super) fn find(&self, key: u64) -> Option<usize> {
        let chunk = self.chunks.get(self.chunk_of(key))?;
        let at = chunk.keys.binary_search(&key).ok()?;
        Some((chunk.places[at] & !DIRTY) as usize)
    }

    /// A key that is not there yet.
    pub(super) fn insert(&mut self, key: u64, place: usize) -> Result<(), NoMemory> {
        assert!(place < DIRTY as usize, "there are fewer roots");
        let mut index = self.chunk_of(key);
        let is_full = |chunk: &Chunk| chunk.keys.len() == CHUNK;
        if self.chunks.get(index).is_none_or(is_full) {
            // Keys that come in order fill their chunks.
            let is_last = self.chunks.get(index).is_none_or(|chunk| chunk.keys[CHUNK - 1] < key);
            if is_last {
                let behind = (index + 1).min(self.chunks.len());
                self.add_chunk(behind, key)?;
            } else {
                self.add_chunk(index + 1, self.chunks[index].keys[CHUNK / 2])?;
                let (before, behind) = self.chunks.split_at_mut(index + 1);
                behind[0].append(&mut before[index], CHUNK / 2);
            }
            index = self.chunk_of(key);
        }
        let chunk = &mut self.chunks[index];
        let at = chunk.keys.partition_point(|other| *other < key);
        assert!(chunk.keys.get(at) != Some(&key), "a key is inserted once");
        chunk.insert(at, key, place as u32);
        self.firsts[index] = self.firsts[index].min(key);
        Ok(())
    }

    fn add_chunk(&mut self, index: usize, first: u64) -> Result<(), NoMemory> {
        memory::reserve(&mut self.firsts)?;
        memory::reserve(&mut self.chunks)?;
        memory::reserve_in_all(&mut self.spare, self.chunks.capacity())?;
        let chunk = match self.spare.pop() {
            Some(chunk) => chunk,
            None => Chunk::new()?,
        };
        assert!(chunk.keys.is_empty(), "nothing is in it yet");
        self.chunks.insert(index, chunk);
        self.firsts.insert(index, first);
        Ok(())
    }

    /// The root of this key goes.
    pub(super) fn remove(&mut self, key: u64) {
        let index = self.chunk_of(key);
        let chunk = &mut self.chunks[index];
        let at = chunk.keys.binary_search(&key).expect("a key that goes is there");
        chunk.remove(at);
        if let Some(first) = chunk.keys.first() {
            self.firsts[index] = *first;
        }
        // With the neighbour on either side.
        self.join(index);
        if index > 0 {
            self.join(index - 1);
        }
        self.drop_chunk_if_empty(0);
    }

    /// Joins a chunk with the one behind it, if both are small.
    fn join(&mut self, index: usize) {
        if index + 1 >= self.chunks.len() {
            return;
        }
        let (before, behind) = self.chunks.split_at_mut(index + 1);
        let (before, behind) = (&mut before[index], &mut behind[0]);
        let is_empty = before.keys.is_empty() || behind.keys.is_empty();
        if is_empty || before.keys.len() + behind.keys.len() <= CHUNK / 2 {
            before.append(behind, 0);
            if let Some(first) = before.keys.first() {
                self.firsts[index] = *first;
            }
            self.drop_chunk_if_empty(index + 1);
        }
    }

    fn drop_chunk_if_empty(&mut self, index: usize) {
        if self.chunks.get(index).is_some_and(|chunk| chunk.keys.is_empty()) {
            self.firsts.remove(index);
            let chunk = self.chunks.remove(index);
            assert_eq!(chunk.dirty, 0, "nothing in it is to be swept");
            assert!(self.spare.len() < self.spare.capacity(), "all chunks have room there");
            self.spare.push(chunk);
        }
    }

    /// Whether the root has leaves to be swept.
    pub(super) fn note_dirty(&mut self, key: u64, is_dirty: bool) {
        let index = self.chunk_of(key);
        let chunk = &mut self.chunks[index];
        let at = chunk.keys.binary_search(&key).expect("a root that changes is there");
        assert_ne!(chunk.places[at] & DIRTY != 0, is_dirty, "it is noted once");
        chunk.places[at] ^= DIRTY;
        if is_dirty {
            chunk.dirty += 1;
        } else {
            chunk.dirty -= 1;
        }
    }

    /// Where roots lie, by key, from this key on.
    pub(super) fn iter_from(&self, key: u64) -> impl Iterator<Item = usize> + '_ {
        self.iter_chunks_from(key, |_| true)
    }

    /// The same for roots with leaves to be swept.
    pub(super) fn dirty_from(&self, key: u64) -> impl Iterator<Item = usize> + '_ {
        self.iter_chunks_from(key, |chunk| chunk.dirty > 0)
    }

    fn iter_chunks_from<'a>(
        &'a self,
        key: u64,
        wanted: impl Fn(&Chunk) -> bool + 'a,
    ) -> impl Iterator<Item = usize> + 'a {
        let chunks = self.chunks.iter().skip(self.chunk_of(key));
        let chunks = chunks.filter(move |chunk| wanted(chunk));
        chunks.flat_map(move |chunk| {
            let first = chunk.keys.partition_point(|other| *other < key);
            chunk.places[first..].iter().map(|place| (place & !DIRTY) as usize)
        })
    }

    /// Bytes in use.
    pub(super) fn size(&self) -> usize {
        (self.chunks.len() + self.spare.len()) * CHUNK_SIZE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;

    fn check(order: &Order, model: &BTreeMap<u64, (usize, bool)>) {
        let all: Vec<usize> = order.iter_from(0).collect();
        assert!(all.iter().eq(model.values().map(|(place, _)| place)));
        let dirty = model.values().filter(|(_, dirty)| *dirty).map(|(place, _)| *place);
        let passed: Vec<usize> = order.dirty_from(0).collect();
        assert!(dirty.clone().all(|place| passed.contains(&place)), "none is passed over");
        let counted: usize = order.chunks.iter().map(|chunk| chunk.dirty).sum();
        assert_eq!(counted, dirty.count());
        let counts: Vec<usize> = order.chunks.iter().map(|chunk| chunk.keys.len()).collect();
        assert!(counts.iter().all(|count| *count > 0));
        assert!(counts.windows(2).all(|two| two[0] + two[1] > CHUNK / 2));
        let in_use = model.len() * KEY_SIZE_MAX + 2 * CHUNK_SIZE;
        assert!(order.spare.len() > 4 || order.size() <= in_use, "as little memory as is promised");
    }

    #[test]
    fn keys_come_and_go_in_any_order() {
        let (mut order, mut model) = (Order::default(), BTreeMap::new());
        let mut state = 1u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) % below
        };
        for round in 0..20_000u64 {
            let key = random(if round < 10_000 { 1 << 40 } else { 4000 });
            let goes = random(100) < if round / 3000 % 2 == 0 { 20 } else { 70 };
            let near = model.range(key..).next().map(|(key, _)| *key).filter(|_| goes);
            match near {
                Some(key) => {
                    order.remove(key);
                    model.remove(&key);
                }
                None if !model.contains_key(&key) => {
                    order.insert(key, round as usize).expect("there is memory");
                    model.insert(key, (round as usize, false));
                }
                None => {
                    let (_, dirty) = model.get_mut(&key).expect("it is there");
                    *dirty = !*dirty;
                    order.note_dirty(key, *dirty);
                }
            }
            if round % 97 == 0 {
                check(&order, &model);
                assert_eq!(order.find(key), model.get(&key).map(|(place, _)| *place));
                let from: Vec<usize> = order.iter_from(key).collect();
                assert!(from.iter().eq(model.range(key..).map(|(_, (place, _))| place)));
            }
        }
        while let Some((key, _)) = model.pop_first() {
            order.remove(key);
        }
        check(&order, &model);
        assert_eq!(order.find(5), None);
    }

    #[test]
    fn keys_that_come_in_order_fill_their_chunks() {
        let mut order = Order::default();
        for key in 0..10 * CHUNK {
            order.insert(key as u64 * 7, key).expect("there is memory");
        }
        assert_eq!(order.chunks.len(), 10);
        assert!(order.iter_from(0).eq(0..10 * CHUNK));
    }
}
