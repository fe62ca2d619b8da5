//! Closed segments in classes of how much of them is valid: a list for each class, oldest first.
//!
//! So that of however many segments the few are found that may be worth cleaning. A segment changes its
//! list only when it comes into another class: once in so many overwrites as a class is wide.
//!
//! # Invariants
//! - A segment is in one list at most.
//! - Nothing is allocated once there are as many links as segments.

use crate::memory::{self, NoMemory, Pieces};
use alloc::vec::Vec;

/// How many classes there are.
const COUNT: usize = 256;

/// No segment.
const NONE: u32 = u32::MAX;

/// A segment's neighbours in its list, and which list that is; `NONE` if none.
#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    behind: u32,
    class: u32,
}

/// All lists.
#[derive(Debug)]
pub(crate) struct Classes {
    links: Pieces<Link>,
    /// Of each class. Not in place: they are more than a kernel's stack has to give.
    first: Vec<u32>,
    last: Vec<u32>,
    /// How far a count of valid blocks is shifted to be a class.
    shift: u32,
}

impl Classes {
    /// For so many segments of `size` blocks, a power of two.
    pub(crate) fn new(count: usize, size: u32) -> Result<Classes, NoMemory> {
        let shift = size.trailing_zeros().saturating_sub(COUNT.trailing_zeros());
        let link = Link { before: NONE, behind: NONE, class: NONE };
        Ok(Classes {
            links: Pieces::filled(link, count)?,
            first: memory::filled(NONE, COUNT)?,
            last: memory::filled(NONE, COUNT)?,
            shift,
        })
    }

    /// One class for all of `count` segments, which are few enough to be looked at one by one. An overwrite then has
    /// nothing to keep.
    pub(crate) fn alike(count: usize) -> Result<Classes, NoMemory> {
        Ok(Classes { shift: u32::BITS - 1, ..Classes::new(count, 1)? })
    }

    fn class_of(&self, valid: u32) -> u32 {
        // What is wholly valid is in the last class.
        (valid >> self.shift).min(COUNT as u32 - 1)
    }

    /// A segment was closed.
    pub(crate) fn insert(&mut self, segment: usize, valid: u32) {
        assert_eq!(self.links[segment].class, NONE, "a segment is in one list");
        let class = self.class_of(valid);
        let before = self.last[class as usize];
        self.links[segment] = Link { before, behind: NONE, class };
        match self.links.get_mut(before as usize) {
            Some(link) => link.behind = segment as u32,
            None => self.first[class as usize] = segment as u32,
        }
        self.last[class as usize] = segment as u32;
    }

    /// A segment is closed no more.
    pub(crate) fn remove(&mut self, segment: usize) {
        let Link { before, behind, class } = self.links[segment];
        assert!(class != NONE, "it was in a list");
        match self.links.get_mut(before as usize) {
            Some(link) => link.behind = behind,
            None => self.first[class as usize] = behind,
        }
        match self.links.get_mut(behind as usize) {
            Some(link) => link.before = before,
            None => self.last[class as usize] = before,
        }
        self.links[segment].class = NONE;
    }

    /// Whether so many valid blocks are another class than so many others: what is asked at each overwrite.
    #[inline]
    pub(crate) fn tells_apart(&self, before: u32, after: u32) -> bool {
        before >> self.shift != after >> self.shift
    }

    /// So many blocks of a closed segment are valid now.
    pub(crate) fn update(&mut self, segment: usize, valid: u32) {
        let class = self.links[segment].class;
        if class != NONE && class != self.class_of(valid) {
            self.remove(segment);
            self.insert(segment, valid);
        }
    }

    /// Segments of which least is valid first, of each class no more than `most`.
    pub(crate) fn emptiest(&self, most: usize) -> impl Iterator<Item = usize> + '_ {
        self.first.iter().flat_map(move |first| {
            let behind = |segment: &u32| Some(self.links.get(*segment as usize)?.behind);
            let list = core::iter::successors(Some(*first), behind);
            list.take_while(|segment| *segment != NONE).take(most).map(|segment| segment as usize)
        })
    }

    /// Whether a segment is in a list, and in the right one.
    #[cfg(feature = "verify")]
    pub(crate) fn holds(&self, segment: usize, valid: u32) -> Option<bool> {
        let class = self.links[segment].class;
        (class != NONE).then(|| class == self.class_of(valid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emptiest_come_first_and_of_equals_the_one_that_came_first() {
        let mut classes = Classes::new(5, 1024).expect("there is memory");
        for (segment, valid) in [(3, 1024), (0, 700), (4, 8), (1, 702), (2, 9)] {
            classes.insert(segment, valid);
        }
        let all = |classes: &Classes, most| classes.emptiest(most).collect::<Vec<_>>();
        assert_eq!(all(&classes, 5), [4, 2, 0, 1, 3]);
        assert_eq!(all(&classes, 1), [4, 0, 3]);
        classes.update(0, 701);
        assert_eq!(all(&classes, 5), [4, 2, 0, 1, 3], "it is in the same class");
        classes.update(1, 3);
        classes.remove(4);
        assert_eq!(all(&classes, 5), [1, 2, 0, 3]);
        classes.remove(2);
        classes.remove(3);
        classes.remove(0);
        classes.remove(1);
        assert_eq!(all(&classes, 5), []);
    }
}
