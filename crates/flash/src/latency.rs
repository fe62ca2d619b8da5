//! A histogram of times: sixteen buckets for each power of two, so that what is read from it is at
//! most a sixteenth above the truth.

use crate::units::Ns;
use serde::Serialize;

const STEPS: u64 = 16;
const BUCKETS: usize = 16 * 64;

/// Counts of times.
#[derive(Clone, Debug)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    sum: u128,
    max: Ns,
}

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

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: vec![0; BUCKETS], count: 0, sum: 0, max: 0 }
    }
}

fn bucket(time: Ns) -> usize {
    if time < STEPS {
        return time as usize;
    }
    let power = u64::from(time.ilog2()) - 3;
    (power * STEPS + (time >> (power - 1)) - STEPS) as usize
}

/// The largest time of a bucket.
fn bound(bucket: usize) -> Ns {
    let bucket = bucket as u64;
    if bucket < STEPS {
        return bucket;
    }
    let (power, step) = (bucket / STEPS, bucket % STEPS);
    let end = u128::from(STEPS + step + 1) << (power - 1);
    u64::try_from(end - 1).unwrap_or(u64::MAX)
}

impl Histogram {
    /// Counts a time.
    pub fn record(&mut self, time: Ns) {
        self.buckets[bucket(time)] += 1;
        self.count += 1;
        self.sum += u128::from(time);
        self.max = self.max.max(time);
    }

    /// The time that `per_mille` of a thousand do not exceed.
    fn quantile(&self, per_mille: u64) -> Ns {
        let due = (self.count * per_mille).div_ceil(1000);
        let mut seen = 0;
        let found = self.buckets.iter().position(|count| {
            seen += count;
            seen >= due
        });
        found.map_or(0, bound).min(self.max)
    }

    /// Mean and quantiles; zeros if nothing was counted.
    pub fn summary(&self) -> Latency {
        if self.count == 0 {
            return Latency::default();
        }
        Latency {
            count: self.count,
            mean_ns: (self.sum / u128::from(self.count)) as u64,
            p50_ns: self.quantile(500),
            p99_ns: self.quantile(990),
            p999_ns: self.quantile(999),
            max_ns: self.max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_has_a_bucket_and_the_buckets_rise() {
        for time in
            (0..70).map(|power| 1u128 << power).chain(0..2000).filter_map(|t| t.try_into().ok())
        {
            let found = bucket(time);
            assert!(bound(found) >= time, "{time}");
            assert!(found == 0 || bound(found - 1) < time, "{time}");
        }
        assert!(bucket(u64::MAX) < BUCKETS);
    }

    #[test]
    fn quantiles_are_at_most_a_sixteenth_too_high() {
        let mut histogram = Histogram::default();
        (1..=100_000).for_each(|time| histogram.record(time));
        let summary = histogram.summary();
        for (found, exact) in [(summary.p50_ns, 50_000), (summary.p99_ns, 99_000)] {
            assert!((exact..=exact + exact / 16).contains(&found), "{found} for {exact}");
        }
        assert_eq!((summary.mean_ns, summary.max_ns), (50_000, 100_000));
        assert_eq!(Histogram::default().summary(), Latency::default());
    }
}
