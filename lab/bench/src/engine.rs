//! The engine alone, one core, no device: how much CPU time a block costs.
//!
//! Two stores, each filled and then overwritten at random until all background work is in balance.
//! One has spare space enough (`ample_spare_percent`) that little is cleaned, the other as little as
//! a real one has (`spare_percent`). Then, in rounds, CPU time is measured:
//!
//! | figure | one operation is |
//! |---|---|
//! | `writes_per_second` | a 4 KiB random write to the first store: request in, record, device command, completion, map update, response; with its share of checkpoints, sweeping and cleaning. Host data is neither copied nor checksummed |
//! | `writes_per_second_with_data` | the same, with one copy and one checksum of the data |
//! | `writes_per_second_cleaning` | a 4 KiB random write to the second store, which is cleaned all the time |
//! | `reads_per_second` | a 4 KiB random read: request in, lookup, device command, completion, response |
//! | `reads_per_second_with_data` | the same, with a checksum of the data |
//! | `lookups_per_second` | one address looked up in the map, without a request around it |
//!
//! What it does not measure: a device. Commands complete at once, and data takes no memory; see
//! `standin`.

use crate::error::BenchError;
use crate::figures::{Figures, bytes, percent, rate};
use crate::least_size::too_small;
use crate::metadata::{MetadataShares, write_amplification};
use crate::progress::Progress;
use crate::standin::{Data, Rig, StandinDevice};
use crate::timing::{CpuClock, median};
use coulter_engine::create::{CreateOptions, create, segment_blocks_default};
use coulter_engine::{Config, Statistics};
use coulter_format::{BLOCK_SIZE, Lba, StoreId};
use coulter_workload::{Addresses, Pattern};
use serde::Serialize;

/// Rounds of which the median counts.
const ROUNDS: usize = 5;

/// Operations between two looks at the clock.
const BATCH: u64 = 4096;

/// Requests in the engine at once; a full record holds 444 blocks.
const DEPTH: u32 = 1024;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of the volume.
    pub size: u64,
    /// Spare space of the store that is cleaned all the time, in percent of the volume.
    pub spare_percent: u32,
    /// Spare space of the other store.
    pub ample_spare_percent: u32,
    /// Bytes of a segment; `None` for what a new store would have.
    pub segment_blocks: Option<u32>,
    /// CPU seconds of each kind of work, over all rounds.
    pub seconds: f64,
    /// How often the volume is overwritten before measuring begins.
    pub warm_up: f64,
    /// Told how far it is.
    pub progress: Progress,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            size: 4 << 30,
            spare_percent: 20,
            ample_spare_percent: 300,
            segment_blocks: None,
            seconds: 5.0,
            warm_up: 3.0,
            progress: Progress::default(),
        }
    }
}

/// What was measured. Rates are per second of CPU time of one core.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// 4 KiB random writes with ample spare space, host data left alone.
    pub writes_per_second: f64,
    /// The same, host data copied and checksummed.
    pub writes_per_second_with_data: f64,
    /// 4 KiB random writes with little spare space, host data left alone.
    pub writes_per_second_cleaning: f64,
    /// 4 KiB random reads, host data left alone.
    pub reads_per_second: f64,
    /// 4 KiB random reads, host data checksummed.
    pub reads_per_second_with_data: f64,
    /// Random lookups in the map.
    pub lookups_per_second: f64,
    /// Blocks written to the device per block that the host wrote, with ample spare space.
    pub write_amplification: f64,
    /// The same with little spare space.
    pub write_amplification_cleaning: f64,
    /// Blocks written to the device per second with little spare space, against ample: 1 if write
    /// amplification alone explains how much slower the host's writes are.
    pub cleaning_versus_amplification: f64,
    /// Metadata blocks written per block that the host wrote, with ample spare space.
    pub metadata_fraction: f64,
    /// The same by cause.
    pub metadata_fractions: MetadataShares,
    /// The same with little spare space.
    pub metadata_fractions_cleaning: MetadataShares,
    /// Checkpoints while writes were measured.
    pub checkpoints: u64,
    /// Segments cleaned while writes were measured.
    pub segments_cleaned: u64,
    /// Most bytes that a map held.
    pub map_bytes_peak: u64,
    /// Bytes of each volume.
    pub size_bytes: u64,
    /// Spare space of the store with little, in percent of the volume.
    pub spare_percent: u32,
    /// Spare space of the store with ample.
    pub ample_spare_percent: u32,
    /// Rounds of which the median counts.
    pub rounds: usize,
}

