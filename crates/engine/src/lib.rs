//! Coulter's engine: a log, a map over it, and what keeps both in order.
//!
//! It does no I/O, reads no clock, starts no thread and draws no random number. It is a state
//! machine: a driver feeds it requests and completions and takes device commands and responses
//! out. The same machine runs in a daemon, in a simulator that cuts the power between any two
//! steps, and needs nothing that a kernel lacks.
//!
//! # How to drive it
//! Methods are of four kinds:
//! - *inputs*: [`Engine::handle_request`], [`Engine::handle_completion`];
//! - *outputs*: [`Engine::poll_io`], then [`Engine::poll_response`], each until it is empty, after
//!   any batch of inputs;
//! - *commands* of the operator; and *views*, which change nothing.
//!
//! Opening is a phase of the same machine: poll after [`Engine::open`] and go on until
//! [`Engine::phase`] says [`Phase::Running`] (or `Failed`).
//!
//! # Power-loss contract
//! Device commands that are out together may be executed in any order; wherever one must be durable
//! before another, the other is not issued until a `Flush` between them has completed. There are
//! three such places: checkpoint contents before the superblock that names them, one copy of that
//! superblock before the other, and both before any segment is reused that only older checkpoints
//! count on.
//!
//! # Invariants
//! - A write is answered only after its record and all before it have completed.
//! - A flush is answered only after a device flush that began when all records to be covered had
//!   completed.
//! - The map never points at a block that was not written by a completed record.
//! - After a failed write or flush nothing is written any more.
//!
//! # Does not
//! touch user data: it tells the driver what to copy where ([`Buffers`]).

#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

pub mod api;
mod apply;
#[cfg(coulter_canary)]
pub mod canary;
#[cfg(not(coulter_canary))]
mod canary;
mod checkpoint;
mod chunk;
mod cleaner;
pub mod config;
pub mod create;
mod defrag;
mod flush;
mod group;
pub mod grow;
mod holes;
#[cfg(feature = "verify")]
mod invariants;
mod ios;
mod loads;
mod log;
pub mod many;
mod map;
pub mod named;
pub mod occupancy;
mod pacing;
pub mod placement;
pub mod policy;
pub mod prepare;
mod reads;
pub mod reclaim;
mod recovery;
mod references;
mod requests;
mod restraint;
mod segments;
pub mod statistics;
mod sweeper;
pub mod tuning;
pub mod units;
mod victims;
mod writes;

pub use api::{
    BufferRef, Buffers, Busy, Change, ChangeKind, Command, Failure, Io, IoId, IoResult, OpenError,
    PageRef, Phase, RECORD_BLOCKS, RecordRef, Request, RequestId, Response, Target,
};
pub use config::Config;
pub use map::MapStatistics;
pub use prepare::Prepare;
pub use statistics::Statistics;

use alloc::collections::VecDeque;
use checkpoint::Checkpointer;
use cleaner::Cleaner;
use coulter_format::superblock::{Geometry, Superblock};
use coulter_format::{Lba, StoreId, record};
use defrag::Defrag;
use flush::Flusher;
use group::Group;
use ios::Ios;
use loads::Loads;
use log::Log;
use map::{EntryWidth, Map};
use pacing::Pacing;
use placement::{Placement, Placer};
use policy::VictimPolicy;
use prepare::Preparer;
use recovery::Recovery;
use requests::{Requests, Wants};
use restraint::Restraint;
use segments::Segments;
use sweeper::Sweeper;
use units::{Origin, Stream};

/// The engine. See the crate's documentation for how to drive it.
pub struct Engine {
    config: Config,
    phase: Phase,
    /// Set once something could not be written: the error number.
    poisoned: Option<i32>,
    device_size: u64,
    superblock: Superblock,
    segments: Segments,
    map: Map,
    log: Log,
    ios: Ios,
    requests: Requests,
    responses: VecDeque<Response>,
    loads: Loads,
    flusher: Flusher,
    sweeper: Sweeper,
    cleaner: Cleaner,
    preparer: Preparer,
    checkpointer: Checkpointer,
    pacing: Pacing,
    /// When the cleaner works.
    cleaning: tuning::CleaningMode,
    restraint: Restraint,
    defrag: Defrag,
    placer: Placer,
    /// The group of user records being filled.
    group: Group,
    /// A group that has completed; kept for its memory.
    completed: alloc::vec::Vec<RecordRef>,
    /// Relocations of the record in hand that came too late; kept for its memory.
    late: alloc::vec::Vec<Lba>,
    /// Checksums of the blocks in hand: of a write being staged, of a read being gathered.
    checksums: [u32; record::ATOMIC_BLOCKS_MAX],
    /// Extents of the write of several ranges in hand; kept for its memory.
    extents: alloc::vec::Vec<record::Extent>,
    /// Something changed without a command: another pump may find something to do.
    restless: bool,
    /// A discard is only partly logged.
    discard_under_way: bool,
    recovery: Option<Recovery>,
    statistics: Statistics,
}

