//! The clock's say in cleaning: a rate that it may not exceed, a latency of the host's writes above
//! which it waits, and idle time in which it works ahead.
//!
//! The engine has no clock. Once a turn this tells it what the time allows, and says until when the
//! loop may sleep. Without any of the settings nothing here is called but [`Governor::is_at_work`].
//!
//! Invariants:
//! - over any time t cleaning, or a scrub, reads at most what [`Allowance`] pays out, and one chunk;
//! - a sleep that ends only because of a setting ends by itself: nobody is woken for it.

use crate::allowance::Allowance;
use crate::scrub::ScrubOrder;
use crate::service::BLOCK_SIZE;
use crate::tuning::{CleaningRate, IdleAfter, LatencyTarget, Retuning, Tuning};
use coulter_engine::Engine;
/// How often at most the loop wakes up for an allowance, and at least for the host's latency.
const NAP_LEAST_NS: u64 = 2_000_000;
const NAP_NS: u64 = 50_000_000;

/// Writes of the host that count: those of about so long, and so many at the most.
const WINDOW_NS: u64 = 250_000_000;
const WINDOW_WRITES: u32 = 2048;

/// Writes below which nothing is concluded.
const WRITES_MIN: u32 = 16;

/// Settings that need a clock, and what they need to know.
#[derive(Debug, Default)]
pub(crate) struct Governor {
    rate: CleaningRate,
    cleaning: Allowance,
    scrub: Allowance,
    target: LatencyTarget,
    cleans_when_idle: bool,
    idle_after: IdleAfter,
    slow: SlowWrites,
    holds_back: bool,
    /// When the host was last seen to want something; `None` before the first turn.
    wanted_ns: Option<u64>,
    is_idle: bool,
    counts: GovernorCounts,
}

/// What became of the settings that need a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GovernorCounts {
    /// How often cleaning began to wait because the host's writes took too long.
    pub(crate) back_offs: u64,
    /// How often the host was found to be idle.
    pub(crate) idle_times: u64,
}

impl Governor {
    /// Whether any setting needs the clock.
    pub(crate) fn is_at_work(&self) -> bool {
        self.cleaning.is_limited()
            || self.scrub.is_limited()
            || self.target.time().is_some()
            || self.cleans_when_idle
    }

    pub(crate) fn counts(&self) -> GovernorCounts {
        self.counts
    }

    /// Changes settings, and adds what they are to `tuning`.
    pub(crate) fn tune(
        &mut self,
        retuning: Retuning,
        tuning: Tuning,
        engine: &mut Engine,
        now_ns: u64,
    ) -> Tuning {
        if let Some(rate) = retuning.cleaning_rate {
            self.rate = rate;
            self.cleaning.set(rate.bytes_per_second(), now_ns);
            engine.limit_cleaning(self.cleaning.is_limited());
        }
        if let Some(target) = retuning.latency_target {
            (self.target, self.slow) = (target, SlowWrites::default());
            self.hold_back(false, engine);
        }
        self.cleans_when_idle = retuning.idle_cleaning.unwrap_or(self.cleans_when_idle);
        self.idle_after = retuning.idle_after.unwrap_or(self.idle_after);
        if retuning.idle_cleaning.is_some() || retuning.idle_after.is_some() {
            // Idle time is counted from here on.
            self.note_request(engine);
            self.wanted_ns = Some(now_ns);
        }
        Tuning {
            cleaning_rate: self.rate,
            latency_target: self.target,
            idle_cleaning: self.cleans_when_idle,
            idle_after: self.idle_after,
            ..tuning
        }
    }

    /// Has a scrub begin, change its rate or end.
    pub(crate) fn scrub(&mut self, order: ScrubOrder, engine: &mut Engine, now_ns: u64) {
        match order {
            ScrubOrder::Start { from_bytes, rate } => {
                self.scrub.set(rate.bytes_per_second(), now_ns);
                engine.limit_scrub(self.scrub.is_limited());
                engine.start_scrub(from_bytes / BLOCK_SIZE);
            }
            ScrubOrder::Stop => engine.stop_scrub(),
            ScrubOrder::Tell => {}
        }
    }

