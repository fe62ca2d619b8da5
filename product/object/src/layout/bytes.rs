//! Numbers to bytes and back, with a bound on everything.

use super::{Corrupt, Reason};

/// No number that was counted up from zero is larger, and one more is never too large for its bytes.
pub(crate) const COUNTED_MAX: u64 = 1 << 62;

/// Appends fields.
#[derive(Default)]
pub(super) struct Writer {
    pub(super) taken: Vec<u8>,
}

impl Writer {
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.taken.extend_from_slice(bytes);
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.taken.push(value);
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    /// A text of at most 255 bytes, behind its length.
    pub(super) fn text(&mut self, text: &str) {
        self.u8(u8::try_from(text.len()).expect("a text is short"));
        self.bytes(text.as_bytes());
    }
}

/// Takes fields off the front.
pub(super) struct Reader<'a> {
    pub(super) structure: &'static str,
    pub(super) rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn corrupt(&self, reason: Reason) -> Corrupt {
        Corrupt { structure: self.structure, reason }
    }

    pub(super) fn field(&self, field: &'static str) -> Corrupt {
        self.corrupt(Reason::Field(field))
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Corrupt> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(self.corrupt(Reason::Short))?;
        self.rest = rest;
        Ok(*array)
    }

    pub(super) fn slice(&mut self, length: usize) -> Result<&'a [u8], Corrupt> {
        let (slice, rest) =
            self.rest.split_at_checked(length).ok_or(self.corrupt(Reason::Short))?;
        self.rest = rest;
        Ok(slice)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Corrupt> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, Corrupt> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Corrupt> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A number that is counted up, one by one: an epoch, that of a commit or an object, a counter.
    pub(super) fn counted(&mut self, field: &'static str) -> Result<u64, Corrupt> {
        let number = self.u64()?;
        if number > COUNTED_MAX { Err(self.field(field)) } else { Ok(number) }
    }

    pub(super) fn text(&mut self, field: &'static str) -> Result<String, Corrupt> {
        let length = self.u8()?;
        let bytes = self.slice(length.into())?;
        let text = std::str::from_utf8(bytes).map_err(|_| self.field(field))?;
        Ok(text.to_string())
    }

    /// A number of things that follow, each of `size_min` bytes at least: never more than there can be.
    pub(super) fn count(&mut self, size_min: usize, field: &'static str) -> Result<usize, Corrupt> {
        let count = self.u32()? as usize;
        if count > self.rest.len() / size_min {
            return Err(self.field(field));
        }
        Ok(count)
    }

    pub(super) fn end(self) -> Result<(), Corrupt> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.corrupt(Reason::Long)) }
    }
}
