//! The body of the newest checkpoint.

use super::{Outcome, with_store};
use crate::blocks::ReadBlocks;
use crate::check::Store;
use coulter_format::BlockPointer;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// A checkpoint's body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckpointDump {
    /// Every record up to this one is contained.
    pub sequence: u64,
    /// User blocks written since the store was created.
    pub write_clock_blocks: u64,
    /// How often the sweep began anew.
    pub sweep_cycle: u64,
    /// The leaf key from which the sweep goes on.
    pub sweep_leaf: u64,
    /// Number of the next run.
    pub next_run: u64,
    /// For each stream, where it appends.
    pub heads: Vec<Option<HeadDump>>,
    /// Segments that may be opened next, in order.
    pub reserved_segments: Vec<u32>,
    /// Segments into whose holes records may be written.
    pub reserved_holes: Vec<u32>,
    /// Root pages by key.
    pub roots: Vec<RootDump>,
    /// Pages of the list of roots, where these are not in the body.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub root_lists: Vec<PlaceDump>,
    /// Pages of the segment table.
    pub table: Vec<PlaceDump>,
    /// Runs, from the oldest to the newest.
    pub runs: Vec<RunDump>,
    /// Records whose headers say what changed, in order.
    pub references: Vec<ReferenceDump>,
    /// Second copies of what is listed above, in the same order.
    pub second_copies: Vec<CopyDump>,
    /// What is to be replayed after it.
    pub recovery: crate::report::Recovery,
}

/// Where a stream appends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HeadDump {
    /// The segment.
    pub segment: u32,
    /// The next block in it.
    pub offset_blocks: u32,
}

/// Where a block lies, and its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PlaceDump {
    /// Where it lies.
    pub block: u32,
    /// Its checksum.
    pub checksum: u32,
}

/// A root page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RootDump {
    /// Its key: its first host address / 262,144.
    pub key: u64,
    /// Where it lies.
    #[serde(flatten)]
    pub place: PlaceDump,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunDump {
    /// Its number; higher is newer.
    pub number: u64,
    /// Where the sweep stood when it was written.
    pub sweep_cycle: u64,
    /// Where the sweep stood when it was written.
    pub sweep_leaf: u64,
    /// Its blocks in order.
    pub blocks: Vec<PlaceDump>,
}

/// A record whose header says what changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReferenceDump {
    /// Its header.
    #[serde(flatten)]
    pub header: PlaceDump,
    /// Where the sweep stood when it took effect.
    pub sweep_cycle: u64,
    /// Where the sweep stood when it took effect.
    pub sweep_leaf: u64,
    /// Number of the run that came next.
    pub run: u64,
    /// Where the parity of its header and others lies, if there is one.
    pub parity_block: Option<u32>,
}

/// The second copy of a block, or the parity of headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CopyDump {
    /// What it is a copy of, as record headers call it.
    #[serde(flatten)]
    pub owner: crate::finding::Owner,
    /// Where it lies.
    pub block: u32,
}

impl From<BlockPointer> for PlaceDump {
    fn from(pointer: BlockPointer) -> PlaceDump {
        PlaceDump { block: pointer.pba.0, checksum: pointer.checksum }
    }
}

/// Reads the newest checkpoint's body.
pub fn checkpoint(blocks: &mut impl ReadBlocks) -> Outcome<CheckpointDump> {
    with_store(blocks, |_, store, report| {
        let mut recovery = report.recovery;
        recovery.updates_to_replay = store.replay.updates.count() as u64;
        dump(store, recovery)
    })
}

