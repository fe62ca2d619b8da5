//! The contract between whatever offers blocks (a volume) and whatever asks for them (an attach
//! point, a benchmark, a program).
//!
//! It says nothing of device addresses, segments or records: an attach point cannot see below it.
//!
//! # Contract
//! - **Order.** Requests of one session are *accepted* in the order of submission (those that cover
//!   blocks in part when these have been read, hence later); they complete in any order. A write
//!   that overlaps another one whose completion was not yet seen may land before or after it, as
//!   on any disk.
//! - **Visibility.** A read that is submitted after a write's completion sees that write.
//! - **Durability.** A completed write survives the death of this process, and a power cut once a
//!   later `Flush` has completed, or if it was a `Write { fua: true }`. `Flush` covers every write
//!   that had *completed* when it was submitted, of all sessions. Of a volume that acknowledges from
//!   memory ([`Acknowledge::Buffered`](crate::Acknowledge::Buffered)) only what was flushed, and
//!   `Write { fua: true }`, survives this process.
//! - **Atomicity.** A write of at most [`ATOMIC_WRITE_SIZE_MAX`] bytes, aligned to 4096, appears
//!   whole or not at all after a crash. So does a [`WriteMany`], all its ranges together. It is
//!   ordered like any write: by session in the order of submission, and against each request that
//!   touches one of its ranges. What lies between its ranges has nothing to do with it.
//! - **Errors.** A request either completes with `Ok` and did all that it says, or completes with
//!   an error; after a failed write or flush the whole service is read-only. A write that was refused
//!   (`Full`, `Changes`, `Invalid`, `OutOfRange`) changed nothing and is no such failure.
//! - **Every request completes exactly once**, its buffer handed back, even when the service shuts
//!   down.

pub use crate::description::{Description, Identity, SERIAL_SIZE, Watch, Watchers};

use crate::buffer::Buffer;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

pub use coulter_engine::many::{CHANGES_MAX, ChangesError, UPDATES_MAX};

/// The unit of mapping in bytes, advertised to hosts as the preferred block size.
pub const BLOCK_SIZE: u64 = 4096;

/// The smallest unit of a request in bytes. Requests that are not multiples of [`BLOCK_SIZE`] are
/// read-modify-writes.
pub const SECTOR_SIZE: u64 = 512;

/// The largest write in bytes that is atomic over a crash. (A store with segments of 1 MiB, which is
/// no longer made, stays one block below it.)
pub const ATOMIC_WRITE_SIZE_MAX: u64 = 1 << 20;

/// The largest single read or write in bytes that a session accepts. `Discard` and `WriteZeroes`
/// may be as long as the volume.
pub const REQUEST_SIZE_MAX: u64 = 32 << 20;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Fill the buffer from the volume. Unmapped blocks read as zeros.
    Read,
    /// Store the buffer. With `fua` the write is durable when it completes.
    Write {
        /// Force unit access: durable at completion.
        fua: bool,
    },
    /// Make every completed write durable. Offset and length are ignored.
    Flush,
    /// Unmap the range; it reads as zeros afterwards. Durable after `Flush`. Parts of blocks at
    /// the ends are zeroed. A hint: completed when it has its place in the log, in memory.
    Discard,
    /// The same as `Discard`, as zeros need no space in a log, but completed when the device has it.
    /// With `fua`, durable at completion.
    WriteZeroes {
        /// Force unit access: durable at completion.
        fua: bool,
    },
    /// Report which parts of the range are mapped, as far as memory tells: what would have to be looked
    /// up on the device counts as mapped. Exactly, if it comes by [`Session::submit_exact`]. See
    /// [`Completion::extents`].
    Extents,
}

/// One request. `tag` is the caller's and comes back with the completion.
#[derive(Debug)]
pub struct Request {
    /// Chosen by the caller; need not be unique.
    pub tag: u64,
    /// What is asked.
    pub operation: Operation,
    /// First byte in the volume; a multiple of [`SECTOR_SIZE`].
    pub offset: u64,
    /// Bytes; a multiple of [`SECTOR_SIZE`]. For `Read` and `Write` equal to `buffer.len()`.
    pub length: u64,
    /// The data of a `Write`, the room for a `Read`, empty otherwise.
    pub buffer: Buffer,
}

/// One range of a [`WriteMany`]. Offset and length are bytes, multiples of [`BLOCK_SIZE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Store the next `length` bytes of the buffer.
    Write {
        /// First byte in the volume.
        offset: u64,
        /// Bytes; not zero.
        length: u64,
    },
    /// Unmap the range; it reads as zeros afterwards.
    Discard {
        /// First byte in the volume.
        offset: u64,
        /// Bytes; not zero.
        length: u64,
    },
}

