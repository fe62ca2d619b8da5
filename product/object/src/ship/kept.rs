//! What was written and is not on its way to the bucket yet, in memory: so it need not be read back.
//!
//! It is a cache of the device's newest content. Whoever finds a range here may send it; whoever does not reads it
//! back from the device. So memory is bounded: what finds no room is simply not kept.
//!
//! # Invariants
//! - What is valid here is what the last completed write left on the device.
//! - Each valid byte lies in a page, and each page holds a valid byte.
//! - Pages are allocated when this is made, or resized. They are here, free, or lent to a
//!   [`Bundle`]; else none is made or lost.
//! - The bytes of a bundle never change: a write to a page that was lent goes to another page.

use crate::ranges::RangeSet;
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of a page, unless a test wants others.
pub const PAGE_SIZE: u64 = 64 << 10;

type Page = Box<[u8]>;

/// See the [module](self).
#[derive(Debug)]
pub struct Kept {
    page_size: u64,
    page_count: usize,
    /// Pages that there are to be: those that are lent come back first.
    page_max: usize,
    /// By number: page 0 begins at byte 0 of the device.
    pages: BTreeMap<u64, Page>,
    free: Vec<Page>,
    lent_count: usize,
    valid: RangeSet,
}

/// What was taken out, to be sent.
#[derive(Debug)]
pub struct Bundle {
    pages: Vec<Page>,
    /// Stretches of pages, in the order of the bytes.
    parts: Vec<(usize, Range<usize>)>,
}

impl Bundle {
    /// Adds its bytes to `out`.
    pub fn copy_into(&self, out: &mut Vec<u8>) {
        for (page, part) in &self.parts {
            out.extend_from_slice(&self.pages[*page][part.clone()]);
        }
    }
}

impl Kept {
    /// Keeps up to `bytes` bytes, in pages of `page_size`. Nothing is kept if that is less than a page.
    pub fn new(bytes: u64, page_size: u64) -> Kept {
        assert!(page_size > 0, "a page holds something");
        let page_count = (bytes / page_size) as usize;
        // Untouched memory costs nothing; the page that came back last is taken first, so little is touched.
        let free = (0..page_count).map(|_| vec![0; page_size as usize].into_boxed_slice());
        Kept {
            page_size,
            page_count,
            page_max: page_count,
            pages: BTreeMap::new(),
            free: free.collect(),
            lent_count: 0,
            valid: RangeSet::new(),
        }
    }

    /// Keeps up to `bytes` bytes from now on.
    pub fn resize(&mut self, bytes: u64) {
        self.page_max = (bytes / self.page_size) as usize;
        while self.page_count < self.page_max {
            self.free.push(vec![0; self.page_size as usize].into_boxed_slice());
            self.page_count += 1;
        }
        self.give_up_pages();
    }

    /// Gives up pages that there are too many of: free ones first, then what is kept.
    fn give_up_pages(&mut self) {
        while self.page_count > self.page_max {
            if self.free.pop().is_none() {
                let Some((number, _)) = self.pages.pop_last() else { return };
                self.valid.remove(&self.range_of(number));
            }
            self.page_count -= 1;
        }
    }

    /// A write has completed, and nothing else was writing there: the device holds these bytes now.
    pub fn keep(&mut self, range: &Range<u64>, bytes: &[u8]) {
        assert_eq!(range.end - range.start, bytes.len() as u64, "each byte has its place");
        let mut rest = bytes;
        for (number, part) in parts_of(range.clone(), self.page_size) {
            let (own, behind) = rest.split_at((part.end - part.start) as usize);
            rest = behind;
            if !self.pages.contains_key(&number) {
                let Some(page) = self.free.pop() else { continue };
                self.pages.insert(number, page);
            }
            let page = self.pages.get_mut(&number).expect("it was there, or is by now");
            page[within(number, self.page_size, &part)].copy_from_slice(own);
            self.valid.insert(part);
        }
    }

