//! S-LFS: a log-structured file system that never copies a segment away but threads its log
//! through the holes of segments that are partly valid.
//!
//! Source: Choi, Gwak and Shin (see the S-FTL). A segment is an erase block. The paper leaves open
//! what is filled in here:
//! - *Padding cost* of a segment: time that the drive takes to copy the pages without a hole, to
//!   erase, and to read what the host pads with. The segment with the least cost for each hole is
//!   written next, chosen among the sixteen with most holes; one without valid blocks costs least.
//! - Only holes that the last checkpoint does not need either are written: the others are pinned
//!   until the next one.
//! - A page that gets fewer new blocks than it has is written whole, with the valid rest read before
//!   (*host padding*); an fsync ends a page, and what is left of it stays a hole.
//! - Several segments are open at once, one to a die.
//!
//! Invariant: within an open segment addresses only rise.

use super::log::PAGES_PER_TURN;
use super::queue::Queue;
use super::segments::{Key, Segments};
use super::{HostCounters, HostError, Layout, LogOptions};
use crate::drive::WriteOptions;
use crate::profile::Profile;
use crate::units::{BLOCK_SIZE, Ns};

#[derive(Clone, Copy, Debug)]
struct Head {
    segment: usize,
    next_page: u32,
}

/// Segments of which the cost is computed when one is chosen.
const CANDIDATES: usize = 16;

#[derive(Debug)]
pub(super) struct Slfs {
    segments: Segments,
    open: Vec<bool>,
    /// Data stripes, then nodes.
    heads: Vec<Option<Head>>,
    stripes: usize,
    turn: usize,
    blocks_per_page: u32,
    pages_per_segment: u32,
    host_padding: bool,
    /// Holes of each segment that may be written.
    holes: Vec<u32>,
    holes_total: u64,
    pinned: Vec<bool>,
    pinned_places: Vec<u32>,
    /// Costs of copying a page inside the drive, of erasing, of reading a block to the host.
    copy_ns: u64,
    erase_ns: u64,
    read_ns: u64,
}

/// What a batch of blocks comes to.
#[derive(Debug, Default)]
struct Batch {
    reads: Vec<u64>,
    writes: Vec<u64>,
}

impl Slfs {
    pub(super) fn new(profile: &Profile, options: LogOptions) -> Slfs {
        let geometry = &profile.geometry;
        let segments = Segments::new(geometry, options.shift);
        let stripes = options.stripes.max(1) as usize;
        let transfer = u64::from(geometry.page_size) * 1000 / profile.channel_bytes_per_us;
        let link = u64::from(BLOCK_SIZE) * 1000 / profile.link_bytes_per_us;
        let count = segments.count();
        let size = segments.blocks_per_segment;
        Slfs {
            open: vec![false; count],
            heads: vec![None; stripes + 1],
            stripes,
            turn: 0,
            blocks_per_page: geometry.blocks_per_page(),
            pages_per_segment: size / geometry.blocks_per_page(),
            host_padding: options.host_padding,
            holes: vec![size; count],
            holes_total: count as u64 * u64::from(size),
            pinned: vec![false; count * size as usize],
            pinned_places: Vec::new(),
            copy_ns: profile.read_ns + profile.program_ns + 2 * transfer,
            erase_ns: profile.erase_ns,
            read_ns: profile.read_ns + transfer + link,
            segments,
        }
    }

    fn usable(&self, place: u32) -> bool {
        self.segments.owner(place).is_none() && !self.pinned[place as usize]
    }

    fn pin(&mut self, place: u32) {
        self.pinned[place as usize] = true;
        self.pinned_places.push(place);
    }

    /// What the drive and the link have to do so that the holes of a segment can be written.
    fn cost(&self, segment: usize) -> u64 {
        let size = self.segments.blocks_per_segment;
        let first = segment as u32 * size;
        let mut cost = if self.segments.valid(segment) == 0 { 0 } else { self.erase_ns };
        for page in 0..self.pages_per_segment {
            let places =
                first + page * self.blocks_per_page..first + (page + 1) * self.blocks_per_page;
            let holes = places.clone().filter(|place| self.usable(*place)).count() as u32;
            let valid = places.filter(|place| self.segments.owner(*place).is_some()).count() as u64;
            match holes {
                0 if valid > 0 => cost += self.copy_ns,
                0 => {}
                _ => cost += valid * self.read_ns,
            }
        }
        cost
    }

    /// The segment to write next.
    fn choose(&self) -> Option<usize> {
        let mut candidates: Vec<_> =
            (0..self.open.len()).filter(|s| !self.open[*s] && self.holes[*s] > 0).collect();
        candidates.sort_by_key(|segment| (std::cmp::Reverse(self.holes[*segment]), *segment));
        candidates.truncate(CANDIDATES);
        // cost / holes, compared without fractions.
        candidates
            .into_iter()
            .map(|segment| (self.cost(segment), segment))
            .min_by(|a, b| {
                let left = u128::from(a.0) * u128::from(self.holes[b.1]);
                let right = u128::from(b.0) * u128::from(self.holes[a.1]);
                left.cmp(&right).then(a.1.cmp(&b.1))
            })
            .map(|(_, segment)| segment)
    }

