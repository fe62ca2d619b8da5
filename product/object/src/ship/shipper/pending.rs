//! A commit in the making.
//!
//! # Invariants
//! - `frozen` is what the cut counts and was not read back; nothing may change it on the device.

use super::JobId;
use crate::layout::Entry;
use crate::layout::commit::Inline;
use crate::names::CommitId;
use crate::ranges::RangeSet;
use std::collections::BTreeSet;
use std::ops::Range;

/// A commit in the making.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) id: CommitId,
    pub(super) cut: u64,
    pub(super) entries: Vec<Entry>,
    pub(super) frozen: RangeSet,
    /// Captures that it refers to and whose objects are not there yet.
    pub(super) waits_for: BTreeSet<JobId>,
    /// The bytes that it carries itself are being read back.
    pub(super) inline_job: Option<JobId>,
    pub(super) inline: Inline,
    /// Its object is being created.
    pub(super) commit_job: Option<JobId>,
    pub(super) checksum: u32,
    /// Bytes of that object.
    pub(super) size: u64,
    /// Bytes that it makes durable elsewhere.
    pub(super) total: u64,
}

impl Pending {
    /// Whether it can be created.
    pub(super) fn is_ready(&self) -> bool {
        let has_all = self.inline_job.is_none() && self.waits_for.is_empty();
        if has_all {
            assert!(self.frozen.is_empty(), "what was read back is frozen no more");
        }
        has_all && self.commit_job.is_none()
    }

    /// The bytes that it carries itself were read back.
    pub(super) fn inline_read(&mut self, bytes: Vec<u8>) {
        assert!(self.inline_job.take().is_some(), "they are read once");
        self.inline.bytes = bytes;
        for range in &self.inline.ranges {
            self.frozen.remove(range);
        }
    }

    /// Whether it says something of a range.
    pub(super) fn covers(&self, range: &Range<u64>) -> bool {
        let overlaps = |one: &Range<u64>| one.start < range.end && range.start < one.end;
        self.inline.ranges.iter().any(overlaps)
            || self.entries.iter().any(|entry| overlaps(&entry.range))
    }
}
