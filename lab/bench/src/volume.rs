//! A volume against the very file that it lies on.
//!
//! Two equal files are written through. One becomes a store; the volume in it is written through
//! too. Then the sides take turns, in rounds, and the median round counts:
//!
//! | figure | load |
//! |---|---|
//! | `volume_random_write_iops` | 4 KiB random writes at queue depth 32 through `coulter::Volume` |
//! | `raw_random_write_iops` | the same writes straight to the other file, O_DIRECT |
//! | `raw_sequential_write_mib_s` | 1 MiB sequential writes straight, queue depth 4 |
//! | `volume_random_read_iops`, `raw_random_read_iops` | 4 KiB random reads at queue depth 32 |
//! | `local_random_write_iops`, `local_random_read_iops` | the volume's loads on its own thread |
//!
//! On the volume's own thread (as with `coulter::LocalVolume`) nothing is handed from thread to
//! thread.
//!
//! Every load of writes ends with a flush, within its time, so a volume that answers them from memory
//! ([`Options::acknowledge`]) has them on its device by then, too. The data does not compress. Afterwards
//! both files are read back and every block is compared with what was written last.
//!
//! The same at other queue depths, against the most that it can be, stands in `depths` and
//! `read_depths`: see [`WriteDepth`] and [`ReadDepth`].
//!
//! How fast a full volume is that has to be cleaned all the time is another question: see
//! [`crate::fill`]. Here the store has spare space (`spare_percent`) enough to keep cleaning rare;
//! `write_amplification` says how rare.

mod depths;
mod threads;

pub use depths::{ReadDepth, WriteDepth};
pub use threads::ReadThreads;

use crate::backing::{ScratchFile, place};
use crate::error::BenchError;
use crate::figures::{Figures, bytes, percent};
use crate::limits::Limits;
use crate::progress::Progress;
use crate::side::{self, Access, Data, Limit, Load, Outcome, RawSide, Versions, VolumeSide};
use crate::timing::median;
use crate::written::WrittenShares;
use coulter::{Acknowledge, CreateOptions, OpenOptions, Volume, create};
use coulter_workload::{Addresses, BLOCK_SIZE, Content, Pattern};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// Rounds of which the median counts.
const ROUNDS: usize = 6;

/// Requests at once where the two sides are compared.
const DEPTH: usize = 32;

/// Requests at once when records are to be full.
const DEEP: usize = 1024;

/// Requests of 1 MiB at once.
const SEQUENTIAL_DEPTH: usize = 4;

const MIB: u64 = 1 << 20;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// A directory for the files, or the first part of their names; `None` for the directory for
    /// temporary files. They are gone afterwards.
    pub backing: Option<PathBuf>,
    /// Bytes of the volume, and of the part of the bare file that is written to.
    pub size: u64,
    /// Spare space of the store, in percent of the volume.
    pub spare_percent: u32,
    /// Seconds of each load, over all rounds.
    pub seconds: f64,
    /// Bytes of map memory; `None` for the whole map.
    pub map_memory: Option<u64>,
    /// When the volume answers writes.
    pub acknowledge: Acknowledge,
    /// What the device may do at most, on both sides.
    pub limits: Option<Limits>,
    /// Told how far it is.
    pub progress: Progress,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            backing: None,
            size: 2 << 30,
            spare_percent: 200,
            seconds: 10.0,
            map_memory: None,
            acknowledge: Acknowledge::default(),
            limits: None,
            progress: Progress::default(),
        }
    }
}

