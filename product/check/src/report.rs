//! What a check found.

use crate::finding::{Finding, Severity};
use coulter_format::superblock::Superblock;
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

/// The outcome of a check.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// What the newest superblock says; `None` if there is none.
    pub store: Option<StoreFacts>,
    /// What opening the store would do.
    pub recovery: Recovery,
    /// Whether every structure could be followed to its end. If not, there may be more faults than
    /// those found.
    pub complete: bool,
    /// What was found, in the order of finding.
    #[serde(serialize_with = "serialize_findings")]
    pub findings: Vec<Finding>,
    /// Findings that the list had no room for.
    pub findings_omitted: u64,
    /// How much was looked at.
    pub counters: Counters,
    #[serde(skip)]
    pub(crate) findings_max: usize,
}

impl Report {
    /// The worst finding's severity, `None` if there is no finding.
    pub fn worst(&self) -> Option<Severity> {
        let counters = &self.counters;
        if counters.faults > 0 {
            Some(Severity::Fault)
        } else if counters.warnings > 0 {
            Some(Severity::Warning)
        } else {
            self.findings.iter().map(Finding::severity).max()
        }
    }

    /// Whether nothing is wrong: information at most.
    pub fn is_sound(&self) -> bool {
        self.counters.faults == 0 && self.counters.warnings == 0
    }

    pub(crate) fn add(&mut self, finding: Finding) {
        match finding.severity() {
            Severity::Fault => self.counters.faults += 1,
            Severity::Warning => self.counters.warnings += 1,
            Severity::Info => {}
        }
        if self.findings.len() < self.findings_max {
            self.findings.push(finding);
        } else {
            self.findings_omitted += 1;
        }
    }

    /// How far it is, to come back to.
    pub(crate) fn mark(&self) -> Mark {
        Mark {
            recovery: self.recovery,
            complete: self.complete,
            findings: self.findings.len(),
            findings_omitted: self.findings_omitted,
            counters: self.counters,
        }
    }

    /// Forgets what was told since.
    pub(crate) fn rewind(&mut self, mark: Mark) {
        self.recovery = mark.recovery;
        self.complete = mark.complete;
        self.findings.truncate(mark.findings);
        self.findings_omitted = mark.findings_omitted;
        self.counters = mark.counters;
    }
}

/// How far a report was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    recovery: Recovery,
    complete: bool,
    findings: usize,
    findings_omitted: u64,
    counters: Counters,
}

/// How much was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Findings of severity fault.
    pub faults: u64,
    /// Findings of severity warning.
    pub warnings: u64,
    /// Root pages read.
    pub root_pages: u64,
    /// Roots that the checkpoint lists.
    pub roots_in_use: u64,
    /// Leaf pages read.
    pub leaf_pages: u64,
    /// Segment table pages read.
    pub table_pages: u64,
    /// Runs listed by the checkpoint.
    pub runs: u64,
    /// Run blocks read.
    pub run_blocks: u64,
    /// Updates in runs that no leaf page contains yet.
    pub run_updates: u64,
    /// Headers read of records that the checkpoint refers to.
    pub references: u64,
    /// Updates in them that no leaf page contains yet.
    pub referred_updates: u64,
    /// Leaves whose mapping could not be worked out.
    pub leaves_unknown: u64,
    /// Host blocks that are mapped, after replay.
    pub mapped_blocks: u64,
    /// Old locations that the segment table still counts.
    pub unreleased_blocks: u64,
    /// Segments that are not free, or were opened after the checkpoint.
    pub segments_in_use: u64,
    /// Record headers read in them.
    pub records: u64,
    /// Data blocks whose checksum was compared.
    pub data_blocks: u64,
}

/// What opening the store would do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Recovery {
    /// Whether any record after the checkpoint changes the map.
    pub needed: bool,
    /// Records after the checkpoint that count, those with metadata only included.
    pub records: u64,
    /// Those that change the map.
    pub records_to_replay: u64,
    /// Changes in them.
    pub updates_to_replay: u64,
    /// Intact headers behind the first gap, which do not count.
    pub records_dropped: u64,
    /// The last sequence that counts.
    pub sequence: u64,
}

/// What the newest superblock says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoreFacts {
    /// Identity, as hexadecimal digits in groups.
    pub uuid: String,
    /// The store's label.
    pub label: String,
    /// The superblock's generation.
    pub generation: u64,
    /// The epoch of the records that follow the checkpoint.
    pub epoch: u64,
    /// Whether the store was closed.
    pub clean: bool,
    /// Whether host blocks may be marked lost.
    pub may_have_lost: bool,
    /// Blocks that the store takes on the device.
    pub device_blocks: u64,
    /// Blocks that the volume exports.
    pub volume_blocks: u64,
    /// Blocks that may be mapped at once, if they lie densely.
    pub capacity_blocks: u64,
    /// Roots in use at most, of 1 GiB of addresses each; 0 if the volume is not sparse.
    pub root_limit: u32,
    /// Blocks in a segment.
    pub segment_blocks: u32,
    /// Segments.
    pub segments: u32,
    /// Every record up to this sequence is in the checkpoint.
    pub checkpoint_sequence: u64,
}

impl StoreFacts {
    pub(crate) fn new(superblock: &Superblock) -> StoreFacts {
        StoreFacts {
            uuid: uuid_text(&superblock.store.uuid),
            label: label_text(&superblock.label),
            generation: superblock.generation,
            epoch: superblock.epoch,
            clean: superblock.clean,
            may_have_lost: superblock.may_have_lost,
            device_blocks: superblock.geometry.device_size,
            volume_blocks: superblock.geometry.volume_size,
            capacity_blocks: superblock.geometry.capacity,
            root_limit: superblock.geometry.root_limit,
            segment_blocks: superblock.geometry.segment_blocks,
            segments: superblock.geometry.segment_count,
            checkpoint_sequence: superblock.checkpoint.sequence,
        }
    }
}

/// A UUID as people write it.
pub(crate) fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in uuid.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// A label without its padding; what is no UTF-8 is replaced.
pub(crate) fn label_text(label: &[u8]) -> String {
    let text: Vec<u8> = label.iter().copied().take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&text).into_owned()
}

struct Listed<'a>(&'a Finding);

impl Serialize for Listed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let finding = self.0;
        let mut fields = serializer.serialize_struct("Finding", 5)?;
        fields.serialize_field("severity", &finding.severity())?;
        fields.serialize_field("structure", &finding.structure().to_string())?;
        fields.serialize_field("address_block", &finding.address().map(|pba| pba.0))?;
        fields.serialize_field("message", &finding.to_string())?;
        fields.serialize_field("facts", finding)?;
        fields.end()
    }
}

fn serialize_findings<S: Serializer>(
    findings: &[Finding],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(findings.iter().map(Listed))
}
