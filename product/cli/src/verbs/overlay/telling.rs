//! The verbs that tell of an overlay, for people.

use super::{report, served, told};
use crate::error::CliError;
use crate::terminal::{self, GREEN};
use clap::Args;
use coulter_terminal::Size;
use std::path::{Path, PathBuf};

/// Show what an overlay does.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter overlay status /srv/data")]
pub(super) struct Status {
    /// Directory that it is over
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

/// Tell files whose blocks cannot be served: others have changed or removed them below. Ends with
/// 1 if there are any.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter overlay check /srv/data")]
pub(super) struct Check {
    /// Directory that it is over
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl Status {
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn run(&self) -> Result<(), CliError> {
        let directory = served(&self.directory)?;
        let report = report(&directory).unwrap_or_default();
        if self.json {
            return terminal::print_json(&report);
        }
        let number = |key: &str| report[key].as_u64().unwrap_or(0);
        terminal::print(&format!(
            "{}: {} files with {} in the store of {}, remap {}",
            terminal::path(&directory),
            number("files"),
            Size(number("stored_bytes")),
            Size(number("capacity_bytes")),
            report["remap"].as_str().unwrap_or_default(),
        ))?;
        terminal::print(&format!(
            "writes: {} to the store, {} in place; brought home: {} of {} files",
            number("remapped_writes"),
            number("in_place_writes"),
            Size(number("bytes_brought_home")),
            number("files_brought_home"),
        ))?;
        if let Some(error) = report["settle_error"].as_str() {
            terminal::print(&format!("bringing home stopped: {error}"))?;
        }
        match number("faults_total") {
            0 => Ok(()),
            count => terminal::print(&format!(
                "{count} files cannot be served; `coulter overlay check {}` tells why",
                terminal::word(&directory)
            )),
        }
    }
}

impl Check {
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn run(&self) -> Result<(), CliError> {
        let directory = served(&self.directory)?;
        let report = report(&directory).unwrap_or_default();
        let faults = report["faults"].as_array().cloned().unwrap_or_default();
        for fault in &faults {
            terminal::print(&format!(
                "inode {}: {}, {} in the store",
                fault["inode"],
                fault["why"].as_str().unwrap_or_default(),
                Size(fault["bytes"].as_u64().unwrap_or(0)),
            ))?;
        }
        let total = report["faults_total"].as_u64().unwrap_or(0);
        if total == 0 {
            return terminal::print(&format!("{GREEN}sound{GREEN:#}"));
        }
        Err(told("found files that cannot be served in", &directory, format!("{total} in all")))
    }
}
