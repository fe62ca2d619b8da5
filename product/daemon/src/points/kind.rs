//! The contract of attach points: a [`Kind`] is what holds for all of one sort, a [`Point`] is one
//! that a job asks for.

use crate::acknowledge::Acknowledge;
use crate::error::{DaemonError, Error, StateError};
use crate::life::entry::Via;
use crate::life::state::{Entry, StateDirectory};
use coulter::service::BlockService;
use coulter_attach::point::AttachPoint;
use coulter_net::{Address, ServeError};
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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

    /// Whether its device would wait for another daemon although this one has in memory only what
    /// it has acknowledged.
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

    /// Whether this host's kernel may write its dirty pages to it, so that the daemon must not wait
    /// for memory.
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

    /// The same of one that this very process serves: asks nothing of the device, which would ask
    /// this process.
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

    /// Takes away what of `entry`, whose daemon has ended, is left in the kernel. What uses it gets
    /// I/O errors.
    ///
    /// # Errors
    /// Why the kernel refuses.
    fn remove_waiting(&self, _entry: &Entry) -> Result<(), String> {
        Ok(())
    }

    /// Takes away what a dead daemon of that name has left in the state directory. Gives back the
    /// devices that somebody still uses; they go when their users do.
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
    pub(super) fn failed(&self, reason: impl fmt::Display) -> Error {
        DaemonError::Attach { store: self.entry.store.clone(), reason: reason.to_string() }.into()
    }

    /// Why a server does not listen, with what to do about it.
    pub(super) fn not_served(&self, error: ServeError) -> Error {
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

    pub(super) fn device_waits(&self, device: &Path) -> Error {
        let (store, device) = (self.entry.store.clone(), device.display().to_string());
        StateError::DeviceWaits { store, name: None, device }.into()
    }
}

/// That this process is root's.
pub(super) fn takes_root() -> Result<(), String> {
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err("it takes root".to_owned()),
    }
}
