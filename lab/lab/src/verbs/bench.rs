//! `coulter-lab bench`: measures, side by side in one run.

use crate::error::{LabError, TrialError};
use crate::terminal;
use clap::{Args, Subcommand};
use coulter_bench::cleaning::{Config, Placement, Reclaim, Reserve, VictimPolicy};
use coulter_bench::{
    BenchError, Limits, Progress, cleaning, engine, fill, fragmentation, recovery, replicate,
    sparse, turns, volume,
};
use coulter_cli::choices::{by_name, named};
use coulter_daemon::opening::Acknowledge;
use coulter_terminal::ProgressBar;
use coulter_terminal::Size;
use coulter_workload::Pattern;
use serde::Serialize;
use std::path::PathBuf;

/// Run a benchmark; both sides of a comparison take turns in one run.
///
/// docs/benchmarking.md explains each figure.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter-lab bench volume --json
  coulter-lab bench volume --limits cloud --size 1G
  coulter-lab bench engine
  coulter-lab bench recovery --mapped 256G --json
  coulter-lab bench cleaning --workload zipf:0.99 --spare 17.65% --json
  coulter-lab bench cleaning --metadata --mapped 256G --json
  coulter-lab bench fill --size 4G --full 90% --passes 10
  coulter-lab bench fragmentation --size 1G")]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) what: What,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum What {
    Volume(VolumeBench),
    Engine(EngineBench),
    Recovery(RecoveryBench),
    Cleaning(CleaningBench),
    Fill(FillBench),
    Fragmentation(FragmentationBench),
    Turns(TurnsBench),
    Sparse(SparseBench),
    Replicate(ReplicateBench),
}

/// Measure a store that is shipped to a service of objects, against the same store alone
#[derive(Debug, Args)]
pub(crate) struct ReplicateBench {
    /// Directory for the measured files, or a prefix of their names; they are removed afterwards
    /// [default: the directory for temporary files]
    #[arg(long, value_name = "PATH")]
    pub(crate) backing: Option<PathBuf>,

    /// Size of the volume
    #[arg(long, default_value = "512M")]
    pub(crate) size: Size,

    /// Seconds to measure each load
    #[arg(long, default_value = "10", value_parser = parse_seconds)]
    pub(crate) seconds: f64,

    /// Put the service next door: no delay, no limit [default: 60 ms for a GET, 100 ms for a PUT, 200 MB/s for
    /// a connection]
    #[arg(long)]
    pub(crate) near: bool,

    /// Measure writes with flushes only, against s3backer on one bucket of versitygw; both programs must be installed
    #[arg(long)]
    pub(crate) rival: bool,

    /// Throttle the device: cloud (1 ms, 3000 operations of up to 256 KiB and 125 MiB per second),
    /// or a list such as latency=1ms,iops=3000,bandwidth=125M
    #[arg(long, value_name = "LIMITS", value_parser = crate::limits::parse_limits)]
    pub(crate) limits: Option<Limits>,

    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Measure the longest call into the engine, on stores of up to 16 TiB
#[derive(Debug, Args)]
pub(crate) struct TurnsBench {
    /// Size of the device, up to 16T; it takes no space
    #[arg(long, default_value = "1T")]
    pub(crate) size: Size,

    /// Blocks to overwrite at random while measuring
    #[arg(long, default_value = "1000000", value_name = "BLOCKS")]
    pub(crate) writes: u64,

    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Measure what the map takes of memory, where a volume is touched here and there, and after a crash
#[derive(Debug, Args)]
pub(crate) struct SparseBench {
    /// Size of the address space
    #[arg(long, default_value = "1T")]
    pub(crate) addresses: Size,

    /// How much of it is written
    #[arg(long, default_value = "1G", value_name = "SIZE")]
    pub(crate) touched: Size,

