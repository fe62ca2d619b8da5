//! A device on an io_uring: queues, sleep and wake-up are the same for each kind of entry, and an
//! [`Encoder`] makes the entries.
//!
//! ```text
//! submit -> [waiting] -> ring's submission queue -> kernel -> completion queue -> poll's `out`
//!            only beyond queue_depth
//! ```
//! A wake from another thread arrives as the answer to a read of an event descriptor, which is
//! under way whenever the ring sleeps.
//!
//! Callers that sleep elsewhere are called by another event descriptor, which the kernel writes to
//! whenever there is an answer, or work that it has deferred. The ring's own descriptor would not
//! do: a sleeper on it is woken by answers, and deferred work gives none before some thread enters
//! the ring.
//!
//! It does not keep commands in any order, or wait for one before another.
//!
//! Invariants:
//! - at most `queue_depth` commands are with the kernel, so neither of the ring's queues can
//!   overflow;
//! - every entry's number is the encoder's number of a command, or [`EVENT`], or [`CANCEL`];
//! - memory that the kernel may still write to is never given up: `drop` waits.

mod kernel;

use crate::command::{Command, Completion, Properties, Region, Wait};
use crate::contract::Device;
use crate::event::Event;
use crate::read_source::ReadSource;
use crate::wake::{Awake, Deadline, Sleeper, Waker};
use io_uring::{cqueue, opcode, squeue, types};
pub(crate) use kernel::{Ring, Setup, setups};
use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// The file is registered with the ring, under this number.
pub(crate) const FILE: types::Fixed = types::Fixed(0);

/// The number of the read of the event descriptor.
const EVENT: u64 = u64::MAX;

/// The number of that read's cancellation.
const CANCEL: u64 = u64::MAX - 1;

/// Turns commands into entries of a ring, and answers into completions.
///
/// An encoder owns the commands that the kernel has, and the file that they go to.
pub(crate) trait Encoder: Send {
    /// An entry for the kernel.
    type Entry: squeue::EntryMarker;
    /// An answer of the kernel.
    type Answer: cqueue::EntryMarker;

    /// The file that the entries name as [`FILE`].
    fn fd(&self) -> RawFd;

    /// Number of commands that the kernel has.
    fn in_flight(&self) -> usize;

    /// True if there is nothing to do for `command`.
    fn is_void(&self, command: &Command, properties: &Properties) -> bool;

    /// Takes a command in. Returns the entry that starts it, or `None` if the encoder gathers such
    /// commands: [`Encoder::start_gathered`] starts them.
    fn start(&mut self, command: Command) -> Option<Self::Entry>;

    /// Number of gathered commands.
    fn gathered(&self) -> usize {
        0
    }

    /// Starts some of the gathered commands by one entry.
    fn start_gathered(&mut self) -> Option<Self::Entry> {
        None
    }

    /// Drops the gathered commands.
    fn forget_gathered(&mut self) {}

    /// Takes the kernel's answer to the entry `number`. Completions go to `out`; an entry is
    /// returned if it takes the command further.
    fn settle(
        &mut self,
        number: u64,
        answer: i32,
        out: &mut Vec<Completion>,
    ) -> Option<Self::Entry>;

    /// Changes the properties that answers of the kernel have changed.
    fn update(&self, _properties: &mut Properties) {}

    /// Registers memory with the ring, as far as the entries can use it.
    ///
    /// # Errors
    /// As [`Device::register`].
    ///
    /// # Safety
    /// As [`Device::register`].
    unsafe fn register(
        &mut self,
        ring: &mut Ring<Self::Entry, Self::Answer>,
        regions: &[Region],
        properties: &mut Properties,
    ) -> io::Result<()>;

    /// Leaks memory of the encoder's own that the kernel may still use.
    fn leak(&mut self) {}

    /// See [`Device::read_source`].
    fn read_source(&self) -> Option<ReadSource> {
        None
    }
}

/// A device on an io_uring. Made by [`open_path`](crate::open_path).
pub(crate) struct RingDevice<E: Encoder> {
    ring: Ring<E::Entry, E::Answer>,
    properties: Properties,
    /// Commands beyond the queue depth.
    waiting: VecDeque<Command>,
    /// Completions of commands that never reached the kernel.
    done: Vec<Completion>,
    sleeper: Sleeper,
    event: Arc<Event>,
    /// The kernel writes here when it reads the event descriptor.
    event_count: Box<u64>,
    /// True while that read is under way.
    is_listening: bool,
    /// True if the kernel calls those who sleep elsewhere.
    is_calling: bool,
    /// Its file stays open for as long as the ring uses it.
    encoder: E,
}

impl<E: Encoder> RingDevice<E> {
    /// A device with the file of `encoder` registered; gives the encoder back if the system refuses
    /// io_uring.
    pub(crate) fn new(
        encoder: E,
        properties: Properties,
        setups: &[Setup<E::Entry, E::Answer>],
    ) -> Result<RingDevice<E>, (E, io::Error)> {
        let queue_depth = properties.queue_depth;
        let (ring, event) = match make_ring(encoder.fd(), queue_depth, setups) {
            Ok(made) => made,
            Err(error) => return Err((encoder, error)),
        };
        Ok(RingDevice {
            ring,
            properties,
            waiting: VecDeque::new(),
            done: Vec::with_capacity(queue_depth),
            sleeper: Sleeper::with_event(event.clone()),
            event,
            event_count: Box::new(0),
            is_listening: false,
            is_calling: false,
            encoder,
        })
    }

