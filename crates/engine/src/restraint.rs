//! What the driver's clock says about cleaning. The engine has no clock: whoever has one tells it
//! how much may be gone through, that the host suffers, that the host is idle.
//!
//! # Invariants
//! - None of it lets the engine stand still. An allowance that is used up is kept until there is no
//!   segment left but what checkpoints need (the floor); below that cleaning goes on without.
//!   Holding back ends where the host would have to wait for segments.
//! - Cleaning for an idle host ends by itself: each segment that it takes gives a quarter of itself,
//!   and without writes of the host nothing becomes garbage.

use crate::Engine;
use crate::api::RECORD_BLOCKS;
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
    fn allows(&mut self, reason: Reason) -> bool {
        let is_used_up = self.is_used_up();
        let allows = match reason {
            Reason::Floor => true,
            Reason::Scarce => !is_used_up,
            _ => !is_used_up && !self.holds_back,
        };
        self.waits |= !allows;
        allows
    }
}

impl Engine {
    /// Whether the cleaner may read only what it is allowed by [`Engine::allow_cleaning`]. At first
    /// that is nothing. What it writes again is less than what it reads.
    pub fn limit_cleaning(&mut self, is_limited: bool) {
        self.restraint.allowance = is_limited.then_some(0);
    }

    /// Allows the cleaner to read so many more blocks, but no more than `most` from now on. Without a
    /// limit this does nothing.
    pub fn allow_cleaning(&mut self, blocks: u64, most: u64) {
        if let Some(allowance) = &mut self.restraint.allowance {
            let (blocks, most) = (clamped(blocks), clamped(most));
            *allowance = allowance.saturating_add(blocks).min(most);
        }
    }

    /// Blocks that it may still read; below zero by as much as the latest chunk was larger. `None`
    /// without a limit.
    pub fn cleaning_allowance(&self) -> Option<i64> {
        self.restraint.allowance
    }

    /// Whether cleaning is to wait, as long as the host need not wait for segments.
    pub fn hold_cleaning_back(&mut self, holds: bool) {
        self.restraint.holds_back = holds;
    }

    /// Whether the host is idle, so that segments may be cleaned ahead: those that give a quarter of
    /// themselves, until half of what could be empty is.
    pub fn set_host_idle(&mut self, is_idle: bool) {
        self.restraint.host_is_idle = is_idle;
    }

    /// Whether the cleaner, or the host through it, waits for an allowance or for not being held back
    /// any more. Asked by whoever has the clock: nothing happens by itself then.
    pub fn waits_for_time(&self) -> bool {
        self.restraint.waits
    }

    /// Blocks that the cleaner may have on their way from the device. Many, where nobody waits behind them
    /// or somebody has said that cleaning is what counts.
    pub(crate) fn cleaning_reads_max(&self) -> u32 {
        let hastens = self.restraint.host_is_idle || self.cleaning == CleaningMode::Drain;
        if hastens { u32::MAX } else { self.pacing.cleaning_reads_max() }
    }

    /// Why the cleaner should take its next step, if it should and may. `paced` says whether it should
    /// for the host's writes alone.
    pub(crate) fn reason_to_clean(&mut self, paced: bool) -> Option<Reason> {
        self.restraint.waits = false;
        let reason = self.wish_to_clean(paced)?;
        self.restraint.allows(reason).then_some(reason)
    }

    fn wish_to_clean(&mut self, paced: bool) -> Option<Reason> {
        if paced && self.pacing.is_at_floor() {
            return Some(Reason::Floor);
        }
        if paced && self.pacing.is_scarce() {
            return Some(Reason::Scarce);
        }
        match self.cleaning {
            CleaningMode::Paused => return None,
            CleaningMode::Drain if !self.nothing_is_worth_cleaning(Reason::Drain) => {
                return Some(Reason::Drain);
            }
            CleaningMode::Drain => self.cleaning = CleaningMode::Paced,
            CleaningMode::Paced => {}
        }
        if paced {
            return Some(Reason::Paced);
        }
        let is_idle = self.restraint.host_is_idle && self.pacing.wants_cleaning_ahead();
        if is_idle && !self.nothing_is_worth_cleaning(Reason::Idle) {
            return Some(Reason::Idle);
        }
        self.defrag_is_wanted().then_some(Reason::Defrag)
    }
}

fn clamped(blocks: u64) -> i64 {
    i64::try_from(blocks).unwrap_or(i64::MAX)
}
