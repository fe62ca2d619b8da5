//! Programs of the system.

use crate::error::SystemsError;
use std::ffi::OsStr;
use std::io;
use std::process::{Command, Output, Stdio};

/// A command that finds the administrator's programs too, and speaks English.
pub(crate) fn command(program: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    command.env("PATH", format!("{path}:/usr/local/sbin:/usr/sbin:/sbin")).env("LC_ALL", "C");
    command.stdin(Stdio::null());
    command
}

/// Runs a program to its end, whatever that is.
///
/// # Errors
/// [`SystemsError::Missing`], or what kept it from being started.
pub(crate) fn finish(command: &mut Command, package: &'static str) -> Result<Output, SystemsError> {
    command.output().map_err(|error| not_started(command, package, error))
}

/// Runs a program that must succeed.
///
/// # Errors
/// As [`finish`]; [`SystemsError::Program`] with what it said.
pub(crate) fn run(command: &mut Command, package: &'static str) -> Result<Output, SystemsError> {
    let output = finish(command, package)?;
    if output.status.success() {
        return Ok(output);
    }
    Err(SystemsError::Program { command: described(command), output: words_of(&output) })
}

/// The error of a program that did not start.
pub(crate) fn not_started(
    command: &Command,
    package: &'static str,
    error: io::Error,
) -> SystemsError {
    let program = command.get_program().to_string_lossy().into_owned();
    match error.kind() {
        io::ErrorKind::NotFound => SystemsError::Missing { program, package },
        _ => SystemsError::io("run", program.as_ref(), error),
    }
}

/// Whether `program` can be found; it is not run.
pub fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Whether `program`, which is harmless when run, can be found, the administrator's included.
pub(crate) fn is_installed(program: &str) -> bool {
    let mut probe = command(program);
    probe.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    probe.status().is_ok()
}

/// How it ended and what it said.
pub(crate) fn words_of(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    format!("{}: {}", output.status, String::from_utf8_lossy(&both).trim())
}

/// The command line as one would type it.
pub(crate) fn described(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}
