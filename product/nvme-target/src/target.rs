//! The NVMe/TCP target: volumes as subsystems behind a `net` server.

use super::auth::Keys;
use super::conversation::Conversation;
use super::discovery::Elsewhere;
use super::front::Front;
use super::identity::subsystem_name;
use super::subsystem::Subsystem;
use coulter::service::BlockService;
use coulter_attach::point::{AttachPoint, Detach, DetachError};
use coulter_net::{
    Address, Budget, CloseReason, Conduct, Connection, Event, Listener, Protocol, ServeError,
    SocketServer, Standing, Statistics, Stop,
};
use coulter_nvme::fabrics::DISCOVERY_NQN;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// How long a host that is just leaving may take, before it counts as a user.
const BUSY_PATIENCE: Duration = Duration::from_secs(1);
/// The largest queue: 1023 commands at a time.
const QUEUE_SIZE_MAX: u32 = 1024;

/// A volume that is served.
#[derive(Clone)]
pub struct Disk {
    /// The blocks.
    pub service: Arc<dyn BlockService>,
    /// Refuse writes whatever the service allows.
    pub read_only: bool,
    /// Bytes of a block: 4096, or 512 for hosts that know no other.
    pub block_size: u32,
}

/// How a target behaves.
#[derive(Clone)]
pub struct TargetOptions {
    /// Connections at a time. A host has one, and one for each of its I/O queues.
    pub connections_max: usize,
    /// Slots of a queue, 2 to 1024: commands at a time and one.
    pub queue_size_max: u32,
    /// I/O queues of a host.
    pub io_queues_max: u16,
    /// Bytes of buffers of an I/O queue, besides those for data in capsules; 4 MiB at least.
    pub queue_memory_max: usize,
    /// The same of all queues together; 8 MiB at least. Hosts that never take their data cannot
    /// make the target hold more, and leave a part of it to others.
    pub memory_max: usize,
    /// The host is the kernel that this process runs on, which sends most when it is short of memory:
    /// all buffers are there from the start. No other host is let in, and there is no discovery
    /// service.
    pub own_kernel: bool,
    /// Time that a host has to connect.
    pub handshake_timeout: Duration,
    /// Time that a host has to take its last answers when the target ends.
    pub shutdown_timeout: Duration,
    /// Listen on addresses that other machines reach, without keys too.
    pub allow_remote: bool,
    /// Hosts that are let in, to the discovery service too, and the keys by which they are
    /// known; none for any host.
    pub keys: Option<Arc<Keys>>,
    /// Subsystems at other ports, for the discovery log.
    pub others: Vec<Elsewhere>,
    /// Told of connections that come and go, from the target's threads.
    pub observer: Option<Arc<dyn Fn(Event) + Send + Sync>>,
}

impl Default for TargetOptions {
    fn default() -> TargetOptions {
        TargetOptions {
            connections_max: 128,
            queue_size_max: 128,
            io_queues_max: 8,
            queue_memory_max: 16 << 20,
            memory_max: 256 << 20,
            own_kernel: false,
            handshake_timeout: Duration::from_secs(30),
            shutdown_timeout: Duration::from_secs(5),
            allow_remote: false,
            keys: None,
            others: Vec::new(),
            observer: None,
        }
    }
}

/// NVMe, and what a connection needs to know of its target.
pub(super) struct Nvme {
    pub(super) subsystems: Vec<Arc<Subsystem>>,
    /// None if nothing can be discovered.
    pub(super) discovery: Option<Arc<Subsystem>>,
    /// Memory of all I/O queues.
    pub(super) budget: Arc<Budget>,
    pub(super) options: TargetOptions,
}

impl Nvme {
    pub(super) fn new(
        subsystems: Vec<Arc<Subsystem>>,
        discovery: Option<Arc<Subsystem>>,
        options: TargetOptions,
    ) -> Nvme {
        let budget = Arc::new(Budget::new(options.memory_max, options.connections_max));
        Nvme { subsystems, discovery, budget, options }
    }
}

impl Protocol for Nvme {
    const NAME: &'static str = "nvme";

    fn serve(&self, socket: &OwnedFd, stop: &Stop, standing: &Standing) -> CloseReason {
        let local = match local_address(socket) {
            Ok(local) => local,
            Err(error) => return CloseReason::Io(error),
        };
        Connection::new(socket, stop, Conversation::new(self, standing, local)).run()
    }
}

fn local_address(socket: &OwnedFd) -> io::Result<Address> {
    let name = SocketAddr::try_from(rustix::net::getsockname(socket)?)?;
    Ok(Address::Tcp { host: name.ip().to_canonical().to_string(), port: name.port() })
}

/// A running target. Dropping it shuts it down.
pub struct Target(SocketServer<Nvme>);

