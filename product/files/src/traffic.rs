//! Data on its way: a read waits for writes of its blocks that are out, and a write into blocks
//! that were given to a file anew waits for reads of what they held before.

use crate::gather::Gathered;
use crate::space::Run;

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Traffic {
    writes: Vec<(u32, Run)>,
    reads: Vec<(u32, Run)>,
    /// Tasks that wait until something is complete.
    waiting: Vec<usize>,
    /// Data that will be written.
    pub(crate) gathered: Gathered,
}

impl Traffic {
    pub(crate) fn add_write(&mut self, io: u32, run: Run) {
        assert!(run.count > 0, "what is written is something");
        self.writes.push((io, run));
    }

    pub(crate) fn add_read(&mut self, io: u32, run: Run) {
        assert!(!self.is_written(run), "a read waits for writes of its blocks");
        self.reads.push((io, run));
    }

    pub(crate) fn remove(&mut self, io: u32) {
        self.writes.retain(|(other, _)| *other != io);
        self.reads.retain(|(other, _)| *other != io);
    }

    /// A task waits until something is complete.
    pub(crate) fn wait(&mut self, task: usize) {
        self.waiting.push(task);
    }

    /// Those that waited, for something is complete.
    pub(crate) fn take_waiting(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.waiting)
    }

    pub(crate) fn is_written(&self, run: Run) -> bool {
        let is_out = self.writes.iter().any(|(_, other)| other.overlaps(run));
        is_out || self.gathered.overlaps(run)
    }

    pub(crate) fn is_read(&self, run: Run) -> bool {
        self.reads.iter().any(|(_, other)| other.overlaps(run))
    }

    /// # Panics
    /// If data is on its way that is part of no command that is out, or the other way round.
    pub(crate) fn assert_invariants(
        &self,
        is_writing: impl Fn(u32) -> bool,
        is_reading: impl Fn(u32) -> bool,
    ) {
        for (io, run) in &self.writes {
            assert!(is_writing(*io), "blocks from {} on are written by a command", run.block);
        }
        for (io, run) in &self.reads {
            assert!(is_reading(*io), "blocks from {} on are read by a command", run.block);
        }
        self.gathered.assert_invariants();
    }
}
