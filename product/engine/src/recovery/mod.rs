//! Opening: from the superblocks to a running engine.
//!
//! ```text
//! Superblocks  both copies are looked for; the newest valid one wins
//! Body         the checkpoint's lists; their second copy if the first is damaged
//! Table        the pages of the list of roots, if there is one, and the segment table
//! Discover     the log behind the checkpoint is walked: the streams' heads and the reserved
//!              segments, and the reserved holes are searched; nothing else
//! Runs         updates that no leaf page contains, oldest first, and the headers of records that are
//!              referred to
//! Replay       the records behind the checkpoint, in order, up to the first gap
//! Mend         headers that were rebuilt are written again, unless nothing may be written
//! ```
//! Then reads are served, and a checkpoint under a new epoch is written before any write is
//! accepted: records that were dropped can never come back, for their epoch is over.
//!
//! # What counts as a record
//! An intact header of this store and address, of the superblock's epoch, behind the checkpoint,
//! of rising sequence within its segment; and, unless the log itself says that it was durable, a
//! payload that matches its checksums. Replay takes the sequences that follow the checkpoint
//! without a gap. A gap at or below a sequence that was durable is damage, not a torn tail: then
//! the store is not opened.

mod beyond;
mod checkpoint;
mod echo;
mod fetch;
mod holes;
mod log;
mod mend;
mod parity;
mod replay;
mod superblocks;
mod unreadable;
mod wrong_body;

use crate::api::{Buffers, Command, IoResult, PageRef, Phase, RECORD_BLOCKS, Target};
use crate::error::OpenError;
use crate::holes::Headers;
use crate::ios::Purpose;
use crate::memory::{self, Apart, NoMemory};
use crate::references::Referred;
use crate::shared::Shared;
use crate::units::{SegmentIndex, Sequence};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use beyond::Beyond;
use coulter_format::checkpoint::Head;
use coulter_format::record::Entry;
use coulter_format::superblock::Superblock;
use coulter_format::{Block, BlockPointer, Corrupt, Pba, Reason, Structure};
use unreadable::{Piece, Unreadable};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecoveryStage {
    Superblocks,
    Body,
    Table,
    Discover,
    Runs,
    Replay,
    Mend,
}

/// The page that single blocks are read into.
const PAGE: PageRef = PageRef(0);

/// Blocks searched from the end of a walk on: a header that is damaged, the longest payload that it can
/// have, and the header behind that.
const PROBE_BLOCKS: u32 = RECORD_BLOCKS as u32 + 1;

/// What a read of recovery is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobKind {
    /// A superblock, in a page.
    Superblock(Pba),
    Body,
    /// Items `first..first + count` of the fetch list.
    Items {
        first: usize,
        count: usize,
    },
    /// Items `next..end` of the fetch list, one by one, because something was wrong with them; the copy of the first
    /// if `is_copy`.
    OneByOne {
        next: usize,
        end: usize,
        is_copy: bool,
    },
    /// Item `next` is a header that is damaged, and is rebuilt; see [`parity`].
    Rebuild {
        next: usize,
        end: usize,
        member: usize,
    },
    /// A piece of a walk.
    Walk {
        walk: usize,
    },
    /// The header that tells of the one with which a walk ended; see [`echo`].
    Echo {
        walk: usize,
    },
    /// The payload behind that one.
    Echoed {
        walk: usize,
        holder: Pba,
    },
    /// A header that was rebuilt is written.
    Mend,
    /// Block `next` of a piece of a walk that could not be read as a whole; see [`unreadable`].
    WalkBlock {
        walk: usize,
        piece: Piece,
        next: u32,
    },
}

#[derive(Clone, Copy, Debug)]
struct ReadJob {
    kind: JobKind,
    target: Target,
    pba: Pba,
    count: u32,
    result: Option<IoResult>,
}

/// A block to be fetched.
#[derive(Clone, Copy, Debug)]
enum Item {
    /// A page of the list of roots.
    RootList { key: u64, pointer: BlockPointer },
    /// A page of the segment table.
    TablePage { key: u64, pointer: BlockPointer },
    /// A block of a run.
    RunBlock { key: u64, pointer: BlockPointer, run: usize },
    /// The header of a record that the checkpoint refers to.
    Header(Referred),
}

impl Item {
    fn pba(&self) -> Pba {
        match self {
            Item::RootList { pointer, .. }
            | Item::TablePage { pointer, .. }
            | Item::RunBlock { pointer, .. } => pointer.pba,
            Item::Header(referred) => referred.reference.pba,
        }
    }
}

