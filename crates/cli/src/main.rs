//! `coulter`: the command line.
//!
//! Each verb has a file in `verbs`. What they share: `store` and `format_store` stand between the
//! verbs and the library, `daemon` is the life of an attached volume, `state` and `control` are
//! how commands find and talk to daemons, `terminal` and `error` are how the program speaks.
//!
//! Contract: facts go to standard output, everything else to standard error; the exit code is 0
//! when all was done, 1 when something failed or a fault was found, 2 for a wrong command line.

mod attach_point;
mod backing;
mod command;
mod control;
mod daemon;
mod dashboard;
mod dead_loops;
mod demo;
mod emulated;
mod error;
mod file_identity;
mod file_size;
mod file_system;
mod format_store;
mod holders;
mod image;
mod inherited;
mod killed;
mod left_over;
mod limits;
mod logging;
mod metrics;
mod notify;
mod opening;
mod output;
mod process;
mod reclaim;
mod room;
mod setting;
mod signatures;
mod size;
mod sparse;
mod state;
mod status;
mod store;
mod store_fate;
mod table;
mod target_file;
mod terminal;
mod tool;
mod trace;
mod verbs;

use clap::Parser;
use command::{CommandLine, Verb};
use error::CliError;
use log::LevelFilter;
use state::StateDirectory;
use std::io::{self, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    file_size::make_excess_an_error();
    let line = match CommandLine::try_parse() {
        Ok(line) => line,
        Err(words) => return answer(&words),
    };
    let level = match &line.verb {
        Verb::Serve(_) => LevelFilter::Info,
        Verb::Attach(attach) if attach.foreground => LevelFilter::Info,
        Verb::Flash(flash) => flash.log_level(),
        _ => LevelFilter::Warn,
    };
    logging::start(level, line.log_format);
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

/// Says what is wrong with the command line, or the help or the version that it asks for.
fn answer(words: &clap::Error) -> ExitCode {
    // It is 0 or 2.
    let code = words.exit_code() as u8;
    match words.print().and_then(|()| io::stdout().flush()) {
        Err(error) if code == 0 && error.kind() != io::ErrorKind::BrokenPipe => {
            let error = CliError::io("write to", "standard output".as_ref(), error);
            terminal::print_error(&error.report());
            ExitCode::FAILURE
        }
        _ => ExitCode::from(code),
    }
}

fn run(line: CommandLine) -> Result<(), CliError> {
    let state = || StateDirectory::open(line.state_directory.clone());
    let looked_into = || StateDirectory::look(line.state_directory.clone());
    let known_state = || StateDirectory::find_existing(line.state_directory.clone());
    match &line.verb {
        Verb::Create(verb) => verb.run(known_state().as_ref()),
        Verb::Attach(verb) => verb.run(&state()?),
        Verb::Detach(verb) => verb.run(&looked_into()?),
        Verb::List(verb) => verb.run(&looked_into()?),
        Verb::Restart(verb) => verb.run(&looked_into()?),
        Verb::Mount(verb) => verb.run(&state()?),
        Verb::Umount(verb) => verb.run(&looked_into()?),
        Verb::Serve(verb) => verb.run(&state()?),
        Verb::Status(verb) => verb.run(&looked_into()?),
        Verb::Tune(verb) => verb.run(&looked_into()?),
        Verb::Grow(verb) => verb.run(&looked_into()?),
        Verb::Check(verb) => verb.run(known_state().as_ref()),
        Verb::Dump(verb) => verb.run(known_state().as_ref()),
        Verb::Salvage(verb) => verb.run(known_state().as_ref()),
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
