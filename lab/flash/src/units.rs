//! Addresses inside the emulator, and virtual time.
//!
//! A *block* is 4096 bytes of host address space, as everywhere in Coulter. What flash erases at
//! once is an *erase block*; what it programs at once, and what the FTL maps, is a *page*.

/// Virtual nanoseconds since the drive was made.
pub type Ns = u64;

/// Bytes of a host block.
pub const BLOCK_SIZE: u32 = 4096;

/// A logical page: what the host's address space is cut into, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lpn(pub u32);

/// A physical page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ppn(pub u32);

/// An erase block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EraseBlock(pub u32);

impl Lpn {
    /// As an index into a table.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl Ppn {
    /// As an index into a table.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl EraseBlock {
    /// As an index into a table.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
