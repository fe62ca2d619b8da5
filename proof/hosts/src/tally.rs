//! What has happened, counted.

/// Counts of what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests that were carried out and answered.
    pub answered: u64,
    /// Requests that were carried out, and whose answer was lost.
    pub unanswered: u64,
    /// Requests that were not carried out at once, and may be later.
    pub late: u64,
    /// Those of them that were.
    pub late_carried_out: u64,
    /// Refused as too many, 503.
    pub refused: u64,
    /// Refused as one of several at once, 409.
    pub conflicts: u64,
    /// Conditions that did not hold, 412.
    pub conditions: u64,
    /// Reads that failed.
    pub unread: u64,
    /// Hosts that were killed in the middle of a request.
    pub killed: u64,
    /// Hosts that lost power.
    pub power_cuts: u64,
    /// Volumes that were taken over, or opened again.
    pub claims: u64,
    /// Hosts that found themselves fenced.
    pub fenced: u64,
    /// Flushes that were acknowledged.
    pub acknowledged: u64,
    /// Snapshots that were made.
    pub snapshots: u64,
}

impl Tally {
    /// Requests that had an outcome of any kind.
    pub fn outcomes(&self) -> u64 {
        self.answered
            + self.unanswered
            + self.late
            + self.refused
            + self.conflicts
            + self.conditions
            + self.unread
            + self.killed
    }

    /// Adds another's counts.
    pub fn add(&mut self, other: &Tally) {
        let Tally {
            answered,
            unanswered,
            late,
            late_carried_out,
            refused,
            conflicts,
            conditions,
            unread,
            killed,
            power_cuts,
            claims,
            fenced,
            acknowledged,
            snapshots,
        } = other;
        self.answered += answered;
        self.unanswered += unanswered;
        self.late += late;
        self.late_carried_out += late_carried_out;
        self.refused += refused;
        self.conflicts += conflicts;
        self.conditions += conditions;
        self.unread += unread;
        self.killed += killed;
        self.power_cuts += power_cuts;
        self.claims += claims;
        self.fenced += fenced;
        self.acknowledged += acknowledged;
        self.snapshots += snapshots;
    }
}