/// A write that stores and unmaps several ranges: all of them or none after a crash, and never seen
/// in part by a read that is submitted after its completion. It completes like a write, and is
/// durable after a flush, or at its completion with `fua`.
///
/// It is one record of the log. That bounds it:
/// - 1 to [`CHANGES_MAX`] (200) ranges of whole blocks, which do not overlap, in any order;
/// - [`ATOMIC_WRITE_SIZE_MAX`] (1 MiB) of data in all, if the segments are larger than 1 MiB;
/// - [`UPDATES_MAX`] (1024) changes of the map in all: one for each block to be written; one for each
///   2 MiB at a multiple of 2 MiB that a discard covers whole; one for each other block that a
///   discard covers. A file that is cut from a gigabyte to nothing is one discard of 512 changes.
///
/// What does not keep to that is refused with [`RequestError::Changes`], and changes nothing.
#[derive(Debug)]
pub struct WriteMany {
    /// Chosen by the caller; need not be unique. Comes back with the completion.
    pub tag: u64,
    /// The ranges.
    pub changes: Vec<Change>,
    /// The data of the ranges to be written, one behind the other in the order of `changes`.
    pub buffer: Buffer,
    /// Force unit access: durable at completion.
    pub fua: bool,
}

/// A run of bytes that are all mapped or all unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub length: u64,
    /// Whether data is stored there. Unmapped bytes read as zeros.
    pub mapped: bool,
}

/// The end of a request.
#[derive(Debug)]
pub struct Completion {
    /// The request's tag.
    pub tag: u64,
    /// Whether all of the request was done.
    pub result: Result<(), RequestError>,
    /// The request's buffer, filled for a successful `Read`.
    pub buffer: Buffer,
    /// For a successful `Extents` request: runs from `offset` on that cover at least one byte and
    /// at most `length` bytes in all. For a successful `Read` by [`Session::submit_exact`]: runs that
    /// cover exactly what was read. Else empty.
    pub extents: Vec<Extent>,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestError {
    /// The range ends beyond the volume.
    OutOfRange,
    /// Offset or length is not a multiple of [`SECTOR_SIZE`], the buffer does not match the
    /// length, or the request exceeds [`REQUEST_SIZE_MAX`].
    Invalid,
    /// The volume was opened read-only, or became so after a failed write or flush.
    ReadOnly,
    /// A block's content does not match its checksum.
    Corrupt {
        /// The host block whose data is damaged.
        block: u64,
    },
    /// The device reported an error.
    Device {
        /// The operating system's error number.
        errno: i32,
    },
    /// The store is sparse and has no room for what would be mapped. Nothing of the write, or of its part
    /// of 1 MiB, was stored; overwrites and discards still succeed.
    Full,
    /// The ranges of a [`WriteMany`] cannot be written together.
    Changes(ChangesError),
    /// The service is shutting down.
    Closed,
}

impl RequestError {
    /// The error number that a host should be given.
    pub fn errno(self) -> i32 {
        match self {
            RequestError::OutOfRange | RequestError::Invalid | RequestError::Changes(_) => {
                libc::EINVAL
            }
            RequestError::ReadOnly => libc::EROFS,
            RequestError::Corrupt { .. } => libc::EIO,
            RequestError::Device { errno } => errno,
            RequestError::Full => libc::ENOSPC,
            RequestError::Closed => libc::ESHUTDOWN,
        }
    }
}

impl std::fmt::Display for RequestError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RequestError::OutOfRange => write!(f, "the range ends beyond the volume"),
            RequestError::Invalid => f.write_str(
                "offset or length is not a multiple of 512, or the length not that of the buffer, \
                 or more than 32 MiB",
            ),
            RequestError::ReadOnly => write!(f, "the volume is read-only"),
            RequestError::Corrupt { block } => {
                write!(f, "the data of block {block} does not match its checksum")
            }
            RequestError::Device { errno } => {
                write!(f, "the device failed: {}", std::io::Error::from_raw_os_error(*errno))
            }
            RequestError::Full => write!(f, "the store has no room for more blocks"),
            RequestError::Changes(error) => error.fmt(f),
            RequestError::Closed => write!(f, "the volume is shutting down"),
        }
    }
}

impl std::error::Error for RequestError {}

impl From<RequestError> for std::io::Error {
    /// The error with the number that a host is given. Of damage the block is not told.
    fn from(error: RequestError) -> std::io::Error {
        std::io::Error::from_raw_os_error(error.errno())
    }
}

