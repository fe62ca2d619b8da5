//! One attached volume, as the state directory and `list --json` tell of it.

use crate::acknowledge::Acknowledge;
use crate::life::file_identity::FileIdentity;
use coulter::{ReadOnlyReason, State};
use coulter_system::mounts;
use coulter_system::process::Process;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// How the host reaches a volume: the word of an attach point. What can be said of it, `points`
/// knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Via(Cow<'static, str>);

impl Via {
    /// A file system of Coulter's own.
    pub const FS: Via = Via::new("fs");
    /// An overlay over a directory of another file system.
    pub const OVERLAY: Via = Via::new("overlay");

    /// The attach point that is called `word`.
    pub const fn new(word: &'static str) -> Via {
        Via(Cow::Borrowed(word))
    }

    /// The word for it, on the command line and in JSON.
    pub fn word(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Via {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

/// One attached volume. Its field names are documented in `docs/json.md`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// What `detach` and `status` call it.
    pub name: String,
    /// Absolute path of the store.
    pub store: PathBuf,
    /// The block device, or the URI of the NBD server. `None` until it serves.
    pub device: Option<String>,
    /// The attach point.
    pub via: Via,
    /// The process that serves it.
    #[serde(flatten)]
    pub process: Process,
    /// Identity of the store. Empty until it serves.
    pub uuid: String,
    /// The name that is kept in the store; empty if it has none.
    #[serde(default)]
    pub label: String,
    /// Of the program that serves it.
    #[serde(default)]
    pub version: String,
    /// Bytes that the host sees. 0 until it serves.
    pub volume_size_bytes: u64,
    /// Bytes of the store. 0 until it serves.
    #[serde(default)]
    pub store_size_bytes: u64,
    /// Writes are refused.
    pub read_only: bool,
    /// Why it can do less than it was attached for, if it can.
    #[serde(default)]
    pub failure: Option<String>,
    /// Bytes of the volume in doubt, if it is degraded: reading them fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_doubt_bytes: Option<u64>,
    /// Bytes of the store that are lost, if it was cut short while it was attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_off_bytes: Option<u64>,
    /// Whether its daemon is ending: it writes out what hosts have written, and answers no command.
    #[serde(default)]
    pub ending: bool,
    /// Seconds since 1970 at which it was attached.
    pub attached_at_unix_seconds: u64,
    /// Where its metrics are to be had, if anywhere.
    #[serde(default)]
    pub metrics: Option<SocketAddr>,
    /// Which file or disk the store is, whatever lies at its path by now. `None` for a drive that
    /// is emulated.
    #[serde(default)]
    pub store_identity: Option<FileIdentity>,
    /// When writes are answered.
    #[serde(default)]
    pub acknowledge: Acknowledge,
    /// The command line that serves it again as it is served now, of a file system or an overlay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again: Option<String>,
}

/// How well a word that the user wrote names a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    /// It is its name, its store or its device.
    Yes,
    /// It is the path of its store, but another file lies there now.
    Replaced,
    No,
}

impl Entry {
    /// The volume of which a file system, or a part of one, is mounted at `path`.
    pub(crate) fn mounted_at<'a>(attached: &'a [Entry], path: &Path) -> Option<&'a Entry> {
        let mount = mounts::mount_at(path).ok().flatten()?;
        let is_of = |entry: &&Entry| match entry.directory() {
            Some(_) => mount.kind == "fuse.coulter" && entry.store == mount.source,
            None => entry.device.as_deref().map(Path::new) == Some(&mount.source),
        };
        attached.iter().find(is_of)
    }

    /// The directory that it is mounted on, of a file system or an overlay.
    pub fn directory(&self) -> Option<&Path> {
        let is_directory = self.via == Via::FS || self.via == Via::OVERLAY;
        self.device.as_deref().map(Path::new).filter(|_| is_directory)
    }

    /// Bytes that mean something to a person: the addresses of an overlay's store do not.
    pub fn told_size(&self) -> u64 {
        if self.via == Via::OVERLAY { self.store_size_bytes } else { self.volume_size_bytes }
    }

    /// The same of a volume that is in `state` now.
    pub fn in_state(&self, state: &State) -> Entry {
        let failure = match state {
            State::Running | State::ReadOnly(ReadOnlyReason::Opened) | State::Closed => None,
            failed => Some(failed.to_string()),
        };
        let in_doubt_bytes = state.in_doubt_bytes();
        assert!(in_doubt_bytes.is_none() || failure.is_some(), "bytes in doubt without a failure");
        Entry { read_only: !state.takes_writes(), failure, in_doubt_bytes, ..self.clone() }
    }

    /// The same of a volume of which nothing has failed yet.
    pub(crate) fn without_failure(self) -> Entry {
        Entry { failure: None, in_doubt_bytes: None, cut_off_bytes: None, ..self }
    }

    /// Whether the volume is of the store at `path`; `None` if its file was there, and another one
    /// is there now.
    pub fn is_of(&self, path: &Path) -> Option<bool> {
        match (self.store_identity, FileIdentity::at(path).ok()) {
            (Some(own), Some(found)) if own == found => Some(true),
            (Some(_), Some(_)) => (self.store != path).then_some(false),
            _ => Some(self.store == path),
        }
    }

    /// What `text` is to it; `path` is that text as a path.
    pub(crate) fn matched_by(&self, text: &str, path: Option<&Path>) -> Match {
        let device = self.device.as_deref();
        let is_device =
            device == Some(text) || path.is_some_and(|path| device.map(Path::new) == Some(path));
        if self.name == text || is_device {
            return Match::Yes;
        }
        match path.map(|path| self.is_of(path)) {
            Some(Some(true)) => Match::Yes,
            Some(None) => Match::Replaced,
            Some(Some(false)) | None => Match::No,
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl Entry {
    /// One for tests: by loop, of a store that need not exist.
    pub fn sample(name: &str, process: Process) -> Entry {
        Entry {
            name: name.to_owned(),
            store: PathBuf::from("/srv").join(name),
            device: Some(format!("/dev/{name}")),
            via: Via::new("loop"),
            process,
            uuid: String::new(),
            label: String::new(),
            version: String::new(),
            volume_size_bytes: 4096,
            store_size_bytes: 0,
            read_only: false,
            failure: None,
            in_doubt_bytes: None,
            cut_off_bytes: None,
            ending: false,
            attached_at_unix_seconds: 1,
            metrics: None,
            store_identity: None,
            acknowledge: Acknowledge::Written,
            again: None,
        }
    }
}
