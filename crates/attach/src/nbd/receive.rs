//! What comes in from a client: many small requests out of one read, and the payload of a large
//! write straight into the buffer that the session gets.
//!
//! # Invariants
//! - A payload is copied once (out of the shared buffer) or not at all (read into place).
//! - Between reads the shared buffer holds either less than one header, or requests that there is
//!   no room for yet.

use super::wire::{Malformed, REQUEST_HEADER_SIZE, RequestHeader};
use crate::pool::touch;
use coulter::buffer::Buffer;
use std::io::IoSliceMut;

/// Bytes of the buffer that requests are read into. Sixty 4 KiB writes fit.
const SHARED_SIZE: usize = 256 << 10;

pub(super) struct Receiver {
    shared: Box<[u8]>,
    start: usize,
    end: usize,
    payload: Option<Payload>,
    /// Bytes of a refused write that are still to come and to be dropped.
    skip: usize,
}

struct Payload {
    buffer: Buffer,
    filled: usize,
}

impl Receiver {
    /// A receiver that has already read `leftover`.
    pub(super) fn new(leftover: &[u8]) -> Receiver {
        assert!(leftover.len() <= SHARED_SIZE, "the handshake reads less than fits here");
        let mut shared = vec![0; SHARED_SIZE].into_boxed_slice();
        // The client may be the kernel.
        touch(&mut shared);
        shared[..leftover.len()].copy_from_slice(leftover);
        Receiver { shared, start: 0, end: leftover.len(), payload: None, skip: 0 }
    }

    /// Where the next bytes of the stream go: the rest of a payload, then the shared buffer.
    pub(super) fn slices(&mut self) -> [IoSliceMut<'_>; 2] {
        if self.start > 0 {
            self.shared.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let place = match &mut self.payload {
            Some(payload) => &mut payload.buffer[payload.filled..],
            None => &mut [],
        };
        [IoSliceMut::new(place), IoSliceMut::new(&mut self.shared[self.end..])]
    }

    /// Takes note of `count` bytes read into [`Receiver::slices`].
    pub(super) fn received(&mut self, mut count: usize) {
        if let Some(payload) = &mut self.payload {
            let placed = count.min(payload.buffer.len() - payload.filled);
            payload.filled += placed;
            count -= placed;
        }
        self.end += count;
        assert!(self.end <= self.shared.len(), "no more was read than there was room for");
    }

    /// Drops what is to be skipped. Whether the stream is at a header or a payload again.
    pub(super) fn skipped(&mut self) -> bool {
        let now = self.skip.min(self.end - self.start);
        self.start += now;
        self.skip -= now;
        self.skip == 0
    }

    /// The next request's header, left in place.
    pub(super) fn peek(&self) -> Result<Option<RequestHeader>, Malformed> {
        assert!(self.payload.is_none(), "a payload comes before the next header");
        match self.shared[self.start..self.end].first_chunk() {
            Some(bytes) => RequestHeader::decode(bytes).map(Some),
            None => Ok(None),
        }
    }

    /// Consumes the header that [`Receiver::peek`] showed.
    pub(super) fn consume_header(&mut self) {
        self.start += REQUEST_HEADER_SIZE;
        assert!(self.start <= self.end, "a header is consumed after it was seen");
    }

    /// Begins to fill `buffer` with what follows.
    pub(super) fn begin_payload(&mut self, mut buffer: Buffer) {
        assert!(self.payload.is_none(), "one payload at a time");
        let filled = buffer.len().min(self.end - self.start);
        buffer[..filled].copy_from_slice(&self.shared[self.start..self.start + filled]);
        self.start += filled;
        self.payload = Some(Payload { buffer, filled });
    }

    /// The payload, once it is whole.
    pub(super) fn take_payload(&mut self) -> Option<Buffer> {
        self.payload.take_if(|payload| payload.filled == payload.buffer.len()).map(|p| p.buffer)
    }

    /// Drops the next `length` bytes of the stream.
    pub(super) fn begin_skip(&mut self, length: usize) {
        assert_eq!(self.skip, 0, "one refused payload at a time");
        self.skip = length;
    }

    /// Gives up a payload that will never be whole.
    pub(super) fn abandon_payload(&mut self) -> Option<Buffer> {
        self.payload.take().map(|payload| payload.buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::command;
    use super::*;

    fn feed(receiver: &mut Receiver, mut bytes: &[u8]) {
        for mut slice in receiver.slices() {
            let count = slice.len().min(bytes.len());
            slice[..count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
        }
        assert!(bytes.is_empty());
    }

    fn header(length: u32) -> RequestHeader {
        RequestHeader { flags: 0, command: command::WRITE, cookie: 1, offset: 0, length }
    }

    #[test]
    fn a_payload_cut_anywhere_arrives_whole() {
        let payload: Vec<u8> = (0..2000u32).map(|i| i as u8).collect();
        let stream = [&header(2000).encode()[..], &payload, &header(7).encode()].concat();
        for cut in 0..stream.len() {
            let mut receiver = Receiver::new(&[]);
            let mut taken = None;
            for part in [&stream[..cut], &stream[cut..]] {
                feed(&mut receiver, part);
                receiver.received(part.len());
                if receiver.payload.is_none()
                    && taken.is_none()
                    && let Some(header) = receiver.peek().unwrap()
                {
                    receiver.consume_header();
                    receiver.begin_payload(Buffer::zeroed(header.length as usize));
                }
                taken = taken.or_else(|| receiver.take_payload());
            }
            assert_eq!(&taken.unwrap()[..], &payload[..], "cut at {cut}");
            assert_eq!(receiver.peek().unwrap().unwrap().length, 7);
        }
    }

    #[test]
    fn a_refused_payload_is_dropped() {
        let mut receiver = Receiver::new(&header(100).encode());
        receiver.consume_header();
        receiver.begin_skip(100);
        assert!(!receiver.skipped());
        let rest = [&[9; 100][..], &header(5).encode()].concat();
        feed(&mut receiver, &rest);
        receiver.received(rest.len());
        assert!(receiver.skipped());
        assert_eq!(receiver.peek().unwrap().unwrap().length, 5);
    }
}
