//! What cleaning costs: write amplification in steady state, by its causes.
//!
//! The real engine, in one process, on a device that keeps no payload (see `standin`). The volume is
//! written once in order, then overwritten block by block in a pattern: first until the engine is in
//! balance, then for measuring. Nothing depends on time or chance, so the same options give the same
//! figures, on every machine.
//!
//! Definitions are those of the literature, so that figures can be compared: spare space is garbage,
//! host blocks that were overwritten and not yet reclaimed, per block of the volume; a segment is a
//! hundredth of the volume, here the power of two nearest to that. A simulator there has nothing
//! else: it cleans in no time, needs no empty segments and writes no metadata. What this log needs
//! besides comes on top, so that there is as much garbage as was asked for, and is reported (`room`).
//! All device writes count, headers, map pages, runs and checkpoints included.
//!
//! The strict accounting gives a reserve instead, 0 for none: then `spare` is all that the log has
//! beyond the volume, save the reserve, and everything must find room in it.

mod closed_form;
pub mod mapped;
mod room;
mod victims;
mod waits;
mod watcher;
mod written;

pub use crate::model_store::{Reserve, Shape};
pub use crate::sequentiality::RunLengths;
pub use coulter_engine::Config;
pub use coulter_engine::placement::Placement;
pub use coulter_engine::policy::VictimPolicy;
pub use coulter_engine::reclaim::Reclaim;
pub use room::Room;
pub use victims::VictimReport;
pub use waits::WaitReport;
pub use written::Written;

use crate::error::BenchError;
use crate::figures::{Figures, percent};
use crate::model_store::{DEPTH_DEFAULT, ModelStore};
use crate::progress::Progress;
use coulter_engine::named::Named;
use coulter_workload::{Addresses, Pattern};
use serde::Serialize;
use waits::Waits;
use watcher::Watcher;

/// Overwriting goes on until two passes in a row write the same to within this share, but no longer
/// than this many times the warm-up that was asked for.
const STEADY_WITHIN: f64 = 0.02;
const WARM_UP_TIMES_MAX: u32 = 3;

/// How near to the spare space asked for garbage must come, as shares of the volume, and within how
/// many rounds, of which the first are brief.
const GARBAGE_WITHIN: f64 = 0.0005;
const ROUNDS_MAX: u32 = 10;
const ROUNDS_BRIEF: u32 = 2;

/// What the first round begins with.
const RESERVE_TRIED: Reserve = Reserve::Segments(9);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the host overwrites.
    pub workload: Pattern,
    /// The store.
    pub shape: Shape,
    /// Whether its spare space is to be the garbage that there is on average. What the log needs
    /// besides is then found by measuring, and `shape.reserve` says nothing.
    pub spare_is_garbage: bool,
    /// How the engine behaves.
    pub config: Config,
    /// How often at least the volume is overwritten before measuring.
    pub warm_up: u32,
    /// Overwrites of the volume while measuring.
    pub passes: u32,
    /// Seed of the workload.
    pub seed: u64,
    /// Told how far it is.
    pub progress: Progress,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            workload: Pattern::Uniform,
            shape: Shape {
                blocks: 1 << 20,
                segment_blocks: None,
                spare: 0.1765,
                reserve: Reserve::Segments(0),
                map_memory: None,
                queue_depth: DEPTH_DEFAULT,
            },
            spare_is_garbage: true,
            config: Config::default(),
            warm_up: 6,
            passes: 6,
            seed: 1,
            progress: Progress::default(),
        }
    }
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What the host overwrote.
    pub workload: String,
    /// Which segment was cleaned next, by its name.
    pub policy: &'static str,
    /// Which blocks shared segments, by its name.
    pub placement: &'static str,
    /// How space was reclaimed, by its name.
    pub reclaim: &'static str,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Blocks of a segment.
    pub segment_blocks: u32,
    /// Blocks of the log beyond the volume, per block of the volume.
    pub spare_log: f64,
    /// Garbage on average, per block of the volume: host blocks that were overwritten and that the
    /// cleaner still has to gain. What the literature calls spare space.
    pub spare_measured: f64,
    /// All that the log holds besides the volume, on average; its parts make up `spare_log`.
    pub room: Room,
    /// Bytes that the map was allowed.
    pub map_limit_bytes: u64,
    /// Most bytes that it held.
    pub map_peak_bytes: u64,
    /// Lookups of the cleaner for which a map page had to be read, per block that the host wrote.
    pub map_misses: f64,
    /// Seed of the workload.
    pub seed: u64,
    /// How often the volume was overwritten before measuring.
    pub warm_up_passes: u32,
    /// How often it was overwritten while measuring.
    pub passes: u32,
    /// Whether the last two passes before measuring wrote the same to within 2 %.
    pub steady: bool,
    /// All that the device was told to write, per block that the host wrote.
    pub write_amplification: f64,
    /// Its parts.
    pub written: Written,
    /// Checkpoints written meanwhile.
    pub checkpoints: u64,
    /// All that is neither host data nor its relocation, per block that the host wrote.
    pub metadata_fraction: f64,
    /// Write amplification of each measured pass.
    pub write_amplification_by_pass: Vec<f64>,
    /// What greedy cleaning without any metadata would come to under uniform writes.
    pub closed_form_greedy_uniform: f64,
    /// How full the cleaned segments were.
    pub victims: VictimReport,
    /// How long the host waited.
    pub waits: WaitReport,
    /// How sequential the device's writes were.
    pub device_writes: RunLengths,
}

