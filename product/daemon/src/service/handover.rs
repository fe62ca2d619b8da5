//! How a daemon becomes another version of the program without its hosts noticing more than a
//! pause.
//!
//! ```text
//! old: point.hand_over()   what hosts had asked for is done; from here on their requests wait
//!      store closed        durable, unlocked
//!      exec                the same process, the new program, two descriptors kept open
//! new: store opened, point resumed on the descriptor, the waiting command answered
//! ```
//!
//! The process stays the same, and with it its entry, its claim to the name, and its place under a
//! service manager. What is passed besides descriptors stands in one environment variable, which
//! names the process so that nobody else takes it for his own.
//!
//! # If it fails
//! A program that cannot be executed leaves the old one running: it resumes itself. One that starts
//! and then cannot open the store ends, and the device with it, as if the daemon had been killed:
//! nothing that was flushed is lost.

use crate::copy::copying::CopyOrder;
use crate::error::{DaemonError, Error};
use crate::life::file_identity::FileIdentity;
use crate::life::state::Entry;
use coulter_system::process::Process;
use coulter_system::readiness::{PollFlags, is_ready_within};
use coulter_terminal as terminal;
use rustix::io::{FdFlags, fcntl_setfd};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const VARIABLE: &str = "COULTER_HANDOVER";

/// How long a program may take to say its version: it may have to come from a slow disk.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long until a program that has said all is looked at again.
const PAUSE: Duration = Duration::from_millis(1);

/// Most bytes that are read of what a program says.
const WORDS_SIZE_MAX: usize = 256;

/// What one program passes to the next.
pub(crate) struct Handover {
    /// How it is attached.
    pub(crate) entry: Entry,
    /// What the attach point resumes with.
    pub(crate) descriptor: OwnedFd,
    /// The command that waits for an answer.
    pub(crate) client: UnixStream,
    /// How it is replicated, if that is not what the words say with which this process was started.
    pub(crate) copying: Option<CopyOrder>,
}

#[derive(Serialize, Deserialize)]
struct Passed {
    entry: Entry,
    descriptor: RawFd,
    client: RawFd,
    #[serde(default)]
    copying: Option<CopyOrder>,
}

impl Handover {
    /// What was passed to this process, if anything was.
    pub(crate) fn passed() -> Option<Handover> {
        let text = std::env::var(VARIABLE).ok()?;
        let Passed { entry, descriptor, client, copying } = serde_json::from_str(&text).ok()?;
        if entry.process != Process::current() {
            return None;
        }
        assert_ne!(descriptor, client, "one descriptor cannot be taken twice");
        let adopt = |number: RawFd| {
            assert!(number > 2, "the standard descriptors are not passed");
            // SAFETY: this very process passed itself the number of a descriptor that it left open
            // for this. It is taken once, before anything else in the program opens descriptors.
            let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
            fcntl_setfd(&descriptor, FdFlags::CLOEXEC).ok().map(|()| descriptor)
        };
        let (descriptor, client) = (adopt(descriptor)?, adopt(client)?.into());
        Some(Handover { entry, descriptor, client, copying })
    }

    /// Becomes `program`. Comes back only if that fails.
    pub(crate) fn become_program(&self, program: &Path) -> io::Error {
        let this = std::process::id();
        assert_eq!(self.entry.process.pid, this, "the next program would take nothing over");
        assert!(self.entry.device.is_some(), "only what serves is handed over");
        let passed = Passed {
            entry: self.entry.clone(),
            descriptor: self.descriptor.as_raw_fd(),
            client: self.client.as_raw_fd(),
            copying: self.copying.clone(),
        };
        let text = match serde_json::to_string(&passed) {
            Ok(text) => text,
            Err(error) => return error.into(),
        };
        let kept = fcntl_setfd(&self.descriptor, FdFlags::empty())
            .and_then(|()| fcntl_setfd(&self.client, FdFlags::empty()));
        if let Err(error) = kept {
            return error.into();
        }
        let error = Command::new(program)
            .arg0("coulter")
            .args(std::env::args_os().skip(1))
            .env(VARIABLE, text)
            // They told of descriptors that are closed by now.
            .env_remove("LISTEN_FDS")
            .env_remove("LISTEN_PID")
            .exec();
        let _ = fcntl_setfd(&self.descriptor, FdFlags::CLOEXEC);
        let _ = fcntl_setfd(&self.client, FdFlags::CLOEXEC);
        error
    }
}

/// Checks that `program` is one of ours and can be run at all. The daemon hears nobody meanwhile,
/// so it neither waits nor listens for long.
///
/// # Errors
/// [`DaemonError::Restart`].
pub(crate) fn check(name: &str, program: &Path) -> Result<(), Error> {
    let refused = |reason: String| DaemonError::Restart { name: name.to_owned(), reason };
    let version = first_words(Command::new(program).arg("--version"), Instant::now() + PATIENCE);
    let version = version
        .map_err(|error| refused(format!("{} cannot be run: {error}", program.display())))?;
    if version.is_some_and(|words| words.starts_with(b"coulter ")) {
        return Ok(());
    }
    Err(refused(format!("{} is no coulter that runs here", program.display())).into())
}

