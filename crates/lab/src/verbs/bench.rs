//! `coulter-lab bench`: measures, side by side in one run.

use crate::error::{LabError, TrialError};
use crate::terminal;
use clap::{Args, Subcommand};
use coulter_bench::cleaning::{Config, Placement, Reclaim, Reserve, VictimPolicy};
use coulter_bench::{
    BenchError, Limits, Progress, cleaning, engine, fill, fragmentation, recovery, turns, volume,
};
use coulter_cli::choices::{by_name, named};
use coulter_daemon::opening::Acknowledge;
use coulter_terminal::Size;
use coulter_workload::Pattern;
use indicatif::ProgressBar;
use serde::Serialize;
use std::path::PathBuf;

/// Measure; figures that are compared come from two sides that took turns in one run.
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
}

/// The longest call into the engine, on stores of up to 16 TiB
#[derive(Debug, Args)]
pub(crate) struct TurnsBench {
    /// Size of the device, up to 16T; it takes no room
    #[arg(long, default_value = "1T")]
    pub(crate) size: Size,

    /// Blocks that are overwritten at random while it is measured
    #[arg(long, default_value = "1000000", value_name = "BLOCKS")]
    pub(crate) writes: u64,

    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Random writes and reads through a volume, against the same straight to a file
#[derive(Debug, Args)]
pub(crate) struct VolumeBench {
    /// Directory for the files to measure on, or the first part of their names; they are removed
    /// afterwards [default: the directory for temporary files]
    #[arg(long, value_name = "PATH")]
    pub(crate) backing: Option<PathBuf>,

    /// Bytes to write to on either side
    #[arg(long, default_value = "2G")]
    pub(crate) size: Size,

    /// Measured seconds of each load
    #[arg(long, default_value = "10", value_parser = parse_seconds)]
    pub(crate) seconds: f64,

    /// Spare space of the store, as a share of the volume; little of it measures cleaning too
    #[arg(long, value_name = "PERCENT", value_parser = coulter_cli::verbs::create::parse_percent)]
    pub(crate) spare: Option<u32>,

    /// Most memory that the map may take [default: the whole map]
    #[arg(long, value_name = "SIZE")]
    pub(crate) map_memory: Option<Size>,

    /// When the volume answers writes: written, once the device has them; or buffered, from memory
    #[arg(long, default_value = "written", value_name = "WHEN")]
    #[arg(value_parser = named(&Acknowledge::NAMED))]
    pub(crate) acknowledge: Acknowledge,

    /// Hold the device back: cloud (1 ms, 3000 operations of up to 256 KiB and 125 MiB a second),
    /// or some of latency=1ms,iops=3000,bandwidth=125M
    #[arg(long, value_name = "LIMITS", value_parser = crate::limits::parse_limits)]
    pub(crate) limits: Option<Limits>,

    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The engine alone, on one core, without a device
#[derive(Debug, Args)]
pub(crate) struct EngineBench {
    /// Size of the volume
    #[arg(long, default_value = "4G")]
    pub(crate) size: Size,

    /// Measured seconds of each kind of work
    #[arg(long, default_value = "5", value_parser = parse_seconds)]
    pub(crate) seconds: f64,

    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// From a crash to the first I/O, with a large map and little memory
#[derive(Debug, Args)]
pub(crate) struct RecoveryBench {
    /// Bytes that are mapped, in random blocks of 4 KiB
    #[arg(long, default_value = "256G")]
    pub(crate) mapped: Size,

    /// Most memory that the map may take [default: 1/16 of the full map]
    #[arg(long, value_name = "SIZE")]
    pub(crate) map_memory: Option<Size>,

    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Write amplification in steady state, by its causes; the engine without a device
#[derive(Debug, Args)]
pub(crate) struct CleaningBench {
    /// What the host overwrites: uniform, zipf:THETA, shift:THETA (the popular fifth is shuffled all
    /// the time), sequential, or hot:PERCENT:ACCESS_PERCENT
    #[arg(long, default_value = "uniform", conflicts_with = "metadata")]
    pub(crate) workload: Pattern,

    /// Blocks of the volume at least
    #[arg(long, default_value = "1048576", conflicts_with = "metadata")]
    pub(crate) blocks: u64,

