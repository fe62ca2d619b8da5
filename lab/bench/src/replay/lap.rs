//! Going through a trace, once or often.
//!
//! A trace that overwrites its blocks often enough is gone through once: its first part warms up, the
//! rest is measured. Any other is repeated. Repeated as it is, every block would be overwritten in the
//! order in which it was written, and a log costs nothing then: segments die whole, which no real host
//! does. So each lap plays the trace's windows of 64 requests in a new random order, a different one
//! for each copy. What lies within a window, such as sequential runs, is kept, and how often each
//! block is written; how long a block rests between two writes is not.

use super::Figures;
use super::digest::Digest;
use super::spool::Change;
use crate::cleaning::Written;
use crate::error::BenchError;
use crate::model_store::ModelStore;
use coulter_engine::Statistics;
use coulter_workload::Permutation;

/// Blocks of one request to the engine at most.
const REQUEST_BLOCKS_MAX: u64 = 256;

/// What the device was told to write, and what the engine says of it.
struct Moment {
    device_blocks: u64,
    engine: Statistics,
}

struct Replay<'a> {
    store: ModelStore,
    digest: &'a mut Digest,
    copies: u64,
    /// Host blocks written since the store was filled.
    written: u64,
    /// Changes of the window in hand.
    window: Vec<Change>,
}

/// Fills the store and replays: first until all blocks have been written `passes` times, then as
/// much again.
pub(super) fn replay(
    store: ModelStore,
    digest: &mut Digest,
    copies: u64,
    passes: u32,
    mut progress: impl FnMut(f64),
) -> Result<Figures, BenchError> {
    let warm_up = digest.footprint.blocks() * copies * u64::from(passes);
    let lap = digest.summary.written_blocks * copies;
    let mut replay = Replay { store, digest, copies, written: 0, window: Vec::new() };
    replay.store.fill(|_| {})?;
    let (before, laps) = if lap >= 2 * warm_up {
        (replay.long_lap(warm_up, |written| progress(written as f64 / lap as f64))?, 1)
    } else {
        let laps = warm_up.div_ceil(lap);
        let all = 2 * laps * lap;
        let mut progress = |written| progress(written as f64 / all as f64);
        (0..laps).try_for_each(|lap| replay.short_lap(lap, &mut progress))?;
        let before = replay.start_measuring()?;
        (laps..2 * laps).try_for_each(|lap| replay.short_lap(lap, &mut progress))?;
        (before, 2 * laps)
    };
    replay.figures(&before, laps)
}

impl Replay<'_> {
    /// The trace as it is; from `warm_up` blocks on it is measured.
    fn long_lap(
        &mut self,
        warm_up: u64,
        mut progress: impl FnMut(u64),
    ) -> Result<Moment, BenchError> {
        let mut before = None;
        for window in 0..self.digest.spool.windows() {
            let changes = self.read(window)?;
            for copy in 0..self.copies {
                for change in &changes {
                    if before.is_none() && self.written >= warm_up {
                        before = Some(self.start_measuring()?);
                    }
                    self.apply(*change, copy)?;
                }
            }
            self.window = changes;
            progress(self.written);
        }
        // Not even the last change is larger than what warms up, and the lap is twice that.
        Ok(before.expect("a long lap writes more than what warms up"))
    }

    /// All windows, in an order that depends on lap and copy.
    fn short_lap(&mut self, lap: u64, progress: &mut impl FnMut(u64)) -> Result<(), BenchError> {
        let windows = self.digest.spool.windows();
        let orders: Vec<_> =
            (0..self.copies).map(|copy| Permutation::new(windows, lap << 32 | copy)).collect();
        for place in 0..windows {
            for (copy, order) in (0..).zip(&orders) {
                self.play(order.at(place), copy)?;
            }
            progress(self.written);
        }
        Ok(())
    }

    fn play(&mut self, window: u64, copy: u64) -> Result<(), BenchError> {
        let changes = self.read(window)?;
        for change in &changes {
            self.apply(*change, copy)?;
        }
        self.window = changes;
        Ok(())
    }

    /// The changes of a window, in memory that is given back.
    fn read(&mut self, window: u64) -> Result<Vec<Change>, BenchError> {
        let mut changes = std::mem::take(&mut self.window);
        self.digest.spool.read(window, &mut changes).map_err(BenchError::Spool)?;
        Ok(changes)
    }

    fn apply(&mut self, change: Change, copy: u64) -> Result<(), BenchError> {
        let footprint = &self.digest.footprint;
        let end = footprint.rank(change.place.plus(change.count));
        let mut first = footprint.rank(change.place);
        let base = copy * footprint.blocks();
        // A record, header included, lies inside one segment.
        let step = REQUEST_BLOCKS_MAX.min(u64::from(self.store.segment_blocks) - 1);
        while first < end {
            let count = step.min(end - first);
            let lba = base + first;
            if change.discard {
                self.store.rig.discard(lba, count)?;
            } else {
                self.store.rig.write(lba, count as u32)?;
                self.written += count;
            }
            first += count;
        }
        Ok(())
    }

    fn start_measuring(&mut self) -> Result<Moment, BenchError> {
        self.store.rig.drain()?;
        self.store.rig.device.writes = Some(Default::default());
        Ok(self.now())
    }

    fn now(&self) -> Moment {
        Moment {
            device_blocks: self.store.rig.device.counts.blocks_written,
            engine: self.store.rig.engine.statistics(),
        }
    }

    fn figures(mut self, before: &Moment, laps: u64) -> Result<Figures, BenchError> {
        self.store.rig.drain()?;
        let after = self.now();
        let host = after.engine.user_blocks_written - before.engine.user_blocks_written;
        let writes = self.store.rig.device.writes.as_ref();
        Ok(Figures {
            write_amplification: (after.device_blocks - before.device_blocks) as f64
                / host.max(1) as f64,
            written: Written::between(&before.engine, &after.engine),
            host_blocks: host,
            device_writes: writes.map(|writes| writes.lengths()).unwrap_or_default(),
            map_bytes: after.engine.map_bytes_peak / self.copies,
            laps,
        })
    }
}
