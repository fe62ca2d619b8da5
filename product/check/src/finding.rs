//! What can be wrong with a store, and what a person is told about it.
//!
//! Every finding is one variant with its facts; severity, structure, address and sentence follow
//! from it. The sentence says what, where, what it means, and what to do.

use crate::blocks::ReadError;
use coulter_format::checksum::Kind;
use coulter_format::{Lba, Pba, Reason, Structure};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use std::fmt;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Nothing is wrong.
    Info,
    /// Bookkeeping or a spare copy is wrong; all data are there.
    Warning,
    /// Something is lost, wrong, or about to be.
    Fault,
}

/// One of the three superblocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Copy {
    /// At block 0; holds even generations.
    A,
    /// Further on; holds odd generations.
    B,
    /// At the end of the device or before the log; holds any generation.
    C,
}

impl fmt::Display for Copy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Copy::A => "A",
            Copy::B => "B",
            Copy::C => "C",
        })
    }
}

/// Why a copy of the checkpoint's body cannot be used.
#[derive(Debug)]
pub enum BodyFault {
    /// The device does not give it.
    Unreadable(ReadError),
    /// It is not what the superblock's checksum says.
    Checksum,
}

impl fmt::Display for BodyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BodyFault::Unreadable(error) => write!(f, "it cannot be read: {error}"),
            BodyFault::Checksum => Reason::Checksum.fmt(f),
        }
    }
}

/// What a pointer leads to: a kind of block, and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// The kind.
    pub kind: Kind,
    /// The key, as [`Kind`] says.
    pub key: u64,
}

impl Owner {
    pub(crate) fn new(kind: Kind, key: u64) -> Owner {
        Owner { kind, key }
    }

    /// The structure that such a block is.
    pub(crate) fn structure(&self) -> Structure {
        match self.kind {
            Kind::Leaf | Kind::Root | Kind::RootCopy => Structure::MapPage,
            Kind::SegmentTable | Kind::TableCopy => Structure::SegmentTable,
            Kind::Run | Kind::RunCopy => Structure::Run,
            Kind::RootList | Kind::RootListCopy => Structure::RootList,
            Kind::HeaderParity => Structure::RecordHeader,
            Kind::Checkpoint => Structure::Checkpoint,
            Kind::Data | Kind::Discard => Structure::Data,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key;
        match self.kind {
            Kind::Leaf => {
                write!(f, "leaf page {key} (host blocks from {})", key.saturating_mul(512))
            }
            Kind::Root => {
                write!(f, "root page {key} (host blocks from {})", key.saturating_mul(512 * 512))
            }
            Kind::SegmentTable => write!(f, "segment table page {key}"),
            Kind::Run => write!(f, "block {} of run {}", key & 0xf_ffff, key >> 20),
            Kind::Checkpoint => write!(f, "block {key} of the checkpoint's body"),
            Kind::RootCopy => write!(f, "the second copy of root page {key}"),
            Kind::RootList => write!(f, "page {key} of the list of roots"),
            Kind::RootListCopy => {
                write!(f, "the second copy of page {key} of the list of roots")
            }
            Kind::TableCopy => write!(f, "the second copy of segment table page {key}"),
            Kind::RunCopy => {
                write!(f, "the second copy of block {} of run {}", key & 0xf_ffff, key >> 20)
            }
            Kind::HeaderParity => write!(f, "the parity of headers from block {key} on"),
            Kind::Data | Kind::Discard => write!(f, "host block {key}"),
        }
    }
}

impl Serialize for Owner {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("kind", kind_name(self.kind))?;
        map.serialize_entry("key", &self.key)?;
        map.end()
    }
}

/// The name of a kind in JSON and in dumps.
pub(crate) fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Data => "data",
        Kind::Discard => "discard",
        Kind::Leaf => "leaf",
        Kind::Root => "root",
        Kind::SegmentTable => "segment_table",
        Kind::Run => "run",
        Kind::Checkpoint => "checkpoint",
        Kind::RootCopy => "root_copy",
        Kind::RootList => "root_list",
        Kind::RootListCopy => "root_list_copy",
        Kind::TableCopy => "table_copy",
        Kind::RunCopy => "run_copy",
        Kind::HeaderParity => "header_parity",
    }
}

