//! What an overlay keeps in the lower directory: a directory that the mount does not show, with the store,
//! unless that is elsewhere, and a note of where it is.

use crate::error::CliError;
use crate::verbs::fs::told;
use coulter_daemon::signatures;
use coulter_overlay::HIDDEN;
use coulter_system::seekable;
use std::fs::{self, File};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The line that begins a note.
const HEAD: &str = "coulter overlay 1";

/// See the module's documentation.
pub(super) struct Hidden {
    directory: PathBuf,
}

impl Hidden {
    /// That of a directory.
    pub(super) fn of(directory: &Path) -> Hidden {
        Hidden { directory: directory.join(HIDDEN) }
    }

    fn note_path(&self) -> PathBuf {
        self.directory.join("state")
    }

    /// Where the store is if it is in the directory.
    pub(super) fn own_store(&self) -> PathBuf {
        self.directory.join("store")
    }

    /// Where the note says that the store is; `None` without one.
    pub(super) fn store(&self) -> Result<Option<PathBuf>, CliError> {
        let path = self.note_path();
        let bytes = match seekable::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(CliError::io("read", &path, error)),
        };
        let mut lines = bytes.splitn(3, |byte| *byte == b'\n');
        let (head, _identity) = (lines.next(), lines.next());
        let store = lines.next().and_then(|line| line.strip_suffix(b"\n"));
        match store {
            Some(store) if head == Some(HEAD.as_bytes()) => {
                let store = std::ffi::OsString::from_vec(store.to_vec());
                // One beside the note has moved with it.
                let beside = store == *"store";
                Ok(Some(if beside { self.own_store() } else { store.into() }))
            }
            _ => Err(told("cannot understand", &path, "it is no note of an overlay".to_owned())),
        }
    }

    /// Makes the directory, for root alone.
    pub(super) fn make(&self) -> Result<(), CliError> {
        match fs::DirBuilder::new().mode(0o700).create(&self.directory) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                Err(CliError::io("make", &self.directory, error))
            }
            _ => Ok(()),
        }
    }

    /// Writes the note, durably, with the directory that it is in.
    pub(super) fn note(&self, store: &Path, identity: [u8; 16]) -> Result<(), CliError> {
        let path = self.note_path();
        let failed = |source| CliError::io("write", &path, source);
        let identity: String = identity.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut bytes = format!("{HEAD}\n{identity}\n").into_bytes();
        if store == self.own_store() {
            bytes.extend_from_slice(b"store");
        } else {
            bytes.extend_from_slice(store.as_os_str().as_bytes());
        }
        bytes.push(b'\n');
        let mut file = File::create(&path).map_err(failed)?;
        file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(failed)?;
        remove(&self.begun_path())?;
        for directory in [Some(&*self.directory), self.directory.parent()].into_iter().flatten() {
            File::open(directory).and_then(|it| it.sync_all()).map_err(failed)?;
        }
        Ok(())
    }

    fn begun_path(&self) -> PathBuf {
        self.directory.join("begun")
    }

    /// Notes, durably, that a store is about to be made there.
    pub(super) fn begin(&self, store: &Path) -> Result<(), CliError> {
        let path = self.begun_path();
        let written = File::create(&path).and_then(|mut file| {
            file.write_all(store.as_os_str().as_bytes())?;
            file.sync_all()
        });
        written.map_err(|source| CliError::io("write", &path, source))
    }

    fn killed_path(&self) -> PathBuf {
        self.directory.join("killed")
    }

    /// The directory itself, for use when an overlay is over it.
    pub(super) fn open(&self) -> Result<File, CliError> {
        File::open(&self.directory).map_err(|source| CliError::io("open", &self.directory, source))
    }

    /// The identity of the overlay whose daemon was killed once; `None` if none was.
    pub(super) fn killed(&self) -> Option<[u8; 16]> {
        if !self.killed_path().exists() {
            return None;
        }
        let note = seekable::read(&self.note_path()).ok()?;
        let line = note.split(|byte| *byte == b'\n').nth(1)?;
        let identity = u128::from_str_radix(std::str::from_utf8(line).ok()?, 16).ok()?;
        Some(identity.to_be_bytes())
    }

    /// Whether a command that was killed had begun to make a store there.
    pub(super) fn was_begun(&self, store: &Path) -> bool {
        seekable::read(&self.begun_path()).is_ok_and(|noted| noted == store.as_os_str().as_bytes())
    }

    /// Takes away a store in the directory.
    pub(super) fn remove_store(&self) -> Result<(), CliError> {
        remove(&self.own_store())
    }

    /// Takes everything away: the note first, for without it the store is nobody's. A store elsewhere goes
    /// when that is durable, for a note that came back would need it; a disk can then be formatted again.
    pub(super) fn remove(&self, store: &Path) -> Result<(), CliError> {
        let is_elsewhere = store != self.own_store();
        remove(&self.note_path())?;
        remove(&self.begun_path())?;
        remove(&self.killed_path())?;
        if !is_elsewhere {
            remove(store)?;
        }
        match fs::remove_dir(&self.directory) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(CliError::io("remove", &self.directory, error));
            }
            _ => {}
        }
        if !is_elsewhere {
            return Ok(());
        }
        if let Some(above) = self.directory.parent() {
            File::open(above)
                .and_then(|above| above.sync_all())
                .map_err(|error| CliError::io("sync", above, error))?;
        }
        give_back(store)
    }
}

/// Notes in the hidden directory, which is open, that a daemon was killed.
pub(super) fn note_killed(hidden: &File) -> rustix::io::Result<()> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::openat(hidden, "killed", flags, Mode::from_raw_mode(0o600))?;
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