/// A segment being walked.
#[derive(Clone, Copy, Debug)]
struct Walk {
    segment: SegmentIndex,
    offset: u32,
    latest: Sequence,
    /// Blocks to read next: one to look whether there is anything, then whole stretches.
    step: u32,
    /// The header of a record that may count was met.
    met: bool,
    /// Any block may be a header: records lie in holes.
    headers: Headers,
    /// Blocks behind the end still to be searched for a record that tells what was durable.
    probe: u32,
    /// Where no header was found with which it would go on.
    end: Option<Pba>,
    /// What another header tells of the one there was asked for.
    end_is_settled: bool,
    /// A header is looked for with which it goes on behind a damaged one.
    skips: bool,
}

/// A record that was found behind the checkpoint.
#[derive(Clone, Copy, Debug)]
struct Found {
    sequence: Sequence,
    stream: u8,
    pba: Pba,
    segment: SegmentIndex,
    end: u32,
    /// Blocks from its header to its last one.
    span: u32,
    /// It lies in holes, and no head goes on behind it.
    scattered: bool,
    is_long: bool,
    intact: bool,
    /// It counts only if the next one does.
    goes_on: bool,
    first_entry: u32,
    entry_count: u32,
}

// Sorting takes 48 of them on the stack, and a kernel's has 2 KiB for one function.
const _: () = assert!(48 * size_of::<Found>() <= 1920);

/// Superblocks that are read at once, at most.
const SUPERBLOCK_READS_MAX: usize = 16;

/// Recovery's state; gone once the engine runs.
pub(crate) struct Recovery {
    stage: RecoveryStage,
    begun: bool,
    /// Neither of the first two superblocks is there.
    third_is_sought: bool,
    jobs: Vec<Option<ReadJob>>,
    /// Jobs whose results are taken in order.
    in_order: VecDeque<u32>,
    newest: Option<Superblock>,
    superblock_errors: Vec<SuperblockError>,
    /// Why the first copy of the body could not be used.
    body_error: Option<OpenError>,
    /// What was wrong with the first copy of the item in hand.
    item_error: Option<OpenError>,
    /// A header that is being rebuilt, or tells of one that is; one block, or none yet.
    rebuilt: Vec<Block>,
    heads: Vec<Option<Head>>,
    reserved: Vec<SegmentIndex>,
    /// Segments of which the holes are reserved.
    holes: Vec<SegmentIndex>,
    items: Vec<Item>,
    next_item: usize,
    walks: Vec<Walk>,
    walks_waiting: VecDeque<usize>,
    found: Vec<Found>,
    /// Which header tells of which, by the place of the one told of.
    echoes: Vec<(Pba, Pba)>,
    /// Blocks of the log that could not be read.
    unreadable: Unreadable,
    /// The first long one of them, and the field by which it is that.
    long: Option<(Sequence, Pba, &'static str)>,
    entries: Vec<Entry>,
    durable: Sequence,
    /// The newest superblock that any record knows of.
    generation: u64,
    /// The highest epoch of any record seen: of a recovery that did not get to its end, too; and where
    /// it was seen.
    epoch: u64,
    epoch_pba: Pba,
    /// Records of `found`, in order, that replay takes.
    accepted: usize,
    /// Headers that were rebuilt, and where they lie.
    mended: Vec<Pba>,
    mended_blocks: Vec<Block>,
    /// What is damaged beyond repair.
    beyond: Beyond,
}

#[derive(Clone, Copy, Debug)]
enum SuperblockError {
    Device(i32),
    Corrupt(Pba, Corrupt),
}

impl Recovery {
    // Not inlined: its locals would enlarge the caller's stack frame.
    #[inline(never)]
    pub(crate) fn new(record_count: u16) -> Result<Apart<Recovery>, NoMemory> {
        let jobs_max = usize::from(record_count).max(SUPERBLOCK_READS_MAX);
        Apart::new(Recovery {
            stage: RecoveryStage::Superblocks,
            begun: false,
            third_is_sought: false,
            jobs: memory::list(jobs_max)?,
            in_order: memory::queue(jobs_max)?,
            newest: None,
            superblock_errors: memory::list(2 * SUPERBLOCK_READS_MAX)?,
            body_error: None,
            item_error: None,
            rebuilt: memory::list(1)?,
            heads: Vec::new(),
            reserved: Vec::new(),
            holes: Vec::new(),
            items: Vec::new(),
            next_item: 0,
            walks: Vec::new(),
            walks_waiting: VecDeque::new(),
            found: Vec::new(),
            echoes: Vec::new(),
            unreadable: Unreadable::default(),
            long: None,
            entries: Vec::new(),
            durable: 0,
            generation: 0,
            epoch: 0,
            epoch_pba: Pba::NOWHERE,
            accepted: 0,
            mended: Vec::new(),
            mended_blocks: Vec::new(),
            beyond: Beyond::default(),
        })
    }

