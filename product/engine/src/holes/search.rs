//! Searching the holes of segments, reserving them at the cut of a checkpoint, and opening them.

use super::{DEATHS_SHARE_MIN, Entry, Headers, HoleRoom, SEGMENTS_MAX, SearchStage, room, usable};
use crate::canary::{Canary, sings};
use crate::holes::pages::{fill_pages, is_set, page_is_clear, set};
use crate::references::References;
use crate::segments::{Segment, Segments, State};
use crate::units::{SegmentIndex, Sequence, Stream, segment_start};
use coulter_format::Pba;
use coulter_format::segment_table::SegmentState;

impl Segment {
    /// Where headers lie in it.
    pub(crate) fn headers(&self) -> Headers {
        if self.patched { Headers::Anywhere } else { Headers::InARow }
    }

    /// Whether its blocks must stay where they are: its holes are looked for, or filled.
    pub(crate) fn keeps_still(&self) -> bool {
        self.watched
    }

    /// What the segment table of a checkpoint says of it, `is_behind` being whether it was opened since the
    /// last cut and all of its records lie behind this one.
    pub(crate) fn state_in_table(&self, is_behind: bool) -> SegmentState {
        match (self.state, self.headers()) {
            (State::Open, _) if !is_behind => SegmentState::Open,
            (State::Closed | State::Patching, Headers::Anywhere) => SegmentState::Patched,
            (State::Closed, Headers::InARow) if !is_behind => SegmentState::Closed,
            _ => SegmentState::Free,
        }
    }
}

impl Segments {
    fn hole_entry(&mut self, segment: SegmentIndex) -> Option<&mut Entry> {
        self.holes.entries.iter_mut().find(|entry| entry.segment == segment)
    }

    /// The segment that a head over holes is in.
    pub(crate) fn open_entry(&self, segment: SegmentIndex) -> Option<&Entry> {
        let entry = self.holes.entries.iter().find(|entry| entry.segment == segment)?;
        assert_eq!(entry.stage, SearchStage::Open, "a head over holes is open");
        Some(entry)
    }

    /// Segments being looked at or known, and those reserved, ready or open.
    fn hole_counts(&self) -> (usize, usize) {
        let before = |entry: &&Entry| entry.stage < SearchStage::Reserved;
        let unreserved = self.holes.entries.iter().filter(before).count();
        (unreserved, self.holes.entries.len() - unreserved)
    }

    /// Whether holes of any segment are known or looked for.
    pub(crate) fn any_is_watched(&self) -> bool {
        !self.holes.entries.is_empty()
    }

    /// Whether holes of another segment may be looked for, `limit` being how many.
    pub(crate) fn wants_holes(&self, limit: usize) -> bool {
        self.hole_counts().0 < limit
    }

    /// Whether the segment could have holes that are worth it.
    pub(crate) fn may_have_holes(&self, index: SegmentIndex) -> bool {
        let size = self.geometry().segment_blocks;
        let segment = self.segment(index);
        segment.state == State::Closed
            && !segment.watched
            && segment.valid <= segment.search_up_to
            // What the cleaner has just gone through is empty as soon as its relocations arrive.
            && !self.is_exhausted(index)
            && segment.pending == 0
            && segment.stream != Stream::Metadata as u8
            && segment.valid + self.least_holes() <= size
    }

    /// Begins to look for holes.
    pub(crate) fn watch(&mut self, segment: SegmentIndex) {
        assert!(!self.segment(segment).watched, "a segment is looked at once");
        let words = (self.geometry().segment_blocks as usize).div_ceil(64);
        self.segment_mut(segment).watched = true;
        let [counted, needed] = self.holes.take_bits(words);
        let stage = SearchStage::Searched;
        self.holes.entries.push(Entry { segment, stage, counted, count: 0, holes: 0, needed });
    }

    /// Forgets a segment of which no holes are reserved.
    fn unwatch(&mut self, segment: SegmentIndex) {
        self.holes.forget(segment);
        self.segment_mut(segment).watched = false;
    }

    /// Forgets a segment that has no holes that are worth it, until so many more of its blocks are dead.
    pub(crate) fn searched_in_vain(&mut self, segment: SegmentIndex, deaths: u32) {
        self.unwatch(segment);
        let deaths = deaths.max(self.geometry().segment_blocks / DEATHS_SHARE_MIN);
        let entry = self.segment_mut(segment);
        entry.search_up_to = entry.valid.saturating_sub(deaths);
    }

    /// A block was found to be counted; the header says of it what points to it.
    pub(crate) fn found_counted(&mut self, pba: Pba, header: Pba) {
        let segment = self.of(pba);
        let start = segment_start(self.geometry(), segment);
        let Some(entry) = self.hole_entry(segment) else { return };
        entry.count += u32::from(set(&mut entry.counted, pba.0 - start.0));
        set(&mut entry.needed, header.0 - start.0);
    }

