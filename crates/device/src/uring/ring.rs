//! Making a ring with the best that the kernel has, and entering it.
//!
//! A ring is made disabled and enabled on first use: with `SINGLE_ISSUER` the kernel takes orders
//! only from the thread that enabled it, and that is the one that polls, not the one that opened.

use crate::contract::Wait;
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{Builder, IoUring, squeue};
use std::io;

pub(super) type Setup = fn(&mut Builder);

/// What to ask of the kernel, the best first: Linux 6.1, 5.19, 5.11.
pub(super) const SETUPS: [Setup; 3] = [
    |builder| {
        builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
        builder.setup_submit_all().setup_r_disabled();
    },
    |builder| {
        builder.setup_coop_taskrun().setup_taskrun_flag();
        builder.setup_submit_all().setup_r_disabled();
    },
    |_| {},
];

/// A ring that is enabled when it is first entered.
pub(super) struct Ring {
    ring: IoUring,
    is_enabled: bool,
}

impl Ring {
    /// A ring with room for `entries` commands that were not handed over yet, made by the first of
    /// the ways that the kernel knows.
    pub(super) fn new(entries: usize, setups: &[Setup]) -> io::Result<Ring> {
        let entries = u32::try_from(entries.next_power_of_two()).expect("a ring is small");
        let mut refusal = io::Error::from_raw_os_error(libc::ENOSYS);
        for setup in setups {
            let mut builder = IoUring::builder();
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

    fn checked(ring: IoUring) -> io::Result<Ring> {
        // Waiting with a timeout, and completions that are never dropped: Linux 5.11.
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        }
        Ok(Ring { ring, is_enabled: false })
    }

    /// Makes the calling thread the one that the ring belongs to.
    pub(super) fn enable(&mut self) -> io::Result<()> {
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

    pub(super) fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// The ring itself, to queue entries, take answers and register memory.
    pub(super) fn inner(&mut self) -> &mut IoUring {
        &mut self.ring
    }

    /// Queues an entry.
    ///
    /// # Safety
    /// What the entry points to stays valid until it was answered.
    ///
    /// # Panics
    /// When more entries are queued than the ring was made for.
    pub(super) unsafe fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the caller's promise.
        let pushed = unsafe { self.ring.submission().push(entry) };
        assert!(pushed.is_ok(), "the ring has room for every command in flight");
    }

    /// Hands over what is queued and runs what the kernel has deferred; no system call if there is
    /// neither.
    pub(super) fn advance(&mut self) -> io::Result<()> {
        let queue = self.ring.submission();
        let is_idle = queue.is_empty() && !queue.taskrun() && !queue.cq_overflow();
        drop(queue);
        if is_idle { Ok(()) } else { taken(self.ring.submit()) }
    }

    /// Whether there are entries that the kernel did not take yet.
    pub(super) fn has_queued(&mut self) -> bool {
        !self.ring.submission().is_empty()
    }

    /// Whether the kernel has answered, or has work deferred that may lead to an answer.
    pub(super) fn has_answers(&mut self) -> bool {
        let queue = self.ring.submission();
        let is_due = queue.taskrun() || queue.cq_overflow();
        drop(queue);
        is_due || !self.ring.completion().is_empty()
    }

    /// Hands over what is queued and sleeps until there is an answer, a signal, or time is over.
    pub(super) fn sleep(&mut self, wait: Wait) -> io::Result<()> {
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
