//! What can be wrong with a store, and what a person is told about it: one table.
//!
//! A row is a finding with its facts, severity, structure, address and sentence. The sentence says
//! what, where, what it means, and what to do.

use crate::blocks::ReadError;
pub(crate) use crate::subject::{BodyFault, kind_name};
pub use crate::subject::{Copy, Owner, SegmentFault, Severity};
use coulter_format::{FORMAT_VERSION, Lba, Pba, Reason, Structure};
use serde::{Serialize, Serializer};
use std::fmt;

/// Makes [`Finding`] of its table. In a row the fields are references.
macro_rules! findings {
    ($(
        $(#[$attribute:meta])*
        $finding:ident $({ $( $field:ident : $kind:ty ),* $(,)? })? =>
            $severity:expr, $structure:expr, $address:expr,
            $sentence:literal $(, $argument:expr )* ;
    )+) => {
        /// One finding.
        #[derive(Debug, Serialize)]
        #[serde(tag = "finding", rename_all = "snake_case")]
        #[non_exhaustive]
        #[expect(missing_docs, reason = "a field is what its name says of its finding")]
        pub enum Finding {
            $(
                $(#[$attribute])*
                $finding $({ $( #[serde(serialize_with = "fact")] $field : $kind ),* })?
            ),+
        }

        #[expect(unused_variables, reason = "no row needs each of its fields everywhere")]
        impl Finding {
            /// How bad it is.
            pub fn severity(&self) -> Severity {
                use Severity::*;
                match self {
                    $( Finding::$finding $({ $( $field ),* })? => $severity ),+
                }
            }

            /// The structure that is concerned.
            pub fn structure(&self) -> Structure {
                use Structure::*;
                match self {
                    $( Finding::$finding $({ $( $field ),* })? => $structure ),+
                }
            }

            /// The block that is concerned, if there is one.
            pub fn address(&self) -> Option<Pba> {
                match self {
                    $( Finding::$finding $({ $( $field ),* })? => $address ),+
                }
            }
        }

        impl fmt::Display for Finding {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(
                        Finding::$finding $({ $( $field ),* })? =>
                            write!(f, $sentence $(, $argument )*)
                    ),+
                }
            }
        }
    };
}

findings! {
    /// Neither superblock has the magic number.
    NotAStore =>
        Fault, Superblock, None,
        "no superblock was found: this is no store, or its start was overwritten; check that \
        the path is right, and do not format it if it may have been a store";
    /// A superblock was written by another format version.
    OtherVersion { copy: Copy, version: u32 } =>
        Fault, Superblock, None,
        "superblock {copy} has format version {version}, and this program reads version \
        {FORMAT_VERSION}; use a coulter that reads version {version}";
    /// A superblock uses features that this program does not know.
    OtherFeatures { copy: Copy, unknown: u32 } =>
        Fault, Superblock, None,
        "superblock {copy} has features ({unknown:#x}) that this program does not know: a \
        newer coulter has opened the store; use that one";
    /// One copy is blank, the other is not.
    SuperblockMissing { copy: Copy, pba: Pba } =>
        Warning, Superblock, Some(*pba),
        "superblock {copy} at block {} is not there: formatting was interrupted or the block \
        was overwritten; the other copy serves, and the next checkpoint but one writes this \
        one again: attach the store and detach it, twice", pba.0;
    /// One copy is damaged.
    SuperblockDamaged { copy: Copy, pba: Pba, reason: Reason } =>
        Warning, Superblock, Some(*pba),
        "superblock {copy} at block {} is damaged ({reason}); the store rests on the other \
        copy alone until two more checkpoints are written: attach the store and detach it, \
        twice", pba.0;
    /// A copy's generation belongs into the other copy.
    SuperblockMisplaced { copy: Copy, pba: Pba, generation: u64 } =>
        Fault, Superblock, Some(*pba),
        "superblock {copy} at block {} holds generation {generation}, which belongs into the \
        other copy: if a store begins there, on a partition, name that; if not, the device has \
        written it to the wrong place; do not trust this device", pba.0;
    /// Two copies do not describe the same store, or not the same state of it: the one at
    /// `used` counts.
    SuperblocksDisagree { field: &'static str, used: Pba, other: Pba } =>
        Fault, Superblock, Some(*other),
        "the superblocks at blocks {} and {} disagree about `{field}`, and both are valid: one \
        of them belongs to another store or to another state of this one that was copied over \
        it, or was made on purpose; the one at block {} counts; restore the right one from a \
        backup", used.0, other.0, used.0;
    /// Neither of the two copies at the start of the device can be used, and the third can.
    FirstSuperblocksLost { third: Pba } =>
        Fault, Superblock, None,
        "both superblocks at the start of the device are gone: something else was written \
        there, perhaps by mkfs; a third copy at block {} is whole: attach the store read-only, \
        or take the data out with `coulter salvage`", third.0;
    /// No superblock can be used.
    NoSuperblock =>
        Fault, Superblock, None,
        "neither superblock can be used, so nothing in the store can be found; restore the \
        store from a backup";
    /// Records know of a newer superblock than can be found.
    SuperblockLost { generation: u64, found: u64 } =>
        Fault, Superblock, None,
        "the newest superblock has generation {found}, but records were written after \
        generation {generation} was durable: the newer copy is damaged or was not kept by the \
        device; the older one leads to a state that is long over, so the store refuses to \
        open; salvage it, or restore it from a backup";
    /// The device ends before the store does.
    DeviceTruncated { needed_blocks: u64, found_blocks: u64 } =>
        Fault, Superblock, None,
        "the device has {found_blocks} blocks, and the store needs {needed_blocks}: the file \
        or disk was cut short; make it as large as it was before anything else";
    /// The device failed to read a block.
    Unreadable { owner: Option<Owner>, structure: Structure, pba: Pba, error: ReadError } =>
        Fault, *structure, Some(*pba),
        "{} at block {} cannot be read: {error}{}", subject(owner, *structure), pba.0,
        advice_on_unreadable(owner, *structure);
    /// The checkpoint's body is damaged.
    CheckpointDamaged { pba: Pba, reason: Reason } =>
        Fault, Checkpoint, Some(*pba),
        "the checkpoint's body at block {} is damaged ({reason}): the map is found through it; \
        salvage the store, or restore it from a backup", pba.0;
    /// One copy of the checkpoint's body is damaged, the other is whole.
    CheckpointCopyDamaged { pba: Pba, whole: Pba, fault: BodyFault } =>
        Warning, Checkpoint, Some(*pba),
        "one copy of the checkpoint's body is damaged at block {} ({fault}); the other, at \
        block {}, is whole: nothing is lost, and the next checkpoint writes both anew",
        pba.0, whole.0;
    /// One of the two copies is damaged of a block that the checkpoint lists; or one of a
    /// group of headers, or their parity. `owner` is the second copy, or the parity; `whole`
    /// is the block of the copy that is whole, if one is: of the parity, or of the first header.
    CopyDamaged { owner: Owner, pba: Pba, whole: Option<Pba>, fault: BodyFault } =>
        Warning, owner.structure(), Some(*pba),
        "{}", copy_damaged(owner, *pba, *whole, fault);
    /// Both copies of a block match their checksum, and yet they differ from byte `offset` on:
    /// the one at `used` counts. `owner` is the second copy, or a block of the checkpoint.
    CopiesDiffer { owner: Owner, used: Pba, other: Pba, offset: usize } =>
        Fault, owner.structure(), Some(*other),
        "blocks {} and {} should be the same, of which the latter is {owner}, and differ from \
        byte {offset} on, though both match their checksum: no accident does that but one in \
        2^32; the one at block {} is used; whether it is the right one nothing tells: compare \
        the volume with a backup, or restore it", used.0, other.0, used.0;
    /// The header of a record after the checkpoint is damaged or cannot be read, and was
    /// rebuilt from what another header (`holder`) tells of it, and from its payload.
    LogHeaderDamaged { pba: Pba, holder: Pba } =>
        Warning, RecordHeader, Some(*pba),
        "the header at block {} of a record after the checkpoint is damaged or unreadable; \
        what the header at block {} tells of it, and its payload, are whole: nothing is lost; \
        open the store for writing, and the next checkpoint contains the record",
        pba.0, holder.0;
    /// The checkpoint's body is intact, but says what cannot be.
    CheckpointContradicts { pba: Pba, field: &'static str, value: u64 } =>
        Fault, Checkpoint, Some(*pba),
        "the checkpoint's body at block {} says {value} for `{field}`, which cannot be in this \
        store; that is a mistake of the program that wrote it: please report it, with the \
        output of `coulter dump`", pba.0;
    /// A metadata block does not match its checksum, or cannot be decoded.
    MetadataDamaged { owner: Owner, pba: Pba, reason: Reason } =>
        Fault, owner.structure(), Some(*pba),
        "{owner} at block {} is damaged ({reason}): {}", pba.0, owner.consequence();
    /// The blocks of a run are not sorted.
    RunUnsorted { run: u64, lba: Lba } =>
        Fault, Run, None,
        "run {run} is not sorted at host block {}: updates in it are not found; that is a \
        mistake of the program that wrote it: please report it", lba.0;
    /// What the checkpoint refers to is not the header of a record that it can be.
    ReferenceDamaged { pba: Pba, reason: Reason } =>
        Fault, RecordHeader, Some(*pba),
        "the header at block {} is not the one that the checkpoint refers to ({reason}): where \
        the blocks of its record belong is not known; salvage the store, or restore it from a \
        backup", pba.0;
    /// A pointer leads out of the log.
    PointerOutside { owner: Owner, pba: Pba } =>
        Fault, MapPage, Some(*pba),
        "the pointer to {owner} leads to block {}, outside the log: the block is lost; restore \
        it from a backup, and please report this", pba.0;
    /// A pointer leads to a place where the log has nothing: a free segment, or behind a head.
    PointerIntoFree { owner: Owner, pba: Pba, segment: u32 } =>
        Fault, MapPage, Some(*pba),
        "the pointer to {owner} leads to block {} of segment {segment}, where nothing is kept: \
        the block is lost or soon will be; copy what you can to another store, and please \
        report this", pba.0;
    /// Two pointers lead to one block.
    BlockShared { pba: Pba, first: Owner, second: Owner } =>
        Fault, MapPage, Some(*pba),
        "{first} and {second} are both said to lie at block {}: one of them is lost; restore \
        it from a backup, and please report this", pba.0;
    /// A mapped host address lies behind the end of the volume.
    OutsideVolume { lba: Lba, pba: Pba } =>
        Warning, MapPage, Some(*pba),
        "host block {} lies behind the end of the volume, and yet is mapped to block {}: its \
        space is not used; nothing is lost", lba.0, pba.0;
    /// Map (`owner`) and record header (`recorded`) disagree about a block; `checksum_only` if
    /// kind and key agree.
    PointerMismatch { pba: Pba, owner: Owner, recorded: Owner, checksum_only: bool } =>
        Fault, RecordHeader, Some(*pba),
        "{}", pointer_mismatch(*pba, owner, recorded, *checksum_only);
    /// No intact record header covers blocks that are in use.
    RecordMissing { segment: u32, pba: Pba, blocks: u64 } =>
        Fault, RecordHeader, Some(*pba),
        "the record header at block {} of segment {segment} is damaged or not there: its \
        {blocks} blocks in use can be read, but the segment can never be cleaned; overwrite \
        them, or copy the volume to another store", pba.0;
    /// The records of a segment do not lead up to where the checkpoint, or replay, says they
    /// end.
    ChainBroken { segment: u32, pba: Pba, expected_end: Pba } =>
        Fault, RecordHeader, Some(*pba),
        "the records of segment {segment} break off at block {} and should go on to block {}: \
        a record header is damaged, and the segment cannot be cleaned; copy the volume to \
        another store", pba.0, expected_end.0;
    /// A map page was damaged once: where these blocks lay is not known any more.
    BlocksLost { lba: Lba, blocks: u64 } =>
        Warning, MapPage, None,
        "{blocks} of the 512 host blocks that begin with {} are lost, since the map page that \
        knew where they lay was damaged: reading them gives an I/O error until they are \
        written again; restore what uses them from a backup", lba.0 / 512 * 512;
    /// The checkpoint marks a block lost, and its superblock says that none is.
    LossUntold { lba: Lba } =>
        Warning, Superblock, None,
        "host block {} is marked lost, and the superblock says that none is: `status` of the \
        volume does not warn of it; please report this", lba.0;
    /// The segment table holds fewer blocks for valid than are in use.
    ValidTooLow { segment: u32, counted: u32, recorded: u32 } =>
        Fault, SegmentTable, None,
        "the segment table counts {recorded} blocks in segment {segment}, but {counted} are in \
        use: the segment may be reused too early; copy the volume to another store, and please \
        report this";
    /// The segment table holds more blocks for valid than are in use.
    ValidTooHigh { segment: u32, counted: u32, recorded: u32 } =>
        Warning, SegmentTable, None,
        "the segment table counts {recorded} blocks in segment {segment}, but only {counted} \
        are in use: some space is not given back; nothing is lost";
    /// What is counted in a sparse store is more than it may be.
    CapacityExceeded { charged: u64, limit: u64 } =>
        Fault, SegmentTable, None,
        "data, map pages and what is not released yet take {charged} blocks, and in this \
        sparse store they may take {limit}: no coulter writes that; writes to new addresses \
        are refused (no space) until enough is discarded; copy the data to a new store, and \
        please report it";
    /// The segment table contradicts itself or the checkpoint.
    SegmentContradicts { segment: u32, fault: SegmentFault } =>
        fault.severity(), SegmentTable, None,
        "segment {segment} {fault}; that is a mistake of the program that wrote it: please \
        report it";
    /// A record that was durable is missing or damaged. `opens` if what tells so lies further
    /// behind than recovery looks: opening the store drops the record and all that follow.
    DurableRecordMissing {
        sequence: u64, durable_sequence: u64, pba: Option<Pba>, opens: bool,
    } =>
        Fault, RecordHeader, *pba,
        "record {sequence} {}, though all up to {durable_sequence} were durable: writes that \
        were flushed are lost, and {}; look at the device, and salvage the store, or restore it \
        from a backup",
        match pba {
            Some(pba) => format!("at block {} is damaged", pba.0),
            None => "cannot be found".to_owned(),
        },
        match opens {
            false => "the store refuses to open rather than go back in time",
            true => "opening the store would drop all that follow for good: do not attach it",
        };
    /// Two records after the checkpoint have the same sequence.
    SequenceTwice { sequence: u64, first: Pba, second: Pba } =>
        Fault, RecordHeader, Some(*second),
        "the records at blocks {} and {} both claim sequence {sequence}: which of them was \
        written cannot be told; please report this, with the output of `coulter dump`",
        first.0, second.0;
    /// A record that counts says what none can.
    RecordContradicts { pba: Pba, field: &'static str, value: u64 } =>
        Fault, RecordHeader, Some(*pba),
        "the record at block {} has {value} for its {field}, which no record can have: the \
        store refuses to open; coulter did not write this: salvage it, or restore it from a \
        backup", pba.0;
    /// A number that only goes up has come so far that no writer opens the store.
    NumberSpent { structure: Structure, pba: Pba, field: &'static str, value: u64 } =>
        Fault, *structure, Some(*pba),
        "the {structure} at block {} has {value} for its {field}, which no store lives long \
        enough to reach: the store opens only read-only; copy the volume to another store",
        pba.0;
    /// A relocation names a source at which the block never was.
    RelocationUnfounded { sequence: u64, lba: Lba, pba: Pba } =>
        Fault, RecordHeader, Some(*pba),
        "record {sequence} moves host block {} away from block {}, where it did not lie: \
        replaying it may bring back old content; please report this, with the output of \
        `coulter dump`", lba.0, pba.0;
    /// The superblock says that nothing follows the checkpoint, but something does.
    CleanButWritten { records: u64 } =>
        Warning, Superblock, None,
        "the superblock says that the store was closed, but {records} records follow the \
        checkpoint; they are replayed as usual";
    /// A data block does not match its checksum.
    DataDamaged { lba: Lba, pba: Pba } =>
        Fault, Data, Some(*pba),
        "host block {} at block {} does not match its checksum: its content is lost, and \
        reading it gives an I/O error until it is written again; restore what uses it from a \
        backup", lba.0, pba.0;
    /// The store was not closed; opening it replays records.
    NeedsRecovery { records: u64, updates: u64 } =>
        Info, Superblock, None,
        "the store was not closed: {records} records to replay, with {updates} changes of the \
        map; attaching it does so";
    /// Records that were on their way when the power went: they were not durable.
    TornTail { sequence: u64, dropped_records: u64 } =>
        Info, RecordHeader, None,
        "the log ends before sequence {sequence}, and {dropped_records} later records are \
        dropped: they were being written when the power went and were not durable; nothing is \
        to be done";
}

/// A field as JSON has it: addresses as numbers, and what has no form of its own as text.
trait Fact {
    fn serialize_fact<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error>;
}

macro_rules! facts {
    ($( $kind:ty: |$fact:ident, $serializer:ident| $result:expr; )+) => { $(
        impl Fact for $kind {
            fn serialize_fact<S: Serializer>(&self, $serializer: S) -> Result<S::Ok, S::Error> {
                let $fact = self;
                $result
            }
        }
    )+ };
}

facts! {
    Pba: |pba, serializer| pba.0.serialize(serializer);
    Option<Pba>: |pba, serializer| pba.map(|pba| pba.0).serialize(serializer);
    Lba: |lba, serializer| lba.0.serialize(serializer);
    Structure: |structure, serializer| serializer.collect_str(structure);
    Reason: |reason, serializer| serializer.collect_str(reason);
    ReadError: |error, serializer| serializer.collect_str(error);
    BodyFault: |fault, serializer| serializer.collect_str(fault);
    Copy: |copy, serializer| copy.serialize(serializer);
    Owner: |owner, serializer| owner.serialize(serializer);
    Option<Owner>: |owner, serializer| owner.serialize(serializer);
    SegmentFault: |fault, serializer| fault.serialize(serializer);
    &'static str: |text, serializer| text.serialize(serializer);
    bool: |is_so, serializer| is_so.serialize(serializer);
    u32: |number, serializer| number.serialize(serializer);
    u64: |number, serializer| number.serialize(serializer);
    usize: |number, serializer| number.serialize(serializer);
}

fn fact<S: Serializer>(fact: &impl Fact, serializer: S) -> Result<S::Ok, S::Error> {
    fact.serialize_fact(serializer)
}

fn subject(owner: &Option<Owner>, structure: Structure) -> String {
    owner.map_or_else(|| format!("the {structure}"), |owner| owner.to_string())
}

fn advice_on_unreadable(owner: &Option<Owner>, structure: Structure) -> String {
    match (owner, structure) {
        (Some(owner), _) => format!("; {}", owner.consequence()),
        (None, Structure::RecordHeader) => "; look at the device's own error log".to_owned(),
        (None, Structure::Superblock) => "; another copy serves if it is whole".to_owned(),
        (None, _) => String::new(),
    }
}

fn copy_damaged(owner: &Owner, pba: Pba, whole: Option<Pba>, fault: &BodyFault) -> String {
    let pba = pba.0;
    match whole {
        Some(whole) => format!(
            "block {pba} is damaged ({fault}): it, or {owner}; the other, at block {}, is whole: \
             nothing is lost, and opening the store for writing or a scrub mends what can be \
             mended",
            whole.0,
        ),
        None => {
            format!("{owner} at block {pba} is damaged ({fault}), and so is what it is for")
        }
    }
}

fn pointer_mismatch(pba: Pba, owner: &Owner, recorded: &Owner, checksum_only: bool) -> String {
    let pba = pba.0;
    match checksum_only {
        true => format!(
            "the checksums of {owner} in the map and in the record ({recorded}) at block {pba} \
             differ: one of them is wrong; run the check with data, and please report this",
        ),
        false => format!(
            "the map takes block {pba} for {owner}, but its record says that it is {recorded}: the \
             former is lost; restore it from a backup, and please report this",
        ),
    }
}
