//! A volume filled to its last block, or nearly, and overwritten at random, many times over.
//!
//! It must never fail and never stop for long; it gets as slow as cleaning makes it, and no slower.
//! The overwriting is cut into intervals of equal numbers of writes, so that a falling rate, or one
//! that comes and goes, is seen. Beside it, the process' memory at the start and at the end.
//!
//! In the second half the same load runs without cleaning too, after each half of a pass, so that the
//! machine is at both times what it is:
//!
//! ```text
//! steady  steady  steady  steady  steady | ahead  paused  settling | steady  steady  …
//! ```
//! While the host rests segments are cleaned *ahead*, up to as many as an interval takes; *paused* the
//! host writes into them, until the volume has as much empty space as before; *settling* is an interval
//! that counts nowhere. Cleaning everything instead would make a longer pause and leave a volume that is
//! not in its steady state for a whole pass. An interval in which something was cleaned all the same is
//! none without cleaning. Its rate, and what cleaning must cost by the write amplification alone, say how
//! fast the steady intervals just before it should have been; the median of these comparisons is
//! `throughput_vs_write_amplification`. A machine that is slower for a while is so on both sides of some of
//! them; medians of all intervals would compare different times. The latencies are what machine and
//! device do without any cleaning.

use crate::backing::{ScratchFile, place};
use crate::error::BenchError;
use crate::figures::{Figures, bytes, percent};
use crate::least_size::too_small;
use crate::limits::Limits;
use crate::progress::Progress;
use crate::side::{self, Access, Data, Limit, Load, Outcome, Versions, VolumeSide};
use crate::timing::{Latencies, median};
use crate::written::WrittenShares;
use coulter::statistics::WrittenBytes;
use coulter::tuning::{CleaningMode, Retuning};
use coulter::{CreateOptions, OpenOptions, Volume, check_create, create};
use coulter_engine::create::segment_blocks_default;
use coulter_workload::{Addresses, BLOCK_SIZE, Content, Pattern};
use serde::Serialize;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// Intervals for each time that the volume is overwritten.
const INTERVALS_PER_PASS: u64 = 10;

/// Intervals between two with cleaning paused.
const STEADY_INTERVALS: u64 = INTERVALS_PER_PASS / 2;

/// Of the space that was cleaned ahead, the part that is overwritten: the rest is for headers and what
/// a checkpoint writes.
const PAUSED_SHARE: (u64, u64) = (9, 10);

/// A pause of less than this part of an interval measures nothing.
const PAUSED_LEAST: u64 = 10;

/// How often is looked whether enough was cleaned.
const LOOK: Duration = Duration::from_millis(1);

/// Cleaning has come to rest when nothing was written for so long.
const REST: Duration = Duration::from_millis(20);

/// Requests at once.
const DEPTH: usize = 32;

