//! A trace read once: what it asks for, how sequential that is, and what it changes.

use super::FOOTPRINT_MAX;
use super::footprint::{Footprint, Gathering, Place};
use super::spool::{Change, Spool, Spooling};
use crate::error::BenchError;
use crate::progress::Progress;
use crate::sequentiality::{RunLengths, Sequentiality};
use coulter_format::BLOCK_SIZE;
use coulter_workload::Kind;
use coulter_workload::trace::{BadLine, Line, Reader, ReaderOptions, Request};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::BufRead;

const BLOCK: u64 = BLOCK_SIZE as u64;
const SECTOR: u64 = 512;

/// Devices of which the names are told.
const NAMES_MAX: usize = 16;

/// Bad lines of which the numbers are told.
const EXAMPLES_MAX: usize = 5;

/// What a trace asks for.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// The format that it was read as.
    pub format: String,
    /// Lines.
    pub lines: u64,
    /// Lines that could not be understood, and were left out.
    pub bad_lines: u64,
    /// These by reason.
    pub bad_lines_by_reason: BTreeMap<String, u64>,
    /// The first of them.
    pub bad_line_examples: Vec<u64>,
    /// Devices. Each has its own blocks in the volume, beside those of the others.
    pub devices: u64,
    /// The first of their names.
    pub device_names: Vec<String>,
    /// Columns that the header names and that tell nothing.
    pub ignored_columns: Vec<String>,
    /// Requests.
    pub reads: u64,
    /// Bytes.
    pub read_bytes: u64,
    /// Requests.
    pub writes: u64,
    /// Bytes.
    pub write_bytes: u64,
    /// Requests.
    pub discards: u64,
    /// Requests.
    pub flushes: u64,
    /// Writes that begin or end inside a block of 4 KiB: the rest of the block has to be read and
    /// is written too.
    pub partial_writes: u64,
    /// Blocks written, in whole blocks.
    pub written_blocks: u64,
    /// Different blocks written.
    pub footprint_blocks: u64,
    /// How sequential the writes are, in blocks.
    pub host_writes: RunLengths,
    /// How sequential the reads are, in blocks.
    pub host_reads: RunLengths,
}

impl Summary {
    /// Bytes of the blocks written per byte that the host wrote: above 1 when it writes parts of
    /// blocks.
    pub fn rounding(&self) -> f64 {
        (self.written_blocks * BLOCK) as f64 / self.write_bytes.max(1) as f64
    }
}

/// What is kept of a trace.
pub(super) struct Digest {
    pub(super) summary: Summary,
    pub(super) footprint: Footprint,
    pub(super) spool: Spool,
}

/// Reads a trace to its end.
pub(super) fn read(
    source: impl BufRead,
    options: &ReaderOptions,
    strict: bool,
    progress: &Progress,
) -> Result<Digest, BenchError> {
    const REPORT_EVERY: u64 = 1 << 16;
    let mut reader = Reader::new(source, options).map_err(BenchError::Trace)?;
    let mut digesting = Digesting::new();
    while let Some(line) = reader.next_line().map_err(BenchError::Trace)? {
        let number = reader.line_number();
        if number % REPORT_EVERY == 1 {
            progress.report(&format!("reading, line {number}"), 0.0);
        }
        match line {
            Line::Request(request) => {
                digesting.request(request)?;
                if digesting.gathering.blocks() > FOOTPRINT_MAX {
                    let reason = format!(
                        "up to line {number} it writes more than 4 TiB of different blocks, which is more \
                         than is replayed; choose a part of it, or one device with --device"
                    );
                    return Err(BenchError::NothingToReplay { reason });
                }
            }
            Line::Other => {}
            Line::Bad(bad) if strict => {
                return Err(BenchError::BadLine { number, reason: bad.to_string() });
            }
            Line::Bad(bad) => digesting.bad_line(number, bad),
        }
    }
    let mut digest = digesting.finish()?;
    let summary = &mut digest.summary;
    summary.format = reader.format().to_string();
    summary.lines = reader.line_number();
    summary.devices = reader.devices().len() as u64;
    summary.device_names = reader.devices().iter().take(NAMES_MAX).cloned().collect();
    summary.ignored_columns = reader.ignored_columns().to_vec();
    if summary.written_blocks == 0 {
        let others = reader.other_actions();
        let reason = match (summary.reads, others) {
            (0, 1..) => format!(
                "none of its requests has the action that counts, but {others} have others; choose \
                 one with --action, such as D"
            ),
            (0, 0) if summary.bad_lines > 0 => {
                format!("all that looks like requests is {} bad lines", summary.bad_lines)
            }
            _ => "it writes nothing".to_string(),
        };
        return Err(BenchError::NothingToReplay { reason });
    }
    Ok(digest)
}

