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
//! - as for the ring device: at most `queue_depth` commands are with the kernel, and memory that the kernel
//!   may still write to is never given up: `drop` waits;
//! - a command that is longer than the drive takes goes there in pieces, one after the other: the kernel
//!   splits nothing of what is passed through;
//! - discards go to the drive together, up to 256 ranges in one command, before the device sleeps or returns;
//! - a status of the drive that says nothing was done is tried again for reads only; a failed write or flush is
//!   told once.

mod flights;
mod namespace;
mod placement;

use crate::contract::{Command, CommandKind, Completion, Device, Properties, Region, Wait};
use crate::event::Event;
use crate::medium::Target;
use crate::uring::ring::{Ring, setups};
use crate::wake::{Awake, Deadline, Sleeper, Waker};
use flights::Flights;
use io_uring::{cqueue, opcode, squeue, types};
use namespace::Namespace;
use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

/// The number of the read of the event descriptor, and of its cancellation.
const EVENT: u64 = u64::MAX;
const CANCEL: u64 = u64::MAX - 1;

/// An NVMe namespace by commands of our own. Made by [`open_path`](crate::open_path).
pub(crate) struct PassthroughDevice {
    ring: Ring<squeue::Entry128, cqueue::Entry32>,
    flights: Flights,
    properties: Properties,
    /// Commands beyond the queue depth.
    waiting: VecDeque<Command>,
    /// Discards that go to the drive together.
    discards: Vec<Command>,
    /// Completions of commands that never reached the kernel.
    done: Vec<Completion>,
    sleeper: Sleeper,
    event: Arc<Event>,
    /// Where the kernel puts what it reads from the event descriptor.
    event_count: Box<u64>,
    /// Whether that read is under way.
    is_listening: bool,
    /// Whether the kernel calls those who sleep elsewhere.
    is_calling: bool,
    /// Open for as long as the ring uses it.
    _namespace: Namespace,
    /// Held for its lock.
    _target: Target,
}

impl PassthroughDevice {
    /// A device on the namespace behind a block device; gives the target back, with the reason, if that
    /// cannot be had.
    pub(crate) fn new(
        target: Target,
        queue_depth: usize,
    ) -> Result<PassthroughDevice, (Target, String)> {
        let made = Namespace::open(&target).and_then(|namespace| {
            let made = make_ring(&namespace, queue_depth);
            let (ring, sleeper, event) = made.map_err(|error| error.to_string())?;
            Ok((namespace, ring, sleeper, event))
        });
        let (namespace, ring, sleeper, event) = match made {
            Ok(made) => made,
            Err(reason) => return Err((target, reason)),
        };
        let mut properties = target.properties("NVMe passthrough", queue_depth, None);
        properties.alignment = namespace.shape().block_size();
        properties.volatile_cache = namespace.shape().volatile_cache;
        properties.discard = namespace.shape().discard && !properties.read_only;
        let handles = namespace.shape().placement.count();
        let placed = format!("its writes go to {handles} placement handles");
        properties.note = target.note((handles > 0).then_some(placed));
        properties.assert_consistent();
        Ok(PassthroughDevice {
            ring,
            flights: Flights::new(queue_depth, *namespace.shape()),
            properties,
            waiting: VecDeque::new(),
            discards: Vec::new(),
            done: Vec::with_capacity(queue_depth),
            sleeper,
            event,
            event_count: Box::new(0),
            is_listening: false,
            is_calling: false,
            _namespace: namespace,
            _target: target,
        })
    }

    /// Queues a command that the device has room for.
    ///
    /// # Safety
    /// As for [`Device::submit`].
    unsafe fn start(&mut self, command: Command) {
        let is_void = match command.kind {
            CommandKind::Discard => !self.properties.discard,
            CommandKind::Prepare => true,
            CommandKind::Flush => !self.properties.volatile_cache,
            CommandKind::Read | CommandKind::Write => false,
        };
        if is_void {
            self.done.push(Completion { tag: command.tag, result: Ok(()) });
            return;
        }
        if command.kind == CommandKind::Discard {
            self.discards.push(command);
            return;
        }
        let entry = self.flights.start(command);
        // SAFETY: the caller's promise covers the command's memory.
        unsafe { self.ring.push(&entry) };
    }

    /// Queues what was waiting for room, and the discards that have come together.
    fn start_waiting(&mut self) {
        while self.flights.count() < self.properties.queue_depth {
            let Some(command) = self.waiting.pop_front() else { break };
            // SAFETY: promised when the command was submitted; it has not ended.
            unsafe { self.start(command) };
        }
        while !self.discards.is_empty() && self.flights.count() < self.properties.queue_depth {
            let entry = self.flights.start_discards(&mut self.discards);
            // SAFETY: the ranges belong to the flights, which keep them until the answer is there.
            unsafe { self.ring.push(&entry) };
        }
    }

