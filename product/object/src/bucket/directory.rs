//! Objects as files below a directory: a second disk, or a share of NFS.
//!
//! # How the contract is kept
//! - *Create*: the bytes go to a file of an unused name, which is made durable and then linked to the
//!   object's name. `link` fails if that name is taken, on NFS too. Then the directory is made durable.
//! - *Swap*: versions of an object that is swapped are files `NAME@VERSION`, and the newest counts. A
//!   swap is the creation of the next version, so of two that start from one version one wins. A
//!   version's number is its tag. Older versions are removed afterwards; whoever lists meanwhile sees
//!   both, and takes the newer.
//! - A file is never changed once it has its name. Files and directories are the user's alone.
//! - Every path leads through the descriptor of the directory that was opened. A share that was unmounted, or a
//!   directory that was put in its place, is not taken for the bucket; and it cannot be unmounted in passing.
//!
//! Names consist of letters, digits, `-`, `.` and `/`, as all names of [`crate::names`] do.

use super::{ANSWER_MAX, Bucket, BucketError, BucketErrorKind, Created, Object, Swapped, Tag};
use coulter_system::private;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Objects as files below a directory.
#[derive(Debug)]
pub struct DirectoryBucket {
    /// What it was called, for people.
    url_path: PathBuf,
    /// The directory that was opened.
    directory: File,
    /// A path through `directory`.
    root: PathBuf,
    /// Makes names of temporary files unique within this process.
    count: AtomicU64,
    /// Makes them unique among processes and hosts.
    nonce: u64,
}

/// Versions that a swap may lag behind others before it gives up looking for the newest.
const VERSION_RACES_MAX: usize = 64;

/// Versions of an object that stay.
const VERSIONS_KEPT: u64 = 64;

/// After what time a file that has not got its name is one of a host that was killed.
const LEFT_OVER_AFTER: Duration = Duration::from_secs(24 * 3600);

/// How long after it was made a file may not be locked yet.
const JUST_MADE: Duration = Duration::from_secs(1);

/// Where files are made before they get their names.
const TEMPORARY: &str = ".new";