const MIB: u64 = 1 << 20;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// A directory for the file, or its name; `None` for the directory for temporary files. It is
    /// gone afterwards.
    pub backing: Option<PathBuf>,
    /// Bytes of the volume.
    pub size: u64,
    /// Share of the volume that is filled and overwritten, in percent.
    pub full_percent: u32,
    /// Spare space of the store, in percent of the volume.
    pub spare_percent: u32,
    /// Bytes of a segment; `None` for a five-hundredth of the volume, from 2 to 32 MiB.
    pub segment_size: Option<u64>,
    /// How often it is overwritten.
    pub passes: u64,
    /// Which blocks are overwritten.
    pub pattern: Pattern,
    /// Bytes of map memory; `None` for the whole map.
    pub map_memory: Option<u64>,
    /// What the device may do at most.
    pub limits: Option<Limits>,
    /// Told how far it is.
    pub progress: Progress,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            backing: None,
            size: 1 << 30,
            full_percent: 100,
            spare_percent: 20,
            segment_size: None,
            passes: 10,
            pattern: Pattern::Uniform,
            map_memory: None,
            limits: None,
            progress: Progress::default(),
        }
    }
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Random writes per second in each interval.
    pub interval_iops: Vec<f64>,
    /// Bytes written per byte that the host wrote, in each interval.
    pub interval_write_amplification: Vec<f64>,
    /// The median of the intervals of the second half.
    pub steady_iops: f64,
    /// The slowest interval of the second half, against their median.
    pub slowest_to_steady: f64,
    /// The fastest interval of the second half, against their median.
    pub fastest_to_steady: f64,
    /// The rate of device bytes in the second half, each half pass against the pause after it, and the
    /// median of these: 1 if write amplification alone explains how much slower the host's writes are.
    /// Zero if there was no room to pause.
    pub throughput_vs_write_amplification: f64,
    /// The longest time in which no write ended, with cleaning as usual.
    pub longest_stall_ms: f64,
    /// The longest that one write of the second half took.
    pub latency_max_ms: f64,
    /// Half of the writes of the second half took no longer.
    pub latency_median_ms: f64,
    /// 99.9 % of them took no longer.
    pub latency_p999_ms: f64,
    /// That against the median.
    pub latency_p999_over_median: f64,
    /// Random writes per second in each interval with cleaning paused.
    pub paused_iops: Vec<f64>,
    /// The longest time in which none of these ended.
    pub paused_longest_stall_ms: f64,
    /// Half of them took no longer.
    pub paused_latency_median_ms: f64,
    /// 99.9 % of them took no longer.
    pub paused_latency_p999_ms: f64,
    /// That against their median.
    pub paused_latency_p999_over_median: f64,
    /// Bytes written per byte that the host wrote, in the second half.
    pub write_amplification: f64,
    /// The same by cause.
    pub written_fractions: WrittenShares,
    /// Writes that failed: always zero, since a failure ends the measurement.
    pub errors: u64,
    /// Blocks compared with what was written last.
    pub verified_blocks: u64,
    /// Blocks that differed.
    pub mismatches: u64,
    /// Bytes of memory of this process when overwriting began.
    pub rss_start_bytes: u64,
    /// Half-way.
    pub rss_middle_bytes: u64,
    /// At the end.
    pub rss_end_bytes: u64,
    /// Segments cleaned.
    pub segments_cleaned: u64,
    /// Bytes of the volume.
    pub size_bytes: u64,
    /// How much of it was filled and overwritten, in percent.
    pub full_percent: u32,
    /// Bytes overwritten.
    pub overwritten_bytes: u64,
    /// Spare space of the store, in percent of the volume.
    pub spare_percent: u32,
    /// Which blocks were overwritten.
    pub pattern: String,
}

impl Report {
    /// The figures as text.
    pub fn table(&self) -> String {
        let mut table = Figures::default();
        let rate = |iops: f64| format!("{iops:.0} /s");
        let paused = match self.paused_iops.as_slice() {
            [] => "no room".to_owned(),
            paused => rate(median(paused)),
        };
        table
            .row("overwritten", bytes(self.overwritten_bytes), {
                let size = bytes(self.size_bytes);
                let (pattern, spare) = (&self.pattern, self.spare_percent);
                let full = self.full_percent;
                format!("{pattern}, on {full} % of a volume of {size}, {spare} % of spare space")
            })
            .row("4 KiB writes, steady", rate(self.steady_iops), "median of the second half")
            .row("  slowest interval", percent(self.slowest_to_steady), "of that")
            .row("  fastest interval", percent(self.fastest_to_steady), "of that")
            .row("  first interval", rate(self.interval_iops[0]), "")
            .row("longest stall", format!("{:.1} ms", self.longest_stall_ms), "")
            .row("median write", format!("{:.3} ms", self.latency_median_ms), {
                let (p999, times) = (self.latency_p999_ms, self.latency_p999_over_median);
                let max = self.latency_max_ms;
                format!("99.9 % within {p999:.3} ms, {times:.1} times that; longest {max:.1} ms")
            })
            .row("cleaning paused", paused, {
                let (half, p999) = (self.paused_latency_median_ms, self.paused_latency_p999_ms);
                let stall = self.paused_longest_stall_ms;
                format!(
                    "half within {half:.3} ms, 99.9 % {p999:.3} ms, longest stall {stall:.1} ms"
                )
            })
            .row("write amplification", format!("{:.3}", self.write_amplification), {
                let versus = self.throughput_vs_write_amplification;
                format!("{versus:.2} of the rate that this alone explains")
            });
        self.written_fractions.add_to(&mut table);
        table
            .row("memory at the start", bytes(self.rss_start_bytes), "")
            .row("memory half-way", bytes(self.rss_middle_bytes), "")
            .row("memory at the end", bytes(self.rss_end_bytes), "")
            .row("blocks verified", self.verified_blocks.to_string(), {
                format!("{} mismatches", self.mismatches)
            });
        table.text()
    }
}

