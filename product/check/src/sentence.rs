//! The sentence for each finding: what, where, what it means, what to do.

use crate::finding::{Finding, Owner, SegmentFault};
use coulter_format::checksum::Kind;
use coulter_format::{FORMAT_VERSION, Structure};
use std::fmt;

/// Writes the sentence.
pub(crate) fn write(finding: &Finding, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match finding {
        Finding::NotAStore
        | Finding::OtherVersion { .. }
        | Finding::OtherFeatures { .. }
        | Finding::SuperblockMissing { .. }
        | Finding::SuperblockDamaged { .. }
        | Finding::SuperblockMisplaced { .. }
        | Finding::SuperblocksDisagree { .. }
        | Finding::FirstSuperblocksLost { .. }
        | Finding::NoSuperblock
        | Finding::SuperblockLost { .. }
        | Finding::DeviceTruncated { .. } => write_superblock(finding, f),
        Finding::Unreadable { .. }
        | Finding::CheckpointDamaged { .. }
        | Finding::CheckpointCopyDamaged { .. }
        | Finding::CopyDamaged { .. }
        | Finding::CopiesDiffer { .. }
        | Finding::LogHeaderDamaged { .. }
        | Finding::CheckpointContradicts { .. }
        | Finding::MetadataDamaged { .. }
        | Finding::RunUnsorted { .. }
        | Finding::ReferenceDamaged { .. }
        | Finding::BlocksLost { .. }
        | Finding::LossUntold { .. }
        | Finding::DataDamaged { .. } => write_damage(finding, f),
        Finding::PointerOutside { .. }
        | Finding::PointerIntoFree { .. }
        | Finding::BlockShared { .. }
        | Finding::OutsideVolume { .. }
        | Finding::PointerMismatch { .. } => write_pointer(finding, f),
        Finding::RecordMissing { .. }
        | Finding::ChainBroken { .. }
        | Finding::DurableRecordMissing { .. }
        | Finding::SequenceTwice { .. }
        | Finding::RecordContradicts { .. }
        | Finding::NumberSpent { .. }
        | Finding::RelocationUnfounded { .. } => write_record(finding, f),
        Finding::ValidTooLow { .. }
        | Finding::ValidTooHigh { .. }
        | Finding::CapacityExceeded { .. }
        | Finding::SegmentContradicts { .. } => write_segment(finding, f),
        Finding::CleanButWritten { .. }
        | Finding::NeedsRecovery { .. }
        | Finding::TornTail { .. } => write_state(finding, f),
    }
}

fn write_superblock(finding: &Finding, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match finding {
        Finding::NotAStore => f.write_str(
            "no superblock was found: this is no store, or its start was overwritten; check that \
             the path is right, and do not format it if it may have been a store",
        ),
        Finding::OtherVersion { copy, version } => write!(
            f,
            "superblock {copy} has format version {version}, and this program reads version \
             {FORMAT_VERSION}; use a coulter that reads version {version}",
        ),
        Finding::OtherFeatures { copy, unknown } => write!(
            f,
            "superblock {copy} has features ({unknown:#x}) that this program does not know: a newer \
             coulter has opened the store; use that one",
        ),
        Finding::SuperblockMissing { copy, pba } => write!(
            f,
            "superblock {copy} at block {} is not there: formatting was interrupted or the block \
             was overwritten; the other copy serves, and the next checkpoint but one writes this \
             one again: attach the store and detach it, twice",
            pba.0,
        ),
        Finding::SuperblockDamaged { copy, pba, reason } => write!(
            f,
            "superblock {copy} at block {} is damaged ({reason}); the store rests on the other \
             copy alone until two more checkpoints are written: attach the store and detach it, \
             twice",
            pba.0,
        ),
        Finding::SuperblockMisplaced { copy, pba, generation } => write!(
            f,
            "superblock {copy} at block {} holds generation {generation}, which belongs into the \
             other copy: if a store begins there, on a partition, name that; if not, the device has \
             written it to the wrong place; do not trust this device",
            pba.0,
        ),
        Finding::SuperblocksDisagree { field, used, other } => write!(
            f,
            "the superblocks at blocks {} and {} disagree about `{field}`, and both are valid: one of them belongs to \
             another store or to another state of this one that was copied over it, or was made on purpose; the one at \
             block {} counts; restore the right one from a backup",
            used.0, other.0, used.0,
        ),
        Finding::FirstSuperblocksLost { third } => write!(
            f,
            "both superblocks at the start of the device are gone: something else was written \
             there, perhaps by mkfs; a third copy at block {} is whole: attach the store \
             read-only, or take the data out with `coulter salvage`",
            third.0,
        ),
        Finding::NoSuperblock => f.write_str(
            "neither superblock can be used, so nothing in the store can be found; restore the \
             store from a backup",
        ),
        Finding::SuperblockLost { generation, found } => write!(
            f,
            "the newest superblock has generation {found}, but records were written after \
             generation {generation} was durable: the newer copy is damaged or was not kept by the \
             device; the older one leads to a state that is long over, so the store refuses to \
             open; salvage it, or restore it from a backup",
        ),
        Finding::DeviceTruncated { needed_blocks, found_blocks } => write!(
            f,
            "the device has {found_blocks} blocks, and the store needs {needed_blocks}: the file \
             or disk was cut short; make it as large as it was before anything else",
        ),
        _ => Ok(()),
    }
}