/// What was measured. Ratios are medians of the rounds' ratios.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// 4 KiB random writes per second through the volume.
    pub volume_random_write_iops: f64,
    /// The same straight to the file.
    pub raw_random_write_iops: f64,
    /// 1 MiB sequential writes straight to the file, MiB per second.
    pub raw_sequential_write_mib_s: f64,
    /// 4 KiB random reads per second through the volume.
    pub volume_random_read_iops: f64,
    /// The same straight from the file.
    pub raw_random_read_iops: f64,
    /// 4 KiB random writes per second on the volume's own thread.
    pub local_random_write_iops: f64,
    /// 4 KiB random reads per second on the volume's own thread.
    pub local_random_read_iops: f64,
    /// Random writes: volume to bare file.
    pub ratio_to_raw_random: f64,
    /// Bytes per second: random writes through the volume to sequential writes to the bare file.
    pub ratio_to_raw_sequential: f64,
    /// Random reads: volume to bare file.
    pub ratio_read: f64,
    /// The three ratios on the volume's own thread.
    pub local_ratio_to_raw_random: f64,
    /// As `ratio_to_raw_sequential`.
    pub local_ratio_to_raw_sequential: f64,
    /// As `ratio_read`.
    pub local_ratio_read: f64,
    /// CPU time of the whole process, the load included, per random write through the volume.
    pub volume_random_write_cpu_us: f64,
    /// The same on the volume's own thread.
    pub local_random_write_cpu_us: f64,
    /// The same straight to the file.
    pub raw_random_write_cpu_us: f64,
    /// The same per random read through the volume.
    pub volume_random_read_cpu_us: f64,
    /// The same on the volume's own thread.
    pub local_random_read_cpu_us: f64,
    /// The same straight from the file.
    pub raw_random_read_cpu_us: f64,
    /// The ratios of random writes, round by round.
    pub ratios_to_raw_random: Vec<f64>,
    /// Metadata written per byte that the host wrote, at queue depth 1024: full records.
    pub metadata_fraction: f64,
    /// The same by cause.
    pub metadata_fractions: WrittenShares,
    /// Random writes per second through the volume at queue depth 1024.
    pub volume_random_write_iops_queue_depth_1024: f64,
    /// Metadata written per byte that the host wrote, at queue depth 32.
    pub metadata_fraction_queue_depth_32: f64,
    /// Bytes written to the device per byte that the host wrote, at queue depth 32.
    pub write_amplification: f64,
    /// Most bytes of the map per block that is mapped.
    pub map_bytes_per_block: f64,
    /// Random writes at several queue depths, and what they can be at most.
    pub depths: Vec<WriteDepth>,
    /// Random reads at several queue depths.
    pub read_depths: Vec<ReadDepth>,
    /// Random reads by one thread and by two.
    pub read_threads: Vec<ReadThreads>,
    /// Blocks compared with what was written last, on both sides.
    pub verified_blocks: u64,
    /// Blocks that differed.
    pub mismatches: u64,
    /// Bytes of the volume.
    pub size_bytes: u64,
    /// Spare space of the store, in percent of the volume.
    pub spare_percent: u32,
    /// Rounds of which the median counts.
    pub rounds: usize,
    /// Whether the volume answered writes before the device had them.
    pub buffered: bool,
    /// What carried the commands of both sides.
    pub device: String,
}

impl Report {
    /// The figures as text.
    pub fn table(&self) -> String {
        let mut table = Figures::default();
        let iops = |rate: f64| format!("{rate:.0} /s");
        let cpu = |microseconds: f64| format!("{microseconds:.2} µs of CPU each");
        table
            .row(
                "4 KiB random writes, volume",
                iops(self.volume_random_write_iops),
                cpu(self.volume_random_write_cpu_us),
            )
            .row(
                "  on the volume's own thread",
                iops(self.local_random_write_iops),
                cpu(self.local_random_write_cpu_us),
            )
            .row(
                "4 KiB random writes, file",
                iops(self.raw_random_write_iops),
                cpu(self.raw_random_write_cpu_us),
            )
            .row(
                "1 MiB sequential writes, file",
                format!("{:.0} /s", self.raw_sequential_write_mib_s),
                format!("{:.0} MiB/s", self.raw_sequential_write_mib_s),
            )
            .row(
                "4 KiB random reads, volume",
                iops(self.volume_random_read_iops),
                cpu(self.volume_random_read_cpu_us),
            )
            .row(
                "  on the volume's own thread",
                iops(self.local_random_read_iops),
                cpu(self.local_random_read_cpu_us),
            )
            .row(
                "4 KiB random reads, file",
                iops(self.raw_random_read_iops),
                cpu(self.raw_random_read_cpu_us),
            );
        self.add_ratios(&mut table);
        table
            .row("write amplification", format!("{:.3}", self.write_amplification), {
                format!("with {} % of spare space", self.spare_percent)
            })
            .row(
                "metadata, queue depth 32",
                percent(self.metadata_fraction_queue_depth_32),
                "of the host's bytes",
            )
            .row("metadata, queue depth 1024", percent(self.metadata_fraction), {
                format!("at {}", iops(self.volume_random_write_iops_queue_depth_1024))
            });
        self.metadata_fractions.add_to(&mut table);
        depths::add_to(&mut table, &self.depths, &self.read_depths);
        threads::add_to(&mut table, &self.read_threads);
        table
            .row("map memory per block", format!("{:.2} B", self.map_bytes_per_block), {
                format!("{} mapped", bytes(self.size_bytes))
            })
            .row("blocks verified", self.verified_blocks.to_string(), {
                format!("{} mismatches", self.mismatches)
            });
        table.text()
    }

