//! A directory of root's in a directory that may be another user's.
//!
//! That user can put anything in its place: a link that leads elsewhere, a pipe without a writer,
//! a directory of theirs. Everything in it is opened here: no link is followed, nothing is waited
//! for, and what is not the user's own or root's alone is refused.

use crate::error::CliError;
use crate::terminal;
use crate::verbs::fs::told_with_help;
use coulter_system::dead_mounts;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes of a note at most: a path and two lines.
const NOTE_SIZE_MAX: u64 = 8192;
/// Permissions to write, of others than the owner.
const OTHERS_WRITE: u32 = 0o022;

/// Such a directory, open.
pub(super) struct Guarded {
    descriptor: OwnedFd,
    above: OwnedFd,
    path: PathBuf,
}

impl Guarded {
    /// The directory at `path`; `None` if nothing is there.
    pub(super) fn open(path: &Path) -> Result<Option<Guarded>, CliError> {
        Guarded::open_in(place(path)?, path)
    }

    /// The same below what is mounted on the directory that it is in.
    pub(super) fn open_below(path: &Path) -> Result<Option<Guarded>, CliError> {
        let above = path.parent().unwrap_or(Path::new("/"));
        let opened = dead_mounts::look_below(above);
        Guarded::open_in(opened.map_err(|error| CliError::io("look below", above, error))?, path)
    }

    fn open_in(above: OwnedFd, path: &Path) -> Result<Option<Guarded>, CliError> {
        let opened = open_checked(above.as_fd(), name_of(path), path, OFlags::DIRECTORY)?;
        let guarded =
            |file: File| Guarded { descriptor: file.into(), above, path: path.to_owned() };
        Ok(opened.map(guarded))
    }

    /// The same; made, for this user alone, if nothing is there.
    pub(super) fn make(path: &Path) -> Result<Guarded, CliError> {
        let failed = |error: Errno| CliError::io("make", path, error.into());
        match rustix::fs::mkdirat(place(path)?, name_of(path), Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed(error)),
        }
        Guarded::open(path)?.ok_or_else(|| failed(Errno::NOENT))
    }

    /// The content of a file in it; `None` if there is none.
    pub(super) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, CliError> {
        let path = self.path.join(name);
        let opened = open_checked(self.descriptor.as_fd(), name, &path, OFlags::empty())?;
        let Some(file) = opened else { return Ok(None) };
        let mut bytes = Vec::new();
        file.take(NOTE_SIZE_MAX)
            .read_to_end(&mut bytes)
            .map_err(|error| CliError::io("read", &path, error))?;
        Ok(Some(bytes))
    }

    /// Writes a file in it, durably.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), CliError> {
        let path = self.path.join(name);
        let failed = |error| CliError::io("write", &path, error);
        let flags = OFlags::CREATE | OFlags::RDWR;
        let opened = open_checked(self.descriptor.as_fd(), name, &path, flags)?;
        let mut file = opened.ok_or_else(|| failed(Errno::NOENT.into()))?;
        file.set_len(0)
            .and_then(|()| file.write_all(bytes))
            .and_then(|()| file.sync_all())
            .map_err(failed)
    }

    /// That a file in it may be opened by its path, if it is there; whether it is.
    pub(super) fn check(&self, name: &str) -> Result<bool, CliError> {
        let path = self.path.join(name);
        Ok(open_checked(self.descriptor.as_fd(), name, &path, OFlags::empty())?.is_some())
    }

    /// Takes a file in it away, if it is there.
    pub(super) fn remove(&self, name: &str) -> Result<(), CliError> {
        match rustix::fs::unlinkat(&self.descriptor, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(CliError::io("remove", &self.path.join(name), error.into())),
        }
    }

    /// Makes durable what was made and removed in it, and that it is there.
    pub(super) fn sync(&self) -> Result<(), CliError> {
        let synced = [&self.descriptor, &self.above].into_iter().try_for_each(rustix::fs::fsync);
        synced.map_err(|error| CliError::io("sync", &self.path, error.into()))
    }

    /// Takes the directory itself away, which is empty, durably.
    pub(super) fn remove_itself(self) -> Result<(), CliError> {
        let failed = |error: Errno| CliError::io("remove", &self.path, error.into());
        rustix::fs::unlinkat(&self.above, name_of(&self.path), AtFlags::REMOVEDIR)
            .map_err(failed)?;
        rustix::fs::fsync(&self.above).map_err(failed)
    }

    /// Its descriptor, for use when something is mounted over the directory that it is in.
    pub(super) fn into_descriptor(self) -> OwnedFd {
        self.descriptor
    }
}