impl Report {
    /// The figures as text.
    pub fn table(&self) -> String {
        let mut table = Figures::default();
        table
            .row("workload", self.workload.clone(), {
                let (blocks, size) = (self.blocks, self.segment_blocks);
                format!("{blocks} blocks, segments of {size}")
            })
            .row("cleaned by", self.policy, format!("{}, {}", self.placement, self.reclaim))
            .row("log beyond the volume", percent(self.spare_log), "of the volume");
        self.room.add_to(&mut table);
        table.row("write amplification", format!("{:.3}", self.write_amplification), {
            let theory = self.closed_form_greedy_uniform;
            let steady = if self.steady { "steady" } else { "NOT steady" };
            format!("{steady}; greedy, uniform, without metadata: {theory:.3}")
        });
        self.written.add_to(&mut table);
        table
            .row("metadata", percent(self.metadata_fraction), "of the host's blocks")
            .row("map pages waited for", percent(self.map_misses), "of the host's blocks")
            .row("victims", self.victims.count.to_string(), {
                format!("{} valid on average", percent(self.victims.valid_share_mean))
            })
            .row("writes that waited", self.waits.writes.to_string(), {
                let (most, max) = (self.waits.device_blocks_p999, self.waits.device_blocks_max);
                format!("99.9 % for at most {most} device blocks, longest {max}")
            })
            .row("device writes", self.device_writes.commands.to_string(), {
                let (mean, run) =
                    (self.device_writes.command_blocks_mean, self.device_writes.run_blocks_mean);
                format!("{mean:.0} blocks each, runs of {run:.0}")
            });
        table.text()
    }
}

/// Measures.
///
/// # Errors
/// When the options do not make a store, or the engine misbehaves.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    if !options.spare_is_garbage {
        return measure(options);
    }
    // What is not garbage hardly depends on how much garbage there is, so a few rounds suffice; the
    // first ones need not be long.
    let mut shape = Shape { reserve: RESERVE_TRIED, ..options.shape };
    let mut nearest: Option<Report> = None;
    for round in 0..ROUNDS_MAX {
        let brief = Options {
            warm_up: options.warm_up.div_ceil(2),
            passes: options.passes.div_ceil(3),
            ..options.clone()
        };
        let whole = if round < ROUNDS_BRIEF { &brief } else { options };
        let report = measure(&Options { shape, ..whole.clone() })?;
        let off = report.spare_measured - shape.spare;
        shape.reserve = Reserve::Blocks(
            ((report.spare_log - shape.spare - off).max(0.0) * report.blocks as f64) as u64,
        );
        if round < ROUNDS_BRIEF {
            continue;
        }
        let is_nearer = |than: &Report| off.abs() < (than.spare_measured - shape.spare).abs();
        if nearest.as_ref().is_none_or(is_nearer) {
            nearest = Some(report);
        }
        if off.abs() <= GARBAGE_WITHIN {
            break;
        }
    }
    nearest.ok_or_else(|| BenchError::option("nothing is measured in no rounds"))
}

