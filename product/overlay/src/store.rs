//! What is in the store, in memory: records, windows, which blocks are mapped.

use crate::lists::{Lists, Standing};
use crate::locks::Lock;
use coulter_format::overlay::{
    Handle, OWNERS_PER_BLOCK, Owner, RECORD_LIMIT, RECORDS_PER_BLOCK, RECORDS_START, Record,
    RecordState, Superblock, WINDOW_BLOCKS,
};
use coulter_format::{BLOCK_SIZE, Block};
use std::collections::{BTreeMap, BTreeSet, HashMap};

const WORDS: usize = WINDOW_BLOCKS as usize / 64;
/// Blocks between two runs that are read along: those that are not here cost nothing.
const GAP_BLOCKS_MAX: u64 = 16;

/// A bit for each block of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bits([u64; WORDS]);

impl Bits {
    pub(crate) fn has(&self, index: u64) -> bool {
        self.0[index as usize / 64] >> (index % 64) & 1 == 1
    }

    pub(crate) fn set(&mut self, index: u64) {
        self.0[index as usize / 64] |= 1 << (index % 64);
    }

    pub(crate) fn clear(&mut self, index: u64) {
        self.0[index as usize / 64] &= !(1 << (index % 64));
    }

    /// The first from `from` on that is set here and not in `other`.
    fn next_outside(&self, other: &Bits, from: u64) -> Option<u64> {
        let mut mask = u64::MAX << (from % 64);
        for word in from as usize / 64..WORDS {
            let found = self.0[word] & !other.0[word] & mask;
            if found != 0 {
                return Some(word as u64 * 64 + u64::from(found.trailing_zeros()));
            }
            mask = u64::MAX;
        }
        None
    }

    pub(crate) fn is_within(&self, other: &Bits) -> bool {
        self.0.iter().zip(&other.0).all(|(word, other)| word & !other == 0)
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}

/// A window in use.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    pub(crate) owner: Owner,
    /// Blocks that are here.
    pub(crate) present: Bits,
    /// Blocks that the settling under way has brought home or asked for, and that were not written since.
    pub(crate) copied: Bits,
}

/// A file with a record.
#[derive(Debug)]
pub(crate) struct Adopted {
    pub(crate) record: Record,
    /// Windows by stretch.
    pub(crate) windows: BTreeMap<u64, u32>,
    /// Blocks that are here.
    pub(crate) mapped: u64,
    pub(crate) lock: Lock,
    /// The command that says durably that space is being taken below, once it is durable.
    pub(crate) space_noted: u64,
    /// The lower file may give programs rights, which each write takes away.
    pub(crate) may_have_capability: bool,
    /// Its file has no name any more, and is not open.
    pub(crate) is_dying: bool,
    /// It is to be forgotten, or is being forgotten.
    pub(crate) is_forgettable: bool,
    /// Why nothing of it is served.
    pub(crate) fault: Option<&'static str>,
}

impl Adopted {
    pub(crate) fn new(record: Record) -> Adopted {
        Adopted {
            record,
            windows: BTreeMap::new(),
            mapped: 0,
            lock: Lock::default(),
            space_noted: 0,
            may_have_capability: true,
            is_dying: false,
            is_forgettable: false,
            fault: None,
        }
    }

    /// Whether its blocks can be brought home: its file is there, and has a name.
    pub(crate) fn can_come_home(&self) -> bool {
        matches!(self.record.state, RecordState::Live | RecordState::Settling)
            && !self.record.is_nameless
            && !self.is_dying
            && self.fault.is_none()
    }

    pub(crate) fn standing(&self) -> Standing {
        Standing {
            mapped: self.mapped,
            can_come_home: self.can_come_home(),
            is_taking_space: self.record.is_taking_space,
            has_fault: self.fault.is_some(),
            is_settled: self.record.state == RecordState::Settled,
        }
    }

    /// The first block behind the end.
    pub(crate) fn end_block(&self) -> u64 {
        self.record.size.div_ceil(BLOCK_SIZE as u64)
    }
}

/// A run of blocks of a file that all are in the store, or all are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The first block's number in the file.
    pub(crate) first: u64,
    pub(crate) count: u64,
    /// The host block where they begin.
    pub(crate) host: Option<u64>,
}

