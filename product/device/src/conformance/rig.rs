//! Submitting and waiting with memory that outlives the commands, for the checks.

use super::{Access, Fixture, SIZE_MIN};
use crate::aligned::AlignedMemory;
use crate::command::{Command, Completion, Wait};
use crate::contract::Device;
use crate::device_error::DeviceErrorKind;
use std::time::Duration;

/// Longer than any command takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A device and the memory that its commands use. The device is dropped first.
pub(super) struct Rig {
    pub(super) device: Box<dyn Device>,
    pub(super) memory: AlignedMemory,
    outstanding: usize,
    completions: Vec<Completion>,
}

impl Rig {
    /// A device for reading and writing, with `length` bytes of memory.
    pub(super) fn new(fixture: &dyn Fixture, length: usize) -> Rig {
        Rig::with_access(fixture, length, Access::ReadWrite)
    }

    pub(super) fn with_access(fixture: &dyn Fixture, length: usize, access: Access) -> Rig {
        let device = fixture.open(access).expect("the content is free");
        Rig::on(device, length)
    }

    pub(super) fn on(device: Box<dyn Device>, length: usize) -> Rig {
        assert!(device.properties().size >= SIZE_MIN, "the fixture is large enough");
        let memory = AlignedMemory::zeroed(length);
        Rig { device, memory, outstanding: 0, completions: Vec::new() }
    }

    pub(super) fn alignment(&self) -> u64 {
        self.device.properties().alignment
    }

    pub(super) fn size(&self) -> u64 {
        self.device.properties().size
    }

    /// The address of a byte of the memory, to put into a command.
    pub(super) fn address(&mut self, at: usize) -> *mut u8 {
        assert!(at < self.memory.len(), "the byte lies in the memory");
        self.memory.as_mut_pointer().wrapping_add(at)
    }

    /// Submits a command that uses nothing but this rig's memory.
    pub(super) fn submit(&mut self, command: Command) {
        self.outstanding += 1;
        // SAFETY: the memory is the rig's own, lives longer than the device, and no check looks
        // at the parts that a command uses before its completion.
        unsafe { self.device.submit(command) };
    }

    pub(super) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Waits for at least one completion and hands it to `take`, with all others that are there.
    pub(super) fn wait(&mut self, mut take: impl FnMut(&mut Rig, Completion)) {
        assert!(self.outstanding > 0, "there is something to wait for");
        let mut completions = std::mem::take(&mut self.completions);
        let deadline = std::time::Instant::now() + PATIENCE;
        while completions.is_empty() {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            assert!(!left.is_zero(), "{} commands never completed", self.outstanding);
            self.device.poll(&mut completions, Wait::For(left)).expect("the device can be polled");
        }
        assert!(completions.len() <= self.outstanding, "every command completes once");
        self.outstanding -= completions.len();
        for completion in completions.drain(..) {
            take(self, completion);
        }
        self.completions = completions;
    }

    /// Runs one command and gives its outcome.
    pub(super) fn run(&mut self, command: Command) -> Result<(), DeviceErrorKind> {
        assert_eq!(self.outstanding, 0, "nothing else is under way");
        self.submit(command);
        let mut result = None;
        self.wait(|_, completion| {
            assert_eq!(completion.tag, command.tag, "the tag comes back");
            result = Some(completion.result.map_err(|error| error.kind));
        });
        result.expect("a completion was taken")
    }

    pub(super) fn write(&mut self, offset: u64, at: usize, length: usize) {
        assert!(at + length <= self.memory.len(), "the bytes lie in the memory");
        let address = self.address(at);
        let result = self.run(Command::write(1, offset, length as u64, address));
        assert_eq!(result, Ok(()), "write of {length} bytes at {offset}");
    }

    pub(super) fn read(&mut self, offset: u64, at: usize, length: usize) {
        assert!(at + length <= self.memory.len(), "the bytes lie in the memory");
        let address = self.address(at);
        let result = self.run(Command::read(2, offset, length as u64, address));
        assert_eq!(result, Ok(()), "read of {length} bytes at {offset}");
    }
}
