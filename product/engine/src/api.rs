//! What goes in and what comes out: requests, device commands, responses, buffers.

use crate::error::OpenError;
use crate::units::Stream;
use coulter_format::{Block, Lba, Pba};

/// The driver's name for a request. Comes back with the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(pub u64);

/// A host buffer in the driver's keeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferRef(pub u32);

/// A record buffer in the driver's keeping: one header block and room for the payload of the longest
/// record, contiguous,
/// so that a record is one device write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordRef(pub u16);

/// A one-block buffer in the driver's keeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRef(pub u16);

/// Blocks in a record buffer.
pub const RECORD_BLOCKS: usize = 1 + coulter_format::record::PAYLOAD_BLOCKS_MAX;

/// Memory that the engine names but does not own.
///
/// User data never passes through the engine: it tells the driver which bytes go where, and gets
/// checksums back.
pub trait Buffers {
    /// Copies `checksums.len()` blocks of a host buffer, from its block `source_block` on, into a
    /// record's payload from `payload_block` on, and writes each block's checksum
    /// ([`coulter_format::checksum::block`], kind `Data`, key `lba`, `lba + 1`, …) in that same
    /// pass.
    fn stage(
        &mut self,
        source: BufferRef,
        source_block: u32,
        target: RecordRef,
        payload_block: u32,
        lba: Lba,
        checksums: &mut [u32],
    );

    /// Compares blocks of a host buffer that a device read has filled with the checksums that the
    /// map expects. Returns the index of the first that differs.
    fn verify(
        &mut self,
        buffer: BufferRef,
        first_block: u32,
        lba: Lba,
        expected: &[u32],
    ) -> Result<(), u32>;

    /// Fills blocks of a host buffer with zeros: they are unmapped. Called once for each unmapped block
    /// of a read, and for no other, so a driver can tell exactly which blocks were mapped.
    fn zero(&mut self, buffer: BufferRef, first_block: u32, count: u32);

    /// The same for a [`Request::Presence`], which has no memory to fill: these blocks are unmapped.
    fn absent(&mut self, buffer: BufferRef, first_block: u32, count: u32);

    /// Copies one block of a record buffer (counted from its start, header included) into another
    /// record's payload.
    fn relocate(
        &mut self,
        source: RecordRef,
        source_block: u32,
        target: RecordRef,
        payload_block: u32,
    );

    /// Copies `count` blocks of a record buffer, from `first` on (counted from its start, header
    /// included), to the start of another.
    fn carry(&mut self, source: RecordRef, first: u32, count: u32, target: RecordRef);

    /// The blocks of a record buffer: header, then payload.
    fn record(&self, record: RecordRef) -> &[Block];

    /// The same, to be written by the engine (headers and metadata).
    fn record_mut(&mut self, record: RecordRef) -> &mut [Block];

    /// A one-block buffer.
    fn page(&self, page: PageRef) -> &Block;

    /// The same, to be written by the engine.
    fn page_mut(&mut self, page: PageRef) -> &mut Block;
}

/// One range of a [`Request::WriteMany`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// First block.
    pub lba: Lba,
    /// Blocks; at least 1.
    pub count: u32,
    /// What happens to them.
    pub kind: ChangeKind,
}

/// What a range of a [`Request::WriteMany`] is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The blocks are stored. Their data are the next `count` blocks of the buffer.
    Write,
    /// The blocks are unmapped; they read as zeros.
    Discard,
}

