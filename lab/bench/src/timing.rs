//! Clocks, and the middle of several measurements.

use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// CPU time of the calling thread, or of the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuClock {
    of: ClockId,
    start: f64,
}

impl CpuClock {
    /// Counts what the calling thread takes.
    pub(crate) fn start() -> CpuClock {
        CpuClock::start_of(ClockId::ThreadCPUTime)
    }

    /// Counts what all threads take.
    pub(crate) fn start_of_process() -> CpuClock {
        CpuClock::start_of(ClockId::ProcessCPUTime)
    }

    fn start_of(of: ClockId) -> CpuClock {
        CpuClock { of, start: now(of) }
    }

    /// Seconds of CPU time since the start.
    pub(crate) fn seconds(&self) -> f64 {
        now(self.of) - self.start
    }
}

fn now(of: ClockId) -> f64 {
    let time = clock_gettime(of);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// How long something took by the clock, and how much of that its thread was running. On a machine
/// with other work the two differ by what the scheduler gave to others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Took {
    pub(crate) time: Duration,
    /// Seconds.
    pub(crate) cpu: f64,
}

/// Times something on this thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnClock {
    cpu: CpuClock,
    start: Instant,
}

impl TurnClock {
    pub(crate) fn start() -> TurnClock {
        TurnClock { cpu: CpuClock::start(), start: Instant::now() }
    }

    /// What went by since the start.
    pub(crate) fn took(&self) -> Took {
        let time = self.start.elapsed();
        Took { time, cpu: self.cpu.seconds() }
    }
}

/// The value in the middle; of an even number, the mean of the two in the middle.
///
/// # Panics
/// When there is none.
pub(crate) fn median(values: &[f64]) -> f64 {
    assert!(!values.is_empty(), "nothing was measured");
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

/// How long each of many requests took, to the microsecond: their number does not matter to memory, which is
/// measured too.
#[derive(Debug)]
pub(crate) struct Latencies {
    /// How many took so many microseconds.
    counts: Vec<u32>,
    /// The few that took longer than there are counts.
    longer: Vec<u32>,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies { counts: vec![0; 1 << 16], longer: Vec::new() }
    }
}

impl Latencies {
    pub(crate) fn note(&mut self, took: Duration) {
        let microseconds = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        match self.counts.get_mut(microseconds as usize) {
            Some(count) => *count += 1,
            None => self.longer.push(microseconds),
        }
    }

    /// Adds those of another.
    pub(crate) fn append(&mut self, other: Latencies) {
        let counts = self.counts.iter_mut().zip(other.counts);
        counts.for_each(|(count, more)| *count += more);
        self.longer.extend(other.longer);
    }

    /// The same in order, which quantiles need.
    pub(crate) fn sorted(mut self) -> Latencies {
        self.longer.sort_unstable();
        self
    }

    /// So large a share took no longer, in milliseconds. Of none, zero.
    pub(crate) fn quantile_ms(&self, share: f64) -> f64 {
        let counted: usize = self.counts.iter().map(|count| *count as usize).sum();
        let rank = (share * (counted + self.longer.len()) as f64).ceil() as usize;
        let mut sum = 0;
        let short = self.counts.iter().position(|count| {
            sum += *count as usize;
            sum > 0 && sum >= rank
        });
        let found = match short {
            Some(microseconds) => Some(microseconds as u32),
            None => self.longer.get(rank.saturating_sub(counted + 1)).copied(),
        };
        found.map_or(0.0, |microseconds| f64::from(microseconds) / 1e3)
    }

    /// What 99.9 % do not exceed against what half do not.
    pub(crate) fn p999_over_median(&self) -> f64 {
        self.quantile_ms(0.999) / self.quantile_ms(0.5).max(1e-3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_value_that_so_many_do_not_exceed() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.quantile_ms(0.5), 0.0);
        (1..=1000).rev().for_each(|ms| latencies.note(Duration::from_millis(ms)));
        let latencies = latencies.sorted();
        assert_eq!(
            [0.5, 0.999, 1.0].map(|share| latencies.quantile_ms(share)),
            [500.0, 999.0, 1000.0]
        );
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[1.0, 100.0, 3.0, 2.0]), 2.5);
    }

    #[test]
    fn the_cpu_clock_counts_work_and_not_sleep() {
        let clock = CpuClock::start();
        std::thread::sleep(std::time::Duration::from_millis(30));
        assert!(clock.seconds() < 0.03, "sleep costs no CPU time");
        let mut sum = 0u64;
        let before = clock.seconds();
        (0..1_000_000u64).for_each(|n| sum = std::hint::black_box(sum ^ n.wrapping_mul(n)));
        assert!(clock.seconds() > before);
    }
}
