//! The bare file: requests go straight to the device, as its own queue takes them.

#![expect(unsafe_code, reason = "a device takes memory by pointer")]

use super::{Access, Side};
use crate::error::BenchError;
use coulter_device::{AlignedMemory, Command, Completion, Device, ReadSource, Region, Wait};

const FLUSH_TAG: u64 = u64::MAX;

/// A device and memory for its commands.
pub(crate) struct RawSide {
    /// First, so that it is dropped first: it uses the memory until then.
    device: Box<dyn Device>,
    slots: Vec<AlignedMemory>,
    completions: Vec<Completion>,
}

impl RawSide {
    /// A device, with so many slots.
    ///
    /// # Errors
    /// When the device refuses the memory.
    pub(crate) fn new(device: Box<dyn Device>, slots: usize) -> Result<RawSide, BenchError> {
        let mut side = RawSide { device, slots: Vec::new(), completions: Vec::new() };
        side.replace_memory((0..slots).map(super::slot_size))?;
        Ok(side)
    }

    /// Has a slot for each of these sizes in bytes instead. No request is out.
    ///
    /// # Errors
    /// When the device refuses the memory.
    pub(crate) fn replace_memory(
        &mut self,
        sizes: impl Iterator<Item = usize>,
    ) -> Result<(), BenchError> {
        let mut slots: Vec<_> = sizes.map(AlignedMemory::zeroed).collect();
        let region = |memory: &mut AlignedMemory| Region {
            start: memory.as_mut_pointer(),
            length: memory.len(),
        };
        let regions: Vec<_> = slots.iter_mut().map(region).collect();
        // SAFETY: nothing is outstanding, and the memory lives as long as `slots`, which is replaced
        // only when other memory was registered, and is dropped after the device.
        unsafe { self.device.register(&regions) }
            .map_err(|source| BenchError::System { doing: "registering memory", source })?;
        self.slots = slots;
        Ok(())
    }

    /// What other threads may read it with.
    pub(crate) fn read_source(&self) -> Option<ReadSource> {
        self.device.read_source()
    }

    fn poll(&mut self) -> Result<(), BenchError> {
        while self.completions.is_empty() {
            self.device
                .poll(&mut self.completions, Wait::Forever)
                .map_err(|source| BenchError::System { doing: "waiting for the device", source })?;
        }
        Ok(())
    }
}

impl Side for RawSide {
    fn memory(&mut self, slot: usize) -> &mut [u8] {
        &mut self.slots[slot]
    }

    fn submit(&mut self, slot: usize, access: Access, offset: u64, length: usize) {
        let memory = &mut self.slots[slot];
        assert!(length <= memory.len(), "a request fits into its slot");
        let buffer = memory.as_mut_pointer();
        let command = match access {
            Access::Read => Command::read(slot as u64, offset, length as u64, buffer),
            Access::Write => Command::write(slot as u64, offset, length as u64, buffer),
        };
        // SAFETY: the slot's memory is valid for `length` bytes, and a slot with a request out is
        // not touched before `wait` has named it.
        unsafe { self.device.submit(command) };
    }

    fn wait(&mut self, done: &mut Vec<usize>) -> Result<(), BenchError> {
        self.poll()?;
        for completion in self.completions.drain(..) {
            completion.result.map_err(BenchError::Device)?;
            done.push(completion.tag as usize);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BenchError> {
        // SAFETY: a flush uses no memory.
        unsafe { self.device.submit(Command::flush(FLUSH_TAG)) };
        self.poll()?;
        let completion = self.completions.pop().expect("poll waited for one");
        assert_eq!(completion.tag, FLUSH_TAG, "nothing else is out");
        completion.result.map_err(BenchError::Device)
    }
}
