//! Data on its way: a read waits for writes of its blocks that are out, and a write into blocks that were
//! given to a file anew waits for reads of what they held before.

use crate::gather::Gathered;
use crate::space::Run;

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Traffic {
    writes: Vec<(u32, Run)>,
    reads: Vec<(u32, Run)>,
    /// What will be written.
    pub(crate) gathered: Gathered,
}

impl Traffic {
    pub(crate) fn add_write(&mut self, io: u32, run: Run) {
        self.writes.push((io, run));
    }

    pub(crate) fn add_read(&mut self, io: u32, run: Run) {
        self.reads.push((io, run));
    }

    pub(crate) fn remove(&mut self, io: u32) {
        self.writes.retain(|(other, _)| *other != io);
        self.reads.retain(|(other, _)| *other != io);
    }

    pub(crate) fn is_written(&self, run: Run) -> bool {
        let is_out = self.writes.iter().any(|(_, other)| other.overlaps(run));
        is_out || self.gathered.overlaps(run)
    }

    pub(crate) fn is_read(&self, run: Run) -> bool {
        self.reads.iter().any(|(_, other)| other.overlaps(run))
    }
}
