//! What a histogram of times comes to.

use crate::units::Ns;
use coulter::Histogram;
use serde::Serialize;

/// What a histogram comes to, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// How many times were counted.
    pub count: u64,
    /// The mean.
    pub mean_ns: Ns,
    /// Half were at most as long.
    pub p50_ns: Ns,
    /// 99 in 100 were at most as long.
    pub p99_ns: Ns,
    /// 999 in 1000 were at most as long.
    pub p999_ns: Ns,
    /// The longest.
    pub max_ns: Ns,
}

impl From<&Histogram> for Latency {
    fn from(histogram: &Histogram) -> Latency {
        Latency {
            count: histogram.count(),
            mean_ns: histogram.mean_ns(),
            p50_ns: histogram.quantile_ns(500_000),
            p99_ns: histogram.quantile_ns(990_000),
            p999_ns: histogram.quantile_ns(999_000),
            max_ns: histogram.max_ns(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_is_its_own_quantile() {
        let mut histogram = Histogram::default();
        (1..=100_000).for_each(|time| histogram.record(time));
        let summary = Latency::from(&histogram);
        let found = [summary.p50_ns, summary.p99_ns, summary.p999_ns];
        for (found, exact) in found.into_iter().zip([50_000, 99_000, 99_900]) {
            assert!((exact..=exact + exact / 16).contains(&found), "{found} for {exact}");
        }
        assert_eq!((summary.count, summary.mean_ns, summary.max_ns), (100_000, 50_000, 100_000));
        assert_eq!(Latency::from(&Histogram::default()), Latency::default());
    }
}