fn name_of(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

/// The directory that `path` is in, open.
fn place(path: &Path) -> Result<OwnedFd, CliError> {
    let above = path.parent().unwrap_or(Path::new("/"));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(CWD, above, flags, Mode::empty());
    opened.map_err(|error| CliError::io("open", above, error.into()))
}

/// Opens what `name` is in `folder`, if it is there, and what it should be: a directory if `flags`
/// say so, else a file.
fn open_checked(
    folder: impl AsFd,
    name: impl rustix::path::Arg,
    path: &Path,
    flags: OFlags,
) -> Result<Option<File>, CliError> {
    let wants =
        if flags.contains(OFlags::DIRECTORY) { FileType::Directory } else { FileType::RegularFile };
    // That it is a directory is checked below, as is all else.
    let flags = (flags - OFlags::DIRECTORY) | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file: File = match rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR) {
        Ok(opened) => opened.into(),
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return Err(refused(path, "it is a symbolic link".to_owned())),
        Err(Errno::NXIO | Errno::ISDIR) => return Err(refused(path, not_a(wants))),
        Err(error) => return Err(CliError::io("open", path, error.into())),
    };
    let found = file.metadata().map_err(|error| CliError::io("look at", path, error))?;
    if FileType::from_raw_mode(found.mode()) != wants {
        return Err(refused(path, not_a(wants)));
    }
    if ![0, rustix::process::geteuid().as_raw()].contains(&found.uid()) {
        return Err(not_ours_alone(path, format!("it belongs to user {}", found.uid())));
    }
    if found.mode() & OTHERS_WRITE != 0 {
        return Err(not_ours_alone(path, "others than its owner may write to it".to_owned()));
    }
    Ok(Some(file))
}

fn not_a(wanted: FileType) -> String {
    match wanted {
        FileType::Directory => "it is no directory".to_owned(),
        _ => "it is no regular file".to_owned(),
    }
}

/// Refuses a thing that no overlay has made.
fn refused(path: &Path, why: String) -> CliError {
    told_with_help("cannot use", path, why, format!("no overlay has made it: {}", removal(path)))
}

/// Refuses a thing that an overlay may have made, and that another user can change.
fn not_ours_alone(path: &Path, why: String) -> CliError {
    let word = terminal::word(path);
    let help = format!(
        "an overlay's store and notes are root's alone: if it is one, \
         `chown root {word}; chmod go-w {word}`; if not, {}",
        removal(path)
    );
    told_with_help("cannot use", path, why, help)
}

fn removal(path: &Path) -> String {
    let word = terminal::word(path);
    format!("see what it is, with `ls -ld {word}`, and remove it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn why<T>(tried: Result<T, CliError>) -> String {
        tried.err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn what_is_no_file_of_the_users_own_is_refused_and_left_as_it_was() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("hidden");
        assert!(Guarded::open(&path).expect("it can be looked for").is_none());
        let guarded = Guarded::make(&path).expect("it is new");
        guarded
            .write("note", b"long")
            .and_then(|()| guarded.write("note", b"abc"))
            .expect("it may");
        assert_eq!(guarded.read("note").expect("it is there").as_deref(), Some(&b"abc"[..]));
        assert_eq!(guarded.read("other").expect("it can be looked for"), None);

        symlink(folder.path().join("elsewhere"), path.join("link")).expect("it is writable");
        symlink(path.join("note"), path.join("good")).expect("it is writable");
        std::fs::create_dir(path.join("directory")).expect("it is writable");
        let pipe = path.join("pipe");
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).expect("it is writable");
        for (name, told) in
            [("link", "link"), ("good", "link"), ("pipe", "regular"), ("directory", "regular")]
        {
            assert!(why(guarded.read(name)).contains(told), "{name}");
            assert!(why(guarded.write(name, b"x")).contains(told), "{name}");
            assert!(why(guarded.check(name)).contains(told), "{name}");
        }
        assert!(!folder.path().join("elsewhere").exists(), "nothing was made behind the link");
        let note = path.join("note");
        std::fs::set_permissions(&note, PermissionsExt::from_mode(0o620)).expect("it is ours");
        assert!(why(guarded.write("note", b"x")).contains("others"));
        assert_eq!(std::fs::read(note).expect("it is there"), b"abc");
    }

    #[test]
    fn a_directory_that_is_a_link_or_open_to_others_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, link) = (folder.path().join("hidden"), folder.path().join("link"));
        drop(Guarded::make(&path).expect("it is new"));
        symlink(&path, &link).expect("it is writable");
        assert!(why(Guarded::open(&link)).contains("symbolic link"));
        assert!(why(Guarded::make(&link)).contains("symbolic link"));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).expect("it is ours");
        assert!(why(Guarded::make(&path)).contains("others"));
        std::fs::write(folder.path().join("file"), "").expect("it is writable");
        assert!(why(Guarded::open(&folder.path().join("file"))).contains("directory"));
    }
}