    fn add_ratios(&self, table: &mut Figures) {
        let own_thread = |ratio: f64| format!("{ratio:.2} on the volume's own thread");
        table
            .row(
                "ratio to random writes",
                format!("{:.2}", self.ratio_to_raw_random),
                own_thread(self.local_ratio_to_raw_random),
            )
            .row(
                "ratio to sequential writes",
                format!("{:.2}", self.ratio_to_raw_sequential),
                own_thread(self.local_ratio_to_raw_sequential),
            )
            .row(
                "ratio of reads",
                format!("{:.3}", self.ratio_read),
                own_thread(self.local_ratio_read),
            );
    }
}

/// Measures.
///
/// # Errors
/// When the files or the store cannot be made, or a request fails.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    check(options)?;
    let mut bench = Bench::new(options)?;
    let before = bench.volume.statistics();
    let mut rounds = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS {
        options.progress.report("measuring", round as f64 / ROUNDS as f64);
        rounds.push(bench.round(round, options.seconds / ROUNDS as f64)?);
    }
    let shallow = bench.volume.statistics();
    let deep_load = Load {
        access: Access::Write,
        count: 1,
        depth: DEEP,
        limit: Limit::Time(Duration::from_secs_f64(options.seconds / 2.0)),
        data: Data::Filled,
    };
    let deep = bench.run_volume(&deep_load)?;
    let after = bench.volume.statistics();
    let shares = WrittenShares::between(&before.written, &shallow.written);
    let deep_shares = WrittenShares::between(&shallow.written, &after.written);
    let turn = options.seconds / (2 * ROUNDS) as f64;
    let depths = depths::measure(&mut bench, turn, &options.progress)?;
    let read_threads = threads::measure(&bench, turn)?;
    let mismatches = bench.verify(&options.progress)?;
    let blocks = bench.volume_versions.count();
    let of = |figure: fn(&Round) -> f64| median(&rounds.iter().map(figure).collect::<Vec<_>>());
    Ok(Report {
        volume_random_write_iops: of(|round| round.volume.write.per_second()),
        raw_random_write_iops: of(|round| round.raw.write.per_second()),
        raw_sequential_write_mib_s: of(|round| round.raw_sequential.per_second()),
        volume_random_read_iops: of(|round| round.volume.read.per_second()),
        raw_random_read_iops: of(|round| round.raw.read.per_second()),
        local_random_write_iops: of(|round| round.local.write.per_second()),
        local_random_read_iops: of(|round| round.local.read.per_second()),
        ratio_to_raw_random: of(|round| round.ratio_to_random(&round.volume)),
        ratio_to_raw_sequential: of(|round| round.ratio_to_sequential(&round.volume)),
        ratio_read: of(|round| round.ratio_read(&round.volume)),
        local_ratio_to_raw_random: of(|round| round.ratio_to_random(&round.local)),
        local_ratio_to_raw_sequential: of(|round| round.ratio_to_sequential(&round.local)),
        local_ratio_read: of(|round| round.ratio_read(&round.local)),
        volume_random_write_cpu_us: of(|round| round.volume.write.cpu_us()),
        local_random_write_cpu_us: of(|round| round.local.write.cpu_us()),
        raw_random_write_cpu_us: of(|round| round.raw.write.cpu_us()),
        volume_random_read_cpu_us: of(|round| round.volume.read.cpu_us()),
        local_random_read_cpu_us: of(|round| round.local.read.cpu_us()),
        raw_random_read_cpu_us: of(|round| round.raw.read.cpu_us()),
        ratios_to_raw_random: {
            rounds.iter().map(|round| round.ratio_to_random(&round.volume)).collect()
        },
        metadata_fraction: deep_shares.metadata(),
        metadata_fractions: deep_shares,
        volume_random_write_iops_queue_depth_1024: deep.per_second(),
        metadata_fraction_queue_depth_32: shares.metadata(),
        write_amplification: shares.amplification(),
        map_bytes_per_block: after.map.memory_peak_bytes as f64 / blocks as f64,
        depths: depths.writes,
        read_depths: depths.reads,
        read_threads,
        verified_blocks: blocks + bench.raw_versions.count(),
        mismatches,
        size_bytes: blocks * BLOCK_SIZE as u64,
        spare_percent: options.spare_percent,
        rounds: ROUNDS,
        buffered: options.acknowledge == Acknowledge::Buffered,
        device: bench.close()?,
    })
}

