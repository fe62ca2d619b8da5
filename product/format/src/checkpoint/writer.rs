//! Writing a body: root entries, and all other pieces, in the order of the format.

use super::*;
use crate::BlockPointer;
use crate::bytes::Writer;

/// Writes a body piece by piece. The pieces must come in the order of the format: heads, reserved
/// segments, roots, table pages, runs, references, second copies, groups, parity blocks.
#[derive(Debug)]
pub struct BodyWriter<'a> {
    bytes: Writer<'a>,
    header: CheckpointHeader,
    /// Whether everything could be said so far.
    complete: bool,
}

impl<'a> BodyWriter<'a> {
    /// Begins a body that will have the pieces that `counts` says.
    pub fn new(header: &CheckpointHeader, counts: &Counts, out: &'a mut [u8]) -> BodyWriter<'a> {
        let mut bytes = Writer::new(out);
        bytes.put(&MAGIC);
        let has_copies = counts.copies || counts.root_lists;
        let has_references = counts.references > 0 || has_copies;
        bytes.u16(match (counts.copies, has_references) {
            _ if counts.root_lists => VERSION_WITH_ROOT_LISTS,
            (true, _) => VERSION_WITH_COPIES,
            (false, true) => VERSION_WITH_REFERENCES,
            (false, false) => VERSION,
        });
        bytes.u16(counts.streams);
        bytes.u64(header.sequence);
        bytes.u64(header.write_clock);
        bytes.u64(header.sweep.leaf);
        bytes.u64(header.sweep.cycle);
        bytes.u64(header.next_run);
        bytes.u32(counts.reserved);
        bytes.u32(counts.roots);
        bytes.u32(counts.table);
        bytes.u32(counts.runs);
        if has_references {
            bytes.u32(counts.references);
            bytes.u32(counts.parities);
        }
        BodyWriter { bytes, header: *header, complete: true }
    }

    /// A stream's head, or that it has none.
    pub fn head(&mut self, head: Option<Head>) {
        let head = head.unwrap_or(Head { segment: NO_SEGMENT, offset: 0 });
        self.bytes.u32(head.segment);
        self.bytes.u32(head.offset);
    }

    /// A segment that may be opened after this checkpoint.
    pub fn reserved(&mut self, segment: u32) {
        self.bytes.u32(segment);
    }

    /// A segment into whose holes records may be written after this checkpoint.
    pub fn reserved_holes(&mut self, segment: u32) {
        self.bytes.u32(segment | HOLES);
    }

    /// A root page.
    pub fn root(&mut self, key: u64, pointer: BlockPointer) {
        self.bytes.u64(key);
        self.pointer(pointer);
    }

    /// A page of the list of roots or of the segment table, a block of the run begun last, or a parity block.
    pub fn pointer(&mut self, pointer: BlockPointer) {
        self.bytes.u32(pointer.pba.0);
        self.bytes.u32(pointer.checksum);
    }

    /// Begins a run; `block_count` pointers must follow.
    pub fn run(&mut self, run: &RunHeader) {
        self.bytes.u64(run.number);
        self.bytes.u64(run.sweep.cycle);
        self.bytes.u64(run.sweep.leaf);
        self.bytes.u32(run.block_count);
        self.bytes.u32(0);
    }

    /// A record whose header says what changed; from fewer than 2^16 runs and rounds of the sweep ago.
    pub fn reference(&mut self, reference: &Reference) {
        let cycles = distance(self.header.sweep.cycle, reference.sweep.cycle);
        let runs = distance(self.header.next_run, reference.run);
        self.complete &= cycles.is_some() && runs.is_some();
        self.bytes.u32(reference.pba.0);
        self.bytes.u32(reference.checksum);
        self.bytes.u64(reference.sweep.leaf);
        self.bytes.u16(cycles.unwrap_or(0));
        self.bytes.u16(runs.unwrap_or(0));
    }

    /// Where the second copy of a root page, a table page or a block of a run lies, or nowhere.
    pub fn copy(&mut self, pba: Pba) {
        self.bytes.u32(pba.0);
    }

    /// Which of the parity blocks is of the header of a reference and others; `None` if there is none.
    pub fn group(&mut self, parity: Option<usize>) {
        self.complete &= parity.is_none_or(|parity| parity < PARITY_COUNT_MAX);
        self.bytes.u16(parity.map_or(NO_PARITY, |parity| parity as u16));
    }

    /// Bytes of the body, or `None` if they did not fit, or a reference was of too long ago.
    pub fn finish(self) -> Option<usize> {
        self.bytes.finish().filter(|_| self.complete)
    }
}

/// How far a number was from what it is now.
fn distance(now: u64, then: u64) -> Option<u16> {
    now.checked_sub(then).and_then(|distance| distance.try_into().ok())
}
