//! From a crash to the first I/O, with much mapped and little memory.
//!
//! 1. A store is made whose recovery budget is the small map memory. Opened with memory for the
//!    whole map, every block is written once, alone, in random order.
//! 2. Opened with the small map memory, it is overwritten at random with many requests at once,
//!    first until the map's background work is in balance, then for measuring how much metadata
//!    that writes.
//! 3. Just before a checkpoint falls due, the engine is dropped: nothing is shut down or flushed.
//!    It opens again with the small map memory and reads a block, which is verified. Once for full
//!    records, once for records of a single block, of which there is the most to read.
//!
//! # What stands in for what
//! All host data is zeros and is not stored (see `standin`): the device takes memory for metadata
//! only. While the store is opened after a crash the device is modelled (`modelled`): every command
//! takes 100 microseconds and a share of 2 GB/s, and time goes by with the CPU time of the engine
//! and with waiting. So the figure holds for a plain SSD, whatever else this machine is doing.

use crate::error::BenchError;
use crate::figures::{Figures, bytes, percent, rate};
use crate::metadata::{MetadataShares, write_amplification};
use crate::progress::Progress;
use crate::standin::{Data, DeviceModel, Rig, StandinDevice};
use crate::timing::CpuClock;
use coulter_engine::create::{CreateOptions, create, map_size_min};
use coulter_engine::{Config, Phase, Statistics};
use coulter_format::{BLOCK_SIZE, StoreId};
use coulter_workload::{Addresses, Pattern, Permutation};
use serde::Serialize;
use std::time::Instant;

const SPARE_PERCENT: u64 = 20;

/// Requests at once when records are to be full.
const DEPTH: u32 = 1024;

/// Intervals between checkpoints of which the longest counts.
const INTERVALS: u32 = 4;

/// Times that the moment just before a checkpoint is tried for.
const ATTEMPTS: u32 = 200;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes that are mapped.
    pub mapped: u64,
    /// Bytes of map memory for overwriting and recovery; `None` for a sixteenth of the whole map,
    /// or the least that a store of this size takes.
    pub map_memory: Option<u64>,
    /// Told how far it is.
    pub progress: Progress,
}

impl Default for Options {
    fn default() -> Options {
        Options { mapped: 256 << 30, map_memory: None, progress: Progress::default() }
    }
}

/// One crash and what followed.
#[derive(Clone, Debug, Serialize)]
pub struct Crash {
    /// Requests at once before the crash: 1 makes records of one block.
    pub queue_depth: u32,
    /// Seconds from opening to a block read and verified: CPU time, and waiting for a device of
    /// 100 microseconds and 2 GB/s.
    pub seconds_to_first_io: f64,
    /// Of that, CPU time of the one thread.
    pub cpu_seconds_to_first_io: f64,
    /// Of that, waiting.
    pub device_wait_seconds_to_first_io: f64,
    /// Seconds by the clock on the wall, on a device that takes no time.
    pub wall_seconds_to_first_io: f64,
    /// The same until writes were accepted: after the first checkpoint.
    pub wall_seconds_to_first_write: f64,
    /// Read commands up to the first I/O.
    pub device_reads: u64,
    /// Bytes that they asked for.
    pub device_read_bytes: u64,
    /// Most commands that were out at once.
    pub device_depth: usize,
    /// Records behind the checkpoint that were applied again.
    pub records_replayed: u64,
    /// Host blocks written since the checkpoint.
    pub blocks_since_checkpoint: u64,
    /// Runs alive.
    pub runs: u64,
    /// Most bytes that the map held from opening to the first I/O.
    pub peak_map_bytes: u64,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Seconds from opening to a block read and verified, after the worse of the two crashes: CPU
    /// time, and waiting for a device of 100 microseconds and 2 GB/s.
    pub seconds_to_first_io: f64,
    /// Of that, CPU time of the one thread.
    pub cpu_seconds_to_first_io: f64,
    /// Of that, waiting for the modelled device.
    pub device_wait_seconds_to_first_io: f64,
    /// Most bytes that the map held after it was opened with the small map memory.
    pub peak_map_bytes: u64,
    /// Bytes that it was allowed.
    pub map_limit_bytes: u64,
    /// Bytes that the whole map would take.
    pub full_map_bytes: u64,
    /// Bytes mapped.
    pub mapped_bytes: u64,
    /// Metadata blocks written per block that the host wrote, at random, in full records.
    pub metadata_fraction: f64,
    /// The same by cause.
    pub metadata_fractions: MetadataShares,
    /// Host blocks per record while that was measured; 250 single ones are full where the map is not whole.
    pub blocks_per_record: f64,
    /// Blocks written to the device per block that the host wrote, while that was measured.
    pub write_amplification: f64,
    /// Host blocks over which that was measured.
    pub overwritten_blocks: u64,
    /// Random writes per second of CPU time, with the small map memory.
    pub overwrites_per_second: f64,
    /// Seconds that building the store took.
    pub seconds_to_build: f64,
    /// Each crash.
    pub crashes: Vec<Crash>,
}

