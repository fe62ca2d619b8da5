//! A log-structured file system that cleans by copying: F2FS-like, the host that REDO expects.
//!
//! Blocks are appended to open segments: several for data, written in turns so that all dies work,
//! one for nodes, one for what cleaning copies. When few segments are free the one with the fewest
//! valid blocks is read and appended elsewhere (greedy). A segment that became empty is trimmed and
//! used again only after the next checkpoint, so that the last one never points into it.
//!
//! Departures from F2FS: checkpoints are appended in a ring, not written in place, since REDO takes
//! no overwrites; no threaded logging; cleaning only in the foreground; fsync writes the file's
//! nodes and flushes.
//!
//! Invariant: enough segments are free for cleaning to finish a victim.

use super::queue::Queue;
use super::segments::{Key, Segments};
use super::{HostCounters, HostError, Layout, LogOptions};
use crate::drive::{Blocks, WriteOptions};
use crate::geometry::Geometry;
use crate::units::Ns;
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Open,
    Closed,
    /// Empty, but the last checkpoint may point into it.
    Emptied,
}

#[derive(Clone, Copy, Debug)]
struct Head {
    segment: usize,
    next: u32,
}

/// Pages that one stripe takes before it is the next one's turn.
pub(super) const PAGES_PER_TURN: u32 = 4;

#[derive(Debug)]
pub(super) struct LogFs {
    segments: Segments,
    states: Vec<State>,
    free: VecDeque<usize>,
    /// Data stripes, then nodes, then what is cleaned.
    heads: Vec<Option<Head>>,
    stripes: usize,
    turn: usize,
    blocks_per_turn: u32,
    emptied: Vec<usize>,
}

impl LogFs {
    pub(super) fn new(geometry: &Geometry, options: LogOptions) -> LogFs {
        let segments = Segments::new(geometry, options.shift);
        let stripes = options.stripes.max(1) as usize;
        LogFs {
            states: vec![State::Free; segments.count()],
            free: (0..segments.count()).collect(),
            heads: vec![None; stripes + 2],
            stripes,
            turn: 0,
            blocks_per_turn: PAGES_PER_TURN * geometry.blocks_per_page(),
            emptied: Vec::new(),
            segments,
        }
    }

    fn nodes(&self) -> usize {
        self.stripes
    }

    fn survivors(&self) -> usize {
        self.stripes + 1
    }

    /// Segments that stay free for cleaning.
    fn free_low(&self) -> usize {
        4
    }

    /// The places of the next blocks of a head, at most `wanted` of them, all neighbours.
    fn reserve(
        &mut self,
        queue: &mut Queue<'_>,
        at: &mut Ns,
        head: usize,
        wanted: u32,
    ) -> Result<(u32, u32), HostError> {
        let size = self.segments.blocks_per_segment;
        if self.heads[head].is_none_or(|open| open.next == size) {
            self.open(queue, at, head)?;
        }
        let open = self.heads[head].as_mut().expect("it was just opened");
        let to_turn = self.blocks_per_turn - open.next % self.blocks_per_turn;
        let count = wanted.min(size - open.next).min(to_turn);
        let first = open.segment as u32 * size + open.next;
        open.next += count;
        Ok((first, count))
    }

    fn open(&mut self, queue: &mut Queue<'_>, at: &mut Ns, head: usize) -> Result<(), HostError> {
        if let Some(full) = self.heads[head].take() {
            self.close(full.segment);
        }
        if head != self.survivors() {
            self.make_room(queue, at)?;
        }
        let segment = self.free.pop_front().ok_or(HostError::Full)?;
        self.states[segment] = State::Open;
        self.heads[head] = Some(Head { segment, next: 0 });
        Ok(())
    }

    fn close(&mut self, segment: usize) {
        self.states[segment] = State::Closed;
        self.note_if_empty(segment);
    }

    fn note_if_empty(&mut self, segment: usize) {
        if self.states[segment] == State::Closed && self.segments.valid(segment) == 0 {
            self.states[segment] = State::Emptied;
            self.emptied.push(segment);
        }
    }

    fn make_room(&mut self, queue: &mut Queue<'_>, at: &mut Ns) -> Result<(), HostError> {
        let mut turns = 0;
        while self.free.len() <= self.free_low() {
            // Each turn frees some space, or there is none: a few rounds over all segments settle it.
            turns += 1;
            if turns > 4 * self.segments.count() {
                return Err(HostError::Full);
            }
            let victim = self.victim();
            // A victim may need one segment for its blocks, and the checkpoint's nodes another.
            let may_wait = self.free.len() > 2 && self.emptied.len() < 8 && victim.is_some();
            if self.emptied.is_empty() || may_wait {
                self.clean(queue, at, victim.ok_or(HostError::Full)?)?;
            } else {
                *at = self.checkpoint(queue, *at)?;
            }
        }
        Ok(())
    }

