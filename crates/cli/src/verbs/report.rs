//! `coulter report`: the published experiments, run again.

use crate::error::{CliError, SystemError};
use crate::terminal;
use clap::Args;
use coulter_flash::report::{EXPERIMENTS, Experiment, Outcome, Scale, Setting, page};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// Run the published experiments again on emulated drives, and write one HTML page of them
///
/// Times are virtual: the same version, scale and seed give the same page, byte for byte. A report
/// that is interrupted goes on where it stopped when it is started again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter report                          minutes, into coulter-report.html
  coulter report --short --output r.html  seconds
  coulter report --only D16,D17 --json    some of them, as figures")]
pub(crate) struct Report {
    /// Small drives and few writes: seconds, for continuous integration
    #[arg(long)]
    pub(crate) short: bool,

    /// Where the page goes
    #[arg(long, short, default_value = "coulter-report.html", value_name = "FILE")]
    pub(crate) output: PathBuf,

    /// Only these experiments, such as D1,D16,A3
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = parse_experiment)]
    pub(crate) only: Vec<Experiment>,

    /// The source of all choices
    #[arg(long, default_value = "1")]
    pub(crate) seed: u64,

    /// Print the figures as JSON instead of writing a page
    #[arg(long)]
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
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let scale = if self.short { Scale::Short } else { Scale::Full };
        let setting = Setting { scale, seed: self.seed };
        let experiments = if self.only.is_empty() { &EXPERIMENTS[..] } else { &self.only };
        // Parts lie beside the page, so that an interrupted report finds them again.
        let parts = (!self.json).then(|| parts_of(&self.output));
        if let Some(parts) = &parts {
            match fs::create_dir(parts) {
                // An interrupted report's.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => made.map_err(|error| CliError::io("make", parts, error))?,
            }
        }
        let bar = terminal::progress("report", experiments.len() as u64);
        let mut outcomes = Vec::with_capacity(experiments.len());
        for experiment in experiments {
            bar.set_message(experiment.id.to_owned());
            outcomes.push(outcome(experiment, &setting, parts.as_deref())?);
            bar.inc(1);
        }
        bar.finish_and_clear();
        let Some(parts) = parts else { return terminal::print_json(&outcomes) };
        fs::write(&self.output, page(&setting, &outcomes))
            .map_err(|error| CliError::io("write", &self.output, error))?;
        fs::remove_dir_all(&parts).map_err(|error| CliError::io("remove", &parts, error))?;
        let lines = outcomes.iter().map(|outcome| {
            format!("{:<4} {:<16} {}", outcome.id, outcome.verdict.name(), outcome.title)
        });
        terminal::print(&lines.collect::<Vec<_>>().join("\n"))
    }
}

fn parts_of(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(".parts");
    PathBuf::from(name)
}

/// The outcome of an experiment: kept from an earlier start, or made now and kept.
fn outcome(
    experiment: &Experiment,
    setting: &Setting,
    parts: Option<&Path>,
) -> Result<Outcome, CliError> {
    let made_by =
        format!("{} {} {}", env!("CARGO_PKG_VERSION"), setting.scale.name(), setting.seed);
    let part = parts.map(|parts| parts.join(format!("{}.json", experiment.id)));
    // A part that cannot be read, or was half written, is made again.
    let kept = part.as_ref().and_then(|part| fs::read(part).ok());
    let kept: Option<Kept> = kept.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    if let Some(kept) = kept.filter(|kept| kept.made_by == made_by) {
        return Ok(kept.outcome);
    }
    let outcome = experiment.run(setting).map_err(|error| SystemError::Bench {
        name: experiment.id,
        reason: error.to_string(),
        is_usage: false,
    })?;
    if let Some(part) = part {
        let kept = Kept { made_by, outcome: outcome.clone() };
        let bytes = serde_json::to_vec(&kept).expect("outcomes are plain figures and words");
        fs::write(&part, bytes).map_err(|error| CliError::io("write", &part, error))?;
    }
    Ok(outcome)
}
