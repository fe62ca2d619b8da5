//! Starting a daemon and hearing from it.
//!
//! The daemon's standard output is a pipe to the command that started it. One line of JSON comes
//! through it, when the volume is served or when it cannot be, and then it is closed; so the
//! command never prints a device that does not answer yet. If the command is gone by then, the
//! daemon ends: nobody would know of it.
//!
//! Of the descriptors that the command has inherited, the daemon gets the first three only. Any
//! other may be the end of a pipe that a shell waits for, or a lock that is held for as long as it
//! is open.

use crate::error::{DaemonError, Error};
use crate::life::state::{Entry, StateDirectory};
use crate::logging;
use crate::service::control;
use coulter_terminal::{self as terminal, Report};
use rustix::stdio::dup2_stdout;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What comes through the pipe.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Message {
    Serving(Box<Entry>),
    Failed(Report),
}

/// Starts a daemon by the `words` behind the state directory, and waits until it serves.
///
/// # Errors
/// Whatever kept the daemon from serving.
pub fn launch(
    state: &StateDirectory,
    words: impl IntoIterator<Item = OsString>,
) -> Result<Entry, Error> {
    let program = this_program();
    let failed = |source| Error::io("start", &program, source);
    close_inherited_on_exec();
    let mut child = Command::new(&program)
        .arg0(own_name())
        .arg("--state-directory")
        .arg(state.path())
        .args(words)
        .env(logging::FORMAT_VARIABLE, logging::format().name())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let spinner = terminal::spinner("attaching");
    let message = child.stdout.take().map(control::read_line::<Message>);
    spinner.finish_and_clear();
    match message {
        Some(Ok(Message::Serving(entry))) => Ok(*entry),
        Some(Ok(Message::Failed(report))) => {
            let _ = child.wait();
            Err(DaemonError::Daemon { report }.into())
        }
        _ => Err(died(child, state)),
    }
}

/// Marks what this process has inherited, and what it has opened itself is marked already.
fn close_inherited_on_exec() {
    // Without /proc the daemon keeps them, which is untidy and no more.
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
    for number in numbers.filter(|number| *number > libc::STDERR_FILENO) {
        // SAFETY: it sets a flag of a descriptor, which this process may have closed by now: then
        // it fails. Nothing is closed, and no memory is touched.
        let _ = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// What this program was called, without its directory: a daemon is listed by it.
fn own_name() -> OsString {
    let called = std::env::args_os().next().map(PathBuf::from);
    let name = called.as_deref().and_then(Path::file_name);
    name.map_or_else(|| "coulter".into(), OsString::from)
}

/// This program by its name, or by what the kernel holds of it if the file was replaced since.
fn this_program() -> PathBuf {
    let by_name = std::env::current_exe().ok().filter(|path| path.exists());
    by_name.unwrap_or_else(|| PathBuf::from("/proc/self/exe"))
}

fn died(mut child: Child, state: &StateDirectory) -> Error {
    let how = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
    DaemonError::DaemonDied { directory: state.path().to_owned(), how }.into()
}

/// The daemon's end of the pipe.
pub struct Readiness {
    told: bool,
}

impl Readiness {
    /// The pipe is this process's standard output.
    pub fn on_standard_output() -> Readiness {
        Readiness { told: false }
    }

    /// Says that the volume is served.
    ///
    /// # Errors
    /// When nobody listens any more.
    pub fn tell_success(&mut self, entry: &Entry) -> Result<(), Error> {
        assert!(entry.device.is_some(), "a daemon serves once hosts reach it");
        self.tell(&Message::Serving(Box::new(entry.clone())))
            .map_err(|source| Error::io("answer", Path::new("the command that started it"), source))
    }

    /// Says why the volume is not served, unless it was said already that it is.
    pub fn tell_failure(&mut self, report: &Report) {
        if !self.told
            && let Err(error) = self.tell(&Message::Failed(report.clone()))
        {
            log::debug!("nobody took the answer: {error}");
        }
    }

    fn tell(&mut self, message: &Message) -> io::Result<()> {
        self.told = true;
        let mut out = io::stdout().lock();
        control::write_line(&mut out, message)?;
        out.flush()?;
        // The command waits for the end of the pipe if the line were cut short.
        dup2_stdout(File::options().write(true).open("/dev/null")?)?;
        Ok(())
    }
}