/// What runs on a service's own thread; see [`BlockService::host`].
pub type Guest = Box<dyn FnOnce(Box<dyn Session>) + Send>;

/// Something that serves blocks to any number of sessions.
pub trait BlockService: Send + Sync {
    /// Size in bytes, a multiple of [`BLOCK_SIZE`].
    fn size(&self) -> u64;
    /// Whether writes are refused.
    fn read_only(&self) -> bool;
    /// What hosts are to see; its size and whether writes are refused are those above.
    fn describe(&self) -> Description;
    /// Has `watcher` told whenever what [`BlockService::describe`] says may have changed.
    fn watch(&self, watcher: Weak<dyn Watch>);
    /// A new, independent queue of requests. A session belongs to one thread at a time.
    fn connect(&self) -> Box<dyn Session + Send>;
    /// Runs `guest` on the service's own thread, with a session whose requests need not be handed
    /// to another. One guest at a time; it always runs, in the end with a session that refuses
    /// everything.
    ///
    /// Until it returns, the service gets further inside the calls of that session only, for other
    /// sessions too. So a guest sleeps nowhere but in [`Session::complete`], or in a `poll` with
    /// [`Session::completion_fd`] among the descriptors, and waits for this service in no other way.
    ///
    /// # Errors
    /// Gives the guest back if there is one already, or no thread to run it on.
    fn host(&self, guest: Guest) -> Result<(), Guest> {
        Err(guest)
    }
}

/// A queue of requests and completions.
///
/// Who drops a session hears no more of its requests: those that were handed over ([`Session::kick`]) are
/// carried out, those that were not are forgotten.
pub trait Session {
    /// Queues a request. Nothing is guaranteed to start before [`Session::kick`].
    fn submit(&mut self, request: Request);
    /// Queues a request that tells exactly which blocks are mapped, as [`Completion::extents`]: a `Read`,
    /// of the blocks that it reads, as they were when it read them; an `Extents`, also where the map is
    /// not in memory and must be read from the store. A block that is damaged is mapped. Other
    /// operations are carried out as ever.
    ///
    /// # Errors
    /// Gives it back if the service has no such thing.
    fn submit_exact(&mut self, request: Request) -> Result<(), Request> {
        Err(request)
    }
    /// Queues a write of several ranges, in its place among the other requests.
    ///
    /// # Errors
    /// Gives it back if the service has no such thing.
    fn submit_many(&mut self, request: WriteMany) -> Result<(), WriteMany> {
        Err(request)
    }
    /// Starts all that was queued; wakes the service only if it sleeps.
    fn kick(&mut self);
    /// The same by a thread that has nothing else to do: if a read is all that is under way, and this very
    /// thread can carry it out, it is complete when this returns. It waits for nothing else.
    fn kick_in_place(&mut self) {
        self.kick();
    }
    /// Moves the completions that are there to `out`. Waits up to `timeout` for the first one when
    /// there is none, for ever if `None`; `Some(Duration::ZERO)` never waits. Kicks by itself.
    /// Returns at once when no request of the session is outstanding.
    fn complete(&mut self, out: &mut Vec<Completion>, timeout: Option<Duration>);
    /// A descriptor that is readable while completions wait to be taken, for callers that sleep in
    /// `poll` or `epoll` on other things too. It is level-triggered and reset by `complete`. Ask
    /// for it anew before each sleep: the call may arm it, and it need not be the same each time.
    /// It may be readable although there are none yet, where there is work to be done by this very
    /// thread: the next call of `complete`, or of this function, does it.
    fn completion_fd(&self) -> BorrowedFd<'_>;
    /// Requests submitted whose completions were not yet taken.
    fn outstanding(&self) -> usize;
    /// From now on no write of the session is refused for want of space below the store: each
    /// waits in its order. For clients whose later writes are of no use without the earlier ones.
    fn hold_writes(&mut self) {}
    /// True while writes have waited for space below the store for longer than they may.
    fn lacks_space(&self) -> bool {
        false
    }
}

impl<S: BlockService + ?Sized> BlockService for Arc<S> {
    fn size(&self) -> u64 {
        (**self).size()
    }
    fn read_only(&self) -> bool {
        (**self).read_only()
    }
    fn describe(&self) -> Description {
        (**self).describe()
    }
    fn watch(&self, watcher: Weak<dyn Watch>) {
        (**self).watch(watcher);
    }
    fn connect(&self) -> Box<dyn Session + Send> {
        (**self).connect()
    }
    fn host(&self, guest: Guest) -> Result<(), Guest> {
        (**self).host(guest)
    }
}
