//! The program `coulter` as an operator has it: commands that end within a minute, and daemons that stay.

use crate::error::SystemsError;
use crate::tool;
use rustix::process::{Pid, Signal, kill_process};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long a command may take. One that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(2);

/// The program, with a state directory of its own.
#[derive(Clone, Debug)]
pub(crate) struct Coulter {
    program: PathBuf,
    state: PathBuf,
}

/// The daemon of a mount.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Daemon(Pid);

impl Coulter {
    pub(crate) fn new(program: &Path, state: PathBuf) -> Coulter {
        Coulter { program: program.to_owned(), state }
    }

    /// Runs a command to its end, whatever that is.
    ///
    /// # Errors
    /// A violation if it does not end.
    pub(crate) fn finish(&self, words: &[&str]) -> Result<Output, SystemsError> {
        let mut command = Command::new(&self.program);
        command.args(words).env("COULTER_STATE_DIRECTORY", &self.state).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let not_started = |error| tool::not_started(&command_of(words), "coulter", error);
        let mut child = command.spawn().map_err(not_started)?;
        let deadline = Instant::now() + PATIENCE;
        while child.try_wait().map_err(not_started)?.is_none() {
            if Instant::now() >= deadline {
                let said = crate::diagnosis::threads_of(child.id());
                let _ = child.kill();
                let what = format!("`coulter {}` hangs:\n{said}", words.join(" "));
                return Err(SystemsError::violation(what));
            }
            std::thread::sleep(PAUSE);
        }
        child.wait_with_output().map_err(not_started)
    }

    /// Runs a command that must succeed; what it printed.
    ///
    /// # Errors
    /// A violation with what it said.
    pub(crate) fn run(&self, words: &[&str]) -> Result<String, SystemsError> {
        let output = self.finish(words)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = tool::words_of(&output);
        Err(SystemsError::violation(format!("`coulter {}`: {said}", words.join(" "))))
    }

    /// Runs a command that starts a daemon, with `--json`.
    ///
    /// # Errors
    /// A violation with what it said.
    pub(crate) fn start(&self, words: &[&str]) -> Result<Daemon, SystemsError> {
        let text = self.run(words)?;
        let entry: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let pid = entry["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32));
        pid.map(Daemon).ok_or_else(|| SystemsError::violation(format!("no daemon in {text}")))
    }

    /// The end of each daemon's log.
    pub(crate) fn logs(&self) -> String {
        let files = std::fs::read_dir(&self.state).into_iter().flatten().flatten();
        let logs = files.map(|file| file.path());
        let logs = logs.filter(|path| path.extension().is_some_and(|it| it == "log"));
        logs.map(|log| crate::diagnosis::end_of(&log)).collect()
    }
}

impl Daemon {
    /// Kills it, and returns when it is gone.
    ///
    /// # Errors
    /// When it stays.
    pub(crate) fn kill(self) -> Result<(), SystemsError> {
        let pid = self.0.as_raw_nonzero().get() as u32;
        // It may have ended by itself.
        let _ = kill_process(self.0, Signal::KILL);
        let deadline = Instant::now() + PATIENCE;
        while crate::sandbox::is_running(pid) {
            if Instant::now() >= deadline {
                let said = crate::diagnosis::threads_of(pid);
                return Err(SystemsError::violation(format!("it cannot be killed:\n{said}")));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

fn command_of(words: &[&str]) -> Command {
    let mut command = Command::new("coulter");
    command.args(words);
    command
}

/// The words of a path.
///
/// # Panics
/// When it is no text, which no path of ours is.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("a scratch has a name of plain letters")
}

/// An error of the system on a path.
pub(crate) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SystemsError {
    let path = path.to_owned();
    move |source| SystemsError::io(action, &path, source)
}