    /// The host asks for something: whatever was done ahead stops.
    pub(crate) fn note_request(&mut self, engine: &mut Engine) {
        self.wanted_ns = None;
        if self.is_idle {
            self.is_idle = false;
            engine.set_host_idle(false);
        }
    }

    /// A write of the host has taken so long.
    pub(crate) fn note_write(&mut self, latency_ns: u64) {
        if let Some(target) = self.target.time() {
            self.slow.note(u128::from(latency_ns) > target.as_nanos());
        }
    }

    /// Tells the engine what the time allows. `is_busy`: requests of the host are under way.
    pub(crate) fn turn(&mut self, engine: &mut Engine, now_ns: u64, is_busy: bool) {
        self.pay_out(engine, now_ns);
        if self.target.time().is_some() {
            self.slow.forget(now_ns);
            self.hold_back(self.slow.are_too_many(), engine);
        }
        let wanted_ns = *self.wanted_ns.get_or_insert(now_ns);
        if is_busy {
            self.wanted_ns = Some(now_ns);
        } else if self.cleans_when_idle
            && !self.is_idle
            && u128::from(now_ns.saturating_sub(wanted_ns)) >= self.idle_after.time().as_nanos()
        {
            self.is_idle = true;
            self.counts.idle_times += 1;
            engine.set_host_idle(true);
        }
    }

    /// How long the loop may sleep at the most; `None` for as long as nothing happens.
    pub(crate) fn nap_ns(&self, engine: &Engine, now_ns: u64) -> Option<u64> {
        let mut nap = None;
        if engine.waits_for_time() {
            let allowance = engine.cleaning_allowance().unwrap_or(1);
            let owed = allowance <= 0;
            let time = self.cleaning.time_until_positive(allowance).filter(|_| owed);
            nap = Some(time.map_or(NAP_NS, |time| time.max(NAP_LEAST_NS)));
        }
        if engine.scrub_waits_for_time() {
            let allowance = engine.scrub_allowance().unwrap_or(1);
            let time = self.scrub.time_until_positive(allowance).unwrap_or(0).max(NAP_LEAST_NS);
            nap = Some(nap.map_or(time, |nap: u64| nap.min(time)));
        }
        if let Some(wanted_ns) = self.wanted_ns
            && self.cleans_when_idle
            && !self.is_idle
        {
            let after_ns = u64::try_from(self.idle_after.time().as_nanos()).unwrap_or(u64::MAX);
            let left = wanted_ns.saturating_add(after_ns).saturating_sub(now_ns).max(1);
            nap = Some(nap.map_or(left, |nap: u64| nap.min(left)));
        }
        nap
    }

    fn hold_back(&mut self, holds: bool, engine: &mut Engine) {
        if holds != self.holds_back {
            self.holds_back = holds;
            self.counts.back_offs += u64::from(holds);
            engine.hold_cleaning_back(holds);
        }
    }

    /// Adds to the engine's allowances what the time since the last turn is worth.
    fn pay_out(&mut self, engine: &mut Engine, now_ns: u64) {
        if let Some(payment) = self.cleaning.pay(now_ns) {
            engine.allow_cleaning(payment.blocks, payment.most);
        }
        if let Some(payment) = self.scrub.pay(now_ns) {
            engine.allow_scrub(payment.blocks, payment.most);
        }
    }
}

/// How many of the latest writes took too long. Of older ones half is forgotten at a time, so the
/// share is that of the last quarter of a second or so.
#[derive(Debug, Default)]
struct SlowWrites {
    count: u32,
    slow: u32,
    halved_ns: u64,
}

impl SlowWrites {
    fn note(&mut self, is_slow: bool) {
        if self.count >= WINDOW_WRITES {
            self.halve();
        }
        self.count += 1;
        self.slow += u32::from(is_slow);
    }

