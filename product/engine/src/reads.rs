//! Host reads: looked up block by block, read in runs, verified where they land.

use crate::api::{BufferRef, Buffers, Busy, Command, Failure, IoId, IoResult, RequestId, Target};
use crate::canary::{Canary, sings};
use crate::ios::ReadPart;
use crate::loads::Waiter;
use crate::map::lookup::Lookup;
use crate::memory::{self, NoMemory};
use crate::requests::{Wants, Work};
use crate::shared::Shared;
use alloc::boxed::Box;
use coulter_format::checksum::Kind;
use coulter_format::{BlockPointer, Lba, Pba};

/// Blocks of one device read at most.
const RUN_BLOCKS_MAX: u32 = crate::ios::EXPECTED_MAX as u32;

/// Device commands beyond which reads wait, so that one huge read cannot fill all tables.
const READS_OUT_MAX: usize = 4096;

/// Neighbouring blocks that one device read fetches. Their checksums gather in the engine.
#[derive(Clone, Copy)]
struct Run {
    pba: Pba,
    first: u32,
    count: u32,
}

/// What a read asks for, and where it goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) lba: Lba,
    pub(crate) count: u32,
    pub(crate) buffer: BufferRef,
    pub(crate) wants: Wants,
}

/// Reads of the host.
pub(crate) struct Reads {
    /// Checksums of the blocks of the run that is being gathered.
    checksums: Box<[u32; RUN_BLOCKS_MAX as usize]>,
}

impl Reads {
    pub(crate) fn new() -> Result<Reads, NoMemory> {
        Ok(Reads { checksums: memory::boxed(0)? })
    }

    pub(crate) fn accept(
        &mut self,
        shared: &mut Shared,
        id: RequestId,
        asked: Asked,
        buffers: &mut impl Buffers,
    ) -> Result<(), Busy> {
        let Asked { lba, count, buffer, wants } = asked;
        let work = Work::Read { lba, count, buffer, wants, cursor: 0, outstanding: 0 };
        let slot = shared.requests.insert(id, work).ok_or(Busy)?;
        assert!(count > 0, "the driver checks the range");
        if wants == Wants::Data {
            shared.statistics.user_blocks_read += u64::from(count);
        }
        self.go_on(shared, slot, buffers);
        Ok(())
    }

    /// Goes on from where the read stopped: until it is all issued, or a page must be loaded.
    pub(crate) fn go_on(&mut self, shared: &mut Shared, slot: u32, buffers: &mut impl Buffers) {
        let Work::Read { lba, count, buffer, wants, cursor: begun, .. } =
            shared.requests.slot(slot).work
        else {
            panic!("only a read goes on")
        };
        assert!(begun <= count, "no read goes beyond its end");
        let (mut cursor, mut run, mut missing) = (begun, None, None);
        while cursor < count && shared.ios.out_count() <= READS_OUT_MAX {
            let block = Lba(lba.0 + u64::from(cursor));
            match (shared.map.lookup(block), wants) {
                (Lookup::Mapped(pointer), Wants::Data) => {
                    if let Some(cache) = &shared.cache {
                        cache.fill(block, pointer);
                    }
                    run = Some(self.extend_run(shared, slot, run, pointer, cursor));
                }
                (Lookup::Unmapped, Wants::Data) => buffers.zero(buffer, cursor, 1),
                (Lookup::Damaged, Wants::Data) => {
                    shared.note_corrupt(Kind::Data, block.0);
                    shared.requests.fail(slot, Failure::Corrupt(block));
                }
                // That is all that was asked. What is damaged is mapped: reading it is an error, not zeros.
                (Lookup::Mapped(_) | Lookup::Damaged, Wants::Presence) => {}
                (Lookup::Unmapped, Wants::Presence) => buffers.absent(buffer, cursor, 1),
                (Lookup::Miss(key), _) => {
                    missing = Some(key);
                    break;
                }
            }
            cursor += 1;
        }
        self.issue_run(shared, slot, run);
        let Work::Read { cursor: at, outstanding, .. } = &mut shared.requests.slot(slot).work
        else {
            panic!("only a read goes on")
        };
        assert_eq!(*at, begun, "nobody else goes on with it");
        *at = cursor;
        if let Some(key) = missing {
            shared.load(key, Waiter::Read(slot));
        } else if cursor < count {
            shared.loads.starve(Waiter::Read(slot));
        } else if *outstanding == 0 {
            shared.requests.finish(slot);
        }
    }

