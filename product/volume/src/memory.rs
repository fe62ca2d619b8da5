//! The memory of a request: a buffer of its own, or memory that a waiting caller lends.

use crate::buffer::Buffer;

/// Where a request's data is, or goes to.
///
/// Moving a `Memory` moves no bytes: the address stays the same until it is dropped.
pub(crate) struct Memory {
    /// Kept for its bytes; empty when they are lent.
    buffer: Buffer,
    start: *mut u8,
    length: usize,
}

// SAFETY: a `Memory` is the only way to its bytes: it owns them, or they were lent to it alone.
unsafe impl Send for Memory {}

impl Memory {
    /// The bytes of a buffer.
    pub(crate) fn owned(mut buffer: Buffer) -> Memory {
        let (start, length) = (buffer.as_mut_pointer(), buffer.len());
        Memory { buffer, start, length }
    }

    /// Bytes of somebody who waits.
    ///
    /// # Safety
    /// Until the completion of the request was delivered, the bytes are valid, nobody writes to
    /// them, and, if they are to be read into, nobody looks at them. For a write they are never
    /// written to.
    pub(crate) unsafe fn lent(start: *mut u8, length: usize) -> Memory {
        Memory { buffer: Buffer::empty(), start, length }
    }

    /// No bytes.
    pub(crate) fn empty() -> Memory {
        Memory::owned(Buffer::empty())
    }

    /// The first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    /// Bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Gives the buffer back; an empty one when the bytes were lent.
    pub(crate) fn into_buffer(self) -> Buffer {
        self.buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owned_memory_keeps_its_address_and_gives_its_buffer_back() {
        let mut buffer = Buffer::zeroed(4096);
        let start = buffer.as_mut_pointer();
        let memory = Box::new(Memory::owned(buffer));
        assert_eq!((memory.start(), memory.length()), (start, 4096));
        assert_eq!(memory.into_buffer().as_mut_pointer(), start);
    }

    #[test]
    fn lent_memory_has_no_buffer() {
        let mut bytes = [1u8; 512];
        // SAFETY: the bytes outlive the value and nobody else touches them.
        let memory = unsafe { Memory::lent(bytes.as_mut_ptr(), bytes.len()) };
        assert_eq!(memory.length(), 512);
        assert!(memory.into_buffer().is_empty());
    }
}