    fn forget(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.halved_ns) >= WINDOW_NS {
            self.halved_ns = now_ns;
            self.halve();
        }
    }

    fn halve(&mut self) {
        self.count /= 2;
        self.slow /= 2;
    }

    /// Whether it is more than one in a hundred.
    fn are_too_many(&self) -> bool {
        self.count >= WRITES_MIN && self.slow * 100 > self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn engine() -> Engine {
        Engine::open(coulter_engine::Config::default(), 1 << 20).expect("there is memory")
    }

    fn tuned(engine: &mut Engine, retuning: Retuning) -> Governor {
        let mut governor = Governor::default();
        assert!(!governor.is_at_work());
        governor.tune(retuning, Tuning::default(), engine, 0);
        governor
    }

    #[test]
    fn an_allowance_is_paid_out_by_the_clock_and_saved_up_only_for_a_while() {
        let mut engine = engine();
        let rate = CleaningRate::limited_to(40 << 20).ok();
        let retuning = Retuning { cleaning_rate: rate, ..Retuning::default() };
        let mut governor = tuned(&mut engine, retuning);
        assert_eq!(engine.cleaning_allowance(), Some(0));
        // 40 MiB are 10240 blocks; in turns of 1.3 ms nothing is lost to rounding.
        for turn in 1..=30 {
            governor.turn(&mut engine, turn * 1_300_000, true);
        }
        assert_eq!(engine.cleaning_allowance(), Some(399));
        governor.turn(&mut engine, 3_000_000_000, true);
        assert_eq!(engine.cleaning_allowance(), Some(512), "of 50 ms at the most");
        let none = Retuning { cleaning_rate: Some(CleaningRate::NONE), ..Retuning::default() };
        governor.tune(none, Tuning::default(), &mut engine, 4_000_000_000);
        assert_eq!((engine.cleaning_allowance(), governor.is_at_work()), (None, false));
    }

    #[test]
    fn one_slow_write_in_a_hundred_is_borne_and_more_are_not_until_they_are_over() {
        let mut engine = engine();
        let target = LatencyTarget::within(Duration::from_millis(2)).ok();
        let mut governor =
            tuned(&mut engine, Retuning { latency_target: target, ..Retuning::default() });
        (0..100).for_each(|write| governor.note_write(if write == 0 { 3_000_000 } else { 1 }));
        governor.turn(&mut engine, 1, true);
        assert_eq!(governor.counts().back_offs, 0);
        (0..5).for_each(|_| governor.note_write(2_000_001));
        governor.turn(&mut engine, 2, true);
        assert!(governor.holds_back);
        // Without any more of them it ends within two seconds, even if no write comes at all.
        (1..8).for_each(|step| governor.turn(&mut engine, step * WINDOW_NS, false));
        assert_eq!((governor.holds_back, governor.counts().back_offs), (false, 1));
    }

    #[test]
    fn the_host_is_idle_after_a_while_and_no_longer_when_it_asks() {
        let mut engine = engine();
        let retuning = Retuning {
            idle_cleaning: Some(true),
            idle_after: IdleAfter::after(Duration::from_millis(20)).ok(),
            ..Retuning::default()
        };
        let mut governor = tuned(&mut engine, retuning);
        governor.turn(&mut engine, 5_000_000, true);
        assert_eq!(governor.nap_ns(&engine, 10_000_000), Some(15_000_000));
        governor.turn(&mut engine, 24_999_999, false);
        assert!(!governor.is_idle);
        governor.turn(&mut engine, 25_000_000, false);
        assert!(governor.is_idle);
        assert_eq!(governor.nap_ns(&engine, 25_000_000), None, "nothing is waited for");
        governor.note_request(&mut engine);
        governor.turn(&mut engine, 90_000_000, false);
        assert!(!governor.is_idle, "a request begins the count anew");
    }
}
