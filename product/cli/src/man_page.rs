//! A manual page: what the definition of a command says, in the order in which manual pages are read.
//!
//! `clap_mangen` writes most of it. Its synopsis leaves the values of options out, and it knows neither files nor exit
//! codes.

use clap::{Arg, Command};
use clap_mangen::Man;
use std::io::{self, Write};

/// Options that stand in every page and in no synopsis.
const EVERYWHERE: [&str; 4] = ["help", "version", "state_directory", "log_format"];

const FILES: &str = "\
.SH FILES
.TP
\\fI/run/coulter\\fR, \\fI$XDG_RUNTIME_DIR/coulter\\fR
What is attached by root, and by other users: entries, sockets and logs. \\fB\\-\\-state\\-directory\\fR and
\\fBCOULTER_STATE_DIRECTORY\\fR name another place.
.TP
\\fI/dev/coulter/NAME\\fR
The block device of the attached volume NAME.
.SH EXIT STATUS
.TP
\\fB0\\fR
Done.
.TP
\\fB1\\fR
It failed, or a fault was found.
.TP
\\fB2\\fR
The command line cannot work.
";

/// The section for a program: what administers a machine, or what measures.
fn section_of(command: &Command) -> &'static str {
    let is_laboratory = command.get_name().starts_with("coulter-lab");
    let whole = command.get_bin_name().unwrap_or_default();
    if is_laboratory || whole.starts_with("coulter-lab") { "1" } else { "8" }
}

/// Name and content of the page of a command that was built.
///
/// # Errors
/// None that memory does not give.
pub(crate) fn page(command: Command) -> io::Result<(String, Vec<u8>)> {
    let section = section_of(&command);
    let (synopsis, has_version) = (synopsis(&command), command.get_version().is_some());
    let man = Man::new(command).section(section);
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    write!(page, ".SH SYNOPSIS\n{synopsis}\n")?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    man.render_subcommands_section(&mut page)?;
    man.render_extra_section(&mut page)?;
    page.write_all(FILES.as_bytes())?;
    if has_version {
        man.render_version_section(&mut page)?;
    }
    Ok((man.get_filename(), page))
}

/// `coulter mount [--mkfs KIND] PATH DIR`.
fn synopsis(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let mut words = vec![format!("\\fB{}\\fR", escaped(name))];
    let shown = command.get_arguments().filter(|argument| {
        !argument.is_hide_set() && !EVERYWHERE.contains(&argument.get_id().as_str())
    });
    let (places, options): (Vec<&Arg>, Vec<&Arg>) =
        shown.partition(|argument| argument.is_positional());
    for argument in options {
        let Some(long) = argument.get_long() else { continue };
        let word = format!("\\fB\\-\\-{}\\fR{}", escaped(long), value_of(argument));
        words.push(if argument.is_required_set() { word } else { format!("[{word}]") });
    }
    for argument in places {
        let name = argument.get_value_names().and_then(|names| names.first());
        let name = name.map_or_else(|| argument.get_id().to_string(), ToString::to_string);
        let word = format!("\\fI{}\\fR", escaped(&name.to_uppercase()));
        words.push(if argument.is_required_set() { word } else { format!("[{word}]") });
    }
    if command.get_subcommands().any(|part| !part.is_hide_set()) {
        words.push("\\fICOMMAND\\fR \\fI...\\fR".to_owned());
    }
    words.join(" ")
}

/// The value that an option takes.
fn value_of(argument: &Arg) -> String {
    if !argument.get_action().takes_values() {
        return String::new();
    }
    let choices = argument.get_possible_values();
    let choices: Vec<_> = choices.iter().filter(|choice| !choice.is_hide_set()).collect();
    if (1..=5).contains(&choices.len()) {
        let names: Vec<_> = choices.iter().map(|choice| escaped(choice.get_name())).collect();
        return format!(" {}", names.join("|"));
    }
    let name = argument.get_value_names().and_then(|names| names.first());
    name.map_or_else(String::new, |name| format!(" \\fI{}\\fR", escaped(name)))
}

fn escaped(text: &str) -> String {
    text.replace('-', "\\-")
}

#[cfg(test)]
mod tests {
    use crate::command::CommandLine;
    use clap::CommandFactory;

    #[test]
    fn the_synopsis_has_values_and_files_and_exit_codes_are_told() {
        let mut whole = CommandLine::command();
        whole.build();
        let mount = whole.find_subcommand("mount").expect("there is such a verb").clone();
        let (name, page) = super::page(mount).expect("memory takes it");
        let page = String::from_utf8(page).expect("it is text");
        assert_eq!(name, "coulter-mount.8");
        let synopsis = page.split(".SH ").find(|part| part.starts_with("SYNOPSIS"));
        let synopsis = synopsis.expect("there is one");
        for word in
            ["\\fB\\-\\-size\\fR \\fISIZE\\fR", "ext4|xfs|btrfs", "\\fIPATH\\fR \\fIDIR\\fR"]
        {
            assert!(synopsis.contains(word), "{word}: {synopsis}");
        }
        for section in ["FILES", "EXIT STATUS", "/dev/coulter/NAME"] {
            assert!(page.contains(section), "{section}");
        }
    }
}
