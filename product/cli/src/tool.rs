//! Programs of the system that this one calls: `mkfs`, `mount`, `fio`, `e2fsck`.

use crate::error::{CliError, SystemError};
use std::ffi::OsStr;
use std::io;
use std::process::{Command, ExitStatus, Output, Stdio};

/// Lines of a failing program's words that are told.
const LINES_MAX: usize = 4;

const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A command that finds the programs of the administrator too, and says everything in English.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("PATH", search_path(std::env::var("PATH").ok())).env("LC_ALL", "C");
    command.stdin(Stdio::null());
    command
}

/// Where programs are looked for: where the user says, then where systems have them. Who starts a mount
/// helper may have said nothing: systemd does not.
fn search_path(own: Option<String>) -> String {
    let own = own.filter(|own| !own.is_empty()).into_iter();
    own.chain([SYSTEM_PATH.to_owned()]).collect::<Vec<_>>().join(":")
}

/// Runs `program` to its end and gives back what it printed.
///
/// # Errors
/// [`SystemError::ToolMissing`] when it is not there, naming the package that has it;
/// [`SystemError::ToolFailed`] with what it said when it fails.
pub fn run(program: &str, package: &'static str, arguments: &[&OsStr]) -> Result<Output, CliError> {
    let output = command(program)
        .args(arguments)
        .output()
        .map_err(|error| not_started(program, package, error))?;
    if output.status.success() {
        return Ok(output);
    }
    Err(failed(&described(program, arguments), output.status, &output.stderr))
}

/// The command line as one would type it.
pub fn described(program: &str, arguments: &[&OsStr]) -> String {
    let words = arguments.iter().map(|argument| argument.to_string_lossy().into_owned());
    [program.to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

/// The error of a program that ended badly.
pub fn failed(command: &str, status: ExitStatus, output: &[u8]) -> CliError {
    SystemError::ToolFailed {
        command: command.to_owned(),
        how: status.to_string(),
        output: essence(&String::from_utf8_lossy(output)),
    }
    .into()
}

/// The last lines of what a program said, without its explanation of how it is used: what is wrong
/// comes before that.
fn essence(output: &str) -> String {
    let is_usage = |line: &str| line.trim_start().to_lowercase().starts_with("usage:");
    let lines: Vec<&str> = output.lines().filter(|line| !line.trim().is_empty()).collect();
    let said = lines.iter().position(|line| is_usage(line)).filter(|count| *count > 0);
    let said = &lines[..said.unwrap_or(lines.len())];
    said[said.len().saturating_sub(LINES_MAX)..].join("\n")
}

/// The error of a program that could not be started.
pub fn not_started(program: &str, package: &'static str, error: io::Error) -> CliError {
    match error.kind() {
        // The latter when it is nowhere, and a directory of the path may not be entered.
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
            SystemError::ToolMissing { tool: program.to_owned(), package }.into()
        }
        _ => CliError::io("run", program.as_ref(), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_though_nobody_says_where() {
        assert_eq!(search_path(None), SYSTEM_PATH);
        assert_eq!(search_path(Some(String::new())), SYSTEM_PATH);
        assert_eq!(search_path(Some("/a".to_owned())), format!("/a:{SYSTEM_PATH}"));
    }

    #[test]
    fn a_missing_program_names_its_package() {
        let error = run("coulter-no-such-program", "some-package", &[]).expect_err("it is missing");
        assert_eq!(
            error.to_string(),
            "coulter-no-such-program is not installed \
             (install it, on Debian and Ubuntu with `apt install some-package`)"
        );
    }

    #[test]
    fn a_failing_program_shows_its_command_line_and_its_words() {
        let error = run("sh", "dash", &["-c".as_ref(), "echo no room >&2; exit 3".as_ref()])
            .expect_err("it fails");
        let text = error.to_string();
        assert!(text.contains("`sh -c echo no room"), "{text}");
        assert!(text.ends_with("exit status: 3: no room"), "{text}");
    }

    #[test]
    fn the_usage_of_a_failing_program_is_left_out() {
        let usage = (0..40).map(|number| format!("\t[-{number}]\n")).collect::<String>();
        let said =
            format!("mkfs.x: warning\nmkfs.x: invalid option -- 'y'\n\nUsage: mkfs.x\n{usage}");
        assert_eq!(essence(&said), "mkfs.x: warning\nmkfs.x: invalid option -- 'y'");
        let long = (0..40).map(|number| format!("line {number}\n")).collect::<String>();
        assert_eq!(essence(&long), "line 36\nline 37\nline 38\nline 39");
        assert_eq!(essence("Usage: x FILE\n"), "Usage: x FILE");
        assert_eq!(essence(""), "");
    }
}