    /// Blocks of a segment [default: the power of two nearest to 1 % of the volume]
    #[arg(long, conflicts_with = "metadata")]
    pub(crate) segment_blocks: Option<u32>,

    /// Garbage that there is to be on average, as a share of the volume; with --reserve all that the
    /// log has beyond the volume, save the reserve
    #[arg(long, default_value = "17.65%", value_name = "PERCENT", value_parser = parse_share)]
    #[arg(conflicts_with = "metadata")]
    pub(crate) spare: f64,

    /// Segments beyond that, to work in; 0: all that is no host data comes out of the spare space
    /// [default: what is needed besides garbage, to the block, as found by measuring]
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

    /// How often the volume is overwritten at least before measuring
    #[arg(long, default_value = "6", conflicts_with = "metadata", value_name = "PASSES")]
    pub(crate) warm_up: u32,

    /// How often it is overwritten while measuring
    #[arg(long, default_value = "6", conflicts_with = "metadata")]
    pub(crate) passes: u32,

    /// Seed of the workload
    #[arg(long, default_value = "1", conflicts_with = "metadata")]
    pub(crate) seed: u64,

    /// Requests under way at once
    #[arg(long, default_value = "1024", conflicts_with = "metadata", value_name = "REQUESTS")]
    pub(crate) queue_depth: u32,

    /// Most memory that the map may take [default: the whole map; with --metadata 1/16 of it]
    #[arg(long, value_name = "SIZE")]
    pub(crate) map_memory: Option<Size>,

    /// Instead: what metadata costs when much is mapped and little of the map fits into memory
    #[arg(long)]
    pub(crate) metadata: bool,

    /// With --metadata: bytes that are mapped, in random blocks of 4 KiB
    #[arg(long, default_value = "256G", requires = "metadata")]
    pub(crate) mapped: Size,

    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A volume filled to its last block and overwritten at random, many times over
#[derive(Debug, Args)]
pub(crate) struct FillBench {
    /// Directory for the file to measure on, or its name; it is removed afterwards [default: the
    /// directory for temporary files]
    #[arg(long, value_name = "PATH")]
    pub(crate) backing: Option<PathBuf>,

    /// Size of the volume
    #[arg(long, default_value = "1G")]
    pub(crate) size: Size,

    /// How much of it is filled and overwritten
    #[arg(long, default_value = "100%", value_name = "PERCENT")]
    #[arg(value_parser = coulter_cli::verbs::create::parse_percent)]
    pub(crate) full: u32,

    /// How many times its size is written
    #[arg(long, default_value = "10")]
    pub(crate) passes: u64,

    /// Spare space of the store, as a share of the volume
    #[arg(long, default_value = "20%", value_name = "PERCENT")]
    #[arg(value_parser = coulter_cli::verbs::create::parse_percent)]
    pub(crate) spare: u32,

    /// Most memory that the map may take [default: the whole map]
    #[arg(long, value_name = "SIZE")]
    pub(crate) map_memory: Option<Size>,

    /// Hold the device back: cloud (1 ms, 3000 operations of up to 256 KiB and 125 MiB a second),
    /// or some of latency=1ms,iops=3000,bandwidth=125M
    #[arg(long, value_name = "LIMITS", value_parser = crate::limits::parse_limits)]
    pub(crate) limits: Option<Limits>,

    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What random writes do to sequential reads of a volume, and what `defrag` gives back
#[derive(Debug, Args)]
pub(crate) struct FragmentationBench {
    /// Directory for the file to measure on, or its name; it is removed afterwards [default: the
    /// directory for temporary files]
    #[arg(long, value_name = "PATH")]
    pub(crate) backing: Option<PathBuf>,

    /// Size of the volume
    #[arg(long, default_value = "1G")]
    pub(crate) size: Size,

    /// Which blocks are overwritten, as in `bench cleaning`
    #[arg(long, default_value = "uniform")]
    pub(crate) workload: Pattern,

    /// How many times its size is overwritten
    #[arg(long, default_value = "2")]
    pub(crate) passes: u64,

    /// Spare space of the store, as a share of the volume
    #[arg(long, default_value = "20%", value_name = "PERCENT")]
    #[arg(value_parser = coulter_cli::verbs::create::parse_percent)]
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
            What::Turns(bench) => bench.run(),
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
    let bar = terminal::progress(name, STEPS as u64);
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
