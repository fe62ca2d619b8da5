//! Making a ring with the best that the kernel has, and entering it.
//!
//! A ring is made disabled and enabled on first use: with `SINGLE_ISSUER` the kernel takes orders
//! only from the thread that enabled it, and that is the one that polls, not the one that opened.

use crate::command::Wait;
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{Builder, IoUring, cqueue, squeue};
use std::io;

pub(crate) type Setup<S = squeue::Entry, C = cqueue::Entry> = fn(&mut Builder<S, C>);

/// What to ask of the kernel, the best first: Linux 6.1, 5.19, 5.11.
pub(crate) fn setups<S: squeue::EntryMarker, C: cqueue::EntryMarker>() -> [Setup<S, C>; 3] {
    [
        |builder| {
            builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
            builder.setup_submit_all().setup_r_disabled();
        },
        |builder| {
            builder.setup_coop_taskrun().setup_taskrun_flag();
            builder.setup_submit_all().setup_r_disabled();
        },
        |_| {},
    ]
}

/// A ring that is enabled when it is first entered; its entries are small, or large.
pub(crate) struct Ring<S = squeue::Entry, C = cqueue::Entry>
where
    S: squeue::EntryMarker,
    C: cqueue::EntryMarker,
{
    ring: IoUring<S, C>,
    is_enabled: bool,
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> Ring<S, C> {
    /// A ring with room for `entries` commands that were not handed over yet, made by the first of
    /// the ways that the kernel knows.
    pub(crate) fn new(entries: usize, setups: &[Setup<S, C>]) -> io::Result<Ring<S, C>> {
        let entries = u32::try_from(entries.next_power_of_two()).expect("a ring is small");
        let mut refusal = io::Error::from_raw_os_error(libc::ENOSYS);
        for setup in setups {
            let mut builder = IoUring::<S, C>::builder();
            setup(&mut builder);
            builder.dontfork();
            match builder.build(entries) {
                Ok(ring) => return Ring::checked(ring),
                // The kernel does not know one of the flags.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refusal = error,
                Err(error) => return Err(error),
            }
        }
        Err(refusal)
    }

    fn checked(ring: IoUring<S, C>) -> io::Result<Ring<S, C>> {
        // Waiting with a timeout, and completions that are never dropped: Linux 5.11.
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        }
        Ok(Ring { ring, is_enabled: false })
    }

    /// Makes the calling thread the one that the ring belongs to.
    pub(crate) fn enable(&mut self) -> io::Result<()> {
        if self.is_enabled {
            return Ok(());
        }
        match self.ring.submitter().register_enable_rings() {
            Ok(()) => {}
            // It was not made disabled.
            Err(error) if error.raw_os_error() == Some(libc::EBADFD) => {}
            Err(error) => return Err(error),
        }
        self.is_enabled = true;
        Ok(())
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// The ring itself, to queue entries, take answers and register memory.
    pub(crate) fn inner(&mut self) -> &mut IoUring<S, C> {
        &mut self.ring
    }

    /// Queues an entry.
    ///
    /// # Safety
    /// What the entry points to stays valid until it was answered.
    ///
    /// # Panics
    /// When more entries are queued than the ring was made for.
    pub(crate) unsafe fn push(&mut self, entry: &S) {
        // SAFETY: the caller's promise.
        let pushed = unsafe { self.ring.submission().push(entry) };
        assert!(pushed.is_ok(), "the ring has room for every command in flight");
    }

    /// Hands over what is queued and runs what the kernel has deferred; no system call if there is
    /// neither.
    pub(crate) fn advance(&mut self) -> io::Result<()> {
        let queue = self.ring.submission();
        let is_idle = queue.is_empty() && !queue.taskrun() && !queue.cq_overflow();
        drop(queue);
        if is_idle { Ok(()) } else { taken(self.ring.submit()) }
    }

    /// Whether there are entries that the kernel did not take yet.
    pub(crate) fn has_queued(&mut self) -> bool {
        !self.ring.submission().is_empty()
    }

    /// Whether the kernel has answered, or has work deferred that may lead to an answer.
    pub(crate) fn has_answers(&mut self) -> bool {
        let queue = self.ring.submission();
        let is_due = queue.taskrun() || queue.cq_overflow();
        drop(queue);
        is_due || !self.ring.completion().is_empty()
    }

    /// Hands over what is queued and sleeps until there is an answer, a signal, or time is over.
    pub(crate) fn sleep(&mut self, wait: Wait) -> io::Result<()> {
        match wait {
            Wait::No => taken(self.ring.submit()),
            Wait::Forever => taken(self.ring.submit_and_wait(1)),
            Wait::For(time) => {
                let time = Timespec::from(time);
                let arguments = SubmitArgs::new().timespec(&time);
                taken(self.ring.submitter().submit_with_args(1, &arguments))
            }
        }
    }
}

/// Leaves only those errors after which the ring is of no use. The others mean that nothing
/// happened: time over, a signal, memory short for a moment, or answers to be taken first.
fn taken(entered: io::Result<usize>) -> io::Result<()> {
    match entered {
        Ok(_) => Ok(()),
        Err(error) => match error.raw_os_error() {
            Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
            _ => Err(error),
        },
    }
}
