//! An NVMe/TCP initiator that is a [`Session`]: whatever speaks to a volume can speak to a target instead.
//! It needs nothing of the kernel but sockets, and is there to test the target with, so what it decides it
//! decides by itself.
//!
//! # What it does not do
//! It does not reconnect, and does not split: a request is one command, of [`Initiator::transfer_size_max`]
//! bytes at most, a multiple of blocks. It gives a sign of life only when it is asked to.
//!
//! # Invariants
//! - No bytes of a target make it panic; those that make no sense end the connection.
//! - Every request completes once, its buffer with it, whatever the target does.

mod channel;
mod error;
mod outcome;
mod prover;

pub use channel::{Channel, Finished};
pub use error::InitiatorError;

use coulter::buffer::Buffer;
use coulter::service::{Completion, Operation, Request, RequestError, Session};
use coulter_net::Address;
use coulter_nvme::auth::{Group, Hash};
use coulter_nvme::discovery::{self, ENTRY_SIZE, Entry};
use coulter_nvme::fabrics::{self, CNTLID_ANY, Connect, ConnectData, csts, property};
use coulter_nvme::identify::{ControllerView, Namespace, cns};
use coulter_nvme::log::{GetLog, page};
use coulter_nvme::opcode::{admin, io};
use coulter_nvme::range::{self, Range};
use coulter_nvme::sqe::{self, SQE_SIZE};
use coulter_nvme::tcp::Digests;
use coulter_nvme::{Cqe, IDENTIFY_SIZE, Sqe, Status};
use coulter_nvme_target::{Secret, host_name};
use prover::prove;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// The bits of a result of Connect that ask for a proof.
const PROOF_REQUIRED: u32 = 3 << 17;
/// The namespace that is used.
const NSID: u32 = 1;

/// How an initiator proves who it is, to a target that wants to know.
#[derive(Clone, Debug)]
pub struct Authentication {
    /// The key of this host.
    pub secret: Secret,
    /// The key of the controller, which is to prove that it knows it.
    pub controller: Option<Secret>,
    /// What is offered, the best first.
    pub hashes: Vec<Hash>,
    /// What is offered, the best first.
    pub groups: Vec<Group>,
}

/// What an initiator asks for.
#[derive(Clone, Debug)]
pub struct InitiatorOptions {
    /// The subsystem.
    pub subsystem: String,
    /// The name of this host.
    pub host: String,
    /// The identity of this host.
    pub host_id: [u8; 16],
    /// Digests of headers and data.
    pub digests: Digests,
    /// Slots of the I/O queue.
    pub queue_size: u32,
    /// Do without reports of how far the target has come.
    pub flow_control_disabled: bool,
    /// The proof, for targets that ask for one.
    pub authentication: Option<Authentication>,
    /// Promised time between signs of life; zero for none.
    pub keep_alive: Duration,
    /// Time for anything that is waited for.
    pub timeout: Duration,
}

impl InitiatorOptions {
    /// For a subsystem, as a host whose identity is all of this byte.
    pub fn new(subsystem: impl Into<String>, host: u8) -> InitiatorOptions {
        InitiatorOptions {
            subsystem: subsystem.into(),
            host: host_name(&[host; 16]),
            host_id: [host; 16],
            digests: Digests::default(),
            queue_size: 128,
            flow_control_disabled: false,
            authentication: None,
            keep_alive: Duration::ZERO,
            timeout: Duration::from_secs(30),
        }
    }

    fn connect_data(&self, cntlid: u16) -> [u8; fabrics::CONNECT_DATA_SIZE] {
        ConnectData { host_id: self.host_id, cntlid, subsystem: &self.subsystem, host: &self.host }
            .encode()
    }
}

impl InitiatorOptions {
    /// Proves who this host is, if the answer to Connect asks for it.
    fn prove(&self, channel: &mut Channel, connected: &Cqe) -> Result<(), InitiatorError> {
        let is_asked = connected.result32() & PROOF_REQUIRED != 0;
        match &self.authentication {
            _ if !is_asked => Ok(()),
            Some(options) => prove(channel, options, &self.host, &self.subsystem),
            None => Err(InitiatorError::Protocol("the target wants a proof, and there is no key")),
        }
    }
}

/// A controller of a target, with one I/O queue.
pub struct Initiator {
    /// The admin queue.
    pub admin: Channel,
    /// The I/O queue.
    pub io: Channel,
    /// The number of the controller.
    pub cntlid: u16,
    address: Address,
    options: InitiatorOptions,
    namespace: Namespace,
    transfer_size_max: u64,
    finished: Vec<Finished>,
    /// Requests that never reached the target.
    failed: Vec<Completion>,
    requests: Vec<Option<(u64, Operation)>>,
}

