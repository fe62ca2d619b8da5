//! An error in words, and the phrases that the kinds of error share.

use nix::unistd::Uid;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::path::Path;

/// An error as a person reads it; it also travels from a daemon to the command that started it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// What could not be done, and to what.
    pub(crate) what: String,
    /// Why.
    pub(crate) why: Option<String>,
    /// What to do.
    pub(crate) help: Option<String>,
    /// What the process ends with.
    pub(crate) exit_code: u8,
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

/// Something could not be done.
pub(super) fn fault(what: impl Into<String>) -> Report {
    Report { what: what.into(), why: None, help: None, exit_code: 1 }
}

/// The command line asks for what cannot be.
pub(super) fn usage(what: impl Into<String>) -> Report {
    Report { exit_code: 2, ..fault(what) }
}

impl Report {
    pub(super) fn why(mut self, why: impl Into<String>) -> Report {
        self.why = Some(why.into());
        self
    }

    pub(super) fn help(mut self, help: impl Into<String>) -> Report {
        self.help = Some(help.into());
        self
    }

    pub(super) fn maybe_help(mut self, help: Option<&String>) -> Report {
        self.help = help.cloned();
        self
    }
}

/// `permission denied` instead of `Permission denied (os error 13)`.
pub(crate) fn reason_of(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => text.to_owned(),
    }
}

pub(super) fn help_on(error: &io::Error, path: &Path) -> Option<String> {
    match error.raw_os_error()? {
        libc::EACCES | libc::EPERM if Uid::effective().is_root() => Some(format!(
            "root may do that to most files: `lsattr -d {}` shows whether this one is immutable (`i`) \
             or may only grow (`a`)",
            path.display()
        )),
        libc::EACCES | libc::EPERM => {
            Some(format!("check the permissions of {}, or run as root", path.display()))
        }
        libc::ENOSPC | libc::EDQUOT => Some("free space on the file system below it".to_owned()),
        libc::EFBIG => Some(
            "raise the limit on the size of files (`ulimit -f`, LimitFSIZE= of a unit), or use a file \
             system that allows larger ones"
                .to_owned(),
        ),
        libc::EROFS => Some("it is on a file system that is mounted read-only".to_owned()),
        libc::EBUSY => Some("something else uses it; unmount or detach it first".to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{DaemonError, StoreError};
    use crate::signatures::Signature;
    use std::path::PathBuf;

    #[test]
    fn an_error_says_what_why_and_what_to_do() {
        let signature =
            Signature { what: "an XFS file system", mount_type: None, offset: 0, length: 4 };
        let error =
            StoreError::HoldsData { path: PathBuf::from("/dev/sdb"), signatures: vec![signature] };
        assert_eq!(
            error.report().to_string(),
            "will not format /dev/sdb: it holds an XFS file system (at byte 0) \
             (if that may be destroyed, add --force)"
        );
        assert_eq!(error.report().exit_code, 1);
    }

    #[test]
    fn a_command_line_that_cannot_work_ends_with_2() {
        let error = StoreError::SizeNeeded { path: PathBuf::from("a.img") };
        assert_eq!(error.report().exit_code, 2);
    }

    #[test]
    fn a_busy_volume_names_the_mount_point_to_leave() {
        let error = DaemonError::Busy {
            name: "a".into(),
            device: "/dev/loop0".into(),
            holders: vec!["mounted at /mnt/x".into(), "process 7 (bash)".into()],
            remedy: Some("coulter umount /mnt/x".into()),
        };
        let report = error.report();
        assert_eq!(report.why.as_deref(), Some("mounted at /mnt/x; process 7 (bash)"));
        assert_eq!(report.help.as_deref(), Some("first run `coulter umount /mnt/x`"));
    }

    #[test]
    fn system_errors_lose_their_numbers() {
        let error = io::Error::from_raw_os_error(libc::EACCES);
        assert_eq!(reason_of(&error), "permission denied");
    }
}