    /// Takes every answer that is there.
    fn take_answers(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.done);
        let (_, mut submission, mut completion) = self.ring.inner().split();
        completion.sync();
        for answer in &mut completion {
            match answer.user_data() {
                EVENT => self.is_listening = false,
                CANCEL => {}
                index => {
                    if let Some(entry) = self.flights.settle(index, answer.result(), out) {
                        // SAFETY: promised when the command was submitted; it has not ended.
                        let pushed = unsafe { submission.push(&entry) };
                        assert!(pushed.is_ok(), "the ring has room for every command in flight");
                    }
                }
            }
        }
    }

    /// Makes sure that the event descriptor is being read.
    fn listen(&mut self) {
        if self.is_listening {
            return;
        }
        let fd = types::Fd(self.event.as_raw_fd());
        let target: *mut u64 = &mut *self.event_count;
        let entry = opcode::Read::new(fd, target.cast(), 8).build().user_data(EVENT);
        // SAFETY: the memory lives until `drop`, which waits for the answer or leaks it.
        unsafe { self.ring.push(&entry.into()) };
        self.is_listening = true;
    }

    /// Sleeps until there is a completion, a wake, or time is over.
    fn sleep(&mut self, out: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        let (before, deadline) = (out.len(), Deadline::after(wait));
        loop {
            if self.sleeper.begin().is_some() {
                break;
            }
            self.listen();
            let slept = self.ring.sleep(deadline.left());
            let awake = self.sleeper.end();
            slept?;
            self.take_answers(out);
            self.start_waiting();
            let has_completions = out.len() > before || !self.done.is_empty();
            let is_over = has_completions || awake == Awake::Woken;
            if is_over || deadline.left() == Wait::No {
                break;
            }
        }
        self.ring.advance()?;
        self.take_answers(out);
        Ok(())
    }

    /// Waits until the kernel has nothing left that points to memory.
    fn drain(&mut self) -> io::Result<()> {
        if self.is_listening {
            let cancel = opcode::AsyncCancel::new(EVENT).build().user_data(CANCEL);
            // SAFETY: the entry points to nothing.
            unsafe { self.ring.push(&cancel.into()) };
        }
        let mut scratch = Vec::new();
        while self.is_listening || self.flights.count() > 0 {
            self.ring.sleep(Wait::Forever)?;
            self.take_answers(&mut scratch);
        }
        Ok(())
    }
}

type BigRing = Ring<squeue::Entry128, cqueue::Entry32>;

/// A ring with the namespace's file registered, and the means to be woken.
fn make_ring(
    namespace: &Namespace,
    queue_depth: usize,
) -> io::Result<(BigRing, Sleeper, Arc<Event>)> {
    // One entry more for the event, and one for its cancellation.
    let mut ring = BigRing::new(queue_depth + 2, &setups())?;
    ring.inner().submitter().register_files(&[namespace.fd()])?;
    let event = Arc::new(Event::blocking()?);
    Ok((ring, Sleeper::with_event(event.clone()), event))
}

// SAFETY: the kernel has done with a command when it completes it; a command that it wants again is
// completed after that; a drop waits for all that are under way.
unsafe impl Device for PassthroughDevice {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    /// What is passed through carries plain addresses: registered memory with it came late, and in parts.
    unsafe fn register(&mut self, _: &[Region]) -> io::Result<()> {
        let outstanding = self.flights.count() + self.waiting.len() + self.discards.len();
        assert_eq!(outstanding, 0, "memory is registered between commands");
        Ok(())
    }

    unsafe fn submit(&mut self, command: Command) {
        if let Err(error) = self.properties.check(&command) {
            self.done.push(Completion { tag: command.tag, result: Err(error) });
        } else if self.waiting.is_empty() && self.flights.count() < self.properties.queue_depth {
            // SAFETY: the caller's promises are the same.
            unsafe { self.start(command) };
        } else {
            self.waiting.push_back(command);
        }
    }

    fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        self.ring.enable()?;
        self.sleeper.disarm();
        let before = out.len();
        self.take_answers(out);
        self.start_waiting();
        let may_sleep = !matches!(wait, Wait::No) && out.len() == before && self.done.is_empty();
        if may_sleep {
            return self.sleep(out, wait);
        }
        self.ring.advance()?;
        self.take_answers(out);
        Ok(())
    }

    fn arm(&mut self) -> io::Result<BorrowedFd<'_>> {
        self.ring.enable()?;
        let call = self.sleeper.arm_event()?;
        if !self.is_calling {
            self.ring.inner().submitter().register_eventfd(call.as_raw_fd())?;
            self.is_calling = true;
        }
        self.start_waiting();
        self.ring.advance()?;
        let is_due = !self.done.is_empty() || self.ring.has_answers() || self.ring.has_queued();
        let call = self.sleeper.call().expect("it was armed");
        if is_due {
            call.ring();
        }
        Ok(call.as_fd())
    }

    fn waker(&self) -> Waker {
        self.sleeper.waker()
    }
}

impl Drop for PassthroughDevice {
    fn drop(&mut self) {
        self.waiting.clear();
        self.discards.clear();
        // Before its first use the kernel was never given anything.
        if self.ring.is_enabled() && self.drain().is_err() {
            // Dropped on a foreign thread: the kernel may yet write there.
            mem::forget(mem::take(&mut self.event_count));
            self.flights.leak_ranges();
        }
        // The ring closes later than its descriptor; the file is not to stay open so long.
        let _ = self.ring.inner().submitter().unregister_files();
    }
}
