//! `coulter-lab generate` (hidden): as that of `coulter`.

use crate::command::CommandLine;
use crate::error::LabError;
use clap::{Args, CommandFactory};
use coulter_cli::verbs::generate;

/// Write man pages or shell completions.
#[derive(Debug, Args)]
pub(crate) struct Generate {
    #[command(flatten)]
    what: generate::Generate,
}

impl Generate {
    pub(crate) fn run(&self) -> Result<(), LabError> {
        Ok(self.what.run(&CommandLine::command)?)
    }
}
