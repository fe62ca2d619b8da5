//! The command line as one definition: parsing, help, man pages and completions all come from it.

use crate::verbs;
use clap::{Parser, Subcommand};
use coulter_cli::choices::named;
use coulter_daemon::logging;
use std::path::PathBuf;

/// Measure Coulter, emulate flash drives, simulate crashes, run a demonstration.
///
/// You do not need the laboratory to use volumes; use `coulter` for that. The laboratory uses the
/// same library. Its emulated drives are attached, listed and detached like volumes.
#[derive(Debug, Parser)]
#[command(
    name = "coulter-lab",
    version,
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    max_term_width = 100,
    after_help = AFTER_HELP
)]
pub(crate) struct CommandLine {
    /// Directory with the files of attached volumes [default: /run/coulter for root, else
    /// $XDG_RUNTIME_DIR/coulter]
    #[arg(long, global = true, value_name = "DIR", help_heading = "Global options")]
    pub(crate) state_directory: Option<PathBuf>,

    /// Format of log lines: text, or one JSON object per line
    // The parser would count a variable as an argument: `coulter` alone would be half a command.
    #[arg(long, global = true, value_name = "FORMAT", help_heading = "Global options")]
    #[arg(value_parser = named(&logging::Format::NAMED), hide_possible_values = true)]
    pub(crate) log_format: Option<logging::Format>,

    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

const AFTER_HELP: &str = "\
Examples:
  coulter-lab demo                          a demonstration with figures and a picture
  coulter-lab bench volume --file disk.img  random writes beside the same file without Coulter
  coulter-lab replay trace.csv              replay a trace of your load
  coulter-lab flash attach --volume         a volume on an emulated drive

Exit codes: 0 done, 1 failed or found a fault, 2 wrong usage.
Sizes are binary: 4K, 32M, 10G. NO_COLOR switches colours off.";

/// The verbs, in the order in which one meets them.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Demo(verbs::demo::Demo),
    Bench(verbs::bench::Bench),
    Replay(verbs::replay::Replay),
    Flash(verbs::flash::Flash),
    Report(verbs::report::Report),
    Sim(verbs::sim::Sim),
    #[command(hide = true)]
    Daemon(verbs::daemon::Daemon),
    #[command(hide = true)]
    Generate(verbs::generate::GenerateOfLab),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn every_verb_has_an_explanation_and_examples() {
        for verb in CommandLine::command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let name = verb.get_name();
            assert!(verb.get_about().is_some(), "{name} does not say what it does");
            let examples = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(examples.contains(&format!("coulter-lab {name}")), "{name} has no example");
        }
    }

    #[test]
    fn every_option_is_explained() {
        for verb in CommandLine::command().get_subcommands() {
            for argument in verb.get_arguments() {
                assert!(argument.get_help().is_some(), "{} {}", verb.get_name(), argument.get_id());
            }
        }
    }
}
