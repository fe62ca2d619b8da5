//! `coulter serve`: an NBD server or an NVMe/TCP target in the foreground.

use crate::choices::named;
use crate::error::{CliError, DaemonError, DoorError};
use crate::named_store;
use crate::nvme_keys::{self, GROUPS};
use crate::opening::OpeningOptions;
use crate::room;
use crate::terminal;
use clap::Args;
use coulter_daemon::points::{NbdServerPoint, NvmePlace};
use coulter_daemon::state::StateDirectory;
use coulter_daemon::store::Store;
use coulter_daemon::{Job, Point, service};
use coulter_net::nbd::{Address, AddressError};
use coulter_nvme_target::Group;
use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::str::FromStr;

/// Options that have a meaning for NVMe hosts only. `requires` would not do: the parser ignores it
/// if the required option conflicts with one that is given.
const OF_NVME: [&str; 7] =
    ["nvme", "nvme_keys", "dh_group", "discovery", "block_size", "queue_depth", "queues"];

/// Serve a volume over NBD or NVMe/TCP until interrupted, for virtual machines and other clients.
///
/// NBD has no passwords here, and NVMe has them only with --nvme-keys: without, every client that reaches
/// the socket reads and writes the volume. Bind to 127.0.0.1 or use a unix socket unless the network is
/// trusted. Nothing is encrypted.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter serve disk.img --nbd unix:/run/disk.sock
  coulter serve disk.img --nbd tcp:127.0.0.1:10809
  coulter serve disk.img --nvme tcp:127.0.0.1:4420 --discovery
  coulter serve disk.img --nvme tcp:192.0.2.7:4420 --nvme-keys /etc/coulter.keys
  qemu-system-x86_64 -drive file=nbd:unix:/run/disk.sock,format=raw,if=virtio …")]
pub(crate) struct Serve {
    /// Store to serve; or, with --cache, the URL of a copy
    #[arg(value_parser = named_store::parser())]
    pub path: PathBuf,

    /// Where to listen: unix:PATH, tcp:ADDRESS:PORT (port 0 picks a free port), or systemd for a
    /// socket passed by systemd
    #[arg(long, value_name = "ADDRESS", required_unless_present = "nvme",
          conflicts_with_all = OF_NVME)]
    pub nbd: Option<NbdSocket>,

    /// Where to listen for NVMe hosts, instead of --nbd: tcp:ADDRESS:PORT
    #[arg(long, value_name = "ADDRESS")]
    pub nvme: Option<Address>,

    /// Let in only NVMe hosts that prove to know their key (DH-HMAC-CHAP). Lines of the file are
    /// HOST-NQN KEY [CONTROLLER-KEY], with keys of `nvme gen-dhchap-key`; the host `*` is any other.
    /// Only its owner may have access to the file
    #[arg(long, value_name = "FILE", requires = "nvme")]
    pub nvme_keys: Option<PathBuf>,

    /// Smallest Diffie-Hellman group to accept from NVMe hosts with keys
    #[arg(long, value_name = "GROUP", default_value = "ffdhe2048", requires = "nvme_keys",
          value_parser = named(&GROUPS))]
    pub dh_group: Group,

    /// Also run a discovery service on port 8009 of that address
    #[arg(long, requires = "nvme")]
    pub discovery: bool,

    /// Block size in bytes for NVMe hosts: 4096, or 512 for hosts that need it
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = block_size)]
    pub block_size: u32,

    /// Commands in flight per queue of an NVMe host
    #[arg(long, value_name = "COUNT", default_value_t = 127,
          value_parser = clap::value_parser!(u32).range(1..=1023))]
    pub queue_depth: u32,

    /// I/O queues per NVMe host
    #[arg(long, value_name = "COUNT", default_value_t = 8,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub queues: u16,

    /// Allow an address that other machines can reach; with --nvme-keys this is not needed
    #[arg(long)]
    pub allow_remote: bool,

    #[command(flatten)]
    pub opening: OpeningOptions,

    /// Print the entry that `list --json` would show, instead of the URI
    #[arg(long)]
    pub json: bool,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdSocket {
    /// On a socket of its own.
    Address(Address),
    /// On the one that systemd has passed.
    Inherited,
}

impl FromStr for NbdSocket {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<NbdSocket, AddressError> {
        match text {
            "systemd" => Ok(NbdSocket::Inherited),
            address => address.parse().map(NbdSocket::Address),
        }
    }
}

