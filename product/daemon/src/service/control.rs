//! The conversation between a command and the daemon of a volume: one line of JSON each way, over
//! the volume's control socket.
//!
//! Whoever may connect may detach the volume; the socket lies in a directory that only its owner
//! can enter. Still, a line is bounded and a silent client is dropped, so that no client can stop
//! the daemon from hearing the next one.
//!
//! The protocol is internal: both ends are one build, and its fields may change in any release.

use crate::copy::copying::{CopyOrder, Copying};
use crate::error::{DaemonError, Error, StateError};
use crate::growth::{Grown, Growth};
use crate::life::state::{Entry, StateDirectory};
use crate::service::scrub::{ScrubAction, ScrubFacts};
use crate::service::status::Facts;
use crate::setting::{Setting, Settings};
use coulter_system::readiness::{PollFlags, is_ready_within};
use coulter_terminal::{self as terminal, Report};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Most bytes of one line.
pub const LINE_SIZE_MAX: u64 = 1 << 20;

/// How long either end waits for the other, unless it knows better.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// How long a command waits while all of a map is looked through: a minute for 16 TiB.
const SEARCH_PATIENCE: Duration = Duration::from_secs(180);

/// How long a command waits for a clean shutdown: dirty pages and the log have to reach the disk.
/// For a daemon that is stopped too: it has the request, and heeds it when it goes on, so that
/// a caller that gave up soon would report that nothing was done, and find it done later.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(300);

const _: () = assert!(PATIENCE.as_secs() < SEARCH_PATIENCE.as_secs());
const _: () = assert!(SEARCH_PATIENCE.as_secs() < SHUTDOWN_PATIENCE.as_secs());

/// How long a process that has closed all that it had may take to be gone.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// How long until a daemon that hears nobody is spoken to again.
const UNHEARD_PAUSE: Duration = Duration::from_millis(10);

/// What a command asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
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
        /// Settings to change.
        settings: Vec<Setting>,
    },
    /// Let the volume grow over all of its file or disk.
    Grow {
        /// How.
        growth: Growth,
    },
    /// Begin or end a scrub, or tell of it.
    Scrub {
        /// Which.
        action: ScrubAction,
    },
    /// Begin, change or end the volume's replication.
    Copy {
        /// How.
        order: CopyOrder,
    },
    /// Have a commit made of what has completed. `is_current` of the status tells when it is there.
    Commit,
    /// Does the volume hold anything?
    FirstData,
    /// Do what only this kind of backing understands.
    Command {
        /// What, in words that its program gives meaning.
        words: Vec<String>,
    },
}

/// What the daemon answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// To [`Request::Status`].
    Status(Box<Facts>),
    /// To [`Request::Tune`].
    Settings(Settings),
    /// To [`Request::Grow`].
    Grown(Grown),
    /// To [`Request::Scrub`].
    Scrub(Box<ScrubFacts>),
    /// To [`Request::Copy`].
    Copying(Copying),
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

/// Sends `request` to the daemon of `entry` and waits for its answer. One that becomes another
/// program hears nobody for a moment.
///
/// # Errors
/// The daemon's own error; [`StateError::NotAttached`] when it has ended, or ends, and did not hear
/// of the request; [`DaemonError::DaemonEnded`] when it did, and was killed;
/// [`DaemonError::Ending`] or [`DaemonError::DaemonSilent`] when it does not answer in time.
pub fn ask(state: &StateDirectory, entry: &Entry, request: &Request) -> Result<Reply, Error> {
    let patience = match request {
        Request::Detach { .. }
        | Request::Restart { .. }
        | Request::Grow { .. }
        | Request::Copy { .. } => SHUTDOWN_PATIENCE,
        Request::FirstData => SEARCH_PATIENCE,
        _ => PATIENCE,
    };
    let waits = Waits { note_after: PATIENCE, patience };
    let (path, start) = (state.file(&entry.name, "sock"), Instant::now());
    loop {
        let answer = converse(&path, request, waits, &mut |taken| {
            let ending = state.is_ending(entry);
            terminal::note(&silence(entry, taken, ending, waits.patience));
        });
        let error = match answer {
            Ok(Reply::Failed(report)) => return Err(DaemonError::Daemon { report }.into()),
            Ok(reply) => return Ok(reply),
            Err(error) => error,
        };
        log::debug!("no answer from {}: {error}", entry.name);
        if !was_unheard(&error) {
            let hung_up = error.kind() == io::ErrorKind::UnexpectedEof;
            if hung_up && state.wait_for_end(entry, END_PATIENCE) {
                let (name, log) = (entry.name.clone(), state.file(&entry.name, "log"));
                return Err(DaemonError::DaemonEnded { name, log }.into());
            }
            return Err(unanswered(state, entry).into());
        }
        let attached = state.attached()?;
        // Not by name alone: the next daemon of that name is not meant.
        if !attached.iter().any(|it| it.name == entry.name && it.process == entry.process) {
            let attached = attached.into_iter().map(|entry| entry.name).collect();
            return Err(StateError::NotAttached { name: entry.name.clone(), attached }.into());
        }
        if start.elapsed() >= patience {
            return Err(unanswered(state, entry).into());
        }
        thread::sleep(UNHEARD_PAUSE);
    }
}

