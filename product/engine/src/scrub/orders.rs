//! Beginning, watching and throttling a scrub.

use super::{Finding, ScrubReport, ScrubState};
use crate::Engine;

impl Engine {
    /// Begins to read every block that counts and to compare it, host blocks from `from` on: zero, or what
    /// [`ScrubReport::next`] of an earlier one said. Does nothing while one goes on. False without memory for it.
    pub fn start_scrub(&mut self, from: u64) -> bool {
        self.scrubber.start(&self.shared, from)
    }

    /// Ends it where it is.
    pub fn stop_scrub(&mut self) {
        if self.scrubber.is_running() {
            self.scrubber.end(ScrubState::Stopped);
        }
    }

    /// How far it is, and what it has found.
    pub fn scrub(&self) -> ScrubReport {
        self.scrubber.report
    }

    /// What it has found, the first [`FINDINGS_MAX`](super::FINDINGS_MAX) of it.
    pub fn scrub_findings(&self) -> &[Finding] {
        self.scrubber.findings.all()
    }

    /// Whether it may read only what it is allowed by [`Engine::allow_scrub`]. At first that is nothing.
    pub fn limit_scrub(&mut self, is_limited: bool) {
        self.scrubber.allowance = is_limited.then_some(0);
    }

    /// Allows it to read this many more blocks, but no more than `most` from now on.
    pub fn allow_scrub(&mut self, blocks: u64, most: u64) {
        if let Some(allowance) = &mut self.scrubber.allowance {
            let clamped = |blocks: u64| i64::try_from(blocks).unwrap_or(i64::MAX);
            *allowance = allowance.saturating_add(clamped(blocks)).min(clamped(most));
        }
    }

    /// Blocks that it may still read; negative after a batch that exceeded it. `None` without a limit.
    pub fn scrub_allowance(&self) -> Option<i64> {
        self.scrubber.allowance
    }

    /// True if the scrub is throttled; the driver must set a timer.
    pub fn scrub_waits_for_time(&self) -> bool {
        self.scrubber.waits
    }
}
