//! A device as a block service, without any log in front of it: the other side of a comparison
//! that takes the same way to its blocks.
//!
//! Discards and write-zeroes are refused, as by a disk that knows neither; hosts write zeros then.
//! What the device refuses, such as requests that do not keep to its alignment, fails.

#![expect(unsafe_code, reason = "a device takes memory by pointer")]

use coulter::buffer::Buffer;
use coulter::service::{
    BLOCK_SIZE, BlockService, Completion, Description, Identity, Operation, Request, RequestError,
    Session, Watch,
};
use coulter_device::{Command, Device, Wait};
use rustix::io::Errno;
use std::cell::{OnceCell, RefCell};
use std::io::{self, PipeReader, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

/// A device that an attach point can serve, to one session.
pub struct BareService {
    size: u64,
    session: Mutex<Option<BareSession>>,
}

impl BareService {
    /// Serves `device`.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new(device: Box<dyn Device>) -> io::Result<BareService> {
        let size = device.properties().size / BLOCK_SIZE * BLOCK_SIZE;
        Ok(BareService { size, session: Mutex::new(Some(BareSession::new(device)?)) })
    }
}

impl BlockService for BareService {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_only(&self) -> bool {
        false
    }

    fn describe(&self) -> Description {
        Description::new(Identity::default(), self.size, false)
    }

    /// Nothing about it changes.
    fn watch(&self, _: Weak<dyn Watch>) {}

    /// # Panics
    /// At the second call.
    fn connect(&self) -> Box<dyn Session + Send> {
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner).take();
        Box::new(session.expect("a bare device is for one session"))
    }
}

/// A queue of requests that a device carries out as they are.
pub struct BareSession {
    // Dropped first: it waits for the commands that still use the buffers.
    device: RefCell<Box<dyn Device>>,
    /// Readable when the device has something to give, once it is armed for that; asked for on the
    /// thread that uses the device.
    descriptor: OnceCell<OwnedFd>,
    /// Always readable.
    ready: PipeReader,
    flights: Vec<Option<Flight>>,
    idle: Vec<usize>,
    /// What the device has completed, while it is looked at.
    done: Vec<coulter_device::Completion>,
    /// What is to be given out at the next call.
    ended: Vec<Completion>,
}

struct Flight {
    tag: u64,
    buffer: Buffer,
    /// Whether a flush is still to follow.
    is_followed: bool,
}

impl BareSession {
    /// A queue to `device`.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new(device: Box<dyn Device>) -> io::Result<BareSession> {
        let (ready, mut writer) = io::pipe()?;
        writer.write_all(&[1])?;
        Ok(BareSession {
            device: RefCell::new(device),
            descriptor: OnceCell::new(),
            ready,
            flights: Vec::new(),
            idle: Vec::new(),
            done: Vec::new(),
            ended: Vec::new(),
        })
    }

    fn start(&mut self, slot: usize, command: Command) {
        assert_eq!(command.tag, slot as u64, "the completion leads to the flight");
        // SAFETY: the buffer has the command's length, which was compared; its memory does not move
        // with it, and it stays in `flights`, untouched, until the completion was taken or the
        // device was dropped.
        unsafe { self.device.get_mut().submit(command) };
    }

    fn take(&mut self, out: &mut Vec<Completion>, wait: Wait) {
        if let Err(error) = self.device.get_mut().poll(&mut self.done, wait) {
            panic!("the plain file's device is of no use any more: {error}");
        }
        for completion in std::mem::take(&mut self.done) {
            let slot = completion.tag as usize;
            let flight = self.flights[slot].as_mut().expect("a command completes once");
            if completion.result.is_ok() && std::mem::take(&mut flight.is_followed) {
                self.start(slot, Command::flush(slot as u64));
                continue;
            }
            let Flight { tag, buffer, .. } = self.flights[slot].take().expect("it was just there");
            self.idle.push(slot);
            let result =
                completion.result.map_err(|error| RequestError::Device { errno: error.errno });
            out.push(Completion { tag, result, buffer, extents: Vec::new() });
        }
    }
}