struct Digesting {
    summary: Summary,
    gathering: Gathering,
    spooling: Spooling,
    /// In sectors, by device, since a run does not go on elsewhere.
    writes: Sequentiality,
    reads: Sequentiality,
}

impl Digesting {
    fn new() -> Digesting {
        Digesting {
            summary: Summary::default(),
            gathering: Gathering::default(),
            spooling: Spooling::new(),
            writes: Sequentiality::default(),
            reads: Sequentiality::default(),
        }
    }

    fn bad_line(&mut self, number: u64, bad: BadLine) {
        self.summary.bad_lines += 1;
        *self.summary.bad_lines_by_reason.entry(bad.to_string()).or_default() += 1;
        if self.summary.bad_line_examples.len() < EXAMPLES_MAX {
            self.summary.bad_line_examples.push(number);
        }
    }

    fn request(&mut self, request: Request) -> Result<(), BenchError> {
        let Request { device, kind, offset, length } = request;
        let sectors = length.div_ceil(SECTOR);
        // Devices lie far apart, so that no run leads from one to the next.
        let sector = (u64::from(device) << 48) + offset / SECTOR;
        let summary = &mut self.summary;
        match kind {
            Kind::Flush => summary.flushes += 1,
            Kind::Read => {
                summary.reads += 1;
                summary.read_bytes += length;
                self.reads.note(sector, sectors);
            }
            Kind::Write => {
                summary.writes += 1;
                summary.write_bytes += length;
                let whole = offset.is_multiple_of(BLOCK) && length.is_multiple_of(BLOCK);
                summary.partial_writes += u64::from(!whole);
                self.writes.note(sector, sectors);
                let first = offset / BLOCK;
                let count = (offset + length).div_ceil(BLOCK) - first;
                summary.written_blocks += count;
                let place = Place::new(device, first);
                self.gathering.add(place, count);
                self.push(Change { place, count, discard: false })?;
            }
            Kind::Discard => {
                summary.discards += 1;
                // Only whole blocks are given up.
                let first = offset.div_ceil(BLOCK);
                let count = ((offset + length) / BLOCK).saturating_sub(first);
                if count > 0 {
                    let place = Place::new(device, first);
                    self.push(Change { place, count, discard: true })?;
                }
            }
        }
        Ok(())
    }

    fn push(&mut self, change: Change) -> Result<(), BenchError> {
        self.spooling.push(change).map_err(BenchError::Spool)
    }

    fn finish(self) -> Result<Digest, BenchError> {
        let footprint = self.gathering.finish();
        let in_blocks = (SECTOR as f64) / (BLOCK as f64);
        let summary = Summary {
            footprint_blocks: footprint.blocks(),
            host_writes: self.writes.lengths().scaled(in_blocks),
            host_reads: self.reads.lengths().scaled(in_blocks),
            ..self.summary
        };
        let spool = self.spooling.finish().map_err(BenchError::Spool)?;
        Ok(Digest { summary, footprint, spool })
    }
}