impl Report {
    /// The figures as text.
    pub fn table(&self) -> String {
        let mut table = Figures::default();
        let per_block = |rate: f64| format!("{:.0} ns each", 1e9 / rate);
        table
            .row("4 KiB random writes", rate(self.writes_per_second), {
                let (spare, written) = (self.ample_spare_percent, self.write_amplification);
                let each = per_block(self.writes_per_second);
                format!("{each}, {spare} % spare, write amplification {written:.2}")
            })
            .row(
                "  with copy and checksum",
                rate(self.writes_per_second_with_data),
                per_block(self.writes_per_second_with_data),
            )
            .row("  while cleaning", rate(self.writes_per_second_cleaning), {
                let (spare, written) = (self.spare_percent, self.write_amplification_cleaning);
                let each = per_block(self.writes_per_second_cleaning);
                format!("{each}, {spare} % spare, write amplification {written:.2}")
            })
            .row(
                "  of what that explains",
                format!("{:.2}", self.cleaning_versus_amplification),
                "",
            )
            .row(
                "4 KiB random reads",
                rate(self.reads_per_second),
                per_block(self.reads_per_second),
            )
            .row(
                "  with checksum",
                rate(self.reads_per_second_with_data),
                per_block(self.reads_per_second_with_data),
            )
            .row("lookups", rate(self.lookups_per_second), per_block(self.lookups_per_second))
            .row("map memory", bytes(self.map_bytes_peak), {
                format!("for a volume of {}", bytes(self.size_bytes))
            })
            .row("metadata written", percent(self.metadata_fraction), "of the host's blocks");
        self.metadata_fractions.add_to(&mut table);
        let cleaning = &self.metadata_fractions_cleaning;
        table.row("metadata while cleaning", percent(cleaning.sum()), "of the host's blocks");
        cleaning.add_to(&mut table);
        table.text()
    }
}

/// The kinds of work that take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Write,
    WriteWithData,
    Read,
    ReadWithData,
    Lookup,
}

const ALL_WORK: [Work; 5] =
    [Work::Write, Work::WriteWithData, Work::Read, Work::ReadWithData, Work::Lookup];

/// Measures.
///
/// # Errors
/// When the options do not make a store, or the engine misbehaves.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    if !(options.seconds > 0.0 && options.seconds.is_finite()) {
        return Err(BenchError::option("the seconds to measure must be above zero"));
    }
    let mut ample = Bench::new(options, options.ample_spare_percent)?;
    let mut little = Bench::new(options, options.spare_percent)?;
    for bench in [&mut ample, &mut little] {
        bench.fill(&options.progress)?;
        bench.warm_up(options.warm_up, &options.progress)?;
    }
    let before = [&ample, &little].map(|bench| bench.rig.engine.statistics());
    let mut rates: [Vec<f64>; ALL_WORK.len()] = Default::default();
    let mut cleaning_rates = Vec::new();
    let share = options.seconds / ROUNDS as f64;
    for round in 0..ROUNDS {
        for (work, rates) in ALL_WORK.iter().zip(&mut rates) {
            options.progress.report("measuring", round as f64 / ROUNDS as f64);
            rates.push(ample.measure(*work, share)?);
        }
        cleaning_rates.push(little.measure(Work::Write, share)?);
    }
    let after = [&ample, &little].map(|bench| bench.rig.engine.statistics());
    let shares = [0, 1].map(|store| MetadataShares::between(&before[store], &after[store]));
    let written = [0, 1].map(|store| write_amplification(&before[store], &after[store]));
    let rate_of = |work: Work| median(&rates[work as usize]);
    let cleaning_rate = median(&cleaning_rates);
    let sum = |of: fn(&Statistics) -> u64| {
        after.iter().map(of).sum::<u64>() - before.iter().map(of).sum::<u64>()
    };
    Ok(Report {
        writes_per_second: rate_of(Work::Write),
        writes_per_second_with_data: rate_of(Work::WriteWithData),
        writes_per_second_cleaning: cleaning_rate,
        reads_per_second: rate_of(Work::Read),
        reads_per_second_with_data: rate_of(Work::ReadWithData),
        lookups_per_second: rate_of(Work::Lookup),
        write_amplification: written[0],
        write_amplification_cleaning: written[1],
        cleaning_versus_amplification: cleaning_rate * written[1]
            / (rate_of(Work::Write) * written[0]),
        metadata_fraction: shares[0].sum(),
        metadata_fractions: shares[0],
        metadata_fractions_cleaning: shares[1],
        checkpoints: sum(|s| s.checkpoints),
        segments_cleaned: sum(|s| s.segments_cleaned),
        map_bytes_peak: after.iter().map(|s| s.map_bytes_peak).max().unwrap_or(0),
        size_bytes: ample.volume_size * BLOCK_SIZE as u64,
        spare_percent: options.spare_percent,
        ample_spare_percent: options.ample_spare_percent,
        rounds: ROUNDS,
    })
}