    /// True if the kernel takes orders only from the thread that enabled the ring.
    #[cfg(all(test, feature = "conformance"))]
    pub(crate) fn is_single_issuer(&mut self) -> bool {
        self.ring.inner().params().is_setup_single_issuer()
    }

    #[inline]
    fn has_room(&self) -> bool {
        self.encoder.in_flight() < self.properties.queue_depth
    }

    /// Queues a command that the device has room for.
    ///
    /// # Safety
    /// As for [`Device::submit`].
    #[inline]
    unsafe fn start(&mut self, command: Command) {
        if self.encoder.is_void(&command, &self.properties) {
            self.done.push(Completion { tag: command.tag, result: Ok(()) });
            return;
        }
        if let Some(entry) = self.encoder.start(command) {
            // SAFETY: the caller's promise covers the command's memory.
            unsafe { self.ring.push(&entry) };
        }
    }

    /// Queues commands that waited for room, and the gathered ones.
    fn start_waiting(&mut self) {
        while self.has_room() {
            let Some(command) = self.waiting.pop_front() else { break };
            // SAFETY: promised when the command was submitted; it has not ended.
            unsafe { self.start(command) };
        }
        while self.encoder.gathered() > 0 && self.has_room() {
            let Some(entry) = self.encoder.start_gathered() else { break };
            // SAFETY: the encoder keeps the memory of the entry until its answer arrives.
            unsafe { self.ring.push(&entry) };
        }
    }

    /// Takes every answer that is there.
    fn take_answers(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.done);
        let (_, mut submission, mut completion) = self.ring.inner().split();
        completion.sync();
        for answer in &mut completion {
            let answer: cqueue::Entry = answer.into();
            match answer.user_data() {
                EVENT => self.is_listening = false,
                CANCEL => {}
                number => {
                    if let Some(entry) = self.encoder.settle(number, answer.result(), out) {
                        // SAFETY: promised when the command was submitted; it has not ended.
                        let pushed = unsafe { submission.push(&entry) };
                        assert!(pushed.is_ok(), "the ring has room for every command in flight");
                    }
                }
            }
        }
        drop(completion);
        drop(submission);
        self.encoder.update(&mut self.properties);
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
            // An answer to the event alone may be the echo of a wake that was taken before.
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
        while self.is_listening || self.encoder.in_flight() > 0 {
            self.ring.sleep(Wait::Forever)?;
            self.take_answers(&mut scratch);
        }
        Ok(())
    }
}

/// A ring with the file registered, and the event that wakes its sleeper.
fn make_ring<S: squeue::EntryMarker, C: cqueue::EntryMarker>(
    fd: RawFd,
    queue_depth: usize,
    setups: &[Setup<S, C>],
) -> io::Result<(Ring<S, C>, Arc<Event>)> {
    // One entry more for the event, and one for its cancellation.
    let mut ring = Ring::new(queue_depth + 2, setups)?;
    ring.inner().submitter().register_files(&[fd])?;
    Ok((ring, Arc::new(Event::blocking()?)))
}

// SAFETY: the kernel has done with a command when it completes it; a command that it wants again is
// completed after that; a drop waits for all that are under way.
unsafe impl<E: Encoder> Device for RingDevice<E> {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    unsafe fn register(&mut self, regions: &[Region]) -> io::Result<()> {
        let outstanding = self.encoder.in_flight() + self.encoder.gathered() + self.waiting.len();
        assert_eq!(outstanding, 0, "memory is registered between commands");
        // SAFETY: the caller's promises are the same.
        unsafe { self.encoder.register(&mut self.ring, regions, &mut self.properties) }
    }

    #[inline]
    unsafe fn submit(&mut self, command: Command) {
        if let Err(error) = self.properties.check(&command) {
            self.done.push(Completion { tag: command.tag, result: Err(error) });
        } else if self.waiting.is_empty() && self.has_room() {
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
        // The kernel calls for new answers, not for those that are there already. Nor does it call
        // for entries that it did not take, memory being short for a moment: the next poll hands
        // them over.
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

    fn read_source(&self) -> Option<ReadSource> {
        self.encoder.read_source()
    }
}

impl<E: Encoder> Drop for RingDevice<E> {
    fn drop(&mut self) {
        self.waiting.clear();
        self.encoder.forget_gathered();
        // Before its first use the kernel was never given anything.
        if self.ring.is_enabled() && self.drain().is_err() {
            // Dropped on a foreign thread: the kernel may yet write there.
            mem::forget(mem::take(&mut self.event_count));
            self.encoder.leak();
        }
        // The ring closes later than its descriptor; the file is not to stay open so long.
        let _ = self.ring.inner().submitter().unregister_files();
    }
}
