//! Clients that look up where a block lies and read the device themselves, beside the engine.
//!
//! Every read of a plan is tried so too. It takes its time, sometimes that of hundreds of device commands:
//! long enough for segments to be cleaned, trimmed and opened again under it. What it finds must be what
//! was looked up, unchanged, and no older than what was answered before.

use super::{World, number_of, violation};
use crate::oracle::{Floor, Violation};
use coulter_engine::read_cache::{Place, READ_BLOCKS_MAX, ReadCache, SLOT_SIZE};
use coulter_format::checksum::{self, Kind};
use coulter_format::{BLOCK_SIZE, Lba};
use std::sync::Arc;

/// Device commands that a long read takes, and how many reads there are to a long one.
const LONG: u64 = 700;
const LONG_ONE_IN: u64 = 7;

/// Device commands that the others take at most.
const SHORT: u64 = 12;

/// Those that are under way.
#[derive(Default)]
pub(super) struct Clients {
    cache: Option<Arc<ReadCache>>,
    reads: Vec<Read>,
    begun: u64,
}

struct Read {
    /// As the plan names it.
    lba: u64,
    place: Place,
    checksums: Vec<u32>,
    floors: Vec<Floor>,
    /// The number of commands at which it looks at the device.
    due: u64,
}

impl World {
    /// Clients may read the store that was opened.
    pub(super) fn admit_clients(&mut self) {
        let geometry = *self.engine().geometry();
        let slots = (geometry.volume_size / 2).clamp(1, 512);
        let cache = ReadCache::new(
            slots * SLOT_SIZE,
            geometry.volume_size,
            geometry.first_segment,
            geometry.segment_blocks,
            geometry.segment_count,
        );
        self.clients = Clients { cache: cache.map(Arc::new), ..Clients::default() };
        if let Some(cache) = self.clients.cache.clone() {
            self.engine().share(cache);
        }
    }

    /// The process ends, and its clients with it.
    pub(super) fn dismiss_clients(&mut self) {
        self.clients = Clients::default();
    }

    /// A client reads, if it finds where.
    pub(super) fn try_client_read(&mut self, lba: u64, count: u64) {
        let Some(cache) = &self.clients.cache else { return };
        let mut checksums = vec![0; (count as usize).min(READ_BLOCKS_MAX)];
        let Ok(place) = cache.begin_read(Lba(self.shape.place(lba)), &mut checksums) else {
            return;
        };
        self.clients.begun += 1;
        let number = self.clients.begun;
        let is_long = number.is_multiple_of(LONG_ONE_IN);
        let takes = if is_long { LONG + number % SHORT } else { 1 + number * 5 % SHORT };
        let end = lba + checksums.len() as u64;
        let floors = (lba..end).map(|lba| self.oracle.floor(lba)).collect();
        let due = self.outcome.commands + takes;
        self.outcome.client_reads += 1;
        self.clients.reads.push(Read { lba, place, checksums, floors, due });
    }

    /// Reads end whose time has come; all of them if nothing else is to happen. Whether there were any.
    pub(super) fn end_client_reads(&mut self, all: bool) -> Result<bool, Violation> {
        let now = self.outcome.commands;
        let is_due = |read: &mut Read| all || read.due <= now;
        let due: Vec<Read> = self.clients.reads.extract_if(.., is_due).collect();
        let any = !due.is_empty();
        for read in due {
            self.end_client_read(&read)?;
        }
        Ok(any)
    }

    fn end_client_read(&mut self, read: &Read) -> Result<(), Violation> {
        let mut blocks = vec![[0; BLOCK_SIZE]; read.checksums.len()];
        self.device.read(read.place.pba, &mut blocks);
        let cache = self.clients.cache.as_ref().expect("it was asked");
        // Whoever would be woken is about to be asked anyway.
        let _ = cache.end_read(read.place);
        let is_excused = self.tainted || self.forgotten;
        let looked_up = blocks.iter().zip(&read.checksums).zip(&read.floors);
        for (lba, ((block, expected), floor)) in (read.lba..).zip(looked_up) {
            let found = checksum::block(Kind::Data, self.shape.place(lba), block);
            if found != *expected {
                if is_excused {
                    continue;
                }
                return violation(format!("block {lba} changed under a client that read it"));
            }
            let seen = number_of(lba, block)?;
            if !self.oracle.allows(lba, *floor, seen) {
                return violation(format!("a client read block {lba} as {seen}, but {floor:?}"));
            }
        }
        Ok(())
    }
}