/// What `command` says first, if it has ended well by `deadline`.
///
/// # Errors
/// When it cannot be run.
fn first_words(command: &mut Command, deadline: Instant) -> io::Result<Option<Vec<u8>>> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let mut output = child.stdout.take().expect("it was asked for");
    let (mut words, mut part) = (Vec::new(), [0; WORDS_SIZE_MAX]);
    while words.len() < WORDS_SIZE_MAX && is_readable(&output, deadline) {
        match output.read(&mut part) {
            Ok(0) | Err(_) => break,
            Ok(size) => words.extend_from_slice(&part[..size]),
        }
    }
    drop(output);
    while child.try_wait()?.is_none() && Instant::now() < deadline {
        thread::sleep(PAUSE);
    }
    // It has ended, mostly.
    let _ = child.kill();
    Ok(child.wait()?.success().then_some(words))
}

fn is_readable(pipe: &impl AsFd, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    is_ready_within(pipe, PollFlags::IN, left).unwrap_or(false)
}

/// Checks that the next program, by the words of this one, finds the store that is served now and
/// may open it as this one was told to, whatever has failed since. A path may lead to another store
/// by now, a copy of this one for example, which must never come below the file system that is
/// mounted.
///
/// # Errors
/// [`DaemonError::Restart`].
pub(crate) fn check_store(entry: &Entry, read_only: bool) -> Result<(), Error> {
    let Some(identity) = entry.store_identity else { return Ok(()) };
    let refused = |reason| DaemonError::Restart { name: entry.name.clone(), reason };
    let words = std::env::args_os().skip(1);
    let leads_to_it = |word: &OsString| FileIdentity::at(Path::new(word)).ok() == Some(identity);
    let Some(path) = words.into_iter().find(leads_to_it) else {
        return Err(refused(elsewhere(&entry.store)).into());
    };
    // A disk is not opened beside whoever has it.
    if identity.inode != 0 {
        let opened = File::options().read(true).write(!read_only).open(&path);
        opened.map_err(|error| refused(format!("{} cannot be opened: {error}", path.display())))?;
    }
    Ok(())
}

/// Checks that `store`, which is about to be opened again, is what `entry` was attached from.
///
/// # Errors
/// [`DaemonError::Restart`].
pub(crate) fn check_resumed(entry: &Entry, store: &Path) -> Result<(), Error> {
    let Some(identity) = entry.store_identity else { return Ok(()) };
    if FileIdentity::at(store).ok() == Some(identity) {
        return Ok(());
    }
    Err(DaemonError::Restart { name: entry.name.clone(), reason: elsewhere(store) }.into())
}

fn elsewhere(store: &Path) -> String {
    format!(
        "{} is no longer what it was attached from; let that path lead to the store again",
        terminal::path(store)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_program_of_ours_is_accepted() {
        for (program, reason) in
            [("/nowhere/coulter", "cannot be run"), ("/bin/true", "no coulter")]
        {
            let error = check("a", Path::new(program)).expect_err("it is refused").to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    /// One that waits, one that says the right thing and waits, one that never stops to talk.
    #[test]
    fn a_program_that_does_not_end_is_not_waited_for() {
        for script in
            ["exec sleep 60", "echo coulter 1; exec sleep 60", "exec yes", "yes coulter; :"]
        {
            let start = Instant::now();
            let deadline = start + Duration::from_millis(200);
            let words = first_words(Command::new("sh").args(["-c", script]), deadline);
            let words = words.expect("it can be run");
            assert!(start.elapsed() < Duration::from_secs(20), "{script}");
            assert!(words.is_none_or(|words| words.len() <= WORDS_SIZE_MAX * 2), "{script}");
        }
        let deadline = Instant::now() + PATIENCE;
        let words = first_words(Command::new("echo").arg("coulter 1"), deadline);
        assert_eq!(words.expect("it can be run").as_deref(), Some(&b"coulter 1\n"[..]));
    }

    #[test]
    fn what_is_opened_again_is_what_was_attached() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let [store, other] = ["a", "b"].map(|name| directory.path().join(name));
        [&store, &other].iter().for_each(|path| std::fs::write(path, "x").expect("writable"));
        let store_identity = FileIdentity::at(&store).ok();
        let entry = Entry { store_identity, ..Entry::sample("a", Process::current()) };
        assert!(check_resumed(&entry, &store).is_ok());
        let error = check_resumed(&entry, &other).expect_err("it is another").to_string();
        assert!(error.contains("no longer"), "{error}");
        std::fs::rename(&other, &store).expect("writable");
        assert!(check_resumed(&entry, &store).is_err());
        std::fs::remove_file(&store).expect("it is there");
        assert!(check_resumed(&entry, &store).is_err());
        // Nor would any word of this process's command line lead there.
        assert!(check_store(&entry, false).is_err());
    }
}
