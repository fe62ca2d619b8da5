//! `coulter serve`: an NBD server in the foreground.

use crate::daemon::{self, Job, Point};
use crate::error::CliError;
use crate::size::Size;
use crate::state::StateDirectory;
use crate::terminal;
use clap::Args;
use coulter_attach::nbd::Address;
use std::path::PathBuf;

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

    /// Where to listen: unix:PATH or tcp:ADDRESS:PORT (port 0 takes a free one)
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) nbd: Address,

    /// Listen even on an address that other machines reach
    #[arg(long)]
    pub(crate) allow_remote: bool,

    /// Name for `detach` and `status` [default: made from the file name]
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// Most memory that the map may take [default: the whole map]
    #[arg(long, value_name = "SIZE")]
    pub(crate) map_memory: Option<Size>,

    /// Refuse writes
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Print the entry that `list --json` would show, instead of the URI
    #[arg(long)]
    pub(crate) json: bool,

    /// Record addresses over time, for the picture of the demonstration
    #[arg(long, hide = true)]
    pub(crate) trace: bool,
}

impl Serve {
    pub(crate) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        let job = Job {
            store: crate::store::existing(&self.path)?,
            name: self.name.clone(),
            point: Point::Nbd { address: self.address(), allow_remote: self.allow_remote },
            map_memory: self.map_memory.map(|size| size.0),
            read_only: self.read_only,
            trace: self.trace,
        };
        daemon::run(state, job, &mut |entry| {
            if self.json {
                return terminal::print_json(entry);
            }
            terminal::print(entry.device.as_deref().unwrap_or_default())
        })
    }

    /// Where to listen; a path is made absolute, so that the URI holds in any directory.
    fn address(&self) -> Address {
        match &self.nbd {
            Address::Unix(path) => {
                Address::Unix(std::path::absolute(path).unwrap_or_else(|_| path.clone()))
            }
            tcp => tcp.clone(),
        }
    }
}
