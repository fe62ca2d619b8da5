//! What serves files to a mount: a file system on a volume, or something over a directory of the
//! host.

use crate::io::{Io, IoError};
use crate::request::{Request, Response};
use coulter::buffer::Buffer;
use coulter_format::files::Time;
use std::os::fd::BorrowedFd;

/// Why a mount ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It was unmounted; work that belongs to its end is done.
    Unmounted,
    /// Its daemon is told to stop, and soon.
    Stopped,
}

/// A state machine between a mount and a volume: requests and completions go in, commands and
/// answers come out. It belongs to one thread.
///
/// # Contract
/// - Each request is answered once, with its buffer.
/// - Commands are given to the volume in the order in which they are taken from
///   [`FileService::poll_io`].
/// - A number of a node in a request comes from an answer, or is the root's; it stays good until
///   the kernel has forgotten as many lookups as were counted.
pub trait FileService {
    /// Takes in an operation. `now` is the time that it sets.
    fn handle_request(&mut self, id: u64, request: Request, now: Time);
    /// The last request: afterwards all is durable, and noted to be closed in order.
    fn handle_end(&mut self, id: u64, ending: Ending, now: Time);
    /// The kernel knows so many lookups less of a node.
    fn forget(&mut self, inode: u64, lookups: u64);
    /// Does what is due. Gives the time at which it wants to be called again, if nothing else
    /// comes.
    fn handle_time(&mut self, now_ns: u64) -> Option<u64>;
    /// Something has ended that was under way elsewhere: [`FileService::wake_fd`] was readable, or
    /// may have been.
    fn handle_wake(&mut self) {}
    /// Readable when [`FileService::handle_wake`] has something to do; none if that cannot be now.
    /// Asked for anew before each sleep.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Tells that the volume has lacked space beneath it for longer than a program should wait, or
    /// does no longer. Changes are refused meanwhile; commands that the volume has taken wait, in
    /// their order.
    fn handle_space(&mut self, _is_short: bool) {}
    /// The next command to the volume.
    fn poll_io(&mut self) -> Option<Io>;
    /// A command is complete; its buffer comes back.
    fn handle_completion(&mut self, id: u32, result: Result<(), IoError>, buffer: Buffer);
    /// The next answer.
    fn poll_response(&mut self) -> Option<Response>;
    /// Whether nothing is under way.
    fn is_quiet(&self) -> bool;
    /// True if no more should be asked for until something completes.
    fn is_congested(&self) -> bool {
        false
    }
}
