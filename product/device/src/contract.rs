//! The contract between the engine's driver and whatever stores its bytes.
//!
//! It says nothing of host addresses, records or segments: a device stores sectors.
//!
//! # Threading contract
//! A device is made on one thread and may be moved, once, to the thread that uses it: from the
//! first [`Device::submit`] or [`Device::poll`] on, every call and the drop happen on that thread.
//! Only a [`Waker`] is shared. Nothing on the way of a command is locked or allocated.
//!
//! # Command contract
//! - A command is refused (it completes with an error and nothing is done) when offset, length or
//!   memory is not a multiple of [`Properties::alignment`], when it is empty, when it ends past
//!   [`Properties::size`], or when it would change a read-only device.
//! - Every command completes exactly once. Tags are the caller's and need not be unique.
//! - At most [`Properties::queue_depth`] commands are executed at once. More may be submitted;
//!   they wait inside the device, which costs memory.
//! - A device that is dropped waits for what it has started; what it has not started may or may
//!   not be done.
//!
//! # Ordering contract
//! - Commands are executed, completed and made durable in any order, whatever the order of
//!   submission. Order between two commands is had only by submitting the second after the first
//!   has completed.
//! - A read that is submitted after a write's completion sees that write. A read that overlaps a
//!   write in flight returns old or new bytes, sector by sector.
//! - Two overlapping writes in flight at once leave either, sector by sector.
//!
//! # Durability contract
//! - A completed write may still be lost to a power cut (never to the death of this process), if
//!   [`Properties::volatile_cache`] says that the device has such a cache.
//! - A completed `Flush` has made durable every write and discard that *completed* before the
//!   flush was *submitted*. It says nothing of others.
//! - A discarded range reads as zeros or as what it held before, until it is written again.
//!   A discard is a hint: it may do nothing.
//!
//! # Placement contract
//! - Writes that name the same [`Command::stream`] go to one place after the other and die at similar
//!   times; a device may keep them apart from others, or not. What a write does is the same.
//!
//! # Power-loss contract
//! - A power cut leaves, for each 512-byte sector, what was last made durable or what any later
//!   command wrote, whether it completed or not: any subset of unflushed sectors survives, each
//!   on its own. A sector is never torn.
//! - Sectors that no command in flight or unflushed names keep their content.
//! - On flash the second holds only where [`Properties::atomic_page`] says so, or where nobody writes to a part of
//!   a flash page: a page that is being programmed when the power goes may be lost with all that lies there.
//!   Where it says so, each aligned page is, after a power cut, as it was last made durable or as commands since
//!   then would have made it, one after the other: none of them is there in part, as far as the page goes.
//!
//! # Error contract
//! - A command that ends with `Ok` did all that it says. Short transfers are continued inside the
//!   device until they are whole or fail; a read past the end of what is there is an error
//!   ([`ShortRead`](crate::DeviceErrorKind::ShortRead)), never zeros.
//! - A failed read leaves the memory with unspecified bytes. A failed write leaves every sector
//!   of its range old or new.
//! - A failed write or flush is reported once and never retried. After a failed flush nothing
//!   unflushed may be assumed: it may be lost even if a later flush succeeds.

use crate::command::{Command, Completion, Properties, Region, Wait};
use crate::read_source::ReadSource;
use crate::revocation::Revocation;
use crate::wake::Waker;
use std::io;
use std::os::fd::BorrowedFd;

/// Something that stores bytes in sectors; see the [module's contract](self).
///
/// # Safety
/// Whoever uses a device frees the memory of a command when it was told of its completion. So a device,
/// or what it is made of, touches the memory of a command neither after its completion was taken, nor after
/// the device was dropped on the thread that uses it; and it tells one completion for each command.
pub unsafe trait Device: Send {
    /// What the device is and can do. Constant, save that `discard` may turn false, and `note`
    /// change.
    fn properties(&self) -> &Properties;

    /// Hands over memory that later commands will use, so that the device can pin it once and not
    /// at every command. It replaces what was registered before; an empty slice undoes it.
    /// A device that cannot pin it (`RLIMIT_MEMLOCK`) goes on without: that is not an error.
    ///
    /// # Errors
    /// When called from a thread other than the one that uses the device.
    ///
    /// # Safety
    /// No command is outstanding. The memory stays allocated until the device is dropped or
    /// `register` is called again.
    unsafe fn register(&mut self, regions: &[Region]) -> io::Result<()>;

    /// Queues one command. It is started at the latest by the next [`Device::poll`].
    ///
    /// # Safety
    /// `buffer` is valid for `length` bytes (to read from for a write, to write to for a read)
    /// and nothing else writes to it, nor for a read looks at it, until the completion was taken
    /// or the device was dropped on the thread that uses it.
    unsafe fn submit(&mut self, command: Command);

    /// Starts what is queued and appends completions to `out`. If there are none it sleeps
    /// according to `wait`, until there is one, or until a [`Waker`] is used. It may return early
    /// with nothing.
    ///
    /// # Errors
    /// When the machinery itself fails; the device is of no use afterwards. What a command meets
    /// is told in its completion.
    fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> io::Result<()>;

    /// Prepares a sleep outside of [`Device::poll`], for a caller that waits for other things as
    /// well: starts what is queued, and returns a descriptor that is readable as soon as `poll`
    /// has a completion to give or a [`Waker`] is used.
    ///
    /// It is good for one sleep: any other call to the device ends the preparation, and the next
    /// one resets the descriptor. It is the same open file each time. It may be readable without a
    /// cause, though not for ever.
    ///
    /// # Errors
    /// When the process has no descriptor left, and as `poll`.
    fn arm(&mut self) -> io::Result<BorrowedFd<'_>>;

    /// A handle that ends a sleep in [`Device::poll`], or one that [`Device::arm`] has prepared,
    /// from any thread.
    fn waker(&self) -> Waker;

    /// What other threads may read with, what this device stores; `None` if only the device itself can
    /// read. A device around a device that changes or watches what is read has none.
    fn read_source(&self) -> Option<ReadSource> {
        None
    }

    /// Tells any thread that the content has become another host's; `None` if that cannot happen.
    /// A user that keeps any of it in memory answers nothing from there afterwards. A device
    /// around a device passes it on.
    fn revocation(&self) -> Option<Revocation> {
        None
    }
}

// SAFETY: it is the device in the box.
unsafe impl<D: Device + ?Sized> Device for Box<D> {
    fn properties(&self) -> &Properties {
        (**self).properties()
    }
    unsafe fn register(&mut self, regions: &[Region]) -> io::Result<()> {
        // SAFETY: the caller's promises are the same.
        unsafe { (**self).register(regions) }
    }
    unsafe fn submit(&mut self, command: Command) {
        // SAFETY: the caller's promises are the same.
        unsafe { (**self).submit(command) }
    }
    fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        (**self).poll(out, wait)
    }
    fn arm(&mut self) -> io::Result<BorrowedFd<'_>> {
        (**self).arm()
    }
    fn waker(&self) -> Waker {
        (**self).waker()
    }
    fn read_source(&self) -> Option<ReadSource> {
        (**self).read_source()
    }
    fn revocation(&self) -> Option<Revocation> {
        (**self).revocation()
    }
}
