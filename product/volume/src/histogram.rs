//! How long things took: counts in buckets whose width grows with the value.
//!
//! Each power of two is divided into `STEPS` buckets, so a quantile is at most 1/16 above the
//! truth. Recording is a shift, an addition and a maximum.

/// Buckets in each power of two.
const STEPS: u64 = 16;
const STEP_BITS: u32 = STEPS.trailing_zeros();

/// The values below `STEPS` have a bucket each; above, each of the remaining powers has `STEPS`.
const BUCKET_COUNT: usize = (STEPS + (64 - STEP_BITS) as u64 * STEPS) as usize;

const _: () = assert!(STEPS.is_power_of_two());
const _: () = assert!(BUCKET_COUNT == 976);

/// A distribution of times in nanoseconds.
#[derive(Clone)]
pub struct Histogram {
    buckets: Box<[u64; BUCKET_COUNT]>,
    count: u64,
    total: u128,
    max: u64,
}

impl Histogram {
    /// A distribution of nothing.
    pub fn new() -> Histogram {
        Histogram { buckets: Box::new([0; BUCKET_COUNT]), count: 0, total: 0, max: 0 }
    }

    /// Takes a value in.
    #[inline]
    pub fn record(&mut self, value_ns: u64) {
        self.buckets[bucket_of(value_ns)] += 1;
        self.count += 1;
        self.total += u128::from(value_ns);
        self.max = self.max.max(value_ns);
    }

    /// Takes in all values of another one.
    pub fn add(&mut self, other: &Histogram) {
        for (own, other) in self.buckets.iter_mut().zip(other.buckets.iter()) {
            *own += other;
        }
        self.count += other.count;
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    /// Values taken in.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The largest value, in nanoseconds.
    pub fn max_ns(&self) -> u64 {
        self.max
    }

    /// The mean, in nanoseconds; zero without values.
    pub fn mean_ns(&self) -> u64 {
        match self.count {
            0 => 0,
            count => (self.total / u128::from(count)) as u64,
        }
    }

    /// A value that at least `millionths` of all are not above, in nanoseconds; zero without
    /// values.
    pub fn quantile_ns(&self, millionths: u32) -> u64 {
        assert!(millionths <= 1_000_000, "a quantile is a part of the whole");
        let wanted = (u128::from(self.count) * u128::from(millionths)).div_ceil(1_000_000);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += u128::from(*count);
            if *count > 0 && seen >= wanted {
                return last_of(bucket).min(self.max);
            }
        }
        0
    }
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::new()
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let p50 = self.quantile_ns(500_000);
        write!(f, "Histogram({} values, median {p50} ns, maximum {} ns)", self.count, self.max)
    }
}

fn bucket_of(value: u64) -> usize {
    if value < STEPS {
        return value as usize;
    }
    let power = value.ilog2();
    let step = (value >> (power - STEP_BITS)) - STEPS;
    (u64::from(power - STEP_BITS + 1) * STEPS + step) as usize
}

/// The largest value that belongs to a bucket.
fn last_of(bucket: usize) -> u64 {
    let (power, step) = (bucket as u64 / STEPS, bucket as u64 % STEPS);
    if power == 0 {
        return step;
    }
    let width = 1 << (power - 1);
    // The last bucket ends with the largest value, one past which does not fit.
    (STEPS + step) * width + (width - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_gap_or_overlap() {
        for bucket in 0..BUCKET_COUNT - 1 {
            let last = last_of(bucket);
            assert_eq!(bucket_of(last), bucket);
            assert_eq!(bucket_of(last + 1), bucket + 1);
        }
        assert_eq!(last_of(BUCKET_COUNT - 1), u64::MAX);
        assert_eq!(bucket_of(u64::MAX), BUCKET_COUNT - 1);
    }

    #[test]
    fn quantiles_are_at_most_a_sixteenth_too_high() {
        let mut histogram = Histogram::new();
        for value in 1..=100_000 {
            histogram.record(value);
        }
        for millionths in [1, 10_000, 500_000, 990_000, 999_000, 1_000_000] {
            let exact = u64::from(millionths).div_ceil(10);
            let found = histogram.quantile_ns(millionths);
            assert!((exact..=exact + exact / 16).contains(&found), "{exact} gave {found}");
        }
        assert_eq!(histogram.mean_ns(), 50_000);
        assert_eq!(histogram.max_ns(), 100_000);
        assert_eq!(histogram.count(), 100_000);
    }

    #[test]
    fn nothing_recorded_is_zero() {
        let histogram = Histogram::new();
        assert_eq!((histogram.quantile_ns(500_000), histogram.mean_ns()), (0, 0));
    }
}
