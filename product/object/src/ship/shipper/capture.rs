//! A data object in the making.
//!
//! # Invariants
//! - It goes one way: waiting, reading, storing. Once its object is there it is forgotten: what it holds
//!   is staged, or in a commit.

use crate::layout::{VolumeId, data};
use crate::names::Source;
use std::ops::Range;

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It takes no memory yet.
    Waiting,
    /// It is read back.
    Reading,
    /// Its object is being created.
    Storing,
}

/// A data object in the making.
#[derive(Debug)]
pub(super) struct Capture {
    pub(super) source: Source,
    /// What it holds, in the order of its bytes.
    pub(super) ranges: Vec<Range<u64>>,
    pub(super) progress: Progress,
}

impl Capture {
    pub(super) fn new(source: Source, ranges: Vec<Range<u64>>) -> Capture {
        Capture { source, ranges, progress: Progress::Waiting }
    }

    /// It was read back. Returns the object's name and its bytes.
    pub(super) fn read(&mut self, mut bytes: Vec<u8>, volume: VolumeId) -> (String, Vec<u8>) {
        self.kept();
        assert_eq!(bytes.len() as u64, self.size(), "all of it was read");
        let name = self.source.name();
        data::seal(&mut bytes, volume, &name);
        (name, bytes)
    }

    /// Its bytes are at hand.
    pub(super) fn kept(&mut self) {
        assert_eq!(self.progress, Progress::Reading, "it is read once");
        self.progress = Progress::Storing;
    }

    /// How many bytes it holds.
    pub(super) fn size(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }
}
