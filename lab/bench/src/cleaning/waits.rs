//! How long the host waited, in blocks that the device wrote meanwhile.

use coulter::Histogram;
use serde::Serialize;

/// Waits of the host's writes while the engine took none. There is no time here: a device that
/// writes a gibibyte a second writes 262 blocks in a millisecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WaitReport {
    /// Writes that had to wait.
    pub writes: u64,
    /// Blocks that the device wrote while a write waited, of all writes: 99 % waited no longer.
    pub device_blocks_p99: u64,
    /// 99.9 % waited no longer.
    pub device_blocks_p999: u64,
    /// The longest wait.
    pub device_blocks_max: u64,
}

/// Waits by length.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waits {
    /// In blocks, where elsewhere there are nanoseconds.
    lengths: Histogram,
    waited: u64,
}

impl Waits {
    pub(crate) fn new() -> Waits {
        Waits::default()
    }

    pub(crate) fn note(&mut self, blocks: u64) {
        self.lengths.record(blocks);
        self.waited += u64::from(blocks > 0);
    }

    pub(crate) fn report(&self) -> WaitReport {
        WaitReport {
            writes: self.waited,
            device_blocks_p99: self.lengths.quantile_ns(990_000),
            device_blocks_p999: self.lengths.quantile_ns(999_000),
            device_blocks_max: self.lengths.max_ns(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_count_the_writes_that_did_not_wait() {
        let mut waits = Waits::new();
        (0..9_980).for_each(|_| waits.note(0));
        (0..15).for_each(|_| waits.note(10));
        (0..5).for_each(|_| waits.note(5000));
        let report = waits.report();
        assert_eq!((report.writes, report.device_blocks_p99), (20, 0));
        assert_eq!((report.device_blocks_p999, report.device_blocks_max), (10, 5000));
    }
}
