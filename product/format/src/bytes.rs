//! Little-endian fields in byte slices, without panics.
//!
//! Writers place fields at constant offsets inside a [`Block`]; a field that would not fit is a
//! compile-time error. Readers of variable parts get `None` past the end.

use crate::{BLOCK_SIZE, Block};

/// Reads `N` bytes at a constant offset.
pub(crate) fn at<const OFFSET: usize, const N: usize>(block: &Block) -> [u8; N] {
    const { assert!(OFFSET + N <= BLOCK_SIZE, "a field lies inside its block") };
    match block.get(OFFSET..).and_then(|rest| rest.first_chunk::<N>()) {
        Some(field) => *field,
        None => [0; N],
    }
}

/// Writes `N` bytes at a constant offset.
pub(crate) fn put<const OFFSET: usize, const N: usize>(block: &mut Block, value: [u8; N]) {
    const { assert!(OFFSET + N <= BLOCK_SIZE, "a field lies inside its block") };
    if let Some(field) = block.get_mut(OFFSET..).and_then(|rest| rest.first_chunk_mut::<N>()) {
        *field = value;
    }
}

pub(crate) fn u16_at<const OFFSET: usize>(block: &Block) -> u16 {
    u16::from_le_bytes(at::<OFFSET, 2>(block))
}

pub(crate) fn u32_at<const OFFSET: usize>(block: &Block) -> u32 {
    u32::from_le_bytes(at::<OFFSET, 4>(block))
}

pub(crate) fn u64_at<const OFFSET: usize>(block: &Block) -> u64 {
    u64::from_le_bytes(at::<OFFSET, 8>(block))
}

/// Reads fields one after the other.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*field)
    }

    pub(crate) fn take_slice(&mut self, length: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(field)
    }

    /// What was not read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

/// Writes fields one after the other; remembers whether one did not fit.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    rest: &'a mut [u8],
    written: usize,
    overflow: bool,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> Writer<'a> {
        Writer { rest: bytes, written: 0, overflow: false }
    }

    pub(crate) fn put(&mut self, field: &[u8]) {
        let rest = core::mem::take(&mut self.rest);
        match rest.split_at_mut_checked(field.len()) {
            Some((target, rest)) => {
                target.copy_from_slice(field);
                self.rest = rest;
                self.written += field.len();
            }
            None => self.overflow = true,
        }
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.put(&[value]);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }

    /// Bytes written, or `None` if something did not fit.
    pub(crate) fn finish(self) -> Option<usize> {
        (!self.overflow).then_some(self.written)
    }
}
