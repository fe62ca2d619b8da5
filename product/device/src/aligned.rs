//! Memory that a device can take: aligned to [`ALIGNMENT_MAX`](crate::ALIGNMENT_MAX), initialised.

use std::ops::{Deref, DerefMut};

/// The unit of allocation. Its alignment is the point.
#[repr(align(4096))]
#[derive(Clone)]
struct Page(#[expect(dead_code, reason = "reached by pointer only")] [u8; 4096]);

const _: () = assert!(align_of::<Page>() as u64 == crate::ALIGNMENT_MAX);
const _: () = assert!(size_of::<Page>() == 4096);

/// Zeroed bytes, the first of them at a multiple of 4096.
#[derive(Clone)]
pub struct AlignedMemory {
    pages: Vec<Page>,
    length: usize,
}

impl AlignedMemory {
    /// `length` zero bytes.
    pub fn zeroed(length: usize) -> AlignedMemory {
        AlignedMemory { pages: vec![Page([0; 4096]); length.div_ceil(4096)], length }
    }

    /// The first byte, to put into a [`Command`](crate::Command).
    pub fn as_mut_pointer(&mut self) -> *mut u8 {
        self.pages.as_mut_ptr().cast()
    }
}

impl Deref for AlignedMemory {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the pages lie end to end, are initialised, and hold at least `length` bytes.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr().cast(), self.length) }
    }
}

impl DerefMut for AlignedMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_mut_ptr().cast(), self.length) }
    }
}

impl std::fmt::Debug for AlignedMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedMemory({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_zeroed_and_as_long_as_asked() {
        let mut memory = AlignedMemory::zeroed(5000);
        assert_eq!(memory.len(), 5000);
        assert_eq!(memory.as_mut_pointer() as usize % 4096, 0);
        assert!(memory.iter().all(|byte| *byte == 0));
        assert!(AlignedMemory::zeroed(0).is_empty());
    }
}
