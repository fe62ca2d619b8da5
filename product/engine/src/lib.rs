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
mod atomic;
#[cfg(coulter_canary)]
pub mod canary;
#[cfg(not(coulter_canary))]
mod canary;
mod checkpoint;
mod classes;
mod cleaner;
pub mod config;
mod corrupt;
pub mod create;
pub mod degraded;
pub mod error;
mod flush;
mod group;
pub mod grow;
mod header_parity;
mod holes;
mod index_set;
#[cfg(feature = "verify")]
mod invariants;
mod ios;
mod loads;
mod log;
pub mod many;
mod map;
mod memory;
pub mod named;
pub mod occupancy;
mod pacing;
pub mod placement;
pub mod policy;
pub mod prepare;
pub mod read_cache;
mod reads;
pub mod reclaim;
mod recovery;
mod references;
mod requests;
mod room;
pub mod scrub;
mod seal;
mod segments;
mod shared;
pub mod statistics;
mod sweeper;
pub mod tuning;
pub mod units;
mod views;
mod writes;

pub use api::{
    BufferRef, Buffers, Busy, Change, ChangeKind, Command, Failure, Io, IoId, IoResult, PageRef,
    Phase, RECORD_BLOCKS, RecordRef, Request, RequestId, Response, Target,
};
pub use config::{Config, Prepare};
pub use degraded::{Degradation, Degraded};
pub use error::OpenError;
pub use map::MapStatistics;
pub use statistics::Statistics;

use apply::Applier;
use checkpoint::Checkpointer;
use cleaner::Cleaner;
use coulter_format::{Lba, record};
use flush::Flusher;
use ios::Purpose;
use loads::{Waiter, Woken};
use memory::Apart;
use prepare::Preparer;
use reads::{Asked, Reads};
use recovery::Recovery;
use requests::Wants;
use scrub::Scrubber;
use shared::{ERRNO_DAMAGED, Outcome, Shared};
use sweeper::Sweeper;
use writes::{HostWrite, Writes};

/// The engine. See the crate's documentation for how to drive it.
pub struct Engine {
    shared: Apart<Shared>,
    reads: Reads,
    writes: Writes,
    applier: Applier,
    flusher: Flusher,
    sweeper: Sweeper,
    cleaner: Cleaner,
    preparer: Preparer,
    scrubber: Scrubber,
    checkpointer: Apart<Checkpointer>,
    /// Gone once the store is open.
    recovery: Option<Apart<Recovery>>,
}

impl Engine {
    /// Begins to open the store on a device of `device_size` blocks.
    ///
    /// # Errors
    /// [`OpenError::Memory`], if there is not enough of it.
    ///
    /// # Panics
    /// If `config` is below its own minima.
    pub fn open(config: Config, device_size: u64) -> Result<Engine, OpenError> {
        assert!(config.record_count >= Config::RECORD_COUNT_MIN, "too few record buffers");
        assert!(config.page_count >= Config::PAGE_COUNT_MIN, "too few page buffers");
        assert!(config.batch_depth >= 1, "one record must be able to go out");
        Ok(Engine {
            reads: Reads::new()?,
            writes: Writes::new()?,
            applier: Applier::new(config.record_count)?,
            flusher: Flusher::default(),
            sweeper: Sweeper::default(),
            cleaner: Cleaner::new()?,
            preparer: Preparer::default(),
            scrubber: Scrubber::default(),
            checkpointer: Checkpointer::new(&config)?,
            recovery: Some(Recovery::new(config.record_count)?),
            shared: Shared::new(config, device_size)?,
        })
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
        let shared = &mut self.shared;
        let readable = matches!(
            shared.phase,
            Phase::Recovered | Phase::Running | Phase::ShuttingDown | Phase::Closed
        );
        if !readable {
            return Err(Busy);
        }
        let taken = match request {
            Request::Read { lba, count, buffer } => {
                assert_range(lba, u64::from(count));
                self.reads.accept(
                    shared,
                    id,
                    Asked { lba, count, buffer, wants: Wants::Data },
                    buffers,
                )
            }
            Request::Presence { lba, count, buffer } => {
                assert_range(lba, u64::from(count));
                self.reads.accept(
                    shared,
                    id,
                    Asked { lba, count, buffer, wants: Wants::Presence },
                    buffers,
                )
            }
            Request::Write { .. } | Request::WriteMany { .. } | Request::Discard { .. }
                if shared.refuses_writes() =>
            {
                shared.requests.respond(id, Err(Failure::ReadOnly));
                Ok(())
            }
            Request::Write { lba, count, buffer, fua } => {
                assert_range(lba, u64::from(count));
                assert!(count as usize <= record::ATOMIC_BLOCKS_MAX, "a write is in one record");
                self.writes.accept_write(shared, id, HostWrite { lba, count, buffer, fua }, buffers)
            }
            Request::WriteMany { changes, buffer, fua } => {
                self.writes.accept_many(shared, id, changes, buffer, fua, buffers)
            }
            Request::Discard { lba, count, fua } => {
                assert_range(lba, count);
                self.writes.accept_discard(shared, id, lba, count, fua, buffers)
            }
            Request::Flush => self.flusher.accept(shared, id),
            Request::Shutdown => {
                self.checkpointer.accept_shutdown(shared, id);
                Ok(())
            }
        };
        shared.statistics.busy += u64::from(taken.is_err());
        taken
    }

