//! A file system holds still while a snapshot of the volume below it is made: then the snapshot is as if it had been
//! unmounted, and needs no replay of a journal.
//!
//! ```text
//! written out     what is in memory, while writers go on
//! frozen          by a guard (verbs/thaw.rs), which thaws when this command ends or time is over
//! shipped         a commit has all that had been written
//! snapshot        made
//! thawed          and if the guard was late, the snapshot is given up: writers went on before it was made
//! ```

use crate::error::{CliError, CopyError, DaemonError};
use crate::interrupt::Interrupt;
use coulter_daemon::control::{self, Reply, Request};
use coulter_daemon::points;
use coulter_daemon::replication::ReplicaFacts;
use coulter_daemon::state::{Entry, StateDirectory};
use coulter_daemon::status::Facts;
use coulter_object::Url;
use coulter_system::freeze::Freezer;
use coulter_system::mounts;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// How often it is looked whether a commit is there.
const PAUSE: Duration = Duration::from_millis(10);

/// A file system that is frozen.
pub(super) struct Frozen {
    directory: PathBuf,
    freezer: Freezer,
    guard: Child,
    /// The guard thaws when it is closed.
    hold: Option<ChildStdin>,
    words: BufReader<ChildStdout>,
}

impl Frozen {
    /// Freezes the file system at `directory`, for `within` at most.
    ///
    /// # Errors
    /// When it cannot be frozen; then it is as it was.
    fn new(directory: &Path, within: Duration) -> Result<Frozen, CliError> {
        let failed = |source| not_frozen(directory, &source);
        let freezer = Freezer::open(directory).map_err(failed)?;
        freezer.sync().map_err(failed)?;
        let program = std::env::current_exe().map_err(failed)?;
        let mut guard = Command::new(program)
            .arg0("coulter")
            .args(["thaw", "--within", &within.as_millis().to_string(), "--"])
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // What ends this command by its process group does not end the guard.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let (hold, output) = (guard.stdin.take(), guard.stdout.take());
        let words = BufReader::new(output.expect("it was asked for"));
        let directory = directory.to_owned();
        let mut frozen = Frozen { directory, freezer, guard, hold, words };
        match frozen.word().as_str() {
            "frozen" => Ok(frozen),
            word => {
                let number = word.strip_prefix("error ").and_then(|it| it.parse::<i32>().ok());
                let error =
                    number.map_or(io::ErrorKind::Other.into(), io::Error::from_raw_os_error);
                let failed = not_frozen(&frozen.directory, &error);
                frozen.hold = None;
                let ended = frozen.guard.wait();
                // One that was killed may have frozen it. One that has ended has not, and what somebody else has
                // frozen must stay so.
                if ended.is_ok_and(|status| status.signal().is_some()) {
                    let _ = frozen.freezer.thaw();
                }
                Err(failed)
            }
        }
    }

    /// What the guard says next; nothing if it has ended.
    fn word(&mut self) -> String {
        let mut line = String::new();
        let _ = self.words.read_line(&mut line);
        line.trim_end().to_owned()
    }

    /// Thaws it.
    ///
    /// # Errors
    /// [`CopyError::ThawedEarly`] if it was thawed before.
    pub(super) fn thaw(mut self) -> Result<(), CliError> {
        let in_time = self.end();
        let directory = self.directory.clone();
        if in_time { Ok(()) } else { Err(CopyError::ThawedEarly { directory }.into()) }
    }

    /// Has the guard thaw it, and thaws it if the guard is gone. Whether it was frozen until now.
    fn end(&mut self) -> bool {
        if self.hold.take().is_none() {
            return false;
        }
        let word = self.word();
        let is_guarded = ["thawed", "late"].contains(&word.as_str());
        let _ = self.guard.wait();
        word == "thawed" || (!is_guarded && self.freezer.thaw().is_ok())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.end();
    }
}

/// Freezes the file system at `directory`, which lies on the volume that is shipped to `url` from this host. Returns
/// when the copy has all that was written before.
///
/// # Errors
/// When it is not on that volume, cannot be frozen, or the copy does not follow in time.
pub(super) fn freeze(
    state: Option<&StateDirectory>,
    url: &Url,
    directory: &Path,
    within: Duration,
    interrupt: &Interrupt,
) -> Result<Frozen, CliError> {
    let other =
        || CopyError::OtherFileSystem { directory: directory.to_owned(), url: url.to_string() };
    let state = state.ok_or_else(other)?;
    let directory =
        directory.canonicalize().map_err(|source| CliError::io("freeze", directory, source))?;
    let entry = volume_below(state, url, &directory)?.ok_or_else(other)?;
    let frozen = Frozen::new(&directory, within)?;
    let until = Instant::now() + within;
    control::ask(state, &entry, &Request::Commit)?;
    while !replica_of(state, &entry)?.is_some_and(|replica| replica.is_current) {
        interrupt.sleep(PAUSE)?;
        if Instant::now() >= until {
            return Err(CopyError::ThawedEarly { directory }.into());
        }
    }
    Ok(frozen)
}

/// The volume that is shipped to `url` from this host, if the file system at `directory` lies on it.
fn volume_below(
    state: &StateDirectory,
    url: &Url,
    directory: &Path,
) -> Result<Option<Entry>, CliError> {
    let failed = |source| CliError::io("look at", directory, source);
    let number = directory.metadata().map_err(failed)?.dev();
    let is_it = |path: &Path| path.metadata().is_ok_and(|found| found.dev() == number);
    for entry in state.attached()? {
        let Some(device) = entry.device.clone().filter(|_| points::gives_device(&entry)) else {
            continue;
        };
        let mounts = mounts::mounts_of(Path::new(&device)).map_err(failed)?;
        if !mounts.iter().any(|mount| is_it(&mount.mount_point)) {
            continue;
        }
        let replica = replica_of(state, &entry)?;
        let is_at = |replica: &ReplicaFacts| replica.url.parse::<Url>().is_ok_and(|it| it == *url);
        return Ok(replica.as_ref().is_some_and(is_at).then_some(entry));
    }
    Ok(None)
}

fn replica_of(state: &StateDirectory, entry: &Entry) -> Result<Option<ReplicaFacts>, CliError> {
    match control::ask(state, entry, &Request::Status)? {
        Reply::Status(facts) => Ok(match *facts {
            Facts::Volume(status) => status.replica.map(|replica| *replica),
            Facts::Other(_) => None,
        }),
        _ => Err(DaemonError::silent(entry).into()),
    }
}

fn not_frozen(directory: &Path, error: &io::Error) -> CliError {
    let reason = match error.raw_os_error() {
        Some(libc::EBUSY) => "it is frozen already, or being mounted or unmounted".to_owned(),
        Some(libc::EOPNOTSUPP | libc::ENOTTY) => {
            "this kind of file system cannot be frozen".to_owned()
        }
        Some(libc::EPERM | libc::EACCES) => "only root may do that".to_owned(),
        _ => error.to_string(),
    };
    CopyError::NotFrozen { directory: directory.to_owned(), reason }.into()
}