const BLOCK: u64 = BLOCK_SIZE as u64;

/// How a store for a volume of `size` bytes is made.
fn store(options: &Options, size: u64, spare_percent: u32) -> CreateOptions {
    let volume_size = size / BLOCK;
    let wanted = u128::from(volume_size) * u128::from(100 + spare_percent) / 100;
    let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
    let suited = segment_blocks_default(wanted, 0);
    let segment_blocks = options.segment_blocks.map_or(suited, |size| size / BLOCK as u32);
    let segment = u64::from(segment_blocks);
    CreateOptions {
        device_size: wanted.next_multiple_of(segment.max(1)) + segment,
        sparse: None,
        volume_size: Some(volume_size),
        segment_blocks,
        spare_percent,
        store: StoreId { uuid: *b"bench of engine!", salt: 1 },
        label: [0; 64],
        map_size: None,
        journal_size: None,
        run_count_limit: None,
        page_blocks: None,
    }
}

struct Bench {
    rig: Rig,
    volume_size: u64,
    addresses: Addresses,
}

impl Bench {
    fn new(options: &Options, spare_percent: u32) -> Result<Bench, BenchError> {
        let create_options = store(options, options.size, spare_percent);
        let (device_size, volume_size) = (create_options.device_size, options.size / BLOCK);
        let (_, blocks) = create(&create_options).map_err(|error| {
            let fits = |size| create(&store(options, size, spare_percent)).is_ok();
            too_small(options.size, spare_percent, fits).unwrap_or_else(|| {
                BenchError::option(format!("no store of this size can be laid out: {error}"))
            })
        })?;
        let device = StandinDevice::with_store(device_size, &blocks);
        let config = Config { request_count: DEPTH, trim: true, ..Config::default() };
        let rig = Rig::open(config, device, DEPTH)?;
        Ok(Bench { rig, volume_size, addresses: Pattern::Uniform.over(volume_size, 1) })
    }

    /// Writes every block once.
    fn fill(&mut self, progress: &Progress) -> Result<(), BenchError> {
        // A record, header included, lies inside one segment.
        let segment = u64::from(self.rig.engine.geometry().segment_blocks);
        let step = (segment - 1).min(256);
        let mut next = 0;
        while next < self.volume_size {
            progress.report("filling", next as f64 / self.volume_size as f64);
            let count = step.min(self.volume_size - next);
            self.rig.write(next, count as u32)?;
            next += count;
        }
        self.rig.drain()?;
        Ok(())
    }

    fn warm_up(&mut self, times: f64, progress: &Progress) -> Result<(), BenchError> {
        let writes = (self.volume_size as f64 * times) as u64;
        for written in 0..writes {
            if written.is_multiple_of(1 << 18) {
                progress.report("overwriting", written as f64 / writes as f64);
            }
            self.rig.write(self.addresses.address(), 1)?;
        }
        self.rig.drain()?;
        Ok(())
    }

