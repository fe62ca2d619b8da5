//! The help of `coulter -h`: the verbs that a newcomer needs, on one screen.
//! `coulter help --all` lists every verb.

use clap::Command;
use std::fmt::Write;

/// The help of the whole program.
pub(crate) const SHORT: &str = "\
Random writes in, one sequential log out.

Usage: coulter COMMAND ...

A volume lies in a file or on a disk, its store:
  coulter create disk.img --size 10G        make a volume of 10 GiB in a file
  coulter mount disk.img /mnt --mkfs ext4   make a file system on it, mount it
  coulter status                            show what it does
  coulter umount /mnt                       unmount and detach it
  coulter attach disk.img                   get its block device, not mounted
  coulter detach disk                       give the device up again

More:
  coulter help --all                        list all commands
  coulter help COMMAND                      explain one, with examples
  coulter --version                         print the version
  --state-directory DIR                     another place for what is attached
  --log-format FORMAT                       log lines as text or json

Exit codes: 0 done, 1 failed or found a fault, 2 wrong usage.
Sizes are binary: 4K, 32M, 1.5T. NO_COLOR switches colours off.
";

/// The verbs by what they are for, the most needed first.
pub(crate) const GROUPS: &[(&str, &[&str])] = &[
    (
        "Volumes",
        &[
            "create", "attach", "detach", "mount", "umount", "list", "status", "grow", "upgrade",
            "tune",
        ],
    ),
    ("Coulter file systems, which need no block device", &["fs", "sync"]),
    ("Directories of other file systems", &["overlay"]),
    ("Virtual machines and other hosts", &["serve"]),
    ("Copies elsewhere", &["replicate", "replica", "restore", "snapshot", "clone", "diff", "move"]),
    ("Checking, repairing and taking out", &["check", "scrub", "salvage", "export"]),
    ("For scripts and for looking inside", &["probe", "dump"]),
];

/// The list of all verbs, if that is what the words of the command line ask for.
pub(crate) fn asked_for(words: &[std::ffi::OsString], whole: &Command) -> Option<String> {
    let is_asked = words.len() == 2 && words[0] == "help" && words[1] == "--all";
    is_asked.then(|| all(whole))
}

pub(crate) fn all(whole: &Command) -> String {
    let mut text = String::from("Usage: coulter COMMAND ...\n");
    for (group, verbs) in GROUPS {
        let _ = writeln!(text, "\n{group}:");
        for verb in *verbs {
            let command = whole.find_subcommand(verb).expect("a group names verbs that there are");
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {verb:<10} {}", brief(&about));
        }
    }
    text.push_str("\n`coulter help COMMAND` explains one, with examples.\n");
    text
}

/// As much of a sentence as says what is done.
fn brief(about: &str) -> &str {
    let first = about.split([':', ';']).next().unwrap_or(about);
    match first.rsplit_once(", ") {
        Some((before, _)) if first.chars().count() > 80 => before,
        _ => first,
    }
}
