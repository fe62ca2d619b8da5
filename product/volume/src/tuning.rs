//! What an operator may change while a volume is open.

pub use coulter_engine::named::{Named, UnknownName};
pub use coulter_engine::placement::Placement;
pub use coulter_engine::policy::VictimPolicy;
pub use coulter_engine::reclaim::Reclaim;
pub use coulter_engine::tuning::CleaningMode;

use std::fmt;
use std::time::Duration;

/// Settings of an open volume. None of them is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tuning {
    /// When the cleaner works.
    pub cleaning: CleaningMode,
    /// Which segment it takes next.
    pub policy: VictimPolicy,
    /// Which blocks share segments.
    pub placement: Placement,
    /// How space is reclaimed.
    pub reclaim: Reclaim,
    /// What it may read in a second.
    pub cleaning_rate: CleaningRate,
    /// How long the host's writes may take before it waits.
    pub latency_target: LatencyTarget,
    /// Whether it works ahead while the host is idle.
    pub idle_cleaning: bool,
    /// How long the host asks for nothing before it counts as idle.
    pub idle_after: IdleAfter,
    /// Whether what is scattered is being written anew in the host's order.
    pub defrag: bool,
    /// How long writes wait for space below the store.
    pub space_patience: SpacePatience,
}

/// Settings to be changed; what is `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retuning {
    /// When the cleaner is to work.
    pub cleaning: Option<CleaningMode>,
    /// Which segment it is to take next.
    pub policy: Option<VictimPolicy>,
    /// Which blocks are to share segments, from the next ones on.
    pub placement: Option<Placement>,
    /// How space is to be reclaimed, from the next record on.
    pub reclaim: Option<Reclaim>,
    /// What the cleaner may read in a second.
    pub cleaning_rate: Option<CleaningRate>,
    /// How long the host's writes may take before the cleaner waits.
    pub latency_target: Option<LatencyTarget>,
    /// Whether the cleaner is to work ahead while the host is idle.
    pub idle_cleaning: Option<bool>,
    /// How long the host asks for nothing before it counts as idle.
    pub idle_after: Option<IdleAfter>,
    /// Whether to go over the volume, once, and write what is scattered anew in the host's order.
    pub defrag: Option<bool>,
    /// How long writes are to wait for space below the store.
    pub space_patience: Option<SpacePatience>,
}

/// What the cleaner may read of segments in a second; what it writes again is less. The host's writes
/// slow down with it when segments are scarce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleaningRate(Option<u64>);

impl CleaningRate {
    /// No limit.
    pub const NONE: CleaningRate = CleaningRate(None);
    /// Bytes per second at the least: a chunk of a victim is up to 1.7 times as much.
    pub const LEAST: u64 = 1 << 20;
    /// Bytes per second at the most.
    pub const MOST: u64 = 1 << 40;

    /// So many bytes per second.
    ///
    /// # Errors
    /// `OutOfRange` below [`CleaningRate::LEAST`] or above [`CleaningRate::MOST`].
    pub fn limited_to(bytes_per_second: u64) -> Result<CleaningRate, OutOfRange> {
        if !(CleaningRate::LEAST..=CleaningRate::MOST).contains(&bytes_per_second) {
            return Err(OutOfRange { least: "1M", most: "1T" });
        }
        Ok(CleaningRate(Some(bytes_per_second)))
    }

    /// Bytes per second, if there is a limit.
    pub fn bytes_per_second(self) -> Option<u64> {
        self.0
    }
}

/// What 99 % of the host's writes should not take longer than; cleaning waits while they do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyTarget(Option<Duration>);

impl LatencyTarget {
    /// No target.
    pub const NONE: LatencyTarget = LatencyTarget(None);
    /// The least.
    pub const LEAST: Duration = Duration::from_micros(100);
    /// The most.
    pub const MOST: Duration = Duration::from_secs(10);

    /// So long.
    ///
    /// # Errors
    /// `OutOfRange` below [`LatencyTarget::LEAST`] or above [`LatencyTarget::MOST`].
    pub fn within(time: Duration) -> Result<LatencyTarget, OutOfRange> {
        if !(LatencyTarget::LEAST..=LatencyTarget::MOST).contains(&time) {
            return Err(OutOfRange { least: "100us", most: "10s" });
        }
        Ok(LatencyTarget(Some(time)))
    }

    /// The time, if there is a target.
    pub fn time(self) -> Option<Duration> {
        self.0
    }
}

/// How long the host asks for nothing before it counts as idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleAfter(Duration);

impl IdleAfter {
    /// The least: less than that is a pause between two requests.
    pub const LEAST: Duration = Duration::from_millis(10);
    /// The most.
    pub const MOST: Duration = Duration::from_secs(3600);

    /// So long.
    ///
    /// # Errors
    /// `OutOfRange` below [`IdleAfter::LEAST`] or above [`IdleAfter::MOST`].
    pub fn after(time: Duration) -> Result<IdleAfter, OutOfRange> {
        if !(IdleAfter::LEAST..=IdleAfter::MOST).contains(&time) {
            return Err(OutOfRange { least: "10ms", most: "1h" });
        }
        Ok(IdleAfter(time))
    }

    /// The time.
    pub fn time(self) -> Duration {
        self.0
    }
}

impl Default for IdleAfter {
    fn default() -> IdleAfter {
        IdleAfter(Duration::from_secs(1))
    }
}

/// How long writes wait for space below a store in a sparse file before they fail with ENOSPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpacePatience(Duration);

impl SpacePatience {
    /// The least: space is asked for again every quarter of a second.
    pub const LEAST: Duration = Duration::from_secs(1);
    /// The most.
    pub const MOST: Duration = Duration::from_secs(24 * 3600);

    /// So long.
    ///
    /// # Errors
    /// `OutOfRange` below [`SpacePatience::LEAST`] or above [`SpacePatience::MOST`].
    pub fn of(time: Duration) -> Result<SpacePatience, OutOfRange> {
        if !(SpacePatience::LEAST..=SpacePatience::MOST).contains(&time) {
            return Err(OutOfRange { least: "1s", most: "24h" });
        }
        Ok(SpacePatience(time))
    }

    /// The time.
    pub fn time(self) -> Duration {
        self.0
    }
}

impl Default for SpacePatience {
    fn default() -> SpacePatience {
        // About what others do.
        SpacePatience(Duration::from_secs(60))
    }
}

/// A value that a setting cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    /// The least that it can have, as it is written.
    pub least: &'static str,
    /// The most that it can have, as it is written.
    pub most: &'static str,
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "from {} to {}", self.least, self.most)
    }
}

impl std::error::Error for OutOfRange {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_range_is_refused_and_its_ends_are_not() {
        let rate = |bytes| CleaningRate::limited_to(bytes).map(CleaningRate::bytes_per_second);
        for bytes in [0, CleaningRate::LEAST - 1, CleaningRate::MOST + 1, u64::MAX] {
            assert!(rate(bytes).is_err(), "{bytes}");
        }
        assert_eq!(rate(CleaningRate::LEAST), Ok(Some(1 << 20)));
        assert_eq!(rate(CleaningRate::MOST), Ok(Some(1 << 40)));
        let target = |micros| LatencyTarget::within(Duration::from_micros(micros));
        assert!(target(0).is_err() && target(99).is_err() && target(10_000_001).is_err());
        assert!(target(100).is_ok() && target(10_000_000).is_ok());
        let idle = |millis| IdleAfter::after(Duration::from_millis(millis));
        assert!(idle(9).is_err() && idle(3_600_001).is_err());
        assert!(idle(10).is_ok() && idle(3_600_000).is_ok());
    }
}
