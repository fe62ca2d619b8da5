//! Which write of each block was the last.

/// Counts the writes of each block.
#[derive(Clone, Debug)]
pub(crate) struct Versions {
    writes: Vec<u32>,
}

impl Versions {
    /// Blocks that were never written.
    pub(crate) fn new(count: u64) -> Versions {
        Versions { writes: vec![0; count as usize] }
    }

    /// Blocks.
    pub(crate) fn count(&self) -> u64 {
        self.writes.len() as u64
    }

    /// Notes a write; returns its version.
    pub(crate) fn written(&mut self, block: u64) -> u64 {
        let writes = &mut self.writes[block as usize];
        *writes += 1;
        u64::from(*writes)
    }

    /// The version of the last write; zero if there was none.
    pub(crate) fn latest(&self, block: u64) -> u64 {
        self.writes[block as usize].into()
    }
}
