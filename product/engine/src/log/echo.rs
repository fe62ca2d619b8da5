//! What the next header says of the record before it: see [`coulter_format::record::Echo`].

use crate::memory::{self, NoMemory};
use alloc::vec::Vec;
use coulter_format::{BLOCK_SIZE, Block, StoreId, record};

/// The echo of the record that was sealed last.
pub(super) struct Echoes {
    /// It, and the one before it, by turns.
    bytes: Vec<Block>,
    current: usize,
    size: usize,
}

impl Echoes {
    pub(super) fn new() -> Result<Echoes, NoMemory> {
        Ok(Echoes { bytes: memory::filled([0; BLOCK_SIZE], 2)?, current: 0, size: 0 })
    }

    /// Adds to the header of the next record what is known of the one before, and keeps its own.
    pub(super) fn pass_on(&mut self, header: &mut Block, store: &StoreId) {
        let next = 1 - self.current;
        let size = record::echo_of(header, &mut self.bytes[next]);
        assert!(self.size <= BLOCK_SIZE && size <= BLOCK_SIZE, "an echo is a part of a header");
        record::put_echo(header, store, &self.bytes[self.current][..self.size]);
        (self.current, self.size) = (next, size);
    }
}
