//! An NVMe namespace by commands of our own, handed to the drive by io_uring (`URING_CMD` on `/dev/ngXnY`):
//! the kernel's block layer is left out, and what the drive gets is what is written here.
//!
//! The block device of the namespace is held open meanwhile, for its lock: nobody can mount it, or open it
//! for himself. Its page cache plays no part.
//!
//! What it does not do: partitions, metadata, blocks of more than 4096 bytes. A caller falls back to the
//! block device then, and can say why.
//!
//! Invariants:
//! - a command that is longer than the drive takes goes there in pieces, one after the other: the kernel
//!   splits nothing of what is passed through;
//! - discards go to the drive together, up to 256 ranges in one command, before the device sleeps or returns;
//! - a status of the drive that says nothing was done is tried again for reads only; a failed write or flush is
//!   told once.

mod flights;
mod namespace;
mod placement;

use crate::command::{Command, CommandKind, Completion, Properties, Region};
use crate::medium::Target;
use crate::ring::{Encoder, Ring, RingDevice, setups};
use flights::Flights;
use io_uring::{cqueue, squeue};
use namespace::Namespace;
use std::io;
use std::os::fd::RawFd;

/// An NVMe namespace by commands of our own. Made by [`open_path`](crate::open_path).
pub(crate) type PassthroughDevice = RingDevice<DriveEncoder>;

/// The entries of a drive.
pub(crate) struct DriveEncoder {
    flights: Flights,
    /// Discards that go to the drive together.
    discards: Vec<Command>,
    namespace: Namespace,
    /// Held for its lock.
    target: Target,
}

impl PassthroughDevice {
    /// A device on the namespace behind a block device; gives the target back, with the reason, if that
    /// cannot be had.
    pub(crate) fn on(
        target: Target,
        queue_depth: usize,
    ) -> Result<PassthroughDevice, (Target, String)> {
        let namespace = match Namespace::open(&target) {
            Ok(namespace) => namespace,
            Err(reason) => return Err((target, reason)),
        };
        let shape = *namespace.shape();
        let mut properties = target.properties("NVMe passthrough", queue_depth, None);
        properties.alignment = shape.block_size();
        properties.volatile_cache = shape.volatile_cache;
        properties.discard = shape.discard && !properties.read_only;
        let handles = shape.placement.count();
        let placed = format!("its writes go to {handles} placement handles");
        properties.note = target.note((handles > 0).then_some(placed));
        properties.assert_consistent();
        let flights = Flights::new(queue_depth, shape);
        let encoder = DriveEncoder { flights, discards: Vec::new(), namespace, target };
        PassthroughDevice::new(encoder, properties, &setups())
            .map_err(|(encoder, error)| (encoder.target, error.to_string()))
    }
}

impl Encoder for DriveEncoder {
    type Entry = squeue::Entry128;
    type Answer = cqueue::Entry32;

    fn fd(&self) -> RawFd {
        self.namespace.fd()
    }

    #[inline]
    fn in_flight(&self) -> usize {
        self.flights.count()
    }

    #[inline]
    fn is_void(&self, command: &Command, properties: &Properties) -> bool {
        match command.kind {
            CommandKind::Discard => !properties.discard,
            CommandKind::Prepare => true,
            CommandKind::Flush => !properties.volatile_cache,
            CommandKind::Read | CommandKind::Write => false,
        }
    }

    fn start(&mut self, command: Command) -> Option<squeue::Entry128> {
        if command.kind == CommandKind::Discard {
            self.discards.push(command);
            return None;
        }
        Some(self.flights.start(command))
    }

    #[inline]
    fn gathered(&self) -> usize {
        self.discards.len()
    }

    fn start_gathered(&mut self) -> Option<squeue::Entry128> {
        (!self.discards.is_empty()).then(|| self.flights.start_discards(&mut self.discards))
    }

    fn forget_gathered(&mut self) {
        self.discards.clear();
    }

    fn settle(
        &mut self,
        number: u64,
        answer: i32,
        out: &mut Vec<Completion>,
    ) -> Option<squeue::Entry128> {
        self.flights.settle(number, answer, out)
    }

    /// Passed-through commands carry plain addresses: kernels took registered memory for them
    /// late, and in parts.
    unsafe fn register(
        &mut self,
        _: &mut Ring<squeue::Entry128, cqueue::Entry32>,
        _: &[Region],
        _: &mut Properties,
    ) -> io::Result<()> {
        Ok(())
    }

    fn leak(&mut self) {
        self.flights.leak_ranges();
    }
}