/// Blocks of one window that are brought home together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Portion {
    /// The first block's number in the file.
    pub(crate) first: u64,
    /// Blocks of the span, those between the runs included.
    pub(crate) count: u64,
    /// The host block where it begins.
    pub(crate) host: u64,
    /// Where the blocks lie in it: first and number of each run.
    pub(crate) runs: Vec<(u64, u64)>,
}

/// Changes that take effect together.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    records: BTreeSet<u64>,
    owners: BTreeSet<u64>,
    superblock: bool,
    pub(crate) discards: Vec<(u64, u64)>,
}

/// See the module's documentation.
pub(crate) struct Store {
    pub(crate) superblock: Superblock,
    pub(crate) records: Vec<Option<Box<Adopted>>>,
    free_records: BTreeSet<u32>,
    pub(crate) windows: Vec<Option<Window>>,
    pub(crate) free_windows: BTreeSet<u32>,
    /// Files that are served from here, by the number of their inode.
    pub(crate) by_number: HashMap<u64, u32>,
    /// Blocks that are mapped.
    pub(crate) mapped: u64,
    /// Blocks that writes under way may add.
    pub(crate) reserved: u64,
    /// Records that were changed since they were written: times and what is noted of the lower file.
    pub(crate) dirty: BTreeSet<u32>,
    /// Records whose lower file was changed by us, or may have been, while what it is like since
    /// then could not be noted: a call failed.
    pub(crate) unnoted: BTreeSet<u32>,
    lists: Lists,
    /// How often a record was looked at.
    #[cfg(test)]
    pub(crate) looks: std::cell::Cell<u64>,
}

impl Store {
    pub(crate) fn new(superblock: Superblock) -> Store {
        let windows = superblock.window_count;
        Store {
            superblock,
            records: Vec::new(),
            free_records: BTreeSet::new(),
            windows: (0..windows).map(|_| None).collect(),
            free_windows: (0..windows).collect(),
            by_number: HashMap::new(),
            mapped: 0,
            reserved: 0,
            dirty: BTreeSet::new(),
            unnoted: BTreeSet::new(),
            lists: Lists::default(),
            #[cfg(test)]
            looks: std::cell::Cell::default(),
        }
    }

    pub(crate) fn adopted(&self, record: u32) -> &Adopted {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
        self.records[record as usize].as_deref().expect("a record in use is there")
    }

    pub(crate) fn adopted_mut(&mut self, record: u32) -> &mut Adopted {
        self.records[record as usize].as_deref_mut().expect("a record in use is there")
    }

    /// The record of a file that is served from here.
    pub(crate) fn record_of(&self, number: u64, handle: &Handle) -> Option<u32> {
        let record = *self.by_number.get(&number)?;
        (self.adopted(record).record.handle == *handle).then_some(record)
    }

    /// Whether there is a place for one more record.
    pub(crate) fn has_place(&self) -> bool {
        !self.free_records.is_empty() || self.records.len() < RECORD_LIMIT as usize
    }

    /// A place for a record; `None` if there is none.
    pub(crate) fn add_record(&mut self, adopted: Adopted) -> Option<u32> {
        let record = match self.free_records.pop_first() {
            Some(record) => record,
            None if self.records.len() < RECORD_LIMIT as usize => {
                self.records.push(None);
                self.records.len() as u32 - 1
            }
            None => return None,
        };
        self.by_number.insert(adopted.record.number, record);
        self.lists.add(record, adopted.standing());
        self.records[record as usize] = Some(Box::new(adopted));
        Some(record)
    }

    /// Puts a record where it was found at opening.
    pub(crate) fn put_record(&mut self, record: u32, adopted: Adopted) {
        while self.records.len() <= record as usize {
            self.free_records.insert(self.records.len() as u32);
            self.records.push(None);
        }
        self.free_records.remove(&record);
        self.lists.add(record, adopted.standing());
        self.records[record as usize] = Some(Box::new(adopted));
    }

