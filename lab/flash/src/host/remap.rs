//! A layer between a file system and the drive that writes everything to one log: what the papers
//! on block-layer address transformation and NVMe remapping do, as a model.
//!
//! Coulter's engine does this for real, and other crates measure it; the model is here because a
//! report has to be repeatable to the byte, and because it can clean the way the papers do.
//!
//! - Blocks are appended to an open segment, a record's header block for each 255 of them.
//! - *Copy-out*: the segment with the fewest valid blocks is read, appended elsewhere and trimmed.
//! - *Hole filling* (the papers'): the valid blocks of that segment are written into holes of the
//!   fullest other segments, in place.
//! - A flush writes nothing more: headers carry the map. Its checkpoints are left out.
//!
//! Left out: the host's processor time and memory for lookups.
//!
//! Invariant: enough segments are free for cleaning to finish a victim.

use crate::drive::{Blocks, CommandError, Drive, WriteOptions};
use crate::geometry::Geometry;
use crate::units::{BLOCK_SIZE, Ns};
use std::collections::VecDeque;

/// How space is reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleaning {
    /// Valid blocks are appended elsewhere.
    CopyOut,
    /// Valid blocks fill holes elsewhere.
    HoleFill,
}

/// How a remapping layer is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemapOptions {
    /// How it cleans.
    pub cleaning: Cleaning,
    /// Space that the file system does not see, for each hundred that it sees.
    pub spare_percent: u32,
}

impl RemapOptions {
    /// Blocks that a drive has at least, and space in a hundred that is spare at least, for
    /// cleaning to get anywhere.
    pub(crate) const BLOCKS_MIN: u64 = 2048;
    pub(crate) const SPARE_PERCENT_MIN: u32 = 15;
}

/// What a remapping layer did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemapCounters {
    /// Header blocks.
    pub headers: u64,
    /// Valid blocks that cleaning wrote.
    pub relocated: u64,
    /// Segments that cleaning freed.
    pub cleaned: u64,
}

/// Blocks that one header describes.
const BLOCKS_PER_HEADER: u32 = 255;
const SEGMENTS_FREE_MIN: usize = 3;
const NOWHERE: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Remap {
    options: RemapOptions,
    segment_blocks: u32,
    /// Where each block of the file system lies, and whose each block of the drive is.
    places: Vec<u32>,
    owners: Vec<u32>,
    valid: Vec<u32>,
    free: VecDeque<u32>,
    /// Open segments and the next offset there: the host's, and cleaning's.
    heads: [Option<(u32, u32)>; 2],
    /// Blocks behind the last header of each.
    since_header: [u32; 2],
    pub(crate) counters: RemapCounters,
    tag: Vec<u8>,
}

const HOST: usize = 0;
const CLEANING: usize = 1;

impl Remap {
    /// The file system's share of the drive, as a drive of its own.
    pub(crate) fn exported(geometry: &Geometry, options: RemapOptions) -> Geometry {
        let blocks = u64::from(geometry.exported_erase_blocks) * 100;
        let exported = blocks / u64::from(100 + options.spare_percent);
        Geometry { exported_erase_blocks: (exported as u32).max(1), ..*geometry }
    }

    pub(crate) fn new(geometry: &Geometry, options: RemapOptions) -> Remap {
        let blocks = geometry.host_blocks() as u32;
        let per_erase_block = geometry.pages_per_block * geometry.blocks_per_page();
        // A row of erase blocks, one on each die, but enough segments to clean among.
        let row = per_erase_block * geometry.dies();
        let segment_blocks = row.min(blocks / 64).max(16);
        let count = blocks / segment_blocks;
        let exported = Remap::exported(geometry, options).host_blocks();
        Remap {
            options,
            segment_blocks,
            places: vec![NOWHERE; exported as usize],
            owners: vec![NOWHERE; (count * segment_blocks) as usize],
            valid: vec![0; count as usize],
            free: (0..count).collect(),
            heads: [None; 2],
            since_header: [BLOCKS_PER_HEADER; 2],
            counters: RemapCounters::default(),
            tag: Vec::new(),
        }
    }

    /// Where blocks lie; those never written are left out.
    pub(crate) fn translate(&self, blocks: &[u64]) -> Vec<u64> {
        let places = blocks.iter().map(|block| self.places[*block as usize]);
        places.filter(|place| *place != NOWHERE).map(u64::from).collect()
    }

    pub(crate) fn write(
        &mut self,
        drive: &mut Drive,
        at: Ns,
        blocks: &[u64],
        options: WriteOptions,
    ) -> Result<Ns, CommandError> {
        let sources: Vec<_> = blocks.iter().map(|block| *block as u32).collect();
        let mut now = at;
        while self.free.len() <= SEGMENTS_FREE_MIN {
            now = self.clean(drive, now)?;
        }
        self.append(drive, now, HOST, &sources, options)
    }

    /// Forgets blocks; segments that become empty are trimmed when they are opened again.
    pub(crate) fn trim(&mut self, blocks: Blocks) {
        for block in blocks.first..blocks.first + u64::from(blocks.count) {
            self.forget(block as u32);
        }
    }

    fn forget(&mut self, block: u32) {
        let old = std::mem::replace(&mut self.places[block as usize], NOWHERE);
        if old != NOWHERE {
            self.owners[old as usize] = NOWHERE;
            self.valid[(old / self.segment_blocks) as usize] -= 1;
        }
    }

