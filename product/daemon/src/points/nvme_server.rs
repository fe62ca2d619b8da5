//! An NVMe/TCP target in front of a volume, with a discovery service that tells of this target
//! alone.

use super::kind::{Gives, Ground, Kind, Point};
use super::visitors::observer;
use crate::error::Error;
use crate::life::state::Entry;
use coulter::service::BlockService;
use coulter_attach::point::{AttachPoint, Detach, DetachError};
use coulter_net::{Address, ServeError};
use coulter_nvme_target::{Disk, Elsewhere, Keys, Target, TargetOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The port on which hosts look for a discovery service.
const DISCOVERY_PORT: u16 = 8009;

/// Its kind.
#[derive(Debug)]
pub struct NvmeServer;

impl Kind for NvmeServer {
    fn word(&self) -> &'static str {
        "nvme-server"
    }

    fn gives(&self) -> Gives {
        Gives::Address
    }
}

/// Where a target listens, and what hosts see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmePlace {
    /// Where.
    pub address: Address,
    /// Whether other machines may reach it.
    pub allow_remote: bool,
    /// Hosts that are let in; none for any host.
    pub keys: Option<Keys>,
    /// Whether a discovery service listens on the port that is kept for that, too.
    pub discovery: bool,
    /// Bytes of a block: 512 or 4096.
    pub block_size: u32,
    /// Commands of a queue at a time, and one.
    pub queue_size: u32,
    /// I/O queues of a host.
    pub queues: u16,
}

impl Point for NvmePlace {
    fn kind(&self) -> &'static dyn Kind {
        &NvmeServer
    }

    fn start(
        &self,
        ground: &Ground<'_>,
        service: Arc<dyn BlockService>,
    ) -> Result<Box<dyn AttachPoint>, Error> {
        let disks = vec![self.disk(ground.entry, service)];
        let target = Target::start(&self.address, disks, options(self))
            .and_then(|target| NvmeTarget::with_discovery(self, target));
        Ok(Box::new(target.map_err(|error| ground.not_served(error))?))
    }

    fn resume(
        &self,
        ground: &Ground<'_>,
        service: Arc<dyn BlockService>,
        descriptor: OwnedFd,
    ) -> Result<Box<dyn AttachPoint>, Error> {
        let disks = vec![self.disk(ground.entry, service)];
        let target = Target::resume(descriptor, disks, options(self))
            .and_then(|target| NvmeTarget::with_discovery(self, target));
        Ok(Box::new(target.map_err(|error| ground.not_served(error))?))
    }
}

impl NvmePlace {
    fn disk(&self, entry: &Entry, service: Arc<dyn BlockService>) -> Disk {
        Disk { service, read_only: entry.read_only, block_size: self.block_size }
    }
}

/// A target, and maybe a discovery service at the port that is kept for one.
struct NvmeTarget {
    target: Target,
    discovery: Option<Target>,
}

impl NvmeTarget {
    fn with_discovery(place: &NvmePlace, target: Target) -> Result<NvmeTarget, ServeError> {
        let discovery = match (place.discovery, target.address()) {
            (true, Address::Tcp { host, port }) => {
                let address = Address::Tcp { host: host.clone(), port: DISCOVERY_PORT };
                let told = |nqn| Elsewhere { nqn, port: *port };
                let others = target.names().into_iter().map(told).collect();
                let options = TargetOptions { others, ..options(place) };
                Some(Target::start(&address, Vec::new(), options)?)
            }
            _ => None,
        };
        Ok(NvmeTarget { target, discovery })
    }
}

impl AttachPoint for NvmeTarget {
    fn kind(&self) -> &'static str {
        self.target.kind()
    }

    fn address(&self) -> String {
        AttachPoint::address(&self.target)
    }

    fn detach(&mut self, how: Detach) -> Result<(), DetachError> {
        self.target.detach(how)?;
        self.discovery = None;
        Ok(())
    }

    fn hand_over(&mut self) -> io::Result<OwnedFd> {
        let socket = self.target.hand_over()?;
        self.discovery = None;
        Ok(socket)
    }
}

fn options(place: &NvmePlace) -> TargetOptions {
    TargetOptions {
        allow_remote: place.allow_remote,
        keys: place.keys.clone().map(Arc::new),
        queue_size_max: place.queue_size,
        io_queues_max: place.queues,
        observer: observer("nvme"),
        ..TargetOptions::default()
    }
}
