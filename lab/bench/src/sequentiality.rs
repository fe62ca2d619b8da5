//! How sequential writes are: how long the runs are that they make on the device.
//!
//! A write that begins where an earlier one ended continues that one's run. A device, as a host's
//! readahead does, sees a few runs at once, so a run is looked for among the latest
//! [`HEADS_MAX`] ends, not only at the very last one; the strict figure, which counts only the very
//! last, is kept beside it.

use serde::Serialize;

/// Runs that may grow at the same time.
pub const HEADS_MAX: usize = 8;

/// Watches writes.
#[derive(Clone, Debug, Default)]
pub struct Sequentiality {
    /// Ends of the runs that may still grow, the latest last.
    heads: Vec<u64>,
    writes: u64,
    blocks: u64,
    runs: u64,
    runs_strict: u64,
}

/// How sequential writes were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RunLengths {
    /// Writes.
    pub commands: u64,
    /// Blocks in a write, on average.
    pub command_blocks_mean: f64,
    /// Blocks in a run, on average: writes of which each begins where one of the latest eight runs
    /// ended.
    pub run_blocks_mean: f64,
    /// The same if a run ends with the first write elsewhere.
    pub strict_run_blocks_mean: f64,
    /// Share of the writes that continue a run.
    pub sequential_share: f64,
}

impl Sequentiality {
    /// A write of `count` blocks at `start`.
    pub fn note(&mut self, start: u64, count: u64) {
        let end = start + count;
        self.writes += 1;
        self.blocks += count;
        self.runs_strict += u64::from(self.heads.last() != Some(&start));
        match self.heads.iter().rposition(|head| *head == start) {
            Some(place) => {
                self.heads.remove(place);
            }
            None => {
                self.runs += 1;
                if self.heads.len() == HEADS_MAX {
                    self.heads.remove(0);
                }
            }
        }
        self.heads.push(end);
    }

    /// What was seen so far.
    pub fn lengths(&self) -> RunLengths {
        let per = |count: u64| self.blocks as f64 / count.max(1) as f64;
        RunLengths {
            commands: self.writes,
            command_blocks_mean: per(self.writes),
            run_blocks_mean: per(self.runs),
            strict_run_blocks_mean: per(self.runs_strict),
            sequential_share: (self.writes - self.runs) as f64 / self.writes.max(1) as f64,
        }
    }
}

impl RunLengths {
    /// The same with lengths in another unit.
    pub(crate) fn scaled(self, factor: f64) -> RunLengths {
        RunLengths {
            command_blocks_mean: self.command_blocks_mean * factor,
            run_blocks_mean: self.run_blocks_mean * factor,
            strict_run_blocks_mean: self.strict_run_blocks_mean * factor,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_goes_on_beside_others_but_not_in_the_strict_sense() {
        let mut seen = Sequentiality::default();
        for step in 0..10 {
            seen.note(step * 4, 4);
            seen.note(1000 + step * 4, 4);
        }
        let lengths = seen.lengths();
        assert_eq!(lengths.commands, 20);
        assert_eq!(lengths.command_blocks_mean, 4.0);
        assert_eq!(lengths.run_blocks_mean, 40.0);
        assert_eq!(lengths.strict_run_blocks_mean, 4.0);
        assert_eq!(lengths.sequential_share, 0.9);
    }

    #[test]
    fn more_runs_than_heads_are_none() {
        let mut seen = Sequentiality::default();
        for step in 0..10 {
            for head in 0..=HEADS_MAX as u64 {
                seen.note(head * 1000 + step, 1);
            }
        }
        assert_eq!(seen.lengths().run_blocks_mean, 1.0);
        assert_eq!(seen.lengths().sequential_share, 0.0);
    }

    #[test]
    fn nothing_written_is_no_division_by_zero() {
        assert_eq!(Sequentiality::default().lengths(), RunLengths::default());
    }
}
