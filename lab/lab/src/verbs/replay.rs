//! `coulter-lab replay`: what a trace would cost on Coulter, and whether that is worth it.

use crate::error::{LabError, TrialError};
use crate::terminal;
use crate::verbs::bench::{parse_share, progress_bar};
use clap::Args;
use coulter_bench::BenchError;
use coulter_bench::cleaning::{Config, Placement, VictimPolicy};
use coulter_bench::replay::{self, Behaviour, Options, Report};
use coulter_cli::choices::by_name;
use coulter_cli::output::{Kind, Output};
use coulter_workload::trace::{Format, ReaderOptions};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

/// Bytes read of a trace at once.
const BUFFER_SIZE: usize = 1 << 20;

/// Replay a block trace through the engine: write amplification, sequentiality, and whether Coulter
/// is worth it for this workload.
///
/// The trace is read once, as a stream. Its data is not needed, and no device is touched.
/// docs/replay.md explains the figures.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter-lab replay hm_0.csv
  blktrace -d /dev/sda -o - | blkparse -i - | coulter-lab replay - --plot sda.svg
  coulter-lab replay trace.csv --spare 7%,20%,50% --json")]
pub(crate) struct Replay {
    /// The trace, or `-` for standard input
    #[arg(value_name = "TRACE")]
    pub(crate) path: PathBuf,

    /// Format of the trace: blkparse, msr, iolog (fio), csv, alibaba, tencent or mqsim [default:
    /// detected from its first lines]
    #[arg(long)]
    pub(crate) format: Option<Format>,

    /// Replay only this device, if the trace has several
    #[arg(long)]
    pub(crate) device: Option<String>,

    /// The action to use from blkparse's output, such as Q (queued) or D (sent to the device)
    #[arg(long, default_value = "Q")]
    pub(crate) action: String,

    /// Over-provisioning to compare, as shares of the bytes that the trace writes
    #[arg(long, value_name = "PERCENT,…", default_value = "10%,20%,40%")]
    #[arg(value_delimiter = ',', value_parser = parse_share)]
    pub(crate) spare: Vec<f64>,

    /// Overwrites of everything before measuring, and while measuring
    #[arg(long, default_value = "3")]
    pub(crate) passes: u32,

    /// Refuse a trace with an invalid line, instead of skipping the line
    #[arg(long)]
    pub(crate) strict: bool,

    /// Which segment is cleaned next, several separated by commas
    #[arg(long, value_name = "POLICY", value_delimiter = ',', default_value = "damped-age,greedy")]
    #[arg(value_parser = by_name::<VictimPolicy>())]
    pub(crate) policy: Vec<VictimPolicy>,

    /// Which blocks share segments, several separated by commas
    #[arg(long, value_name = "PLACEMENT", value_delimiter = ',', default_value = "lifetime,apart")]
    #[arg(value_parser = by_name::<Placement>())]
    pub(crate) placement: Vec<Placement>,

    /// Draw write amplification over spare space, as SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,

    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl Replay {
    pub(crate) fn run(&self) -> Result<(), LabError> {
        let plot = self.plot.as_deref().map(|path| Output::check(path, Kind::SVG)).transpose()?;
        let source = BufReader::with_capacity(BUFFER_SIZE, self.open()?);
        let (bar, progress) = progress_bar("replay");
        let options = Options {
            reader: ReaderOptions {
                format: self.format,
                device: self.device.clone(),
                action: Some(self.action.clone()),
            },
            strict: self.strict,
            spares: self.spare.clone(),
            passes: self.passes,
            behaviours: self.behaviours(),
            progress,
        };
        let report = replay::run(source, &options);
        bar.finish_and_clear();
        let report = report.map_err(|error| self.failed(&error))?;
        self.tell(&report, plot.as_ref())
    }

    /// Each placement with each policy; the advice is about the first.
    fn behaviours(&self) -> Vec<Behaviour> {
        let with = |placement: Placement| {
            self.policy.iter().map(move |policy| Behaviour {
                name: format!("{placement}, {policy}"),
                config: Config { placement, victims: *policy, ..Config::default() },
            })
        };
        self.placement.iter().flat_map(|placement| with(*placement)).collect()
    }

    fn open(&self) -> Result<Box<dyn Read>, LabError> {
        if self.path == Path::new("-") {
            return Ok(Box::new(io::stdin()));
        }
        let file = File::open(&self.path);
        let file = file.map_err(|source| LabError::io("open", &self.path, source))?;
        Ok(Box::new(file))
    }

    fn tell(&self, report: &Report, plot: Option<&Output>) -> Result<(), LabError> {
        if let Some(plot) = plot {
            plot.write(replay::plot(report).as_bytes())?;
        }
        if report.trace.bad_lines > 0 {
            let (bad, lines) = (report.trace.bad_lines, report.trace.lines);
            terminal::note(&format!("left out {bad} of {lines} lines that cannot be understood"));
        }
        if self.json {
            terminal::print_json(report)
        } else {
            terminal::print(report.text().trim_end())
        }
    }

    fn failed(&self, error: &BenchError) -> LabError {
        let reason = error.to_string();
        let path = self.path.clone();
        match error {
            BenchError::Option { .. } => {
                TrialError::Bench { name: "replay", reason, is_usage: true }.into()
            }
            BenchError::BadLine { .. } => {
                TrialError::BadTrace { path, reason, strict: true }.into()
            }
            _ => TrialError::BadTrace { path, reason, strict: false }.into(),
        }
    }
}