impl Report {
    /// The figures as text.
    pub fn table(&self) -> String {
        let mut table = Figures::default();
        let milliseconds = |seconds: f64| format!("{:.1} ms", seconds * 1e3);
        table
            .row("mapped", bytes(self.mapped_bytes), {
                format!("in random blocks of 4 KiB, built in {:.0} s", self.seconds_to_build)
            })
            .row("map memory", bytes(self.map_limit_bytes), {
                format!("the whole map would take {}", bytes(self.full_map_bytes))
            })
            .row("  peak", bytes(self.peak_map_bytes), "")
            .row("time to first I/O", milliseconds(self.seconds_to_first_io), {
                let wait = milliseconds(self.device_wait_seconds_to_first_io);
                format!("{wait} of it waiting for a device of 100 us and 2 GB/s")
            });
        for crash in &self.crashes {
            table
                .row(
                    &format!("  killed at queue depth {}", crash.queue_depth),
                    milliseconds(crash.seconds_to_first_io),
                    format!("CPU time {}", milliseconds(crash.cpu_seconds_to_first_io)),
                )
                .row("    read", bytes(crash.device_read_bytes), {
                    format!(
                        "in {} commands, at most {} at once",
                        crash.device_reads, crash.device_depth
                    )
                })
                .row("    records replayed", crash.records_replayed.to_string(), {
                    format!("{} host blocks, {} runs", crash.blocks_since_checkpoint, crash.runs)
                })
                .row(
                    "    by the clock, no device",
                    milliseconds(crash.wall_seconds_to_first_io),
                    format!(
                        "writes accepted after {}",
                        milliseconds(crash.wall_seconds_to_first_write)
                    ),
                );
        }
        table
            .row("overwrites", rate(self.overwrites_per_second), {
                format!("per core, {:.0} blocks in a record", self.blocks_per_record)
            })
            .row("metadata written", percent(self.metadata_fraction), "of the host's blocks");
        self.metadata_fractions.add_to(&mut table);
        table.text()
    }
}

/// Measures.
///
/// # Errors
/// When the options do not make a store, or the engine misbehaves.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    let mut bench = Bench::new(options)?;
    let clock = Instant::now();
    bench.build(options)?;
    let seconds_to_build = clock.elapsed().as_secs_f64();
    let overwriting = bench.overwrite(options)?;
    let mut crashes = Vec::new();
    for depth in [DEPTH, 1] {
        options.progress.report("crashing", f64::from(DEPTH - depth) / f64::from(DEPTH));
        crashes.push(bench.crash(depth)?);
    }
    let end = bench.rig.engine.statistics();
    let slowest = crashes
        .iter()
        .max_by(|a, b| a.seconds_to_first_io.total_cmp(&b.seconds_to_first_io))
        .expect("there were crashes")
        .clone();
    let peaks = crashes.iter().map(|crash| crash.peak_map_bytes);
    let metadata_fractions = MetadataShares::between(&overwriting.before, &overwriting.after);
    let records = overwriting.after.user_header_blocks - overwriting.before.user_header_blocks;
    Ok(Report {
        seconds_to_first_io: slowest.seconds_to_first_io,
        cpu_seconds_to_first_io: slowest.cpu_seconds_to_first_io,
        device_wait_seconds_to_first_io: slowest.device_wait_seconds_to_first_io,
        peak_map_bytes: peaks
            .chain([overwriting.after.map_bytes_peak, end.map_bytes_peak])
            .max()
            .unwrap_or(0),
        map_limit_bytes: bench.map_memory,
        full_map_bytes: bench.volume_size * 8,
        mapped_bytes: bench.volume_size * BLOCK_SIZE as u64,
        metadata_fraction: metadata_fractions.sum(),
        metadata_fractions,
        blocks_per_record: overwriting.blocks as f64 / records.max(1) as f64,
        write_amplification: write_amplification(&overwriting.before, &overwriting.after),
        overwritten_blocks: overwriting.blocks,
        overwrites_per_second: overwriting.blocks as f64 / overwriting.cpu_seconds,
        seconds_to_build,
        crashes,
    })
}

