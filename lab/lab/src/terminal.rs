//! How the program speaks, with errors that are its own: see `coulter_terminal`.

pub(crate) use coulter_terminal::{BAD, GREEN, note, path, print_error, progress_of_count};

use crate::error::LabError;
use serde::Serialize;

/// Prints a line of a result.
///
/// # Errors
/// When standard output does not take it, a closed pipe excepted.
pub(crate) fn print(text: &str) -> Result<(), LabError> {
    Ok(coulter_cli::terminal::print(text)?)
}

/// Prints a value as JSON, indented.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), LabError> {
    Ok(coulter_cli::terminal::print_json(value)?)
}