fn measure(options: &Options) -> Result<Report, BenchError> {
    if options.passes == 0 {
        return Err(BenchError::option("nothing is measured in no passes"));
    }
    let mut bench = Bench::new(options)?;
    let (warm_up_passes, steady) = bench.warm_up()?;
    let before = bench.now();
    bench.restart();
    let by_pass = (0..options.passes).map(|pass| bench.pass("measuring", pass, options.passes));
    let by_pass = by_pass.collect::<Result<Vec<_>, _>>()?;
    let after = bench.now();
    let written = Written::between(&before.written, &after.written);
    let geometry = *bench.store.rig.engine.geometry();
    let log = u64::from(geometry.segment_count) * u64::from(geometry.segment_blocks);
    let spare_log = log as f64 / bench.store.blocks as f64 - 1.0;
    let room = bench.watcher.room.report(bench.store.blocks);
    let spare_measured = room.garbage;
    Ok(Report {
        workload: options.workload.to_string(),
        policy: options.config.victims.name(),
        placement: options.config.placement.name(),
        reclaim: options.config.reclaim.name(),
        blocks: bench.store.blocks,
        segment_blocks: bench.store.segment_blocks,
        spare_log,
        spare_measured,
        room,
        map_limit_bytes: after.written.map_bytes_limit,
        map_peak_bytes: after.written.map_bytes_peak,
        map_misses: after.map_misses_since(&before),
        seed: options.seed,
        warm_up_passes,
        passes: options.passes,
        steady,
        write_amplification: after.amplification_since(&before),
        checkpoints: after.written.checkpoints - before.written.checkpoints,
        metadata_fraction: written.metadata(),
        written,
        write_amplification_by_pass: by_pass,
        closed_form_greedy_uniform: closed_form::greedy_uniform(spare_measured),
        victims: bench.watcher.victims.report(),
        waits: bench.waits.report(),
        device_writes: bench
            .store
            .rig
            .device
            .writes
            .as_ref()
            .map(|writes| writes.lengths())
            .unwrap_or_default(),
    })
}

/// Counters at one moment.
#[derive(Clone, Copy)]
struct Moment {
    /// What the device was told to write.
    device_blocks: u64,
    written: coulter_engine::Statistics,
}

impl Moment {
    fn amplification_since(&self, before: &Moment) -> f64 {
        let host = self.written.user_blocks_written - before.written.user_blocks_written;
        (self.device_blocks - before.device_blocks) as f64 / host.max(1) as f64
    }

    fn map_misses_since(&self, before: &Moment) -> f64 {
        let host = self.written.user_blocks_written - before.written.user_blocks_written;
        (self.written.map.misses - before.written.map.misses) as f64 / host.max(1) as f64
    }
}

struct Bench<'a> {
    options: &'a Options,
    store: ModelStore,
    addresses: Addresses,
    watcher: Watcher,
    waits: Waits,
}

impl Bench<'_> {
    fn new(options: &Options) -> Result<Bench<'_>, BenchError> {
        let mut store = ModelStore::open(&options.shape, options.config)?;
        store.fill(|share| options.progress.report("filling", share))?;
        let watcher = Watcher::new(&store);
        let addresses = options.workload.over(store.blocks, options.seed);
        Ok(Bench { options, store, addresses, watcher, waits: Waits::new() })
    }

    fn now(&self) -> Moment {
        Moment {
            device_blocks: self.store.rig.device.counts.blocks_written,
            written: self.store.rig.engine.statistics(),
        }
    }

    /// Counts from here on.
    fn restart(&mut self) {
        self.watcher.restart();
        self.waits = Waits::new();
        self.store.rig.device.writes = Some(Default::default());
    }

    /// Overwrites until it is steady. Returns how often, and whether it is.
    fn warm_up(&mut self) -> Result<(u32, bool), BenchError> {
        let (least, most) = (self.options.warm_up, self.options.warm_up * WARM_UP_TIMES_MAX);
        let mut latest = f64::NAN;
        for pass in 0..most {
            let amplification = self.pass("warming up", pass, most)?;
            let steady = (amplification / latest - 1.0).abs() <= STEADY_WITHIN;
            if steady && pass + 1 >= least {
                return Ok((pass + 1, true));
            }
            latest = amplification;
        }
        Ok((most, false))
    }

    /// Overwrites as many blocks as there are. Returns the write amplification of it.
    fn pass(&mut self, step: &str, pass: u32, passes: u32) -> Result<f64, BenchError> {
        const REPORT_EVERY: u64 = 1 << 16;
        const LOOK_EVERY: u64 = 1 << 12;
        let before = self.now();
        for written in 0..self.store.blocks {
            if written % REPORT_EVERY == 0 {
                let done = f64::from(pass) + written as f64 / self.store.blocks as f64;
                self.options.progress.report(step, done / f64::from(passes));
            }
            if written % LOOK_EVERY == 0 {
                self.watcher.look_is_due = true;
            }
            let lba = self.addresses.address();
            let waited = self.store.rig.write_watched(lba, 1, &mut self.watcher)?;
            self.waits.note(waited);
        }
        self.store.rig.drain()?;
        Ok(self.now().amplification_since(&before))
    }
}

#[cfg(test)]
mod room_tests;
#[cfg(test)]
mod switching_tests;
#[cfg(test)]
mod tests;
