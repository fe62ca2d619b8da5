//! `coulter-lab`: the laboratory. It measures the product, emulates drives for it, simulates its
//! crashes, and demonstrates it; none of that is needed to use it.
//!
//! Each verb has a file in `verbs`. An emulated drive and a store that records what is written to it
//! are served by the product's own daemon, as a `Source` each (`emulated`, `trace`).
//!
//! Contract: facts go to standard output, everything else to standard error; the exit code is 0
//! when all was done, 1 when something failed or a fault was found, 2 for a wrong command line.

mod command;
mod demo;
mod drive_facts;
mod emulated;
mod error;
mod limits;
mod terminal;
mod trace;
mod verbs;

use clap::Parser;
use command::{CommandLine, Verb};
use coulter_daemon::{StateDirectory, logging};
use error::LabError;
use log::LevelFilter;
use std::process::ExitCode;

fn main() -> ExitCode {
    coulter_system::raw::make_excess_file_size_an_error();
    let line = match CommandLine::try_parse() {
        Ok(line) => line,
        Err(words) => return coulter_cli::answer(&words),
    };
    let level = match &line.verb {
        Verb::Flash(flash) => flash.log_level(),
        _ => LevelFilter::Warn,
    };
    logging::start(level, line.log_format.unwrap_or_else(logging::Format::of_environment));
    // A daemon has told the command that started it what is wrong.
    let silent = match &line.verb {
        Verb::Daemon(_) => true,
        Verb::Flash(flash) => flash.is_daemon(),
        _ => false,
    };
    match run(line) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let report = error.report();
            if !silent {
                terminal::print_error(&report);
            }
            ExitCode::from(report.exit_code)
        }
    }
}

fn run(line: CommandLine) -> Result<(), LabError> {
    let state = || Ok(StateDirectory::open(line.state_directory.clone())?);
    match &line.verb {
        Verb::Bench(verb) => verb.run(),
        Verb::Flash(verb) => verb.run(state),
        Verb::Replay(verb) => verb.run(),
        Verb::Report(verb) => verb.run(),
        Verb::Sim(verb) => verb.run(),
        Verb::Demo(verb) => verb.run(),
        Verb::Daemon(verb) => verb.run(&state()?),
        Verb::Generate(verb) => verb.run(),
    }
}