fn write_damage(finding: &Finding, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match finding {
        Finding::Unreadable { owner: Some(owner), pba, error, .. } => {
            write!(f, "{owner} at block {} cannot be read: {error}; {}", pba.0, consequence(owner),)
        }
        Finding::Unreadable { owner: None, structure, pba, error } => {
            let advice = advice_on_unreadable(*structure);
            write!(f, "the {structure} at block {} cannot be read: {error}{advice}", pba.0)
        }
        Finding::CheckpointDamaged { pba, reason } => write!(
            f,
            "the checkpoint's body at block {} is damaged ({reason}): the map is found \
             through it; salvage the store, or restore it from a backup",
            pba.0,
        ),
        Finding::CheckpointCopyDamaged { pba, whole, fault } => write!(
            f,
            "one copy of the checkpoint's body is damaged at block {} ({fault}); the other, at block {}, \
             is whole: nothing is lost, and the next checkpoint writes both anew",
            pba.0, whole.0,
        ),
        Finding::CopyDamaged { owner, pba, whole: Some(whole), fault } => write!(
            f,
            "block {} is damaged ({fault}): it, or {owner}; the other, at block {}, is whole: nothing is lost, and \
             opening the store for writing or a scrub mends what can be mended",
            pba.0, whole.0,
        ),
        Finding::CopyDamaged { owner, pba, whole: None, fault } => {
            write!(f, "{owner} at block {} is damaged ({fault}), and so is what it is for", pba.0)
        }
        Finding::CopiesDiffer { owner, used, other, offset } => write!(
            f,
            "blocks {} and {} should be the same, of which the latter is {owner}, and differ from byte {offset} on, though \
             both match their checksum: no accident does that but one in 2^32; the one at block {} is used; whether it \
             is the right one nothing tells: compare the volume with a backup, or restore it",
            used.0, other.0, used.0,
        ),
        Finding::LogHeaderDamaged { pba, holder } => write!(
            f,
            "the header at block {} of a record after the checkpoint is damaged or unreadable; what the header at block \
             {} tells of it, and its payload, are whole: nothing is lost; open the store for writing, and the next checkpoint contains the record",
            pba.0, holder.0,
        ),
        Finding::CheckpointContradicts { pba, field, value } => write!(
            f,
            "the checkpoint's body at block {} says {value} for `{field}`, which cannot be in \
             this store; that is a mistake of the program that wrote it: please report it, with \
             the output of `coulter dump`",
            pba.0,
        ),
        Finding::MetadataDamaged { owner, pba, reason } => {
            write!(f, "{owner} at block {} is damaged ({reason}): {}", pba.0, consequence(owner))
        }
        Finding::RunUnsorted { run, lba } => write!(
            f,
            "run {run} is not sorted at host block {}: updates in it are not found; that is a \
             mistake of the program that wrote it: please report it",
            lba.0,
        ),
        Finding::ReferenceDamaged { pba, reason } => write!(
            f,
            "the header at block {} is not the one that the checkpoint refers to ({reason}): where \
             the blocks of its record belong is not known; salvage the store, or restore it from a \
             backup",
            pba.0,
        ),
        Finding::BlocksLost { lba, blocks } => write!(
            f,
            "{blocks} of the 512 host blocks that begin with {} are lost, since the map page that \
             knew where they lay was damaged: reading them gives an I/O error until they are \
             written again; restore what uses them from a backup",
            lba.0 / 512 * 512,
        ),
        Finding::LossUntold { lba } => write!(
            f,
            "host block {} is marked lost, and the superblock says that none is: `status` of the volume does not warn of it; \
             please report this",
            lba.0,
        ),
        Finding::DataDamaged { lba, pba } => write!(
            f,
            "host block {} at block {} does not match its checksum: its content is lost, and \
             reading it gives an I/O error until it is written again; restore what uses it from a \
             backup",
            lba.0, pba.0,
        ),
        _ => Ok(()),
    }
}