    /// A block of a segment that is looked at is no longer counted.
    pub(crate) fn note_death(&mut self, segment: SegmentIndex, pba: Pba) {
        let start = segment_start(self.geometry(), segment);
        let page = self.hole_blocks();
        let Some(entry) = self.hole_entry(segment) else { return };
        let offset = pba.0 - start.0;
        if entry.stage <= SearchStage::Known && is_set(&entry.counted, offset) {
            entry.counted[offset as usize / 64] &= !(1 << (offset % 64));
            entry.count -= 1;
            let is_clear = |marks| page_is_clear(marks, offset, page);
            let frees = page == 1 || (is_clear(&entry.counted) && is_clear(&entry.needed));
            entry.holes += if frees { page } else { 0 };
        }
    }

    /// All blocks of the segment were looked at. Only now is it known which headers are needed, so how
    /// many holes there are.
    pub(crate) fn holes_known(&mut self, segment: SegmentIndex) {
        let size = self.geometry().segment_blocks;
        let page = self.geometry().page_blocks;
        let (hole, least) = (self.hole_blocks(), self.least_holes());
        let mut no_hole = core::mem::take(&mut self.holes.in_hand);
        if let Some(entry) = self.hole_entry(segment) {
            entry.stage = SearchStage::Known;
            no_hole.clear();
            no_hole.extend(entry.needed.iter().zip(&entry.counted).map(|(a, b)| a | b));
            fill_pages(&mut no_hole, hole);
            entry.holes = usable(&no_hole, size, page);
            let too_few = least.saturating_sub(entry.holes);
            if too_few > 0 {
                self.searched_in_vain(segment, too_few);
            }
        }
        self.holes.in_hand = no_hole;
        if sings(Canary::HoleFilledEarly) {
            self.reserve_holes(SEGMENTS_MAX, &References::default());
            self.holes_are_durable();
        }
    }

    /// At the cut of a checkpoint, no relocation being on its way: reserves the holes of segments of
    /// which all is known, up to `limit`. The headers of `references` are none.
    pub(crate) fn reserve_holes(&mut self, limit: usize, references: &References) {
        let size = self.geometry().segment_blocks;
        let hole = self.hole_blocks();
        let mut reserved = self.hole_counts().1;
        let mut entries = core::mem::take(&mut self.holes.entries);
        let mut spare = core::mem::take(&mut self.holes.spare);
        entries.retain_mut(|entry| {
            if entry.stage != SearchStage::Known || reserved >= limit {
                return true;
            }
            let start = segment_start(self.geometry(), entry.segment).0;
            let segment = self.segment_mut(entry.segment);
            let still = segment.state == State::Closed && segment.pending == 0;
            // What is counted and was not found lies behind a damaged header.
            let found_all = entry.count == segment.valid;
            segment.watched = still && found_all;
            if !segment.watched {
                segment.search_up_to = segment.valid.saturating_sub(size / DEATHS_SHARE_MIN);
                spare.push(entry.take_bits());
                return false;
            }
            entry.needed.iter_mut().zip(&entry.counted).for_each(|(all, bits)| *all |= bits);
            for header in references.headers_in(start..start + size) {
                set(&mut entry.needed, header.0 - start);
            }
            if !sings(Canary::PartOfPageFilled) {
                fill_pages(&mut entry.needed, hole);
            }
            // There were holes, and more since; but headers may have become needed.
            if room(&entry.needed, size, 0, 0).is_none() {
                segment.watched = false;
                segment.search_up_to = segment.valid.saturating_sub(size / DEATHS_SHARE_MIN);
                spare.push(entry.take_bits());
                return false;
            }
            self.enter(entry.segment, State::Patching);
            self.set_patched(entry.segment, true);
            entry.stage = SearchStage::Reserved;
            reserved += 1;
            true
        });
        self.holes.entries = entries;
        self.holes.spare = spare;
    }

