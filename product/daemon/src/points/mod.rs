//! The attach points: a module and a row of [`KINDS`] for each.
//!
//! A [`Kind`] is what holds for all attach points of one sort: the word for it, what the host gets, and what
//! becomes of it when its daemon dies. A [`Point`] is one that a job asks for, with its place and its
//! options.
//!
//! To add one: a module with both, and its row. The command line, the state directory, `--via auto`, recovery
//! after a killed daemon and `status` take it from there.

mod fs;
mod loop_device;
mod nbd;
mod nbd_server;
mod nvme;
mod nvme_server;
mod ublk;
mod visitors;

pub use fs::{DirectoryKind, FsOptions, FsPoint, is_mounted};
pub use loop_device::{Loop, release_leftovers};
pub use nbd::Nbd;
pub use nbd_server::{NbdServer, NbdServerPoint};
pub use nvme::Nvme;
pub use nvme_server::{NvmePlace, NvmeServer};
pub use ublk::Ublk;

use crate::entry::Via;
use crate::error::{DaemonError, Error, StateError};
use crate::opening::Acknowledge;
use crate::state::{Entry, StateDirectory};
use coulter::service::BlockService;
use coulter_attach::point::AttachPoint;
use coulter_net::{Address, ServeError};
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// All of them. `--via auto` takes the first that it may and that can be had; the command line lists those
/// that need no more than their word, in this order.
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

/// What the host gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gives {
    /// A block device.
    Device,
    /// An address on which a server listens.
    Address,
    /// No blocks: a directory with files.
    Directory,
}

/// What becomes of the device when its daemon is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Afterlife {
    /// It is dead, or there never was one.
    None,
    /// It waits for another daemon, unless it was made for one that answers from memory.
    WaitsIfAllowed,
    /// It waits for another daemon.
    Waits,
}

/// A sort of attach points.
pub trait Kind: Sync {
    /// The word for it, on the command line and in JSON.
    fn word(&self) -> &'static str;

    /// The word, as entries keep it.
    fn via(&self) -> Via {
        Via::new(self.word())
    }

    /// What the host gets.
    fn gives(&self) -> Gives;

    /// What becomes of it when its daemon is killed.
    fn afterlife(&self) -> Afterlife {
        Afterlife::None
    }

    /// Whether its device would wait for another daemon although this one has in memory only what it has
    /// acknowledged.
    fn outlives(&self, acknowledge: Acknowledge) -> bool {
        acknowledge == Acknowledge::Buffered && self.afterlife() == Afterlife::Waits
    }

    /// One that needs nothing but the word, for `attach --via`.
    fn plain(&self) -> Option<Box<dyn Point>> {
        None
    }

    /// Whether `--via auto` may choose it.
    fn is_automatic(&self) -> bool {
        false
    }

    /// Whether this host's kernel may write its dirty pages to it, so that the daemon must not wait for memory.
    fn is_under_the_kernel(&self) -> bool {
        true
    }

    /// What of it takes root, if that is all that can be told without trying.
    fn needs_root(&self) -> Option<&'static str> {
        None
    }

    /// Whether one can be had on this machine, by this user.
    ///
    /// # Errors
    /// Why not, and what to do about it.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Whether `device`, which `entry` names, is still its own. Asks the daemon, if it is alive.
    fn has_its_device(&self, _state: &StateDirectory, _entry: &Entry, _device: &Path) -> bool {
        true
    }

    /// The same of one that this very process serves: asks nothing of the device, which would ask this process.
    fn is_still_there(&self, _state: &StateDirectory, _entry: &Entry, device: &Path) -> bool {
        self.gives() != Gives::Device || device.exists()
    }

    /// The device of `entry`, whose daemon has ended, if it waits for another one.
    fn waiting_device(&self, _entry: &Entry) -> Option<PathBuf> {
        None
    }

    /// True if the dead mount of `entry`, whose daemon has ended, covers a directory of the user's.
    /// Programs get errors there. Without it they would write into the bare directory below.
    fn covers_a_directory(&self, _entry: &Entry) -> bool {
        false
    }

    /// Takes away what of `entry`, whose daemon has ended, is left in the kernel. What uses it gets I/O errors.
    ///
    /// # Errors
    /// Why the kernel refuses.
    fn remove_waiting(&self, _entry: &Entry) -> Result<(), String> {
        Ok(())
    }

    /// Takes away what a dead daemon of that name has left in the state directory. Gives back the devices that
    /// somebody still uses; they go when their users do.
    ///
    /// # Errors
    /// When the system refuses a step.
    fn release_leftovers(
        &self,
        _state: &StateDirectory,
        _name: &str,
    ) -> Result<Vec<PathBuf>, Error> {
        Ok(Vec::new())
    }
}

