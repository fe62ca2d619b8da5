//! One run of page-aligned memory for all buffers of a volume.
//!
//! It comes from the kernel, zeroed and in huge pages where there are some, and takes room only
//! where it is used. (An aligned allocation from the allocator would be filled with zeros at once.)

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io;
use std::ptr::NonNull;

/// Zeroed memory at a multiple of the page size, 4096 bytes at least.
pub(crate) struct Arena {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: an `Arena` owns its memory exclusively, as a `Vec<u8>` does.
unsafe impl Send for Arena {}

impl Arena {
    /// `length` zeroed bytes, more than none.
    ///
    /// # Errors
    /// When the kernel has no room.
    pub(crate) fn new(length: usize) -> io::Result<Arena> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping overlaps nothing.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, MapFlags::PRIVATE) }?;
        // SAFETY: the advice changes no content. Whether it is taken does not matter.
        let _ = unsafe { madvise(start, length, Advice::LinuxHugepage) };
        let start = NonNull::new(start.cast()).expect("the kernel never maps there by itself");
        Ok(Arena { start, length })
    }

    /// The first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and nobody uses it any longer.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "what was mapped can be unmapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_zeroed() {
        let arena = Arena::new(3 << 20).expect("there is room");
        assert_eq!(arena.start() as usize % 4096, 0);
        // SAFETY: all of it is mapped, initialised by the kernel and used by nobody else.
        let bytes = unsafe { std::slice::from_raw_parts(arena.start(), arena.length()) };
        assert!(bytes.iter().all(|byte| *byte == 0));
    }
}