    /// Segments of which the holes are reserved, or filled.
    pub(crate) fn reserved_holes(&self) -> impl Iterator<Item = SegmentIndex> + '_ {
        let reserved = |entry: &&Entry| entry.stage >= SearchStage::Reserved;
        self.holes.entries.iter().filter(reserved).map(|entry| entry.segment)
    }

    /// The checkpoint that reserves the holes is durable.
    pub(crate) fn holes_are_durable(&mut self) {
        for entry in
            self.holes.entries.iter_mut().filter(|entry| entry.stage == SearchStage::Reserved)
        {
            entry.stage = SearchStage::Ready;
        }
    }

    /// Blocks in holes that wait for a cut, if no others are ready.
    pub(crate) fn holes_wait_for_cut(&self) -> Option<u64> {
        let entries = &self.holes.entries;
        if entries.iter().any(|entry| entry.stage > SearchStage::Known) {
            return None;
        }
        let known = entries.iter().filter(|entry| entry.stage == SearchStage::Known);
        Some(known.map(|entry| u64::from(entry.holes)).sum())
    }

    /// Takes a segment with room for so many blocks for a stream, if one is ready and nobody reads
    /// in it.
    pub(crate) fn open_holes(&mut self, stream: Stream, blocks: u32) -> Option<SegmentIndex> {
        let size = self.geometry().segment_blocks;
        let is_quiet =
            |entry: &Entry| !self.is_read(entry.segment) || sings(Canary::HoleReaderIgnored);
        let suits = |entry: &Entry| {
            entry.stage == SearchStage::Ready
                && is_quiet(entry)
                && room(&entry.needed, size, 0, blocks).is_some()
        };
        let cost = |index: usize| self.padding_cost(&self.holes.entries[index].needed);
        let mut suited = (0..self.holes.entries.len()).filter(|at| suits(&self.holes.entries[*at]));
        let cheaper = |best, other| if cost(other).is_less_than(cost(best)) { other } else { best };
        let index = match self.geometry().has_pages() {
            true => suited.reduce(cheaper),
            false => suited.next(),
        }?;
        self.holes.entries[index].stage = SearchStage::Open;
        let opened = self.holes.entries[index].segment;
        let segment = self.segment(opened);
        assert_eq!(segment.state, State::Patching, "its holes are reserved");
        assert_eq!(segment.pending, 0, "nothing was written into it since the cut");
        self.begin_patching(opened, stream);
        Some(opened)
    }

    /// The first room at or behind an offset of an open segment.
    pub(crate) fn hole_room(
        &self,
        segment: SegmentIndex,
        offset: u32,
        blocks: u32,
    ) -> Option<HoleRoom> {
        let entry = self.open_entry(segment)?;
        let found = room(&entry.needed, self.geometry().segment_blocks, offset, blocks)?;
        let begins = self.may_begin(&found) || sings(Canary::PartOfPageFilled);
        assert!(begins, "a page is written as a whole");
        Some(found)
    }

    /// A head over holes takes no more.
    pub(crate) fn close_holes(&mut self, segment: SegmentIndex, clock: u64, now: Sequence) {
        assert_eq!(self.segment(segment).state, State::Patching, "a head was over its holes");
        self.segment_mut(segment).clock = clock;
        self.give_back(segment, now);
    }

    /// The segment is an ordinary closed one again.
    fn give_back(&mut self, segment: SegmentIndex, now: Sequence) {
        self.unwatch(segment);
        self.enter(segment, State::Closed);
        self.settle(segment, now);
    }

    /// Gives up all holes that no head is over.
    pub(crate) fn give_up_holes(&mut self, now: Sequence) {
        let unopened = |entry: &&Entry| entry.stage < SearchStage::Open;
        while let Some(entry) = self.holes.entries.iter().find(unopened) {
            let segment = entry.segment;
            match entry.stage {
                SearchStage::Searched | SearchStage::Known => self.unwatch(segment),
                _ => self.give_back(segment, now),
            }
        }
    }
}

#[cfg(feature = "verify")]
impl Segments {
    /// # Panics
    /// If what is known of holes contradicts the segments.
    pub(crate) fn assert_holes(&self) {
        let size = self.geometry().segment_blocks;
        for entry in &self.holes.entries {
            let segment = self.segment(entry.segment);
            assert!(segment.watched, "what is looked at is told of its deaths");
            let is_reserved = entry.stage >= SearchStage::Reserved;
            assert_eq!(segment.state == State::Patching, is_reserved, "reserved holes wait");
            let counted: u32 = entry.counted.iter().map(|bits| bits.count_ones()).sum();
            let is_told = entry.stage <= SearchStage::Known;
            assert!(!is_told || counted == entry.count, "the found are counted");
            assert!(counted <= size, "no more than there are");
        }
        let watched = self.iter().filter(|(_, segment)| segment.watched).count();
        assert_eq!(watched, self.holes.entries.len(), "and nothing else is");
    }
}

#[cfg(test)]
mod tests {
    use super::super::PLACES_MIN;
    use super::*;
    use alloc::vec::Vec;
    use coulter_format::superblock::Geometry;

    const SIZE: u32 = 256;
    const SEGMENT: SegmentIndex = SegmentIndex(1);

    fn pba(offset: u32) -> Pba {
        Pba(2 * SIZE + offset)
    }

