//! What the driver's clock says about cleaning. The engine has no clock: whoever has one tells it
//! how much may be gone through, that the host suffers, that the host is idle.
//!
//! # Invariants
//! - None of it lets the engine stand still. An allowance that is used up is kept until there is no
//!   segment left but what checkpoints need (the floor); below that cleaning goes on without.
//!   Holding back ends where the host would have to wait for segments.
//! - Cleaning for an idle host ends by itself: each segment that it takes gives a quarter of itself,
//!   and without writes of the host nothing becomes garbage.

use super::Cleaner;
use crate::api::RECORD_BLOCKS;
use crate::shared::Shared;
use crate::tuning::CleaningMode;

/// What holds the cleaner back, and what lets it work ahead.
#[derive(Debug, Default)]
pub(crate) struct Restraint {
    /// Blocks that may still be gone through; `None` for any number. Below zero by as much as the
    /// latest chunk was larger.
    allowance: Option<i64>,
    /// The host's writes take longer than they should.
    holds_back: bool,
    /// The host has asked for nothing for a while.
    host_is_idle: bool,
    /// The cleaner would have worked, had the clock's owner allowed it.
    waits: bool,
}

/// Why the cleaner works, what presses most first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Segments are so few that nothing else goes on.
    Floor,
    /// The host gets what the cleaner gains.
    Scarce,
    /// In step with the host's writes.
    Paced,
    /// An operator wants it.
    Drain,
    /// There is time.
    Idle,
    /// Nothing is to be won but the host's order.
    Defrag,
}

impl Reason {
    /// The share of a segment, as a divisor, that must be won for it to be worth cleaning: more than
    /// what headers and the checkpoint cost, or cleaning runs in circles. Ahead of time only what
    /// costs little: many of the blocks copied would have been overwritten by the time.
    pub(crate) fn least_gain(self) -> u32 {
        match self {
            Reason::Floor => 64,
            Reason::Idle => 4,
            _ => 32,
        }
    }
}

impl Restraint {
    /// So many blocks of a victim are read. What is read on the floor whatever is allowed does not add up: the
    /// host would wait until all of it had been allowed.
    pub(crate) fn spend(&mut self, blocks: u32) {
        assert!(blocks > 0, "what is spent was read");
        if let Some(allowance) = &mut self.allowance {
            *allowance = (*allowance - i64::from(blocks)).max(-(RECORD_BLOCKS as i64));
        }
    }

    /// Whether holes may be looked for now.
    pub(crate) fn lets_search(&self) -> bool {
        !self.is_used_up() && !self.holds_back
    }

    fn is_used_up(&self) -> bool {
        self.allowance.is_some_and(|allowance| allowance <= 0)
    }

    /// Whether the cleaner may take a step for this reason.
    fn allows(&self, reason: Reason) -> bool {
        let is_used_up = self.is_used_up();
        match reason {
            Reason::Floor => true,
            Reason::Scarce => !is_used_up,
            _ => !is_used_up && !self.holds_back,
        }
    }

    /// Whoever has the clock is told whether the cleaner would work, were it allowed to.
    pub(super) fn note(&mut self, wish: Wish) {
        assert!(wish.reason.is_some() || !wish.is_allowed, "what is allowed was wished for");
        self.waits = wish.reason.is_some() && !wish.is_allowed;
    }

    /// See [`crate::Engine::limit_cleaning`].
    pub(crate) fn limit(&mut self, is_limited: bool) {
        self.allowance = is_limited.then_some(0);
    }

    /// See [`crate::Engine::allow_cleaning`].
    pub(crate) fn allow(&mut self, blocks: u64, most: u64) {
        if let Some(allowance) = &mut self.allowance {
            let (blocks, most) = (clamped(blocks), clamped(most));
            assert!(blocks >= 0 && most >= 0, "an allowance is blocks");
            *allowance = allowance.saturating_add(blocks).min(most);
        }
    }

    /// See [`crate::Engine::cleaning_allowance`].
    pub(crate) fn allowance(&self) -> Option<i64> {
        self.allowance
    }

    /// See [`crate::Engine::hold_cleaning_back`].
    pub(crate) fn hold_back(&mut self, holds: bool) {
        self.holds_back = holds;
    }

    /// See [`crate::Engine::set_host_idle`].
    pub(crate) fn set_host_idle(&mut self, is_idle: bool) {
        self.host_is_idle = is_idle;
    }

    /// See [`crate::Engine::waits_for_time`].
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }
}

/// Why the cleaner would work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    reason: Option<Reason>,
    is_allowed: bool,
    /// Somebody wants all to be cleaned, and nothing is worth it any more.
    pub(super) is_drained: bool,
}

impl Wish {
    /// The reason, if it is one that is allowed now.
    pub(super) fn allowed(self) -> Option<Reason> {
        self.reason.filter(|_| self.is_allowed)
    }
}

impl Cleaner {
    /// Blocks that the cleaner may have on their way from the device. Many, where nobody waits behind them
    /// or somebody has said that cleaning is what counts.
    pub(crate) fn reads_max(&self, shared: &Shared) -> u32 {
        let hastens = self.restraint.host_is_idle || self.mode == CleaningMode::Drain;
        if hastens { u32::MAX } else { shared.pacing.cleaning_reads_max() }
    }

    /// Why the cleaner should take its next step, if it should, and whether it may.
    pub(super) fn wish(&self, shared: &Shared) -> Wish {
        let is_paced = shared.pacing.wants_cleaning(self.worth(shared));
        let is_drained = self.nothing_is_worth_cleaning(shared, Reason::Drain);
        let reason = self.reason(shared, is_paced, is_drained);
        let is_allowed = reason.is_some_and(|reason| self.restraint.allows(reason));
        Wish { reason, is_allowed, is_drained }
    }

    fn reason(&self, shared: &Shared, is_paced: bool, is_drained: bool) -> Option<Reason> {
        if is_paced && shared.pacing.is_at_floor() {
            return Some(Reason::Floor);
        }
        if is_paced && shared.pacing.is_scarce() {
            return Some(Reason::Scarce);
        }
        match self.mode {
            CleaningMode::Paused => return None,
            CleaningMode::Drain if !is_drained => return Some(Reason::Drain),
            CleaningMode::Drain | CleaningMode::Paced => {}
        }
        if is_paced {
            return Some(Reason::Paced);
        }
        let is_idle = self.restraint.host_is_idle && shared.pacing.wants_cleaning_ahead();
        if is_idle && !self.nothing_is_worth_cleaning(shared, Reason::Idle) {
            return Some(Reason::Idle);
        }
        self.defrag_is_wanted(shared).then_some(Reason::Defrag)
    }
}

fn clamped(blocks: u64) -> i64 {
    i64::try_from(blocks).unwrap_or(i64::MAX)
}
