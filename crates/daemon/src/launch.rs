//! Starting a daemon and hearing from it.
//!
//! The daemon's standard output is a pipe to the command that started it. One line of JSON comes
//! through it, when the volume is served or when it cannot be, and then it is closed; so the
//! command never prints a device that does not answer yet. If the command is gone by then, the
//! daemon ends: nobody would know of it.

use crate::control;
use crate::error::{CliError, DaemonError, Report};
use crate::logging;
use crate::state::{Entry, StateDirectory};
use crate::terminal;
use crate::verbs::attach::Options;
use nix::unistd::dup2_stdout;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
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
pub(crate) fn launch(
    state: &StateDirectory,
    words: impl IntoIterator<Item = OsString>,
) -> Result<Entry, CliError> {
    let program = this_program();
    let failed = |source| CliError::io("start", &program, source);
    let mut child = Command::new(&program)
        .arg0("coulter")
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
            Err(DaemonError::Daemon(report).into())
        }
        _ => Err(died(child, state)),
    }
}

/// This program by its name, or by what the kernel holds of it if the file was replaced since.
fn this_program() -> PathBuf {
    let by_name = std::env::current_exe().ok().filter(|path| path.exists());
    by_name.unwrap_or_else(|| PathBuf::from("/proc/self/exe"))
}

fn died(mut child: Child, state: &StateDirectory) -> CliError {
    let how = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
    DaemonError::DaemonDied { directory: state.path().to_owned(), how }.into()
}

/// The words that start a daemon for the store at `path`.
pub(crate) fn words_for_store(path: &Path, options: &Options) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["daemon".into(), format!("--via={}", options.via).into()];
    if options.recover {
        words.push("--recover".into());
    }
    words.extend(options.opening.words());
    words.push("--".into());
    // The daemon works in another directory.
    words.push(std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).into());
    words
}

/// The daemon's end of the pipe.
pub(crate) struct Readiness {
    told: bool,
}

impl Readiness {
    /// The pipe is this process's standard output.
    pub(crate) fn on_standard_output() -> Readiness {
        Readiness { told: false }
    }

    /// Says that the volume is served.
    ///
    /// # Errors
    /// When nobody listens any more.
    pub(crate) fn tell_success(&mut self, entry: &Entry) -> Result<(), CliError> {
        self.tell(&Message::Serving(Box::new(entry.clone()))).map_err(|source| {
            CliError::io("answer", Path::new("the command that started it"), source)
        })
    }

    /// Says why the volume is not served, unless it was said already that it is.
    pub(crate) fn tell_failure(&mut self, report: &Report) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{CommandLine, Verb};
    use crate::opening::{Acknowledge, Opening, Trim};
    use crate::size::Size;
    use crate::verbs::attach::ViaChoice;
    use clap::Parser;

    #[test]
    fn the_daemon_understands_the_command_line_that_it_is_given() {
        let opening = Opening {
            name: Some("a".into()),
            map_memory: Some(Size(12_345_678)),
            trim: Trim::Yes,
            acknowledge: Acknowledge::Buffered,
            read_only: true,
            trace: true,
            tune: ["cleaning=drain", "cleaning-rate=12345678", "latency-target=1500us"]
                .map(|text| text.parse().expect("it is a setting"))
                .to_vec(),
            metrics: Some("127.0.0.1:9640".parse().expect("an address")),
        };
        let options = Options { via: ViaChoice::Nbd, recover: true, opening };
        let path = Path::new("/srv/-odd name.img");
        let words = [OsString::from("coulter")].into_iter().chain(words_for_store(path, &options));
        let parsed = CommandLine::try_parse_from(words).expect("the daemon understands it");
        let Verb::Daemon(daemon) = parsed.verb else { panic!("another verb: {:?}", parsed.verb) };
        assert_eq!(daemon.path, path);
        assert_eq!(daemon.options.via, options.via);
        assert!(daemon.options.recover);
        assert_eq!(daemon.options.opening, options.opening);
    }
}