    fn open_next(
        &mut self,
        queue: &mut Queue<'_>,
        at: &mut Ns,
        head: usize,
    ) -> Result<(), HostError> {
        if let Some(done) = self.heads[head].take() {
            self.open[done.segment] = false;
        }
        // Holes that are pinned make segments look fuller than they are.
        let pinned = self.pinned_places.len() as u64;
        if pinned > self.holes_total / 2 || self.choose().is_none() {
            *at = self.checkpoint(queue, *at)?;
        }
        let segment = self.choose().ok_or(HostError::Full)?;
        if self.segments.valid(segment) > 0 {
            self.segments.counters.segments_reclaimed += 1;
        }
        self.open[segment] = true;
        self.heads[head] = Some(Head { segment, next_page: 0 });
        Ok(())
    }

    fn checkpoint(&mut self, queue: &mut Queue<'_>, at: Ns) -> Result<Ns, HostError> {
        let nodes = self.segments.take_dirty_nodes(None);
        let now = self.segments.checkpoint(queue, at)?;
        for place in std::mem::take(&mut self.pinned_places) {
            self.pinned[place as usize] = false;
            let segment = self.segments.segment_of(place);
            self.holes[segment] += 1;
            self.holes_total += 1;
        }
        // Nodes that no fsync has written. This may open a segment, which may make a checkpoint, but
        // that one has no nodes left to write.
        let head = self.stripes;
        self.append(queue, now, head, &nodes)
    }

    /// The next page of a head with holes that may be written: its first place.
    fn next_page(
        &mut self,
        queue: &mut Queue<'_>,
        at: &mut Ns,
        head: usize,
    ) -> Result<u32, HostError> {
        for _ in 0..=self.segments.count() {
            if let Some(open) = self.heads[head] {
                let first = open.segment as u32 * self.segments.blocks_per_segment;
                for page in open.next_page..self.pages_per_segment {
                    let places = first + page * self.blocks_per_page;
                    if (places..places + self.blocks_per_page).any(|place| self.usable(place)) {
                        self.heads[head] = Some(Head { next_page: page + 1, ..open });
                        return Ok(places);
                    }
                }
            }
            self.open_next(queue, at, head)?;
        }
        Err(HostError::Full)
    }

    /// Puts as many blocks into the holes of a page as it has; answers with how many.
    fn fill_page(&mut self, page: u32, keys: &[Key], batch: &mut Batch) -> usize {
        let places = page..page + self.blocks_per_page;
        let holes: Vec<_> = places.clone().filter(|place| self.usable(*place)).collect();
        let count = holes.len().min(keys.len());
        let kept: Vec<_> =
            places.clone().filter(|place| self.segments.owner(*place).is_some()).collect();
        for (key, place) in keys.iter().zip(&holes[..count]) {
            if let Some(old) = self.segments.put(*key, *place) {
                self.pin(old);
            }
            let segment = self.segments.segment_of(*place);
            self.holes[segment] -= 1;
            self.holes_total -= 1;
        }
        if self.host_padding {
            batch.reads.extend(kept.iter().map(|place| self.segments.address(*place)));
            batch.writes.extend(places.map(|place| self.segments.address(place)));
            self.segments.counters.padded_blocks += kept.len() as u64;
        } else {
            batch.writes.extend(holes[..count].iter().map(|place| self.segments.address(*place)));
        }
        count
    }

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
            let stripe = if head < self.stripes { self.turn } else { head };
            let mut batch = Batch::default();
            for _ in 0..PAGES_PER_TURN {
                if rest.is_empty() {
                    break;
                }
                let page = self.next_page(queue, &mut begin, stripe)?;
                rest = &rest[self.fill_page(page, rest, &mut batch)..];
            }
            let read = queue.read(begin, &batch.reads)?;
            done = done.max(queue.write(read, &batch.writes, WriteOptions::default())?);
            self.turn = (self.turn + 1) % self.stripes;
        }
        Ok(done)
    }
}

impl Layout for Slfs {
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
        let head = self.stripes;
        let now = self.append(queue, at, head, &nodes)?;
        Ok(queue.flush(now)?)
    }

    fn address(&self, file: u32, block: u32) -> Option<u64> {
        Some(self.segments.address(self.segments.place(Key::data(file, block))?))
    }

    fn delete(&mut self, _queue: &mut Queue<'_>, at: Ns, file: u32) -> Result<Ns, HostError> {
        for place in self.segments.delete(file) {
            self.pin(place);
        }
        Ok(at)
    }

    fn counters(&self) -> HostCounters {
        self.segments.counters
    }

    fn capacity(&self) -> u64 {
        let size = u64::from(self.segments.blocks_per_segment);
        let usable = self.segments.count().saturating_sub(self.heads.len() + 2);
        usable as u64 * size / 100 * 97
    }
}
