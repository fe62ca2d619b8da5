//! About the system around the program.

use coulter_terminal::{Report, Size, fault};
use std::path::PathBuf;

/// About the system around the program.
#[derive(Debug)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what its name says of its variant")]
pub enum SystemError {
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
    /// Keys of NVMe hosts that cannot be used.
    KeysRefused { path: PathBuf, reason: String },
    /// The person pressed Ctrl-C, or the process was told to end.
    Interrupted,
}

impl SystemError {
    /// What, why, and what to do.
    pub fn report(&self) -> Report {
        match self {
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
            SystemError::KeysRefused { path, reason } => fault(format!(
                "cannot use the keys in {}",
                path.display()
            ))
            .why(reason.as_str())
            .help(
                "write lines of `HOST-NQN DHHC-1:…`, with keys of `nvme gen-dhchap-key`, and \
                         `chmod 600` the file",
            ),
            SystemError::Interrupted => Report { exit_code: 1, ..fault("interrupted") },
        }
    }
}
