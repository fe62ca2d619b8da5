//! What has become of the file of a store that is attached, when its path leads to it no more: as
//! long as its daemon has it open, it is there, whatever was done to its path.

use crate::life::file_identity::FileIdentity;
use crate::life::state::Entry;
use coulter_system::mounts;
use coulter_system::process::Process;
use serde::Serialize;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What has become of it. Documented in `docs/json.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreFate {
    /// No path leads to it any more: it is gone with its daemon.
    Deleted,
    /// Another path leads to it.
    Moved,
    /// One of these: its daemon cannot be looked at, or it is a disk.
    Unknown,
}

impl StoreFate {
    /// Of the store of `entry`; `None` if it is where it was.
    pub fn of(entry: &Entry) -> Option<StoreFate> {
        let own = entry.store_identity?;
        // A mount of ours may not answer, and one over the store hides it.
        let is_below = lies_on_ours(&entry.store);
        if !is_below && FileIdentity::at(&entry.store).is_ok_and(|found| found == own) {
            return None;
        }
        let file = open_file(entry.process, own).filter(Metadata::is_file);
        // The store of an overlay may lie below its mount, where no path leads to it from outside.
        let is_covered = entry.directory().is_some_and(|it| entry.store.starts_with(it));
        if (is_covered || is_below) && file.as_ref().is_none_or(|file| file.nlink() > 0) {
            return None;
        }
        Some(match file.map(|file| file.nlink()) {
            Some(0) => StoreFate::Deleted,
            Some(_) => StoreFate::Moved,
            None => StoreFate::Unknown,
        })
    }

    /// A word behind the path of the store.
    pub fn word(self, entry: &Entry) -> &'static str {
        match self {
            _ if !lies_on_ours(&entry.store) && entry.store.exists() => "replaced",
            StoreFate::Moved => "moved",
            StoreFate::Deleted => "deleted",
            StoreFate::Unknown => "not there",
        }
    }

    /// What to say of a store that was deleted, and what to do about it.
    pub fn warning(self, entry: &Entry) -> Option<String> {
        let device = entry.device.as_deref().filter(|_| self == StoreFate::Deleted)?;
        Some(format!(
            "the store of '{}' was deleted: all that it holds is gone once its daemon ends; copy it from \
             {device} before that",
            entry.name
        ))
    }
}

/// True if a path leads into a mount of Coulter's, as far as can be told without asking it.
fn lies_on_ours(path: &Path) -> bool {
    let mount = mounts::covering(path).ok().flatten();
    mount.is_some_and(|mount| mount.kind == "fuse.coulter")
}

/// The file with this identity that the process has open.
fn open_file(process: Process, own: FileIdentity) -> Option<Metadata> {
    let files = fs::read_dir(PathBuf::from(format!("/proc/{}/fd", process.pid))).ok()?;
    let metadata = |path: PathBuf| fs::metadata(path).ok();
    let mut open = files.flatten().filter_map(|file| metadata(file.path()));
    // Its number may be another's by now.
    open.find(|file| FileIdentity::of(file) == own).filter(|_| process.is_alive())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_somebody_has_open_is_told_from_one_that_is_gone() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = |name: &str| directory.path().join(name);
        let open = fs::File::create(path("a")).expect("it is writable");
        let entry = Entry {
            store: path("a"),
            store_identity: FileIdentity::at(&path("a")).ok(),
            ..Entry::sample("a", Process::current())
        };
        let fate = || StoreFate::of(&entry).map(|fate| (fate, fate.word(&entry)));
        assert_eq!(fate(), None);
        fs::rename(path("a"), path("b")).expect("it is writable");
        assert_eq!(fate(), Some((StoreFate::Moved, "moved")));
        fs::write(path("a"), "another").expect("it is writable");
        assert_eq!(fate(), Some((StoreFate::Moved, "replaced")));
        assert_eq!(StoreFate::Moved.warning(&entry), None);
        fs::remove_file(path("b")).expect("it is there");
        assert_eq!(fate(), Some((StoreFate::Deleted, "replaced")));
        fs::remove_file(path("a")).expect("it is there");
        assert_eq!(fate(), Some((StoreFate::Deleted, "deleted")));
        let warning = StoreFate::Deleted.warning(&entry);
        assert!(warning.is_some_and(|words| words.contains("/dev/a")));
        let over = |store: &str| Entry {
            store: path(store),
            device: Some(directory.path().display().to_string()),
            via: crate::life::state::Via::new("overlay"),
            ..entry.clone()
        };
        fs::write(path("c"), "the store").expect("it is writable");
        let own = FileIdentity::at(&path("c")).ok();
        let below = fs::File::open(path("c")).expect("it is there");
        let covered = Entry { store_identity: own, ..over("hidden") };
        assert_eq!(StoreFate::of(&covered), None, "it is below the mount");
        fs::remove_file(path("c")).expect("it is there");
        assert_eq!(StoreFate::of(&covered), Some(StoreFate::Deleted));
        drop(below);
        drop(open);
        assert_eq!(fate(), Some((StoreFate::Unknown, "not there")));
    }
}