fn advice_on_unreadable(structure: Structure) -> &'static str {
    match structure {
        Structure::RecordHeader => "; look at the device's own error log",
        Structure::Superblock => "; another copy serves if it is whole",
        _ => "",
    }
}

/// What the loss of a metadata block means.
fn consequence(owner: &Owner) -> &'static str {
    match owner.kind {
        Kind::Leaf => {
            "reads of its 2 MiB give I/O errors, save for what was written since; salvage the store, \
             or overwrite them or restore them from a backup"
        }
        Kind::Root => {
            "reads of its 1 GiB give I/O errors, save for what was written since; salvage the store, \
             or restore them from a backup"
        }
        Kind::RootList => {
            "reads give I/O errors of all addresses that no other page lists, and nothing can be \
             written; salvage the store, or restore it from a backup"
        }
        Kind::SegmentTable => {
            "it is not known which of 256 segments are in use, so nothing can be written; copy the \
             volume to a new store, salvage it, or restore it from a backup"
        }
        Kind::Run => "updates of the map are lost; salvage the store, or restore it from a backup",
        Kind::Checkpoint => "salvage the store, or restore it from a backup",
        Kind::RootCopy
        | Kind::RootListCopy
        | Kind::TableCopy
        | Kind::RunCopy
        | Kind::HeaderParity => "nothing is lost while the first copy is whole",
        Kind::Data | Kind::Discard => {
            "its content is lost, and reading it gives an I/O error until it is written again; \
             restore what uses it from a backup"
        }
    }
}

fn write_pointer(finding: &Finding, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match finding {
        Finding::PointerOutside { owner, pba } => write!(
            f,
            "the pointer to {owner} leads to block {}, outside the log: the block is lost; \
             restore it from a backup, and please report this",
            pba.0,
        ),
        Finding::PointerIntoFree { owner, pba, segment } => write!(
            f,
            "the pointer to {owner} leads to block {} of segment {segment}, where nothing is \
             kept: the block is lost or soon will be; copy what you can to another store, and \
             please report this",
            pba.0,
        ),
        Finding::BlockShared { pba, first, second } => write!(
            f,
            "{first} and {second} are both said to lie at block {}: one of them is lost; restore \
             it from a backup, and please report this",
            pba.0,
        ),
        Finding::OutsideVolume { lba, pba } => write!(
            f,
            "host block {} lies behind the end of the volume, and yet is mapped to block {}: its \
             space is not used; nothing is lost",
            lba.0, pba.0,
        ),
        Finding::PointerMismatch { pba, owner, recorded, checksum_only: true } => write!(
            f,
            "the checksums of {owner} in the map and in the record ({recorded}) at block {} \
             differ: one of them is wrong; run the check with data, and please report this",
            pba.0,
        ),
        Finding::PointerMismatch { pba, owner, recorded, .. } => write!(
            f,
            "the map takes block {} for {owner}, but its record says that it is {recorded}: the \
             former is lost; restore it from a backup, and please report this",
            pba.0,
        ),
        _ => Ok(()),
    }
}

