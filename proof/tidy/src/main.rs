//! Checks the workspace against its rule book, `tidy.toml`.
//!
//! Each limit is a ratchet: what the workspace has today, which may only improve. The rules are in
//! `rules`, the limits in `table`. It does not do what Clippy and rustfmt do.

mod graph;
mod house;
mod rules;
mod source;
mod table;
#[cfg(test)]
mod tests;

use anyhow::{Context, Result, bail};
use house::{History, House};
use rules::Tics;
use std::path::Path;
use std::process::ExitCode;
use table::RuleBook;

enum Action {
    Check,
    Tighten,
    List,
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tidy: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let action = match std::env::args().nth(1).as_deref() {
        None => Action::Check,
        Some("--tighten") => Action::Tighten,
        Some("--list") => Action::List,
        Some(other) => bail!("unknown argument {other}; there are --tighten and --list"),
    };
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = own.ancestors().nth(2).context("the workspace is two folders up")?;
    let path = own.join("tidy.toml");
    let mut book = RuleBook::read(&path)?;
    let tics = Tics::new(&book.tics)?;
    let house = House::read(root, &book.base_commit)?;
    let measured = rules::measure(&house, &book, &tics);
    match action {
        Action::Check => {}
        Action::Tighten => {
            book.tighten(&measured);
            book.write(&path)?;
        }
        Action::List => {
            for finding in rules::list(&house, &tics) {
                println!("{}: {}", finding.place, finding.text);
            }
            return Ok(ExitCode::SUCCESS);
        }
    }
    print!("{}", rules::summary(&house, &book, &measured));
    if let History::Unknown(reason) = &house.commits {
        println!("SKIPPED: the messages of commits: {reason}");
    }
    let offences = rules::check(&house, &book, &measured);
    for offence in &offences {
        eprintln!("tidy: {:?}: {}", offence.rule, offence.message);
    }
    Ok(if offences.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
