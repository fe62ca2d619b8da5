//! `coulter serve`: an NBD server in the foreground.

use crate::daemon::{self, Job, Point, Source};
use crate::error::CliError;
use crate::opening::Opening;
use crate::state::StateDirectory;
use crate::terminal;
use clap::Args;
use coulter_attach::nbd::{Address, AddressError};
use std::path::PathBuf;
use std::str::FromStr;

/// Serve a volume over NBD until interrupted, for any client, virtual machines included.
///
/// NBD has no passwords: whoever reaches the socket reads and writes the volume. Bind to
/// 127.0.0.1 or use a unix socket unless the network is trusted.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter serve disk.img --nbd unix:/run/disk.sock
  coulter serve disk.img --nbd tcp:127.0.0.1:10809
  qemu-system-x86_64 -drive file=nbd:unix:/run/disk.sock,format=raw,if=virtio …")]
pub(crate) struct Serve {
    /// Store to serve
    pub(crate) path: PathBuf,

    /// Where to listen: unix:PATH, tcp:ADDRESS:PORT (port 0 takes a free one), or systemd for the
    /// socket that it has passed
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) nbd: Place,

    /// Listen even on an address that other machines reach
    #[arg(long)]
    pub(crate) allow_remote: bool,

    #[command(flatten)]
    pub(crate) opening: Opening,

    /// Print the entry that `list --json` would show, instead of the URI
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On a socket of its own.
    Address(Address),
    /// On the one that systemd has passed.
    Inherited,
}

impl FromStr for Place {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Place, AddressError> {
        match text {
            "systemd" => Ok(Place::Inherited),
            address => address.parse().map(Place::Address),
        }
    }
}

impl Serve {
    pub(crate) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        let point = match self.nbd.clone() {
            Place::Inherited => Point::NbdInherited,
            Place::Address(address) => Point::NbdAt { address, allow_remote: self.allow_remote },
        };
        let job = Job {
            source: Source::Store(crate::store::existing(&self.path)?),
            point: point.absolute(),
            opening: self.opening.clone(),
            recover: false,
        };
        daemon::run(state, job, &mut |entry| {
            if self.json {
                return terminal::print_json(entry);
            }
            terminal::print(entry.device.as_deref().unwrap_or_default())
        })
        .map(|_| ())
    }
}