impl Target {
    /// Starts to serve `disks` at `address`, with a discovery service beside them.
    ///
    /// # Errors
    /// When it cannot listen there, or an option makes no sense.
    pub fn start(
        address: &Address,
        disks: Vec<Disk>,
        options: TargetOptions,
    ) -> Result<Target, ServeError> {
        if matches!(address, Address::Unix(_)) {
            return Err(ServeError::Options("NVMe is spoken over TCP only: tcp:ADDRESS:PORT"));
        }
        check(&disks, &options)?;
        let listener = Listener::bind(address, 0, options.allow_remote || options.keys.is_some())?;
        Target::listen_on(listener, disks, options)
    }

    /// The same on a socket that listens already.
    ///
    /// # Errors
    /// When it does not, or an option makes no sense.
    pub fn resume(
        socket: OwnedFd,
        disks: Vec<Disk>,
        options: TargetOptions,
    ) -> Result<Target, ServeError> {
        check(&disks, &options)?;
        Target::listen_on(Listener::adopt(socket, false, 0)?, disks, options)
    }

    fn listen_on(
        listener: Listener,
        disks: Vec<Disk>,
        options: TargetOptions,
    ) -> Result<Target, ServeError> {
        let conduct = Conduct {
            connections_max: options.connections_max,
            own_kernel_only: options.own_kernel,
            shutdown_timeout: options.shutdown_timeout,
            observer: options.observer.clone(),
        };
        let mut random = [0; 2];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| ServeError::System(error.into()))?;
        // A host refuses a controller with the number of one that it still has from before a restart.
        let first = u16::from_le_bytes(random);
        let subsystem = |disk: Disk| {
            let front = Front::new(disk.service, disk.read_only, disk.block_size);
            let nqn = subsystem_name(front.identity());
            Arc::new(Subsystem::new(nqn, Some(front), first))
        };
        let discovery = || Arc::new(Subsystem::new(DISCOVERY_NQN.to_owned(), None, first));
        let discovery = (!options.own_kernel).then(discovery);
        let subsystems = disks.into_iter().map(subsystem).collect();
        let nvme = Nvme::new(subsystems, discovery, options);
        Ok(Target(SocketServer::start(listener, nvme, conduct)?))
    }

    /// Where it listens; with the port that the system chose, if it was asked to.
    pub fn address(&self) -> &Address {
        self.0.address()
    }

    /// The names of its subsystems.
    pub fn names(&self) -> Vec<String> {
        self.0.protocol().subsystems.iter().map(|subsystem| subsystem.nqn.clone()).collect()
    }

    /// What it has seen so far.
    pub fn statistics(&self) -> Statistics {
        self.0.statistics()
    }

    /// Stops listening, finishes what hosts have asked for, and hangs up on them. They come back, if they
    /// are told nothing else.
    pub fn shutdown(&mut self) {
        self.0.shutdown();
    }

    fn hosts(&self) -> Vec<String> {
        self.0.protocol().subsystems.iter().flat_map(|subsystem| subsystem.hosts()).collect()
    }
}

impl AttachPoint for Target {
    fn kind(&self) -> &'static str {
        "nvme"
    }

    fn address(&self) -> String {
        let names = self.names();
        format!("nvme+{}/{}", self.address(), names.first().map_or(DISCOVERY_NQN, |name| name))
    }

    fn detach(&mut self, how: Detach) -> Result<(), DetachError> {
        if how == Detach::IfIdle {
            self.0.wait_for_clients(BUSY_PATIENCE);
            let hosts = self.hosts();
            if !hosts.is_empty() {
                let holders = hosts.into_iter().map(|host| format!("NVMe host {host}")).collect();
                return Err(DetachError::Busy { address: AttachPoint::address(self), holders });
            }
        }
        self.shutdown();
        Ok(())
    }

    /// Hosts are hung up on, once what they had asked for is done; they come back by themselves.
    fn hand_over(&mut self) -> io::Result<OwnedFd> {
        self.0.hand_over()
    }
}

fn check(disks: &[Disk], options: &TargetOptions) -> Result<(), ServeError> {
    if !(2..=QUEUE_SIZE_MAX).contains(&options.queue_size_max) {
        return Err(ServeError::Options("a queue has 2 to 1024 slots"));
    }
    if options.io_queues_max == 0 {
        return Err(ServeError::Options("a host needs an I/O queue"));
    }
    if options.queue_memory_max < 4 << 20 {
        return Err(ServeError::Options("an I/O queue needs at least 4 MiB of buffers"));
    }
    if options.memory_max < 8 << 20 {
        return Err(ServeError::Options("a target needs at least 8 MiB of buffers"));
    }
    if disks.iter().any(|disk| !matches!(disk.block_size, 512 | 4096)) {
        return Err(ServeError::Options("a block has 512 or 4096 bytes"));
    }
    Ok(())
}