    /// Does one kind of work for so much CPU time. Returns operations per second.
    fn measure(&mut self, work: Work, seconds: f64) -> Result<f64, BenchError> {
        let handled = matches!(work, Work::WriteWithData | Work::ReadWithData);
        self.rig.set_data(if handled { Data::Handled } else { Data::Ignored });
        let mut operations = 0u64;
        let clock = CpuClock::start();
        let spent = loop {
            match work {
                Work::Write | Work::WriteWithData => {
                    for _ in 0..BATCH {
                        self.rig.write(self.addresses.address(), 1)?;
                    }
                }
                Work::Read | Work::ReadWithData => {
                    for _ in 0..BATCH {
                        self.rig.read(self.addresses.address(), 1)?;
                    }
                }
                Work::Lookup => self.look_up()?,
            }
            operations += BATCH;
            if clock.seconds() >= seconds {
                self.rig.drain()?;
                break clock.seconds();
            }
        };
        Ok(operations as f64 / spent)
    }

    fn look_up(&mut self) -> Result<(), BenchError> {
        let mut mapped = 0;
        for _ in 0..BATCH {
            let lba = Lba(self.addresses.address());
            mapped += u64::from(self.rig.engine.is_mapped(lba));
        }
        if mapped == BATCH {
            return Ok(());
        }
        Err(BenchError::Misbehaved { what: "a block that was written is not mapped".to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny() -> Options {
        Options {
            size: 64 << 20,
            spare_percent: 40,
            ample_spare_percent: 400,
            segment_blocks: Some(1 << 20),
            seconds: 0.05,
            warm_up: 2.0,
            ..Options::default()
        }
    }

    #[test]
    fn a_tiny_store_gives_figures_that_fit_together() {
        let report = run(&tiny()).expect("the tiny store works");
        for rate in [
            report.writes_per_second,
            report.writes_per_second_with_data,
            report.reads_per_second,
            report.reads_per_second_with_data,
        ] {
            assert!(rate > 1000.0, "{report:?}");
        }
        assert!(report.lookups_per_second > report.reads_per_second, "{report:?}");
        assert!(report.write_amplification > 1.0, "{report:?}");
        let more = report.write_amplification_cleaning > report.write_amplification + 0.3;
        assert!(more, "little spare space costs relocations: {report:?}");
        assert!(report.cleaning_versus_amplification > 0.0, "{report:?}");
        assert!(report.segments_cleaned > 0, "the steady state includes cleaning: {report:?}");
        let sum = report.metadata_fractions.sum();
        assert!((report.metadata_fraction - sum).abs() < 1e-9, "{report:?}");
        assert!(report.table().lines().count() > 10);
    }

    #[test]
    fn field_names_are_those_of_the_interface() {
        let report = run(&tiny()).expect("the tiny store works");
        let json = serde_json::to_value(&report).expect("a report serialises");
        for name in ["writes_per_second", "lookups_per_second", "writes_per_second_with_data"] {
            assert!(json[name].is_f64(), "{name} in {json}");
        }
    }

    #[test]
    fn senseless_options_are_refused_in_words() {
        for options in [
            Options { seconds: 0.0, ..tiny() },
            Options { size: 0, ..tiny() },
            Options { segment_blocks: Some(3 << 20), ..tiny() },
            Options { segment_blocks: Some(1), ..tiny() },
        ] {
            assert!(matches!(run(&options), Err(BenchError::Option { .. })), "{options:?}");
        }
    }

    #[test]
    fn the_least_size_that_an_error_names_can_be_measured() {
        let spare = Options::default().spare_percent;
        let bench = |size| Bench::new(&Options { size, ..Options::default() }, spare);
        let error = bench(128 << 20).err().expect("it is too small").to_string();
        let named = error.split("it must be ").nth(1).and_then(|rest| rest.split(" MiB").next());
        let named: u64 = named.and_then(|text| text.parse().ok()).expect("whole MiB");
        assert!(bench((named - 1) << 20).is_err(), "{error}");
        bench(named << 20).expect("it fits");
    }
}
