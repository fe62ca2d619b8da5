//! What all parts work on, and the few things that they ask of each other.
//!
//! A part owns its own state, gets this one lent for a step, and returns an [`Outcome`]. No part knows
//! another: what one wants of another it leaves in [`Signals`], and the engine lets each take its turn.
//!
//! # Invariants
//! - After a failed write or flush nothing is written any more: see [`Shared::poison`].

use crate::api::{Failure, Phase, RecordRef};
use crate::checkpoint::Lists;
use crate::config::Config;
use crate::corrupt::CorruptBlocks;
use crate::create::PLACEHOLDER;
use crate::degraded::{Degradation, Degraded};
use crate::error::OpenError;
use crate::group::Group;
use crate::header_parity::HeaderParities;
use crate::ios::{EXPECTED_MAX, Ios};
use crate::loads::Loads;
use crate::log::{Log, RecordState};
use crate::map::{EntryWidth, Map};
use crate::memory::{Apart, NoMemory};
use crate::pacing::Pacing;
use crate::placement::Placer;
use crate::read_cache::ReadCache;
use crate::requests::{Requests, Work};
use crate::room::Promises;
use crate::segments::Segments;
use crate::statistics::Statistics;
use crate::units::{Sequence, Stream};
use alloc::sync::Arc;
use core::ops::Range;
use coulter_format::StoreId;
use coulter_format::checksum::Kind;
use coulter_format::superblock::Superblock;

/// Error number when what the device holds contradicts itself (EUCLEAN).
pub(crate) const ERRNO_DAMAGED: i32 = 117;

/// What a step of a part came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Outcome {
    /// Nothing more, until a request or a completion comes.
    Rests,
    /// Something has changed without a command: another round may find something to do.
    GoesOn,
}

impl Outcome {
    /// `GoesOn` if something has changed.
    pub(crate) fn of_change(has_changed: bool) -> Outcome {
        if has_changed { Outcome::GoesOn } else { Outcome::Rests }
    }

    /// Of two parts.
    pub(crate) fn or(self, other: Outcome) -> Outcome {
        if self == Outcome::Rests { other } else { self }
    }
}

/// How far a checkpoint is, for those who must heed it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Checkpointing {
    /// None is under way.
    #[default]
    No,
    /// One waits for what is being relocated: nothing of that may begin.
    Quiesces,
    /// One is being written.
    Writes,
}

/// What parts ask of each other.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// A checkpoint must be written even if nothing else calls for it.
    pub(crate) checkpoint: bool,
    /// How far the checkpoint under way is.
    pub(crate) checkpointing: Checkpointing,
    /// It has yet to take images of root pages, of what they said at the cut: no leaf page may move.
    pub(crate) roots_are_cut: bool,
    /// A load or a write found no memory: the sweep must make some.
    pub(crate) memory: bool,
    /// What the host wants to write would be more than recovery has memory for. However little that
    /// is, sweeping and a checkpoint must make room for it.
    pub(crate) recovery_memory: bool,
    /// A write may be one too many unless what is unsettled is looked at: see `room`.
    pub(crate) settling: bool,
    /// Leaves to be swept before the next checkpoint.
    pub(crate) sweep_quota: usize,
    /// The oldest run must die before another one can be written.
    pub(crate) sweep_hurry: bool,
    /// The device had no space when it was last asked for some.
    pub(crate) lacks_space: bool,
}

impl Signals {
    pub(crate) fn checkpoint_is_active(&self) -> bool {
        self.checkpointing != Checkpointing::No
    }

    /// Whether nothing may begin to be relocated.
    pub(crate) fn is_quiescing(&self) -> bool {
        self.checkpointing == Checkpointing::Quiesces || self.roots_are_cut
    }
}

