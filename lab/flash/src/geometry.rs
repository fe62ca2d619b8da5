//! What the flash is made of, and which part of it an address names.
//!
//! Erase blocks are numbered so that neighbours lie on different channels, then on different dies
//! of a channel, then in different planes:
//!
//! ```text
//! erase block = ((row * planes + plane) * dies_per_channel + die) * channels + channel
//! ```
//! so whoever takes erase blocks in order uses every die before any die twice.

use crate::units::{BLOCK_SIZE, EraseBlock, Lpn, Ppn};

/// The shape of the flash. Numbers are checked by [`Profile::check`](crate::Profile::check).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Channels: transfers on one exclude each other.
    pub channels: u32,
    /// Dies on each channel: cell operations on one exclude each other.
    pub dies_per_channel: u32,
    /// Planes of each die: they may work together on pages of equal offset.
    pub planes_per_die: u32,
    /// Erase blocks, all together.
    pub erase_blocks: u32,
    /// Erase blocks whose worth of pages the host sees; the rest is spare.
    pub exported_erase_blocks: u32,
    /// Pages of an erase block.
    pub pages_per_block: u32,
    /// Bytes of a page, without the out-of-band part.
    pub page_size: u32,
}

impl Geometry {
    /// Dies, all together.
    #[inline]
    pub fn dies(&self) -> u32 {
        self.channels * self.dies_per_channel
    }

    /// Physical pages.
    #[inline]
    pub fn pages(&self) -> u32 {
        self.erase_blocks * self.pages_per_block
    }

    /// Pages that the host sees.
    #[inline]
    pub fn logical_pages(&self) -> u32 {
        self.exported_erase_blocks * self.pages_per_block
    }

    /// Erase blocks that the host does not see.
    pub fn spare_erase_blocks(&self) -> u32 {
        self.erase_blocks - self.exported_erase_blocks
    }

    /// Host blocks of a page.
    #[inline]
    pub fn blocks_per_page(&self) -> u32 {
        self.page_size / BLOCK_SIZE
    }

    /// Host blocks that the host sees.
    pub fn host_blocks(&self) -> u64 {
        u64::from(self.logical_pages()) * u64::from(self.blocks_per_page())
    }

    /// Bytes that the host sees.
    pub fn exported_bytes(&self) -> u64 {
        u64::from(self.logical_pages()) * u64::from(self.page_size)
    }

    /// The page at an offset of an erase block.
    #[inline]
    pub fn page(&self, block: EraseBlock, offset: u32) -> Ppn {
        debug_assert!(offset < self.pages_per_block, "the offset is inside the erase block");
        Ppn(block.0 * self.pages_per_block + offset)
    }

    /// The erase block that a page is in.
    #[inline]
    pub fn block_of(&self, page: Ppn) -> EraseBlock {
        EraseBlock(page.0 / self.pages_per_block)
    }

    /// A page's offset in its erase block.
    #[inline]
    pub fn offset_of(&self, page: Ppn) -> u32 {
        page.0 % self.pages_per_block
    }

    /// The die that an erase block lies on.
    #[inline]
    pub fn die_of(&self, block: EraseBlock) -> u32 {
        block.0 % self.dies()
    }

    /// The plane of its die that an erase block lies in.
    #[inline]
    pub fn plane_of(&self, block: EraseBlock) -> u32 {
        block.0 / self.dies() % self.planes_per_die
    }

    /// The channel that a die is on.
    #[inline]
    pub fn channel_of(&self, die: u32) -> u32 {
        die % self.channels
    }

    /// Which erase-block-sized piece of the host's address space a logical page is in, and where.
    #[inline]
    pub fn logical(&self, page: Lpn) -> (u32, u32) {
        (page.0 / self.pages_per_block, page.0 % self.pages_per_block)
    }

    /// The logical page at an offset of such a piece.
    #[inline]
    pub fn lpn(&self, logical_block: u32, offset: u32) -> Lpn {
        Lpn(logical_block * self.pages_per_block + offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erase_blocks_in_order_use_every_die_before_any_twice() {
        let geometry = Geometry {
            channels: 2,
            dies_per_channel: 3,
            planes_per_die: 2,
            erase_blocks: 24,
            exported_erase_blocks: 20,
            pages_per_block: 4,
            page_size: 16384,
        };
        let places: Vec<_> = (0..12)
            .map(EraseBlock)
            .map(|block| (geometry.die_of(block), geometry.plane_of(block)))
            .collect();
        assert!(places[..6].iter().map(|place| place.0).eq(0..6), "{places:?}");
        assert!(places[..6].iter().all(|place| place.1 == 0), "{places:?}");
        assert!(places[6..].iter().all(|place| place.1 == 1), "{places:?}");
        assert_eq!([0, 1, 2].map(|die| geometry.channel_of(die)), [0, 1, 0]);
        assert_eq!(geometry.blocks_per_page(), 4);
        assert_eq!(geometry.host_blocks(), 20 * 4 * 4);
    }
}
