//! Gathers the bytes of what is to be sent: out of memory what was kept, from the device the rest.

use super::flight::Flight;
use super::{CHUNK_SIZE, ShippedDevice};
use crate::ship::shipper::{JobId, ZERO_ROW};
use coulter_device::{AlignedMemory, Command, Device, DeviceError};
use std::ops::Range;

/// Bytes of one command that reads back.
const READ_SIZE: u64 = 1 << 20;

/// Reads that fail are repeated in pieces of this size, so that one bad block costs no more than itself.
pub(super) const UNREADABLE_UNIT: u64 = 4096;

/// Something that is read back.
#[derive(Debug)]
pub(super) struct ReadBack {
    memory: AlignedMemory,
    size: u64,
    left: usize,
    unreadable: u64,
}

impl<D: Device> ShippedDevice<D> {
    /// A write has completed. Keeps its bytes if they are what the device holds there now; otherwise they are read
    /// back. A row of zeros is told to the shipper as one.
    pub(super) fn keep(&mut self, command: &Command, is_known: bool) {
        let range = command.offset..command.offset + command.length;
        if !is_known || !self.ships() {
            self.kept.forget(&range);
            return;
        }
        // SAFETY: the host's memory is as it was until its completion is given out, and that is not done yet.
        let bytes = unsafe { std::slice::from_raw_parts(command.buffer, command.length as usize) };
        let mut start = range.start;
        for row in bytes.chunks(ZERO_ROW) {
            let own = start..start + row.len() as u64;
            start = own.end;
            if row.iter().all(|byte| *byte == 0) {
                self.kept.forget(&own);
                self.shipper.handle_discarded(own);
            } else {
                self.kept.keep(&own, row);
            }
        }
    }

    /// Gathers the bytes of a job. No completion was taken since the shipper asked for them, so what is kept is what
    /// is on the device.
    pub(super) fn gather(&mut self, job: JobId, ranges: &[Range<u64>]) {
        if self.shipper.is_capture(job)
            && let Some(bundle) = self.kept.take(ranges)
        {
            let name = self.shipper.handle_kept(job);
            self.uploader.create_of(job, name, bundle);
            return;
        }
        let size: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        let mut memory = AlignedMemory::zeroed(size as usize);
        let mut offset = 0;
        let mut left = 0;
        for range in ranges {
            let length = range.end - range.start;
            let own = &mut memory[offset as usize..(offset + length) as usize];
            for missing in self.kept.take_part(range, own) {
                let mut start = missing.start;
                while start < missing.end {
                    let end = missing.end.min(start + READ_SIZE);
                    self.read_parts.push_back((job, offset + (start - range.start), start..end));
                    start = end;
                    left += 1;
                }
            }
            offset += length;
        }
        self.reads.insert(job, ReadBack { memory, size, left, unreadable: 0 });
        if left == 0 {
            self.all_is_there(job);
        }
    }

    /// Reads back, with a part of the queue only: the host goes first.
    pub(super) fn read_on(&mut self) {
        let room = (self.inner.properties().queue_depth / 4).max(1);
        while self.read_count < room {
            let Some((job, offset, range)) = self.read_parts.pop_front() else { return };
            let read = self.reads.get_mut(&job).expect("a read goes on until all of it is there");
            let buffer = read.memory.as_mut_pointer().wrapping_add(offset as usize);
            let command = Command::read(0, range.start, range.end - range.start, buffer);
            self.pass(Flight::ReadBack(job, offset, range), command);
            self.read_count += 1;
        }
    }

    pub(super) fn read_back(
        &mut self,
        job: JobId,
        offset: u64,
        range: Range<u64>,
        result: Result<(), DeviceError>,
    ) {
        let length = range.end - range.start;
        if result.is_ok() || !self.ships() {
            self.part_is_read(job);
        } else if length > UNREADABLE_UNIT {
            // Once more, in small pieces.
            let read = self.reads.get_mut(&job).expect("a read goes on until all of it is there");
            let mut start = range.start;
            while start < range.end {
                let end = range.end.min(start + UNREADABLE_UNIT);
                self.read_parts.push_back((job, offset + (start - range.start), start..end));
                read.left += 1;
                start = end;
            }
            self.part_is_read(job);
        } else {
            let buffer = self.witness.as_mut_pointer();
            let command = Command::read(0, 0, UNREADABLE_UNIT, buffer);
            self.pass(Flight::Witness(job, offset, range), command);
        }
    }

    /// The first block was read, or not, after a part of a job was not.
    pub(super) fn witnessed(
        &mut self,
        job: JobId,
        offset: u64,
        range: Range<u64>,
        result: Result<(), DeviceError>,
    ) {
        if result.is_err() {
            self.stop();
        } else {
            let length = range.end - range.start;
            let read = self.reads.get_mut(&job).expect("a read goes on until all of it is there");
            read.memory[offset as usize..(offset + length) as usize].fill(0);
            read.unreadable += length;
            self.unreadable.insert(range.start / u64::from(CHUNK_SIZE));
        }
        self.part_is_read(job);
    }

    /// One part fewer is missing of what a job reads.
    fn part_is_read(&mut self, job: JobId) {
        let read = self.reads.get_mut(&job).expect("a read goes on until all of it is there");
        read.left -= 1;
        if read.left == 0 {
            self.all_is_there(job);
        }
    }

    fn all_is_there(&mut self, job: JobId) {
        let read = self.reads.remove(&job).expect("it is gathered once");
        if self.ships() {
            let bytes = read.memory[..read.size as usize].to_vec();
            self.shipper.handle_read(job, bytes, read.unreadable);
        }
    }
}