/// What the segment table says of a segment that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentFault {
    /// Free, yet blocks are counted in it.
    FreeWithBlocks,
    /// More blocks are counted in it than it has.
    TooManyBlocks,
    /// Listed to be opened next, though it is not free.
    ReservedNotFree,
    /// A stream appends to it, though it is free.
    HeadOfFree,
    /// Open, though no stream appends to it.
    OpenWithoutHead,
    /// A stream appends to it, though records were written into its holes.
    HeadOfPatched,
    /// Its holes are reserved, though it does not say that records may lie in them.
    HolesNotPatched,
}

/// One finding.
#[derive(Debug, Serialize)]
#[serde(tag = "finding", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Finding {
    /// Neither superblock has the magic number.
    NotAStore,
    /// A superblock was written by another format version.
    OtherVersion {
        /// Which copy.
        copy: Copy,
        /// The version found.
        version: u32,
    },
    /// A superblock uses features that this program does not know.
    OtherFeatures {
        /// Which copy.
        copy: Copy,
        /// Their bits.
        unknown: u32,
    },
    /// One copy is blank, the other is not.
    SuperblockMissing {
        /// Which copy.
        copy: Copy,
        /// Where it should be.
        #[serde(serialize_with = "as_block")]
        pba: Pba,
    },
    /// One copy is damaged.
    SuperblockDamaged {
        /// Which copy.
        copy: Copy,
        /// Where.
        #[serde(serialize_with = "as_block")]
        pba: Pba,
        /// What is wrong with it.
        #[serde(serialize_with = "as_text")]
        reason: Reason,
    },
    /// A copy's generation belongs into the other copy.
    SuperblockMisplaced {
        /// Which copy.
        copy: Copy,
        /// Where it was found.
        #[serde(serialize_with = "as_block")]
        pba: Pba,
        /// Its generation.
        generation: u64,
    },
    /// Two copies do not describe the same store, or not the same state of it.
    SuperblocksDisagree {
        /// The field that differs.
        field: &'static str,
        /// Where the copy lies that counts.
        #[serde(serialize_with = "as_block")]
        used: Pba,
        /// Where the other one lies.
        #[serde(serialize_with = "as_block")]
        other: Pba,
    },
    /// Neither of the two copies at the start of the device can be used, and the third can.
    FirstSuperblocksLost {
        /// Where the third copy lies.
        #[serde(serialize_with = "as_block")]
        third: Pba,
    },
    /// No superblock can be used.
    NoSuperblock,
    /// Records know of a newer superblock than can be found.
    SuperblockLost {
        /// The generation that they know of.
        generation: u64,
        /// The newest that was found.
        found: u64,
    },
    /// The device ends before the store does.
    DeviceTruncated {
        /// Blocks that the store needs.
        needed_blocks: u64,
        /// Blocks that the device has.
        found_blocks: u64,
    },
    /// The device failed to read a block.
    Unreadable {
        /// What should be there.
        owner: Option<Owner>,
        /// What should be there.
        #[serde(serialize_with = "as_text")]
        structure: Structure,
        /// Where.
        #[serde(serialize_with = "as_block")]
        pba: Pba,
        /// What the device says.
        #[serde(serialize_with = "as_text")]
        error: ReadError,
    },
    /// The checkpoint's body is damaged.
    CheckpointDamaged {
        /// Its first block.
        #[serde(serialize_with = "as_block")]
        pba: Pba,
        /// What is wrong with it.
        #[serde(serialize_with = "as_text")]
        reason: Reason,
    },
    /// One copy of the checkpoint's body is damaged, the other is whole.
    CheckpointCopyDamaged {
        /// The first block that is not what it should be.
        #[serde(serialize_with = "as_block")]
        pba: Pba,
        /// The first block of the copy that is whole.
        #[serde(serialize_with = "as_block")]
        whole: Pba,
        /// What is wrong with the damaged one.
        #[serde(serialize_with = "as_text")]
        fault: BodyFault,
    },
    /// One of the two copies is damaged of a block that the checkpoint lists; or one of a group of headers, or their
    /// parity.
    CopyDamaged {
        /// The second copy, or the parity.
        owner: Owner,
        /// The damaged block: of the first copy or of the second; of a header or the parity.
        #[serde(serialize_with = "as_block")]
        pba: Pba,
        /// The block of the copy that is whole, if one is: of the parity; or of the first header.
        #[serde(serialize_with = "as_optional_block")]
        whole: Option<Pba>,
        /// What is wrong with the damaged one.
        #[serde(serialize_with = "as_text")]
        fault: BodyFault,
    },
    /// Both copies of a block match their checksum, and yet they differ.
    CopiesDiffer {
        /// The second copy, or a block of the checkpoint's body.
        owner: Owner,
        /// The copy that counts.
        #[serde(serialize_with = "as_block")]
        used: Pba,
        /// The other one.
        #[serde(serialize_with = "as_block")]
        other: Pba,
        /// The first byte in which they differ.
        offset: usize,
    },
    /// The header of a record after the checkpoint is damaged or cannot be read, and was rebuilt from what another
    /// header tells of it, and from its payload.
    LogHeaderDamaged {
        /// Where it lies.
        #[serde(serialize_with = "as_block")]
        pba: Pba,
        /// The header that tells of it.
        #[serde(serialize_with = "as_block")]
        holder: Pba,
    },
    /// The checkpoint's body is intact, but says what cannot be.
    CheckpointContradicts {
        /// Its first block.
        #[serde(serialize_with = "as_block")]
        pba: Pba,
        /// The field or list.
        field: &'static str,
        /// The value that cannot be.
        value: u64,
    },
    /// A metadata block does not match its checksum, or cannot be decoded.
    MetadataDamaged {
        /// Which one.
        owner: Owner,
        /// Where.
        #[serde(serialize_with = "as_block")]
        pba: Pba,
        /// What is wrong with it.
        #[serde(serialize_with = "as_text")]
        reason: Reason,
    },
    /// The blocks of a run are not sorted.
    RunUnsorted {
        /// The run's number.
        run: u64,
        /// The host address that comes too late.
        #[serde(serialize_with = "as_host_block")]
        lba: Lba,
    },
    /// What the checkpoint refers to is not the header of a record that it can be.
    ReferenceDamaged {
        /// Where the header should be.
        #[serde(serialize_with = "as_block")]
        pba: Pba,
        /// What is wrong.
        #[serde(serialize_with = "as_text")]
        reason: Reason,
    },
    /// A pointer leads out of the log.
    PointerOutside {
        /// What it should lead to.
        owner: Owner,
        /// Where it leads.
        #[serde(serialize_with = "as_block")]
        pba: Pba,
    },
    /// A pointer leads to a place where the log has nothing: a free segment, or behind a head.
    PointerIntoFree {
        /// What it should lead to.
        owner: Owner,
        /// Where it leads.
        #[serde(serialize_with = "as_block")]
        pba: Pba,
        /// The segment.
        segment: u32,
    },
    /// Two pointers lead to one block.
    BlockShared {
        /// The block.
        #[serde(serialize_with = "as_block")]
        pba: Pba,
        /// What one leads to.
        first: Owner,
        /// What the other leads to.
        second: Owner,
    },
    /// A mapped host address lies behind the end of the volume.
    OutsideVolume {
        /// The first such address of its leaf.
        #[serde(serialize_with = "as_host_block")]
        lba: Lba,
        /// Where it points.
        #[serde(serialize_with = "as_block")]
        pba: Pba,
    },
    /// Map and record header disagree about a block.
    PointerMismatch {
        /// The block.
        #[serde(serialize_with = "as_block")]
        pba: Pba,
        /// What the map takes it for.
        owner: Owner,
        /// What the record says it is.
        recorded: Owner,
        /// Whether kind and key agree, but not the checksum.
        checksum_only: bool,
    },
    /// No intact record header covers blocks that are in use.
    RecordMissing {
        /// The segment.
        segment: u32,
        /// Where the header should be, or the first block that lacks one.
        #[serde(serialize_with = "as_block")]
        pba: Pba,
        /// Blocks in use that it should cover.
        blocks: u64,
    },
    /// The records of a segment do not lead up to where the checkpoint, or replay, says they end.
    ChainBroken {
        /// The segment.
        segment: u32,
        /// Where the next header should be.
        #[serde(serialize_with = "as_block")]
        pba: Pba,
        /// Where the records should end.
        #[serde(serialize_with = "as_block")]
        expected_end: Pba,
    },
    /// A map page was damaged once: where these blocks lay is not known any more.
    BlocksLost {
        /// The first of them.
        #[serde(serialize_with = "as_host_block")]
        lba: Lba,
        /// How many, all in one leaf.
        blocks: u64,
    },
    /// The checkpoint marks a block lost, and its superblock says that none is.
    LossUntold {
        /// The first such block of a leaf.
        #[serde(serialize_with = "as_host_block")]
        lba: Lba,
    },
    /// The segment table holds fewer blocks for valid than are in use.
    ValidTooLow {
        /// The segment.
        segment: u32,
        /// Blocks counted in the map.
        counted: u32,
        /// What the table says.
        recorded: u32,
    },
    /// The segment table holds more blocks for valid than are in use.
    ValidTooHigh {
        /// The segment.
        segment: u32,
        /// Blocks counted in the map.
        counted: u32,
        /// What the table says.
        recorded: u32,
    },
    /// What is counted in a sparse store is more than it may be.
    CapacityExceeded {
        /// Blocks of the table or of the map, whichever are more, and of the roots.
        charged: u64,
        /// How many there may be.
        limit: u64,
    },
    /// The segment table contradicts itself or the checkpoint.
    SegmentContradicts {
        /// The segment.
        segment: u32,
        /// How.
        fault: SegmentFault,
    },
    /// A record that was durable is missing or damaged.
    DurableRecordMissing {
        /// The first sequence that cannot be replayed.
        sequence: u64,
        /// Records up to this sequence were durable.
        durable_sequence: u64,
        /// Where the record is, if its header is intact.
        #[serde(serialize_with = "as_optional_block")]
        pba: Option<Pba>,
        /// Whether what tells so lies further behind than recovery looks: opening the store drops the record and
        /// all that follow.
        opens: bool,
    },
    /// Two records after the checkpoint have the same sequence.
    SequenceTwice {
        /// The sequence.
        sequence: u64,
        /// One record.
        #[serde(serialize_with = "as_block")]
        first: Pba,
        /// The other.
        #[serde(serialize_with = "as_block")]
        second: Pba,
    },
    /// A record that counts says what none can.
    RecordContradicts {
        /// Its header.
        #[serde(serialize_with = "as_block")]
        pba: Pba,
        /// The field.
        field: &'static str,
        /// The value that cannot be.
        value: u64,
    },
    /// A number that only goes up has come so far that no writer opens the store.
    NumberSpent {
        /// What says so.
        #[serde(serialize_with = "as_text")]
        structure: Structure,
        /// Where.
        #[serde(serialize_with = "as_block")]
        pba: Pba,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A relocation names a source at which the block never was.
    RelocationUnfounded {
        /// The record's sequence.
        sequence: u64,
        /// The host address.
        #[serde(serialize_with = "as_host_block")]
        lba: Lba,
        /// The source that the record names.
        #[serde(serialize_with = "as_block")]
        pba: Pba,
    },
    /// The superblock says that nothing follows the checkpoint, but something does.
    CleanButWritten {
        /// Records with changes of the map.
        records: u64,
    },
    /// A data block does not match its checksum.
    DataDamaged {
        /// The host address.
        #[serde(serialize_with = "as_host_block")]
        lba: Lba,
        /// Where it lies.
        #[serde(serialize_with = "as_block")]
        pba: Pba,
    },
    /// The store was not closed; opening it replays records.
    NeedsRecovery {
        /// Records to replay that change the map.
        records: u64,
        /// Changes in them.
        updates: u64,
    },
    /// Records that were on their way when the power went: they were not durable.
    TornTail {
        /// The first sequence that is missing or torn.
        sequence: u64,
        /// Intact headers that come later; they are dropped too.
        dropped_records: u64,
    },
}