    /// What the device holds there is not known here any more.
    pub fn forget(&mut self, range: &Range<u64>) {
        if range.is_empty() || !self.valid.overlaps(range) {
            return;
        }
        self.valid.remove(range);
        let numbers = range.start / self.page_size..range.end.div_ceil(self.page_size);
        let numbers: Vec<u64> = self.pages.range(numbers).map(|(number, _)| *number).collect();
        for number in numbers {
            if !self.valid.overlaps(&self.range_of(number)) {
                let page = self.pages.remove(&number).expect("it was listed");
                self.free.push(page);
            }
        }
    }

    /// Takes ranges out if all of them are here. They ascend.
    pub fn take(&mut self, ranges: &[Range<u64>]) -> Option<Bundle> {
        if !ranges.iter().all(|range| self.holds(range)) {
            return None;
        }
        let mut bundle = Bundle { pages: Vec::new(), parts: Vec::new() };
        let mut end = 0;
        for range in ranges {
            assert!(range.start >= end, "ranges ascend");
            end = range.end;
            self.valid.remove(range);
        }
        let mut newest = None;
        for range in ranges {
            for (number, part) in parts_of(range.clone(), self.page_size) {
                if newest != Some(number) {
                    bundle.pages.push(self.lend(number));
                    newest = Some(number);
                }
                let part = within(number, self.page_size, &part);
                bundle.parts.push((bundle.pages.len() - 1, part));
            }
        }
        Some(bundle)
    }

    /// Takes a page out. What else is valid in it moves to another page, or is forgotten.
    fn lend(&mut self, number: u64) -> Page {
        let page = self.pages.remove(&number).expect("valid bytes have a page");
        self.lent_count += 1;
        let rest = self.valid.within(&self.range_of(number));
        if rest.is_empty() {
            return page;
        }
        match self.free.pop() {
            Some(mut other) => {
                for part in rest {
                    let part = within(number, self.page_size, &part);
                    other[part.clone()].copy_from_slice(&page[part]);
                }
                self.pages.insert(number, other);
            }
            None => rest.iter().for_each(|part| self.valid.remove(part)),
        }
        page
    }

    /// The pages of a bundle are free again.
    pub fn give_back(&mut self, bundle: Bundle) {
        assert!(bundle.pages.len() <= self.lent_count, "a bundle comes back once");
        self.lent_count -= bundle.pages.len();
        self.free.extend(bundle.pages);
        self.give_up_pages();
    }

    /// Copies what is here of a range to its place in `out`, takes it out, and returns what is not here, ascending.
    pub fn take_part(&mut self, range: &Range<u64>, out: &mut [u8]) -> Vec<Range<u64>> {
        assert_eq!(range.end - range.start, out.len() as u64, "each byte has its place");
        let mut missing = Vec::new();
        let mut end = range.start;
        for found in self.valid.within(range) {
            missing.push(end..found.start);
            end = found.end;
            for (number, part) in parts_of(found, self.page_size) {
                let place = (part.start - range.start) as usize..(part.end - range.start) as usize;
                let page = &self.pages[&number];
                out[place].copy_from_slice(&page[within(number, self.page_size, &part)]);
            }
        }
        missing.push(end..range.end);
        missing.retain(|part| !part.is_empty());
        self.forget(range);
        missing
    }

    /// Whether all of a range is here.
    pub fn holds(&self, range: &Range<u64>) -> bool {
        self.valid.holds(range)
    }

    /// Bytes that are here.
    pub fn total(&self) -> u64 {
        self.valid.total()
    }

    fn range_of(&self, number: u64) -> Range<u64> {
        number * self.page_size..(number + 1) * self.page_size
    }

    /// Checks every invariant that can be seen from here.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn assert_invariants(&self) {
        let here = self.pages.len() + self.free.len() + self.lent_count;
        assert_eq!(here, self.page_count, "no page is made or lost");
        for number in self.pages.keys() {
            assert!(self.valid.overlaps(&self.range_of(*number)), "a page holds a valid byte");
        }
        for range in self.valid.iter() {
            for (number, _) in parts_of(range, self.page_size) {
                assert!(self.pages.contains_key(&number), "valid bytes have a page");
            }
        }
    }
}

