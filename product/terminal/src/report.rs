//! An error in words, and the phrases that the kinds of error share.

use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::path::Path;

/// An error as a person reads it; it also travels from a daemon to the command that started it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// What could not be done, and to what.
    pub what: String,
    /// Why.
    pub why: Option<String>,
    /// What to do.
    pub help: Option<String>,
    /// What the process ends with.
    pub exit_code: u8,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some(why) = &self.why {
            write!(f, ": {why}")?;
        }
        if let Some(help) = &self.help {
            write!(f, " ({help})")?;
        }
        Ok(())
    }
}

/// Something could not be done: the process ends with 1.
pub fn fault(what: impl Into<String>) -> Report {
    Report { what: what.into(), why: None, help: None, exit_code: 1 }
}

/// The command line asks for what cannot be: the process ends with 2.
pub fn usage(what: impl Into<String>) -> Report {
    Report { exit_code: 2, ..fault(what) }
}

impl Report {
    /// An operation of the system failed. `action` is a verb phrase that the path completes.
    pub fn io(action: &str, path: &Path, source: &io::Error) -> Report {
        fault(format!("cannot {action} {}", path.display()))
            .why(reason_of(source))
            .maybe_help(help_on(source, path).as_ref())
    }

    /// The same with the reason.
    #[must_use]
    pub fn why(mut self, why: impl Into<String>) -> Report {
        self.why = Some(why.into());
        self
    }

    /// The same with what to do.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Report {
        self.help = Some(help.into());
        self
    }

    /// The same with what to do, if anything.
    #[must_use]
    pub fn maybe_help(mut self, help: Option<impl Into<String>>) -> Report {
        self.help = help.map(Into::into);
        self
    }
}

/// `permission denied` instead of `Permission denied (os error 13)`.
pub fn reason_of(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => text.to_owned(),
    }
}

/// What to do about an error of the system on a path, if anything.
pub fn help_on(error: &io::Error, path: &Path) -> Option<String> {
    match error.raw_os_error()? {
        libc::EACCES | libc::EPERM if geteuid().is_root() => Some(format!(
            "root may do that to most files: `lsattr -d {}` shows whether this one is immutable (`i`) \
             or may only grow (`a`)",
            crate::word(path)
        )),
        libc::EACCES | libc::EPERM => Some(match directory_to_make_in(path) {
            Some(directory) => format!(
                "check the permissions of the directory {}, or run as root",
                directory.display()
            ),
            None => format!("check the permissions of {}, or run as root", path.display()),
        }),
        libc::EISDIR => Some("name a file: a path with a slash at its end is none".to_owned()),
        libc::ENOTDIR => Some("check the path: a part of it is a file, no directory".to_owned()),
        libc::ENOSPC | libc::EDQUOT => Some("free space on the file system below it".to_owned()),
        libc::EFBIG => Some(
            "raise the limit on the size of files (`ulimit -f`, LimitFSIZE= of a unit), or use a file \
             system that allows larger ones"
                .to_owned(),
        ),
        libc::EROFS => Some("it is on a file system that is mounted read-only".to_owned()),
        libc::ENOENT => Some(match missing_parent(path) {
            Some(parent) => format!("make the directory first: `mkdir -p {}`", crate::word(parent)),
            None => "check the path".to_owned(),
        }),
        libc::EBUSY => Some("something else uses it; unmount or detach it first".to_owned()),
        _ => None,
    }
}

/// The directory that `path` is to be made in: nothing is there yet.
fn directory_to_make_in(path: &Path) -> Option<&Path> {
    let is_missing = path.symlink_metadata().is_err_and(|it| it.kind() == io::ErrorKind::NotFound);
    let parent = path.parent().filter(|_| is_missing)?;
    Some(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })
}

/// The directory that `path` should be in, if that is not there.
fn missing_parent(path: &Path) -> Option<&Path> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty())?;
    let is_missing = parent.metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    is_missing.then_some(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_leads_nowhere_names_the_directory_that_is_missing() {
        let error = io::Error::from_raw_os_error(libc::ENOENT);
        let help = |path: &str| help_on(&error, Path::new(path)).expect("there is advice");
        assert!(help("/proc/no/such/file").contains("`mkdir -p /proc/no/such`"));
        assert_eq!(["/proc/none", "none"].map(help), ["check the path", "check the path"]);
    }

    #[test]
    fn every_refusal_of_a_path_has_advice() {
        let help = |code: i32, path: &str| {
            help_on(&io::Error::from_raw_os_error(code), Path::new(path)).expect("there is advice")
        };
        assert!(help(libc::EISDIR, "new/").contains("name a file"));
        assert!(help(libc::ENOTDIR, "a.img/b").contains("check the path"));
        assert_eq!(directory_to_make_in(Path::new("/proc/none")), Some(Path::new("/proc")));
        assert_eq!(directory_to_make_in(Path::new("none")), Some(Path::new(".")));
        assert_eq!(directory_to_make_in(Path::new("/proc/self")), None);
    }

    #[test]
    fn system_errors_lose_their_numbers() {
        let error = io::Error::from_raw_os_error(libc::EACCES);
        assert_eq!(reason_of(&error), "permission denied");
    }
}
