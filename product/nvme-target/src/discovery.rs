//! The discovery log: what is served here, and by others that are known.

use super::target::Nvme;
use coulter_net::Address;
use coulter_nvme::discovery::{ENTRY_SIZE, Entry, EntryKind, encode_header};
use coulter_nvme::fabrics::DISCOVERY_NQN;
use std::net::IpAddr;

/// A subsystem and where it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// Its name.
    pub nqn: String,
    /// A TCP address.
    pub address: Address,
}

/// The log, for a host that has come in at `local`: it can reach that address. The others are told if
/// it can reach them, too: a host of another machine does not hear of targets of the loopback.
pub(super) fn log(nvme: &Nvme, local: &Address) -> Vec<u8> {
    let mut records = vec![(EntryKind::Current, DISCOVERY_NQN.to_owned(), local.clone())];
    for subsystem in &nvme.subsystems {
        records.push((EntryKind::Nvm, subsystem.nqn.clone(), local.clone()));
    }
    if let Some(others) = &nvme.options.others {
        for other in others() {
            if records.iter().all(|(_, nqn, _)| *nqn != other.nqn) {
                records.push((EntryKind::Nvm, other.nqn, other.address));
            }
        }
    }
    let mut out = vec![0; ENTRY_SIZE * (1 + records.len())];
    let mut count = 0;
    for (kind, nqn, address) in &records {
        let Address::Tcp { host, port } = address else { continue };
        let Ok(ip) = host.parse::<IpAddr>() else { continue };
        if ip.is_loopback() && !is_near(local) {
            continue;
        }
        count += 1;
        Entry {
            kind: *kind,
            is_ipv4: ip.is_ipv4(),
            port: &port.to_string(),
            address: host,
            subsystem: nqn,
        }
        .encode(&mut out[ENTRY_SIZE * count..ENTRY_SIZE * (count + 1)]);
    }
    out.truncate(ENTRY_SIZE * (1 + count));
    // The same log has the same generation, so that a host that reads it in parts sees that it is whole.
    let generation = coulter_nvme::digest::crc32c(&out[ENTRY_SIZE..]);
    encode_header(generation.into(), count as u64, &mut out[..ENTRY_SIZE]);
    out
}

/// True if a host that has come in at this address is on this machine.
fn is_near(local: &Address) -> bool {
    let Address::Tcp { host, .. } = local else { return false };
    host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}