/// Connects an admin queue: its channel, and the number of the controller.
///
/// # Errors
/// When the target cannot be reached, or refuses.
pub fn connect_admin(
    address: &Address,
    options: &InitiatorOptions,
) -> Result<(Channel, u16), InitiatorError> {
    let mut channel = Channel::open(address, options.digests, options.timeout)?;
    let connect = Connect {
        format: 0,
        queue_id: 0,
        queue_size: 32,
        flow_control_disabled: false,
        keep_alive_ms: options.keep_alive.as_millis() as u32,
    };
    let cqe = channel.send(connect.encode(), &options.connect_data(CNTLID_ANY))?;
    options.prove(&mut channel, &cqe)?;
    Ok((channel, cqe.result as u16))
}

/// Enables a controller, and waits until it is ready.
///
/// # Errors
/// When the target refuses.
pub fn enable(channel: &mut Channel) -> Result<(), InitiatorError> {
    channel.send(fabrics::property_set(property::CC, 0x0046_0001), &[])?;
    let status = channel.send(fabrics::property_get(property::CSTS, false), &[])?;
    match status.result32() & csts::READY {
        0 => Err(InitiatorError::Protocol("the controller does not become ready")),
        _ => Ok(()),
    }
}

/// What a discovery service at `address` knows: names and addresses of subsystems.
///
/// # Errors
/// When it cannot be reached, refuses, or tells nonsense.
pub fn discover(
    address: &Address,
    options: &InitiatorOptions,
) -> Result<Vec<(String, Address)>, InitiatorError> {
    let subsystem = fabrics::DISCOVERY_NQN.to_owned();
    let options = InitiatorOptions { subsystem, ..options.clone() };
    let (mut channel, _) = connect_admin(address, &options)?;
    enable(&mut channel)?;
    let mut log = |offset, length| {
        let asked = GetLog { page: page::DISCOVERY, retains_event: false, length, offset };
        channel.fetch(asked.encode(), length as usize)
    };
    let header = log(0, ENTRY_SIZE as u64)?;
    let nonsense = InitiatorError::Protocol("the discovery log makes no sense");
    let (_, count) = discovery::decode_header(&header).ok_or(nonsense)?;
    let mut found = Vec::new();
    for index in 1..=count.min(64) {
        let bytes = log(index * ENTRY_SIZE as u64, ENTRY_SIZE as u64)?;
        let entry = Entry::decode(&bytes);
        let entry = entry.ok_or(InitiatorError::Protocol("a discovery entry makes no sense"))?;
        let port = entry.port.parse();
        let port = port.map_err(|_| InitiatorError::Protocol("a port is no number"))?;
        let address = Address::Tcp { host: entry.address.to_owned(), port };
        found.push((entry.subsystem.to_owned(), address));
    }
    Ok(found)
}

impl Initiator {
    /// Connects to a subsystem: an admin queue, and an I/O queue.
    ///
    /// # Errors
    /// When the target cannot be reached, or refuses.
    pub fn connect(
        address: &Address,
        options: &InitiatorOptions,
    ) -> Result<Initiator, InitiatorError> {
        let (mut admin, cntlid) = connect_admin(address, options)?;
        enable(&mut admin)?;
        let identified = |admin: &mut Channel, nsid, cns: u8| {
            let sqe = Sqe::new(admin::IDENTIFY, nsid).with_dword(10, cns.into());
            let bytes = admin.fetch(sqe, IDENTIFY_SIZE)?;
            Ok::<_, InitiatorError>(Box::new(*bytes.first_chunk().expect("it was asked for")))
        };
        let controller: Box<[u8; IDENTIFY_SIZE]> = identified(&mut admin, 0, cns::CONTROLLER)?;
        let view = ControllerView(&controller);
        if view.cntlid() != cntlid {
            return Err(InitiatorError::Protocol("the controller has two numbers"));
        }
        let queues = Sqe::new(admin::SET_FEATURES, 0).with_dword(10, 7).with_dword(11, 0);
        admin.send(queues, &[])?;
        let namespace: Box<[u8; IDENTIFY_SIZE]> = identified(&mut admin, NSID, cns::NAMESPACE)?;
        let unusable = InitiatorError::Protocol("the namespace cannot be used");
        let namespace = Namespace::decode(&namespace).ok_or(unusable)?;
        let transfer_size_max = view.transfer_size_max().unwrap_or(128 << 10);
        let mut io = Initiator::connect_queue(address, options, cntlid, 1)?;
        // As Linux does: some targets know no other way for data that would fit.
        let in_capsule = view.command_capsule_size().saturating_sub(SQE_SIZE as u64);
        io.set_in_capsule_max(in_capsule as usize);
        let requests = vec![None; io.slot_count()];
        let (finished, failed) = (Vec::new(), Vec::new());
        let (address, options) = (address.clone(), options.clone());
        Ok(Initiator {
            admin,
            io,
            cntlid,
            address,
            options,
            namespace,
            transfer_size_max,
            finished,
            failed,
            requests,
        })
    }

    /// Connects an I/O queue of a controller.
    ///
    /// # Errors
    /// When the target cannot be reached, or refuses.
    pub fn connect_queue(
        address: &Address,
        options: &InitiatorOptions,
        cntlid: u16,
        queue_id: u16,
    ) -> Result<Channel, InitiatorError> {
        let mut channel = Channel::open(address, options.digests, options.timeout)?;
        let connect = Connect {
            format: 0,
            queue_id,
            queue_size: options.queue_size,
            flow_control_disabled: options.flow_control_disabled,
            keep_alive_ms: 0,
        };
        channel.set_queue_size(options.queue_size);
        let cqe = channel.send(connect.encode(), &options.connect_data(cntlid))?;
        options.prove(&mut channel, &cqe)?;
        Ok(channel)
    }

