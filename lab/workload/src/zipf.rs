//! Zipf's law: the k-th most popular of n things is chosen with probability proportional to
//! 1 / k^theta.
//!
//! Rejection-inversion (Hörmann and Derflinger, "Rejection-inversion to generate variates from
//! monotone discrete distributions", 1996): constant time and memory for every n and theta, unlike
//! the sum over n that YCSB's generator needs at the start.

use crate::random::Random;

/// Chooses ranks.
#[derive(Clone, Debug)]
pub struct Zipf {
    theta: f64,
    count: f64,
    integral_first: f64,
    integral_last: f64,
    /// Below this distance from the next rank no second look is needed.
    sure: f64,
}

impl Zipf {
    /// Ranks `0..count`; `theta` 0 is uniform, 0.99 is what YCSB calls Zipfian.
    ///
    /// # Panics
    /// When `count` is zero, or `theta` is negative or not finite.
    pub fn new(count: u64, theta: f64) -> Zipf {
        assert!(count > 0, "a choice of something");
        assert!(theta >= 0.0 && theta.is_finite(), "an exponent");
        let mut zipf =
            Zipf { theta, count: count as f64, integral_first: 0.0, integral_last: 0.0, sure: 0.0 };
        zipf.integral_first = zipf.integral(1.5) - 1.0;
        zipf.integral_last = zipf.integral(zipf.count + 0.5);
        zipf.sure = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    /// A rank: 0 is the most popular.
    #[inline]
    pub fn rank(&self, random: &mut Random) -> u64 {
        // Accepted with a probability above 0.7 for every theta, so the loop is short.
        loop {
            let at =
                self.integral_last + random.unit() * (self.integral_first - self.integral_last);
            let real = self.inverse(at);
            let rank = libm::floor(real + 0.5).clamp(1.0, self.count);
            if rank - real <= self.sure || at >= self.integral(rank + 0.5) - self.density(rank) {
                return rank as u64 - 1;
            }
        }
    }

    fn density(&self, rank: f64) -> f64 {
        libm::exp(-self.theta * libm::log(rank))
    }

    /// The integral of the density from 1.
    fn integral(&self, rank: f64) -> f64 {
        let log = libm::log(rank);
        expm1_over((1.0 - self.theta) * log) * log
    }

    fn inverse(&self, integral: f64) -> f64 {
        // Rounding must not lead below the logarithm's domain.
        let scaled = (integral * (1.0 - self.theta)).max(-1.0);
        libm::exp(log1p_over(scaled) * integral)
    }
}

/// (e^x - 1) / x, also near zero, where theta is near 1.
fn expm1_over(x: f64) -> f64 {
    if x.abs() > 1e-8 {
        libm::expm1(x) / x
    } else {
        1.0 + x / 2.0 * (1.0 + x / 3.0 * (1.0 + x / 4.0))
    }
}

/// ln(1 + x) / x, also near zero.
fn log1p_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { libm::log1p(x) / x } else { 1.0 - x * (0.5 - x * (1.0 / 3.0 - x / 4.0)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(count: u64, theta: f64, samples: u32) -> Vec<f64> {
        let zipf = Zipf::new(count, theta);
        let mut random = Random::new(11);
        let mut counts = vec![0u32; count as usize];
        for _ in 0..samples {
            counts[zipf.rank(&mut random) as usize] += 1;
        }
        counts.iter().map(|count| f64::from(*count) / f64::from(samples)).collect()
    }

    #[test]
    fn ranks_are_as_popular_as_the_law_says() {
        for theta in [0.0, 0.5, 0.99, 1.0, 1.2] {
            let seen = shares(1000, theta, 200_000);
            let sum: f64 = (1..=1000).map(|k| f64::from(k).powf(-theta)).sum();
            for rank in [1usize, 2, 3, 10, 100] {
                let due = (rank as f64).powf(-theta) / sum;
                // Five standard deviations.
                let room = 5.0 * (due / 200_000.0).sqrt();
                let difference = (seen[rank - 1] - due).abs();
                assert!(difference < room, "theta {theta}, rank {rank}: {difference} > {room}");
            }
            let tail: f64 = seen[500..].iter().sum();
            let due: f64 = (501..=1000).map(|k| f64::from(k).powf(-theta)).sum::<f64>() / sum;
            assert!((tail - due).abs() < 0.006, "theta {theta}: tail {tail}, due {due}");
        }
    }

    #[test]
    fn the_bounds_are_kept_for_one_thing_and_for_very_many() {
        let mut random = Random::new(12);
        assert_eq!(Zipf::new(1, 0.99).rank(&mut random), 0);
        let zipf = Zipf::new(1 << 40, 0.99);
        assert!((0..10_000).all(|_| zipf.rank(&mut random) < 1 << 40));
    }

    #[test]
    fn the_sequence_is_the_same_on_every_machine() {
        let zipf = Zipf::new(1 << 20, 0.99);
        let mut random = Random::new(1);
        let ranks: Vec<_> = (0..6).map(|_| zipf.rank(&mut random)).collect();
        assert_eq!(ranks, [375, 26, 0, 2196, 2199, 20]);
    }
}
