//! Reading: pieces of a file into one buffer.

use crate::items::Segment;
use crate::parts::Parts;
use crate::request::Reply;
use crate::space::Run;
use crate::stop::{Step, Stop, fail, settle};
use crate::task::{Progress, Read, Task, Write};
use crate::traffic::Traffic;
use crate::tree::Tree;
use coulter::buffer::Buffer;
use coulter_format::BLOCK_SIZE;
use coulter_format::files::Inode;
use std::ops::Range;

const SIZE: u64 = BLOCK_SIZE as u64;

impl Parts {
    /// Reads; if it is a copy, gives the write that follows.
    pub(crate) fn run_read(
        &mut self,
        id: usize,
        task: &mut Task,
        read: &mut Read,
    ) -> (Progress, Option<Write>) {
        if let Some(range) = read.found.clone() {
            return finish(task, read, range);
        }
        let progress = self.begin_read(id, task, read);
        match (progress, read.found.clone()) {
            (Progress::Yields, Some(range)) if task.out == 0 => finish(task, read, range),
            (Progress::Yields, _) => (Progress::Waits, None),
            (progress, _) => (progress, None),
        }
    }

    fn begin_read(&mut self, id: usize, task: &mut Task, read: &mut Read) -> Progress {
        let (inode, offset, length) = (read.inode, read.offset, read.length);
        let plan =
            settle!(self.step(id, |tree, traffic| plan(tree, traffic, inode, offset, length)));
        let (range, segments) = plan;
        read.found = Some(range);
        let mapped = segments.iter().filter(|segment| segment.block.is_some()).count();
        let first = segments.first().map_or(0, |segment| segment.first);
        if let ([Segment { count, block: Some(block), .. }], 1) = (&segments[..], mapped) {
            // The whole buffer at once.
            let run = Run { block: *block, count: *count };
            let mut buffer = std::mem::take(&mut read.buffer);
            buffer.set_length(*count as usize * BLOCK_SIZE);
            read.pieces.push((run.block, 0));
            self.fetch(id, task, run, buffer);
            return Progress::Yields;
        }
        let blocks: u64 = segments.iter().map(|segment| segment.count).sum();
        read.buffer.set_length(blocks as usize * BLOCK_SIZE);
        for segment in &segments {
            let start = (segment.first - first) as usize * BLOCK_SIZE;
            let length = segment.count as usize * BLOCK_SIZE;
            match segment.block {
                None => read.buffer[start..start + length].fill(0),
                Some(block) => {
                    read.pieces.push((block, start));
                    let run = Run { block, count: segment.count };
                    self.fetch(id, task, run, Buffer::zeroed(length));
                }
            }
        }
        Progress::Yields
    }
}

/// The bytes of the answer within whole blocks, and where those are.
fn plan(
    tree: &mut Tree,
    traffic: &Traffic,
    number: u64,
    offset: u64,
    length: u32,
) -> Step<(Range<usize>, Vec<Segment>)> {
    let inode: Inode = tree.inode(number)?;
    match inode.mode & libc::S_IFMT {
        libc::S_IFREG => {}
        libc::S_IFDIR => return fail(libc::EISDIR),
        _ => return fail(libc::EINVAL),
    }
    let end = offset.saturating_add(length.into()).min(inode.size);
    if offset >= end {
        return Ok((0..0, Vec::new()));
    }
    let first = offset / SIZE;
    let mut segments = Vec::new();
    tree.segments(number, first, end.div_ceil(SIZE) - first, &mut segments)?;
    for segment in &segments {
        let run = segment.block.map(|block| Run { block, count: segment.count });
        if run.is_some_and(|run| traffic.is_written(run)) {
            return Err(Stop::Conflict);
        }
    }
    let start = (offset - first * SIZE) as usize;
    Ok((start..start + (end - offset) as usize, segments))
}

fn finish(task: &mut Task, read: &mut Read, range: Range<usize>) -> (Progress, Option<Write>) {
    if let Some(errno) = task.failed {
        return (Progress::Ends(Err(errno)), None);
    }
    let mut buffer = std::mem::take(&mut read.buffer);
    if buffer.is_empty() && buffer.capacity() == 0 {
        // All of it came in one piece.
        buffer = task.old.pop().map_or_else(Buffer::empty, |(_, piece)| piece);
    } else {
        for (block, piece) in task.old.drain(..) {
            let place = read.pieces.iter().find(|(other, _)| *other == block);
            let (_, start) = place.expect("a piece was asked for");
            assert!(start + piece.len() <= buffer.len(), "a piece lies in the buffer");
            buffer[*start..*start + piece.len()].copy_from_slice(&piece);
        }
    }
    assert!(range.end <= buffer.len(), "the answer lies in the buffer");
    let Some((inode, offset)) = read.copy_to else {
        return (Progress::Ends(Ok(Reply::Data(buffer, range))), None);
    };
    if range.is_empty() {
        return (Progress::Ends(Ok(Reply::Written(0, buffer))), None);
    }
    let payload = Buffer::copied_from(&buffer[range]);
    let write = Write {
        inode,
        offset,
        length: payload.len(),
        payload,
        done: 0,
        kills_privileges: true,
        sync: false,
        behind: None,
    };
    (Progress::Waits, Some(write))
}
