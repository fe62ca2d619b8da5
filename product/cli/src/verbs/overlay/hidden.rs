//! What an overlay keeps in the lower directory: a directory that the mount does not show, with the store,
//! unless that is elsewhere, and a note of where it is.

use super::guarded::Guarded;
use crate::error::CliError;
use crate::verbs::fs::told;
use coulter_daemon::signatures;
use coulter_overlay::HIDDEN;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{ErrorKind, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The line that begins a note.
const HEAD: &str = "coulter overlay 1";
/// Names in the directory: the note of where the store is, that a store is about to be made, that
/// a daemon was killed, and the store.
const NOTE: &str = "state";
const BEGUN: &str = "begun";
const KILLED: &str = "killed";
const STORE: &str = "store";

/// See the module's documentation.
pub(super) struct Hidden {
    directory: PathBuf,
}

/// A store as a note tells of it.
pub(super) struct Noted {
    pub(super) path: PathBuf,
    pub(super) is_there: bool,
}

impl Hidden {
    /// That of a directory.
    pub(super) fn of(directory: &Path) -> Hidden {
        Hidden { directory: directory.join(HIDDEN) }
    }

    fn guarded(&self) -> Result<Option<Guarded>, CliError> {
        Guarded::open(&self.directory)
    }

    /// True if there is one.
    pub(super) fn is_there(&self) -> Result<bool, CliError> {
        Ok(self.guarded()?.is_some())
    }

    /// The content of a note in it; `None` without one.
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, CliError> {
        self.guarded()?.map_or(Ok(None), |guarded| guarded.read(name))
    }

    /// Where the store is if it is in the directory.
    pub(super) fn own_store(&self) -> PathBuf {
        self.directory.join(STORE)
    }

    /// Where the note says that the store is; `None` without one.
    pub(super) fn store(&self) -> Result<Option<PathBuf>, CliError> {
        Ok(self.noted()?.map(|noted| noted.path))
    }

    /// The same, with whether it is there.
    pub(super) fn noted(&self) -> Result<Option<Noted>, CliError> {
        self.guarded()?.map_or(Ok(None), |guarded| self.noted_in(&guarded))
    }

    /// The same of the directory below what is mounted on it.
    pub(super) fn noted_below(&self) -> Result<Option<Noted>, CliError> {
        let guarded = Guarded::open_below(&self.directory)?;
        guarded.map_or(Ok(None), |guarded| self.noted_in(&guarded))
    }

    fn noted_in(&self, guarded: &Guarded) -> Result<Option<Noted>, CliError> {
        let Some(bytes) = guarded.read(NOTE)? else { return Ok(None) };
        let mut lines = bytes.splitn(3, |byte| *byte == b'\n');
        let (head, _identity) = (lines.next(), lines.next());
        let store = lines.next().and_then(|line| line.strip_suffix(b"\n"));
        let Some(store) = store.filter(|_| head == Some(HEAD.as_bytes())) else {
            let why = "it is no note of an overlay".to_owned();
            return Err(told("cannot understand", &self.directory.join(NOTE), why));
        };
        // One beside the note has moved with it.
        Ok(Some(match store == STORE.as_bytes() {
            true => Noted { path: self.own_store(), is_there: guarded.check(STORE)? },
            false => {
                let path = PathBuf::from(OsString::from_vec(store.to_vec()));
                Noted { is_there: path.exists(), path }
            }
        }))
    }

    /// Makes the directory, for root alone.
    pub(super) fn make(&self) -> Result<(), CliError> {
        Guarded::make(&self.directory)?.check(STORE).map(drop)
    }

    /// Writes the note, durably, with the directory that it is in.
    pub(super) fn note(&self, store: &Path, identity: [u8; 16]) -> Result<(), CliError> {
        let identity: String = identity.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut bytes = format!("{HEAD}\n{identity}\n").into_bytes();
        if store == self.own_store() {
            bytes.extend_from_slice(STORE.as_bytes());
        } else {
            bytes.extend_from_slice(store.as_os_str().as_bytes());
        }
        bytes.push(b'\n');
        let guarded = Guarded::make(&self.directory)?;
        guarded.write(NOTE, &bytes)?;
        guarded.remove(BEGUN)?;
        guarded.sync()
    }

    /// Notes, durably, that a store is about to be made there.
    pub(super) fn begin(&self, store: &Path) -> Result<(), CliError> {
        Guarded::make(&self.directory)?.write(BEGUN, store.as_os_str().as_bytes())
    }

    /// The directory itself, for use when an overlay is over it.
    pub(super) fn open(&self) -> Result<OwnedFd, CliError> {
        Ok(Guarded::make(&self.directory)?.into_descriptor())
    }

    /// The identity of the overlay whose daemon was killed once; `None` if none was.
    pub(super) fn killed(&self) -> Result<Option<[u8; 16]>, CliError> {
        if self.read(KILLED)?.is_none() {
            return Ok(None);
        }
        let note = self.read(NOTE)?.unwrap_or_default();
        let line = note.split(|byte| *byte == b'\n').nth(1).unwrap_or_default();
        let text = std::str::from_utf8(line).unwrap_or_default();
        Ok(u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes))
    }

    /// Whether a command that was killed had begun to make a store there.
    pub(super) fn was_begun(&self, store: &Path) -> Result<bool, CliError> {
        Ok(self.read(BEGUN)?.is_some_and(|noted| noted == store.as_os_str().as_bytes()))
    }

    /// Takes away a store in the directory.
    pub(super) fn remove_store(&self) -> Result<(), CliError> {
        self.guarded()?.map_or(Ok(()), |guarded| guarded.remove(STORE))
    }

    /// Takes away what is there without a note, unless this program has not put it there.
    pub(super) fn remove_remains(&self) -> Result<(), CliError> {
        for name in [BEGUN, KILLED] {
            self.read(name)?;
        }
        self.guarded()?.map_or(Ok(false), |guarded| guarded.check(STORE))?;
        self.remove(&self.own_store())
    }

    /// Takes everything away: the note first, for without it the store is nobody's. A store elsewhere goes
    /// when that is durable, for a note that came back would need it; a disk can then be formatted again.
    pub(super) fn remove(&self, store: &Path) -> Result<(), CliError> {
        let is_elsewhere = store != self.own_store();
        if let Some(guarded) = self.guarded()? {
            let own = if is_elsewhere { None } else { Some(STORE) };
            for name in [NOTE, BEGUN, KILLED].into_iter().chain(own) {
                guarded.remove(name)?;
            }
            guarded.remove_itself()?;
        }
        if is_elsewhere { give_back(store) } else { Ok(()) }
    }
}

/// Notes in the hidden directory, which is open, that a daemon was killed.
pub(super) fn note_killed(hidden: &OwnedFd) -> rustix::io::Result<()> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(hidden, KILLED, flags, Mode::from_raw_mode(0o600))?;
    rustix::fs::fsync(hidden)
}

/// Removes a store that is a file; a disk loses what says that it is one.
fn give_back(store: &Path) -> Result<(), CliError> {
    let failed = |error| CliError::io("clear", store, error);
    match fs::metadata(store) {
        Ok(found) if found.is_file() => return remove(store),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(_) => {}
    }
    let mut disk = File::options().read(true).write(true).open(store).map_err(failed)?;
    let size = disk.seek(SeekFrom::End(0)).map_err(failed)?;
    let mut marks = signatures::detect(&disk, size).map_err(failed)?;
    marks.retain(|mark| mark.what == signatures::COULTER);
    signatures::erase(&disk, &marks).map_err(failed)
}

fn remove(path: &Path) -> Result<(), CliError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(CliError::io("remove", path, error))
        }
        _ => Ok(()),
    }
}
