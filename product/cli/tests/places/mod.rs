//! Where programs work on files: a bare file system on a loop device, a file system of Coulter's own, or
//! an overlay over a bare one.

#![allow(dead_code, reason = "each test program uses a part of this")]

use crate::sandbox::Sandbox;
use coulter_systems::FileSystem;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// See the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Bare(FileSystem),
    Own,
    Over(FileSystem),
}

impl Place {
    /// Those with Coulter in them.
    pub(crate) const OURS: [Place; 4] = [
        Place::Own,
        Place::Over(FileSystem::Ext4),
        Place::Over(FileSystem::Xfs),
        Place::Over(FileSystem::Btrfs),
    ];

    /// The bare file system.
    pub(crate) fn below(self) -> Option<FileSystem> {
        match self {
            Place::Bare(kind) | Place::Over(kind) => Some(kind),
            Place::Own => None,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Bare(kind) => write!(f, "{kind}"),
            Place::Own => write!(f, "coulter fs"),
            Place::Over(kind) => write!(f, "overlay over {kind}"),
        }
    }
}

/// A place that is mounted in a sandbox.
pub(crate) struct Put<'a> {
    sandbox: &'a Sandbox,
    place: Place,
    /// The loop device of the bare file system.
    device: Option<PathBuf>,
    /// Where programs work.
    pub(crate) directory: PathBuf,
}

/// Runs a program that must succeed.
#[track_caller]
pub(crate) fn run(command: &mut Command) {
    said(command);
}

/// What a program that must succeed says.
#[track_caller]
pub(crate) fn said(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}, {}: {text}{errors}", output.status);
    text
}

/// A number that stands for all names, contents, owners, modes, times and attributes below `directory`. Its
/// own times are left out: they change when what is hidden in it comes and goes.
#[track_caller]
pub(crate) fn digest(directory: &Path) -> String {
    let names =
        "find . -mindepth 1 -path ./.coulter -prune -o -mindepth 1 -print0 | LC_ALL=C sort -z";
    let tar = "tar -c --no-recursion --xattrs --acls --numeric-owner --format=pax \
        --pax-option=exthdr.name=%d/%f,delete=atime,delete=ctime --null -T - | sha256sum";
    said(Command::new("sh").args(["-c", &format!("{names} | {tar}")]).current_dir(directory))
}

/// Large enough for a tree of 100,000 files and a database, twice.
const SIZE: &str = "6G";

impl<'a> Put<'a> {
    #[track_caller]
    pub(crate) fn new(sandbox: &'a Sandbox, place: Place) -> Put<'a> {
        let mut device = None;
        let directory = match place {
            Place::Own => {
                sandbox.ok(&["fs", "create", "own.img", "--sparse", "--size", SIZE]);
                sandbox.make_directory("own");
                sandbox.ok(&["fs", "mount", "own.img", "own"]);
                sandbox.path("own")
            }
            Place::Bare(kind) | Place::Over(kind) => {
                let (image, bare) = (sandbox.path("bare.img"), sandbox.make_directory("bare"));
                run(Command::new("truncate").args(["--size", SIZE]).arg(&image));
                let path = said(Command::new("losetup").args(["--find", "--show"]).arg(&image));
                let path = PathBuf::from(path.trim());
                kind.make(&path).expect("a file system can be made");
                kind.mount(&path, &bare).expect("it can be mounted");
                device = Some(path);
                bare
            }
        };
        let mut put = Put { sandbox, place, device, directory };
        if let Place::Over(_) = place {
            put.directory = sandbox.make_directory("bare/data");
            put.cover();
        }
        put
    }

    fn cover(&self) {
        self.sandbox.ok(&["overlay", "bare/data", "--store-size", "1G"]);
    }

    /// Takes Coulter away and puts it there again.
    #[track_caller]
    pub(crate) fn put_again(&mut self) {
        match self.place {
            Place::Bare(_) => {}
            Place::Own => {
                self.sandbox.ok(&["umount", "own"]);
                self.sandbox.ok(&["fs", "mount", "own.img", "own"]);
            }
            Place::Over(_) => {
                self.sandbox.ok(&["overlay", "detach", "bare/data"]);
                self.cover();
            }
        }
    }

    /// Takes everything away. What is left is looked at by its checker.
    #[track_caller]
    pub(crate) fn take_away(self) {
        match self.place {
            Place::Bare(_) => {}
            Place::Own => {
                self.sandbox.ok(&["umount", "own"]);
                self.sandbox.ok(&["fs", "check", "own.img"]);
            }
            Place::Over(_) => {
                self.sandbox.ok(&["overlay", "check", "bare/data"]);
                self.sandbox.ok(&["overlay", "detach", "bare/data"]);
                assert!(!self.directory.join(".coulter").exists(), "nothing is left");
            }
        }
        let Some((device, kind)) = self.device.zip(self.place.below()) else { return };
        FileSystem::unmount(&self.sandbox.path("bare")).expect("nobody uses it");
        if let Err(error) = kind.check(&device) {
            panic!("{error}");
        }
        run(Command::new("losetup").arg("--detach").arg(&device));
    }
}
