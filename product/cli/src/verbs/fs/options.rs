//! Options of a mount of Coulter's own files, as `mount -o` and fstab have them: those that are
//! true of it, and why others are refused.

use crate::error::{CliError, DoorError};

/// Options that say how it is mounted.
const CHOICES: [&str; 8] = ["ro", "rw", "nosuid", "suid", "nodev", "dev", "noexec", "exec"];
/// Options that say what is so anyway: access lists and attributes are kept.
const TRUE_ANYWAY: [&str; 7] =
    ["", "defaults", "acl", "user_xattr", "async", "noatime", "nodiratime"];

/// Refuses what would not be true of the mount.
///
/// # Errors
/// [`DoorError::OptionRefused`].
pub(super) fn check(list: &str) -> Result<(), CliError> {
    match list.split(',').find(|word| !CHOICES.contains(word) && !TRUE_ANYWAY.contains(word)) {
        None => Ok(()),
        Some(word) => {
            Err(DoorError::OptionRefused { option: word.to_owned(), reason: reason(word) }.into())
        }
    }
}

fn reason(word: &str) -> &'static str {
    match word {
        "sync" | "dirsync" => {
            "a write or a change of a directory is durable with fsync or sync, and not by itself"
        }
        "noacl" | "nouser_xattr" => "access lists and attributes are always kept",
        word if word.ends_with("atime") || word == "lazytime" => {
            "access times are not kept by reads: it is as with noatime"
        }
        _ => "a Coulter file system has no such option",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_true_is_taken_and_what_is_not_is_refused_with_the_reason() {
        for list in ["", "defaults", "ro,nosuid", "acl,user_xattr", "async", "noatime"] {
            assert!(check(list).is_ok(), "{list}");
        }
        for (list, words) in [
            ("sync", "fsync"),
            ("rw,dirsync", "fsync"),
            ("noacl", "always kept"),
            ("data=ordered", "no such option"),
            ("relatime", "access times"),
            ("lazytime", "access times"),
        ] {
            let refused = check(list).expect_err(list).to_string();
            assert!(refused.contains(words), "{refused}");
        }
    }
}
