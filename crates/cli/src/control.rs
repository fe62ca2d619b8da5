//! The conversation between a command and the daemon of a volume: one line of JSON each way, over
//! the volume's control socket.
//!
//! Whoever may connect may detach the volume; the socket lies in a directory that only its owner
//! can enter. Still, a line is bounded and a silent client is dropped, so that no client can stop
//! the daemon from hearing the next one.
//!
//! The protocol is internal: both ends are one build, and its fields may change in any release.

use crate::error::{CliError, DaemonError, Report};
use crate::setting::{Setting, Settings};
use crate::state::{Entry, StateDirectory};
use crate::status::Facts;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Most bytes of one line.
const LINE_SIZE_MAX: u64 = 1 << 20;

/// How long either end waits for the other, unless it knows better.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a command waits while all of a map is looked through: a minute for 16 TiB.
const SEARCH_PATIENCE: Duration = Duration::from_secs(180);

/// How long a command waits for a clean shutdown: dirty pages and the log have to reach the disk.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(300);

/// What a command asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub(crate) enum Request {
    /// What is the volume doing?
    Status,
    /// Stop serving. The answer comes when everything is durable and the device is gone.
    Detach {
        /// Even though somebody uses the device.
        force: bool,
    },
    /// Become this program, and answer when that serves.
    Restart {
        /// The program, by its absolute path.
        program: PathBuf,
    },
    /// Change settings, and tell them all.
    Tune {
        /// What to change.
        settings: Vec<Setting>,
    },
    /// Does the volume hold anything?
    FirstData,
    /// Forget what was traced so far and go on.
    TraceStart,
    /// Write what was traced to a file.
    TraceWrite {
        /// The file.
        path: PathBuf,
    },
}

/// What the daemon answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub(crate) enum Reply {
    /// To [`Request::Status`].
    Status(Box<Facts>),
    /// To [`Request::Tune`].
    Settings(Settings),
    /// To [`Request::FirstData`].
    FirstData {
        /// The first byte of the first block that is mapped; none if none is.
        byte: Option<u64>,
    },
    /// Done.
    Done,
    /// Not done.
    Failed(Report),
}

/// Sends `request` to the daemon of `entry` and waits for its answer.
///
/// # Errors
/// The daemon's own error; [`DaemonError::DaemonSilent`] when it does not answer in time.
pub(crate) fn ask(
    state: &StateDirectory,
    entry: &Entry,
    request: &Request,
) -> Result<Reply, CliError> {
    let patience = match request {
        Request::Detach { .. } | Request::Restart { .. } => SHUTDOWN_PATIENCE,
        Request::FirstData => SEARCH_PATIENCE,
        _ => PATIENCE,
    };
    let answer = converse(&state.file(&entry.name, "sock"), request, patience);
    match answer {
        Ok(Reply::Failed(report)) => Err(DaemonError::Daemon(report).into()),
        Ok(reply) => Ok(reply),
        Err(error) => {
            log::debug!("no answer from {}: {error}", entry.name);
            Err(DaemonError::DaemonSilent { name: entry.name.clone(), pid: entry.process.pid }
                .into())
        }
    }
}

fn converse(path: &std::path::Path, request: &Request, patience: Duration) -> io::Result<Reply> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(patience))?;
    write_line(&mut stream, request)?;
    read_line(&stream)
}

/// Reads the request of a client that has just connected.
///
/// # Errors
/// When the client is silent for too long, or what it says is no request.
pub(crate) fn receive(stream: &UnixStream) -> io::Result<Request> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    read_line(stream)
}

/// Writes one value as a line.
///
/// # Errors
/// When the other end does not take it.
pub(crate) fn write_line(to: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Reads one value from a line.
///
/// # Errors
/// `UnexpectedEof` when the other end closes before the line ends; `InvalidData` when the line is
/// too long or does not hold such a value.
pub(crate) fn read_line<T: DeserializeOwned>(from: impl Read) -> io::Result<T> {
    let mut line = Vec::new();
    BufReader::new(from.take(LINE_SIZE_MAX)).read_until(b'\n', &mut line)?;
    match line.last() {
        Some(b'\n') => serde_json::from_slice(&line)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
        _ if line.len() as u64 == LINE_SIZE_MAX => {
            Err(io::Error::new(io::ErrorKind::InvalidData, "the line is too long"))
        }
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().expect("a socket pair can be made")
    }

    #[test]
    fn a_request_arrives_as_it_was_sent() {
        for request in [
            Request::Status,
            Request::Detach { force: true },
            Request::Restart { program: PathBuf::from("/usr/bin/coulter") },
            Request::TraceStart,
            Request::TraceWrite { path: PathBuf::from("/tmp/a b") },
        ] {
            let (mut near, far) = pair();
            write_line(&mut near, &request).expect("the socket takes a line");
            assert_eq!(receive(&far).expect("the line is a request"), request);
        }
    }

    #[test]
    fn nonsense_is_an_error_and_nothing_more() {
        for text in [&b"\n"[..], b"{}\n", b"{\"request\":\"format\"}\n", b"\xff\xfe\n", b"[[[[\n"] {
            let (mut near, far) = pair();
            near.write_all(text).expect("the socket takes it");
            let error = receive(&far).expect_err("it is no request");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{text:?}");
        }
        let (near, far) = pair();
        drop(near);
        assert_eq!(receive(&far).expect_err("nothing came").kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn an_endless_line_is_cut_off() {
        let endless = io::repeat(b'x');
        let error = read_line::<Request>(endless).expect_err("it never ends");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
