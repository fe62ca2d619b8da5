//! `coulter`: the command line.
//!
//! Each verb has a file in `verbs`. What they share: `store` and `format_store` stand between the
//! verbs and the library, `error` says what went wrong. The life of an attached volume is the crate
//! `coulter-daemon`, how the program speaks is `coulter-terminal`.
//!
//! What is public is what the laboratory (`coulter-lab`) shares with the product; nobody else is meant
//! to build on it.
//!
//! Contract: facts go to standard output, everything else to standard error; the exit code is 0
//! when all was done, 1 when something failed or a fault was found, 2 for a wrong command line.

mod answering;
mod audibly;
pub mod choices;
mod command;
mod completion_words;
pub mod contents;
mod dashboard;
pub mod dead_loops;
pub mod error;
pub mod file_system;
pub mod format_store;
mod help;
mod image;
mod inside;
pub mod interrupt;
mod man_page;
mod metrics_address;
mod mistyped;
mod mount_point;
mod named_store;
pub mod new_store;
mod nvme_keys;
pub mod opening;
pub mod output;
mod retention;
pub mod room;
mod second_look;
pub mod store;
mod target_file;
pub mod terminal;
pub mod tool;
pub mod verbs;
pub mod via;

use clap::{CommandFactory, Parser};
use command::{CommandLine, Verb};
use coulter_daemon::{StateDirectory, logging};
use error::CliError;
use log::LevelFilter;
use std::io::{self, Write};
use std::process::ExitCode;

/// The program: does what its command line says.
pub fn main() -> ExitCode {
    coulter_system::raw::make_excess_file_size_an_error();
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(text) = help::asked_for(&words, &CommandLine::command()) {
        return printed(io::stdout().write_all(text.as_bytes()));
    }
    let parsed = CommandLine::try_parse().and_then(|line| match &line.verb {
        Verb::Overlay(overlay) => overlay
            .place()
            .map_or(Ok(()), |place| mistyped::check_place(place, &CommandLine::command()))
            .map(|()| line),
        _ => Ok(line),
    });
    let line = match parsed {
        Ok(line) => line,
        Err(error) => {
            return answer(&mistyped::improved(error, &words, &CommandLine::command()));
        }
    };
    let level = match &line.verb {
        Verb::Serve(_) => LevelFilter::Info,
        Verb::Attach(attach) if attach.foreground => LevelFilter::Info,
        Verb::Fs(fs) if fs.is_in_foreground() => LevelFilter::Info,
        Verb::Overlay(overlay) if overlay.is_in_foreground() => LevelFilter::Info,
        _ => LevelFilter::Warn,
    };
    logging::start(level, line.log_format.unwrap_or_else(logging::Format::of_environment));
    // A daemon has told the command that started it what is wrong.
    let silent = matches!(&line.verb, Verb::Daemon(_));
    let directory = line.state_directory.clone();
    match run(line) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let state = StateDirectory::find_existing(directory);
            let error = second_look::at(error, state.as_ref());
            let report = error.report();
            if !silent {
                terminal::print_error(&report);
            }
            ExitCode::from(report.exit_code)
        }
    }
}

/// Says what is wrong with a command line, or the help or the version that it asks for.
pub fn answer(words: &clap::Error) -> ExitCode {
    // It is 0 or 2.
    let code = words.exit_code() as u8;
    let is_printed = print(words);
    if code == 0 { printed(is_printed) } else { ExitCode::from(code) }
}

fn printed(written: io::Result<()>) -> ExitCode {
    match written.and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let error = CliError::io("write to", "standard output".as_ref(), error);
            terminal::print_error(&error.report());
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Prints help as it is, and a complaint without the line breaks of what it complains of.
fn print(words: &clap::Error) -> io::Result<()> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let has_breaks = |word: &std::ffi::OsString| word.to_string_lossy().contains(char::is_control);
    if !words.use_stderr() || !arguments.iter().any(has_breaks) {
        return words.print();
    }
    write!(io::stderr(), "{}", mistyped::shown(&words.render().to_string(), &arguments))
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
        Verb::Fs(verb) => verb.run(known_state().as_ref(), state),
        Verb::Overlay(verb) => verb.run(state),
        Verb::Sync(verb) => verb.run(known_state().as_ref()),
        Verb::Serve(verb) => verb.run(&state()?),
        Verb::Status(verb) => verb.run(&looked_into()?),
        Verb::Tune(verb) => verb.run(&looked_into()?),
        Verb::Scrub(verb) => verb.run(&looked_into()?),
        Verb::Grow(verb) => verb.run(&looked_into()?),
        Verb::Check(verb) => verb.run(known_state().as_ref()),
        Verb::Probe(verb) => verb.run(),
        Verb::Dump(verb) => verb.run(known_state().as_ref()),
        Verb::Salvage(verb) => verb.run(known_state().as_ref()),
        Verb::Restore(verb) => verb.run(),
        Verb::Snapshot(verb) => verb.run(known_state().as_ref()),
        Verb::Replicate(verb) => verb.run(&looked_into()?),
        Verb::Replica(verb) => verb.run(),
        Verb::Thaw(verb) => verb.run(),
        Verb::Diff(verb) => verb.run(),
        Verb::Clone(verb) => verb.run(),
        Verb::Move(verb) => verb.run(&state()?),
        Verb::Daemon(verb) => verb.run(&state()?),
        Verb::Export(verb) => verb.run(known_state().as_ref()),
        Verb::Generate(verb) => verb.run(&CommandLine::command),
    }
}
