//! What a plan came to: counts, and a fingerprint of all that happened.

use super::disk::mix;

/// What happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Requests accepted.
    pub operations: u64,
    /// Of these, writes of several ranges.
    pub writes_of_many: u64,
    /// Writes for which a sparse store had no room.
    pub writes_refused: u64,
    /// Device commands completed.
    pub commands: u64,
    /// Power cuts, those during opening included.
    pub crash_points: u64,
    /// Of those, cuts during opening.
    pub cuts_while_opening: u64,
    /// Openings that got to their end.
    pub recoveries: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Segments cleaned.
    pub segments_cleaned: u64,
    /// Blocks written into holes.
    pub hole_blocks: u64,
    /// Blocks written again beside them, so that flash pages were written as a whole.
    pub padded_blocks: u64,
    /// Long records written.
    pub long_records: u64,
    /// Of these, those that recovery took.
    pub long_records_replayed: u64,
    /// Records that checkpoints referred to.
    pub records_referred: u64,
    /// How often recovery followed a reference.
    pub references_followed: u64,
    /// Reads by clients that looked up themselves.
    pub client_reads: u64,
    /// Of the memory that recovery may use for updates, how much it used at most, in percent.
    pub recovery_fill_max: u64,
    /// Blocks of metadata damaged while the store was not open.
    pub blocks_ruined: u64,
    /// Openings of a degraded store.
    pub degraded_openings: u64,
    /// Blocks that were in doubt at openings.
    pub blocks_in_doubt: u64,
    /// Nanoseconds of virtual time.
    pub time_ns: u64,
    /// A hash over every device command and what was written, to compare two runs.
    pub fingerprint: u64,
}

impl Outcome {
    /// Adds another life's; the fingerprints are mixed in order.
    pub fn add(&mut self, other: &Outcome) {
        self.operations += other.operations;
        self.writes_of_many += other.writes_of_many;
        self.writes_refused += other.writes_refused;
        self.commands += other.commands;
        self.crash_points += other.crash_points;
        self.cuts_while_opening += other.cuts_while_opening;
        self.recoveries += other.recoveries;
        self.checkpoints += other.checkpoints;
        self.segments_cleaned += other.segments_cleaned;
        self.hole_blocks += other.hole_blocks;
        self.padded_blocks += other.padded_blocks;
        self.long_records += other.long_records;
        self.long_records_replayed += other.long_records_replayed;
        self.records_referred += other.records_referred;
        self.references_followed += other.references_followed;
        self.client_reads += other.client_reads;
        self.recovery_fill_max = self.recovery_fill_max.max(other.recovery_fill_max);
        self.blocks_ruined += other.blocks_ruined;
        self.degraded_openings += other.degraded_openings;
        self.blocks_in_doubt += other.blocks_in_doubt;
        self.time_ns += other.time_ns;
        self.fingerprint = mix(self.fingerprint, other.fingerprint);
    }
}
