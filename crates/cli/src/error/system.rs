//! About the system around the program.

use super::report::{Report, fault, help_on, reason_of, usage};
use crate::size::Size;
use std::io;
use std::path::PathBuf;

/// About the system around the program.
#[derive(Debug)]
#[non_exhaustive]
pub(crate) enum SystemError {
    /// An operation of the system failed on a path.
    Io {
        /// What was tried, as a verb phrase that the path completes: `open`.
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// Nothing but root may do this.
    NeedsRoot { what: &'static str, help: &'static str },
    /// The disk is too full for what is to be done.
    NoRoom { path: PathBuf, free: u64, room: u64 },
    /// A program that is needed is not installed.
    ToolMissing { tool: String, package: &'static str },
    /// A program failed.
    ToolFailed { command: String, how: String, output: String },
    /// A result will not replace what is in its place.
    OutputRefused { path: PathBuf, kind: &'static str, reason: String },
    /// The person pressed Ctrl-C, or the process was told to end.
    Interrupted,
    /// A measurement came to no result.
    Bench { name: &'static str, reason: String, is_usage: bool },
    /// A trace cannot be replayed.
    BadTrace { path: PathBuf, reason: String, strict: bool },
    /// The simulator found a life that breaks a promise.
    PromiseBroken { name: String, reason: String },
    /// A plan for the simulator cannot be run.
    PlanRefused { path: PathBuf, reason: String },
    /// A step of the demonstration did not give what it must.
    DemoFailed { step: &'static str, reason: String },
}

impl SystemError {
    /// What, why, and what to do.
    pub(crate) fn report(&self) -> Report {
        match self {
            SystemError::Io { action, path, source } => {
                fault(format!("cannot {action} {}", path.display()))
                    .why(reason_of(source))
                    .maybe_help(help_on(source, path).as_ref())
            }
            SystemError::NeedsRoot { what, help } => {
                fault(format!("{what} needs root")).help(*help)
            }
            SystemError::NoRoom { path, free, room } => {
                fault(format!("too little room in {}", path.display()))
                    .why(format!("{} are free, {} are needed", Size(*free), Size(*room)))
                    .help("choose a smaller --size, or another --directory")
            }
            SystemError::ToolMissing { tool, package } => fault(format!("{tool} is not installed"))
                .help(format!("install it, on Debian and Ubuntu with `apt install {package}`")),
            SystemError::ToolFailed { command, how, output } => {
                let output = output.trim();
                let report = fault(format!("`{command}` failed"));
                report.why(if output.is_empty() { how.clone() } else { format!("{how}: {output}") })
            }
            SystemError::OutputRefused { path, kind, reason } => {
                fault(format!("will not write {kind} to {}", path.display()))
                    .why(reason.as_str())
                    .help("name another file, or remove it first")
            }
            SystemError::Bench { name, reason, is_usage } => {
                let what = format!("cannot measure {name}");
                let report = if *is_usage { usage(what) } else { fault(what) };
                report.why(reason.as_str())
            }
            SystemError::BadTrace { path, reason, strict } => {
                let report =
                    fault(format!("cannot replay {}", path.display())).why(reason.as_str());
                let help = "without --strict such lines are counted and left out";
                if *strict { report.help(help) } else { report }
            }
            SystemError::PromiseBroken { name, reason } => {
                fault(format!("{name} breaks a promise")).why(reason.as_str())
            }
            SystemError::PlanRefused { path, reason } => {
                usage(format!("cannot run {}", path.display())).why(reason.as_str())
            }
            SystemError::Interrupted => Report { exit_code: 1, ..fault("interrupted") },
            SystemError::DemoFailed { step, reason } => {
                fault(format!("the demonstration failed at: {step}")).why(reason.as_str())
            }
        }
    }
}
