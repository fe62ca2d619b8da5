//! What can go wrong: the environment, or a promise.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// What went wrong.
#[derive(Debug)]
#[non_exhaustive]
pub enum SystemsError {
    /// The operating system refused something.
    Io {
        /// A verb phrase that the path completes.
        action: &'static str,
        /// What it was to be done to.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A program that is needed is not there.
    Missing {
        /// Which.
        program: String,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// A program failed.
    Program {
        /// The command line.
        command: String,
        /// How it ended, and what it said.
        output: String,
    },
    /// A promise is broken: something durable is not there, or something is not sound.
    Violation {
        /// What was found.
        what: String,
    },
}

impl SystemsError {
    /// An operating-system error on a path.
    pub fn io(action: &'static str, path: &Path, source: io::Error) -> SystemsError {
        SystemsError::Io { action, path: path.to_owned(), source }
    }

    /// A broken promise.
    pub fn violation(what: impl Into<String>) -> SystemsError {
        SystemsError::Violation { what: what.into() }
    }

    /// Whether a promise is broken, in contrast to the environment.
    pub fn is_violation(&self) -> bool {
        matches!(self, SystemsError::Violation { .. })
    }
}

impl fmt::Display for SystemsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SystemsError::Io { action, path, source } => {
                write!(f, "cannot {action} {}: {source}", path.display())
            }
            SystemsError::Missing { program, package } => {
                write!(f, "{program} is not installed (Debian package {package})")
            }
            SystemsError::Program { command, output } => write!(f, "`{command}` failed: {output}"),
            SystemsError::Violation { what } => write!(f, "VIOLATION: {what}"),
        }
    }
}

impl std::error::Error for SystemsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SystemsError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