/// Measures.
///
/// # Errors
/// When the file or the store cannot be made, or a request fails.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    if !(1..=100).contains(&options.full_percent) {
        return Err(BenchError::option("from 1 to 100 % of the volume can be filled"));
    }
    Limits::check(options.limits)?;
    if options.size < MIB || !options.size.is_multiple_of(MIB) || options.passes < 2 {
        let reason = "the size must be whole MiB, and it must be overwritten twice at least";
        return Err(BenchError::option(reason));
    }
    let mut bench = Bench::new(options)?;
    let rss_start_bytes = rss()?;
    let (mut paused, mut versus) = (Vec::new(), Vec::new());
    let mut paused_latencies = Latencies::default();
    let mut latencies = Latencies::default();
    let count = options.passes * INTERVALS_PER_PASS;
    let mut intervals = Vec::with_capacity(count as usize);
    let mut rss_middle_bytes = 0;
    for number in 0..count {
        options.progress.report("overwriting", number as f64 / count as f64);
        let mut taken = Latencies::default();
        intervals.push(bench.interval(&mut taken)?);
        if number < count / 2 {
            continue;
        }
        latencies.append(taken);
        if number == count / 2 {
            rss_middle_bytes = rss()?;
        }
        if (number + 1).is_multiple_of(STEADY_INTERVALS) {
            if let Some(interval) = bench.paused_interval(&mut paused_latencies)? {
                let steady = &intervals[intervals.len() - STEADY_INTERVALS as usize..];
                versus.push(versus_amplification(&interval, steady));
                paused.push(interval);
            }
            bench.interval(&mut Latencies::default())?;
        }
    }
    let rss_end_bytes = rss()?;
    let told = |share| options.progress.report("verifying", share);
    let (latencies, paused_latencies) = (latencies.sorted(), paused_latencies.sorted());
    let mismatches = side::verify_all(&mut bench.volume, &bench.versions, &bench.content, told)?;
    let half = &intervals[intervals.len() / 2..];
    let rates: Vec<_> = half.iter().map(|interval| interval.outcome.per_second()).collect();
    let steady_iops = median(&rates);
    let shares = WrittenShares::over(half.iter().map(|interval| &interval.written));
    let blocks = bench.versions.count();
    Ok(Report {
        interval_iops: intervals.iter().map(|i| i.outcome.per_second()).collect(),
        interval_write_amplification: intervals.iter().map(Interval::amplification).collect(),
        steady_iops,
        slowest_to_steady: rates.iter().copied().fold(f64::INFINITY, f64::min) / steady_iops,
        fastest_to_steady: rates.iter().copied().fold(0.0, f64::max) / steady_iops,
        throughput_vs_write_amplification: if versus.is_empty() { 0.0 } else { median(&versus) },
        longest_stall_ms: longest_stall_ms(&intervals),
        latency_max_ms: latencies.quantile_ms(1.0),
        latency_median_ms: latencies.quantile_ms(0.5),
        latency_p999_ms: latencies.quantile_ms(0.999),
        latency_p999_over_median: latencies.p999_over_median(),
        paused_iops: paused.iter().map(|i| i.outcome.per_second()).collect(),
        paused_longest_stall_ms: longest_stall_ms(&paused),
        paused_latency_median_ms: paused_latencies.quantile_ms(0.5),
        paused_latency_p999_ms: paused_latencies.quantile_ms(0.999),
        paused_latency_p999_over_median: paused_latencies.p999_over_median(),
        write_amplification: shares.amplification(),
        written_fractions: shares,
        errors: 0,
        verified_blocks: blocks,
        mismatches,
        rss_start_bytes,
        rss_middle_bytes,
        rss_end_bytes,
        segments_cleaned: bench.volume.statistics().space.segments_cleaned,
        size_bytes: options.size,
        overwritten_bytes: intervals.iter().map(|i| i.outcome.requests).sum::<u64>()
            * BLOCK_SIZE as u64,
        spare_percent: options.spare_percent,
        full_percent: options.full_percent,
        pattern: bench.close(options)?,
    })
}

/// The size of a store for a volume of `size` bytes, and how it is made.
fn store(options: &Options, size: u64) -> (u64, CreateOptions) {
    let spare = size / 100 * u64::from(options.spare_percent);
    let suited = segment_blocks_default((size + spare) / BLOCK_SIZE as u64, 0);
    let suited = u64::from(suited) * BLOCK_SIZE as u64;
    let segment = options.segment_size.unwrap_or(suited);
    let create_options = CreateOptions {
        volume_size: Some(size),
        segment_size: Some(segment),
        spare_percent: options.spare_percent,
        map_memory: options.map_memory,
        ..CreateOptions::default()
    };
    ((size + spare).next_multiple_of(segment) + segment, create_options)
}

