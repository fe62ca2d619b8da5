//! `pages`: writes pages atomically, as databases do, and looks whether one is torn.

use clap::{Parser, Subcommand};
use coulter_systems::{Checked, Pages, SystemsError};
use std::path::PathBuf;
use std::process::ExitCode;

/// Write pages atomically (`RWF_ATOMIC`) until the power is cut, and look whether one is torn.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    part: Part,

    /// File of the pages
    #[arg(long, global = true, default_value = "pages")]
    file: PathBuf,

    /// Bytes of a page
    #[arg(long, global = true, default_value_t = 16384)]
    size: usize,

    /// Pages
    #[arg(long, global = true, default_value_t = 256)]
    count: u64,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Write every page once
    Fill,
    /// Overwrite pages in an order that the seed gives
    Overwrite {
        /// Different in each run, so that versions are too
        #[arg(long)]
        seed: u64,
        /// Pages to write
        #[arg(long, default_value_t = u64::MAX >> 32)]
        writes: u64,
    },
    /// Read every page, and end with 1 if one is torn
    Check {
        /// Count what was written with this seed and higher ones
        #[arg(long, default_value_t = 0)]
        since: u64,
    },
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool, SystemsError> {
    let pages = Pages::open(&arguments.file, arguments.size, arguments.count)?;
    match arguments.part {
        Part::Fill => pages.fill(0)?,
        Part::Overwrite { seed, writes } => pages.overwrite(seed, writes)?,
        Part::Check { since } => {
            let Checked { torn, written } = pages.check(since)?;
            torn.iter().for_each(|torn| println!("{torn}"));
            println!("{} pages, {} torn, {written} written", arguments.count, torn.len());
            return Ok(torn.is_empty());
        }
    }
    Ok(true)
}