    /// The closed segment with the fewest valid blocks, if any has invalid ones.
    fn victim(&self) -> Option<usize> {
        let closed = (0..self.states.len()).filter(|s| self.states[*s] == State::Closed);
        let victim = closed.min_by_key(|segment| self.segments.valid(*segment))?;
        (self.segments.valid(victim) < self.segments.blocks_per_segment).then_some(victim)
    }

    fn clean(
        &mut self,
        queue: &mut Queue<'_>,
        at: &mut Ns,
        victim: usize,
    ) -> Result<(), HostError> {
        let places = self.segments.valid_places(victim);
        let addresses: Vec<_> = places.iter().map(|place| self.segments.address(*place)).collect();
        *at = queue.read(*at, &addresses)?;
        let owner = |place: &u32| self.segments.owner(*place).expect("it is valid");
        let keys: Vec<_> = places.iter().map(owner).collect();
        self.segments.counters.cleaned_blocks += keys.len() as u64;
        self.segments.counters.segments_reclaimed += 1;
        let survivors = self.survivors();
        *at = self.append(queue, *at, survivors, &keys)?;
        Ok(())
    }

    fn checkpoint(&mut self, queue: &mut Queue<'_>, at: Ns) -> Result<Ns, HostError> {
        let nodes = self.segments.take_dirty_nodes(None);
        // Nodes go behind the survivors: to open a segment for them must not clean again.
        let survivors = self.survivors();
        let mut now = self.append(queue, at, survivors, &nodes)?;
        now = self.segments.checkpoint(queue, now)?;
        for segment in std::mem::take(&mut self.emptied) {
            let first = segment as u32 * self.segments.blocks_per_segment;
            let first = self.segments.address(first);
            let count = self.segments.blocks_per_segment;
            now = queue.trim(now, Blocks { first, count })?;
            self.states[segment] = State::Free;
            self.free.push_back(segment);
        }
        Ok(now)
    }

    /// Appends blocks to a head; for data, to the heads in turns.
    fn append(
        &mut self,
        queue: &mut Queue<'_>,
        at: Ns,
        head: usize,
        keys: &[Key],
    ) -> Result<Ns, HostError> {
        let (mut begin, mut done) = (at, at);
        let mut rest = keys;
        while !rest.is_empty() {
            let head = if head < self.stripes { self.turn } else { head };
            let (first, count) = self.reserve(queue, &mut begin, head, rest.len() as u32)?;
            let (now, later) = rest.split_at(count as usize);
            rest = later;
            let first_address = self.segments.address(first);
            let run = Blocks { first: first_address, count };
            done = done.max(queue.write_run(begin, run, WriteOptions::default())?);
            for (key, place) in now.iter().zip(first..) {
                if let Some(old) = self.segments.put(*key, place) {
                    let segment = self.segments.segment_of(old);
                    self.note_if_empty(segment);
                }
            }
            if (first + count).is_multiple_of(self.blocks_per_turn) {
                self.turn = (self.turn + 1) % self.stripes;
            }
        }
        Ok(done)
    }
}

impl Layout for LogFs {
    fn write(
        &mut self,
        queue: &mut Queue<'_>,
        at: Ns,
        file: u32,
        blocks: &[u32],
        _sync: bool,
    ) -> Result<Ns, HostError> {
        let keys: Vec<_> = blocks.iter().map(|block| Key::data(file, *block)).collect();
        self.append(queue, at, 0, &keys)
    }

    fn commit(&mut self, queue: &mut Queue<'_>, at: Ns, file: u32) -> Result<Ns, HostError> {
        let nodes = self.segments.take_dirty_nodes(Some(file));
        let head = self.nodes();
        let now = self.append(queue, at, head, &nodes)?;
        Ok(queue.flush(now)?)
    }

    fn address(&self, file: u32, block: u32) -> Option<u64> {
        Some(self.segments.address(self.segments.place(Key::data(file, block))?))
    }

    fn delete(&mut self, _queue: &mut Queue<'_>, at: Ns, file: u32) -> Result<Ns, HostError> {
        for place in self.segments.delete(file) {
            let segment = self.segments.segment_of(place);
            self.note_if_empty(segment);
        }
        Ok(at)
    }

    fn counters(&self) -> HostCounters {
        self.segments.counters
    }

    fn capacity(&self) -> u64 {
        let reserve = self.heads.len() + self.free_low() + 8;
        let usable = self.segments.count().saturating_sub(reserve) as u64;
        // Nodes take one block in about a thousand.
        usable * u64::from(self.segments.blocks_per_segment) / 100 * 99
    }
}