    /// Write it from address 0 on [default: single blocks, equally far apart]
    #[arg(long)]
    pub(crate) dense: bool,

    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Compare random writes and reads of a volume with the same on a file
#[derive(Debug, Args)]
pub(crate) struct VolumeBench {
    /// Directory for the measured files, or a prefix of their names; they are removed afterwards
    /// [default: the directory for temporary files]
    #[arg(long, value_name = "PATH")]
    pub(crate) backing: Option<PathBuf>,

    /// Bytes written to on each side
    #[arg(long, default_value = "2G")]
    pub(crate) size: Size,

    /// Seconds to measure each load
    #[arg(long, default_value = "10", value_parser = parse_seconds)]
    pub(crate) seconds: f64,

    /// Over-provisioning of the store, as a share of the volume; a small share measures cleaning
    /// too
    #[arg(long, value_name = "PERCENT", value_parser = coulter_cli::new_store::parse_percent)]
    pub(crate) spare: Option<u32>,

    /// Limit of the map's memory [default: the whole map]
    #[arg(long, value_name = "SIZE")]
    pub(crate) map_memory: Option<Size>,

    /// When the volume acknowledges a write: `written`, after the device completes it; `buffered`,
    /// from memory
    #[arg(long, default_value = "written", value_name = "WHEN")]
    #[arg(value_parser = named(&Acknowledge::NAMED))]
    pub(crate) acknowledge: Acknowledge,

    /// Throttle the device: cloud (1 ms, 3000 operations of up to 256 KiB and 125 MiB per second),
    /// or a list such as latency=1ms,iops=3000,bandwidth=125M
    #[arg(long, value_name = "LIMITS", value_parser = crate::limits::parse_limits)]
    pub(crate) limits: Option<Limits>,

    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Measure the engine alone, on one core, without a device
#[derive(Debug, Args)]
pub(crate) struct EngineBench {
    /// Size of the volume
    #[arg(long, default_value = "4G")]
    pub(crate) size: Size,

    /// Seconds to measure each kind of work
    #[arg(long, default_value = "5", value_parser = parse_seconds)]
    pub(crate) seconds: f64,

    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Measure the time from a crash to the first I/O, with a large map and little memory
#[derive(Debug, Args)]
pub(crate) struct RecoveryBench {
    /// Mapped bytes, in random blocks of 4 KiB
    #[arg(long, default_value = "256G")]
    pub(crate) mapped: Size,

    /// Limit of the map's memory [default: 1/16 of the full map]
    #[arg(long, value_name = "SIZE")]
    pub(crate) map_memory: Option<Size>,

    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Measure write amplification in steady state, by cause; the engine without a device
#[derive(Debug, Args)]
pub(crate) struct CleaningBench {
    /// Blocks that the host overwrites: uniform, zipf:THETA, shift:THETA (the hottest fifth is
    /// shuffled all the time), sequential, or hot:PERCENT:ACCESS_PERCENT
    #[arg(long, default_value = "uniform", conflicts_with = "metadata")]
    pub(crate) workload: Pattern,

    /// Minimum number of blocks of the volume
    #[arg(long, default_value = "1048576", conflicts_with = "metadata")]
    pub(crate) blocks: u64,

    /// Blocks of a segment [default: the power of two nearest to 1 % of the volume]
    #[arg(long, conflicts_with = "metadata")]
    pub(crate) segment_blocks: Option<u32>,

    /// Mean garbage, as a share of the volume; with --reserve, all space of the log beyond the
    /// volume except the reserve
    #[arg(long, default_value = "17.65%", value_name = "PERCENT", value_parser = parse_share)]
    #[arg(conflicts_with = "metadata")]
    pub(crate) spare: f64,

    /// Additional segments to work in; with 0, metadata and empty segments come out of the spare
    /// space [default: the measured need besides garbage, to the block]
    #[arg(long, conflicts_with = "metadata", value_name = "SEGMENTS")]
    pub(crate) reserve: Option<u32>,