impl Engine {
    /// Begins to open the store on a device of `device_size` blocks.
    ///
    /// # Panics
    /// If `config` is below its own minima.
    pub fn open(config: Config, device_size: u64) -> Engine {
        assert!(config.record_count >= Config::RECORD_COUNT_MIN, "too few record buffers");
        assert!(config.page_count >= Config::PAGE_COUNT_MIN, "too few page buffers");
        assert!(config.batch_depth >= 1, "one record must be able to go out");
        let superblock = create::placeholder();
        let segments = Segments::new(superblock.geometry);
        let width = EntryWidth::MAX;
        let map = Map::new(1, u64::from(u16::MAX) * 8, width, superblock.budget);
        Engine {
            phase: Phase::Opening,
            poisoned: None,
            device_size,
            segments,
            map: map.expect("the placeholder is small"),
            log: Log::new(config.record_count, config.reclaim),
            ios: Ios::new(config.request_count as usize * 2),
            requests: Requests::new(config.request_count),
            responses: VecDeque::with_capacity(config.request_count as usize),
            loads: Loads::new(config.page_count),
            flusher: Flusher::default(),
            sweeper: Sweeper::default(),
            cleaner: Cleaner::default(),
            preparer: Preparer::default(),
            checkpointer: Checkpointer::default(),
            pacing: Pacing::default(),
            cleaning: tuning::CleaningMode::default(),
            restraint: Restraint::default(),
            defrag: Defrag::default(),
            placer: Placer::new(config.placement, 0),
            group: Group::new(),
            completed: alloc::vec::Vec::with_capacity(usize::from(config.record_count)),
            late: alloc::vec::Vec::with_capacity(record::PAYLOAD_BLOCKS_MAX),
            checksums: [0; record::ATOMIC_BLOCKS_MAX],
            extents: alloc::vec::Vec::with_capacity(many::EXTENTS_MAX),
            restless: false,
            discard_under_way: false,
            recovery: Some(Recovery::new(config.record_count)),
            statistics: Statistics::default(),
            superblock,
            config,
        }
    }

    /// Takes a request. `Busy` is no failure: offer it again after the next completion.
    ///
    /// # Panics
    /// If the range is empty or ends beyond 2^63, or a write exceeds 256 blocks, or the ranges of a
    /// `WriteMany` do not pass [`many::check`]: the driver checks.
    pub fn handle_request(
        &mut self,
        id: RequestId,
        request: Request<'_>,
        buffers: &mut impl Buffers,
    ) -> Result<(), Busy> {
        let readable = matches!(
            self.phase,
            Phase::Recovered | Phase::Running | Phase::ShuttingDown | Phase::Closed
        );
        if !readable {
            return Err(Busy);
        }
        let taken = match request {
            Request::Read { lba, count, buffer } => {
                assert_range(lba, u64::from(count));
                self.accept_read(id, lba, count, buffer, Wants::Data, buffers)
            }
            Request::Presence { lba, count, buffer } => {
                assert_range(lba, u64::from(count));
                self.accept_read(id, lba, count, buffer, Wants::Presence, buffers)
            }
            Request::Write { .. } | Request::WriteMany { .. } | Request::Discard { .. }
                if self.refuses_writes() =>
            {
                self.respond(id, Err(Failure::ReadOnly));
                Ok(())
            }
            Request::Write { lba, count, buffer, fua } => {
                assert_range(lba, u64::from(count));
                assert!(count as usize <= record::ATOMIC_BLOCKS_MAX);
                self.accept_write(id, lba, count, buffer, fua, buffers)
            }
            Request::WriteMany { changes, buffer, fua } => {
                self.accept_many(id, changes, buffer, fua, buffers)
            }
            Request::Discard { lba, count, fua } => {
                assert_range(lba, count);
                self.accept_discard(id, lba, count, fua, buffers)
            }
            Request::Flush => self.accept_flush(id),
            Request::Shutdown => {
                self.accept_shutdown(id);
                Ok(())
            }
        };
        self.statistics.busy += u64::from(taken.is_err());
        taken
    }