/// True if the daemon of `entry` answers.
pub(crate) fn answers(state: &StateDirectory, entry: &Entry) -> bool {
    ask(state, entry, &Request::Status).is_ok()
}

/// What is wrong with a daemon that lives and has not answered in time.
fn unanswered(state: &StateDirectory, entry: &Entry) -> DaemonError {
    match state.is_ending(entry) {
        true => DaemonError::ending(entry),
        false => DaemonError::silent(entry),
    }
}

/// Whether an error of [`ask`] says that the daemon has ended, in order or not.
pub fn is_about_ended(error: &Error) -> bool {
    matches!(
        error,
        Error::State(StateError::NotAttached { .. })
            | Error::Daemon(DaemonError::DaemonEnded { .. })
    )
}

/// The same, or that it is ending.
pub fn is_about_ending(error: &Error) -> bool {
    is_about_ended(error) || matches!(error, Error::Daemon(DaemonError::Ending { .. }))
}

/// Whether nobody has read the request: nobody listened, or stopped to before it was read.
fn was_unheard(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
    )
}

/// How long an answer may take.
#[derive(Clone, Copy)]
struct Waits {
    /// Until a person who waits is told of it.
    note_after: Duration,
    /// In all.
    patience: Duration,
}

/// Sends a request and waits for the answer. `is_silent` hears once that it takes long, and whether
/// the daemon has taken the request.
fn converse(
    path: &Path,
    request: &Request,
    waits: Waits,
    is_silent: &mut dyn FnMut(bool),
) -> io::Result<Reply> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write_line(&mut stream, request)?;
    if waits.note_after < waits.patience && !is_answered(&stream, waits.note_after) {
        is_silent(is_taken(&stream));
    }
    stream.set_read_timeout(Some(waits.patience))?;
    read_line(&stream)
}

/// Whether an answer, or the end of the connection, comes within `duration`.
fn is_answered(stream: &UnixStream, duration: Duration) -> bool {
    is_ready_within(stream, PollFlags::IN, duration).unwrap_or(true)
}

/// Whether the other end has read all that was sent to it.
fn is_taken(stream: &UnixStream) -> bool {
    let mut unread: libc::c_int = 0;
    // SAFETY: TIOCOUTQ, which for sockets is SIOCOUTQ, writes one int to where it is told, which is
    // a variable of ours, and the descriptor is open.
    let result = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut unread) };
    result == 0 && unread == 0
}

/// What to say to whoever waits for a daemon that says nothing, `patience` at most.
fn silence(entry: &Entry, taken: bool, ending: bool, patience: Duration) -> String {
    let seconds = patience.as_secs();
    let (name, pid) = (&entry.name, entry.process.pid);
    if entry.process.is_stopped() {
        return format!(
            "the daemon of '{name}' (process {pid}) is stopped; waiting {seconds} s at most: let it go on \
             with `kill -CONT {pid}`"
        );
    }
    if ending {
        return format!(
            "waiting for the daemon of '{name}' (process {pid}), which is ending, {seconds} s at most"
        );
    }
    if taken {
        return format!(
            "waiting for the daemon of '{name}' (process {pid}), which is at work on it, {seconds} s \
             at most"
        );
    }
    format!(
        "the daemon of '{name}' (process {pid}) does not answer yet; waiting {seconds} s at most; look \
         at its log: it may wait for the disk below, and goes on when that does"
    )
}

