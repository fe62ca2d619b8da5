//! Nodes of the tree: one block each.
//!
//! ```text
//! 0   magic "CFSN"   4  level   5  zero   6  entries (u16)   8  start of the items' bytes (u16)
//! 10  zeros          16 own host block (u64)   24  zeros
//! 32  entries
//! ```
//! Level 0 is a leaf: an entry is a key (16), an offset (u16) and a size (u16); the items' bytes fill
//! the end of the block without a gap. Above, an entry is a key (16) and a child's host block (u64);
//! a child holds keys from its entry's on, up to the next entry's.
//!
//! # Invariants
//! - Keys of a node ascend strictly.
//! - What [`check`] accepts can be read and changed without a panic, whatever the bytes.
//! - A leaf's items do not overlap and have no gap between them.

use crate::bytes::{Reader, put, u16_at, u32_at, u64_at};
use crate::files::key::Key;
use crate::{BLOCK_SIZE, Block, Corrupt, Reason, Structure};

const MAGIC: [u8; 4] = *b"CFSN";
/// Where the entries begin.
const ENTRIES: usize = 32;
const LEAF_ENTRY: usize = 20;
const BRANCH_ENTRY: usize = 24;

/// Children of a node at most.
pub const CHILDREN_MAX: usize = (BLOCK_SIZE - ENTRIES) / BRANCH_ENTRY;
/// Bytes of one item at most: two and their entries fit into a leaf.
pub const ITEM_SIZE_MAX: usize = 1800;
/// Bytes that a leaf has for items and their entries.
pub const LEAF_ROOM: usize = BLOCK_SIZE - ENTRIES;
/// Levels of a tree at most.
pub const LEVELS_MAX: u8 = 12;

const _: () = assert!(2 * (ITEM_SIZE_MAX + LEAF_ENTRY) <= LEAF_ROOM);

fn corrupt(reason: Reason) -> Corrupt {
    Corrupt { structure: Structure::FilesNode, reason }
}

/// A node that [`check`] has accepted, for reading.
#[derive(Clone, Copy)]
pub struct Node<'a>(pub &'a Block);

/// Whether these bytes are the node of host block `address`.
///
/// # Errors
/// What is wrong with them.
pub fn check(block: &Block, address: u64) -> Result<(), Corrupt> {
    if block.first_chunk() != Some(&MAGIC) {
        return Err(corrupt(Reason::Magic));
    }
    let node = Node(block);
    if node.address() != address {
        return Err(corrupt(Reason::Address));
    }
    if node.level() >= LEVELS_MAX {
        return Err(corrupt(Reason::Field("level")));
    }
    let size = if node.level() == 0 { LEAF_ENTRY } else { BRANCH_ENTRY };
    if ENTRIES + node.count() * size > BLOCK_SIZE || (node.level() > 0 && node.count() == 0) {
        return Err(corrupt(Reason::Field("entries")));
    }
    for index in 1..node.count() {
        if node.key(index - 1) >= node.key(index) {
            return Err(corrupt(Reason::Field("key")));
        }
    }
    if node.level() == 0 { check_items(node) } else { Ok(()) }
}

/// Items fill what is behind `start` exactly: their sizes add up, and no two of them overlap.
fn check_items(node: Node<'_>) -> Result<(), Corrupt> {
    let start = node.data_start();
    if start > BLOCK_SIZE || ENTRIES + node.count() * LEAF_ENTRY > start {
        return Err(corrupt(Reason::Field("start")));
    }
    let mut used = [0u64; BLOCK_SIZE / 64];
    let mut sum = 0;
    for index in 0..node.count() {
        let (offset, size) = node.place(index);
        if offset < start || offset + size > BLOCK_SIZE || size > ITEM_SIZE_MAX {
            return Err(corrupt(Reason::Field("item")));
        }
        sum += size;
        for byte in offset..offset + size {
            let Some(word) = used.get_mut(byte / 64) else { continue };
            if *word & 1 << (byte % 64) != 0 {
                return Err(corrupt(Reason::Field("item")));
            }
            *word |= 1 << (byte % 64);
        }
    }
    if sum != BLOCK_SIZE - start { Err(corrupt(Reason::Field("start"))) } else { Ok(()) }
}

impl<'a> Node<'a> {
    /// Zero for a leaf.
    pub fn level(self) -> u8 {
        self.0.get(4).copied().unwrap_or(0)
    }

    /// Entries.
    pub fn count(self) -> usize {
        usize::from(u16_at::<6>(self.0))
    }

    /// The host block that it was written for.
    pub fn address(self) -> u64 {
        u64_at::<16>(self.0)
    }

    fn data_start(self) -> usize {
        usize::from(u16_at::<8>(self.0))
    }

    fn entry_size(self) -> usize {
        if self.level() == 0 { LEAF_ENTRY } else { BRANCH_ENTRY }
    }

