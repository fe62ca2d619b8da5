//! The forms in which a server answers: simple replies and chunks, put on their way out.

use super::wire::{ChunkHeader, SimpleReply, chunk};
use crate::Outgoing;
use coulter::buffer::Buffer;

/// A reply without data, in the shortest form.
pub(super) fn push_simple(out: &mut Outgoing, cookie: u64, error: u32) {
    out.push_header(&SimpleReply { error, cookie }.encode());
}

/// A successful read: a chunk when its offset is given, a simple reply otherwise.
pub(super) fn push_data(out: &mut Outgoing, cookie: u64, offset: Option<u64>, buffer: Buffer) {
    match offset {
        None => push_simple(out, cookie, 0),
        Some(offset) => {
            // All data is there and checked, so this one chunk may end the reply.
            push_chunk(out, cookie, chunk::OFFSET_DATA, buffer.len() + 8);
            out.push_header(&offset.to_be_bytes());
        }
    }
    out.push_payload(cookie, buffer);
}

/// An error with a text for people.
pub(super) fn push_error_chunk(out: &mut Outgoing, cookie: u64, error: u32, text: &str) {
    assert_ne!(error, 0, "an error chunk reports an error");
    let text = &text.as_bytes()[..text.len().min(usize::from(u16::MAX))];
    push_chunk(out, cookie, chunk::ERROR, 6 + text.len());
    out.push_header(&error.to_be_bytes());
    out.push_header(&(text.len() as u16).to_be_bytes());
    out.push_header(text);
}

/// Extents of one context: length and state of each.
pub(super) fn push_block_status(
    out: &mut Outgoing,
    cookie: u64,
    context: u32,
    extents: impl ExactSizeIterator<Item = (u32, u32)>,
) {
    assert_ne!(extents.len(), 0, "block status covers at least one byte");
    push_chunk(out, cookie, chunk::BLOCK_STATUS, 4 + 8 * extents.len());
    out.push_header(&context.to_be_bytes());
    for (length, state) in extents {
        out.push_header(&length.to_be_bytes());
        out.push_header(&state.to_be_bytes());
    }
}

fn push_chunk(out: &mut Outgoing, cookie: u64, kind: u16, length: usize) {
    let length = u32::try_from(length).expect("requests are far shorter than 4 GiB");
    let header = ChunkHeader { flags: chunk::FLAG_DONE, kind, cookie, length };
    out.push_header(&header.encode());
}