/// The rate of device bytes in intervals against that of one in which nothing was cleaned.
fn versus_amplification(paused: &Interval, steady: &[Interval]) -> f64 {
    let rate = |interval: &Interval| interval.outcome.per_second() * interval.amplification();
    median(&steady.iter().map(rate).collect::<Vec<_>>()) / rate(paused)
}

fn longest_stall_ms(intervals: &[Interval]) -> f64 {
    intervals.iter().map(|interval| interval.outcome.longest_stall).fold(0.0, f64::max) * 1e3
}

struct Interval {
    outcome: Outcome,
    /// What had been written before, and after it.
    written: (WrittenBytes, WrittenBytes),
    /// Segments cleaned meanwhile.
    cleaned: u64,
}

impl Interval {
    fn amplification(&self) -> f64 {
        WrittenShares::over([&self.written]).amplification()
    }
}

struct Bench {
    volume: VolumeSide,
    versions: Versions,
    addresses: Addresses,
    content: Content,
    /// Last, so that it goes when nothing uses it any more.
    _file: ScratchFile,
}

impl Bench {
    fn new(options: &Options) -> Result<Bench, BenchError> {
        let progress = &options.progress;
        let blocks = options.size / BLOCK_SIZE as u64 * u64::from(options.full_percent) / 100;
        let (store_size, create_options) = store(options, options.size);
        if let Err(error) = check_create(store_size, &create_options) {
            let fits = |size| {
                let (store_size, create_options) = store(options, size);
                check_create(store_size, &create_options).is_ok()
            };
            let too_small = too_small(options.size, options.spare_percent, fits);
            return Err(too_small.unwrap_or(BenchError::Create(error)));
        }
        let path = place(options.backing.as_deref(), "store")?;
        let told = |share| progress.report("writing the store's file", share);
        let file = ScratchFile::new(&path, store_size, told)?;
        create(file.open()?, &create_options).map_err(BenchError::Create)?;
        let open_options = OpenOptions { map_memory: options.map_memory, ..Default::default() };
        let device = Limits::hold_back(options.limits, file.open()?);
        let volume = Volume::open(device, open_options).map_err(BenchError::Open)?;
        let mut volume = VolumeSide::new(volume, DEPTH);
        let (mut versions, content) = (Versions::new(blocks), Content::new(1));
        let told = |share| progress.report("filling", share);
        side::write_all(&mut volume, &mut versions, &content, told)?;
        let addresses = options.pattern.over(blocks, 1);
        Ok(Bench { volume, versions, addresses, content, _file: file })
    }

    /// An interval without cleaning, if there can be room for one.
    fn paused_interval(
        &mut self,
        latencies: &mut Latencies,
    ) -> Result<Option<Interval>, BenchError> {
        let room = self.clean_ahead(self.interval_requests())?;
        let requests = room * PAUSED_SHARE.0 / PAUSED_SHARE.1;
        let mut interval = None;
        if requests >= self.interval_requests() / PAUSED_LEAST {
            let mut taken = Latencies::default();
            interval = Some(self.interval_of(requests, &mut taken)?).filter(|i| i.cleaned == 0);
            if interval.is_some() {
                latencies.append(taken);
            }
        }
        self.set(CleaningMode::Paced)?;
        Ok(interval)
    }

    /// Cleans until so many more blocks can be written, or nothing is worth it, and pauses cleaning.
    /// How many more can be.
    fn clean_ahead(&mut self, blocks: u64) -> Result<u64, BenchError> {
        let before = self.empty_blocks();
        self.set(CleaningMode::Drain)?;
        while self.volume.tune(Retuning::default())?.cleaning == CleaningMode::Drain
            && self.empty_blocks() < before + blocks
        {
            std::thread::sleep(LOOK);
        }
        self.set(CleaningMode::Paused)?;
        // What it had begun arrives.
        let mut written = self.volume.statistics().written;
        loop {
            std::thread::sleep(REST);
            let now = self.volume.statistics().written;
            if now == written {
                return Ok(self.empty_blocks().saturating_sub(before));
            }
            written = now;
        }
    }

    fn empty_blocks(&self) -> u64 {
        let space = self.volume.statistics().space;
        space.segments_empty * (space.segment_size_bytes / BLOCK_SIZE as u64)
    }

    fn set(&self, mode: CleaningMode) -> Result<(), BenchError> {
        let retuning = Retuning { cleaning: Some(mode), ..Retuning::default() };
        self.volume.tune(retuning).map(|_| ())
    }