/// The state that is everybody's.
pub(crate) struct Shared {
    pub(crate) config: Config,
    /// What is damaged beyond repair, if anything was when it was opened.
    pub(crate) degradation: Option<Degradation>,
    pub(crate) phase: Phase,
    /// Set once something could not be written: the error number.
    pub(crate) poisoned: Option<i32>,
    /// Blocks of the device.
    pub(crate) device_size: u64,
    pub(crate) superblock: Superblock,
    pub(crate) segments: Apart<Segments>,
    pub(crate) map: Apart<Map>,
    pub(crate) log: Apart<Log>,
    /// The group of user records being filled.
    pub(crate) group: Group,
    pub(crate) ios: Ios,
    pub(crate) requests: Apart<Requests>,
    pub(crate) loads: Loads,
    /// Of the newest checkpoint.
    pub(crate) lists: Apart<Lists>,
    /// Parity of headers that the next one will refer to.
    pub(crate) header_parities: Apart<HeaderParities>,
    pub(crate) pacing: Pacing,
    pub(crate) placer: Apart<Placer>,
    pub(crate) signals: Signals,
    /// What was promised to writes of a sparse store.
    pub(crate) promises: Promises,
    /// Where clients look up blocks that they read themselves.
    pub(crate) cache: Option<Arc<ReadCache>>,
    pub(crate) statistics: Apart<Statistics>,
    /// Blocks found damaged so far.
    corrupt: CorruptBlocks,
}

// Parts of a store of which nothing is known yet. Not inline: each lies on the stack before it lies apart, and
// together they are too much for a kernel's.

#[inline(never)]
fn first_segments() -> Result<Apart<Segments>, NoMemory> {
    Apart::new(Segments::new(PLACEHOLDER.geometry)?)
}

#[inline(never)]
fn first_statistics() -> Result<Apart<Statistics>, NoMemory> {
    Apart::new(Statistics::default())
}

#[inline(never)]
fn first_lists() -> Result<Apart<Lists>, NoMemory> {
    Apart::new(Lists::default())
}

#[inline(never)]
fn first_map() -> Result<Apart<Map>, NoMemory> {
    let (size, width) = (u64::from(u16::MAX) * 8, EntryWidth::MAX);
    let map = Map::new(&PLACEHOLDER.geometry, size, width, PLACEHOLDER.budget)?;
    Apart::new(map.expect("the placeholder is small"))
}

#[inline(never)]
fn first_log(config: &Config) -> Result<Apart<Log>, NoMemory> {
    Apart::new(Log::new(config.record_count, config.reclaim)?)
}

#[inline(never)]
fn first_requests(config: &Config) -> Result<Apart<Requests>, NoMemory> {
    Apart::new(Requests::new(config.request_count)?)
}

impl Shared {
    /// Of a store of which nothing is known yet.
    // Not inlined: its locals would enlarge the caller's stack frame.
    #[inline(never)]
    pub(crate) fn new(config: Config, device_size: u64) -> Result<Apart<Shared>, NoMemory> {
        // A recovery has as many reads out as there are record buffers, and the superblocks. Blocks of a range
        // that is defragmented may lie each by itself.
        let io_count = (config.request_count as usize * 2)
            .max(usize::from(config.record_count) + 16)
            + EXPECTED_MAX;
        Apart::new(Shared {
            phase: Phase::Opening,
            degradation: None,
            poisoned: None,
            device_size,
            segments: first_segments()?,
            map: first_map()?,
            log: first_log(&config)?,
            group: Group::new()?,
            ios: Ios::new(io_count)?,
            requests: first_requests(&config)?,
            loads: Loads::new(config.page_count)?,
            lists: first_lists()?,
            header_parities: Apart::new(HeaderParities::new()?)?,
            pacing: Pacing::default(),
            placer: Apart::new(Placer::new(config.placement, 0))?,
            signals: Signals::default(),
            promises: Promises::new()?,
            cache: None,
            statistics: first_statistics()?,
            corrupt: CorruptBlocks::new()?,
            superblock: PLACEHOLDER,
            config,
        })
    }

    /// Bytes that the map may occupy.
    pub(crate) fn map_size(&self) -> u64 {
        self.config.map_size.unwrap_or(self.superblock.budget.map_size)
    }