impl Session for BareSession {
    fn submit(&mut self, request: Request) {
        let Request { tag, operation, offset, length, mut buffer } = request;
        let transfers = matches!(operation, Operation::Read | Operation::Write { .. });
        let refusal = match operation {
            Operation::Discard | Operation::WriteZeroes { .. } | Operation::Extents => {
                Some(RequestError::Device { errno: Errno::OPNOTSUPP.raw_os_error() })
            }
            _ if transfers && buffer.len() as u64 != length => Some(RequestError::Invalid),
            _ => None,
        };
        if let Some(error) = refusal {
            self.ended.push(Completion { tag, result: Err(error), buffer, extents: Vec::new() });
            return;
        }
        let slot = self.idle.pop().unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() - 1
        });
        let memory = buffer.as_mut_pointer();
        let command = match operation {
            Operation::Read => Command::read(slot as u64, offset, length, memory),
            Operation::Write { .. } => Command::write(slot as u64, offset, length, memory),
            _ => Command::flush(slot as u64),
        };
        let is_followed = operation == Operation::Write { fua: true };
        self.flights[slot] = Some(Flight { tag, buffer, is_followed });
        self.start(slot, command);
    }

    fn kick(&mut self) {
        let mut out = std::mem::take(&mut self.ended);
        self.take(&mut out, Wait::No);
        self.ended = out;
    }

    fn complete(&mut self, out: &mut Vec<Completion>, timeout: Option<Duration>) {
        let before = out.len();
        out.append(&mut self.ended);
        if self.idle.len() == self.flights.len() {
            return;
        }
        let wait = match timeout {
            _ if out.len() > before => Wait::No,
            None => Wait::Forever,
            Some(Duration::ZERO) => Wait::No,
            Some(time) => Wait::For(time),
        };
        self.take(out, wait);
        // The device may wake without a cause, or for a write that a flush follows.
        while wait == Wait::Forever && out.len() == before {
            self.take(out, wait);
        }
    }

    fn completion_fd(&self) -> BorrowedFd<'_> {
        if !self.ended.is_empty() {
            return self.ready.as_fd();
        }
        let mut device = self.device.borrow_mut();
        let armed = device.arm().expect("a descriptor is left to wait for the device");
        // The device promises that it is the same open file each time.
        let copied = || armed.try_clone_to_owned().expect("a descriptor is left for its copy");
        self.descriptor.get_or_init(copied).as_fd()
    }

    fn outstanding(&self) -> usize {
        self.flights.len() - self.idle.len() + self.ended.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coulter_device::MemoryStore;

    const SIZE: u64 = 1 << 20;

    fn session() -> BareSession {
        let store = MemoryStore::new(SIZE);
        BareSession::new(Box::new(store.open().expect("nobody has it open")))
            .expect("a descriptor can be had")
    }

    fn ask(session: &mut BareSession, operation: Operation, buffer: Buffer) -> Completion {
        let length = buffer.len() as u64;
        session.submit(Request { tag: 7, operation, offset: 8192, length, buffer });
        assert_eq!(session.outstanding(), 1);
        let mut out = Vec::new();
        session.complete(&mut out, None);
        assert_eq!(session.outstanding(), 0);
        assert_eq!(out.len(), 1);
        out.pop().expect("there is one")
    }

    #[test]
    fn what_is_written_is_read_and_flushed() {
        let mut session = session();
        let bytes = Buffer::copied_from(&[0xa5; 4096]);
        for fua in [false, true] {
            let written = ask(&mut session, Operation::Write { fua }, Buffer::copied_from(&bytes));
            assert_eq!((written.tag, written.result), (7, Ok(())));
        }
        let read = ask(&mut session, Operation::Read, Buffer::zeroed(4096));
        assert_eq!(read.result, Ok(()));
        assert!(*read.buffer == *bytes, "something else is read");
        assert_eq!(ask(&mut session, Operation::Flush, Buffer::zeroed(0)).result, Ok(()));
    }

    #[test]
    fn what_a_plain_disk_does_not_know_is_refused_and_wakes_who_sleeps() {
        let mut session = session();
        for operation in [Operation::Discard, Operation::WriteZeroes { fua: false }] {
            let refused = ask(&mut session, operation, Buffer::zeroed(0)).result;
            assert_eq!(
                refused,
                Err(RequestError::Device { errno: Errno::OPNOTSUPP.raw_os_error() })
            );
        }
        let read = Request {
            tag: 1,
            operation: Operation::Read,
            offset: SIZE,
            length: 4096,
            buffer: Buffer::zeroed(4096),
        };
        session.submit(read);
        let mut out = Vec::new();
        session.complete(&mut out, None);
        assert_eq!(out[0].result, Err(RequestError::Device { errno: Errno::INVAL.raw_os_error() }));
    }
}
