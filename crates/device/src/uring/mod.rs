//! A file or a disk through io_uring.
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
//! do: who sleeps on it is woken by answers, and deferred work gives none before somebody enters
//! the ring.
//!
//! What it does not do: keep commands in any order, or wait for one before another.
//!
//! Invariants:
//! - at most `queue_depth` commands are with the kernel, so neither of the ring's queues can
//!   overflow;
//! - every entry's number is that of a slot, or [`EVENT`], or [`CANCEL`];
//! - memory that the kernel may still write to is never given up: `drop` waits.

mod flights;
mod pinned;
pub(crate) mod ring;

use crate::contract::{
    Command, CommandKind, Completion, Device, Prepare, Properties, Region, Wait,
};
use crate::event::Event;
use crate::medium::Target;
use crate::read_source::ReadSource;
use crate::wake::{Awake, Deadline, Sleeper, Waker};
use flights::{DiscardMethod, Flights, Outcome};
use io_uring::{opcode, types};
use pinned::Pinned;
use ring::{Ring, Setup, setups};
use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

/// The number of the read of the event descriptor.
const EVENT: u64 = u64::MAX;

/// The number of that read's cancellation.
const CANCEL: u64 = u64::MAX - 1;

/// A file or a disk through io_uring. Made by [`open_path`](crate::open_path).
pub struct UringDevice {
    ring: Ring,
    flights: Flights,
    properties: Properties,
    /// Commands beyond the queue depth.
    waiting: VecDeque<Command>,
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
    target: Target,
}

impl UringDevice {
    /// A device on a target; gives the target back if the system refuses io_uring.
    pub(crate) fn new(
        target: Target,
        queue_depth: usize,
    ) -> Result<UringDevice, (Target, io::Error)> {
        UringDevice::with_setups(target, queue_depth, &setups())
    }

    /// The same for threads that take turns.
    pub(crate) fn of_any_thread(
        target: Target,
        queue_depth: usize,
    ) -> Result<UringDevice, (Target, io::Error)> {
        UringDevice::with_setups(target, queue_depth, &setups()[1..])
    }

    fn with_setups(
        target: Target,
        queue_depth: usize,
        setups: &[Setup],
    ) -> Result<UringDevice, (Target, io::Error)> {
        match make_ring(&target, queue_depth, setups) {
            Ok((ring, sleeper, event)) => {
                let properties = target.properties("io_uring", queue_depth, None);
                let method = DiscardMethod::of(target.kind(), properties.discard);
                Ok(UringDevice {
                    ring,
                    flights: Flights::new(
                        queue_depth,
                        target.kind(),
                        target.alignment(),
                        method,
                        target.prepare(),
                    ),
                    properties,
                    waiting: VecDeque::new(),
                    done: Vec::with_capacity(queue_depth),
                    sleeper,
                    event,
                    event_count: Box::new(0),
                    is_listening: false,
                    is_calling: false,
                    target,
                })
            }
            Err(error) => Err((target, error)),
        }
    }

    /// Queues a command that the device has room for.
    ///
    /// # Safety
    /// As for [`Device::submit`].
    #[inline]
    unsafe fn start(&mut self, command: Command) {
        let is_void = match command.kind {
            CommandKind::Discard => !self.properties.discard,
            CommandKind::Prepare => !self.has_to_prepare(&command),
            _ => false,
        };
        if is_void {
            self.done.push(Completion { tag: command.tag, result: Ok(()) });
            return;
        }
        let entry = self.flights.start(command);
        // SAFETY: the caller's promise covers the command's memory.
        unsafe { self.ring.push(&entry) };
    }

    /// Whether there is anything to do for a command that prepares a range.
    fn has_to_prepare(&self, command: &Command) -> bool {
        match self.target.prepare() {
            Prepare::Nothing => false,
            Prepare::Blocks => self.target.has_hole(command.offset, command.length),
            Prepare::Space => true,
        }
    }

    /// Queues what was waiting for room.
    fn start_waiting(&mut self) {
        while self.flights.count() < self.properties.queue_depth {
            let Some(command) = self.waiting.pop_front() else { break };
            // SAFETY: promised when the command was submitted; it has not ended.
            unsafe { self.start(command) };
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
                index => match self.flights.settle(index, answer.result()) {
                    Outcome::Ended(completion) => out.push(completion),
                    Outcome::Further(entry) => {
                        // SAFETY: promised when the command was submitted; it has not ended.
                        let pushed = unsafe { submission.push(&entry) };
                        assert!(pushed.is_ok(), "the ring has room for every command in flight");
                    }
                },
            }
        }
        drop(completion);
        drop(submission);
        if self.flights.method() == DiscardMethod::Nothing {
            self.properties.discard = false;
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
        unsafe { self.ring.push(&entry) };
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
            unsafe { self.ring.push(&cancel) };
        }
        let mut scratch = Vec::new();
        while self.is_listening || self.flights.count() > 0 {
            self.ring.sleep(Wait::Forever)?;
            self.take_answers(&mut scratch);
        }
        Ok(())
    }
}