    fn interval(&mut self, latencies: &mut Latencies) -> Result<Interval, BenchError> {
        self.interval_of(self.interval_requests(), latencies)
    }

    fn interval_requests(&self) -> u64 {
        self.versions.count() / INTERVALS_PER_PASS
    }

    fn interval_of(
        &mut self,
        requests: u64,
        latencies: &mut Latencies,
    ) -> Result<Interval, BenchError> {
        let begun = self.volume.statistics();
        let limit = Limit::Requests(requests.max(1));
        let load =
            Load { access: Access::Write, count: 1, depth: DEPTH, limit, data: Data::Filled };
        let outcome = side::run_watched(
            &mut self.volume,
            &load,
            &mut self.addresses,
            &mut self.versions,
            &self.content,
            |took| latencies.note(took),
        )?;
        let after = self.volume.statistics();
        let cleaned = after.space.segments_cleaned - begun.space.segments_cleaned;
        Ok(Interval { outcome, written: (begun.written, after.written), cleaned })
    }

    /// Ends the volume in order; returns the pattern's name.
    fn close(self, options: &Options) -> Result<String, BenchError> {
        self.volume.close()?;
        Ok(options.pattern.to_string())
    }
}

/// Bytes of memory that this process has resident.
fn rss() -> Result<u64, BenchError> {
    let doing = "reading /proc/self/statm";
    let text = fs::read_to_string("/proc/self/statm")
        .map_err(|source| BenchError::System { doing, source })?;
    let pages: u64 = text.split(' ').nth(1).and_then(|field| field.parse().ok()).unwrap_or(0);
    Ok(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_volume_is_overwritten_without_error() {
        let directory = tempfile::tempdir().expect("a directory");
        let options = Options {
            backing: Some(directory.path().to_path_buf()),
            size: 128 * MIB,
            segment_size: Some(2 * MIB),
            spare_percent: 30,
            passes: 3,
            ..Options::default()
        };
        let report = run(&options).expect("it never fails");
        assert_eq!((report.mismatches, report.verified_blocks), (0, 32768));
        assert_eq!(report.interval_iops.len(), 30);
        assert!(report.segments_cleaned > 0, "{report:?}");
        assert!(report.write_amplification > 1.5, "{report:?}");
        assert!(report.longest_stall_ms < 1000.0, "{report:?}");
        assert!(report.latency_median_ms > 0.0, "{report:?}");
        assert!(report.latency_p999_ms >= report.latency_median_ms, "{report:?}");
        assert!(report.latency_max_ms >= report.latency_p999_ms, "{report:?}");
        assert!(report.table().contains("longest stall"));
        assert!((1..=3).contains(&report.paused_iops.len()), "after each half pass: {report:?}");
        assert!(report.throughput_vs_write_amplification > 0.0, "{report:?}");
        assert!(report.paused_latency_p999_ms >= report.paused_latency_median_ms, "{report:?}");
        let (again, all) = (report.write_amplification, &report.interval_write_amplification[15..]);
        assert!((again - all.iter().sum::<f64>() / 15.0).abs() < 0.01, "of the steady ones only");
    }

    #[test]
    fn rates_are_compared_by_the_bytes_that_reach_the_device() {
        let interval = |iops: u64, relocated_per_host: u64| {
            let (before, mut after) = (WrittenBytes::default(), WrittenBytes::default());
            (after.host_bytes, after.relocated_bytes) = (100, 100 * relocated_per_host);
            let (requests, seconds) = (iops, 1.0);
            let outcome = Outcome { requests, seconds, longest_stall: 0.0, cpu_seconds: 0.0 };
            Interval { outcome, written: (before, after), cleaned: relocated_per_host }
        };
        let steady = [interval(100, 2), interval(80, 2), interval(5, 2)];
        assert_eq!(versus_amplification(&interval(300, 0), &steady), 0.8);
    }

    #[test]
    fn senseless_options_are_refused_in_words() {
        for options in [
            Options { size: 12345, ..Options::default() },
            Options { passes: 1, ..Options::default() },
            Options { full_percent: 0, ..Options::default() },
            Options { full_percent: 101, ..Options::default() },
        ] {
            assert!(matches!(run(&options), Err(BenchError::Option { .. })), "{options:?}");
        }
    }

    #[test]
    fn a_volume_that_is_too_small_is_refused_with_the_least_size() {
        let refused = run(&Options { size: 128 * MIB, ..Options::default() });
        let error = refused.expect_err("it is too small").to_string();
        assert!(error.contains("it must be ") && error.contains("MiB at least"), "{error}");
    }
}
