//! `coulter diff`: which bytes of the store differ between two states of a copy.

use super::restore::CopyName;
use crate::error::{CliError, CopyError};
use crate::terminal;
use clap::Args;
use coulter_terminal::Size;
use serde::Serialize;

/// Show which bytes of the store differ between two states of a copy.
///
/// The bytes are those of the store, not of the volume: the log, its metadata and everything that
/// cleaning has moved. The command compares manifests and reads no data, so a range that was
/// written again with the same bytes differs, too.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter diff s3://bucket/vol@monday s3://bucket/vol@tuesday
  coulter diff s3://bucket/vol@monday s3://bucket/vol            what was written since")]
pub(crate) struct Diff {
    /// Earlier state
    #[arg(value_name = "URL[@NAME]", value_parser = CopyName::parse)]
    pub(crate) from: CopyName,

    /// Later state: a snapshot of the same copy, or without @NAME its newest state
    #[arg(value_name = "URL[@NAME]", value_parser = CopyName::parse)]
    pub(crate) to: CopyName,

    /// Print the ranges as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What `--json` shows.
#[derive(Serialize)]
struct Differences {
    from: String,
    from_commit: String,
    to: String,
    to_commit: String,
    /// Sum of the ranges.
    bytes: u64,
    ranges: Vec<Bytes>,
}

/// A range of bytes of the store.
#[derive(Serialize)]
struct Bytes {
    offset: u64,
    length: u64,
}

impl Diff {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let Diff { from, to, json } = self;
        if from.url != to.url {
            let (one, other) = (from.to_string(), to.to_string());
            return Err(CopyError::OtherCopy { one, other }.into());
        }
        let bucket = from.open()?;
        let read = |name: &CopyName| {
            name.patiently(|| name.state(&*bucket)).map_err(|error| name.failed("read", error))
        };
        let (earlier, later) = (read(from)?, read(to)?);
        let ranges = earlier.pieces.differences(&later.pieces);
        let found = Differences {
            from: from.to_string(),
            from_commit: earlier.commit,
            to: to.to_string(),
            to_commit: later.commit,
            bytes: ranges.total(),
            ranges: ranges
                .iter()
                .map(|range| Bytes { offset: range.start, length: range.end - range.start })
                .collect(),
        };
        if *json {
            return terminal::print_json(&found);
        }
        for Bytes { offset, length } in &found.ranges {
            terminal::print(&format!("{offset}..{}  {}", offset + length, Size(*length)))?;
        }
        let (bytes, count) = (Size(found.bytes), found.ranges.len());
        let (one, other) = (&found.from_commit, &found.to_commit);
        terminal::print(&format!(
            "{bytes} of the store in {count} ranges differ between commits {one} and {other}"
        ))
    }
}
