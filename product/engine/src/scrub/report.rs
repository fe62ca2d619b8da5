//! What a scrub is asked for, and what it tells.

use crate::memory;
use alloc::vec::Vec;
use coulter_format::checksum::Kind;
use coulter_format::{Lba, Pba};

/// Findings that are kept one by one; of more there are only counts.
pub const FINDINGS_MAX: usize = 256;

/// Why a block is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Its content does not match its checksum.
    Damaged,
    /// The device reported this error number.
    Unreadable(i32),
    /// The map page that told where it lies is damaged.
    Lost,
    /// It matches its checksum, and so does its other copy, which is used; and yet they differ.
    Differs {
        /// Where the copy lies that is used.
        used: Pba,
    },
}

/// A part of the store's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// A leaf page of the map.
    LeafPage,
    /// A root page of the map.
    RootPage,
    /// A page of the list of roots.
    RootList,
    /// A page of the segment table.
    SegmentTable,
    /// A block of a run.
    Run,
    /// A header that the checkpoint refers to.
    Header,
    /// The checkpoint's body.
    Checkpoint,
    /// A superblock.
    Superblock,
}

impl Part {
    /// The part that blocks of this kind, or copies of them, belong to.
    pub(super) fn of(kind: Kind) -> Part {
        match kind {
            Kind::Root | Kind::RootCopy => Part::RootPage,
            Kind::RootList | Kind::RootListCopy => Part::RootList,
            Kind::SegmentTable | Kind::TableCopy => Part::SegmentTable,
            Kind::Run | Kind::RunCopy => Part::Run,
            Kind::HeaderParity => Part::Header,
            Kind::Checkpoint => Part::Checkpoint,
            Kind::Leaf | Kind::Data | Kind::Discard => Part::LeafPage,
        }
    }

    /// Its name in the glossary.
    pub const fn name(self) -> &'static str {
        match self {
            Part::LeafPage => "leaf page",
            Part::RootPage => "root page",
            Part::RootList => "page of the list of roots",
            Part::SegmentTable => "segment table page",
            Part::Run => "run block",
            Part::Header => "record header",
            Part::Checkpoint => "checkpoint body",
            Part::Superblock => "superblock",
        }
    }
}

/// Something that a scrub found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Host blocks that cannot be read. There is no other copy of them.
    Blocks {
        /// The first.
        lba: Lba,
        /// How many.
        count: u32,
        /// Why.
        trouble: Trouble,
    },
    /// A block of metadata.
    Metadata {
        /// What it belongs to.
        part: Part,
        /// Where it lies.
        pba: Pba,
        /// What is wrong with it.
        trouble: Trouble,
        /// Whether it is written anew elsewhere, from another copy or from memory.
        is_repaired: bool,
    },
}

/// What a scrub is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScrubState {
    /// There was none since the store was opened.
    #[default]
    Never,
    /// It goes on.
    Running,
    /// It was stopped before its end.
    Stopped,
    /// It has gone through everything.
    Done,
}

/// How far a scrub is, and what it has found. Counts are of this scrub, from where it began or was resumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// What it is at.
    pub state: ScrubState,
    /// Host blocks below this address have been gone through; to be told to the next scrub if it is to go on
    /// from here.
    pub next: u64,
    /// Host blocks of the volume.
    pub end: u64,
    /// Host blocks that were read and compared.
    pub blocks_checked: u64,
    /// Blocks of metadata that were read and compared.
    pub metadata_checked: u64,
    /// Host blocks that cannot be read.
    pub blocks_damaged: u64,
    /// Blocks of metadata that were damaged or could not be read.
    pub metadata_damaged: u64,
    /// Of these, those that were written anew.
    pub metadata_repaired: u64,
}

/// The findings of a scrub.
#[derive(Debug, Default)]
pub(super) struct Findings {
    all: Vec<Finding>,
}

impl Findings {
    pub(super) fn all(&self) -> &[Finding] {
        &self.all
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
    }

    /// Host blocks come in order: neighbours become one finding.
    pub(super) fn add(&mut self, finding: Finding) {
        if let (
            Some(Finding::Blocks { lba, count, trouble }),
            Finding::Blocks { lba: next, count: more, trouble: as_before },
        ) = (self.all.last_mut(), finding)
            && lba.0 + u64::from(*count) == next.0
            && *trouble == as_before
        {
            *count += more;
            return;
        }
        if self.all.len() < FINDINGS_MAX && memory::reserve(&mut self.all).is_ok() {
            self.all.push(finding);
        }
    }

    /// What was found of metadata and could be written anew is so no more if it is found again.
    pub(super) fn is_not_repaired(&mut self, found: Pba) {
        for finding in &mut self.all {
            if let Finding::Metadata { pba, is_repaired, .. } = finding
                && *pba == found
            {
                *is_repaired = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(lba: u64, count: u32, trouble: Trouble) -> Finding {
        Finding::Blocks { lba: Lba(lba), count, trouble }
    }

    #[test]
    fn neighbours_with_the_same_trouble_are_one_finding() {
        let mut findings = Findings::default();
        for finding in [
            blocks(4, 1, Trouble::Damaged),
            blocks(5, 2, Trouble::Damaged),
            blocks(7, 1, Trouble::Lost),
            blocks(9, 1, Trouble::Lost),
        ] {
            findings.add(finding);
        }
        let expected = [
            blocks(4, 3, Trouble::Damaged),
            blocks(7, 1, Trouble::Lost),
            blocks(9, 1, Trouble::Lost),
        ];
        assert_eq!(findings.all(), expected);
    }

    #[test]
    fn no_more_findings_are_kept_than_there_is_room_for() {
        let mut findings = Findings::default();
        (0..2 * FINDINGS_MAX as u64).for_each(|i| findings.add(blocks(2 * i, 1, Trouble::Lost)));
        assert_eq!(findings.all().len(), FINDINGS_MAX);
    }
}
