//! Prints what lies on a store, structure by structure: values that serialise to JSON and write
//! themselves as text.
//!
//! Small structures come as one value, large ones row by row through a closure that may stop, so
//! that no dump needs more memory than a check. Damage does not end a dump: what can be decoded is
//! shown, and the rest is in [`Outcome::findings`].

mod checkpoint;
mod map;
mod records;
mod segments;
mod superblock;

pub use checkpoint::{
    CheckpointDump, CopyDump, HeadDump, PlaceDump, RootDump, RunDump, checkpoint,
};
pub use map::{MapRange, MapRow, map};
pub use records::{EntryDump, RecordRow, RecordState, records};
pub use segments::{SegmentRow, segments};
pub use superblock::{SuperblockDump, SuperblockFields, SuperblockState, superblock};

use crate::blocks::ReadBlocks;
use crate::check::{Store, open};
use crate::finding::Finding;
use crate::report::Report;
use crate::window::Window;

/// Findings that a dump keeps at most.
const FINDINGS_MAX: usize = 1000;

/// How a dump went.
#[derive(Debug)]
pub struct Outcome<T> {
    /// What there was to show; `None` if nothing could be found.
    pub value: Option<T>,
    /// What was found wrong on the way. A dump looks for nothing: `check` does.
    pub findings: Vec<Finding>,
}

/// Opens the store and hands it to `show`.
fn with_store<T>(
    blocks: &mut dyn ReadBlocks,
    show: impl FnOnce(&mut Window<'_>, &Store, &mut Report) -> T,
) -> Outcome<T> {
    let mut report = Report { findings_max: FINDINGS_MAX, ..Report::default() };
    let mut window = Window::new(blocks);
    let store = open(&mut window, &mut report);
    let value = store.map(|store| show(&mut window, &store, &mut report));
    Outcome { value, findings: report.findings }
}
