//! The attach points: a module and a row of [`KINDS`] for each.
//!
//! A [`Kind`] is what holds for all attach points of one sort: the word for it, what the host gets,
//! and what becomes of it when its daemon dies. A [`Point`] is one that a job asks for, with its
//! place and its options.
//!
//! To add one: a module with both, and its row. The command line, the state directory, `--via
//! auto`, recovery after a killed daemon and `status` take it from there.

mod fs;
mod inherited;
mod kind;
mod loop_device;
mod nbd;
mod nbd_server;
mod nvme;
mod nvme_server;
mod ublk;
mod visitors;

pub use fs::{DirectoryKind, FsOptions, FsPoint, is_mounted};
pub use kind::{Afterlife, Gives, Ground, Kind, Point};
pub use loop_device::{Loop, release_leftovers};
pub use nbd::Nbd;
pub use nbd_server::{NbdServer, NbdServerPoint};
pub use nvme::Nvme;
pub use nvme_server::{NvmePlace, NvmeServer};
pub use ublk::Ublk;

use crate::life::entry::Via;
use crate::life::state::{Entry, StateDirectory};
use std::path::Path;

/// All of them. `--via auto` takes the first that it may and that can be had; the command line
/// lists those that need no more than their word, in this order.
pub const KINDS: [&dyn Kind; 8] = [
    &Ublk,
    &Nbd,
    &Loop,
    &Nvme,
    &NbdServer,
    &NvmeServer,
    &DirectoryKind::FS,
    &DirectoryKind::OVERLAY,
];

/// The kind of `word`.
pub fn by_word(word: &str) -> Option<&'static dyn Kind> {
    KINDS.into_iter().find(|kind| kind.word() == word)
}

/// The kind of what `entry` is attached by.
pub fn of(entry: &Entry) -> &'static dyn Kind {
    by_word(entry.via.word()).unwrap_or(&Unknown)
}

/// Whether the host gets a block device of `entry`.
pub fn gives_device(entry: &Entry) -> bool {
    of(entry).gives() == Gives::Device
}

/// Whether `entry` is a directory of files.
pub fn gives_directory(entry: &Entry) -> bool {
    of(entry).gives() == Gives::Directory
}

/// True if `entry` is the store of an overlay.
pub fn is_overlay(entry: &Entry) -> bool {
    entry.via == Via::OVERLAY
}

/// Whether `entry` is a directory of files at `directory`.
pub fn is_at(entry: &Entry, directory: &Path) -> bool {
    gives_directory(entry) && entry.device.as_deref().map(Path::new) == Some(directory)
}

/// What another version of the program has made: what there is of it, this one cannot tell.
struct Unknown;

impl Kind for Unknown {
    fn word(&self) -> &'static str {
        "unknown"
    }

    fn gives(&self) -> Gives {
        Gives::Address
    }

    fn check(&self) -> Result<(), String> {
        Err("this version does not know it".to_owned())
    }

    fn has_its_device(&self, _state: &StateDirectory, _entry: &Entry, _device: &Path) -> bool {
        false
    }

    fn remove_waiting(&self, entry: &Entry) -> Result<(), String> {
        Err(format!("it was attached by {}, which this version does not know", entry.via))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acknowledge::Acknowledge;
    use coulter_system::process::Process;

    #[test]
    fn every_row_is_found_by_its_word_and_what_it_makes_is_of_its_kind() {
        for kind in KINDS {
            assert_eq!(by_word(kind.word()), Some(kind));
            if let Some(point) = kind.plain() {
                assert_eq!(point.kind(), kind);
            }
            let waits = kind.afterlife() != Afterlife::None;
            assert!(!waits || kind.gives() == Gives::Device, "{kind:?}: only a device waits");
            assert!(!kind.is_automatic() || kind.plain().is_some(), "{kind:?}: auto gives a word");
        }
    }

    #[test]
    fn there_is_always_something_to_choose_by_itself() {
        let last = KINDS.into_iter().rfind(|kind| kind.is_automatic()).expect("there is one");
        assert_eq!(last.check(), Ok(()));
        assert!(!last.outlives(Acknowledge::Buffered));
    }

    #[test]
    fn what_another_version_has_made_is_neither_believed_nor_cleared_away() {
        let process = Process { pid: 1, start_ticks: u64::MAX };
        let text = serde_json::to_string(&Entry::sample("a", process)).expect("it can be written");
        let text = text.replace("\"loop\"", "\"pigeon\"");
        let entry: Entry = serde_json::from_str(&text).expect("any word is read");
        assert_eq!(entry.via.to_string(), "pigeon");
        let reason = of(&entry).remove_waiting(&entry).expect_err("nobody knows what there is");
        assert!(reason.contains("pigeon"), "{reason}");
        assert_eq!(of(&entry).waiting_device(&entry), None);
    }
}