fn check(options: &Options) -> Result<(), BenchError> {
    Limits::check(options.limits)?;
    if !(options.seconds > 0.0 && options.seconds.is_finite()) {
        return Err(BenchError::option("the seconds to measure must be above zero"));
    }
    let least = 4 * (DEEP * BLOCK_SIZE) as u64;
    if options.size < least || !options.size.is_multiple_of(MIB) {
        let least = bytes(least);
        return Err(BenchError::option(format!(
            "the size must be whole MiB, and {least} at least"
        )));
    }
    Ok(())
}

/// What one side came to in a round.
#[derive(Clone, Copy, Debug)]
struct Turn {
    write: Outcome,
    read: Outcome,
}

/// What one round came to.
#[derive(Clone, Copy, Debug)]
struct Round {
    volume: Turn,
    /// The same on the volume's own thread.
    local: Turn,
    raw: Turn,
    /// Requests of 1 MiB.
    raw_sequential: Outcome,
}

impl Round {
    fn ratio_to_random(&self, turn: &Turn) -> f64 {
        turn.write.per_second() / self.raw.write.per_second()
    }

    fn ratio_to_sequential(&self, turn: &Turn) -> f64 {
        let mib_s = turn.write.per_second() * BLOCK_SIZE as f64 / MIB as f64;
        mib_s / self.raw_sequential.per_second()
    }

    fn ratio_read(&self, turn: &Turn) -> f64 {
        turn.read.per_second() / self.raw.read.per_second()
    }
}

struct Bench {
    volume: VolumeSide,
    raw: RawSide,
    volume_versions: Versions,
    raw_versions: Versions,
    volume_addresses: Addresses,
    raw_addresses: Addresses,
    sequential_addresses: Addresses,
    content: Content,
    device: String,
    /// Last, so that they go when nothing uses them any more.
    _files: [ScratchFile; 2],
}

