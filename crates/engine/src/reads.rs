//! Host reads: looked up block by block, read in runs, verified where they land.

use crate::Engine;
use crate::api::{BufferRef, Buffers, Busy, Command, Failure, IoId, IoResult, RequestId, Target};
use crate::canary::{Canary, sings};
use crate::ios::ReadPart;
use crate::loads::Waiter;
use crate::map::Lookup;
use crate::requests::{Wants, Work};
use coulter_format::{BlockPointer, Lba, Pba};

/// Blocks of one device read at most.
const RUN_BLOCKS_MAX: u32 = coulter_format::record::ATOMIC_BLOCKS_MAX as u32;

/// Device commands beyond which reads wait, so that one huge read cannot fill all tables.
const READS_OUT_MAX: usize = 4096;

/// Neighbouring blocks that one device read fetches. Their checksums gather in the engine.
#[derive(Clone, Copy)]
struct Run {
    pba: Pba,
    first: u32,
    count: u32,
}

impl Engine {
    pub(crate) fn accept_read(
        &mut self,
        id: RequestId,
        lba: Lba,
        count: u32,
        buffer: BufferRef,
        wants: Wants,
        buffers: &mut impl Buffers,
    ) -> Result<(), Busy> {
        let work = Work::Read { lba, count, buffer, wants, cursor: 0, outstanding: 0 };
        let slot = self.requests.insert(id, work).ok_or(Busy)?;
        if wants == Wants::Data {
            self.statistics.user_blocks_read += u64::from(count);
        }
        self.continue_read(slot, buffers);
        Ok(())
    }

    /// Goes on from where the read stopped: until it is all issued, or a page must be loaded.
    pub(crate) fn continue_read(&mut self, slot: u32, buffers: &mut impl Buffers) {
        let mut run: Option<Run> = None;
        loop {
            let Work::Read { lba, count, buffer, wants, cursor, .. } =
                self.requests.slot(slot).work
            else {
                panic!("only a read goes on")
            };
            if cursor == count || self.ios.out_count() > READS_OUT_MAX {
                break;
            }
            let block = Lba(lba.0 + u64::from(cursor));
            let lookup = self.map.lookup(block);
            // What is damaged is mapped: reading it is an error, not zeros.
            let is_told = matches!(lookup, Lookup::Mapped(_) | Lookup::Damaged);
            if wants == Wants::Presence && is_told {
                // That is all that was asked.
            } else if wants == Wants::Presence && lookup == Lookup::Unmapped {
                buffers.absent(buffer, cursor, 1);
            } else if let Lookup::Mapped(pointer) = lookup {
                run = Some(self.extend_run(slot, run, pointer, cursor));
            } else if lookup == Lookup::Unmapped {
                buffers.zero(buffer, cursor, 1);
            } else if lookup == Lookup::Damaged {
                self.statistics.corrupt_blocks += 1;
                self.fail_request(slot, Failure::Corrupt(block));
            } else if let Lookup::Miss(key) = lookup {
                self.issue_run(slot, run);
                self.load(key, Waiter::Read(slot));
                return;
            }
            self.advance_read(slot, 1, 0);
        }
        self.issue_run(slot, run);
        let Work::Read { count, cursor, outstanding, .. } = self.requests.slot(slot).work else {
            panic!("only a read goes on")
        };
        if cursor < count {
            self.loads.starve(Waiter::Read(slot));
        } else if outstanding == 0 {
            self.finish_request(slot);
        }
    }

    /// The read cannot go on: the map page that it waits for could not be read.
    pub(crate) fn give_up_read(&mut self, slot: u32, errno: i32) {
        self.fail_request(slot, Failure::Device(errno));
        let Work::Read { count, cursor, outstanding, .. } = &mut self.requests.slot(slot).work
        else {
            panic!("only a read waits for a page")
        };
        *cursor = *count;
        if *outstanding == 0 {
            self.finish_request(slot);
        }
    }

    fn extend_run(&mut self, slot: u32, run: Option<Run>, pointer: BlockPointer, at: u32) -> Run {
        let joined = run.filter(|run| {
            run.pba.plus(run.count) == pointer.pba
                && run.first + run.count == at
                && run.count < RUN_BLOCKS_MAX
                && self.segments.of(run.pba) == self.segments.of(pointer.pba)
        });
        let run = match joined {
            Some(run) => Run { count: run.count + 1, ..run },
            None => {
                self.issue_run(slot, run);
                Run { pba: pointer.pba, first: at, count: 1 }
            }
        };
        self.checksums[run.count as usize - 1] = pointer.checksum;
        run
    }

    fn issue_run(&mut self, slot: u32, run: Option<Run>) {
        let Some(run) = run else { return };
        let Work::Read { buffer, .. } = self.requests.slot(slot).work else {
            panic!("only a read has runs")
        };
        let segment = self.segments.of(run.pba);
        self.segments.segment_mut(segment).readers += 1;
        let target = Target::Request { buffer, block: run.first };
        self.ios.start_read(
            ReadPart { request: slot, first: run.first, segment },
            Command::Read { pba: run.pba, count: run.count, target },
            &self.checksums[..run.count as usize],
        );
        self.advance_read(slot, 0, 1);
    }

    fn advance_read(&mut self, slot: u32, blocks: u32, issued: u32) {
        if let Work::Read { cursor, outstanding, .. } = &mut self.requests.slot(slot).work {
            *cursor += blocks;
            *outstanding += issued;
        }
    }

    pub(crate) fn read_completed(
        &mut self,
        part: ReadPart,
        io: IoId,
        result: IoResult,
        buffers: &mut impl Buffers,
    ) {
        self.segments.segment_mut(part.segment).readers -= 1;
        let slot = part.request;
        let Work::Read { lba, count, buffer, cursor, outstanding, .. } =
            &mut self.requests.slot(slot).work
        else {
            panic!("a read part belongs to a read")
        };
        *outstanding -= 1;
        let done = *outstanding == 0 && cursor == count;
        let (first, buffer) = (Lba(lba.0 + u64::from(part.first)), *buffer);
        let failure = match result {
            Err(errno) => Some(Failure::Device(errno)),
            Ok(()) => buffers
                .verify(buffer, part.first, first, self.ios.expected(io))
                .err()
                .filter(|_| !sings(Canary::ChecksumIgnored))
                .map(|offset| Failure::Corrupt(Lba(first.0 + u64::from(offset)))),
        };
        if let Some(failure) = failure {
            self.statistics.corrupt_blocks += u64::from(matches!(failure, Failure::Corrupt(_)));
            self.fail_request(slot, failure);
        }
        if done {
            self.finish_request(slot);
        }
    }
}