fn write_record(finding: &Finding, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match finding {
        Finding::RecordMissing { segment, pba, blocks } => write!(
            f,
            "the record header at block {} of segment {segment} is damaged or not there: its \
             {blocks} blocks in use can be read, but the segment can never be cleaned; overwrite \
             them, or copy the volume to another store",
            pba.0,
        ),
        Finding::ChainBroken { segment, pba, expected_end } => write!(
            f,
            "the records of segment {segment} break off at block {} and should go on to block \
             {}: a record header is damaged, and the segment cannot be cleaned; copy the volume \
             to another store",
            pba.0, expected_end.0,
        ),
        Finding::DurableRecordMissing { sequence, durable_sequence, pba, opens } => {
            write!(f, "record {sequence} ")?;
            match pba {
                Some(pba) => write!(f, "at block {} is damaged", pba.0)?,
                None => f.write_str("cannot be found")?,
            }
            write!(
                f,
                ", though all up to {durable_sequence} were durable: writes that were flushed are \
                 lost, and ",
            )?;
            f.write_str(match opens {
                false => "the store refuses to open rather than go back in time",
                true => "opening the store would drop all that follow for good: do not attach it",
            })?;
            f.write_str("; look at the device, and salvage the store, or restore it from a backup")
        }
        Finding::SequenceTwice { sequence, first, second } => write!(
            f,
            "the records at blocks {} and {} both claim sequence {sequence}: which of them was \
             written cannot be told; please report this, with the output of `coulter dump`",
            first.0, second.0,
        ),
        Finding::RecordContradicts { pba, field, value } => write!(
            f,
            "the record at block {} has {value} for its {field}, which no record can have: the store \
             refuses to open; coulter did not write this: salvage it, or restore it from a backup",
            pba.0,
        ),
        Finding::NumberSpent { structure, pba, field, value } => write!(
            f,
            "the {structure} at block {} has {value} for its {field}, which no store lives long enough \
             to reach: the store opens only read-only; copy the volume to another store",
            pba.0,
        ),
        Finding::RelocationUnfounded { sequence, lba, pba } => write!(
            f,
            "record {sequence} moves host block {} away from block {}, where it did not lie: \
             replaying it may bring back old content; please report this, with the output of \
             `coulter dump`",
            lba.0, pba.0,
        ),
        _ => Ok(()),
    }
}

fn write_segment(finding: &Finding, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match finding {
        Finding::CapacityExceeded { charged, limit } => write!(
            f,
            "data, map pages and what is not released yet take {charged} blocks, and in this sparse store they may take \
             {limit}: no coulter writes that; writes to new addresses are refused (no space) until enough is discarded; \
             copy the data to a new store, and please report it",
        ),
        Finding::ValidTooLow { segment, counted, recorded } => write!(
            f,
            "the segment table counts {recorded} blocks in segment {segment}, but {counted} are \
             in use: the segment may be reused too early; copy the volume to another store, and \
             please report this",
        ),
        Finding::ValidTooHigh { segment, counted, recorded } => write!(
            f,
            "the segment table counts {recorded} blocks in segment {segment}, but only {counted} \
             are in use: some space is not given back; nothing is lost",
        ),
        Finding::SegmentContradicts { segment, fault } => {
            write!(f, "segment {segment} ")?;
            f.write_str(match fault {
                SegmentFault::FreeWithBlocks => "is free, and yet blocks are counted in it",
                SegmentFault::TooManyBlocks => "has more blocks counted in it than it can hold",
                SegmentFault::ReservedNotFree => "is to be opened next, though it is not free",
                SegmentFault::HeadOfFree => "is free, though a stream appends to it",
                SegmentFault::OpenWithoutHead => "is open, though no stream appends to it",
                SegmentFault::HeadOfPatched => {
                    "has records in its holes, though a stream appends to it"
                }
                SegmentFault::HolesNotPatched => {
                    "is to have records in its holes, and does not say so"
                }
            })?;
            f.write_str("; that is a mistake of the program that wrote it: please report it")
        }
        _ => Ok(()),
    }
}

fn write_state(finding: &Finding, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match finding {
        Finding::CleanButWritten { records } => write!(
            f,
            "the superblock says that the store was closed, but {records} records follow the \
             checkpoint; they are replayed as usual",
        ),
        Finding::NeedsRecovery { records, updates } => write!(
            f,
            "the store was not closed: {records} records to replay, with {updates} changes of the \
             map; attaching it does so",
        ),
        Finding::TornTail { sequence, dropped_records } => write!(
            f,
            "the log ends before sequence {sequence}, and {dropped_records} later records are \
             dropped: they were being written when the power went and were not durable; nothing \
             is to be done",
        ),
        _ => Ok(()),
    }
}