impl Bench {
    fn new(options: &Options) -> Result<Bench, BenchError> {
        let progress = &options.progress;
        let blocks = options.size / BLOCK_SIZE as u64;
        let create_options = CreateOptions {
            volume_size: Some(options.size),
            spare_percent: options.spare_percent,
            map_memory: options.map_memory,
            ..CreateOptions::default()
        };
        // Two of the largest segments besides: superblocks, and rounding.
        let spare = options.size / 100 * u64::from(options.spare_percent);
        let segment = 32 * MIB;
        let store_size = (options.size + spare).next_multiple_of(segment) + 2 * segment;
        let store_path = place(options.backing.as_deref(), "store")?;
        let raw_path = place(options.backing.as_deref(), "raw")?;
        let store = ScratchFile::new(&store_path, store_size, |share| {
            progress.report("writing the store's file", share);
        })?;
        let raw_file = ScratchFile::new(&raw_path, store_size, |share| {
            progress.report("writing the bare file", share);
        })?;
        create(store.open()?, &create_options).map_err(BenchError::Create)?;
        let open_options = OpenOptions {
            map_memory: options.map_memory,
            acknowledge: options.acknowledge,
            ..OpenOptions::default()
        };
        let device = store.open()?;
        let mut name = describe(&*device);
        if let Some(limits) = options.limits {
            name = format!("{name}, held back: {limits}");
        }
        let device = Limits::hold_back(options.limits, device);
        let volume = Volume::open(device, open_options).map_err(BenchError::Open)?;
        let content = Content::new(1);
        let mut volume = VolumeSide::new(volume, DEEP);
        let mut raw = RawSide::new(Limits::hold_back(options.limits, raw_file.open()?), DEEP)?;
        let mut volume_versions = Versions::new(blocks);
        let mut raw_versions = Versions::new(blocks);
        let told = |share| progress.report("filling", share);
        side::write_all(&mut volume, &mut volume_versions, &content, told)?;
        side::write_all(&mut raw, &mut raw_versions, &content, told)?;
        Ok(Bench {
            volume,
            raw,
            volume_versions,
            raw_versions,
            volume_addresses: Pattern::Uniform.over(blocks, 1),
            raw_addresses: Pattern::Uniform.over(blocks, 2),
            sequential_addresses: Pattern::Sequential.over(options.size / MIB, 3),
            content,
            device: name,
            _files: [store, raw_file],
        })
    }

    /// Each side has its turn. Who begins changes from round to round: what a disk was told before
    /// bears on what it does next.
    fn round(&mut self, number: usize, seconds: f64) -> Result<Round, BenchError> {
        let limit = Limit::Time(Duration::from_secs_f64(seconds));
        let data = Data::Filled;
        let write = Load { access: Access::Write, count: 1, depth: DEPTH, limit, data };
        let read = Load { access: Access::Read, ..write };
        let sequential = Load { count: MIB / BLOCK_SIZE as u64, depth: SEQUENTIAL_DEPTH, ..write };
        let [volume_write, local_write, raw_write] = self.turns(number, &write)?;
        let raw_sequential = self.run_sequential(&sequential)?;
        let [volume_read, local_read, raw_read] = self.turns(number, &read)?;
        Ok(Round {
            volume: Turn { write: volume_write, read: volume_read },
            local: Turn { write: local_write, read: local_read },
            raw: Turn { write: raw_write, read: raw_read },
            raw_sequential,
        })
    }

    /// The same load on the volume, on the volume's own thread, and on the bare file.
    fn turns(&mut self, number: usize, load: &Load) -> Result<[Outcome; 3], BenchError> {
        let runs = [Bench::run_volume, Bench::run_locally, Bench::run_raw];
        let mut outcomes = [None; 3];
        for turn in 0..runs.len() {
            let side = (number + turn) % runs.len();
            outcomes[side] = Some(runs[side](self, load)?);
        }
        Ok(outcomes.map(|outcome| outcome.expect("each had its turn")))
    }

    fn run_volume(&mut self, load: &Load) -> Result<Outcome, BenchError> {
        let (addresses, versions) = (&mut self.volume_addresses, &mut self.volume_versions);
        side::run(&mut self.volume, load, addresses, versions, &self.content)
    }

    /// The same on the volume's own thread, where everything has to go for the time.
    fn run_locally(&mut self, load: &Load) -> Result<Outcome, BenchError> {
        let (load, content) = (*load, self.content.clone());
        let mut addresses = self.volume_addresses.clone();
        let mut versions = std::mem::replace(&mut self.volume_versions, Versions::new(0));
        let (outcome, addresses, versions) = self.volume.run_locally(move |side| {
            let outcome = side::run(side, &load, &mut addresses, &mut versions, &content);
            (outcome, addresses, versions)
        });
        (self.volume_addresses, self.volume_versions) = (addresses, versions);
        outcome
    }

    fn run_raw(&mut self, load: &Load) -> Result<Outcome, BenchError> {
        let (addresses, versions) = (&mut self.raw_addresses, &mut self.raw_versions);
        side::run(&mut self.raw, load, addresses, versions, &self.content)
    }