    /// Takes the end of a device command.
    ///
    /// # Panics
    /// If the command is not out: a driver completes each once.
    pub fn handle_completion(&mut self, id: IoId, result: IoResult, buffers: &mut impl Buffers) {
        let purpose = self.ios.complete(id);
        match purpose {
            ios::Purpose::Read(part) => self.read_completed(part, id, result, buffers),
            ios::Purpose::Record(record) => self.record_completed(record, result),
            ios::Purpose::Load(load) => self.load_completed(load, result, buffers),
            ios::Purpose::Flush => self.flush_completed(result),
            ios::Purpose::Checkpoint => self.checkpoint_io_completed(result, buffers),
            ios::Purpose::Trim(segment) => {
                self.segments.trimmed(segment);
                self.try_for_space();
            }
            ios::Purpose::Prepare(segment) => self.prepared(segment, result),
            ios::Purpose::Clean(slot) => self.clean_read_completed(slot, result, buffers),
            ios::Purpose::Defrag(segment) => self.piece_read(segment, result),
            ios::Purpose::Recover(job) => self.recovery_completed(job, result, buffers),
        }
        self.ios.recycle(id);
    }

    /// The next device command, if there is one.
    pub fn poll_io(&mut self, buffers: &mut impl Buffers) -> Option<Io> {
        // A step without a command of its own may have made room for another.
        for _ in 0..PUMPS_MAX {
            if !self.ios.is_empty() {
                break;
            }
            self.restless = false;
            self.pump(buffers);
            if !self.restless {
                break;
            }
        }
        self.ios.take()
    }

    /// The next response, if there is one. Responses come in the order in which requests ended.
    pub fn poll_response(&mut self) -> Option<Response> {
        self.responses.pop_front()
    }

    /// What the engine is doing about its store.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether writes are refused: opened so, or after a failure (then with the error number).
    pub fn read_only(&self) -> Option<i32> {
        self.poisoned.or(self.config.read_only.then_some(0))
    }

    /// Changes how the cleaner chooses its victims, from the next one on.
    pub fn set_victims(&mut self, victims: VictimPolicy) {
        self.config.victims = victims;
    }

    /// How the cleaner chooses its victims.
    pub fn victims(&self) -> VictimPolicy {
        self.config.victims
    }

    /// Which blocks share segments.
    pub fn placement(&self) -> Placement {
        self.placer.placement()
    }

    /// Changes which blocks share segments, from the next ones on. What lies where it lies stays.
    pub fn set_placement(&mut self, placement: Placement) {
        self.placer.set_placement(placement);
    }

    /// Sizes and places. Meaningless while opening.
    pub fn geometry(&self) -> &Geometry {
        &self.superblock.geometry
    }

    /// The newest superblock. Meaningless while opening.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Whether a block is mapped; what is not in memory counts as mapped.
    pub fn is_mapped(&mut self, lba: Lba) -> bool {
        self.map.is_mapped(lba)
    }

    /// Requests and device commands under way. Zero means that nothing will happen by itself.
    pub fn activity(&self) -> usize {
        self.requests.count() + self.ios.out_count()
    }

    /// Blocks that did not have their checksum when they were read.
    pub fn corrupt_blocks(&self) -> u64 {
        self.statistics.corrupt_blocks
    }

    /// Counters as of now.
    pub fn statistics(&self) -> Statistics {
        let mut statistics = self.statistics;
        statistics.map = self.map.statistics;
        statistics.map_bytes = self.map.size();
        statistics.map_bytes_limit = self.map_size();
        let (recovery_chunks, recovery_chunks_max) = self.map.recovery_chunks();
        statistics.recovery_chunks = recovery_chunks as u64;
        statistics.recovery_chunks_max = recovery_chunks_max as u64;
        statistics.segment_count = u64::from(self.superblock.geometry.segment_count);
        statistics.segment_size = u64::from(self.superblock.geometry.segment_size);
        statistics.segments_empty = u64::from(self.segments.empty_count());
        statistics.segments_low = u64::from(self.pacing.marks().low);
        statistics.segments_high = u64::from(self.pacing.marks().high);
        statistics.valid_blocks =
            self.segments.iter().map(|(_, segment)| u64::from(segment.valid)).sum();
        statistics.reference_count = self.checkpointer.references.count() as u64;
        statistics.segments_patched =
            self.segments.iter().filter(|(_, segment)| segment.patched).count() as u64;
        statistics.run_count = self.checkpointer.run_count() as u64;
        statistics.segment_life = self.placer.life();
        statistics.applied_sequence = self.log.applied;
        statistics.durable_sequence = self.log.durable;
        statistics
    }