    /// Takes the end of a device command.
    ///
    /// # Panics
    /// If the command is not out: a driver completes each once.
    pub fn handle_completion(&mut self, id: IoId, result: IoResult, buffers: &mut impl Buffers) {
        let shared = &mut self.shared;
        match shared.ios.complete(id) {
            Purpose::Read(part) => self.reads.completed(shared, part, id, result, buffers),
            Purpose::Record(record) => Applier::record_completed(shared, record, result),
            Purpose::Pad { record, at, count } => {
                shared.pads_read(record, at.into(), count.into(), result, buffers);
            }
            Purpose::Load(load) => {
                shared.load_completed(load, result, buffers);
                self.wake(buffers);
            }
            Purpose::Flush => self.flusher.completed(shared, result),
            Purpose::Checkpoint => self.checkpointer.io_completed(shared, result, buffers),
            Purpose::Trim(segment) => {
                shared.segments.trimmed(segment);
                shared.try_for_space();
            }
            Purpose::Prepare(segment) => self.preparer.completed(shared, segment, result),
            Purpose::Clean(slot) => self.cleaner.read_completed(shared, slot, result, buffers),
            Purpose::Defrag(segment) => self.cleaner.piece_read(shared, segment, result),
            Purpose::Scrub(piece) => self.scrubber.completed(shared, piece, result, buffers),
            Purpose::Recover(job) => {
                if let Some(recovery) = &mut self.recovery {
                    recovery.completed(job, result);
                }
            }
        }
        self.shared.ios.recycle(id);
    }

    /// The next device command, if there is one.
    pub fn poll_io(&mut self, buffers: &mut impl Buffers) -> Option<Io> {
        // A step without a command of its own may have made room for another.
        for _ in 0..PUMPS_MAX {
            if !self.shared.ios.is_empty() || self.pump(buffers) == Outcome::Rests {
                break;
            }
        }
        self.shared.ios.take()
    }

    /// The next response, if there is one. Responses come in the order in which requests ended.
    pub fn poll_response(&mut self) -> Option<Response> {
        self.shared.requests.take_response()
    }

    /// Lets every part do what it can.
    fn pump(&mut self, buffers: &mut impl Buffers) -> Outcome {
        if !self.is_recovered(buffers) {
            return Outcome::Rests;
        }
        self.applier.step(&mut self.shared, buffers);
        self.shared.loads.wake_starved();
        self.wake(buffers);
        let shared = &mut self.shared;
        if shared.segments.miscounted() {
            shared.poison(ERRNO_DAMAGED);
        }
        let mut outcome = Outcome::Rests;
        if let Some(errno) = shared.poisoned {
            shared.give_up_shutdown(errno);
        } else if !shared.config.read_only && shared.phase != Phase::Closed {
            self.checkpointer.step(shared, buffers);
            outcome = self.sweeper.step(shared, buffers);
            // What the host has waiting goes before what the cleaner copies, and what it then may.
            shared.seal_ready(buffers);
            outcome = outcome.or(self.cleaner.step(shared, buffers));
            shared.seal_ready(buffers);
            let reads_max = self.cleaner.reads_max(shared);
            shared.ios.limit_background(reads_max);
            self.preparer.step(shared, outcome);
        }
        outcome = outcome.or(self.scrubber.step(shared, buffers));
        self.flusher.step(shared);
        self.applier.step(shared, buffers);
        shared.write_header_parities(buffers);
        shared.statistics.map_bytes_peak = shared.statistics.map_bytes_peak.max(shared.map.size());
        outcome
    }

    /// Goes on with opening, if that is not done.
    fn is_recovered(&mut self, buffers: &mut impl Buffers) -> bool {
        if let Some(recovery) = &mut self.recovery {
            let Some(found) = recovery.step(&mut self.shared, buffers) else { return false };
            self.checkpointer.announce(found);
            self.recovery = None;
        }
        true
    }

    /// Those go on who waited for a page, or to try again.
    fn wake(&mut self, buffers: &mut impl Buffers) {
        let mut woken = self.shared.loads.take_woken();
        for Woken { waiter, failed } in woken.drain(..) {
            match (waiter, failed) {
                (Waiter::Read(slot), None) => self.reads.go_on(&mut self.shared, slot, buffers),
                (Waiter::Read(slot), Some(errno)) => Reads::give_up(&mut self.shared, slot, errno),
                (Waiter::Discard(slot), _) => {
                    self.writes.continue_discard(&mut self.shared, slot, buffers);
                }
                (Waiter::Cleaner, _) => self.cleaner.resume(),
                (Waiter::Scrubber, failed) => self.scrubber.resume(failed),
                (Waiter::Nobody, _) => {}
            }
        }
        self.shared.loads.give_back_woken(woken);
    }
}

/// Pumps in a row at most.
const PUMPS_MAX: usize = 64;

fn assert_range(lba: Lba, count: u64) {
    assert!(count > 0, "a request covers a block at least");
    assert!(lba.0.checked_add(count).is_some_and(|end| end <= coulter_format::address::LBA_LIMIT));
}