impl Finding {
    /// How bad it is.
    pub fn severity(&self) -> Severity {
        use Finding as F;
        match self {
            F::NeedsRecovery { .. } | F::TornTail { .. } => Severity::Info,
            F::SuperblockMissing { .. }
            | F::SuperblockDamaged { .. }
            | F::CheckpointCopyDamaged { .. }
            | F::CopyDamaged { .. }
            | F::LogHeaderDamaged { .. }
            | F::OutsideVolume { .. }
            | F::BlocksLost { .. }
            | F::LossUntold { .. }
            | F::ValidTooHigh { .. }
            | F::CleanButWritten { .. } => Severity::Warning,
            F::SegmentContradicts { fault: SegmentFault::OpenWithoutHead, .. } => Severity::Warning,
            _ => Severity::Fault,
        }
    }

    /// The structure that is concerned.
    pub fn structure(&self) -> Structure {
        use Finding as F;
        match self {
            F::NotAStore
            | F::OtherVersion { .. }
            | F::OtherFeatures { .. }
            | F::SuperblockMissing { .. }
            | F::SuperblockDamaged { .. }
            | F::SuperblockMisplaced { .. }
            | F::SuperblocksDisagree { .. }
            | F::FirstSuperblocksLost { .. }
            | F::NoSuperblock
            | F::SuperblockLost { .. }
            | F::DeviceTruncated { .. }
            | F::CleanButWritten { .. }
            | F::LossUntold { .. }
            | F::NeedsRecovery { .. } => Structure::Superblock,
            F::CheckpointDamaged { .. }
            | F::CheckpointCopyDamaged { .. }
            | F::CheckpointContradicts { .. } => Structure::Checkpoint,
            F::Unreadable { structure, .. } | F::NumberSpent { structure, .. } => *structure,
            F::MetadataDamaged { owner, .. }
            | F::CopyDamaged { owner, .. }
            | F::CopiesDiffer { owner, .. } => owner.structure(),
            F::RunUnsorted { .. } => Structure::Run,
            F::ReferenceDamaged { .. } | F::LogHeaderDamaged { .. } => Structure::RecordHeader,
            F::PointerOutside { .. }
            | F::PointerIntoFree { .. }
            | F::BlockShared { .. }
            | F::BlocksLost { .. }
            | F::OutsideVolume { .. } => Structure::MapPage,
            F::PointerMismatch { .. }
            | F::RecordMissing { .. }
            | F::ChainBroken { .. }
            | F::DurableRecordMissing { .. }
            | F::SequenceTwice { .. }
            | F::RecordContradicts { .. }
            | F::RelocationUnfounded { .. }
            | F::TornTail { .. } => Structure::RecordHeader,
            F::ValidTooLow { .. }
            | F::ValidTooHigh { .. }
            | F::CapacityExceeded { .. }
            | F::SegmentContradicts { .. } => Structure::SegmentTable,
            F::DataDamaged { .. } => Structure::Data,
        }
    }

