//! How the program speaks, with errors that are its own: see `coulter_terminal`.

pub use coulter_terminal::{
    BAD, BOLD, GREEN, Rows, can_draw, note, path, print_error, progress, progress_of_count,
    progress_of_reads, quoted, reader_leaves_within, spinner, word,
};

use crate::error::CliError;
use serde::Serialize;

/// Prints a line of a result.
///
/// # Errors
/// When standard output does not take it, a closed pipe excepted.
pub fn print(text: &str) -> Result<(), CliError> {
    Ok(coulter_terminal::print(text)?)
}

/// Prints a value as JSON, indented.
///
/// # Errors
/// As [`print()`].
pub fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    Ok(coulter_terminal::print_json(value)?)
}

/// Prints a value as JSON on one line.
///
/// # Errors
/// As [`print()`].
pub fn print_json_line(value: &impl Serialize) -> Result<(), CliError> {
    Ok(coulter_terminal::print_json_line(value)?)
}
