//! The command line as one definition: parsing, help, man pages and completions all come from it.

use crate::choices::named;
use crate::verbs;
use clap::{Parser, Subcommand};
use coulter_daemon::logging;
use std::path::PathBuf;

/// Random writes in, one sequential log out.
///
/// Coulter stores a *volume* as one sequential log in a file or on a disk, the *store*. The host
/// sees an ordinary block device.
#[derive(Debug, Parser)]
#[command(
    name = "coulter",
    version,
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 100,
    override_help = crate::help::SHORT,
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
  coulter create disk.img --size 10G        make a volume of 10 GiB in a file
  coulter mount disk.img /mnt --mkfs ext4   make a file system on it and mount it
  coulter status                            show what it does
  coulter umount /mnt                       unmount and detach it

Exit codes: 0 done, 1 failed or found a fault, 2 wrong usage.
Sizes are binary: 4K, 32M, 10G. NO_COLOR switches colours off.";

/// The verbs, in the order in which one meets them.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Create(verbs::create::Create),
    Attach(verbs::attach::Attach),
    Detach(verbs::detach::Detach),
    #[command(visible_alias = "ls")]
    List(verbs::list::List),
    #[command(name = "upgrade", visible_alias = "restart")]
    Restart(verbs::restart::Restart),
    Mount(verbs::mount::Mount),
    #[command(visible_alias = "unmount")]
    Umount(verbs::umount::Umount),
    Fs(verbs::fs::Fs),
    Overlay(verbs::overlay::Overlay),
    Sync(verbs::sync::Sync),
    Serve(verbs::serve::Serve),
    #[command(visible_alias = "info")]
    Status(verbs::status::StatusOf),
    Tune(verbs::tune::Tune),
    #[command(visible_alias = "resize")]
    Grow(verbs::grow::Grow),
    Check(verbs::check::Check),
    Scrub(verbs::scrub::Scrub),
    Probe(verbs::probe::Probe),
    Dump(verbs::dump::Dump),
    Salvage(verbs::salvage::Salvage),
    Export(verbs::export::Export),
    Restore(verbs::restore::Restore),
    Snapshot(verbs::snapshot::Snapshot),
    Replicate(verbs::replicate::Replicate),
    Replica(verbs::replica::Replica),
    Diff(verbs::diff::Diff),
    Clone(verbs::clone::Clone),
    Move(verbs::move_volume::Move),
    #[command(hide = true)]
    Daemon(verbs::daemon::Daemon),
    #[command(hide = true)]
    Thaw(verbs::thaw::Thaw),
    #[command(hide = true)]
    Generate(verbs::generate::Generate),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::help;
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
            assert!(examples.contains(&format!("coulter {name}")), "{name} has no example");
        }
    }

    #[test]
    fn the_help_fits_on_a_screen_of_24_lines_and_80_columns() {
        assert!(help::SHORT.lines().count() <= 23, "the prompt takes one line");
        for line in help::SHORT.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    #[test]
    fn every_command_of_the_help_is_one() {
        let commands = help::SHORT.lines().filter_map(|line| line.strip_prefix("  coulter "));
        for command in commands.filter(|it| !it.starts_with("help") && !it.starts_with('-')) {
            let words = command.split("   ").next().unwrap_or_default();
            let words = ["coulter"].into_iter().chain(words.split_whitespace());
            assert!(CommandLine::try_parse_from(words).is_ok(), "{command}");
        }
    }

    #[test]
    fn the_list_of_all_has_each_visible_verb_once() {
        let whole = CommandLine::command();
        let mut listed: Vec<&str> =
            help::GROUPS.iter().flat_map(|(_, verbs)| verbs.iter().copied()).collect();
        let mut visible: Vec<&str> = whole
            .get_subcommands()
            .filter(|verb| !verb.is_hide_set() && verb.get_name() != "help")
            .map(clap::Command::get_name)
            .collect();
        listed.sort_unstable();
        visible.sort_unstable();
        assert_eq!(listed, visible);
        for line in help::all(&whole).lines() {
            assert!(line.chars().count() <= 100, "{line}");
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
