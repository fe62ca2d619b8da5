//! `coulter-lab report`: the published experiments, run again.

use crate::error::{LabError, TrialError};
use crate::terminal;
use clap::Args;
use coulter_cli::output::{Kind, Output};
use coulter_flash::report::{EXPERIMENTS, Experiment, Outcome, Scale, Setting, page};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Repeat the published experiments on emulated drives, and write one HTML page
///
/// Times are virtual: the same version, scale and seed give the same page, byte for byte. An
/// interrupted report resumes when it is started again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter-lab report                      minutes, into coulter-report.html
  coulter-lab report --short --output r.html  seconds
  coulter-lab report --only D16,D17 --json    some of them, as figures
  coulter-lab report --measured overlay.json  with the mounts that `make overlay-paper` has measured")]
pub(crate) struct Report {
    /// Small drives and few writes: seconds, for continuous integration
    #[arg(long)]
    pub(crate) short: bool,

    /// File to write
    #[arg(long, short, default_value = "coulter-report.html", value_name = "FILE")]
    pub(crate) output: PathBuf,

    /// Only these experiments, such as D1,D16,A3
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = parse_experiment)]
    pub(crate) only: Vec<Experiment>,

    /// Add what was measured on this machine, as `make overlay-paper` writes it
    #[arg(long, value_name = "FILE")]
    pub(crate) measured: Option<PathBuf>,

    /// Seed of the random generator
    #[arg(long, default_value = "1")]
    pub(crate) seed: u64,

    /// Print the figures as JSON instead of writing a page
    #[arg(long, conflicts_with = "output")]
    pub(crate) json: bool,
}

fn parse_experiment(text: &str) -> Result<Experiment, String> {
    let found = EXPERIMENTS.iter().find(|experiment| experiment.id.eq_ignore_ascii_case(text));
    found.copied().ok_or_else(|| {
        let ids: Vec<_> = EXPERIMENTS.iter().map(|experiment| experiment.id).collect();
        format!("`{text}` is no experiment; there are {}", ids.join(" "))
    })
}

/// What is kept of a finished experiment while the report is under way.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    /// Version, scale and seed: others' outcomes are not taken.
    made_by: String,
    outcome: Outcome,
}

impl Report {
    pub(crate) fn run(&self) -> Result<(), LabError> {
        let scale = if self.short { Scale::Short } else { Scale::Full };
        let setting = Setting { scale, seed: self.seed };
        let experiments = if self.only.is_empty() { &EXPERIMENTS[..] } else { &self.only };
        let measured = self.measured.as_deref().map(measured).transpose()?.unwrap_or_default();
        let page_of = |path| Output::check(path, Kind::HTML);
        let output = (!self.json).then(|| page_of(&self.output)).transpose()?;
        // Parts lie beside the page, so that an interrupted report finds them again.
        let parts = output.as_ref().filter(|output| output.is_file());
        let parts = parts.map(|output| parts_of(output.path()));
        if let Some(parts) = &parts {
            match fs::create_dir(parts) {
                // An interrupted report's.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made.map_err(|error| LabError::io("make", parts, error))?,
            }
        }
        let bar = terminal::progress_of_count("report", experiments.len() as u64);
        let mut outcomes = Vec::with_capacity(experiments.len());
        for experiment in experiments {
            bar.set_message(experiment.id.to_owned());
            outcomes.push(outcome(experiment, &setting, parts.as_deref())?);
            bar.inc(1);
        }
        bar.finish_and_clear();
        outcomes.extend(measured);
        let Some(output) = output else { return terminal::print_json(&outcomes) };
        output.write(page(&setting, &outcomes).as_bytes())?;
        parts.map_or(Ok(()), |parts| remove_parts(&parts))?;
        let lines = outcomes.iter().map(|outcome| {
            format!("{:<4} {:<16} {}", outcome.id, outcome.verdict.name(), outcome.title)
        });
        terminal::print(&lines.collect::<Vec<_>>().join("\n"))
    }
}

/// What was measured elsewhere.
fn measured(path: &Path) -> Result<Vec<Outcome>, LabError> {
    let bytes = fs::read(path).map_err(|error| LabError::io("read", path, error))?;
    let outcomes: Vec<Outcome> = serde_json::from_slice(&bytes).map_err(|error| {
        LabError::io("understand", path, io::Error::new(io::ErrorKind::InvalidData, error))
    })?;
    Ok(outcomes)
}

fn parts_of(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(".parts");
    PathBuf::from(name)
}

/// Removes what was kept, and the directory unless something else lies in it.
fn remove_parts(parts: &Path) -> Result<(), LabError> {
    for experiment in &EXPERIMENTS {
        let part = part_of(parts, experiment);
        match fs::remove_file(&part) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(LabError::io("remove", &part, error));
            }
            _ => {}
        }
    }
    match fs::remove_dir(parts) {
        Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => {
            Err(LabError::io("remove", parts, error))
        }
        _ => Ok(()),
    }
}

fn part_of(parts: &Path, experiment: &Experiment) -> PathBuf {
    parts.join(format!("{}.json", experiment.id))
}

/// The outcome of an experiment: kept from an earlier start, or made now and kept.
fn outcome(
    experiment: &Experiment,
    setting: &Setting,
    parts: Option<&Path>,
) -> Result<Outcome, LabError> {
    let made_by =
        format!("{} {} {}", env!("CARGO_PKG_VERSION"), setting.scale.name(), setting.seed);
    let part = parts.map(|parts| part_of(parts, experiment));
    // A part that cannot be read, or was half written, is made again.
    let kept = part.as_ref().and_then(|part| fs::read(part).ok());
    let kept: Option<Kept> = kept.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    if let Some(kept) = kept.filter(|kept| kept.made_by == made_by) {
        return Ok(kept.outcome);
    }
    let outcome = experiment.run(setting).map_err(|error| TrialError::Bench {
        name: experiment.id,
        reason: error.to_string(),
        is_usage: false,
    })?;
    if let Some(part) = part {
        let kept = Kept { made_by, outcome: outcome.clone() };
        let bytes = serde_json::to_vec(&kept).expect("outcomes are plain figures and words");
        fs::write(&part, bytes).map_err(|error| LabError::io("write", &part, error))?;
    }
    Ok(outcome)
}