    fn settle(&mut self, block: u32, place: u32) {
        self.forget(block);
        self.places[block as usize] = place;
        self.owners[place as usize] = block;
        self.valid[(place / self.segment_blocks) as usize] += 1;
    }

    fn append(
        &mut self,
        drive: &mut Drive,
        at: Ns,
        head: usize,
        sources: &[u32],
        options: WriteOptions,
    ) -> Result<Ns, CommandError> {
        let (mut now, mut done) = (at, at);
        let mut rest = sources;
        while !rest.is_empty() {
            let (segment, next) = match self.heads[head] {
                Some((segment, next)) if next < self.segment_blocks => (segment, next),
                _ => {
                    let segment = self.free.pop_front().expect("cleaning keeps segments free");
                    let first = u64::from(segment) * u64::from(self.segment_blocks);
                    now = drive.trim(now, Blocks { first, count: self.segment_blocks })?;
                    (segment, 0)
                }
            };
            let header = u32::from(self.since_header[head] >= BLOCKS_PER_HEADER);
            let room = self.segment_blocks - next;
            if room <= header {
                self.heads[head] = Some((segment, self.segment_blocks));
                continue;
            }
            let fits = (room - header).min(BLOCKS_PER_HEADER) as usize;
            let (batch, later) = rest.split_at(rest.len().min(fits));
            rest = later;
            let first = segment * self.segment_blocks + next;
            let count = batch.len() as u32 + header;
            done =
                done.max(self.put(drive, now, Blocks { first: first.into(), count }, options)?);
            for (block, place) in batch.iter().zip(first + header..) {
                self.settle(*block, place);
            }
            self.counters.headers += u64::from(header);
            let since = if header == 1 { 0 } else { self.since_header[head] };
            self.since_header[head] = since + batch.len() as u32;
            self.heads[head] = Some((segment, next + count));
        }
        Ok(done)
    }

    fn put(
        &mut self,
        drive: &mut Drive,
        at: Ns,
        blocks: Blocks,
        options: WriteOptions,
    ) -> Result<Ns, CommandError> {
        self.tag.clear();
        self.tag.resize(drive.keep().block_bytes() * blocks.count as usize, 1);
        drive.write(at, blocks, &self.tag, options)
    }

    fn is_closed(&self, segment: u32) -> bool {
        let open = self.heads.iter().flatten().any(|(open, _)| *open == segment);
        !open && !self.free.contains(&segment)
    }

    /// Frees the segment with the fewest valid blocks.
    fn clean(&mut self, drive: &mut Drive, at: Ns) -> Result<Ns, CommandError> {
        let closed = (0..self.valid.len() as u32).filter(|segment| self.is_closed(*segment));
        let victim = closed.min_by_key(|segment| self.valid[*segment as usize]);
        let victim = victim.expect("some segment is closed");
        let first = victim * self.segment_blocks;
        let places = first..first + self.segment_blocks;
        let valid: Vec<_> = places.filter(|p| self.owners[*p as usize] != NOWHERE).collect();
        assert!((valid.len() as u32) < self.segment_blocks, "spare space means invalid blocks");
        let mut now = at;
        for run in valid.chunk_by(|a, b| a + 1 == *b) {
            let most = (drive.profile().command_size_max / BLOCK_SIZE) as usize;
            for run in run.chunks(most) {
                let blocks = Blocks { first: run[0].into(), count: run.len() as u32 };
                let mut content = vec![0; drive.keep().block_bytes() * run.len()];
                now = now.max(drive.read(at, blocks, &mut content)?);
            }
        }
        self.counters.relocated += valid.len() as u64;
        self.counters.cleaned += 1;
        let sources: Vec<_> = valid.iter().map(|place| self.owners[*place as usize]).collect();
        now = match self.options.cleaning {
            Cleaning::CopyOut => {
                self.append(drive, now, CLEANING, &sources, WriteOptions::default())?
            }
            Cleaning::HoleFill => self.fill_holes(drive, now, victim, &sources)?,
        };
        self.free.push_back(victim);
        Ok(now)
    }

    /// Writes blocks into the holes of the fullest segments, ascending.
    fn fill_holes(
        &mut self,
        drive: &mut Drive,
        at: Ns,
        victim: u32,
        sources: &[u32],
    ) -> Result<Ns, CommandError> {
        let mut closed: Vec<_> = (0..self.valid.len() as u32)
            .filter(|s| *s != victim && self.is_closed(*s))
            .filter(|s| self.valid[*s as usize] < self.segment_blocks)
            .collect();
        closed.sort_by_key(|s| (std::cmp::Reverse(self.valid[*s as usize]), *s));
        let holes =
            closed.iter().flat_map(|s| s * self.segment_blocks..(s + 1) * self.segment_blocks);
        let holes: Vec<_> =
            holes.filter(|p| self.owners[*p as usize] == NOWHERE).take(sources.len()).collect();
        assert_eq!(holes.len(), sources.len(), "spare space means holes");
        let mut done = at;
        let mut written = 0;
        for run in holes.chunk_by(|a, b| a + 1 == *b) {
            let blocks = Blocks { first: run[0].into(), count: run.len() as u32 };
            done = done.max(self.put(drive, at, blocks, WriteOptions::default())?);
            for place in run {
                self.settle(sources[written], *place);
                written += 1;
            }
        }
        Ok(done)
    }
}
