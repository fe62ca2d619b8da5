//! Reads a store as it lies on the device, without changing it: [`check()`] finds every fault,
//! [`dump`] prints every structure, and [`salvage`] takes out what is in a store that does not open.
//!
//! It is written against `docs/format.md` and the codecs of `coulter-format` alone. It shares no
//! code with the engine, so that a mistake there is not made here as well: what the engine writes,
//! this crate reads back by the rules as written.
//!
//! # What a check does
//! ```text
//! superblocks → checkpoint → segment table → records after the checkpoint       (little)
//! map pass   every leaf page, overlaid by the live runs and the records that the checkpoint refers
//!            to, then by those after it                                        (8 B/mapped block)
//! log pass   every record header, in order of the device; with `data` every block
//! detail     once more through the map, for the segments where map and log disagree
//! ```
//!
//! # Invariants
//! - Nothing is ever written.
//! - No bytes on the device make it panic or loop without end.
//! - Memory: two bits per block of a segment that holds anything, about 100 bytes per segment, the
//!   updates since the checkpoint and those it refers to, and buffers of a few MiB. Nothing grows with the map.
//! - A store that was killed is not faulty: what is to be replayed is reported as information.
//!
//! # Does not
//! repair a store in place, lock it (whoever opens the file does), or judge a store that is being written.

#![deny(unsafe_code)]
#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(
    test,
    allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod blocks;
mod check;
mod checkpoint;
mod copies;
mod detail;
pub mod dump;
mod echoes;
pub mod files;
mod finding;
mod layout;
mod leaves;
mod log_pass;
mod map_pass;
mod metadata;
mod progress;
mod references;
mod referred;
mod replay;
mod report;
mod root_lists;
mod run;
mod runs;
pub mod salvage;
mod segments;
mod subject;
mod superblocks;
mod updates;
mod window;

pub use blocks::{BlockFn, FileBlocks, ReadBlocks, ReadError, SliceBlocks};
pub use check::check;
pub use finding::{Copy, Finding, Owner, SegmentFault, Severity};
pub use progress::{Options, Phase, Progress};
pub use report::{Counters, Recovery, Report, StoreFacts};