    /// Connects another I/O queue of this controller.
    ///
    /// # Errors
    /// When the target refuses.
    pub fn connect_another(&self, queue_id: u16) -> Result<Channel, InitiatorError> {
        Initiator::connect_queue(&self.address, &self.options, self.cntlid, queue_id)
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.namespace.block_count << self.namespace.block_size_log
    }

    /// What the namespace is like.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Bytes of the longest read or write.
    pub fn transfer_size_max(&self) -> u64 {
        self.transfer_size_max
    }

    /// The command for `request`, with what goes out with it.
    fn command(&self, request: &mut Request) -> Result<(Sqe, Buffer, Buffer), RequestError> {
        let log = self.namespace.block_size_log;
        let block = 1u64 << log;
        let Request { operation, offset, length, .. } = *request;
        if operation == Operation::Flush {
            return Ok((Sqe::new(io::FLUSH, NSID), Buffer::empty(), Buffer::empty()));
        }
        let count = u32::try_from(length >> log).unwrap_or(u32::MAX);
        let carries = matches!(operation, Operation::Read | Operation::Write { .. });
        let too_long =
            carries && length > self.transfer_size_max || length >> log > u64::from(u32::MAX);
        if !offset.is_multiple_of(block) || length % block != 0 || length == 0 || too_long {
            return Err(RequestError::Invalid);
        }
        let blocks = |opcode, count| Sqe::new(opcode, NSID).with_blocks(offset >> log, count);
        let fua = |fua| if fua { sqe::control::FUA } else { 0 };
        let with = |sqe: Sqe, bits| sqe.with_dword(12, sqe.dword(12) | bits);
        let buffer = std::mem::replace(&mut request.buffer, Buffer::empty());
        match operation {
            Operation::Read => Ok((blocks(io::READ, count), Buffer::empty(), buffer)),
            Operation::Write { fua: is_fua } => {
                Ok((with(blocks(io::WRITE, count), fua(is_fua)), buffer, Buffer::empty()))
            }
            Operation::WriteZeroes { fua: is_fua } if count <= 1 << 16 => {
                let bits = fua(is_fua) | sqe::control::DEALLOCATE;
                let sqe = with(blocks(io::WRITE_ZEROES, count), bits);
                Ok((sqe, Buffer::empty(), Buffer::empty()))
            }
            Operation::Discard => {
                let range = Range { slba: offset >> log, count };
                let sqe = Sqe::new(io::DATASET_MANAGEMENT, NSID).with_dword(11, range::DEALLOCATE);
                Ok((sqe, Buffer::copied_from(&range.encode()), Buffer::empty()))
            }
            _ => {
                request.buffer = buffer;
                Err(RequestError::Invalid)
            }
        }
    }

    fn take_finished(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.failed);
        for Finished { slot, outcome, buffer } in self.finished.drain(..) {
            let Some((tag, _)) = self.requests[slot].take() else { continue };
            let result = match outcome {
                Some(Cqe { status, .. }) if status.is_success() => Ok(()),
                Some(Cqe { status, .. }) => Err(outcome::to_request_error(status)),
                None => Err(RequestError::Closed),
            };
            out.push(Completion { tag, result, buffer, extents: Vec::new() });
        }
    }
}

impl Session for Initiator {
    fn submit(&mut self, mut request: Request) {
        let tag = request.tag;
        match self.command(&mut request) {
            Ok((sqe, outward, inward)) => {
                while self.io.is_full() {
                    self.io.poll(&mut self.finished, None);
                }
                let slot = self.io.submit(sqe, outward, inward);
                self.requests[slot] = Some((tag, request.operation));
            }
            Err(error) => self.failed.push(Completion {
                tag,
                result: Err(error),
                buffer: request.buffer,
                extents: Vec::new(),
            }),
        }
    }

    fn kick(&mut self) {
        self.io.flush();
    }

    fn complete(&mut self, out: &mut Vec<Completion>, timeout: Option<Duration>) {
        self.io.flush();
        let is_there = !self.failed.is_empty() || !self.finished.is_empty();
        let timeout = if is_there { Some(Duration::ZERO) } else { timeout };
        if self.io.outstanding() > 0 {
            self.io.poll(&mut self.finished, timeout);
        }
        self.take_finished(out);
    }

    fn completion_fd(&self) -> BorrowedFd<'_> {
        self.io.readable()
    }

    fn outstanding(&self) -> usize {
        self.io.outstanding() + self.finished.len() + self.failed.len()
    }
}

/// Whether a status is one of those that a test waits for.
pub fn is_status(outcome: &Result<Cqe, InitiatorError>, expected: Status) -> bool {
    matches!(outcome, Err(InitiatorError::Status(cqe)) if cqe.status.code_and_type() == expected)
}