    /// Which segment is cleaned next
    #[arg(long, default_value_t, conflicts_with = "metadata", value_parser = by_name::<VictimPolicy>())]
    pub(crate) policy: VictimPolicy,

    /// Which blocks share segments
    #[arg(long, default_value_t, conflicts_with = "metadata", value_parser = by_name::<Placement>())]
    pub(crate) placement: Placement,

    /// How space is reclaimed
    #[arg(long, default_value_t, conflicts_with = "metadata", value_parser = by_name::<Reclaim>())]
    pub(crate) reclaim: Reclaim,

    /// Minimum number of overwrites of the volume before measuring
    #[arg(long, default_value = "6", conflicts_with = "metadata", value_name = "PASSES")]
    pub(crate) warm_up: u32,

    /// Overwrites of the volume while measuring
    #[arg(long, default_value = "6", conflicts_with = "metadata")]
    pub(crate) passes: u32,

    /// Seed of the workload
    #[arg(long, default_value = "1", conflicts_with = "metadata")]
    pub(crate) seed: u64,

    /// Requests in flight
    #[arg(long, default_value = "1024", conflicts_with = "metadata", value_name = "REQUESTS")]
    pub(crate) queue_depth: u32,

    /// Limit of the map's memory [default: the whole map; with --metadata 1/16 of it]
    #[arg(long, value_name = "SIZE")]
    pub(crate) map_memory: Option<Size>,

    /// Measure the cost of metadata instead, with a large map and little memory for it
    #[arg(long)]
    pub(crate) metadata: bool,

    /// With --metadata: bytes that are mapped, in random blocks of 4 KiB
    #[arg(long, default_value = "256G", requires = "metadata")]
    pub(crate) mapped: Size,

    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Fill a volume to its last block and overwrite it at random, many times
#[derive(Debug, Args)]
pub(crate) struct FillBench {
    /// Directory for the measured file, or its name; it is removed afterwards [default: the
    /// directory for temporary files]
    #[arg(long, value_name = "PATH")]
    pub(crate) backing: Option<PathBuf>,

    /// Size of the volume
    #[arg(long, default_value = "1G")]
    pub(crate) size: Size,

    /// Share of the volume that is filled and overwritten
    #[arg(long, default_value = "100%", value_name = "PERCENT")]
    #[arg(value_parser = coulter_cli::new_store::parse_percent)]
    pub(crate) full: u32,

    /// Bytes to write, as a multiple of the volume's size
    #[arg(long, default_value = "10")]
    pub(crate) passes: u64,

    /// Over-provisioning of the store, as a share of the volume
    #[arg(long, default_value = "20%", value_name = "PERCENT")]
    #[arg(value_parser = coulter_cli::new_store::parse_percent)]
    pub(crate) spare: u32,

    /// Limit of the map's memory [default: the whole map]
    #[arg(long, value_name = "SIZE")]
    pub(crate) map_memory: Option<Size>,

    /// Throttle the device: cloud (1 ms, 3000 operations of up to 256 KiB and 125 MiB per second),
    /// or a list such as latency=1ms,iops=3000,bandwidth=125M
    #[arg(long, value_name = "LIMITS", value_parser = crate::limits::parse_limits)]
    pub(crate) limits: Option<Limits>,

    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Measure sequential reads after random writes, before and after `defrag`
#[derive(Debug, Args)]
pub(crate) struct FragmentationBench {
    /// Directory for the measured file, or its name; it is removed afterwards [default: the
    /// directory for temporary files]
    #[arg(long, value_name = "PATH")]
    pub(crate) backing: Option<PathBuf>,

    /// Size of the volume
    #[arg(long, default_value = "1G")]
    pub(crate) size: Size,

    /// Which blocks are overwritten, as in `bench cleaning`
    #[arg(long, default_value = "uniform")]
    pub(crate) workload: Pattern,

    /// Bytes to overwrite, as a multiple of the volume's size
    #[arg(long, default_value = "2")]
    pub(crate) passes: u64,