    fn map_size(&self) -> u64 {
        self.config.map_size.unwrap_or(self.superblock.budget.map_size)
    }

    fn store(&self) -> StoreId {
        self.superblock.store
    }

    fn refuses_writes(&self) -> bool {
        self.config.read_only
            || self.poisoned.is_some()
            || matches!(self.phase, Phase::ShuttingDown | Phase::Closed)
    }

    fn respond(&mut self, id: RequestId, result: Result<(), Failure>) {
        self.responses.push_back(Response { id, result });
    }

    /// Lets every part do what it can. Runs until nothing is left to be started.
    fn pump(&mut self, buffers: &mut impl Buffers) {
        if self.recovery.is_some() {
            self.pump_recovery(buffers);
            if self.recovery.is_some() {
                return;
            }
        }
        self.apply_completed(buffers);
        self.retry_starved(buffers);
        if self.segments.miscounted() {
            self.poison(ERRNO_DAMAGED);
        }
        if let Some(errno) = self.poisoned {
            self.give_up_shutdown(errno);
        } else if !self.config.read_only && self.phase != Phase::Closed {
            self.pump_checkpoint(buffers);
            self.pump_sweep(buffers);
            // What the host has waiting goes before what the cleaner copies, and what it then may.
            self.seal_ready(buffers);
            self.pump_cleaner(buffers);
            self.seal_ready(buffers);
            let most = self.cleaning_reads_max();
            self.ios.limit_background(most);
            self.pump_prepare();
        }
        self.pump_flush();
        self.apply_completed(buffers);
        self.statistics.map_bytes_peak = self.statistics.map_bytes_peak.max(self.map.size());
    }

    /// Nothing more will be written: a write or flush failed with this error number.
    fn poison(&mut self, errno: i32) {
        if self.poisoned.is_some() {
            return;
        }
        self.poisoned = Some(errno);
        // What is being filled will never be sent.
        self.group.end();
        for stream in Stream::ALL {
            if let Some(record) = self.log.take_filling(stream) {
                self.give_up(record, errno);
            }
        }
    }

    /// Sends off partly filled records that should not wait.
    fn seal_ready(&mut self, buffers: &mut impl Buffers) {
        let (blocks, largest) = self.filled_by_user();
        if largest.is_none() || !self.may_go(blocks) {
            return;
        }
        let in_flight = self.log.in_flight(Origin::User);
        // While the cleaner hands out room bit by bit, records fill before they go.
        let depth = if self.pacing.is_scarce() { 1 } else { self.config.batch_depth };
        let full = largest >= Some(RECORD_FULL);
        if in_flight < depth || (full && in_flight < self.config.batch_depth) {
            self.seal_group(buffers);
        }
    }

    /// Whether there is room for the user records being filled.
    fn group_may_go(&self) -> bool {
        self.may_go(self.filled_by_user().0)
    }

    /// Blocks that the user records being filled append, and blocks in the largest of them if there
    /// is one.
    fn filled_by_user(&self) -> (u64, Option<u32>) {
        let filled = Stream::USER.iter().filter_map(|s| self.log.filled_by(*s, Origin::User));
        let records = filled.map(|record| self.log.record(record));
        records.fold((0, None), |(sum, largest), record| {
            (sum + record.appended_blocks(), largest.max(Some(record.payload)))
        })
    }

    /// Whether so many blocks of the host may go to the device; a shutdown does not wait for the
    /// cleaner.
    fn may_go(&self, blocks: u64) -> bool {
        self.phase != Phase::Running || self.pacing.covers(blocks)
    }

    /// Sends off the user records being filled, as one group.
    fn seal_group(&mut self, buffers: &mut impl Buffers) {
        let mut streams = [Stream::User; Stream::USER.len()];
        let mut count = 0;
        for stream in self.log.streams_filled_by(Origin::User) {
            streams[count] = stream;
            count += 1;
        }
        let (mut blocks, mut appended) = (0, 0);
        for (index, stream) in streams[..count].iter().enumerate() {
            let record = self.log.filling(*stream).expect("it was being filled");
            blocks += u64::from(self.log.record(record).payload);
            appended += self.log.record(record).appended_blocks();
            self.seal_record(*stream, index + 1 < count, buffers);
        }
        if count > 0 {
            self.pacing.spend(appended);
            self.placer.group_sealed(blocks);
        }
        self.group.end();
    }