fn dump(store: &Store, recovery: crate::report::Recovery) -> CheckpointDump {
    let checkpoint = &store.checkpoint;
    let header = checkpoint.header;
    let head = |head: coulter_format::checkpoint::Head| HeadDump {
        segment: head.segment,
        offset_blocks: head.offset,
    };
    let runs = checkpoint.runs.iter().map(|run| RunDump {
        number: run.header.number,
        sweep_cycle: run.header.sweep.cycle,
        sweep_leaf: run.header.sweep.leaf,
        blocks: run.blocks.iter().map(|pointer| (*pointer).into()).collect(),
    });
    let parities = checkpoint.copies.iter().flat_map(|copied| {
        copied.headers().iter().map(|reference| (reference.pba, copied.pointer.pba.0))
    });
    let parities: BTreeMap<_, _> = parities.collect();
    let references = checkpoint.references.all.iter().map(|reference| ReferenceDump {
        header: PlaceDump { block: reference.pba.0, checksum: reference.checksum },
        sweep_cycle: reference.sweep.cycle,
        sweep_leaf: reference.sweep.leaf,
        run: reference.run,
        parity_block: parities.get(&reference.pba).copied(),
    });
    let roots = checkpoint.roots.iter();
    CheckpointDump {
        sequence: header.sequence,
        write_clock_blocks: header.write_clock,
        sweep_cycle: header.sweep.cycle,
        sweep_leaf: header.sweep.leaf,
        next_run: header.next_run,
        heads: checkpoint.heads.iter().map(|found| found.map(head)).collect(),
        reserved_segments: checkpoint.reserved.clone(),
        reserved_holes: checkpoint.holes.clone(),
        roots: roots.map(|(key, place)| RootDump { key: *key, place: (*place).into() }).collect(),
        root_lists: checkpoint.root_lists.iter().map(|pointer| (*pointer).into()).collect(),
        table: checkpoint.table.iter().map(|pointer| (*pointer).into()).collect(),
        runs: runs.collect(),
        references: references.collect(),
        second_copies: checkpoint
            .copies
            .iter()
            .map(|copied| CopyDump { owner: copied.owner, block: copied.pointer.pba.0 })
            .collect(),
        recovery,
    }
}

impl fmt::Display for PlaceDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {} checksum {:#010x}", self.block, self.checksum)
    }
}

impl fmt::Display for CheckpointDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "checkpoint at sequence {}", self.sequence)?;
        writeln!(f, "  write clock          {} blocks", self.write_clock_blocks)?;
        writeln!(f, "  sweep                cycle {}, leaf {}", self.sweep_cycle, self.sweep_leaf)?;
        writeln!(f, "  next run             {}", self.next_run)?;
        for (stream, head) in self.heads.iter().enumerate() {
            match head {
                Some(HeadDump { segment, offset_blocks }) => writeln!(
                    f,
                    "  head of stream {stream}     segment {segment}, block {offset_blocks} of it"
                )?,
                None => writeln!(f, "  head of stream {stream}     none")?,
            }
        }
        write!(f, "  reserved segments   ")?;
        self.reserved_segments.iter().try_for_each(|segment| write!(f, " {segment}"))?;
        writeln!(f)?;
        if !self.reserved_holes.is_empty() {
            write!(f, "  reserved holes of   ")?;
            self.reserved_holes.iter().try_for_each(|segment| write!(f, " {segment}"))?;
            writeln!(f)?;
        }
        for RootDump { key, place } in &self.roots {
            writeln!(f, "  root page {key:<10} {place}")?;
        }
        for (key, place) in self.root_lists.iter().enumerate() {
            writeln!(f, "  list of roots {key:<6} {place}")?;
        }
        for (key, place) in self.table.iter().enumerate() {
            writeln!(f, "  table page {key:<9} {place}")?;
        }
        for run in &self.runs {
            let RunDump { number, sweep_cycle, sweep_leaf, blocks } = run;
            writeln!(f, "  run {number}, written at cycle {sweep_cycle}, leaf {sweep_leaf}")?;
            for (index, place) in blocks.iter().enumerate() {
                writeln!(f, "    block {index:<12} {place}")?;
            }
        }
        for ReferenceDump { header, sweep_cycle, sweep_leaf, run, parity_block } in &self.references
        {
            write!(
                f,
                "  record at {header}, before run {run}, at cycle {sweep_cycle}, leaf {sweep_leaf}"
            )?;
            if let Some(block) = parity_block {
                write!(f, ", parity at block {block}")?;
            }
            writeln!(f)?;
        }
        for CopyDump { owner, block } in &self.second_copies {
            writeln!(f, "  {owner}: block {block}")?;
        }
        let recovery = &self.recovery;
        writeln!(
            f,
            "  to replay            {} of {} records, {} updates",
            recovery.records_to_replay, recovery.records, recovery.updates_to_replay,
        )
    }
}