    /// Changes what puts a record in one list or another.
    pub(crate) fn change<T>(&mut self, record: u32, change: impl FnOnce(&mut Adopted) -> T) -> T {
        let adopted = self.records[record as usize].as_deref_mut();
        let adopted = adopted.expect("a record in use is there");
        self.lists.remove(record, adopted.standing());
        let result = change(adopted);
        self.lists.add(record, adopted.standing());
        result
    }

    /// Changes the state of a record.
    pub(crate) fn set_state(&mut self, record: u32, state: RecordState) {
        self.change(record, |adopted| adopted.record.state = state);
    }

    /// Records by what they are like.
    pub(crate) fn lists(&self) -> &Lists {
        &self.lists
    }

    /// All records, for who counts anew.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = (u32, &Adopted)> {
        let all = (0..).zip(&self.records);
        all.filter_map(|(record, adopted)| Some((record, adopted.as_deref()?)))
    }

    /// Files of which blocks are here, those with a fault included.
    pub(crate) fn file_count(&self) -> u64 {
        (self.records.len() - self.free_records.len()) as u64 - self.lists.settled()
    }

    /// Forgets a record, which owns no window any more.
    pub(crate) fn remove_record(&mut self, record: u32) {
        let adopted = self.records[record as usize].take().expect("it is there");
        assert!(adopted.windows.is_empty(), "windows would belong to nobody");
        self.lists.remove(record, adopted.standing());
        if self.by_number.get(&adopted.record.number) == Some(&record) {
            self.by_number.remove(&adopted.record.number);
        }
        self.dirty.remove(&record);
        self.unnoted.remove(&record);
        self.free_records.insert(record);
    }

    /// One more block of a record is here, or so many fewer are.
    fn count_mapped(&mut self, record: u32, change: i64) {
        self.change(record, |adopted| {
            let after = adopted.mapped.checked_add_signed(change);
            adopted.mapped = after.expect("what goes was there");
        });
        self.mapped = self.mapped.checked_add_signed(change).expect("what goes was there");
    }

    /// The first host block of a window.
    pub(crate) fn window_start(&self, window: u32) -> u64 {
        self.superblock.windows_start() + u64::from(window) * WINDOW_BLOCKS
    }

    /// The window of a stretch of a file, a new one if there is none; whether it is new.
    pub(crate) fn window_for(&mut self, record: u32, stretch: u64) -> Option<(u32, bool)> {
        if let Some(window) = self.adopted(record).windows.get(&stretch) {
            return Some((*window, false));
        }
        let window = self.free_windows.pop_first()?;
        let owner = Owner { record, stretch };
        self.put_window(window, owner);
        Some((window, true))
    }

    pub(crate) fn put_window(&mut self, window: u32, owner: Owner) {
        assert!(self.windows[window as usize].is_none(), "a window has one owner");
        self.free_windows.remove(&window);
        let (present, copied) = (Bits::default(), Bits::default());
        self.windows[window as usize] = Some(Window { owner, present, copied });
        self.adopted_mut(owner.record).windows.insert(owner.stretch, window);
    }

    /// Takes a window away from its owner. Its blocks must be discarded with that.
    pub(crate) fn remove_window(&mut self, window: u32) {
        let gone = self.windows[window as usize].take().expect("it is in use");
        self.adopted_mut(gone.owner.record).windows.remove(&gone.owner.stretch);
        self.count_mapped(gone.owner.record, -(gone.present.count() as i64));
        self.free_windows.insert(window);
    }

    /// Notes that a block of a window is here now.
    pub(crate) fn mark_present(&mut self, window: u32, index: u64) {
        let Some(found) = &mut self.windows[window as usize] else { return };
        if !crate::is_broken("copied") {
            found.copied.clear(index);
        }
        if !found.present.has(index) {
            found.present.set(index);
            let record = found.owner.record;
            self.count_mapped(record, 1);
        }
    }

    /// Notes that a block is here no more.
    pub(crate) fn mark_absent(&mut self, window: u32, index: u64) {
        let Some(found) = &mut self.windows[window as usize] else { return };
        found.copied.clear(index);
        if found.present.has(index) {
            found.present.clear(index);
            let record = found.owner.record;
            self.count_mapped(record, -1);
        }
    }

    /// Whether a block of a file is here, and where it would be.
    pub(crate) fn host_block(&self, record: u32, block: u64) -> Option<u64> {
        let window = *self.adopted(record).windows.get(&(block / WINDOW_BLOCKS))?;
        let found = self.windows[window as usize].as_ref()?;
        let index = block % WINDOW_BLOCKS;
        found.present.has(index).then(|| self.window_start(window) + index)
    }

    /// Blocks of a file as runs that are read in one piece.
    pub(crate) fn pieces(&self, record: u32, first: u64, count: u64) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        for block in first..first + count {
            let host = self.host_block(record, block);
            match pieces.last_mut() {
                Some(last) if last.host.map(|start| start + last.count) == host => last.count += 1,
                _ => pieces.push(Piece { first: block, count: 1, host }),
            }
        }
        pieces
    }

    /// Blocks of a range that are not here yet.
    pub(crate) fn missing(&self, record: u32, first: u64, count: u64) -> u64 {
        (first..first + count).filter(|block| self.host_block(record, *block).is_none()).count()
            as u64
    }

    /// The next blocks from `from` on that are here and were not brought home, in a span of at most `count_max`
    /// blocks of one window.
    pub(crate) fn next_to_settle(&self, record: u32, from: u64, count_max: u64) -> Option<Portion> {
        let adopted = self.adopted(record);
        for (stretch, window) in adopted.windows.range(from / WINDOW_BLOCKS..) {
            let found = self.windows[*window as usize].as_ref().expect("it is in use");
            let next = |from| found.present.next_outside(&found.copied, from);
            let start = if *stretch == from / WINDOW_BLOCKS { from % WINDOW_BLOCKS } else { 0 };
            let Some(start) = next(start) else { continue };
            let (mut runs, mut end) = (vec![(0, 1)], start + 1);
            while let Some(index) = next(end).filter(|index| *index < start + count_max) {
                match runs.last_mut() {
                    Some((_, count)) if index == end => *count += 1,
                    _ if index - end > GAP_BLOCKS_MAX => break,
                    _ => runs.push((index - start, 1)),
                }
                end = index + 1;
            }
            let count = end - start;
            let (first, host) =
                (stretch * WINDOW_BLOCKS + start, self.window_start(*window) + start);
            return Some(Portion { first, count, host, runs });
        }
        None
    }

    /// Notes that blocks were brought home, or are asked for to be.
    pub(crate) fn mark_copied(&mut self, record: u32, portion: &Portion) {
        let window = self.adopted(record).windows.get(&(portion.first / WINDOW_BLOCKS)).copied();
        let Some(found) = window.and_then(|window| self.windows[window as usize].as_mut()) else {
            return;
        };
        let start = portion.first % WINDOW_BLOCKS;
        let blocks = portion.runs.iter().flat_map(|(first, count)| *first..first + count);
        blocks.for_each(|index| found.copied.set(start + index));
    }

    /// Nothing of a file counts as brought home.
    pub(crate) fn forget_copied(&mut self, record: u32) {
        let windows: Vec<u32> = self.adopted(record).windows.values().copied().collect();
        for window in windows {
            if let Some(found) = &mut self.windows[window as usize] {
                found.copied = Bits::default();
            }
        }
    }

    /// Blocks that can be mapped yet.
    pub(crate) fn room(&self) -> u64 {
        self.superblock.capacity.saturating_sub(self.mapped + self.reserved)
    }

    fn record_image(&self, block: u64) -> Block {
        let mut image = [0; BLOCK_SIZE];
        let base = ((block - RECORDS_START) * RECORDS_PER_BLOCK as u64) as usize;
        for index in 0..RECORDS_PER_BLOCK {
            if let Some(Some(adopted)) = self.records.get(base + index) {
                adopted.record.encode(&mut image, index);
            }
        }
        image
    }

    fn owner_image(&self, block: u64) -> Block {
        let mut image = [0; BLOCK_SIZE];
        let base = ((block - self.superblock.table_start()) * OWNERS_PER_BLOCK as u64) as usize;
        for index in 0..OWNERS_PER_BLOCK {
            let owner = self.windows.get(base + index).and_then(Option::as_ref);
            Owner::encode(owner.map(|window| window.owner), &mut image, index);
        }
        image
    }

    pub(crate) fn batch_record(&mut self, batch: &mut Batch, record: u32) {
        batch.records.insert(RECORDS_START + u64::from(record) / RECORDS_PER_BLOCK as u64);
        let base = record as usize / RECORDS_PER_BLOCK * RECORDS_PER_BLOCK;
        for index in base..base + RECORDS_PER_BLOCK {
            // All of the block is written as it is when the batch is submitted, which is now.
            self.dirty.remove(&(index as u32));
        }
    }

    pub(crate) fn batch_owner(&self, batch: &mut Batch, window: u32) {
        let block = u64::from(window) / OWNERS_PER_BLOCK as u64;
        batch.owners.insert(self.superblock.table_start() + block);
    }

    /// Whether a file is served, or would be if nothing were wrong with it.
    pub(crate) fn is_served(state: RecordState) -> bool {
        matches!(state, RecordState::Live | RecordState::Settling | RecordState::Dying)
    }
}

