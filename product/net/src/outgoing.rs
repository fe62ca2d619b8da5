//! Outgoing bytes: headers in one run, payloads between them, all sent with one vectored write.
//!
//! # Invariants
//! - Bytes leave in the order in which they were pushed.
//! - A payload's buffer comes back when its last byte was sent, with the mark it was pushed with.

use coulter::buffer::Buffer;
use std::collections::VecDeque;
use std::io::IoSlice;

/// Slices of one vectored write, at most.
pub const SLICES_MAX: usize = 128;

/// Unsent bytes at which no more is read from a peer: of headers, and where data has no pool that
/// bounds it, of everything.
pub const UNSENT_MAX: usize = 256 << 10;

/// Sent bytes of headers that may stay in the buffer before they are removed.
const SENT_HEADERS_MAX: usize = 64 << 10;

/// The bytes that wait to be sent to one peer.
#[derive(Default)]
pub struct Outgoing {
    /// Everything but payloads.
    headers: Vec<u8>,
    headers_sent: usize,
    payloads: VecDeque<Payload>,
}

struct Payload {
    /// How many bytes of `headers` go before it.
    position: usize,
    mark: u64,
    buffer: Buffer,
    sent: usize,
}

impl Outgoing {
    /// Appends bytes, which are copied.
    pub fn push_header(&mut self, bytes: &[u8]) {
        self.headers.extend_from_slice(bytes);
    }

    /// Appends a payload, whose buffer comes back with `mark`.
    pub fn push_payload(&mut self, mark: u64, buffer: Buffer) {
        self.payloads.push_back(Payload { position: self.headers.len(), mark, buffer, sent: 0 });
    }

    /// Whether all is sent.
    pub fn is_empty(&self) -> bool {
        self.headers_sent == self.headers.len() && self.payloads.is_empty()
    }

    /// Bytes of headers that are not sent.
    pub fn header_bytes(&self) -> usize {
        self.headers.len() - self.headers_sent
    }

    /// All bytes that are not sent.
    pub fn bytes(&self) -> usize {
        let payloads = self.payloads.iter().map(|payload| payload.buffer.len() - payload.sent);
        self.header_bytes() + payloads.sum::<usize>()
    }

    /// Fills `out` with the next bytes to send. Returns the number of slices.
    pub fn slices<'a>(&'a self, out: &mut [IoSlice<'a>; SLICES_MAX]) -> usize {
        let mut count = 0;
        let mut put = |bytes: &'a [u8]| {
            if !bytes.is_empty() && count < SLICES_MAX {
                out[count] = IoSlice::new(bytes);
                count += 1;
            }
        };
        let mut at = self.headers_sent;
        for payload in self.payloads.iter().take(SLICES_MAX / 2) {
            put(&self.headers[at..payload.position]);
            put(&payload.buffer[payload.sent..]);
            at = payload.position;
        }
        if self.payloads.len() <= SLICES_MAX / 2 {
            put(&self.headers[at..]);
        }
        count
    }

    /// Records that `count` bytes were sent; passes completed payloads to `done`.
    pub fn sent(&mut self, mut count: usize, mut done: impl FnMut(u64, Buffer)) {
        loop {
            let end = self.payloads.front().map_or(self.headers.len(), |front| front.position);
            let headers = count.min(end - self.headers_sent);
            self.headers_sent += headers;
            count -= headers;
            if self.headers_sent < end {
                break;
            }
            let Some(front) = self.payloads.front_mut() else { break };
            let payload = count.min(front.buffer.len() - front.sent);
            front.sent += payload;
            count -= payload;
            if front.sent < front.buffer.len() {
                break;
            }
            if let Some(front) = self.payloads.pop_front() {
                done(front.mark, front.buffer);
            }
        }
        assert_eq!(count, 0, "no more was sent than there was");
        self.trim();
    }

    /// Drops everything, for a peer that is gone.
    pub fn clear(&mut self, mut done: impl FnMut(u64, Buffer)) {
        self.headers.clear();
        self.headers_sent = 0;
        self.payloads.drain(..).for_each(|payload| done(payload.mark, payload.buffer));
    }

    /// Removes sent bytes, when that is free or overdue.
    fn trim(&mut self) {
        let all = self.headers_sent == self.headers.len();
        if !all && self.headers_sent < SENT_HEADERS_MAX {
            return;
        }
        let cut = std::mem::take(&mut self.headers_sent);
        self.headers.drain(..cut);
        self.payloads.iter_mut().for_each(|payload| payload.position -= cut);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends everything in steps of `step` bytes. Returns the bytes in order and the marks.
    fn send(outgoing: &mut Outgoing, step: usize) -> (Vec<u8>, Vec<u64>) {
        let (mut bytes, mut marks) = (Vec::new(), Vec::new());
        while !outgoing.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = outgoing.slices(&mut slices);
            assert!(count > 0);
            let before = bytes.len();
            bytes.extend(slices[..count].iter().flat_map(|slice| slice.iter()).take(step));
            outgoing.sent(bytes.len() - before, |mark, _| marks.push(mark));
        }
        (bytes, marks)
    }

    #[test]
    fn bytes_leave_in_order_however_they_are_cut() {
        for step in [1, 7, 16, 528, 4096, usize::MAX] {
            let mut outgoing = Outgoing::default();
            let (mut expected, mut expected_marks) = (Vec::new(), Vec::new());
            for mark in 0..300u64 {
                let header = [mark as u8; 16];
                outgoing.push_header(&header);
                expected.extend_from_slice(&header);
                if mark % 3 != 0 {
                    let payload = [!mark as u8; 512];
                    outgoing.push_payload(mark, Buffer::copied_from(&payload));
                    expected.extend_from_slice(&payload);
                    expected_marks.push(mark);
                }
            }
            let (bytes, marks) = send(&mut outgoing, step);
            assert!(bytes == expected, "step {step}");
            assert_eq!(marks, expected_marks);
        }
    }

    #[test]
    fn sent_headers_do_not_pile_up_while_others_wait() {
        let mut outgoing = Outgoing::default();
        for round in 0..100_000 {
            outgoing.push_header(&[0; 32]);
            outgoing.sent(if round == 0 { 16 } else { 32 }, |_, _| {});
        }
        assert_eq!(outgoing.header_bytes(), 16);
        assert!(outgoing.headers.len() <= SENT_HEADERS_MAX + 64);
    }
}
