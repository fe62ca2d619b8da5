//! The state directory: what is attached now, and by which process.
//!
//! It holds, for an attached volume NAME, `NAME.json` (the [`Entry`]), `NAME.sock` (the control
//! socket), `NAME.lock` (held for as long as the daemon lives), `NAME.log` and whatever an attach
//! point needs to keep, such as `NAME.mount`. It is on a file system that does not outlive a boot,
//! and nothing in it is needed to open a store.
//!
//! Invariants:
//! - an entry is written to a temporary file and renamed, so a reader sees all of it or none;
//! - entries are added and removed only under the lock of the directory;
//! - an entry whose process has ended is *stale*: it is never reported as attached, and whoever
//!   takes the lock next may reclaim it.

use crate::error::{Error, StateError};
use crate::life::daemon_state::{OnFile, Pulse, PulseSigns};
use crate::life::entry::Match;
pub use crate::life::entry::{Entry, Via};
use crate::life::liveness;
pub use crate::life::state_lock::StateLock;
use crate::life::store_fate::StoreFate;
use coulter_system::{private, seekable};
use rustix::process::geteuid;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Longest name of a volume, so that its socket's path fits into a socket address.
const NAME_SIZE_MAX: usize = 64;
const _: () = assert!(NAME_SIZE_MAX < SOCKET_PATH_SIZE_MAX, "no socket would have an address");

/// The suffix of the file that a daemon holds a lock on for as long as it lives.
pub(crate) const LOCK: &str = "lock";

/// Longest path that a unix socket address can hold, without its closing zero.
pub const SOCKET_PATH_SIZE_MAX: usize = 107;

/// How often is looked whether the lock is free, of those who do not wait for as long as it takes.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// How long is waited for killed daemons to end before it is told which are alive.
const DEATH_PATIENCE: Duration = Duration::from_secs(3);

/// What the user wrote, as the path that the kernel knows it by; of a file that is gone, as the
/// path that it had.
fn path_of(text: &str) -> Option<PathBuf> {
    Path::new(text).canonicalize().or_else(|_| std::path::absolute(text)).ok()
}

/// The directory.
#[derive(Clone, Debug)]
pub struct StateDirectory {
    path: PathBuf,
}

impl StateDirectory {
    /// Opens the directory at `path`, or the one of this user, and creates it if it is missing.
    ///
    /// # Errors
    /// When it cannot be created, or belongs to another user, who could then pose as a daemon.
    pub fn open(path: Option<PathBuf>) -> Result<StateDirectory, Error> {
        let path = path.unwrap_or_else(default_path);
        let failed = |source| Error::io("use the state directory", &path, source);
        private::create_directories(&path).map_err(failed)?;
        StateDirectory::adopt(&path)
    }

