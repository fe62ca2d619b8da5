//! Random writes and reads at several queue depths, and how fast they can be at most.
//!
//! The ceiling of writes is what the bare file does with the very pieces that the log wrote: in order,
//! as large as its records were on average, as many at once as the depth fills. Only host blocks
//! count, so headers are no part of it. The ceiling of reads is the bare file at the same depth.
//!
//! The data of writes is made before the time begins, and only stamped within it
//! ([`Data::Stamped`]), so a side is not as slow as the generator.

use super::{Bench, DEEP};
use crate::error::BenchError;
use crate::figures::Figures;
use crate::progress::Progress;
use crate::side::{self, Access, Data, Limit, Load, Outcome, REQUEST_SIZE_MAX};
use crate::timing::median;
use coulter::Statistics;
use coulter_workload::{BLOCK_SIZE, Pattern};
use serde::Serialize;
use std::time::Duration;

/// Requests at once.
const WRITE_DEPTHS: [usize; 4] = [1, 32, 256, 1024];

/// The same of reads.
const READ_DEPTHS: [usize; 4] = [1, 8, 32, 128];

/// Rounds of which the median counts.
const ROUNDS: usize = 3;

/// Blocks of the largest record.
const RECORD_BLOCKS_MAX: u64 = (REQUEST_SIZE_MAX / BLOCK_SIZE) as u64;

/// Random writes at one queue depth. Rates are blocks of 4 KiB per second; each is a median, and so
/// is the ratio.
#[derive(Clone, Debug, Serialize)]
pub struct WriteDepth {
    /// Requests at once.
    pub queue_depth: usize,
    /// Through the volume.
    pub volume_iops: f64,
    /// Straight to the file.
    pub raw_random_iops: f64,
    /// Host blocks in the pieces that the log wrote, written straight and in order.
    pub ceiling_iops: f64,
    /// Volume to ceiling.
    pub ratio_to_ceiling: f64,
    /// Blocks of such a piece, header included.
    pub piece_blocks: u64,
}

/// Random reads at one queue depth. Rates are blocks of 4 KiB per second; each is a median, and so
/// are the ratios.
#[derive(Clone, Debug, Serialize)]
pub struct ReadDepth {
    /// Requests at once.
    pub queue_depth: usize,
    /// Through the volume, from another thread.
    pub volume_iops: f64,
    /// On the volume's own thread.
    pub local_iops: f64,
    /// Straight from the file.
    pub raw_random_iops: f64,
    /// Volume to file.
    pub ratio_to_raw: f64,
    /// The same on the volume's own thread.
    pub local_ratio_to_raw: f64,
    /// Share of reads that the client's own thread carried out, from 0 to 1.
    pub cache_hit_fraction: f64,
    /// Microseconds of CPU time of the process for each read through the volume.
    pub volume_cpu_us: f64,
    /// The same straight from the file.
    pub raw_cpu_us: f64,
}

/// What all depths came to.
#[derive(Clone, Debug)]
pub(super) struct Depths {
    pub(super) writes: Vec<WriteDepth>,
    pub(super) reads: Vec<ReadDepth>,
}

pub(super) fn add_to(table: &mut Figures, writes: &[WriteDepth], reads: &[ReadDepth]) {
    let thousands = |rate: f64| format!("{:.1} k/s", rate / 1e3);
    for depth in writes {
        table.row(
            &format!("writes, queue depth {}", depth.queue_depth),
            thousands(depth.volume_iops),
            format!(
                "{:.2} of {}, which pieces of {} blocks are at most; random {}",
                depth.ratio_to_ceiling,
                thousands(depth.ceiling_iops),
                depth.piece_blocks,
                thousands(depth.raw_random_iops)
            ),
        );
    }
    for depth in reads {
        table.row(
            &format!("reads, queue depth {}", depth.queue_depth),
            thousands(depth.volume_iops),
            format!(
                "{:.2} of the file's {}; {:.2} on the volume's own thread",
                depth.ratio_to_raw,
                thousands(depth.raw_random_iops),
                depth.local_ratio_to_raw
            ),
        );
    }
}

/// The pieces that the log wrote in one turn.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pieces {
    /// Blocks of one.
    blocks: u64,
    /// As many at once.
    at_once: usize,
    /// Host blocks for each block.
    payload: f64,
}

impl Pieces {
    fn between(before: &Statistics, after: &Statistics, depth: usize) -> Pieces {
        let records = (after.log.records - before.log.records).max(1) as f64;
        let host = (after.written.host_bytes - before.written.host_bytes) as f64;
        let headers = (after.written.header_bytes - before.written.header_bytes) as f64;
        let total = (after.written.total_bytes() - before.written.total_bytes()) as f64;
        let blocks = (total / BLOCK_SIZE as f64 / records).round() as u64;
        let blocks = blocks.clamp(1, RECORD_BLOCKS_MAX);
        let payload = host / (host + headers).max(1.0);
        let at_once = (depth as f64 / (blocks as f64 * payload).max(1.0)).ceil() as usize;
        assert!((0.0..=1.0).contains(&payload), "host blocks are part of what is written");
        Pieces { blocks, at_once: at_once.clamp(1, depth), payload }
    }
}