/// Refuses an address that other machines reach, unless that is allowed.
///
/// # Errors
/// [`DaemonError::Remote`]. An address that cannot be looked up is refused later, with the reason.
pub fn check_remote(address: &Address, allow_remote: bool, has_keys: bool) -> Result<(), CliError> {
    let Address::Tcp { host, port } = address else { return Ok(()) };
    let mut found = (host.as_str(), *port).to_socket_addrs().into_iter().flatten();
    if !allow_remote && found.any(|found| !found.ip().is_loopback()) {
        return Err(DaemonError::Remote { address: address.to_string(), has_keys }.into());
    }
    Ok(())
}

impl Serve {
    fn point(&self) -> Result<Box<dyn Point>, CliError> {
        let allow_remote = self.allow_remote;
        if let Some(address) = &self.nvme {
            if let Address::Unix(_) = address {
                return Err(DoorError::NvmeOverUnix { address: address.to_string() }.into());
            }
            check_remote(address, allow_remote || self.nvme_keys.is_some(), true)?;
            let keys = self.nvme_keys.as_deref().map(|path| nvme_keys::read(path, self.dh_group));
            return Ok(Box::new(NvmePlace {
                address: address.clone(),
                allow_remote,
                keys: keys.transpose()?,
                discovery: self.discovery,
                block_size: self.block_size,
                queue_size: self.queue_depth + 1,
                queues: self.queues,
            }));
        }
        match self.nbd.clone() {
            Some(NbdSocket::Address(address)) => {
                check_remote(&address, allow_remote, false)?;
                Ok(Box::new(NbdServerPoint::at(address, allow_remote)))
            }
            Some(NbdSocket::Inherited) | None => Ok(Box::new(NbdServerPoint::Inherited)),
        }
    }

    pub(crate) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        let point = self.point()?;
        let (path, opening) = self.opening.located(&self.path)?;
        let job = Job {
            source: Box::new(Store::at(crate::store::existing_to_serve(&path)?)),
            point,
            opening: opening.opening(),
            recover: false,
        };
        if !self.opening.read_only {
            room::note_if_short(&path);
        }
        service::run(state, job, &mut |entry| {
            match self.json {
                true => terminal::print_json(entry)?,
                false => terminal::print(entry.device.as_deref().unwrap_or_default())?,
            }
            Ok(())
        })?;
        Ok(())
    }
}

fn block_size(text: &str) -> Result<u32, &'static str> {
    match text {
        "512" => Ok(512),
        "4096" => Ok(4096),
        _ => Err("it is 512 or 4096"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, FromArgMatches};

    #[test]
    fn options_of_one_protocol_are_refused_with_the_other() {
        let parse = |words: &[&str]| {
            let line = ["serve", "disk.img"].iter().chain(words);
            Serve::augment_args(Command::new("serve")).try_get_matches_from(line)
        };
        let options: [&[&str]; 7] = [
            &["--nvme", "tcp:127.0.0.1:0"],
            &["--nvme-keys", "file"],
            &["--dh-group", "ffdhe4096"],
            &["--discovery"],
            &["--block-size", "4096"],
            &["--queue-depth", "127"],
            &["--queues", "8"],
        ];
        assert_eq!(options.len(), OF_NVME.len());
        for option in options {
            let refused = parse(&[&["--nbd", "unix:a"], option].concat());
            let text = refused.expect_err("it has no meaning for NBD").to_string();
            assert!(text.contains(option[0]) && text.contains("--nbd"), "{text}");
        }
        let all = [&["--nvme", "tcp:127.0.0.1:0"], options[1], options[2], options[3]].concat();
        let matches = parse(&all).expect("NVMe has them");
        assert!(Serve::from_arg_matches(&matches).is_ok_and(|serve| serve.discovery));
    }

    #[test]
    fn an_address_that_others_reach_takes_another_command_line() {
        let check = |text: &str, allow| {
            check_remote(&text.parse().expect("it is an address"), allow, false)
                .map_err(|error| error.report())
        };
        for open in ["tcp:0.0.0.0:0", "tcp:[::]:0", "tcp:192.0.2.1:10809"] {
            let report = check(open, false).expect_err("others reach it");
            assert_eq!(report.exit_code, 2, "{open}");
            assert!(report.to_string().contains("--allow-remote"), "{report}");
            assert!(!report.to_string().contains("NVMe"), "it is an NBD server: {report}");
            assert_eq!(check(open, true), Ok(()), "{open}");
        }
        for closed in ["tcp:127.0.0.1:0", "tcp:[::1]:0", "unix:/run/x.sock"] {
            assert_eq!(check(closed, false), Ok(()), "{closed}");
        }
    }
}