    /// The block that is concerned, if there is one.
    pub fn address(&self) -> Option<Pba> {
        use Finding as F;
        match self {
            F::SuperblockMissing { pba, .. }
            | F::SuperblockDamaged { pba, .. }
            | F::SuperblockMisplaced { pba, .. }
            | F::Unreadable { pba, .. }
            | F::CheckpointDamaged { pba, .. }
            | F::CheckpointCopyDamaged { pba, .. }
            | F::CopyDamaged { pba, .. }
            | F::LogHeaderDamaged { pba, .. }
            | F::CheckpointContradicts { pba, .. }
            | F::MetadataDamaged { pba, .. }
            | F::ReferenceDamaged { pba, .. }
            | F::PointerOutside { pba, .. }
            | F::PointerIntoFree { pba, .. }
            | F::BlockShared { pba, .. }
            | F::OutsideVolume { pba, .. }
            | F::PointerMismatch { pba, .. }
            | F::RecordMissing { pba, .. }
            | F::ChainBroken { pba, .. }
            | F::RecordContradicts { pba, .. }
            | F::NumberSpent { pba, .. }
            | F::RelocationUnfounded { pba, .. }
            | F::DataDamaged { pba, .. } => Some(*pba),
            F::SequenceTwice { second, .. } => Some(*second),
            F::CopiesDiffer { other, .. } | F::SuperblocksDisagree { other, .. } => Some(*other),
            F::DurableRecordMissing { pba, .. } => *pba,
            _ => None,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::sentence::write(self, f)
    }
}

fn as_block<S: Serializer>(pba: &Pba, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u32(pba.0)
}

fn as_optional_block<S: Serializer>(pba: &Option<Pba>, serializer: S) -> Result<S::Ok, S::Error> {
    pba.map(|pba| pba.0).serialize(serializer)
}

fn as_host_block<S: Serializer>(lba: &Lba, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(lba.0)
}

fn as_text<T: fmt::Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}