/// Writes one value as a line.
///
/// # Errors
/// When the other end does not take it.
pub fn write_line(to: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    assert!(!line.contains(&b'\n'), "a value is one line");
    line.push(b'\n');
    to.write_all(&line)
}

/// Reads one value from a line.
///
/// # Errors
/// `UnexpectedEof` when the other end closes before the line ends; `InvalidData` when the line is
/// too long or does not hold such a value.
pub fn read_line<T: DeserializeOwned>(from: impl Read) -> io::Result<T> {
    let mut line = Vec::new();
    BufReader::new(from.take(LINE_SIZE_MAX)).read_until(b'\n', &mut line)?;
    assert!(line.len() as u64 <= LINE_SIZE_MAX, "more was read than one line may have");
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
    use coulter_system::process::Process;
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc::Receiver;

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().expect("a socket pair can be made")
    }

    #[test]
    fn a_request_arrives_as_it_was_sent() {
        for request in [
            Request::Status,
            Request::Detach { force: true },
            Request::Restart { program: PathBuf::from("/usr/bin/coulter") },
            Request::Command { words: vec!["trace".to_owned(), "/tmp/a b".to_owned()] },
        ] {
            let (mut near, far) = pair();
            write_line(&mut near, &request).expect("the socket takes a line");
            assert_eq!(read_line::<Request>(&far).expect("the line is a request"), request);
        }
    }

    #[test]
    fn nonsense_is_an_error_and_nothing_more() {
        for text in [&b"\n"[..], b"{}\n", b"{\"request\":\"format\"}\n", b"\xff\xfe\n", b"[[[[\n"] {
            let (mut near, far) = pair();
            near.write_all(text).expect("the socket takes it");
            let error = read_line::<Request>(&far).expect_err("it is no request");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{text:?}");
        }
        let (near, far) = pair();
        drop(near);
        assert_eq!(
            read_line::<Request>(&far).expect_err("nothing came").kind(),
            io::ErrorKind::UnexpectedEof
        );
    }

    #[test]
    fn an_endless_line_is_cut_off() {
        let endless = io::repeat(b'x');
        let error = read_line::<Request>(endless).expect_err("it never ends");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    /// What is heard of a daemon that `serve`s a listener, and its answer.
    fn heard(serve: impl FnOnce(&UnixListener, &Receiver<()>) + Send + 'static) -> Vec<bool> {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().join("sock");
        let listener = UnixListener::bind(&path).expect("the directory is writable");
        let (silent, is_silent) = std::sync::mpsc::channel();
        let daemon = std::thread::spawn(move || serve(&listener, &is_silent));
        let patience = Duration::from_secs(60);
        let waits = Waits { note_after: Duration::from_millis(100), patience };
        let mut heard = Vec::new();
        let answer = converse(&path, &Request::Detach { force: false }, waits, &mut |taken| {
            heard.push(taken);
            let _ = silent.send(());
        });
        assert!(matches!(answer, Ok(Reply::Done)), "{answer:?}");
        daemon.join().expect("no panic");
        heard
    }

    fn answer(mut stream: &UnixStream) {
        write_line(&mut stream, &Reply::Done).expect("it is read");
    }

    /// A state directory with the entry of a daemon, which is this process.
    fn attached() -> (tempfile::TempDir, StateDirectory, Entry) {
        let parent = tempfile::tempdir().expect("a temporary directory can be made");
        let state = StateDirectory::open(Some(parent.path().join("s"))).expect("it can be made");
        let entry = Entry::sample("a", Process::current());
        let lock = state.lock().expect("the directory is writable");
        state.write(&lock, &entry).expect("the directory is writable");
        drop(lock);
        (parent, state, entry)
    }

    #[test]
    fn a_daemon_that_becomes_another_program_is_asked_again() {
        let (_parent, state, entry) = attached();
        let path = state.file("a", "sock");
        let old = UnixListener::bind(&path).expect("the directory is writable");
        let daemon = thread::spawn(move || {
            // It ends with a request that it has not read, and the next one is not there yet.
            thread::sleep(Duration::from_millis(100));
            drop(old);
            thread::sleep(Duration::from_millis(100));
            std::fs::remove_file(&path).expect("it is there");
            let listener = UnixListener::bind(&path).expect("the directory is writable");
            let (stream, _) = listener.accept().expect("somebody comes");
            read_line::<Request>(&stream).expect("it is a request");
            answer(&stream);
        });
        let answer = ask(&state, &entry, &Request::Status);
        assert!(matches!(answer, Ok(Reply::Done)), "{answer:?}");
        daemon.join().expect("no panic");
    }

    #[test]
    fn a_daemon_that_ends_before_it_has_heard_a_request_is_not_attached() {
        let (_parent, state, entry) = attached();
        let old = UnixListener::bind(state.file("a", "sock")).expect("the directory is writable");
        let ending = state.clone();
        let daemon = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            drop(old);
            let lock = ending.lock().expect("the directory is writable");
            ending.remove(&lock, "a").expect("the directory is writable");
        });
        let answer = ask(&state, &entry, &Request::Detach { force: false });
        let error = answer.expect_err("nobody has heard it");
        assert!(matches!(error, Error::State(StateError::NotAttached { .. })), "{error}");
        daemon.join().expect("no panic");
    }

    #[test]
    fn a_daemon_that_writes_out_what_is_left_is_told_from_one_that_is_silent() {
        let (_parent, state, entry) = attached();
        let _silent = UnixListener::bind(state.file("a", "sock")).expect("it is writable");
        let lock = state.lock().expect("the directory is writable");
        state.write(&lock, &Entry { ending: true, ..entry.clone() }).expect("it is writable");
        drop(lock);
        let error = ask(&state, &entry, &Request::Status).expect_err("nobody answers");
        assert!(matches!(error, Error::Daemon(DaemonError::Ending { .. })), "{error}");
        assert!(is_about_ending(&error) && !is_about_ended(&error));
        let note = silence(&entry, false, true, Duration::from_secs(60));
        assert!(note.contains("ending") && !note.contains("kill"), "{note}");
    }

    #[test]
    fn a_daemon_that_is_killed_while_it_works_is_told_from_one_that_is_silent() {
        let (_parent, state, entry) = attached();
        let listener = UnixListener::bind(state.file("a", "sock")).expect("it is writable");
        let mut process =
            std::process::Command::new("sleep").arg("60").spawn().expect("it can run");
        let of_process = Process::with_pid(process.id()).expect("it runs");
        let entry = Entry { process: of_process, ..entry };
        let daemon = thread::spawn(move || {
            let hear = || {
                let (stream, _) = listener.accept().expect("somebody comes");
                read_line::<Request>(&stream).expect("it is a request");
            };
            hear();
            hear();
            process.kill().and_then(|()| process.wait()).expect("it is our child");
        });
        let ask = || ask(&state, &entry, &Request::Status).expect_err("nobody answers");
        assert!(matches!(ask(), Error::Daemon(DaemonError::DaemonSilent { .. })));
        assert!(matches!(ask(), Error::Daemon(DaemonError::DaemonEnded { .. })));
        daemon.join().expect("no panic");
    }

    #[test]
    fn a_daemon_that_is_deaf_is_told_from_one_that_works() {
        let quick = heard(|listener, _| {
            let (stream, _) = listener.accept().expect("somebody comes");
            read_line::<Request>(&stream).expect("it is a request");
            answer(&stream);
        });
        assert!(quick.is_empty(), "{quick:?}");
        let deaf = heard(|listener, is_silent| {
            is_silent.recv().expect("it is told");
            let (stream, _) = listener.accept().expect("somebody comes");
            read_line::<Request>(&stream).expect("it is a request");
            answer(&stream);
        });
        assert_eq!(deaf, [false]);
        let slow = heard(|listener, is_silent| {
            let (stream, _) = listener.accept().expect("somebody comes");
            read_line::<Request>(&stream).expect("it is a request");
            is_silent.recv().expect("it is told");
            answer(&stream);
        });
        assert_eq!(slow, [true]);
    }
}
