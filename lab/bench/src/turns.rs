//! How long the engine keeps its thread: the longest call into it, at sizes up to 16 TiB.
//!
//! A store on the stand-in device, which keeps no host data, is overwritten at random, block by block. Each
//! call into the engine is timed: a request taken, a completion handled, a command asked for. A turn of a
//! volume's loop is a few of them, and nobody else gets the thread during one.
//!
//! What it does not do: fill the volume. Leaves, roots, the segment table and the journal are as large as the
//! size makes them; segments are written only as far as the host writes.

use crate::error::BenchError;
use crate::figures::Figures;
use crate::progress::Progress;
use crate::standin::{Rig, StandinDevice};
use crate::timing::Took;
use coulter_engine::Config;
use coulter_engine::create::{CreateOptions, create, map_size_min, segment_blocks_default};
use coulter_format::{BLOCK_SIZE, StoreId};
use coulter_workload::Pattern;
use serde::Serialize;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of the device; at most 16 TiB.
    pub size: u64,
    /// Blocks that are overwritten before measuring, and while it is measured.
    pub warm_up: u64,
    /// See `warm_up`.
    pub writes: u64,
    /// Told how far it is.
    pub progress: Progress,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            size: 1 << 40,
            warm_up: 400_000,
            writes: 1_000_000,
            progress: Progress::default(),
        }
    }
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Bytes of the device.
    pub size_bytes: u64,
    /// Segments.
    pub segment_count: u64,
    /// Calls into the engine.
    pub turns: u64,
    /// The longest, in microseconds.
    pub longest_turn_us: f64,
    /// 99.9 % of them took no longer, in microseconds.
    pub p999_turn_us: f64,
    /// The most CPU time that one took, in microseconds: on a machine with other work, where the
    /// longest includes what the scheduler gave to others.
    pub longest_turn_cpu_us: f64,
    /// 99.9 % of them took no more CPU time, in microseconds.
    pub p999_turn_cpu_us: f64,
    /// Checkpoints cut meanwhile.
    pub checkpoints: u64,
}

impl Report {
    /// The figures as text.
    pub fn table(&self) -> String {
        let mut table = Figures::default();
        let us = |value: f64| format!("{value:.0} us");
        table
            .row("calls into the engine", self.turns.to_string(), {
                format!("{} segments, {} checkpoints", self.segment_count, self.checkpoints)
            })
            .row("longest", us(self.longest_turn_us), {
                format!("{:.0} us of CPU time at most", self.longest_turn_cpu_us)
            })
            .row("99.9 % at most", us(self.p999_turn_us), {
                format!("{:.0} us of CPU time", self.p999_turn_cpu_us)
            });
        table.text()
    }
}

/// Measures.
///
/// # Errors
/// When there is no such store, or the engine misbehaves.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    let device_size = options.size / BLOCK_SIZE as u64;
    let create_options = CreateOptions {
        device_size,
        volume_size: None,
        segment_blocks: segment_blocks_default(device_size, device_size / 11),
        spare_percent: 10,
        store: StoreId { uuid: *b"bench turns stor", salt: 1 },
        label: [0; 64],
        map_size: Some(map_size_min(device_size)),
        journal_size: None,
        sparse: None,
        run_count_limit: None,
        page_blocks: None,
    };
    let (_, blocks) = create(&create_options).map_err(|error| {
        BenchError::option(format!("no store of this size can be laid out: {error}"))
    })?;
    let device = StandinDevice::with_store(device_size, &blocks);
    let mut rig = Rig::open(Config::default(), device, 256)?;
    let volume = rig.engine.geometry().volume_size;
    let mut addresses = Pattern::Uniform.over(volume, 1);
    let mut times = Vec::with_capacity(4 * options.writes as usize);
    for number in 0..options.warm_up {
        rig.write(addresses.address(), 1)?;
        if number % (1 << 16) == 0 {
            options.progress.report("warming up", number as f64 / options.warm_up as f64);
        }
    }
    let before = rig.engine.statistics().checkpoints;
    for number in 0..options.writes {
        rig.write_timed(addresses.address(), &mut times)?;
        if number % (1 << 16) == 0 {
            options.progress.report("measuring", number as f64 / options.writes as f64);
        }
    }
    let statistics = rig.engine.statistics();
    let mut cpu_us: Vec<f64> = times.iter().map(|took: &Took| took.cpu * 1e6).collect();
    let mut time_us: Vec<f64> = times.iter().map(|took| took.time.as_secs_f64() * 1e6).collect();
    cpu_us.sort_unstable_by(f64::total_cmp);
    time_us.sort_unstable_by(f64::total_cmp);
    let p999 = times.len() * 999 / 1000;
    let at = |sorted: &[f64], rank: usize| sorted.get(rank).copied().unwrap_or_default();
    Ok(Report {
        size_bytes: options.size,
        segment_count: statistics.segment_count,
        turns: times.len() as u64,
        longest_turn_us: at(&time_us, times.len().saturating_sub(1)),
        p999_turn_us: at(&time_us, p999),
        longest_turn_cpu_us: at(&cpu_us, times.len().saturating_sub(1)),
        p999_turn_cpu_us: at(&cpu_us, p999),
        checkpoints: statistics.checkpoints - before,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_timed_and_checkpoints_are_among_them() {
        let options =
            Options { size: 1 << 34, warm_up: 1000, writes: 200_000, ..Options::default() };
        let report = run(&options).expect("the store works");
        assert!(report.turns > 200_000, "{report:?}");
        assert!(report.checkpoints > 0, "{report:?}");
        assert!(report.longest_turn_us >= report.p999_turn_us && report.p999_turn_us > 0.0);
        assert!(report.longest_turn_cpu_us >= report.p999_turn_cpu_us, "{report:?}");
        assert!(report.p999_turn_cpu_us > 0.0, "{report:?}");
    }
}
