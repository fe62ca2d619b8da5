//! What findings speak of: severities, copies of the superblock, owners of blocks, faults.

use crate::blocks::ReadError;
use coulter_format::checksum::Kind;
use coulter_format::{Reason, Structure};
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

    /// What the loss of a metadata block means.
    pub(crate) fn consequence(&self) -> &'static str {
        match self.kind {
            Kind::Leaf => {
                "reads of its 2 MiB give I/O errors, save for what was written since; salvage the \
                 store, or overwrite them or restore them from a backup"
            }
            Kind::Root => {
                "reads of its 1 GiB give I/O errors, save for what was written since; salvage the \
                 store, or restore them from a backup"
            }
            Kind::RootList => {
                "reads give I/O errors of all addresses that no other page lists, and nothing can \
                 be written; salvage the store, or restore it from a backup"
            }
            Kind::SegmentTable => {
                "it is not known which of 256 segments are in use, so nothing can be written; copy \
                 the volume to a new store, salvage it, or restore it from a backup"
            }
            Kind::Run => {
                "updates of the map are lost; salvage the store, or restore it from a backup"
            }
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

impl SegmentFault {
    pub(crate) fn severity(self) -> Severity {
        match self {
            SegmentFault::OpenWithoutHead => Severity::Warning,
            _ => Severity::Fault,
        }
    }
}

impl fmt::Display for SegmentFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SegmentFault::FreeWithBlocks => "is free, and yet blocks are counted in it",
            SegmentFault::TooManyBlocks => "has more blocks counted in it than it can hold",
            SegmentFault::ReservedNotFree => "is to be opened next, though it is not free",
            SegmentFault::HeadOfFree => "is free, though a stream appends to it",
            SegmentFault::OpenWithoutHead => "is open, though no stream appends to it",
            SegmentFault::HeadOfPatched => {
                "has records in its holes, though a stream appends to it"
            }
            SegmentFault::HolesNotPatched => "is to have records in its holes, and does not say so",
        })
    }
}
