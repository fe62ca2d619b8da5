//! How full the segments were that the cleaner went through.

use coulter_engine::Statistics;
use serde::Serialize;

/// Classes of the histogram: 5 % each.
const CLASSES: usize = 20;

/// Segments that were cleaned, by the share of their blocks that had to be copied.
#[derive(Clone, Debug, Serialize)]
pub struct VictimReport {
    /// Segments cleaned.
    pub count: u64,
    /// Mean share of blocks copied.
    pub valid_share_mean: f64,
    /// How many of them had a share in each twentieth from 0 to 1.
    pub histogram: Vec<u64>,
}

/// Follows the counters from one device command to the next. The cleaner reads a victim a record at
/// a time, so the share is known to about a record.
#[derive(Debug)]
pub(crate) struct Victims {
    segment_blocks: u64,
    cleaned: u64,
    copied: u64,
    share_sum: f64,
    count: u64,
    histogram: [u64; CLASSES],
}

fn copied(statistics: &Statistics) -> u64 {
    statistics.relocated_blocks + statistics.relocated_metadata_blocks
}

impl Victims {
    /// Begins to watch.
    pub(crate) fn new(segment_blocks: u32, now: &Statistics) -> Victims {
        Victims {
            segment_blocks: segment_blocks.into(),
            cleaned: now.segments_cleaned,
            copied: copied(now),
            share_sum: 0.0,
            count: 0,
            histogram: [0; CLASSES],
        }
    }

    /// Forgets what was seen.
    pub(crate) fn restart(&mut self) {
        (self.share_sum, self.count, self.histogram) = (0.0, 0, [0; CLASSES]);
    }

    pub(crate) fn report(&self) -> VictimReport {
        VictimReport {
            count: self.count,
            valid_share_mean: self.share_sum / self.count.max(1) as f64,
            histogram: self.histogram.to_vec(),
        }
    }

    /// The counters as of now.
    pub(crate) fn look(&mut self, statistics: &Statistics) {
        let segments = statistics.segments_cleaned - self.cleaned;
        if segments == 0 {
            return;
        }
        let blocks = copied(statistics) - self.copied;
        let share = (blocks as f64 / (segments * self.segment_blocks) as f64).min(1.0);
        let class = ((share * CLASSES as f64) as usize).min(CLASSES - 1);
        self.histogram[class] += segments;
        self.share_sum += share * segments as f64;
        self.count += segments;
        (self.cleaned, self.copied) = (statistics.segments_cleaned, copied(statistics));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_victim_counts_in_the_class_of_what_was_copied_for_it() {
        let mut statistics = Statistics::default();
        let mut victims = Victims::new(1000, &statistics);
        statistics.relocated_blocks = 620;
        victims.look(&statistics);
        assert_eq!(victims.report().count, 0, "not done with it yet");
        statistics.segments_cleaned = 1;
        victims.look(&statistics);
        statistics.segments_cleaned = 3;
        victims.look(&statistics);
        let report = victims.report();
        assert_eq!((report.count, report.histogram[12], report.histogram[0]), (3, 1, 2));
        assert!((report.valid_share_mean - 0.62 / 3.0).abs() < 1e-12);
        victims.restart();
        assert_eq!(victims.report().count, 0);
    }
}