    /// Over-provisioning of the store, as a share of the volume
    #[arg(long, default_value = "20%", value_name = "PERCENT")]
    #[arg(value_parser = coulter_cli::new_store::parse_percent)]
    pub(crate) spare: u32,

    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=86_400.0).contains(&seconds) => Ok(seconds),
        Ok(_) => Err("from 0.01 seconds to a day".to_owned()),
        Err(_) => Err("not a number of seconds".to_owned()),
    }
}

/// A share in percent, with or without the sign.
pub(crate) fn parse_share(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>();
    let percent = number.map_err(|_| "not a number of percent".to_owned())?;
    if percent.is_finite() && percent > 0.0 && percent <= 10_000.0 {
        return Ok(percent / 100.0);
    }
    Err("above 0 % and at most 10000 %".to_owned())
}

impl Bench {
    pub(crate) fn run(&self) -> Result<(), LabError> {
        match &self.what {
            What::Volume(bench) => bench.run(),
            What::Replicate(bench) => bench.run(),
            What::Turns(bench) => bench.run(),
            What::Sparse(bench) => bench.run(),
            What::Engine(bench) => bench.run(),
            What::Recovery(bench) => bench.run(),
            What::Cleaning(bench) => bench.run(),
            What::Fill(bench) => bench.run(),
            What::Fragmentation(bench) => bench.run(),
        }
    }
}

impl VolumeBench {
    fn run(&self) -> Result<(), LabError> {
        let default = volume::Options::default();
        let report = measure("volume", |progress| {
            volume::run(&volume::Options {
                backing: self.backing.clone(),
                size: self.size.0,
                spare_percent: self.spare.unwrap_or(default.spare_percent),
                seconds: self.seconds,
                map_memory: self.map_memory.map(|size| size.0),
                acknowledge: self.acknowledge.into(),
                limits: self.limits,
                progress,
            })
        })?;
        print(self.json, &report, || report.table())
    }
}

impl EngineBench {
    fn run(&self) -> Result<(), LabError> {
        let default = engine::Options::default();
        let (size, seconds) = (self.size.0, self.seconds);
        let report = measure("engine", |progress| {
            engine::run(&engine::Options { size, seconds, progress, ..default })
        })?;
        print(self.json, &report, || report.table())
    }
}

impl TurnsBench {
    fn run(&self) -> Result<(), LabError> {
        let (size, writes) = (self.size.0, self.writes);
        let report = measure("turns", |progress| {
            turns::run(&turns::Options { size, writes, progress, ..turns::Options::default() })
        })?;
        print(self.json, &report, || report.table())
    }
}

impl SparseBench {
    fn run(&self) -> Result<(), LabError> {
        let (addresses, touched, dense) = (self.addresses.0, self.touched.0, self.dense);
        let report = measure("sparse", |progress| {
            sparse::run(&sparse::Options { addresses, touched, dense, progress })
        })?;
        print(self.json, &report, || report.table())
    }
}

impl RecoveryBench {
    fn run(&self) -> Result<(), LabError> {
        let (mapped, map_memory) = (self.mapped.0, self.map_memory.map(|size| size.0));
        let report = measure("recovery", |progress| {
            recovery::run(&recovery::Options { mapped, map_memory, progress })
        })?;
        print(self.json, &report, || report.table())
    }
}

impl CleaningBench {
    fn run(&self) -> Result<(), LabError> {
        let map_memory = self.map_memory.map(|size| size.0);
        if self.metadata {
            let mapped = self.mapped.0;
            let report = measure("cleaning", |progress| {
                cleaning::mapped::run(&cleaning::mapped::Options { mapped, map_memory, progress })
            })?;
            return print(self.json, &report, || report.table());
        }
        let report = measure("cleaning", |progress| {
            cleaning::run(&cleaning::Options {
                workload: self.workload,
                shape: cleaning::Shape {
                    blocks: self.blocks,
                    segment_blocks: self.segment_blocks,
                    spare: self.spare,
                    reserve: Reserve::Segments(self.reserve.unwrap_or(0)),
                    map_memory,
                    queue_depth: self.queue_depth,
                },
                spare_is_garbage: self.reserve.is_none(),
                config: Config {
                    victims: self.policy,
                    placement: self.placement,
                    reclaim: self.reclaim,
                    ..Config::default()
                },
                warm_up: self.warm_up,
                passes: self.passes,
                seed: self.seed,
                progress,
            })
        })?;
        print(self.json, &report, || report.table())
    }
}

impl FillBench {
    fn run(&self) -> Result<(), LabError> {
        let default = fill::Options::default();
        let report = measure("fill", |progress| {
            fill::run(&fill::Options {
                backing: self.backing.clone(),
                size: self.size.0,
                full_percent: self.full,
                passes: self.passes,
                spare_percent: self.spare,
                map_memory: self.map_memory.map(|size| size.0),
                limits: self.limits,
                progress,
                ..default
            })
        })?;
        print(self.json, &report, || report.table())
    }
}

impl ReplicateBench {
    fn run(&self) -> Result<(), LabError> {
        let options = |progress| replicate::Options {
            backing: self.backing.clone(),
            size: self.size.0,
            seconds: self.seconds,
            distance: match self.near {
                true => replicate::Distance::default(),
                false => replicate::Distance::REGION,
            },
            limits: self.limits,
            progress,
        };
        if self.rival {
            let run = |progress| replicate::rival::run(&options(progress));
            let report = measure("replicate --rival", run)?;
            return print(self.json, &report, || report.table());
        }
        let report = measure("replicate", |progress| replicate::run(&options(progress)))?;
        print(self.json, &report, || report.table())
    }
}

impl FragmentationBench {
    fn run(&self) -> Result<(), LabError> {
        let report = measure("fragmentation", |progress| {
            fragmentation::run(&fragmentation::Options {
                backing: self.backing.clone(),
                size: self.size.0,
                spare_percent: self.spare,
                passes: self.passes,
                pattern: self.workload,
                progress,
            })
        })?;
        print(self.json, &report, || report.table())
    }
}

/// A bar on a terminal, and where its progress is reported to.
pub(crate) fn progress_bar(name: &'static str) -> (ProgressBar, Progress) {
    const STEPS: f64 = 1000.0;
    let bar = terminal::progress_of_count(name, STEPS as u64);
    let shown = bar.clone();
    let progress = Progress::to(move |step, share| {
        shown.set_message(step.to_owned());
        shown.set_position((share * STEPS) as u64);
    });
    (bar, progress)
}

/// Runs a measurement, showing on a terminal how far it is.
fn measure<R>(
    name: &'static str,
    run: impl FnOnce(Progress) -> Result<R, BenchError>,
) -> Result<R, LabError> {
    let (bar, progress) = progress_bar(name);
    let result = run(progress);
    bar.finish_and_clear();
    result.map_err(|error| {
        let is_usage = matches!(error, BenchError::Option { .. });
        TrialError::Bench { name, reason: with_causes(&error), is_usage }.into()
    })
}

/// An error and what led to it, in one line.
fn with_causes(error: &BenchError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let said = error.to_string();
        // Some say already what led to them.
        if !text.ends_with(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}

fn print(json: bool, report: &impl Serialize, table: impl Fn() -> String) -> Result<(), LabError> {
    if json { terminal::print_json(report) } else { terminal::print(table().trim_end()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_led_to_an_error_is_told_once() {
        let source = std::io::Error::other("no room");
        assert_eq!(with_causes(&BenchError::Trace(source)), "the trace cannot be read: no room");
        let path = PathBuf::from("/there");
        let source = std::io::Error::other("no room");
        let told = with_causes(&BenchError::File { path, source });
        assert_eq!(told, "/there cannot be written: no room");
    }
}