    /// The read cannot go on: the map page that it waits for could not be read.
    pub(crate) fn give_up(shared: &mut Shared, slot: u32, errno: i32) {
        shared.requests.fail(slot, Failure::Device(errno));
        let Work::Read { count, cursor, outstanding, .. } = &mut shared.requests.slot(slot).work
        else {
            panic!("only a read waits for a page")
        };
        assert!(*cursor < *count, "a read that waits has not been issued wholly");
        *cursor = *count;
        if *outstanding == 0 {
            shared.requests.finish(slot);
        }
    }

    fn extend_run(
        &mut self,
        shared: &mut Shared,
        slot: u32,
        run: Option<Run>,
        pointer: BlockPointer,
        at: u32,
    ) -> Run {
        let joined = run.filter(|run| {
            run.pba.plus(run.count) == pointer.pba
                && run.first + run.count == at
                && run.count < RUN_BLOCKS_MAX
                && shared.segments.of(run.pba) == shared.segments.of(pointer.pba)
        });
        let run = match joined {
            Some(run) => Run { count: run.count + 1, ..run },
            None => {
                self.issue_run(shared, slot, run);
                Run { pba: pointer.pba, first: at, count: 1 }
            }
        };
        self.checksums[run.count as usize - 1] = pointer.checksum;
        run
    }

    fn issue_run(&mut self, shared: &mut Shared, slot: u32, run: Option<Run>) {
        let Some(run) = run else { return };
        let Work::Read { buffer, .. } = shared.requests.slot(slot).work else {
            panic!("only a read has runs")
        };
        let segment = shared.segments.of(run.pba);
        let last = shared.segments.of(run.pba.plus(run.count - 1));
        assert_eq!(segment, last, "a run lies in one segment");
        assert!(run.count > 0 && run.count <= RUN_BLOCKS_MAX, "a run is one command");
        shared.segments.begin_read(segment);
        let target = Target::Request { buffer, block: run.first };
        shared.ios.start_read(
            ReadPart { request: slot, first: run.first, segment },
            Command::Read { pba: run.pba, count: run.count, target },
            &self.checksums[..run.count as usize],
        );
        let Work::Read { outstanding, .. } = &mut shared.requests.slot(slot).work else {
            panic!("only a read has runs")
        };
        *outstanding += 1;
    }

    pub(crate) fn completed(
        &mut self,
        shared: &mut Shared,
        part: ReadPart,
        io: IoId,
        result: IoResult,
        buffers: &mut impl Buffers,
    ) {
        shared.segments.end_read(part.segment);
        let slot = part.request;
        let Work::Read { lba, count, buffer, cursor, outstanding, .. } =
            &mut shared.requests.slot(slot).work
        else {
            panic!("a read part belongs to a read")
        };
        assert!(*outstanding > 0, "a command of a read completes once");
        assert!(part.first < *count, "it was one of its blocks");
        *outstanding -= 1;
        let done = *outstanding == 0 && cursor == count;
        let (first, buffer) = (Lba(lba.0 + u64::from(part.first)), *buffer);
        let failure = match result {
            Err(errno) => Some(Failure::Device(errno)),
            Ok(()) => buffers
                .verify(buffer, part.first, first, shared.ios.expected(io))
                .err()
                .filter(|_| !sings(Canary::ChecksumIgnored))
                .map(|offset| Failure::Corrupt(Lba(first.0 + u64::from(offset)))),
        };
        if let Some(failure) = failure {
            if let Failure::Corrupt(block) = failure {
                shared.note_corrupt(Kind::Data, block.0);
            }
            shared.requests.fail(slot, failure);
        }
        if done {
            shared.requests.finish(slot);
        }
    }
}