/// What happened while the mapped blocks were overwritten at random.
pub(crate) struct Overwriting {
    pub(crate) before: Statistics,
    pub(crate) after: Statistics,
    pub(crate) blocks: u64,
    cpu_seconds: f64,
}

/// A large store.
pub(crate) struct Bench {
    rig: Rig,
    pub(crate) volume_size: u64,
    pub(crate) map_memory: u64,
    addresses: Addresses,
}

impl Bench {
    /// Makes an empty one.
    pub(crate) fn new(options: &Options) -> Result<Bench, BenchError> {
        let volume_size = options.mapped / BLOCK_SIZE as u64;
        // Small stores get small segments, so that there are enough of them to choose from.
        let segment_size = (volume_size / 512).clamp(256, 8192).next_power_of_two();
        let device_size = (volume_size.saturating_mul(100 + SPARE_PERCENT) / 100)
            .max(32 * segment_size)
            .next_multiple_of(segment_size)
            + segment_size;
        let least = map_size_min(device_size);
        let map_memory = options.map_memory.unwrap_or((volume_size / 2).max(least));
        let create_options = CreateOptions {
            device_size,
            sparse: None,
            volume_size: Some(volume_size),
            segment_blocks: segment_size as u32,
            spare_percent: SPARE_PERCENT as u32,
            store: StoreId { uuid: *b"bench recovery !", salt: 1 },
            label: [0; 64],
            map_size: Some(map_memory),
            journal_size: None,
            run_count_limit: None,
            page_blocks: None,
        };
        let (_, blocks) = create(&create_options).map_err(|error| {
            BenchError::option(format!("no store of this size can be laid out: {error}"))
        })?;
        let device = StandinDevice::with_store(device_size, &blocks);
        let full = map_size_min(volume_size) + volume_size * 9;
        let rig = Rig::open(config(full.max(map_memory)), device, DEPTH)?;
        let addresses = Pattern::Uniform.over(volume_size, 7);
        Ok(Bench { rig, volume_size, map_memory, addresses })
    }

    /// Writes every block once, in random order.
    pub(crate) fn build(&mut self, options: &Options) -> Result<(), BenchError> {
        let order = Permutation::new(self.volume_size, 3);
        for place in 0..self.volume_size {
            if place.is_multiple_of(1 << 20) {
                options.progress.report("mapping", place as f64 / self.volume_size as f64);
            }
            self.rig.write(order.at(place), 1)?;
        }
        self.rig.shut_down()?;
        Ok(())
    }

    /// Opens with little memory and overwrites at random.
    pub(crate) fn overwrite(&mut self, options: &Options) -> Result<Overwriting, BenchError> {
        self.reopen()?;
        let warm_up = self.volume_size / 12;
        let blocks = self.volume_size / 16;
        self.write_random(warm_up, "overwriting", options)?;
        let before = self.rig.engine.statistics();
        let clock = CpuClock::start();
        self.write_random(blocks, "measuring", options)?;
        let cpu_seconds = clock.seconds();
        Ok(Overwriting { before, after: self.rig.engine.statistics(), blocks, cpu_seconds })
    }

    fn write_random(
        &mut self,
        count: u64,
        step: &str,
        options: &Options,
    ) -> Result<(), BenchError> {
        for written in 0..count {
            if written.is_multiple_of(1 << 18) {
                options.progress.report(step, written as f64 / count as f64);
            }
            self.rig.write(self.addresses.address(), 1)?;
        }
        Ok(())
    }

    fn reopen(&mut self) -> Result<(), BenchError> {
        let device = self.take_device();
        self.rig = Rig::open(config(Some(self.map_memory)), device, DEPTH)?;
        Ok(())
    }