/// Measures all depths, each side in its turn.
///
/// # Errors
/// What a request met.
pub(super) fn measure(
    bench: &mut Bench,
    seconds: f64,
    progress: &Progress,
) -> Result<Depths, BenchError> {
    let limit = Limit::Time(Duration::from_secs_f64(seconds));
    let turns = (WRITE_DEPTHS.len() + READ_DEPTHS.len()) as f64;
    let mut writes = Vec::with_capacity(WRITE_DEPTHS.len());
    for (index, depth) in WRITE_DEPTHS.into_iter().enumerate() {
        progress.report("measuring queue depths", index as f64 / turns);
        let load = Load { access: Access::Write, count: 1, depth, limit, data: Data::Stamped };
        writes.push(measure_writes(bench, &load)?);
    }
    let mut reads = Vec::with_capacity(READ_DEPTHS.len());
    for (index, depth) in READ_DEPTHS.into_iter().enumerate() {
        progress.report("measuring queue depths", (WRITE_DEPTHS.len() + index) as f64 / turns);
        let load = Load { access: Access::Read, count: 1, depth, limit, data: Data::Stamped };
        reads.push(measure_reads(bench, &load)?);
    }
    Ok(Depths { writes, reads })
}

fn measure_writes(bench: &mut Bench, load: &Load) -> Result<WriteDepth, BenchError> {
    let (mut volume, mut raw, mut ceiling, mut ratio) = (vec![], vec![], vec![], vec![]);
    let mut piece_blocks = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let before = bench.volume.statistics();
        let rate = bench.run_volume(load)?.per_second();
        let pieces = Pieces::between(&before, &bench.volume.statistics(), load.depth);
        raw.push(bench.run_raw(load)?.per_second());
        let straight = write_pieces(bench, load, pieces)?;
        let most = straight.per_second() * pieces.blocks as f64 * pieces.payload;
        volume.push(rate);
        ceiling.push(most);
        ratio.push(rate / most);
        piece_blocks.push(pieces.blocks as f64);
    }
    Ok(WriteDepth {
        queue_depth: load.depth,
        volume_iops: median(&volume),
        raw_random_iops: median(&raw),
        ceiling_iops: median(&ceiling),
        ratio_to_ceiling: median(&ratio),
        piece_blocks: median(&piece_blocks) as u64,
    })
}

/// Writes such pieces in order to the bare file.
fn write_pieces(bench: &mut Bench, load: &Load, pieces: Pieces) -> Result<Outcome, BenchError> {
    let size = pieces.blocks as usize * BLOCK_SIZE;
    let places = bench.raw_versions.count() / pieces.blocks;
    // The smallest volumes have hardly more places than there are pieces in flight.
    let depth = pieces.at_once.min(places as usize / 3);
    bench.raw.replace_memory((0..depth).map(|_| size))?;
    let load = Load { count: pieces.blocks, depth, ..*load };
    let mut addresses = Pattern::Sequential.over(places, 4);
    let (versions, content) = (&mut bench.raw_versions, &bench.content);
    let outcome = side::run(&mut bench.raw, &load, &mut addresses, versions, content)?;
    bench.raw.replace_memory((0..DEEP).map(side::slot_size))?;
    Ok(outcome)
}

fn measure_reads(bench: &mut Bench, load: &Load) -> Result<ReadDepth, BenchError> {
    let mut rates = [vec![], vec![], vec![]];
    let (mut volume_cpu, mut raw_cpu) = (vec![], vec![]);
    let before = bench.volume.statistics().read_cache;
    for round in 0..ROUNDS {
        let outcomes = bench.turns(round, load)?;
        volume_cpu.push(outcomes[0].cpu_us());
        raw_cpu.push(outcomes[2].cpu_us());
        for (rates, outcome) in rates.iter_mut().zip(outcomes) {
            rates.push(outcome.per_second());
        }
    }
    let after = bench.volume.statistics().read_cache;
    let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
    let [volume, local, raw] = &rates;
    let ratio = |rates: &[f64]| {
        median(&rates.iter().zip(raw).map(|(rate, raw)| rate / raw).collect::<Vec<_>>())
    };
    Ok(ReadDepth {
        queue_depth: load.depth,
        volume_iops: median(volume),
        local_iops: median(local),
        raw_random_iops: median(raw),
        ratio_to_raw: ratio(volume),
        local_ratio_to_raw: ratio(local),
        cache_hit_fraction: hits as f64 / (hits + misses).max(1) as f64,
        volume_cpu_us: median(&volume_cpu),
        raw_cpu_us: median(&raw_cpu),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statistics(records: u64, host: u64, headers: u64) -> Statistics {
        let mut statistics = Statistics::default();
        statistics.log.records = records;
        statistics.written.host_bytes = host * BLOCK_SIZE as u64;
        statistics.written.header_bytes = headers * BLOCK_SIZE as u64;
        statistics
    }

    #[test]
    fn pieces_are_as_large_as_the_records_between_and_as_many_as_the_depth_fills() {
        let before = statistics(10, 100, 10);
        let one = Pieces::between(&before, &statistics(110, 200, 110), 1);
        assert_eq!(one, Pieces { blocks: 2, at_once: 1, payload: 0.5 });
        let many = Pieces::between(&before, &statistics(110, 1600, 110), 32);
        assert_eq!((many.blocks, many.at_once), (16, 3), "15 host blocks in each, of 32");
        let none = Pieces::between(&before, &before, 8);
        assert_eq!(none.blocks, 1, "a turn too short for a record");
    }
}