    /// A block does not match its checksum, or is known to be lost.
    pub(crate) fn note_corrupt(&mut self, kind: Kind, key: u64) {
        self.statistics.corrupt_blocks += u64::from(self.corrupt.note(kind, key));
    }

    pub(crate) fn store(&self) -> StoreId {
        self.superblock.store
    }

    /// Something is damaged beyond repair. The opening goes on, if it was asked to; without writing, unless that is
    /// safe.
    pub(crate) fn degrade(&mut self, cause: OpenError, may_write: bool) -> Result<(), OpenError> {
        if self.config.degraded == Degraded::Refused {
            return Err(cause);
        }
        let degradation = self.degradation.get_or_insert_with(|| Degradation::new(cause));
        degradation.causes += 1;
        degradation.may_write &= may_write;
        if !degradation.may_write
            || self.config.read_only
            || self.config.degraded == Degraded::ReadOnly
        {
            self.refuse_to_write();
        }
        Ok(())
    }

    /// These addresses are in doubt from now on.
    pub(crate) fn cast_doubt(&mut self, range: Range<u64>) -> Result<(), NoMemory> {
        let now = self.log.now();
        self.map.cast_doubt(&mut self.segments, range, now)
    }

    /// What is damaged makes writing unsafe: what counts where is not kept any more.
    pub(crate) fn refuse_to_write(&mut self) {
        self.config.read_only = true;
        self.segments.give_up_counting();
    }

    pub(crate) fn refuses_writes(&self) -> bool {
        self.config.read_only
            || self.poisoned.is_some()
            || matches!(self.phase, Phase::ShuttingDown | Phase::Closed)
    }

    /// Nothing more will be written: a write or flush failed with this error number.
    pub(crate) fn poison(&mut self, errno: i32) {
        assert!(errno > 0, "a failure has a reason");
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

    /// The record will never take effect.
    pub(crate) fn give_up(&mut self, record_ref: RecordRef, errno: i32) {
        let record = self.log.record_mut(record_ref);
        assert!(record.state != RecordState::Idle, "what is given up was begun");
        let requests = core::mem::take(&mut record.requests);
        let (reserved, promised) = (record.reserved, record.take_promises());
        self.map.unreserve(reserved);
        self.redeem(promised);
        for slot in requests {
            self.requests.fail(slot, Failure::Device(errno));
            self.part_done(slot, 0);
        }
        self.log.retire(&mut self.segments, record_ref);
    }

    /// A record of the request was applied.
    pub(crate) fn part_done(&mut self, slot: u32, sequence: Sequence) {
        let (done, fua) = match &mut self.requests.slot(slot).work {
            Work::Write { parts, fua } => {
                assert!(*parts > 0, "a part of a write is done once");
                *parts -= 1;
                (*parts == 0, *fua)
            }
            Work::Discard { parts, next, end, fua } => {
                assert!(*parts > 0, "a part of a discard is done once");
                *parts -= 1;
                (*parts == 0 && next == end, *fua)
            }
            other => panic!("{other:?} has no records"),
        };
        if done && fua && self.poisoned.is_none() {
            self.requests.wait_for(slot, sequence);
        } else if done {
            self.requests.finish(slot);
        }
    }

    /// All up to this record is durable: who waited for that is answered.
    pub(crate) fn durable_up_to(&mut self, sequence: Sequence) {
        assert!(sequence <= self.log.applied, "what is durable has taken effect");
        self.log.durable = self.log.durable.max(sequence);
        assert!(self.log.durable >= sequence, "what was durable stays so");
        self.statistics.flush_requests += self.requests.durable_up_to(self.log.durable);
    }

    /// Whoever waits for the last checkpoint waits in vain.
    pub(crate) fn give_up_shutdown(&mut self, errno: i32) {
        if let Some(id) = self.requests.shutdown.take() {
            assert!(self.refuses_writes(), "nothing is written any more");
            self.phase = Phase::Closed;
            self.requests.respond(id, Err(Failure::Device(errno)));
        }
    }
}