/// What the host asks for. Addresses and counts are in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Fill `buffer` with `count` blocks.
    Read {
        /// First block.
        lba: Lba,
        /// Blocks; at least 1.
        count: u32,
        /// Where the blocks go.
        buffer: BufferRef,
    },
    /// Tell which of `count` blocks are mapped, by [`Buffers::absent`] for each that is not. What is
    /// not in memory is loaded; no data is read.
    Presence {
        /// First block.
        lba: Lba,
        /// Blocks; at least 1.
        count: u32,
        /// What the answer is for; it names no memory.
        buffer: BufferRef,
    },
    /// Store `count` blocks from `buffer`, as a whole or not at all after a crash.
    Write {
        /// First block.
        lba: Lba,
        /// Blocks; 1 to 256.
        count: u32,
        /// Where the blocks are. Staged before `handle_request` returns.
        buffer: BufferRef,
        /// Durable when it completes.
        fua: bool,
    },
    /// Write and unmap several ranges, all of them or none after a crash.
    WriteMany {
        /// The ranges; [`check`](crate::many::check) accepts them.
        changes: &'a [Change],
        /// Where the data of the ranges to be written is, one behind the other in the order of
        /// `changes`. Staged before `handle_request` returns.
        buffer: BufferRef,
        /// Durable when it completes.
        fua: bool,
    },
    /// Unmap `count` blocks; they read as zeros.
    Discard {
        /// First block.
        lba: Lba,
        /// Blocks; at least 1.
        count: u64,
        /// Durable when it completes.
        fua: bool,
    },
    /// Make everything that completed before durable.
    Flush,
    /// Write a checkpoint, so that opening has nothing to replay. The engine accepts no writes
    /// afterwards.
    Shutdown,
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// The request.
    pub id: RequestId,
    /// Whether all of it was done.
    pub result: Result<(), Failure>,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The content of a block does not match its checksum, or the map page that leads to it is
    /// damaged.
    Corrupt(Lba),
    /// The device reported this error number.
    Device(i32),
    /// The store is sparse and has no room for what would be mapped. Nothing was written.
    Full,
    /// The engine was opened read-only, became so after a failed write or flush, or has shut down.
    ReadOnly,
}

/// A request cannot be taken now; try again after the next completion or timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// The engine's name for a device command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IoId(pub u32);

/// A device command. Commands that are out together may be executed in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    /// Comes back with the completion.
    pub id: IoId,
    /// What to do.
    pub command: Command,
}

/// What the device is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read blocks.
    Read {
        /// First block on the device.
        pba: Pba,
        /// Blocks.
        count: u32,
        /// Where they go.
        target: Target,
    },
    /// Write blocks.
    Write {
        /// First block on the device.
        pba: Pba,
        /// Blocks.
        count: u32,
        /// Where they are.
        source: Target,
        /// The log head that they belong to: what is written to one dies at similar times, a segment
        /// at a time. For devices that keep such writes apart.
        stream: Stream,
    },
    /// Make every completed write durable.
    Flush,
    /// Tell the device that blocks are no longer needed. Its failure is ignored.
    Discard {
        /// First block on the device.
        pba: Pba,
        /// Blocks.
        count: u32,
    },
    /// Make later writes to blocks certain, or cheap: see [`crate::prepare`]. Nothing in them is
    /// needed, so zeros may be written there. Issued only if [`crate::Config::prepare`] says so.
    Prepare {
        /// First block on the device.
        pba: Pba,
        /// Blocks.
        count: u32,
    },
}

impl Command {
    /// Blocks that it covers; none for a flush.
    pub(crate) fn blocks(&self) -> u32 {
        match *self {
            Command::Read { count, .. }
            | Command::Write { count, .. }
            | Command::Discard { count, .. }
            | Command::Prepare { count, .. } => count,
            Command::Flush => 0,
        }
    }
}

/// Memory that a device command reads or fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A host buffer, from this block on.
    Request {
        /// The buffer.
        buffer: BufferRef,
        /// First block in it.
        block: u32,
    },
    /// A record buffer, from its start.
    Record(RecordRef),
    /// A record buffer, from this block on.
    RecordPart {
        /// The buffer.
        record: RecordRef,
        /// First block in it, the header's being 0.
        block: u32,
    },
    /// A one-block buffer.
    Page(PageRef),
}

/// How a device command ended: done, or the device's error number.
pub type IoResult = Result<(), i32>;

/// What the engine is doing about its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reading checkpoint and log. No requests are accepted.
    Opening,
    /// Reads are served; writes wait for the first checkpoint.
    Recovered,
    /// All is accepted.
    Running,
    /// A shutdown was asked for; writes are refused.
    ShuttingDown,
    /// The last checkpoint is durable.
    Closed,
    /// Opening failed.
    Failed(OpenError),
}
