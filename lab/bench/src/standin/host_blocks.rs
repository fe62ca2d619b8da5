//! Which blocks of the log hold host data, current or not: the last that was written there in the present
//! life of their segment.

use coulter_format::Pba;
use coulter_format::superblock::Geometry;

/// A bit for each block of the device.
#[derive(Clone, Debug)]
pub(crate) struct HostBlocks {
    words: Vec<u64>,
    first_segment: u32,
    segment_blocks: u32,
}

impl HostBlocks {
    /// None as yet, in a log laid out so.
    pub(crate) fn new(geometry: &Geometry) -> HostBlocks {
        let words = vec![0; geometry.device_size.div_ceil(64) as usize];
        let first_segment = geometry.first_segment.0;
        assert!(first_segment.is_multiple_of(64), "a segment is a whole number of words");
        HostBlocks { words, first_segment, segment_blocks: geometry.segment_blocks }
    }

    /// A record is written in a row. At the start of a segment that begins a new life of it: records in
    /// holes are written bit by bit.
    pub(super) fn record_begins(&mut self, pba: Pba) {
        // What lies before the log is a copy of a checkpoint's body, and no record.
        let Some(place) = pba.0.checked_sub(self.first_segment) else { return };
        if place.is_multiple_of(self.segment_blocks) {
            let start = pba.0 as usize / 64;
            self.words[start..start + self.segment_blocks as usize / 64].fill(0);
        }
    }

    /// A block is written.
    pub(super) fn note(&mut self, pba: Pba, is_host_data: bool) {
        let (word, bit) = (&mut self.words[pba.0 as usize / 64], 1 << (pba.0 % 64));
        if is_host_data { *word |= bit } else { *word &= !bit }
    }

    /// Whether a block holds host data.
    #[cfg(test)]
    pub(crate) fn contains(&self, pba: Pba) -> bool {
        self.words[pba.0 as usize / 64] & 1 << (pba.0 % 64) != 0
    }

    /// How many there are among the first `count` blocks of the segment that starts here. One that was
    /// opened, and not written to, still has those of its former life.
    pub(crate) fn count(&self, start: Pba, count: u32) -> u64 {
        assert!(count <= self.segment_blocks, "it lies in a segment");
        let first = start.0 as usize / 64;
        let (whole, rest) = (count as usize / 64, count % 64);
        let words = &self.words[first..first + whole];
        let sum: u32 = words.iter().map(|word| word.count_ones()).sum();
        let mask = (1 << rest) - 1;
        let last = if mask == 0 { 0 } else { (self.words[first + whole] & mask).count_ones() };
        u64::from(sum + last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_s_new_life_begins_with_a_record_at_its_start() {
        let mut blocks = HostBlocks::new(&Geometry {
            device_size: 2560,
            volume_size: 1000,
            capacity: 1000,
            root_limit: 0,
            root_lists: false,
            segment_blocks: 256,
            segment_count: 9,
            first_segment: Pba(256),
            second_superblock: Pba(128),
            third_superblock: Pba::NOWHERE,
            page_blocks: 1,
        });
        let start = Pba(512);
        for offset in [1, 2, 64, 255, 256] {
            blocks.note(start.plus(offset), true);
        }
        blocks.note(start.plus(2), false);
        let counts = |blocks: &HostBlocks| [0, 1, 2, 64, 65, 256].map(|n| blocks.count(start, n));
        assert_eq!(counts(&blocks), [0, 0, 1, 1, 2, 3]);
        blocks.record_begins(start.plus(64));
        assert_eq!(blocks.count(start, 256), 3, "one in its midst does not");
        assert!(blocks.contains(start.plus(64)));
        blocks.record_begins(start);
        assert_eq!(blocks.count(start, 256), 0);
        assert_eq!(blocks.count(start.plus(256), 256), 1, "the next one is as it was");
    }
}