    fn jobs_out(&self) -> bool {
        self.jobs.iter().any(Option::is_some)
    }
}

/// Damage that keeps a store from being opened.
fn damaged(structure: Structure, reason: Reason, pba: Pba) -> OpenError {
    OpenError::Damaged { corrupt: Corrupt { structure, reason }, pba }
}

impl Recovery {
    /// Goes on as far as it can. Once the store is open, returns the superblock that was found.
    pub(crate) fn step(
        &mut self,
        shared: &mut Shared,
        buffers: &mut impl Buffers,
    ) -> Option<Superblock> {
        if matches!(shared.phase, Phase::Failed(_)) {
            return None;
        }
        let result = self.recover(shared, buffers).and_then(|is_done| {
            if is_done {
                finish(shared);
                shared.grow()?;
            }
            Ok(is_done)
        });
        match result {
            Ok(is_done) => self.newest.filter(|_| is_done),
            Err(error) => {
                shared.phase = Phase::Failed(error);
                None
            }
        }
    }

    /// A read has ended. A recovery that has failed does not care.
    pub(crate) fn completed(&mut self, job: u32, result: IoResult) {
        if let Some(job) = &mut self.jobs[job as usize] {
            assert!(job.result.is_none(), "a read ends once");
            job.result = Some(result);
        }
    }

    /// Goes as far as it can without another read. True when all is done.
    fn recover(
        &mut self,
        shared: &mut Shared,
        buffers: &mut impl Buffers,
    ) -> Result<bool, OpenError> {
        loop {
            let stage_done = match self.stage {
                RecoveryStage::Superblocks => self.read_superblocks(shared, buffers)?,
                RecoveryStage::Body => self.read_body(shared, buffers)?,
                RecoveryStage::Table | RecoveryStage::Runs => self.fetch_items(shared, buffers)?,
                RecoveryStage::Discover => self.discover(shared, buffers)?,
                RecoveryStage::Replay => {
                    self.replay(shared)?;
                    true
                }
                RecoveryStage::Mend => {
                    if self.mend_on(shared, buffers) {
                        return Ok(true);
                    }
                    false
                }
            };
            if !stage_done {
                return Ok(false);
            }
            self.begun = false;
            self.stage = match self.stage {
                RecoveryStage::Superblocks => RecoveryStage::Body,
                RecoveryStage::Body => RecoveryStage::Table,
                RecoveryStage::Table => RecoveryStage::Discover,
                RecoveryStage::Discover => {
                    if self.goes_beyond(shared)? {
                        self.begun = true;
                        continue;
                    }
                    self.settle_log(shared)?;
                    self.list_runs(shared)?;
                    RecoveryStage::Runs
                }
                RecoveryStage::Runs => {
                    self.runs_end(shared)?;
                    RecoveryStage::Replay
                }
                RecoveryStage::Replay => RecoveryStage::Mend,
                RecoveryStage::Mend => unreachable!("all is done then"),
            };
        }
    }

    fn start_job(
        &mut self,
        shared: &mut Shared,
        kind: JobKind,
        pba: Pba,
        count: u32,
        target: Target,
    ) {
        let job = ReadJob { kind, target, pba, count, result: None };
        assert!(count > 0 && count as usize <= crate::api::RECORD_BLOCKS, "a read has a buffer");
        let index = match self.jobs.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                assert!(self.jobs.len() < self.jobs.capacity(), "each read has a buffer");
                self.jobs.push(None);
                self.jobs.len() - 1
            }
        };
        self.jobs[index] = Some(job);
        self.in_order.push_back(index as u32);
        shared.ios.start(Purpose::Recover(index as u32), Command::Read { pba, count, target });
    }

    /// The newest job is the one that comes next.
    fn hurry_newest(&mut self) {
        let newest = self.in_order.pop_back().expect("a job was begun");
        self.in_order.push_front(newest);
    }

    /// The oldest job, if it has completed.
    fn take_job(&mut self) -> Option<(ReadJob, IoResult)> {
        let index = *self.in_order.front()? as usize;
        let result = self.jobs[index].as_ref()?.result?;
        self.in_order.pop_front();
        let job = self.jobs[index].take()?;
        Some((job, result))
    }
}

/// All has been replayed.
fn finish(shared: &mut Shared) {
    shared.statistics.recovered_cells = shared.map.recovery_is_over() as u64;
    let now = shared.log.now();
    shared.segments.free_empty(now);
    assert!(shared.log.order.is_empty(), "nothing was written yet");
    assert!(shared.log.durable <= shared.log.applied, "what is durable was replayed");
    if shared.config.read_only {
        shared.phase = Phase::Running;
    } else {
        shared.phase = Phase::Recovered;
        shared.signals.checkpoint = true;
    }
}
