//! What a machine's two processes say to each other: one line of JSON each.

use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Write};
use std::path::PathBuf;

/// When the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// After so many commands to the disk, from turning it on or from being told.
    pub commands: u64,
    /// Decides what of the cache survives.
    pub seed: u64,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Turn the power on, open the volume and attach it.
    Start { cut: Option<Cut> },
    /// Whether there is power.
    Power,
    /// Cut it after so many commands from now.
    Arm { cut: Cut },
    /// Cut it now.
    Cut { seed: u64 },
    /// Take away what runs without power.
    Abandon,
    /// Detach and close in order.
    ShutDown,
    /// Read the disk with the independent checker.
    Check,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// It is done.
    Done,
    /// It runs, and this is the block device.
    Running { device: PathBuf },
    /// The power went before it ran.
    Cut,
    /// Whether there is power.
    Power { is_on: bool },
    /// A promise is broken.
    Violation { what: String },
    /// The system refused something.
    Failed { what: String },
}

/// Sends one message.
///
/// # Errors
/// When nobody listens.
pub(crate) fn send(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_string(message)?;
    line.push('\n');
    to.write_all(line.as_bytes())?;
    to.flush()
}

/// Receives one message; `None` at the end.
///
/// # Errors
/// When it cannot be read or understood.
pub(crate) fn receive<T: for<'a> Deserialize<'a>>(
    from: &mut impl BufRead,
) -> io::Result<Option<T>> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&line)?))
}