impl fmt::Debug for dyn Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl PartialEq for dyn Kind {
    fn eq(&self, other: &dyn Kind) -> bool {
        self.word() == other.word()
    }
}

impl Eq for dyn Kind {}

/// The attach point that a job asks for.
pub trait Point: fmt::Debug + Send {
    /// Of which kind it is.
    fn kind(&self) -> &'static dyn Kind;

    /// The command line that serves it again like this, if the store alone does not say it.
    fn again(&self) -> Option<String> {
        None
    }

    /// Offers `service`.
    ///
    /// # Errors
    /// [`DaemonError::Attach`] with the system's reason; [`StateError::DeviceWaits`] if there is a
    /// device of this volume, and it is not to be taken over.
    fn start(
        &self,
        ground: &Ground<'_>,
        service: Arc<dyn BlockService>,
    ) -> Result<Box<dyn AttachPoint>, Error>;

    /// Goes on with what another program has handed over.
    ///
    /// # Errors
    /// [`DaemonError::Attach`] with the system's reason; the attach point is gone then.
    fn resume(
        &self,
        ground: &Ground<'_>,
        _service: Arc<dyn BlockService>,
        _descriptor: OwnedFd,
    ) -> Result<Box<dyn AttachPoint>, Error> {
        // It hands nothing over. The next daemon takes it over by recovery.
        Err(ground.failed("it is taken over by `attach --recover`"))
    }
}

/// For whom an attach point is made.
#[derive(Clone, Copy)]
pub struct Ground<'a> {
    /// Where a socket or mount of its own may lie.
    pub state: &'a StateDirectory,
    /// The volume.
    pub entry: &'a Entry,
    /// Whether to take over a device that waits.
    pub recover: bool,
}

impl Ground<'_> {
    fn failed(&self, reason: impl fmt::Display) -> Error {
        DaemonError::Attach { store: self.entry.store.clone(), reason: reason.to_string() }.into()
    }

    /// Why a server does not listen, with what to do about it.
    fn not_served(&self, error: ServeError) -> Error {
        let ServeError::Bind { address, source } = error else { return self.failed(error) };
        let help = match (&address, source.raw_os_error()) {
            (Address::Unix(path), Some(libc::EADDRINUSE)) => Some(format!(
                "another server listens there: choose another path, or end that and remove {}",
                coulter_terminal::word(path)
            )),
            (Address::Unix(_), None) => Some("choose another path".to_owned()),
            (Address::Unix(path), _) => coulter_terminal::help_on(&source, path),
            (Address::Tcp { .. }, Some(libc::EADDRINUSE)) => Some(
                "choose another port, as another program listens there; 0 is a free one".into(),
            ),
            (Address::Tcp { .. }, Some(libc::EADDRNOTAVAIL)) => Some(
                "`ip address` shows the addresses of this machine; tcp:127.0.0.1:0 always works"
                    .to_owned(),
            ),
            (Address::Tcp { .. }, Some(libc::EACCES)) => {
                Some("take a port above 1023, or run it as root".to_owned())
            }
            (Address::Tcp { .. }, _) => Some("check the name of the host".to_owned()),
        };
        let (address, reason) = (address.to_string(), coulter_terminal::reason_of(&source));
        DaemonError::Listen { address, reason, help }.into()
    }

    fn device_waits(&self, device: &Path) -> Error {
        let (store, device) = (self.entry.store.clone(), device.display().to_string());
        StateError::DeviceWaits { store, name: None, device }.into()
    }
}

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

/// That this process is root's.
fn takes_root() -> Result<(), String> {
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err("it takes root".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
