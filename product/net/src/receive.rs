//! Incoming bytes of a client: one read takes many small requests, and the payload of a large write
//! goes directly into the session's buffer.
//!
//! # Invariants
//! - A payload is copied once (out of the shared buffer) or not at all (read into place).
//! - Between reads the shared buffer holds either less than one header, or requests that there is
//!   no room for yet. It is larger than any header.

use coulter::buffer::Buffer;
use coulter_attach::pool::touch;
use std::io::IoSliceMut;
use std::ops::Range;

/// Bytes of the buffer that requests are read into. Sixty 4 KiB writes fit.
const SHARED_SIZE: usize = 256 << 10;

/// The bytes that come from one peer, and where its payloads go.
pub struct Receiver {
    shared: Box<[u8]>,
    start: usize,
    end: usize,
    payload: Option<Payload>,
    /// Bytes of a refused write that are still to come and to be dropped.
    skip: usize,
}

struct Payload {
    buffer: Buffer,
    /// The range of the buffer that is still to be filled.
    filled: usize,
    end: usize,
}

impl Receiver {
    /// A receiver that has already read `leftover`.
    pub fn new(leftover: &[u8]) -> Receiver {
        assert!(leftover.len() <= SHARED_SIZE, "the handshake reads less than fits here");
        let mut shared = vec![0; SHARED_SIZE].into_boxed_slice();
        // The client may be the kernel.
        touch(&mut shared);
        shared[..leftover.len()].copy_from_slice(leftover);
        Receiver { shared, start: 0, end: leftover.len(), payload: None, skip: 0 }
    }

    /// The buffers for the next bytes of the stream: the rest of a payload, then the shared buffer.
    pub fn slices(&mut self) -> [IoSliceMut<'_>; 2] {
        if self.start > 0 {
            self.shared.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let place = match &mut self.payload {
            Some(payload) => &mut payload.buffer[payload.filled..payload.end],
            None => &mut [],
        };
        [IoSliceMut::new(place), IoSliceMut::new(&mut self.shared[self.end..])]
    }

    /// Records that `count` bytes were read into [`Receiver::slices`].
    pub fn received(&mut self, mut count: usize) {
        if let Some(payload) = &mut self.payload {
            let placed = count.min(payload.end - payload.filled);
            payload.filled += placed;
            count -= placed;
        }
        self.end += count;
        assert!(self.end <= self.shared.len(), "no more was read than there was room for");
    }

    /// Drops the bytes to skip. Returns whether the stream is at a header or a payload again.
    pub fn skipped(&mut self) -> bool {
        let now = self.skip.min(self.end - self.start);
        self.start += now;
        self.skip -= now;
        self.skip == 0
    }

    /// The bytes that have arrived and are not consumed, in place: headers, and the bytes between
    /// them.
    pub fn peek(&self) -> &[u8] {
        assert!(self.payload.is_none(), "a payload comes before the next header");
        &self.shared[self.start..self.end]
    }

    /// Consumes `length` bytes of [`Receiver::peek`].
    pub fn consume(&mut self, length: usize) {
        self.start += length;
        assert!(self.start <= self.end, "bytes are consumed after they were seen");
    }

    /// Begins to fill all of `buffer` with the bytes that follow.
    pub fn begin_payload(&mut self, buffer: Buffer) {
        let range = 0..buffer.len();
        self.begin_payload_part(buffer, range);
    }

    /// Begins to fill `range` of `buffer` with the bytes that follow; the rest is unchanged.
    pub fn begin_payload_part(&mut self, mut buffer: Buffer, range: Range<usize>) {
        assert!(self.payload.is_none(), "one payload at a time");
        let place = &mut buffer[range.clone()];
        let here = place.len().min(self.end - self.start);
        place[..here].copy_from_slice(&self.shared[self.start..self.start + here]);
        self.start += here;
        self.payload = Some(Payload { buffer, filled: range.start + here, end: range.end });
    }

    /// The payload, once it is whole.
    pub fn take_payload(&mut self) -> Option<Buffer> {
        self.payload.take_if(|payload| payload.filled == payload.end).map(|p| p.buffer)
    }

    /// Drops the next `length` bytes of the stream.
    pub fn begin_skip(&mut self, length: usize) {
        assert_eq!(self.skip, 0, "one refused payload at a time");
        self.skip = length;
    }

    /// Drops a payload that stays incomplete.
    pub fn abandon_payload(&mut self) -> Option<Buffer> {
        self.payload.take().map(|payload| payload.buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER_SIZE: usize = 4;

    fn feed(receiver: &mut Receiver, mut bytes: &[u8]) {
        for mut slice in receiver.slices() {
            let count = slice.len().min(bytes.len());
            slice[..count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
        }
        assert!(bytes.is_empty());
    }

    /// A header that says how many bytes follow.
    fn header(length: u32) -> [u8; HEADER_SIZE] {
        length.to_be_bytes()
    }

    fn peeked(receiver: &Receiver) -> Option<u32> {
        receiver.peek().first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
    }

    #[test]
    fn a_payload_cut_anywhere_arrives_whole() {
        let payload: Vec<u8> = (0..2000u32).map(|i| i as u8).collect();
        let stream = [&header(2000)[..], &payload, &header(7)].concat();
        for cut in 0..stream.len() {
            let mut receiver = Receiver::new(&[]);
            let mut taken = None;
            for part in [&stream[..cut], &stream[cut..]] {
                feed(&mut receiver, part);
                receiver.received(part.len());
                if receiver.payload.is_none()
                    && taken.is_none()
                    && let Some(length) = peeked(&receiver)
                {
                    receiver.consume(HEADER_SIZE);
                    receiver.begin_payload(Buffer::zeroed(length as usize));
                }
                taken = taken.or_else(|| receiver.take_payload());
            }
            assert_eq!(&taken.unwrap()[..], &payload[..], "cut at {cut}");
            assert_eq!(peeked(&receiver), Some(7));
        }
    }

    #[test]
    fn parts_of_a_payload_go_to_their_places() {
        let mut receiver = Receiver::new(&[]);
        let mut buffer = Buffer::zeroed(12);
        for (index, range) in [4..8, 0..4, 8..12].into_iter().enumerate() {
            receiver.begin_payload_part(buffer, range.clone());
            for byte in range {
                assert!(receiver.take_payload().is_none(), "part {index} is not whole yet");
                feed(&mut receiver, &[byte as u8]);
                receiver.received(1);
            }
            buffer = receiver.take_payload().expect("it is whole");
        }
        assert_eq!(&buffer[..], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    }

    #[test]
    fn a_refused_payload_is_dropped() {
        let mut receiver = Receiver::new(&header(100));
        receiver.consume(HEADER_SIZE);
        receiver.begin_skip(100);
        assert!(!receiver.skipped());
        let rest = [&[9; 100][..], &header(5)].concat();
        feed(&mut receiver, &rest);
        receiver.received(rest.len());
        assert!(receiver.skipped());
        assert_eq!(peeked(&receiver), Some(5));
    }
}