    fn entry(self, index: usize) -> Reader<'a> {
        Reader::new(self.0.get(ENTRIES + index * self.entry_size()..).unwrap_or(&[]))
    }

    /// The key of an entry.
    pub fn key(self, index: usize) -> Key {
        Key::decode(self.entry(index).take().unwrap_or([0xff; 16]))
    }

    fn place(self, index: usize) -> (usize, usize) {
        let mut entry = self.entry(index);
        let _key: Option<[u8; 16]> = entry.take();
        (usize::from(entry.u16().unwrap_or(0)), usize::from(entry.u16().unwrap_or(0)))
    }

    /// The bytes of a leaf's item.
    pub fn item(self, index: usize) -> &'a [u8] {
        let (offset, size) = self.place(index);
        self.0.get(offset..offset + size).unwrap_or(&[])
    }

    /// The host block of a child.
    pub fn child(self, index: usize) -> u64 {
        let mut entry = self.entry(index);
        let _key: Option<[u8; 16]> = entry.take();
        entry.u64().unwrap_or(0)
    }

    /// The entry of this key, or where it would come.
    ///
    /// # Errors
    /// The index of the first entry with a greater key.
    pub fn search(self, key: Key) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = (low + high) / 2;
            match self.key(middle).cmp(&key) {
                core::cmp::Ordering::Less => low = middle + 1,
                core::cmp::Ordering::Equal => return Ok(middle),
                core::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// The child that holds the key, if any does.
    pub fn child_for(self, key: Key) -> usize {
        match self.search(key) {
            Ok(index) => index,
            Err(index) => index.saturating_sub(1),
        }
    }

    /// Bytes of a leaf that neither entries nor items take.
    pub fn room(self) -> usize {
        self.data_start().saturating_sub(ENTRIES + self.count() * LEAF_ENTRY)
    }

    /// Whether a leaf has room for one more item of `size` bytes.
    pub fn fits(self, size: usize) -> bool {
        self.room() >= size + LEAF_ENTRY
    }

    /// Bytes that entries and items take.
    pub fn used(self) -> usize {
        if self.level() == 0 { LEAF_ROOM - self.room() } else { self.count() * BRANCH_ENTRY }
    }
}

/// A node that [`check`] has accepted, for changing.
pub struct NodeMut<'a>(pub &'a mut Block);

impl NodeMut<'_> {
    /// Makes it an empty node.
    pub fn clear(&mut self, address: u64, level: u8) {
        self.0.fill(0);
        put::<0, 4>(self.0, MAGIC);
        put::<4, 1>(self.0, [level]);
        put::<8, 2>(self.0, (BLOCK_SIZE as u16).to_le_bytes());
        put::<16, 8>(self.0, address.to_le_bytes());
    }

    fn node(&self) -> Node<'_> {
        Node(self.0)
    }

    fn set_count(&mut self, count: usize) {
        put::<6, 2>(self.0, (count as u16).to_le_bytes());
    }

    fn set_data_start(&mut self, start: usize) {
        put::<8, 2>(self.0, (start as u16).to_le_bytes());
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        if let Some(target) = self.0.get_mut(offset..offset + bytes.len()) {
            target.copy_from_slice(bytes);
        }
    }

    /// Makes room for entry `index`.
    fn open_entry(&mut self, index: usize) -> usize {
        let (size, count) = (self.node().entry_size(), self.node().count());
        assert!(index <= count, "entries have no gap");
        let (place, end) = (ENTRIES + index * size, ENTRIES + count * size);
        self.0.copy_within(place..end, place + size);
        self.set_count(count + 1);
        place
    }

    fn close_entry(&mut self, index: usize) {
        let (size, count) = (self.node().entry_size(), self.node().count());
        assert!(index < count, "only what is there is taken away");
        let (place, end) = (ENTRIES + index * size, ENTRIES + count * size);
        self.0.copy_within(place + size..end, place);
        self.write(end - size, [0; BRANCH_ENTRY].split_at(size).0);
        self.set_count(count - 1);
    }

    /// Puts an item before entry `index`.
    ///
    /// # Panics
    /// If there is no room; see [`Node::fits`].
    pub fn insert_item(&mut self, index: usize, key: Key, item: &[u8]) {
        assert!(self.node().fits(item.len()), "the leaf has room");
        let start = self.node().data_start() - item.len();
        self.set_data_start(start);
        self.write(start, item);
        let place = self.open_entry(index);
        self.write(place, &key.encode());
        self.write(place + 16, &(start as u16).to_le_bytes());
        self.write(place + 18, &(item.len() as u16).to_le_bytes());
    }

    /// Takes item `index` away.
    pub fn remove_item(&mut self, index: usize) {
        let (offset, size) = self.node().place(index);
        let start = self.node().data_start();
        self.0.copy_within(start..offset, start + size);
        if let Some(freed) = self.0.get_mut(start..start + size) {
            freed.fill(0);
        }
        self.set_data_start(start + size);
        self.close_entry(index);
        for other in 0..self.node().count() {
            let (place, _) = self.node().place(other);
            if place < offset {
                let at = ENTRIES + other * LEAF_ENTRY + 16;
                self.write(at, &((place + size) as u16).to_le_bytes());
            }
        }
    }

    /// Overwrites an item with one of the same size.
    pub fn set_item(&mut self, index: usize, item: &[u8]) {
        let (offset, size) = self.node().place(index);
        assert!(size == item.len(), "an item that is set keeps its size");
        self.write(offset, item);
    }

    /// Puts a child before entry `index`.
    pub fn insert_child(&mut self, index: usize, key: Key, child: u64) {
        assert!(self.node().count() < CHILDREN_MAX, "the node has room");
        let place = self.open_entry(index);
        self.write(place, &key.encode());
        self.write(place + 16, &child.to_le_bytes());
    }

    /// Takes child `index` away.
    pub fn remove_child(&mut self, index: usize) {
        self.close_entry(index);
    }

    /// Changes the key of entry `index`.
    pub fn set_key(&mut self, index: usize, key: Key) {
        let place = ENTRIES + index * self.node().entry_size();
        self.write(place, &key.encode());
    }

    /// Moves the entries from `from` on to the end of `other`, which has their level.
    pub fn move_tail(&mut self, from: usize, other: &mut NodeMut<'_>) {
        let count = self.node().count();
        for index in from..count {
            let (node, end) = (self.node(), other.node().count());
            if node.level() == 0 {
                other.insert_item(end, node.key(index), node.item(index));
            } else {
                other.insert_child(end, node.key(index), node.child(index));
            }
        }
        for index in (from..count).rev() {
            if self.node().level() == 0 {
                self.remove_item(index);
            } else {
                self.remove_child(index);
            }
        }
    }
}