    /// The same for a caller that only reads: a missing directory is not made, and has no
    /// entries.
    ///
    /// # Errors
    /// When it belongs to another user.
    pub fn look(path: Option<PathBuf>) -> Result<StateDirectory, Error> {
        let path = path.unwrap_or_else(default_path);
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(StateDirectory { path: std::path::absolute(&path).unwrap_or(path) })
            }
            _ => StateDirectory::adopt(&path),
        }
    }

    /// The same, if it is there: for whoever can do without it.
    pub fn find_existing(path: Option<PathBuf>) -> Option<StateDirectory> {
        StateDirectory::adopt(&path.unwrap_or_else(default_path)).ok()
    }

    fn adopt(path: &Path) -> Result<StateDirectory, Error> {
        let failed = |source| Error::io("use the state directory", path, source);
        let path = path.canonicalize().map_err(failed)?;
        let metadata = fs::metadata(&path).map_err(failed)?;
        check_owner(&path, metadata.uid())?;
        // Others could put a socket of theirs in the place of a daemon's.
        if metadata.mode() & 0o022 != 0 {
            return Err(StateError::OpenStateDirectory { path }.into());
        }
        assert!(path.is_absolute(), "a daemon has another working directory");
        Ok(StateDirectory { path })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file of the volume `name` with this suffix: `json`, `sock`, `log`, `mount`, `nbd`.
    pub fn file(&self, name: &str, suffix: &str) -> PathBuf {
        self.path.join(format!("{name}.{suffix}"))
    }

    /// Waits for the lock of the directory.
    ///
    /// # Errors
    /// When the lock file cannot be opened or locked.
    pub fn lock(&self) -> Result<StateLock, Error> {
        let file = self.lock_file()?;
        file.lock().map_err(|source| self.lock_failed(source))?;
        Ok(StateLock(file))
    }

    /// The same, for as long as this.
    ///
    /// # Errors
    /// [`StateError::LockHeld`] besides those of [`StateDirectory::lock`].
    pub fn lock_within(&self, patience: Duration) -> Result<StateLock, Error> {
        let start = Instant::now();
        let file = self.lock_file()?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(StateLock(file)),
                Err(TryLockError::WouldBlock) if start.elapsed() >= patience => {
                    return Err(StateError::LockHeld { path: self.path.clone() }.into());
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(source)) => return Err(self.lock_failed(source)),
            }
            thread::sleep(LOCK_PAUSE);
        }
    }

    fn lock_file(&self) -> Result<File, Error> {
        private::open(&self.path.join("lock")).map_err(|source| self.lock_failed(source))
    }

    fn lock_failed(&self, source: io::Error) -> Error {
        Error::io("lock", &self.path.join("lock"), source)
    }

    /// Every entry, stale ones included, sorted by name. Files that are no entries are passed
    /// over with a line in the log: they were not put there by this program.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn entries(&self) -> Result<Vec<Entry>, Error> {
        let failed = |source| Error::io("read the state directory", &self.path, source);
        let mut entries = Vec::new();
        let files = match fs::read_dir(&self.path) {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(entries),
            Err(error) => return Err(failed(error)),
        };
        // It may have been made since it was looked for.
        check_owner(&self.path, fs::metadata(&self.path).map_err(failed)?.uid())?;
        for file in files {
            let path = file.map_err(failed)?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            // The file may go away between the listing and this.
            let Ok(text) = seekable::read(&path) else { continue };
            match self.parse(&path, &text) {
                Some(entry) => entries.push(entry),
                None => log::warn!(path:% = path.display(); "not an entry of this program"),
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        assert!(entries.is_sorted_by(|a, b| a.name < b.name), "two entries of one name");
        Ok(entries)
    }

    /// The entry of the volume `name`, a stale one included.
    pub fn entry(&self, name: &str) -> Option<Entry> {
        let path = self.file(name, "json");
        self.parse(&path, &seekable::read(&path).ok()?)
    }

    /// What is in a file, if that is an entry and in its place.
    fn parse(&self, path: &Path, text: &[u8]) -> Option<Entry> {
        let entry: Entry = serde_json::from_slice(text).ok()?;
        (self.file(&entry.name, "json") == path).then_some(entry)
    }

    /// True if the daemon of `entry` lives. Its process may be one that is not to be seen from
    /// here.
    pub fn is_alive(&self, entry: &Entry) -> bool {
        self.pulse(entry) == Pulse::Lives
    }

    /// Life or end of the daemon of `entry`.
    pub(crate) fn pulse(&self, entry: &Entry) -> Pulse {
        let is_seen = entry.process.is_alive();
        Pulse::of(PulseSigns {
            is_seen,
            // One that is seen needs no other proof.
            is_locked: is_seen || liveness::is_held(&self.file(&entry.name, LOCK)),
            on_file: if is_seen { OnFile::Own } else { self.on_file(entry) },
        })
    }

    /// The entry that there is now under the name of `entry`.
    pub(crate) fn on_file(&self, entry: &Entry) -> OnFile {
        match self.entry(&entry.name) {
            None => OnFile::Missing,
            Some(found) if found.process == entry.process => OnFile::Own,
            Some(_) => OnFile::OfAnother,
        }
    }

    /// Waits until the daemon of `entry` has ended; `false` if it still lives after `limit`.
    pub fn wait_for_end(&self, entry: &Entry, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while self.is_alive(entry) {
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(LOCK_PAUSE);
        }
        true
    }

    /// Waits for daemons that were killed or exit, and have not ended yet; shortly, since the
    /// kernel may hold one up. The caller tells which are alive.
    ///
    /// # Errors
    /// As [`StateDirectory::entries`].
    pub fn await_dying(&self) -> Result<(), Error> {
        let deadline = Instant::now() + DEATH_PATIENCE;
        for entry in self.entries()?.into_iter().filter(|entry| entry.process.is_dying()) {
            self.wait_for_end(&entry, deadline.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }

    /// The entries whose daemons run and serve.
    ///
    /// # Errors
    /// As [`StateDirectory::entries`].
    pub fn attached(&self) -> Result<Vec<Entry>, Error> {
        let mut entries = self.entries()?;
        entries.retain(|entry| entry.device.is_some() && self.is_alive(entry));
        Ok(entries)
    }

    /// Whether the daemon of `entry` has said meanwhile that it is ending.
    pub fn is_ending(&self, entry: &Entry) -> bool {
        let found = self.entry(&entry.name).filter(|found| found.process == entry.process);
        found.is_some_and(|found| found.ending && self.is_alive(&found))
    }

    /// The entries of daemons that were killed: one that ends in order takes its entry along.
    ///
    /// # Errors
    /// As [`StateDirectory::entries`].
    pub fn killed(&self) -> Result<Vec<Entry>, Error> {
        let mut entries = self.entries()?;
        // It may have ended in order since its entry was read: then that is gone by now.
        entries.retain(|entry| self.pulse(entry) == Pulse::Killed);
        Ok(entries)
    }

    /// The killed daemon of the volume that `text` means, if there is one.
    ///
    /// # Errors
    /// As [`StateDirectory::entries`].
    pub fn find_killed(&self, text: &str) -> Result<Option<Entry>, Error> {
        let path = path_of(text);
        let mut killed = self.killed()?.into_iter();
        Ok(killed.find(|entry| entry.matched_by(text, path.as_deref()) == Match::Yes))
    }

    /// The attached volume that `path` means: its store, or its name if nothing else is there.
    pub fn attached_at(&self, path: &Path) -> Option<Entry> {
        match path.canonicalize() {
            Ok(store) => {
                let attached = self.attached().ok()?;
                let is_it = |entry: &&Entry| entry.is_of(&store) == Some(true);
                attached
                    .iter()
                    .find(is_it)
                    .or_else(|| Entry::mounted_at(&attached, &store))
                    .cloned()
            }
            Err(_) => self.find(path.to_str()?).ok(),
        }
    }

    /// The attached volume that `text` means: a name, or the path of its store, device or
    /// directory.
    ///
    /// # Errors
    /// [`StateError::NotAttached`] when there is none; [`StateError::StoreReplaced`] when another
    /// file has come to lie at the path since.
    pub fn find(&self, text: &str) -> Result<Entry, Error> {
        let path = path_of(text);
        let attached = self.attached()?;
        let found = |wanted: Match| {
            attached.iter().find(|entry| entry.matched_by(text, path.as_deref()) == wanted)
        };
        let mounted = || Entry::mounted_at(&attached, path.as_deref()?);
        if let Some(entry) = found(Match::Yes).or_else(mounted) {
            return Ok(entry.clone());
        }
        if let Some(entry) = found(Match::Replaced) {
            let (name, store) = (entry.name.clone(), entry.store.clone());
            let is_deleted = StoreFate::of(entry) == Some(StoreFate::Deleted);
            return Err(StateError::StoreReplaced { name, store, is_deleted }.into());
        }
        let names = attached.iter().map(|entry| entry.name.clone()).collect();
        Err(StateError::NotAttached { name: text.to_owned(), attached: names }.into())
    }

    /// What the ended daemon of the volume called `text` left, if there is such a one. The caller
    /// holds the lock, under which no daemon becomes known.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn find_ended(&self, _lock: &StateLock, text: &str) -> Result<Option<Entry>, Error> {
        let path = path_of(text);
        let mut entries = self.entries()?.into_iter();
        let ended = |entry: &Entry| !self.is_alive(entry);
        // Nothing of it can be written any more, whatever lies at its path.
        let means = |entry: &Entry| entry.matched_by(text, path.as_deref()) != Match::No;
        Ok(entries.find(|entry| ended(entry) && means(entry)))
    }

    /// Writes `entry`, replacing one of the same name. The caller holds the lock.
    ///
    /// # Errors
    /// When the file cannot be written or renamed.
    pub fn write(&self, _lock: &StateLock, entry: &Entry) -> Result<(), Error> {
        assert!(!entry.name.is_empty(), "an entry has a name");
        assert!(!entry.name.contains('/'), "an entry outside of the state directory");
        let path = self.file(&entry.name, "json");
        let temporary = self.path.join(format!(".{}.json.new", entry.name));
        let failed = |source| Error::io("write", &path, source);
        let text = serde_json::to_string_pretty(entry).map_err(|e| failed(e.into()))?;
        let mut file = private::open(&temporary).map_err(failed)?;
        file.set_len(0).map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)?;
        fs::rename(&temporary, &path).map_err(failed)
    }

    /// A file that was not put there by this program, where one of the volume `name` would be.
    pub fn foreign_file(&self, name: &str) -> Option<PathBuf> {
        let suffixes = ["json", "sock", "nbd", LOCK, "log"];
        let files = suffixes.map(|suffix| (suffix, self.file(name, suffix)));
        let foreign = |(suffix, path): &(&str, PathBuf)| match fs::symlink_metadata(path) {
            Ok(_) if *suffix != "log" => !self.is_ours(name, suffix),
            // A log has no marks; but it is no link, and no pipe.
            Ok(there) => !there.is_file(),
            Err(_) => false,
        };
        files.into_iter().find(foreign).map(|(_, path)| path)
    }

    /// Whether what is there is what this program puts there: a socket, or an entry of that name.
    fn is_ours(&self, name: &str, suffix: &str) -> bool {
        let path = self.file(name, suffix);
        let Ok(there) = fs::symlink_metadata(&path) else { return false };
        match suffix {
            "json" => {}
            LOCK => return there.is_file() && there.len() == 0,
            _ => return there.file_type().is_socket(),
        }
        there.is_file() && self.entry(name).is_some()
    }

    /// Removes the entry `name` and its sockets; the log stays, and so does what was not put there
    /// by this program. The caller holds the lock.
    ///
    /// # Errors
    /// When a file is there and cannot be removed.
    pub fn remove(&self, _lock: &StateLock, name: &str) -> Result<(), Error> {
        for suffix in ["sock", "nbd", LOCK, "json"].into_iter().filter(|it| self.is_ours(name, it))
        {
            let path = self.file(name, suffix);
            match fs::remove_file(&path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::io("remove", &path, source));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks a name that the user chose, and that its socket will have a valid address.
    ///
    /// # Errors
    /// [`StateError::NameInvalid`] or [`StateError::SocketPathTooLong`].
    pub fn check_name(&self, name: &str) -> Result<(), Error> {
        let letters = |c: char| c.is_alphanumeric() || "._-+".contains(c);
        let first = name.chars().next();
        if name.len() > NAME_SIZE_MAX
            || !name.chars().all(letters)
            || !first.is_some_and(char::is_alphanumeric)
        {
            return Err(StateError::NameInvalid { name: name.to_owned() }.into());
        }
        let socket = self.file(name, "sock");
        if socket.as_os_str().len() > SOCKET_PATH_SIZE_MAX {
            return Err(StateError::SocketPathTooLong { path: socket }.into());
        }
        Ok(())
    }
}

/// That a directory of this owner is no one's who could pose as a daemon.
fn check_owner(path: &Path, owner: u32) -> Result<(), Error> {
    match owner == geteuid().as_raw() {
        true => Ok(()),
        false => Err(StateError::ForeignStateDirectory { path: path.to_owned(), owner }.into()),
    }
}

/// `/run/coulter` for root; else the user's runtime directory, or one under `/tmp`.
fn default_path() -> PathBuf {
    let uid = geteuid();
    match std::env::var_os("COULTER_STATE_DIRECTORY").filter(|path| !path.is_empty()) {
        Some(path) => return path.into(),
        None if uid.is_root() => return "/run/coulter".into(),
        None => {}
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|path| Path::new(path).is_absolute()) {
        Some(runtime) => PathBuf::from(runtime).join("coulter"),
        None => PathBuf::from(format!("/tmp/coulter-{uid}")),
    }
}

/// A valid name made from the file name of a store: `/srv/my disk.img` becomes `my-disk`. Letters
/// of any script stay.
pub fn name_of_store(store: &Path) -> String {
    let stem = store.file_stem().unwrap_or_default().to_string_lossy();
    let mut name: String =
        stem.chars().map(|c| if c.is_alphanumeric() || c == '_' { c } else { '-' }).collect();
    while name.len() > NAME_SIZE_MAX - 4 {
        name.pop();
    }
    let name = name.trim_matches(['-', '_']);
    let name = if name.is_empty() { "volume".to_owned() } else { name.to_owned() };
    assert!(name.len() <= NAME_SIZE_MAX, "a name that no volume may have");
    name
}

#[cfg(test)]
mod tests;
