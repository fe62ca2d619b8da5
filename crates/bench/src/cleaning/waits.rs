//! How long the host waited, in blocks that the device wrote meanwhile.

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

/// Waits by length, in classes of at most 1/16 of their value.
#[derive(Clone, Debug)]
pub(crate) struct Waits {
    classes: Vec<u64>,
    count: u64,
    max: u64,
}

const SUBCLASSES: u64 = 16;

fn class_of(blocks: u64) -> usize {
    if blocks < SUBCLASSES {
        return blocks as usize;
    }
    let shift = blocks.ilog2() - SUBCLASSES.ilog2();
    (u64::from(shift) * SUBCLASSES + (blocks >> shift)) as usize
}

/// The longest wait that falls into a class.
fn longest(class: usize) -> u64 {
    let class = class as u64;
    if class < 2 * SUBCLASSES {
        return class;
    }
    let shift = class / SUBCLASSES - 1;
    ((class % SUBCLASSES + SUBCLASSES + 1) << shift) - 1
}

impl Waits {
    pub(crate) fn new() -> Waits {
        Waits { classes: vec![0; class_of(u64::MAX) + 1], count: 0, max: 0 }
    }

    pub(crate) fn note(&mut self, blocks: u64) {
        self.classes[class_of(blocks)] += 1;
        self.count += 1;
        self.max = self.max.max(blocks);
    }

    fn quantile(&self, share: f64) -> u64 {
        let wanted = (self.count as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (class, count) in self.classes.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return longest(class).min(self.max);
            }
        }
        self.max
    }

    pub(crate) fn report(&self) -> WaitReport {
        WaitReport {
            writes: self.count - self.classes[0],
            device_blocks_p99: self.quantile(0.99),
            device_blocks_p999: self.quantile(0.999),
            device_blocks_max: self.max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wait_is_in_a_class_that_ends_close_above_it() {
        for blocks in (0..2000).chain([1 << 20, (1 << 40) + 12_345, u64::MAX >> 1]) {
            let end = longest(class_of(blocks));
            assert!(end >= blocks, "{blocks}");
            assert!(end - blocks <= blocks / SUBCLASSES, "{blocks} in a class up to {end}");
        }
    }

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