impl Batch {
    pub(crate) fn with_superblock(mut self) -> Batch {
        self.superblock = true;
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.block_count() == 0 && self.discards.is_empty()
    }

    /// Blocks that it writes.
    pub(crate) fn block_count(&self) -> usize {
        self.records.len() + self.owners.len() + usize::from(self.superblock)
    }

    /// Number and bytes of each block that it writes.
    pub(crate) fn images(&self, store: &Store) -> Vec<(u64, Block)> {
        let mut images = Vec::with_capacity(self.block_count());
        if self.superblock {
            let mut image = [0; BLOCK_SIZE];
            store.superblock.encode(&mut image);
            images.push((0, image));
        }
        images.extend(self.records.iter().map(|block| (*block, store.record_image(*block))));
        images.extend(self.owners.iter().map(|block| (*block, store.owner_image(*block))));
        images
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coulter_files::Time;
    use coulter_format::overlay::Fingerprint;

    fn bits(set: &[u64]) -> Bits {
        let mut bits = Bits::default();
        set.iter().for_each(|index| bits.set(*index));
        bits
    }

    #[test]
    fn the_next_block_that_is_to_come_home_is_found_in_every_word() {
        let last = WINDOW_BLOCKS - 1;
        let (present, copied) = (bits(&[0, 63, 64, 200, last]), bits(&[63, 200, 201]));
        let found = [0, 1, 64, 65, last].map(|from| present.next_outside(&copied, from));
        assert_eq!(found, [Some(0), Some(64), Some(64), Some(last), Some(last)]);
        assert_eq!(copied.next_outside(&copied, 0), None);
        assert_eq!(present.next_outside(&copied, WINDOW_BLOCKS), None);
    }

    #[test]
    fn blocks_near_each_other_come_home_together() {
        let handle = Handle::new(1, &[1; 8]).expect("it is short");
        let (modified, lower) = (Time::default(), Fingerprint::default());
        let record = Record {
            state: RecordState::Live,
            is_nameless: false,
            is_taking_space: false,
            id: [1; 16],
            handle,
            number: 7,
            size: 0,
            lower_valid: 0,
            modified,
            lower,
        };
        let mut store = Store::new(crate::create([7; 16], handle, 1 << 20, 10_000));
        let record = store.add_record(Adopted::new(record)).expect("there is room");
        let (window, _) = store.window_for(record, 0).expect("there is room");
        let far = 7 + GAP_BLOCKS_MAX + 1;
        for index in [3, 4, 6, far, 100, 101, 102, 200, 219, 220] {
            store.mark_present(window, index);
        }
        let mut found = Vec::new();
        while let Some(portion) = store.next_to_settle(record, 0, 20) {
            store.mark_copied(record, &portion);
            assert_eq!(portion.host, store.window_start(window) + portion.first);
            found.push((portion.first, portion.count, portion.runs));
        }
        let expected = [
            (3, 4, vec![(0, 2), (3, 1)]),
            (far, 1, vec![(0, 1)]),
            (100, 3, vec![(0, 3)]),
            (200, 1, vec![(0, 1)]),
            (219, 2, vec![(0, 2)]),
        ];
        assert_eq!(found, expected);
    }
}
