//! The discovery log: what a target serves, for hosts that may use it.
//!
//! A host that can read the log has come as far as a host that connects to the volume: to the
//! same address, and with a proof where hosts have keys. Other targets of this machine are not
//! told: each has hosts of its own.

use super::target::Nvme;
use coulter_net::Address;
use coulter_nvme::discovery::{ENTRY_SIZE, Entry, EntryKind, encode_header};
use coulter_nvme::fabrics::DISCOVERY_NQN;
use std::net::IpAddr;

/// A subsystem that is served at another port of the same address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// Its name.
    pub nqn: String,
    /// The port.
    pub port: u16,
}

/// The log, for a host that has come in at `local`: it can reach that address.
pub(super) fn log(nvme: &Nvme, local: &Address) -> Vec<u8> {
    let Address::Tcp { host, port: own } = local else { unreachable!("NVMe is served over TCP") };
    let mut records = vec![(EntryKind::Current, DISCOVERY_NQN, *own)];
    records.extend(nvme.subsystems.iter().map(|it| (EntryKind::Nvm, it.nqn.as_str(), *own)));
    records.extend(nvme.options.others.iter().map(|it| (EntryKind::Nvm, it.nqn.as_str(), it.port)));
    let is_ipv4 = host.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv4());
    let mut out = vec![0; ENTRY_SIZE * (1 + records.len())];
    let (header, entries) = out.split_at_mut(ENTRY_SIZE);
    for ((kind, subsystem, port), bytes) in records.iter().zip(entries.chunks_mut(ENTRY_SIZE)) {
        let port = &port.to_string();
        Entry { kind: *kind, is_ipv4, port, address: host, subsystem }.encode(bytes);
    }
    // The same log has the same generation, so that a host that reads it in parts sees that it is whole.
    let generation = coulter_nvme::digest::crc32c(entries);
    encode_header(generation.into(), records.len() as u64, header);
    out
}
