//! Page-aligned memory that travels with a request, so that data is never copied on its way.
//!
//! Invariants:
//! - the start address is a multiple of 4096, so the memory may be handed to `O_DIRECT` as it is;
//! - every byte is initialised (zero at first): a short read can never show foreign memory.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Alignment of every [`Buffer`], in bytes.
pub const BUFFER_ALIGNMENT: usize = 4096;

/// Owned, 4096-aligned, zero-initialised memory.
pub struct Buffer {
    start: NonNull<u8>,
    capacity: usize,
    length: usize,
}

// SAFETY: a `Buffer` owns its memory exclusively, as a `Vec<u8>` does.
unsafe impl Send for Buffer {}
// SAFETY: shared access to a `Buffer` only reads bytes.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A buffer of no bytes, which allocates nothing.
    pub const fn empty() -> Buffer {
        Buffer { start: NonNull::dangling(), capacity: 0, length: 0 }
    }

    /// A zeroed buffer of `length` bytes.
    ///
    /// # Panics
    /// When `length` comes within a page of `isize::MAX`.
    pub fn zeroed(length: usize) -> Buffer {
        if length == 0 {
            return Buffer::empty();
        }
        let layout = Self::layout(length);
        // SAFETY: `layout` has a size greater than zero.
        let pointer = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(pointer) else { handle_alloc_error(layout) };
        Buffer { start, capacity: layout.size(), length }
    }

    /// A copy of `bytes`.
    pub fn copied_from(bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    /// Makes the buffer `length` bytes long, within the capacity that it was made with.
    ///
    /// # Panics
    /// When `length` exceeds [`Buffer::capacity`].
    pub fn set_length(&mut self, length: usize) {
        assert!(length <= self.capacity, "a buffer never grows");
        self.length = length;
    }

    /// Bytes that the buffer can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The first byte, for a device that reads or writes the memory itself.
    pub fn as_mut_pointer(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    fn layout(length: usize) -> Layout {
        let size = length.checked_next_multiple_of(BUFFER_ALIGNMENT);
        let layout = size.and_then(|size| Layout::from_size_align(size, BUFFER_ALIGNMENT).ok());
        layout.expect("no allocation is as long as that")
    }
}

impl Default for Buffer {
    fn default() -> Buffer {
        Buffer::empty()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.capacity > 0 {
            // SAFETY: allocated in `zeroed` with the layout of this very capacity.
            unsafe { dealloc(self.start.as_ptr(), Self::layout(self.capacity)) }
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `length <= capacity` bytes from `start` are owned and initialised.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_and_zeroed() {
        let mut buffer = Buffer::zeroed(5000);
        assert_eq!(buffer.as_mut_pointer() as usize % BUFFER_ALIGNMENT, 0);
        assert_eq!(buffer.len(), 5000);
        assert!(buffer.iter().all(|byte| *byte == 0));
        assert_eq!(buffer.capacity(), 8192);
    }

    #[test]
    #[should_panic(expected = "as long as that")]
    fn a_length_that_wraps_when_it_is_rounded_up_is_refused() {
        drop(Buffer::zeroed(usize::MAX - 5));
    }

    #[test]
    fn an_empty_buffer_has_no_bytes() {
        assert!(Buffer::empty().is_empty());
        assert!(Buffer::zeroed(0).is_empty());
    }
}
