//! The two things that the demonstration without root writes to, behind one face: a volume over
//! NBD, and a plain file past the page cache.

use coulter::buffer::Buffer;
use coulter::service::{Completion, Operation, Request, RequestError, Session};
use coulter_device::{Command, Device, Wait};

/// Takes requests and gives back completions in any order.
pub(crate) trait Target {
    /// Queues a request.
    fn submit(&mut self, request: Request);
    /// Starts what is queued, waits for at least one completion if there is anything to wait for,
    /// and appends all that there are.
    fn complete(&mut self, out: &mut Vec<Completion>);
}

impl Target for Box<dyn Session> {
    fn submit(&mut self, request: Request) {
        Session::submit(&mut **self, request);
    }

    fn complete(&mut self, out: &mut Vec<Completion>) {
        Session::complete(&mut **self, out, None);
    }
}

/// A file as a device, without any log in front of it.
pub(crate) struct PlainFile {
    // Dropped first: it waits for the commands that still use the buffers.
    device: Box<dyn Device>,
    flights: Vec<Option<(u64, Buffer)>>,
    idle: Vec<usize>,
    done: Vec<coulter_device::Completion>,
}

impl PlainFile {
    /// Writes to `device`, with at most `depth` requests at once.
    pub(crate) fn new(device: Box<dyn Device>, depth: usize) -> PlainFile {
        PlainFile {
            device,
            flights: (0..depth).map(|_| None).collect(),
            idle: (0..depth).collect(),
            done: Vec::new(),
        }
    }
}

impl Target for PlainFile {
    fn submit(&mut self, request: Request) {
        let slot = self.idle.pop().expect("the caller keeps to the depth that it asked for");
        let Request { tag, operation, offset, length, mut buffer } = request;
        let memory = buffer.as_mut_pointer();
        let command = match operation {
            Operation::Read => Command::read(slot as u64, offset, length, memory),
            Operation::Write { .. } => Command::write(slot as u64, offset, length, memory),
            Operation::Flush => Command::flush(slot as u64),
            other => panic!("the demonstration never asks for {other:?}"),
        };
        assert!(buffer.len() as u64 >= command.length, "the buffer holds the whole request");
        self.flights[slot] = Some((tag, buffer));
        // SAFETY: the buffer has `length` bytes, which do not move with it, and stays in `flights`,
        // untouched, until its completion was taken or the device was dropped.
        unsafe { self.device.submit(command) };
    }

    fn complete(&mut self, out: &mut Vec<Completion>) {
        if self.idle.len() == self.flights.len() {
            return;
        }
        if let Err(error) = self.device.poll(&mut self.done, Wait::Forever) {
            panic!("the plain file's device is of no use any more: {error}");
        }
        for completion in self.done.drain(..) {
            let slot = completion.tag as usize;
            let (tag, buffer) = self.flights[slot].take().expect("a command completes once");
            self.idle.push(slot);
            let result =
                completion.result.map_err(|error| RequestError::Device { errno: error.errno });
            out.push(Completion { tag, result, buffer, extents: Vec::new() });
        }
    }
}
