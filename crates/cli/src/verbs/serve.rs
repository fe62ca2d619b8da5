//! `coulter serve`: an NBD server in the foreground.

use crate::daemon::{self, Job, NbdAddress, Point};
use crate::error::{CliError, DaemonError};
use crate::size::Size;
use crate::state::StateDirectory;
use crate::terminal;
use clap::Args;
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
    pub(crate) nbd: String,

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
            point: Point::Nbd(parse_address(&self.nbd)?),
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
}

/// `unix:/path` or `tcp:127.0.0.1:10809`.
fn parse_address(text: &str) -> Result<NbdAddress, CliError> {
    let invalid = || DaemonError::AddressInvalid { text: text.to_owned() };
    match text.split_once(':') {
        Some(("unix", path)) if !path.is_empty() => {
            // The daemon's URI must hold for clients in any directory.
            let path = std::path::absolute(path).map_err(|_| invalid())?;
            Ok(NbdAddress::Unix(path))
        }
        Some(("tcp", address)) => {
            let address = address.replace("localhost:", "127.0.0.1:");
            Ok(NbdAddress::Tcp(address.parse().map_err(|_| invalid())?))
        }
        _ => Err(invalid().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_unix_paths_or_tcp_ports() {
        let unix = parse_address("unix:/run/a.sock").expect("it is an address");
        assert_eq!(unix, NbdAddress::Unix(PathBuf::from("/run/a.sock")));
        for text in ["tcp:127.0.0.1:10809", "tcp:localhost:10809", "tcp:[::1]:10809"] {
            assert!(matches!(parse_address(text), Ok(NbdAddress::Tcp(_))), "{text}");
        }
        for text in ["", "unix:", "tcp:", "tcp:1", "tcp:127.0.0.1", "127.0.0.1:1", "x:y"] {
            assert!(parse_address(text).is_err(), "{text}");
        }
    }
}