    /// Drops the engine, whatever it is doing.
    fn take_device(&mut self) -> StandinDevice {
        let nothing = StandinDevice::with_store(1024, &[]);
        let rig = Rig::begin_to_open(config(None), nothing, DEPTH);
        std::mem::replace(&mut self.rig, rig).kill()
    }

    /// Writes up to just before a checkpoint, kills the engine, and opens the store again.
    fn crash(&mut self, depth: u32) -> Result<Crash, BenchError> {
        self.rig.set_depth(depth);
        let blocks = self.write_to_worst_moment(depth)?;
        let device = self.take_device();
        self.recover(device, depth, blocks)
    }

    /// Writes almost as much after a checkpoint as can fit between two. Returns how much.
    fn write_to_worst_moment(&mut self, depth: u32) -> Result<u64, BenchError> {
        // The first interval may have begun with requests of another depth.
        self.write_to_checkpoint(depth)?;
        let mut longest = 0;
        for _ in 0..INTERVALS {
            longest = longest.max(self.write_to_checkpoint(depth)?);
        }
        let mut blocks = longest - (longest / 64).max(1);
        for _ in 0..ATTEMPTS {
            let checkpoints = self.rig.engine.statistics().checkpoints;
            for _ in 0..blocks {
                self.write_one(depth)?;
            }
            if self.rig.engine.statistics().checkpoints == checkpoints {
                return Ok(blocks);
            }
            // Not every interval is as long as the longest.
            blocks -= (blocks / 64).max(1);
            self.write_to_checkpoint(depth)?;
        }
        let what = "checkpoints come too irregularly to crash just before one".to_string();
        Err(BenchError::Misbehaved { what })
    }

    /// One random write; with a depth of 1 it is waited for, so that it is a record of its own.
    fn write_one(&mut self, depth: u32) -> Result<(), BenchError> {
        self.rig.write(self.addresses.address(), 1)?;
        if depth == 1 {
            self.rig.drain()?;
        }
        Ok(())
    }

    /// Writes until a checkpoint becomes durable; returns how many blocks that took.
    fn write_to_checkpoint(&mut self, depth: u32) -> Result<u64, BenchError> {
        let start = self.rig.engine.statistics().checkpoints;
        let mut written = 0;
        // Gathering the statistics takes longer than a write.
        while written % 16 != 0 || self.rig.engine.statistics().checkpoints == start {
            self.write_one(depth)?;
            written += 1;
        }
        Ok(written)
    }

    fn recover(
        &mut self,
        device: StandinDevice,
        depth: u32,
        blocks_since_checkpoint: u64,
    ) -> Result<Crash, BenchError> {
        let reads_before = device.counts;
        let target = self.addresses.address();
        let (clock, cpu) = (Instant::now(), CpuClock::start());
        self.rig = Rig::begin_to_open(config(Some(self.map_memory)), device, DEPTH);
        let preparing = cpu.seconds();
        self.rig.set_data(Data::Handled);
        let opening = self.rig.open_modelled(DeviceModel::SSD, target)?;
        let wall_seconds = clock.elapsed().as_secs_f64();
        let counts = self.rig.device.counts;
        let statistics = self.rig.engine.statistics();
        self.rig.set_data(Data::Ignored);
        while self.rig.engine.phase() != Phase::Running {
            self.rig.turn()?;
        }
        Ok(Crash {
            queue_depth: depth,
            seconds_to_first_io: preparing + opening.seconds,
            cpu_seconds_to_first_io: preparing + opening.cpu_seconds,
            device_wait_seconds_to_first_io: opening.waited_seconds,
            wall_seconds_to_first_io: wall_seconds,
            wall_seconds_to_first_write: clock.elapsed().as_secs_f64(),
            device_reads: counts.reads - reads_before.reads,
            device_read_bytes: (counts.blocks_read - reads_before.blocks_read) * BLOCK_SIZE as u64,
            device_depth: opening.depth_max,
            records_replayed: statistics.records_replayed,
            blocks_since_checkpoint,
            runs: statistics.run_count,
            peak_map_bytes: statistics.map_bytes_peak.max(statistics.map_bytes),
        })
    }
}

fn config(map_size: impl Into<Option<u64>>) -> Config {
    Config { map_size: map_size.into(), request_count: DEPTH, trim: true, ..Config::default() }
}