impl DirectoryBucket {
    /// Keeps objects below `root`, which must be a directory.
    ///
    /// # Errors
    /// [`BucketErrorKind::NoBucket`] when it is none, or when random bytes cannot be had.
    pub fn open(root: &Path) -> Result<DirectoryBucket, BucketError> {
        let failed = |error: io::Error| error_of(root, &error);
        if !fs::metadata(root).map_err(failed)?.is_dir() {
            let message = format!("{} is not a directory", root.display());
            return Err(BucketError::new(BucketErrorKind::NoBucket, message));
        }
        let directory = File::open(root).map_err(failed)?;
        let through = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string());
        remove_left_over(&through.join(TEMPORARY));
        Ok(DirectoryBucket {
            url_path: root.to_path_buf(),
            directory,
            root: through,
            count: AtomicU64::new(0),
            nonce: crate::random::random_u64(),
        })
    }

    /// That the directory has not been removed: no object is in one that was, and that says nothing of the volume.
    fn check_is_there(&self) -> io::Result<()> {
        match self.directory.metadata()?.nlink() {
            0 => Err(io::Error::new(ErrorKind::NotFound, "the directory was removed")),
            _ => Ok(()),
        }
    }

    /// What went wrong with an object, or with all of them.
    fn error(&self, name: &str, error: &io::Error) -> BucketError {
        error_of(&self.url_path.join(name), error)
    }

    fn path(&self, name: &str) -> PathBuf {
        assert!(is_plain(name), "the name of an object is plain: {name:?}");
        self.root.join(name)
    }

    /// Writes `bytes` to a file that has no name that counts, and makes it durable.
    fn write_temporary(&self, bytes: &[u8]) -> io::Result<(PathBuf, File)> {
        let directory = self.root.join(TEMPORARY);
        make_directory(&self.root, &directory)?;
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!("{:016x}-{count}", self.nonce));
        let written = private::create_new(&path).and_then(|mut file| {
            // As long as it is locked, its host lives. A share that has no locks goes on without.
            let _ = file.try_lock();
            file.write_all(bytes)?;
            file.sync_all()?;
            Ok(file)
        });
        let file = written.inspect_err(|_| drop(fs::remove_file(&path)))?;
        Ok((path, file))
    }

    /// Whether `path` is now a file of these bytes; `false` if the name was taken.
    fn link_new(&self, path: &Path, bytes: &[u8]) -> io::Result<bool> {
        let directory = path.parent().expect("an object lies below the root");
        make_directory(&self.root, directory)?;
        let (temporary, _locked) = self.write_temporary(bytes)?;
        let linked = fs::hard_link(&temporary, path);
        let removed = fs::remove_file(&temporary);
        match linked {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(false),
            Err(error) => return Err(error),
        }
        removed?;
        sync_directory(directory)?;
        Ok(true)
    }

    /// The newest version of an object that is swapped.
    fn newest_version(&self, name: &str) -> io::Result<Option<u64>> {
        let path = self.path(name);
        let directory = path.parent().expect("an object lies below the root");
        let last = path.file_name().and_then(|name| name.to_str()).expect("a plain name");
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut newest = None;
        for entry in entries {
            let entry = entry?.file_name();
            let version =
                entry.to_str().and_then(|entry| entry.strip_prefix(last)?.strip_prefix('@'));
            newest = newest.max(version.and_then(|version| version.parse().ok()));
        }
        Ok(newest)
    }

    /// The file that holds an object, and its tag: its newest version, or what was created.
    fn open_newest(&self, name: &str) -> io::Result<Option<(File, Tag)>> {
        for _ in 0..VERSION_RACES_MAX {
            let version = self.newest_version(name)?;
            let path =
                version.map_or_else(|| self.path(name), |version| self.version_path(name, version));
            match File::open(path) {
                Ok(file) => return Ok(Some((file, Tag(version.unwrap_or(0).to_string())))),
                Err(error) if error.kind() == ErrorKind::NotFound && version.is_none() => {
                    self.check_is_there()?;
                    return Ok(None);
                }
                // A newer one has taken its place since.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("the object changes all the time"))
    }

    fn version_path(&self, name: &str, version: u64) -> PathBuf {
        self.path(&format!("{name}@{version}"))
    }

    fn swap_file(&self, name: &str, tag: &Tag, bytes: &[u8]) -> io::Result<Swapped> {
        self.check_is_there()?;
        let current = self.newest_version(name)?;
        if current.unwrap_or(0).to_string() != tag.0
            || (current.is_none() && !self.path(name).exists())
        {
            return Ok(Swapped::Changed);
        }
        let next = current.unwrap_or(0) + 1;
        if !self.link_new(&self.version_path(name, next), bytes)? {
            return Ok(Swapped::Changed);
        }
        // A swap that looked long ago may have found the name of its next version free again. Then there
        // are as many newer versions as are kept; with fewer the name had never been given up.
        if self.newest_version(name)?.is_none_or(|newest| newest >= next + VERSIONS_KEPT) {
            remove_if_there(&self.version_path(name, next))?;
            return Ok(Swapped::Changed);
        }
        if let Some(old) = next.checked_sub(VERSIONS_KEPT) {
            remove_if_there(&self.version_path(name, old))?;
        }
        Ok(Swapped::Done(Tag(next.to_string())))
    }

    fn list_below(
        &self,
        directory: &Path,
        prefix: &str,
        found: &mut Vec<(String, u64)>,
    ) -> io::Result<()> {
        let mut waiting = vec![directory.to_path_buf()];
        while let Some(directory) = waiting.pop() {
            for entry in fs::read_dir(directory)? {
                let entry = entry?;
                let path = entry.path();
                let Some(name) = path.strip_prefix(&self.root).ok().and_then(Path::to_str) else {
                    continue;
                };
                if name == TEMPORARY {
                    continue;
                }
                match entry.metadata() {
                    Ok(metadata) if metadata.is_dir() => waiting.push(path),
                    Ok(metadata) if name.starts_with(prefix) && !name.contains('@') => {
                        found.push((name.to_string(), metadata.len()));
                    }
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

impl Bucket for DirectoryBucket {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Created, BucketError> {
        let path = self.path(name);
        let is_new = self.link_new(&path, bytes).map_err(|error| self.error(name, &error))?;
        Ok(if is_new { Created::New(Tag("0".to_string())) } else { Created::Exists })
    }

    fn swap(&self, name: &str, tag: &Tag, bytes: &[u8]) -> Result<Swapped, BucketError> {
        self.swap_file(name, tag, bytes).map_err(|error| self.error(name, &error))
    }

    fn read(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Object>, BucketError> {
        let read = || -> io::Result<Option<Object>> {
            let Some((mut file, tag)) = self.open_newest(name)? else { return Ok(None) };
            let mut bytes = Vec::new();
            let range = range.clone().unwrap_or(0..u64::MAX);
            file.seek(SeekFrom::Start(range.start))?;
            let length = range.end.saturating_sub(range.start);
            file.take(length.min(ANSWER_MAX + 1)).read_to_end(&mut bytes)?;
            if bytes.len() as u64 > ANSWER_MAX {
                return Err(ErrorKind::FileTooLarge.into());
            }
            Ok(Some(Object { bytes, tag }))
        };
        read().map_err(|error| self.error(name, &error))
    }

    fn delete(&self, name: &str) -> Result<(), BucketError> {
        let delete = || {
            remove_if_there(&self.path(name))?;
            let mut version = 1;
            while remove_if_there(&self.version_path(name, version))? {
                version += 1;
            }
            Ok(())
        };
        delete().map_err(|error| self.error(name, &error))
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>, BucketError> {
        let mut found = Vec::new();
        self.list_below(&self.root, prefix, &mut found).map_err(|error| self.error("", &error))?;
        Ok(found)
    }

    fn url(&self) -> String {
        format!("file://{}", self.url_path.display())
    }
}

/// Makes every directory below `root` down to `directory`, and makes their names durable.
fn make_directory(root: &Path, directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let above = directory.parent().filter(|_| directory != root);
    // The root is never made: where it is gone, so is the volume.
    let above = above.ok_or_else(|| io::Error::from(ErrorKind::NotFound))?;
    make_directory(root, above)?;
    match private::create_directory(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => sync_directory(above),
    }
}

/// Removes a file; `false` if there was none.
fn remove_if_there(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        other => other.map(|()| true),
    }
}

/// Removes what a host that was killed left half written, as far as this user may: what is not
/// locked. A host that lost its file so, because its share has no locks, makes it again.
fn remove_left_over(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        let age = modified.ok().and_then(|time| time.elapsed().ok()).unwrap_or_default();
        let is_locked = || File::open(entry.path()).map_or(true, |file| file.try_lock().is_err());
        if age > LEFT_OVER_AFTER || age > JUST_MADE && !is_locked() {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Whether a name can only be that of a file below the root.
fn is_plain(name: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && part != "." && part != "..";
    name.split('/').all(is_part)
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._/@".contains(&byte))
}

/// What the system says, without its number.
pub(crate) fn in_words(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

fn error_of(path: &Path, error: &io::Error) -> BucketError {
    let kind = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => BucketErrorKind::Denied,
        ErrorKind::NotFound | ErrorKind::NotADirectory => BucketErrorKind::NoBucket,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => BucketErrorKind::Full,
        ErrorKind::Unsupported | ErrorKind::FileTooLarge => BucketErrorKind::Unsupported,
        _ => BucketErrorKind::Busy,
    };
    BucketError::new(kind, format!("{}: {}", path.display(), in_words(error)))
}