    /// Sends off the record that a stream is filling, with its group if it belongs to one.
    fn seal(&mut self, stream: Stream, buffers: &mut impl Buffers) {
        if self.log.filled_by(stream, Origin::User).is_some() {
            self.seal_group(buffers);
        } else if self.log.filling(stream).is_some() {
            self.seal_record(stream, false, buffers);
        }
    }

    /// Sends off what the cleaner, or the engine itself, is filling.
    fn seal_all_of(&mut self, origin: Origin, buffers: &mut impl Buffers) {
        for stream in Stream::ALL {
            if self.log.filled_by(stream, origin).is_some() {
                self.seal(stream, buffers);
            }
        }
    }

    /// One command for a record in a row, else one for each row of its blocks.
    fn write_record(&mut self, record: RecordRef) {
        let purpose = ios::Purpose::Record(record);
        let sealed = self.log.record_mut(record);
        let (header, payload, stream) = (sealed.header_pba, sealed.payload, sealed.stream);
        let Some(places) = sealed.places else {
            let source = Target::Record(record);
            let count = 1 + payload;
            self.ios.start(purpose, Command::Write { pba: header, count, source, stream });
            return;
        };
        let mut rows = places.runs().peekable();
        // The header is in a row with what lies at place 0.
        let with_header = rows.next_if(|row| row.place == 0).map_or(0, |row| row.count);
        let first = (header, 0, 1 + with_header);
        let rest = rows.map(|row| (header.plus(1 + row.place), 1 + row.payload, row.count));
        let mut parts = 0;
        for (pba, block, count) in core::iter::once(first).chain(rest) {
            let source = Target::RecordPart { record, block };
            self.ios.start(purpose, Command::Write { pba, count, source, stream });
            parts += 1;
        }
        self.log.record_mut(record).parts = parts;
    }

    fn seal_record(&mut self, stream: Stream, goes_on: bool, buffers: &mut impl Buffers) {
        let store = self.store();
        let record = self.log.seal(&mut self.segments, stream, goes_on, &store, buffers);
        self.write_record(record);
        self.statistics.records += 1;
        self.statistics.long_records += u64::from(self.log.record(record).is_long());
        let (origin, payload) = (self.log.record(record).origin, self.log.record(record).payload);
        // What the cleaner gains is not all the host's: headers and metadata come first.
        if self.log.record(record).places.is_none() {
            let overhead = if origin == Origin::Metadata { 1 + payload } else { 1 };
            self.pacing.pay(overhead.into());
            self.preparer.earn(1 + payload);
        } else {
            self.statistics.hole_blocks += u64::from(1 + payload);
        }
        if origin == Origin::Cleaning {
            self.count_relocations(record);
        }
        *match origin {
            Origin::User => &mut self.statistics.user_header_blocks,
            Origin::Cleaning => &mut self.statistics.cleaning_header_blocks,
            Origin::Metadata => &mut self.statistics.metadata_header_blocks,
        } += 1;
    }

    /// Counts what a record of the cleaner writes again, now that it goes out: it may have gathered for
    /// long.
    fn count_relocations(&mut self, record: RecordRef) {
        let record = self.log.record(record);
        let data = u64::from(record.timed);
        self.statistics.relocated_blocks += data;
        self.statistics.relocated_blocks_by_class[record.stream.class()] += data;
        self.statistics.relocated_metadata_blocks += u64::from(record.payload) - data;
    }
}

/// Blocks from which on a record is full enough not to wait for others to come back while the cleaner hands
/// out room: the header weighs little.
const RECORD_FULL: u32 = record::SHORT_BLOCKS_MAX as u32 / 2;

/// Error number when what the device holds contradicts itself (EUCLEAN).
const ERRNO_DAMAGED: i32 = 117;

/// Pumps in a row at most.
const PUMPS_MAX: usize = 64;

fn assert_range(lba: Lba, count: u64) {
    assert!(count > 0, "a request covers a block at least");
    assert!(lba.0.checked_add(count).is_some_and(|end| end <= coulter_format::address::LBA_LIMIT));
}
