//! The volume: requests go through a session, as an attach point's would.

use super::{Access, Side};
use crate::error::BenchError;
use coulter::buffer::Buffer;
use coulter::service::{BlockService, Completion, Operation, Request, Session};
use coulter::{Statistics, Volume};

const FLUSH_TAG: u64 = u64::MAX;

/// A volume, a session, and memory for its requests.
pub(crate) struct VolumeSide {
    session: Box<dyn Session>,
    volume: Volume,
    slots: Vec<Buffer>,
    completions: Vec<Completion>,
}

impl VolumeSide {
    /// A volume, with so many slots.
    pub(crate) fn new(volume: Volume, slots: usize) -> VolumeSide {
        VolumeSide {
            session: volume.connect(),
            volume,
            slots: (0..slots).map(super::slot_size).map(Buffer::zeroed).collect(),
            completions: Vec::new(),
        }
    }

    /// What the volume has done.
    pub(crate) fn statistics(&self) -> Statistics {
        self.volume.statistics()
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

impl Side for VolumeSide {
    fn memory(&mut self, slot: usize) -> &mut [u8] {
        let buffer = &mut self.slots[slot];
        buffer.set_length(buffer.capacity());
        buffer
    }

    fn submit(&mut self, slot: usize, access: Access, offset: u64, length: usize) {
        let mut buffer = std::mem::take(&mut self.slots[slot]);
        buffer.set_length(length);
        let operation = match access {
            Access::Read => Operation::Read,
            Access::Write => Operation::Write { fua: false },
        };
        let length = length as u64;
        self.session.submit(Request { tag: slot as u64, operation, offset, length, buffer });
    }

    fn wait(&mut self, done: &mut Vec<usize>) -> Result<(), BenchError> {
        self.session.complete(&mut self.completions, None);
        for completion in self.completions.drain(..) {
            completion.result.map_err(BenchError::Request)?;
            let slot = completion.tag as usize;
            self.slots[slot] = completion.buffer;
            done.push(slot);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BenchError> {
        let (operation, buffer) = (Operation::Flush, Buffer::empty());
        self.session.submit(Request { tag: FLUSH_TAG, operation, offset: 0, length: 0, buffer });
        self.session.complete(&mut self.completions, None);
        let completion = self.completions.pop().expect("it waits for one");
        assert_eq!(completion.tag, FLUSH_TAG, "nothing else is out");
        completion.result.map_err(BenchError::Request)
    }
}