    fn run_sequential(&mut self, load: &Load) -> Result<Outcome, BenchError> {
        let (addresses, versions) = (&mut self.sequential_addresses, &mut self.raw_versions);
        side::run(&mut self.raw, load, addresses, versions, &self.content)
    }

    /// Compares both sides with what was written to them. Returns the mismatches.
    fn verify(&mut self, progress: &Progress) -> Result<u64, BenchError> {
        let told = |share| progress.report("verifying", share);
        let content = &self.content;
        let volume = side::verify_all(&mut self.volume, &self.volume_versions, content, told)?;
        let raw = side::verify_all(&mut self.raw, &self.raw_versions, content, told)?;
        Ok(volume + raw)
    }

    /// Ends the volume in order; returns what carried the commands.
    fn close(self) -> Result<String, BenchError> {
        self.volume.close()?;
        Ok(self.device)
    }
}

/// What carries a device's commands, without the name of a file that has none.
fn describe(device: &dyn coulter_device::Device) -> String {
    let properties = device.properties();
    properties.note.clone().unwrap_or_else(|| "io_uring, O_DIRECT".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny(directory: &std::path::Path) -> Options {
        Options {
            backing: Some(directory.to_path_buf()),
            size: 64 * MIB,
            spare_percent: 500,
            seconds: 0.25,
            ..Options::default()
        }
    }

    #[test]
    fn both_sides_are_measured_and_verified_and_nothing_stays_behind() {
        let directory = tempfile::tempdir().expect("a directory");
        let report = run(&tiny(directory.path())).expect("the tiny volume works");
        assert_eq!((report.mismatches, report.verified_blocks), (0, 2 * 16384), "{report:?}");
        let ratio = report.volume_random_write_iops / report.raw_random_write_iops;
        assert!(ratio > 0.0, "{report:?}");
        assert!(report.local_random_write_iops > 0.0, "{report:?}");
        assert!(report.local_ratio_read > 0.0, "{report:?}");
        assert!(report.volume_random_read_cpu_us > 0.0, "{report:?}");
        assert_eq!(report.ratios_to_raw_random.len(), ROUNDS);
        assert!(report.metadata_fraction < report.metadata_fraction_queue_depth_32, "{report:?}");
        assert!(report.write_amplification > 1.0, "{report:?}");
        let json = serde_json::to_value(&report).expect("a report serialises");
        for name in ["ratio_read", "metadata_fraction", "map_bytes_per_block"] {
            assert!(json[name].is_f64(), "{name} in {json}");
        }
        for (depth, expected) in report.depths.iter().zip([1, 32, 256, 1024]) {
            assert_eq!(depth.queue_depth, expected);
            assert!(depth.volume_iops > 0.0 && depth.raw_random_iops > 0.0, "{depth:?}");
            assert!(depth.ceiling_iops > 0.0 && depth.ratio_to_ceiling > 0.0, "{depth:?}");
        }
        assert_eq!((report.depths.len(), report.read_depths.len()), (4, 4));
        assert!(report.read_threads.iter().all(|threads| threads.volume_iops > 0.0));
        let by_threads = report.read_depths.iter().all(|depth| depth.cache_hit_fraction > 0.9);
        assert!(by_threads || report.device != "io_uring, O_DIRECT", "{report:?}");
        let [shallow, deep] = [&report.depths[0], &report.depths[3]];
        assert!(shallow.piece_blocks < deep.piece_blocks, "{report:?}");
        assert!(report.read_depths.iter().all(|depth| depth.local_ratio_to_raw > 0.0));
        assert!(report.table().contains("ratio to random writes"));
        let left = std::fs::read_dir(directory.path()).expect("it is there").count();
        assert_eq!(left, 0);
    }

    #[test]
    fn senseless_options_are_refused_in_words() {
        let directory = tempfile::tempdir().expect("a directory");
        let tiny = tiny(directory.path());
        for options in [
            Options { seconds: -1.0, ..tiny.clone() },
            Options { size: 0, ..tiny.clone() },
            Options { size: (64 << 20) + 512, ..tiny.clone() },
        ] {
            assert!(matches!(run(&options), Err(BenchError::Option { .. })), "{options:?}");
        }
    }
}