/// A range cut at the ends of pages, with the pages' numbers.
fn parts_of(range: Range<u64>, page_size: u64) -> impl Iterator<Item = (u64, Range<u64>)> {
    let numbers = range.start / page_size..range.end.div_ceil(page_size);
    numbers.map(move |number| {
        let page = number * page_size..(number + 1) * page_size;
        (number, range.start.max(page.start)..range.end.min(page.end))
    })
}

/// A part of a page as bytes from the page's first on.
fn within(number: u64, page_size: u64, part: &Range<u64>) -> Range<usize> {
    let start = number * page_size;
    (part.start - start) as usize..(part.end - start) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use coulter_workload::Random;

    const SIZE: u64 = 160;

    /// Whatever is done: what is found is what was written last, and no page is lost.
    #[test]
    fn what_is_kept_is_what_was_written_last() {
        for (seed, bytes) in [(1, 0), (2, 8), (3, 40), (4, 80), (5, SIZE)] {
            let mut random = Random::new(seed);
            let (mut kept, mut device) = (Kept::new(bytes, 8), vec![0; SIZE as usize]);
            // Bundles on their way, and what they must hold.
            let mut lent: Vec<(Bundle, Vec<u8>)> = Vec::new();
            let (mut taken, mut missed) = (0, 0);
            for step in 0..20_000_u32 {
                let start = random.below(SIZE);
                let range = start..(start + 1 + random.below(30)).min(SIZE);
                let place = range.start as usize..range.end as usize;
                match random.below(6) {
                    0 | 1 => {
                        device[place.clone()].fill(step as u8);
                        kept.keep(&range, &device[place]);
                    }
                    2 => kept.forget(&range),
                    3 => match kept.take(std::slice::from_ref(&range)) {
                        Some(bundle) => {
                            taken += 1;
                            lent.push((bundle, device[place].to_vec()));
                        }
                        None => missed += 1,
                    },
                    4 => {
                        let mut out = vec![0; place.len()];
                        for part in kept.take_part(&range, &mut out) {
                            let own = (part.start - start) as usize..(part.end - start) as usize;
                            let there = part.start as usize..part.end as usize;
                            out[own].copy_from_slice(&device[there]);
                        }
                        assert_eq!(out, device[place], "what is not missing is right");
                    }
                    _ => {
                        if let Some((bundle, expected)) = lent.pop() {
                            let mut bytes = Vec::new();
                            bundle.copy_into(&mut bytes);
                            assert_eq!(bytes, expected, "a bundle never changes");
                            kept.give_back(bundle);
                        }
                    }
                }
                kept.assert_invariants();
            }
            assert!(missed > 100 && (taken > 100 || bytes < 40), "{bytes}: {taken}, {missed}");
        }
    }

    #[test]
    fn fewer_pages_are_kept_once_those_that_were_lent_are_back() {
        let mut kept = Kept::new(64, 8);
        kept.keep(&(0..48), &[7; 48]);
        let bundle = kept.take(std::slice::from_ref(&(40..48))).expect("it is there");
        kept.resize(16);
        assert_eq!((kept.total(), kept.page_count), (8, 2), "a page of two is lent");
        kept.give_back(bundle);
        kept.resize(0);
        assert_eq!((kept.total(), kept.page_count), (0, 0));
        kept.resize(32);
        kept.keep(&(0..32), &[9; 32]);
        assert!(kept.holds(&(0..32)));
        kept.assert_invariants();
    }

    #[test]
    fn several_ranges_in_one_page_are_one_bundle() {
        let mut kept = Kept::new(64, 8);
        kept.keep(&(2..20), &(2..20).collect::<Vec<u8>>());
        let bundle = kept.take(&[3..5, 6..7, 9..17]).expect("all of it is there");
        let mut bytes = Vec::new();
        bundle.copy_into(&mut bytes);
        assert_eq!(bytes, [3, 4, 6, 9, 10, 11, 12, 13, 14, 15, 16]);
        assert_eq!(kept.total(), 18 - 11, "the rest is kept");
        kept.assert_invariants();
        assert!(kept.take(&[5..6, 6..7]).is_none(), "6 was taken");
        assert_eq!(kept.total(), 18 - 11, "nothing was taken then");
        kept.give_back(bundle);
        kept.assert_invariants();
    }
}
