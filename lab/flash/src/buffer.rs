//! The drive's write buffer: pages that were acknowledged and are not on flash yet.
//!
//! ```text
//! host --> waiting (may be written again, in order of arrival) --> in flight (being programmed)
//! ```
//! Both together take at most the capacity. Half of it is for waiting pages, so that dies have work
//! while the host writes.
//!
//! What it does not do: survive a power cut.

use crate::units::{Lpn, Ns};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// A page that waits.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) lpn: Lpn,
    /// Bit `i` is set if host block `i` of the page was written.
    pub(crate) mask: u64,
    /// What is kept of the whole page; only blocks in the mask count.
    pub(crate) content: Vec<u8>,
    pub(crate) handle: u8,
}

#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    waiting: HashMap<u32, Waiting, BuildHasherDefault<Multiply>>,
    /// Pages in order of arrival, with numbers of such as have left meanwhile.
    order: VecDeque<Lpn>,
    in_flight: BinaryHeap<Reverse<Ns>>,
    /// Content memory of pages that have left.
    spare: Vec<Vec<u8>>,
}

impl Buffer {
    pub(crate) fn empty() -> Buffer {
        Buffer {
            waiting: HashMap::default(),
            order: VecDeque::new(),
            in_flight: BinaryHeap::new(),
            spare: Vec::new(),
        }
    }

    pub(crate) fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    #[inline]
    pub(crate) fn find(&self, lpn: Lpn) -> Option<&Waiting> {
        self.waiting.get(&lpn.0)
    }

    #[inline]
    pub(crate) fn find_mut(&mut self, lpn: Lpn) -> Option<&mut Waiting> {
        self.waiting.get_mut(&lpn.0)
    }

    /// Memory for the content of a page, zeros.
    pub(crate) fn content(&mut self, bytes: usize) -> Vec<u8> {
        let mut content = self.spare.pop().unwrap_or_default();
        content.clear();
        content.resize(bytes, 0);
        content
    }

    pub(crate) fn recycle(&mut self, content: Vec<u8>) {
        self.spare.push(content);
    }

    pub(crate) fn insert(&mut self, page: Waiting) {
        self.order.push_back(page.lpn);
        let before = self.waiting.insert(page.lpn.0, page);
        assert!(before.is_none(), "a page waits once");
    }

    pub(crate) fn remove(&mut self, lpn: Lpn) -> Option<Waiting> {
        let found = self.waiting.remove(&lpn.0)?;
        let place = self.order.iter().position(|waiting| *waiting == lpn);
        self.order.remove(place.expect("what waits is in the order"));
        Some(found)
    }

    /// The page that waits longest.
    pub(crate) fn pop(&mut self) -> Option<Waiting> {
        let lpn = self.order.pop_front()?;
        self.waiting.remove(&lpn.0)
    }

    /// A page is being programmed until `done`.
    pub(crate) fn fly(&mut self, done: Ns) {
        self.in_flight.push(Reverse(done));
    }

    /// When fewer than `limit` pages are in flight, from `at` on.
    pub(crate) fn wait_for_fewer(&mut self, at: Ns, limit: usize) -> Ns {
        let mut now = at;
        while let Some(Reverse(done)) = self.in_flight.peek() {
            if *done > now && self.in_flight.len() < limit {
                break;
            }
            now = now.max(*done);
            self.in_flight.pop();
        }
        now
    }
}

/// A hash for page numbers: none of them is hostile.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Multiply(u64);

impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }
    fn write_u32(&mut self, number: u32) {
        // The table takes the low bits for the place and the high ones for a first comparison.
        let product = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(lpn: u32) -> Waiting {
        Waiting { lpn: Lpn(lpn), mask: 1, content: Vec::new(), handle: 0 }
    }

    #[test]
    fn pages_leave_in_the_order_in_which_they_came() {
        let mut buffer = Buffer::empty();
        [5, 3, 9].into_iter().for_each(|lpn| buffer.insert(page(lpn)));
        assert!(buffer.remove(Lpn(3)).is_some());
        assert!(buffer.remove(Lpn(4)).is_none());
        buffer.insert(page(3));
        let left: Vec<_> = std::iter::from_fn(|| buffer.pop()).map(|page| page.lpn.0).collect();
        assert_eq!(left, [5, 9, 3]);
    }

    #[test]
    fn a_full_buffer_waits_for_the_first_program_that_ends() {
        let mut buffer = Buffer::empty();
        [30, 10, 20].into_iter().for_each(|done| buffer.fly(done));
        assert_eq!(buffer.wait_for_fewer(0, 4), 0);
        assert_eq!(buffer.wait_for_fewer(0, 3), 10);
        assert_eq!(buffer.wait_for_fewer(25, 3), 25);
        assert_eq!(buffer.wait_for_fewer(25, 1), 30);
    }
}