    /// Segment 1 is closed; blocks at these offsets are counted.
    fn segments(counted: &[u32]) -> Segments {
        let mut segments = Segments::new(Geometry {
            device_size: 2560,
            volume_size: 1000,
            capacity: 1000,
            root_limit: 0,
            root_lists: false,
            segment_blocks: SIZE,
            segment_count: 9,
            first_segment: Pba(SIZE),
            second_superblock: Pba(SIZE / 2),
            third_superblock: Pba::NOWHERE,
            page_blocks: 1,
        })
        .expect("there is memory");
        segments.restore(SEGMENT, counted.len() as u32, State::Closed, 0, 0, 0);
        segments
    }

    fn searched(segments: &mut Segments, found: &[u32]) {
        segments.watch(SEGMENT);
        found.iter().for_each(|offset| segments.found_counted(pba(*offset), pba(100)));
        segments.holes_known(SEGMENT);
    }

    #[test]
    fn holes_are_what_is_neither_counted_nor_a_needed_header_when_the_checkpoint_is_cut() {
        let mut segments = segments(&[101, 102, 150]);
        searched(&mut segments, &[101, 102, 150]);
        segments.release(pba(102), 5);
        segments.reserve_holes(4, &References::default());
        segments.release(pba(150), 6);
        assert_eq!(segments.reserved_holes().collect::<Vec<_>>(), [SEGMENT]);
        assert_eq!(segments.open_holes(Stream::User, 1), None, "it is not durable");
        segments.holes_are_durable();
        segments.begin_read(SEGMENT);
        assert_eq!(segments.open_holes(Stream::User, 1), None, "it is read");
        segments.end_read(SEGMENT);
        assert_eq!(segments.open_holes(Stream::User, 1), Some(SEGMENT));
        let room = segments.hole_room(SEGMENT, 0, 1).expect("most of it is free");
        assert_eq!(room.offset, 0);
        let taken: Vec<_> = (1..SIZE).filter(|offset| !room.places.contains(offset - 1)).collect();
        assert_eq!(taken, [100, 101, 150], "102 died in time, 150 did not");
        let room = segments.hole_room(SEGMENT, 100, 60).expect("the rest");
        assert_eq!((room.offset, room.places.count()), (102, SIZE - 103 - 1));
        assert_eq!(segments.hole_room(SEGMENT, SIZE - PLACES_MIN, 1), None, "no header for so few");
    }

    /// Each record has one block left: next to what is dead lies a header that is needed.
    #[test]
    fn a_segment_full_of_headers_is_no_reason_for_a_checkpoint_nor_searched_again_until_more_died()
    {
        let found: Vec<u32> = (0..120).map(|record| 2 * record + 1).collect();
        let mut segments = segments(&found);
        assert!(segments.may_have_holes(SEGMENT), "more than half of it is dead");
        segments.watch(SEGMENT);
        found.iter().for_each(|offset| segments.found_counted(pba(*offset), pba(offset - 1)));
        segments.holes_known(SEGMENT);
        assert_eq!(segments.holes_wait_for_cut(), Some(0));
        assert!(!segments.segment(SEGMENT).watched);
        let (last, dying) = found[..SIZE as usize / 8].split_last().expect("an eighth of it");
        dying.iter().for_each(|offset| segments.release(pba(*offset), 5));
        segments.checkpoint_is_durable(5, |_| false);
        assert!(!segments.may_have_holes(SEGMENT), "not yet, checkpoint or not");
        segments.release(pba(*last), 6);
        assert!(segments.may_have_holes(SEGMENT));
    }

    #[test]
    fn what_a_damaged_header_hides_is_never_a_hole() {
        let mut segments = segments(&[101, 102, 150]);
        searched(&mut segments, &[101, 150, 150]);
        segments.reserve_holes(4, &References::default());
        assert_eq!(segments.reserved_holes().count(), 0);
        let segment = segments.segment(SEGMENT);
        assert!(!segment.watched && !segment.patched);
        assert!(!segments.may_have_holes(SEGMENT), "it is not searched again");
    }

    #[test]
    fn a_segment_with_a_head_over_its_holes_is_freed_only_when_the_head_has_left() {
        let mut segments = segments(&[101]);
        searched(&mut segments, &[101]);
        segments.reserve_holes(4, &References::default());
        segments.holes_are_durable();
        let opened = segments.open_holes(Stream::Cleaning, 1).expect("it is ready");
        segments.release(pba(101), 7);
        assert_eq!(segments.segment(opened).state, State::Patching);
        segments.close_holes(opened, 9, 8);
        assert_eq!(segments.segment(opened).state, State::Freed(8));
    }

    #[test]
    fn holes_that_are_given_up_leave_an_ordinary_closed_segment() {
        let mut segments = segments(&[101]);
        searched(&mut segments, &[101]);
        segments.reserve_holes(4, &References::default());
        segments.give_up_holes(3);
        let segment = segments.segment(SEGMENT);
        assert_eq!(segment.state, State::Closed);
        assert!(segment.patched, "the checkpoint said so");
        assert!(segments.may_have_holes(SEGMENT), "it may be searched again");
    }
}
