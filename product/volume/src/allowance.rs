//! A rate as an allowance of blocks that grows with time.
//!
//! Invariant: over any time t at most rate × t + [`BURST`] of it are paid out.

use coulter_format::BLOCK_SIZE;
use std::time::Duration;

/// What may be saved up: more would be felt as a stall by those who set a rate.
const BURST: Duration = Duration::from_millis(50);

const SECOND_NS: u128 = 1_000_000_000;

/// What has been paid out of a rate.
#[derive(Debug, Default)]
pub(crate) struct Allowance {
    /// Bytes per second; `None` without a limit.
    rate: Option<u64>,
    /// Up to when it has been paid out.
    paid_ns: u64,
}

/// Blocks that are paid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Payment {
    pub(crate) blocks: u64,
    /// Blocks that may be saved up.
    pub(crate) most: u64,
}

impl Allowance {
    /// From now on at this rate in bytes per second, or without a limit.
    pub(crate) fn set(&mut self, rate: Option<u64>, now_ns: u64) {
        (self.rate, self.paid_ns) = (rate, now_ns);
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.rate.is_some()
    }

    /// What the time since the last payment is worth, in whole blocks, if that is any.
    pub(crate) fn pay(&mut self, now_ns: u64) -> Option<Payment> {
        let rate = self.rate?;
        let elapsed = u128::from(now_ns.saturating_sub(self.paid_ns));
        let blocks = elapsed * u128::from(rate) / (SECOND_NS * BLOCK_SIZE as u128);
        let blocks = u64::try_from(blocks).ok().filter(|blocks| *blocks > 0)?;
        self.paid_ns += self.time_for(blocks).unwrap_or(0);
        let burst = u128::from(rate) * BURST.as_nanos() / (SECOND_NS * BLOCK_SIZE as u128);
        Some(Payment { blocks, most: (burst as u64).max(1) })
    }

    /// Nanoseconds that this number of blocks takes at the rate, rounded up.
    pub(crate) fn time_for(&self, blocks: u64) -> Option<u64> {
        let rate = u128::from(self.rate?);
        let bytes = u128::from(blocks) * BLOCK_SIZE as u128;
        Some(u64::try_from((bytes * SECOND_NS).div_ceil(rate)).unwrap_or(u64::MAX))
    }

    /// Nanoseconds until an allowance that is this low is positive again.
    pub(crate) fn time_until_positive(&self, allowance: i64) -> Option<u64> {
        let debt = 1 - allowance.min(1);
        self.time_for(debt.unsigned_abs())
    }
}
