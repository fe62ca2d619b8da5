//! Scrubbing an open volume: every block that counts is read and compared with its checksum, while the volume is in
//! use. What has another copy is written anew.

pub use coulter_engine::scrub::{FINDINGS_MAX, Part, ScrubState, Trouble};

use crate::service::BLOCK_SIZE;
use crate::tuning::OutOfRange;
use coulter_engine::Engine;
use coulter_engine::scrub::Finding;

/// Bytes per second that a scrub may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubRate(Option<u64>);

impl ScrubRate {
    /// No limit: as fast as the device allows.
    pub const NONE: ScrubRate = ScrubRate(None);
    /// Bytes per second at the least: what is read at a time.
    pub const LEAST: u64 = 1 << 20;
    /// Bytes per second at the most.
    pub const MOST: u64 = 1 << 40;

    /// This number of bytes per second.
    ///
    /// # Errors
    /// `OutOfRange` below [`ScrubRate::LEAST`] or above [`ScrubRate::MOST`].
    pub fn limited_to(bytes_per_second: u64) -> Result<ScrubRate, OutOfRange> {
        if !(ScrubRate::LEAST..=ScrubRate::MOST).contains(&bytes_per_second) {
            return Err(OutOfRange { least: "1M", most: "1T" });
        }
        Ok(ScrubRate(Some(bytes_per_second)))
    }

    /// Bytes per second, if there is a limit.
    pub fn bytes_per_second(self) -> Option<u64> {
        self.0
    }
}

impl Default for ScrubRate {
    /// 32 MiB/s: a terabyte in nine hours.
    fn default() -> ScrubRate {
        ScrubRate(Some(32 << 20))
    }
}

/// What is asked of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubOrder {
    /// Begin, or go on. Where one goes on already, only its rate changes.
    Start {
        /// The first byte of the volume to be read: 0, or where an earlier scrub was ([`Scrub::position_bytes`]).
        from_bytes: u64,
        /// How fast.
        rate: ScrubRate,
    },
    /// End it where it is.
    Stop,
    /// Only tell how far it is.
    Tell,
}

/// How far a scrub is, and what it has found since it was started or went on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scrub {
    /// What it is at.
    pub state: ScrubState,
    /// Bytes of the volume up to which it has come.
    pub position_bytes: u64,
    /// Bytes of the volume that were read and compared.
    pub checked_bytes: u64,
    /// Bytes of metadata that were read and compared.
    pub metadata_checked_bytes: u64,
    /// Bytes of the volume that cannot be read.
    pub damaged_bytes: u64,
    /// Blocks of metadata that were damaged or could not be read.
    pub metadata_damaged: u64,
    /// Of these, those that were written anew.
    pub metadata_repaired: u64,
    /// What was found, the first [`FINDINGS_MAX`] of it.
    pub findings: Vec<ScrubFinding>,
}

/// Something that a scrub has found. Addresses are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubFinding {
    /// A range of the volume that cannot be read.
    Range {
        /// Its first byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Why.
        trouble: Trouble,
    },
    /// A block of metadata.
    Metadata {
        /// What it belongs to.
        part: Part,
        /// Where it lies in the store.
        offset: u64,
        /// What is wrong with it.
        trouble: Trouble,
        /// Whether it was written anew, from another copy or from memory.
        is_repaired: bool,
    },
}

impl Scrub {
    /// Of an engine, as it is now.
    pub(crate) fn of(engine: &Engine) -> Scrub {
        let report = engine.scrub();
        Scrub {
            state: report.state,
            position_bytes: report.next * BLOCK_SIZE,
            checked_bytes: report.blocks_checked * BLOCK_SIZE,
            metadata_checked_bytes: report.metadata_checked * BLOCK_SIZE,
            damaged_bytes: report.blocks_damaged * BLOCK_SIZE,
            metadata_damaged: report.metadata_damaged,
            metadata_repaired: report.metadata_repaired,
            findings: engine
                .scrub_findings()
                .iter()
                .map(|finding| ScrubFinding::of(*finding))
                .collect(),
        }
    }
}

impl ScrubFinding {
    fn of(finding: Finding) -> ScrubFinding {
        match finding {
            Finding::Blocks { lba, count, trouble } => ScrubFinding::Range {
                offset: lba.0 * BLOCK_SIZE,
                length: u64::from(count) * BLOCK_SIZE,
                trouble,
            },
            Finding::Metadata { part, pba, trouble, is_repaired } => ScrubFinding::Metadata {
                part,
                offset: u64::from(pba.0) * BLOCK_SIZE,
                trouble,
                is_repaired,
            },
        }
    }
}
