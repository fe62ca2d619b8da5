//! Commands that wait: for the shipper, or for the mark of a chunk.

use super::CHUNK_SIZE;
use coulter_device::Command;
use std::collections::VecDeque;

/// Takes those out of the queue that would change one of `chunks`. The order of all others stays.
pub(super) fn take_those_in(held: &mut VecDeque<Command>, chunks: &[u64]) -> Vec<Command> {
    let chunk_size = u64::from(CHUNK_SIZE);
    let touches = |command: &Command| {
        let end = (command.offset + command.length).div_ceil(chunk_size);
        chunks.iter().any(|chunk| (command.offset / chunk_size..end).contains(chunk))
    };
    let (out, kept) = held.drain(..).partition(touches);
    *held = kept;
    Vec::from_iter::<VecDeque<Command>>(out)
}
