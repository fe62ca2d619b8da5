//! The volume: requests go through a session, as an attach point's would.

use super::{Access, Side};
use crate::error::BenchError;
use coulter::buffer::Buffer;
use coulter::service::{
    BlockService, Completion, Guest, Operation, Request, RequestError, Session,
};
use coulter::tuning::{Retuning, Tuning};
use coulter::{Statistics, Volume};
use std::sync::mpsc;

const FLUSH_TAG: u64 = u64::MAX;

/// A volume, a session from outside, and memory for its requests.
pub(crate) struct VolumeSide {
    session: Box<dyn Session + Send>,
    volume: Volume,
    memory: Memory,
}

/// A session on the volume's own thread, and the same memory.
struct LocalSide {
    session: Box<dyn Session>,
    memory: Memory,
}

/// Memory for requests.
#[derive(Default)]
struct Memory {
    slots: Vec<Buffer>,
    completions: Vec<Completion>,
}

impl VolumeSide {
    /// A volume, with so many slots.
    pub(crate) fn new(volume: Volume, slots: usize) -> VolumeSide {
        let slots = (0..slots).map(super::slot_size).map(Buffer::zeroed).collect();
        let memory = Memory { slots, completions: Vec::new() };
        VolumeSide { session: volume.connect(), volume, memory }
    }

    /// Runs `work` on the volume's own thread, on a side that is there too.
    ///
    /// # Panics
    /// When `work` does, or the volume has another guest.
    pub(crate) fn run_locally<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut dyn Side) -> T + Send + 'static,
    ) -> T {
        let memory = std::mem::take(&mut self.memory);
        let (sender, receiver) = mpsc::channel();
        let guest: Guest = Box::new(move |session| {
            let mut side = LocalSide { session, memory };
            let result = work(&mut side);
            let LocalSide { session, memory } = side;
            drop(session);
            let _ = sender.send((result, memory));
        });
        self.host(guest);
        let (result, memory) = receiver.recv().expect("a load ends by itself");
        self.memory = memory;
        result
    }

    /// The guest before may have said its last word and not have left yet.
    fn host(&self, mut guest: Guest) {
        while let Err(refused) = self.volume.host(guest) {
            guest = refused;
            std::thread::yield_now();
        }
    }

    /// Another session.
    pub(crate) fn connect(&self) -> Box<dyn Session + Send> {
        self.volume.connect()
    }

    /// What the volume has done.
    pub(crate) fn statistics(&self) -> Statistics {
        self.volume.statistics()
    }

    /// Changes settings of the volume; what they are then.
    ///
    /// # Errors
    /// When the volume has ended.
    pub(crate) fn tune(&self, retuning: Retuning) -> Result<Tuning, BenchError> {
        self.volume.tune(retuning).ok_or(BenchError::Request(RequestError::Closed))
    }

    /// The volume, for requests of other threads.
    pub(crate) fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Ends the volume in order.
    ///
    /// # Errors
    /// What kept it from that.
    pub(crate) fn close(self) -> Result<(), BenchError> {
        drop(self.session);
        self.volume.close().map_err(BenchError::Close)
    }
}

impl Memory {
    fn slot(&mut self, slot: usize) -> &mut [u8] {
        let buffer = &mut self.slots[slot];
        buffer.set_length(buffer.capacity());
        buffer
    }

    fn request(&mut self, slot: usize, access: Access, offset: u64, length: usize) -> Request {
        let mut buffer = std::mem::take(&mut self.slots[slot]);
        buffer.set_length(length);
        let operation = match access {
            Access::Read => Operation::Read,
            Access::Write => Operation::Write { fua: false },
        };
        Request { tag: slot as u64, operation, offset, length: length as u64, buffer }
    }

    fn wait(&mut self, session: &mut dyn Session, done: &mut Vec<usize>) -> Result<(), BenchError> {
        session.complete(&mut self.completions, None);
        for completion in self.completions.drain(..) {
            completion.result.map_err(BenchError::Request)?;
            let slot = completion.tag as usize;
            self.slots[slot] = completion.buffer;
            done.push(slot);
        }
        Ok(())
    }

    fn flush(&mut self, session: &mut dyn Session) -> Result<(), BenchError> {
        let (operation, buffer) = (Operation::Flush, Buffer::empty());
        session.submit(Request { tag: FLUSH_TAG, operation, offset: 0, length: 0, buffer });
        session.complete(&mut self.completions, None);
        let completion = self.completions.pop().expect("it waits for one");
        assert_eq!(completion.tag, FLUSH_TAG, "nothing else is out");
        completion.result.map_err(BenchError::Request)
    }
}

macro_rules! side {
    ($side:ty) => {
        impl Side for $side {
            fn memory(&mut self, slot: usize) -> &mut [u8] {
                self.memory.slot(slot)
            }

            fn submit(&mut self, slot: usize, access: Access, offset: u64, length: usize) {
                self.session.submit(self.memory.request(slot, access, offset, length));
            }

            fn wait(&mut self, done: &mut Vec<usize>) -> Result<(), BenchError> {
                self.memory.wait(&mut *self.session, done)
            }

            fn flush(&mut self) -> Result<(), BenchError> {
                self.memory.flush(&mut *self.session)
            }
        }
    };
}

side!(VolumeSide);
side!(LocalSide);
