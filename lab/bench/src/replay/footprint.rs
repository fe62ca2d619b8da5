//! The blocks that a trace writes, and their ranks among each other.
//!
//! A trace's addresses are spread over devices far larger than what it touches. Replayed, a block
//! lies where its rank says: the n-th lowest block that is ever written is block n of the volume.
//! That keeps order and neighbourhood, and the volume is as large as what is written.
//!
//! Memory: 24 bytes for every 64 neighbouring blocks of which one is written, whatever the length of
//! the trace.

use std::collections::HashMap;

/// A block of one of the trace's devices: number of the device and of the block in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place(u64);

/// Blocks of a device at most: the limit of a trace's offsets in blocks.
const DEVICE_BITS: u32 = 43;

const _: () = assert!(coulter_workload::trace::OFFSET_MAX == 1 << (DEVICE_BITS + 12));
const _: () = assert!(coulter_workload::trace::DEVICES_MAX < 1 << (u64::BITS - DEVICE_BITS));

impl Place {
    /// Block `block` of a device. One past the last block of a device is the first of the next, so
    /// that ranges end there.
    pub(super) fn new(device: u16, block: u64) -> Place {
        assert!(block <= 1 << DEVICE_BITS, "the reader keeps offsets below the limit");
        Place((u64::from(device) << DEVICE_BITS) + block)
    }

    /// So many blocks further.
    pub(super) fn plus(self, count: u64) -> Place {
        Place(self.0 + count)
    }

    pub(super) fn from_bits(bits: u64) -> Place {
        Place(bits)
    }

    pub(super) fn bits(self) -> u64 {
        self.0
    }
}

/// Gathers blocks.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    /// Of each group of 64 blocks, which are written.
    groups: HashMap<u64, u64>,
    blocks: u64,
}

impl Gathering {
    /// Different blocks so far.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// These blocks are written.
    pub(super) fn add(&mut self, first: Place, count: u64) {
        let (mut place, end) = (first.0, first.0 + count);
        while place < end {
            let until = end.min((place | 63) + 1);
            let ones = u64::MAX >> (64 - (until - place));
            let group = self.groups.entry(place / 64).or_default();
            let before = *group;
            *group |= ones << (place % 64);
            self.blocks += u64::from((*group ^ before).count_ones());
            place = until;
        }
    }

    /// All have been added.
    pub(super) fn finish(self) -> Footprint {
        let mut groups: Vec<_> = self.groups.into_iter().collect();
        groups.sort_unstable();
        let mut below = 0;
        let ranked = groups.into_iter().map(|(group, written)| {
            let entry = Group { group, written, below };
            below += u64::from(written.count_ones());
            entry
        });
        Footprint { groups: ranked.collect(), blocks: below }
    }
}

#[derive(Debug)]
struct Group {
    group: u64,
    written: u64,
    /// Written blocks in the groups before.
    below: u64,
}

/// The blocks that are written.
#[derive(Debug)]
pub(super) struct Footprint {
    groups: Vec<Group>,
    blocks: u64,
}

impl Footprint {
    /// How many there are.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// How many lie before a place. The ranks of neighbours that are all written follow each other.
    pub(super) fn rank(&self, place: Place) -> u64 {
        let group = place.0 / 64;
        let at = self.groups.partition_point(|entry| entry.group < group);
        match self.groups.get(at) {
            Some(entry) if entry.group == group => {
                let before = entry.written & ((1 << (place.0 % 64)) - 1);
                entry.below + u64::from(before.count_ones())
            }
            Some(entry) => entry.below,
            None => self.blocks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coulter_workload::Random;
    use std::collections::BTreeSet;

    #[test]
    fn ranks_are_those_of_a_sorted_set() {
        let mut random = Random::new(4);
        let (mut gathering, mut model) = (Gathering::default(), BTreeSet::new());
        for _ in 0..300 {
            let device = random.below(3) as u16;
            let (block, count) = (random.below(5000), 1 + random.below(200));
            gathering.add(Place::new(device, block), count);
            model.extend((block..block + count).map(|block| Place::new(device, block)));
        }
        let footprint = gathering.finish();
        assert_eq!(footprint.blocks(), model.len() as u64);
        let sorted: Vec<_> = model.into_iter().collect();
        for device in 0..4 {
            for block in 0..5300 {
                let place = Place::new(device, block);
                let rank = sorted.partition_point(|other| *other < place) as u64;
                assert_eq!(footprint.rank(place), rank, "{place:?}");
            }
        }
    }

    #[test]
    fn the_ends_of_a_device_are_no_one_else_s_blocks() {
        let mut gathering = Gathering::default();
        let last = (1 << DEVICE_BITS) - 1;
        gathering.add(Place::new(0, last), 1);
        gathering.add(Place::new(1, 0), 1);
        let footprint = gathering.finish();
        assert_eq!(footprint.blocks(), 2);
        assert_eq!(footprint.rank(Place::new(0, last)), 0);
        assert_eq!(footprint.rank(Place::new(0, last + 1)), footprint.rank(Place::new(1, 0)));
    }
}
