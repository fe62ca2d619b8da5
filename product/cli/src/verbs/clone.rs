//! `coulter clone`: a volume that begins with a snapshot of another one.

use super::restore::CopyName;
use crate::audibly::Audibly;
use crate::error::{CliError, CopyError};
use crate::terminal::{self, BOLD};
use clap::Args;
use coulter_daemon::replication;
use coulter_object::{
    ReplicaError,
    history::{lineage, snapshot},
};

/// Attempts to make a snapshot: a busy host may delete meanwhile what one needs.
const ATTEMPTS: usize = 20;

/// Clone a volume: make a new one that begins with a snapshot of it.
///
/// The clone shares the snapshot's objects, so that it costs no space and no time. The snapshot cannot be
/// deleted while the clone is there. Both URLs are in the same bucket, or both are directories.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter clone s3://bucket/vol@monday s3://bucket/test
  coulter clone s3://bucket/vol s3://bucket/test         of its newest state
  coulter attach s3://bucket/test --cache test.img")]
pub(crate) struct Clone {
    /// Copy, and its snapshot; without @SNAPSHOT, one of the newest state is created
    #[arg(value_name = "URL[@SNAPSHOT]", value_parser = CopyName::parse)]
    pub(crate) from: CopyName,

    /// Where to make the clone
    #[arg(value_name = "URL2", value_parser = CopyName::parse_newest)]
    pub(crate) to: CopyName,
}

impl Clone {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let seen = replication::seconds_since_1970();
        let name = match &self.from.snapshot {
            Some(name) => name.clone(),
            None => self.snapshot(seen)?,
        };
        lineage::clone(&self.from.url, &name, &self.to.url, seen, &Audibly).map_err(|error| {
            match error {
                ReplicaError::Taken => {
                    let (from, to) = (self.from.to_string(), self.to.to_string());
                    CopyError::CloneTaken { from, to }.into()
                }
                error => self.from.failed("clone", error),
            }
        })?;
        let (from, to) = (&self.from.url, &self.to);
        terminal::print(&format!("{BOLD}{to}{BOLD:#} is a clone of {from}@{name}"))?;
        terminal::print(&format!("To use it: coulter attach {to} --cache FILE"))
    }

    /// Creates a snapshot for it, since the newest state is not kept by itself.
    fn snapshot(&self, seen: u64) -> Result<String, CliError> {
        let bucket = self.from.open()?;
        let mut attempt = 1;
        loop {
            let name = format!("clone-{seen}-{}-{attempt}", std::process::id());
            match snapshot::create(&*bucket, &name, seen, &Audibly) {
                Err(ReplicaError::Collected | ReplicaError::Missing(_)) if attempt < ATTEMPTS => {
                    attempt += 1;
                }
                Err(error) => return Err(self.from.failed("clone", error)),
                Ok(_) => return Ok(name),
            }
        }
    }
}