/// A ring with the target's file registered, and the means to be woken.
fn make_ring(
    target: &Target,
    queue_depth: usize,
    setups: &[Setup],
) -> io::Result<(Ring, Sleeper, Arc<Event>)> {
    // One entry more for the event, and one for its cancellation.
    let mut ring = Ring::new(queue_depth + 2, setups)?;
    ring.inner().submitter().register_files(&[target.fd()])?;
    let event = Arc::new(Event::blocking()?);
    Ok((ring, Sleeper::with_event(event.clone()), event))
}

// SAFETY: the kernel has done with a command when it completes it; a command that it wants again is
// completed after that; a drop waits for all that are under way.
unsafe impl Device for UringDevice {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    unsafe fn register(&mut self, regions: &[Region]) -> io::Result<()> {
        let outstanding = self.flights.count() + self.waiting.len();
        assert_eq!(outstanding, 0, "memory is registered between commands");
        let submitter = self.ring.inner().submitter();
        if !self.flights.pinned.is_empty() {
            submitter.unregister_buffers()?;
            self.flights.pinned = Pinned::default();
        }
        let pieces = Pinned::pieces(regions);
        if pieces.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller promises that the memory stays until the next call or the drop, which
        // unregisters or closes the ring.
        match unsafe { submitter.register_buffers(&pieces) } {
            Ok(()) => {
                self.flights.pinned = Pinned::of(&pieces);
                self.properties.note = self.target.note(None);
            }
            // Another thread than the one that the ring belongs to.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => return Err(error),
            // It cannot be pinned; commands will carry plain addresses.
            Err(error) => {
                let note = format!("memory is not registered with the kernel: {error}");
                self.properties.note = self.target.note(Some(note));
            }
        }
        Ok(())
    }

    #[inline]
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
        // The kernel calls when it gets something, not because it has something. Nor does it call for
        // what it did not take, memory being short for a moment: that waits for the next poll.
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
        ReadSource::of(&self.target)
    }
}

impl Drop for UringDevice {
    fn drop(&mut self) {
        self.waiting.clear();
        // Before its first use the kernel was never given anything.
        if self.ring.is_enabled() && self.drain().is_err() {
            // Dropped on a foreign thread: the kernel may yet write there.
            mem::forget(mem::take(&mut self.event_count));
        }
        // The ring closes later than its descriptor; the file is not to stay open so long.
        let _ = self.ring.inner().submitter().unregister_files();
    }
}

impl std::fmt::Debug for UringDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UringDevice")
            .field("properties", &self.properties)
            .field("in_flight", &self.flights.count())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "conformance"))]
mod tests {
    use super::*;
    use crate::conformance::{self, Access, SIZE_MIN};
    use crate::open::OpenOptions;
    use crate::open_error::OpenError;
    use std::path::PathBuf;
    use std::time::Duration;
    use std::{env, fs, process, thread};

    struct TemporaryFile(PathBuf);

    impl Drop for TemporaryFile {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_foreign_thread_is_told_and_its_drop_frees_the_file() {
        let path = env::temp_dir().join(format!("coulter-foreign-{}", process::id()));
        let file = TemporaryFile(path);
        fs::File::create(&file.0).and_then(|file| file.set_len(SIZE_MIN)).expect("room for a file");
        let open = || {
            let target = Target::open(&file.0, &OpenOptions::default());
            UringDevice::new(target.expect("nothing has it open"), 32).ok()
        };
        let Some(mut device) = open() else { return };
        let mut completions = Vec::new();
        let nap = Wait::For(Duration::from_millis(1));
        device.poll(&mut completions, nap).expect("this thread is the first");
        let is_single_issuer = device.ring.inner().params().is_setup_single_issuer();
        let thread = thread::spawn(move || {
            let outcome = device.poll(&mut completions, nap);
            // SAFETY: no memory is given.
            let registered = unsafe { device.register(&[]) };
            assert!(registered.is_ok(), "there is nothing to undo");
            if is_single_issuer {
                let error = outcome.expect_err("the ring belongs to another thread");
                assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
            }
        });
        thread.join().expect("the checks hold");
        assert!(open().is_some(), "the lock was given up");
    }

    /// The newest kernel shows only what it does itself, so it is asked for less.
    #[test]
    fn a_device_conforms_by_each_way_of_making_its_ring() {
        if let Err(error) = <Ring>::new(2, &setups()) {
            println!("skipped, for this system refuses io_uring: {error}");
            return;
        }
        for (number, setup) in setups().into_iter().enumerate() {
            println!("setup {number}");
            conformance::run_all(&|| {
                let name = format!("coulter-setup-{}-{number}", process::id());
                let path = env::temp_dir().join(name);
                let file = TemporaryFile(path);
                fs::File::create(&file.0)
                    .and_then(|file| file.set_len(SIZE_MIN))
                    .expect("room for a file");
                Box::new(move |access| -> Result<Box<dyn Device>, OpenError> {
                    let TemporaryFile(path) = &file;
                    let read_only = access == Access::ReadOnly;
                    let options = OpenOptions { read_only, ..OpenOptions::default() };
                    let target = Target::open(path, &options)?;
                    match UringDevice::with_setups(target, 32, &[setup]) {
                        Ok(device) => Ok(Box::new(device)),
                        Err((_, source)) => {
                            Err(OpenError::NoIoUring { path: path.clone(), source })
                        }
                    }
                })
            });
        }
    }
}
