//! Programs of the system that this one calls: `mkfs`, `mount`, `fio`, `e2fsck`.

use crate::error::{CliError, SystemError};
use std::ffi::OsStr;
use std::io;
use std::process::{Command, ExitStatus, Output, Stdio};

/// A command that finds the programs of the administrator too, and says everything in English.
pub(crate) fn command(program: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    command.env("PATH", format!("{path}:/usr/local/sbin:/usr/sbin:/sbin")).env("LC_ALL", "C");
    command.stdin(Stdio::null());
    command
}

/// Runs `program` to its end and gives back what it printed.
///
/// # Errors
/// [`SystemError::ToolMissing`] when it is not there, naming the package that has it;
/// [`SystemError::ToolFailed`] with what it said when it fails.
pub(crate) fn run(
    program: &str,
    package: &'static str,
    arguments: &[&OsStr],
) -> Result<Output, CliError> {
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
pub(crate) fn described(program: &str, arguments: &[&OsStr]) -> String {
    let words = arguments.iter().map(|argument| argument.to_string_lossy().into_owned());
    [program.to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

/// The error of a program that ended badly.
pub(crate) fn failed(command: &str, status: ExitStatus, output: &[u8]) -> CliError {
    SystemError::ToolFailed {
        command: command.to_owned(),
        how: status.to_string(),
        output: String::from_utf8_lossy(output).into_owned(),
    }
    .into()
}

/// The error of a program that could not be started.
pub(crate) fn not_started(program: &str, package: &'static str, error: io::Error) -> CliError {
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
}
