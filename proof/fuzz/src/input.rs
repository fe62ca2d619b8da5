//! Values from a fuzzer's bytes.

/// Bytes that are read from front to back; beyond the end there are zeros.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    /// From the first byte on.
    pub fn new(bytes: &'a [u8]) -> Input<'a> {
        Input { bytes }
    }

    /// Whether all was read.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let (first, rest) = self.bytes.split_first().unwrap_or((&0, &[]));
        self.bytes = rest;
        *first
    }

    /// A number below `limit`, from the next two bytes.
    ///
    /// # Panics
    /// When `limit` is zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        let number = u16::from_le_bytes([self.byte(), self.byte()]);
        // Scaled, so that a small change of the bytes is a small change of the number.
        (u64::from(number) * limit) >> 16
    }

    /// All that is left.
    pub fn rest(self) -> &'a [u8] {
        self.bytes
    }
}