/// Whether these bytes claim to be a node at all.
pub fn is_node(block: &Block) -> bool {
    u32_at::<0>(block) == u32::from_le_bytes(MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::key::Kind;
    use std::collections::BTreeMap;
    use std::vec;
    use std::vec::Vec;

    extern crate std;

    fn assert_equal(block: &Block, model: &BTreeMap<Key, Vec<u8>>) {
        check(block, 9).expect("sound");
        let node = Node(block);
        assert_eq!(node.count(), model.len());
        for (index, (key, item)) in model.iter().enumerate() {
            assert_eq!(node.key(index), *key);
            assert_eq!(node.item(index), item);
        }
    }

    #[test]
    fn a_leaf_is_a_sorted_map_whatever_is_put_in_and_taken_out() {
        let mut block = [0; BLOCK_SIZE];
        NodeMut(&mut block).clear(9, 0);
        let mut model = BTreeMap::new();
        let mut state = 1u64;
        for _ in 0..4000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let key = Key::new(state >> 60, Kind::Name, state >> 33 & 15);
            let size = (state >> 20) as usize % 300;
            match Node(&block).search(key) {
                Ok(index) => {
                    NodeMut(&mut block).remove_item(index);
                    model.remove(&key);
                }
                Err(index) if Node(&block).fits(size) => {
                    let item = vec![state as u8; size];
                    NodeMut(&mut block).insert_item(index, key, &item);
                    model.insert(key, item);
                }
                Err(_) => {}
            }
            assert_equal(&block, &model);
        }
    }

    #[test]
    fn a_split_leaf_holds_the_same_items() {
        let mut block = [0; BLOCK_SIZE];
        NodeMut(&mut block).clear(9, 0);
        let mut model = BTreeMap::new();
        for number in 0..20u64 {
            let key = Key::new(1, Kind::Name, number * 3);
            NodeMut(&mut block).insert_item(number as usize, key, &[number as u8; 90]);
            model.insert(key, vec![number as u8; 90]);
        }
        let mut other = [0; BLOCK_SIZE];
        NodeMut(&mut other).clear(9, 0);
        NodeMut(&mut block).move_tail(12, &mut NodeMut(&mut other));
        let tail = model.split_off(&Key::new(1, Kind::Name, 36));
        assert_equal(&block, &model);
        assert_equal(&other, &tail);
    }

    #[test]
    fn no_damage_of_one_byte_makes_reading_panic() {
        let mut block = [0; BLOCK_SIZE];
        NodeMut(&mut block).clear(9, 0);
        for number in 0..30u64 {
            let key = Key::new(1, Kind::Name, number);
            NodeMut(&mut block).insert_item(number as usize, key, &[7; 40]);
        }
        let mut found = 0;
        for byte in 0..700 {
            for bit in 0..8 {
                let mut damaged = block;
                damaged[byte] ^= 1 << bit;
                found += u32::from(check(&damaged, 9).is_err());
                let node = Node(&damaged);
                for index in 0..node.count() {
                    let _ = (node.key(index), node.item(index), node.child(index));
                }
            }
        }
        assert!(found > 1000, "{found}");
    }
}
