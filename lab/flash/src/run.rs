//! One measurement: a drive, a host, a workload, and everything that was counted meanwhile.
//!
//! ```text
//! fill ---> age ---> measure
//! ```
//! The drive is filled, then overwritten by the workload's kind of writes until collection is in
//! balance, and only then are times and counters taken.

use crate::content::Keep;
use crate::counters::{FtlCounters, NandCounters};
use crate::drive::{Blocks, CommandError, Drive, DriveCounters, WriteOptions};
use crate::drive_report::{Wear, ratio};
use crate::ftl::{FtlError, FtlKind, FtlOptions, MapMemory};
use crate::host::{Host, HostCounters, HostError, HostKind, LogOptions, RemapOptions};
use crate::latency::Latency;
use crate::profile::Profile;
use crate::units::{BLOCK_SIZE, Ns};
use crate::workload::{FileLoad, Workload};
use coulter::Histogram;
use coulter_workload::Random;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Run {
    /// The drive.
    pub profile: Profile,
    /// Its FTL.
    pub ftl: FtlKind,
    /// What the FTL is told.
    pub options: FtlOptions,
    /// What it is asked to do.
    pub workload: Workload,
    /// The file system; for file workloads only.
    pub host: HostKind,
    /// What the log-structured hosts are told.
    pub log: LogOptions,
    /// A remapping layer between the file system and the drive.
    pub remap: Option<RemapOptions>,
    /// How much of the drive was used before the file system was made, and never trimmed, in
    /// percent. Hosts that trim first (the logs, a remapping layer) do not mind.
    pub used_before_percent: u32,
    /// The host's page cache, in blocks.
    pub page_cache_blocks: u64,
    /// How full the drive is, in percent of what can be filled.
    pub fill_percent: u32,
    /// Bytes written before measuring, in percent of the filled ones.
    pub ageing_percent: u32,
    /// Bytes written while measuring; read, if the workload writes nothing.
    pub bytes: u64,
    /// The source of all choices.
    pub seed: u64,
    /// Whether each read is compared with what was last written (device workloads only).
    pub verify: bool,
}

impl Run {
    /// A run with everything usual: the drive full, overwritten once, then as much again.
    pub fn new(profile: Profile, ftl: FtlKind, workload: Workload) -> Run {
        let exported = profile.geometry.exported_bytes();
        let stripes = profile.geometry.dies();
        Run {
            profile,
            ftl,
            options: FtlOptions::default(),
            workload,
            host: HostKind::Ext4,
            log: LogOptions { stripes, shift: 0, host_padding: true },
            remap: None,
            used_before_percent: 100,
            page_cache_blocks: 4096,
            fill_percent: if workload.is_of_files() { 75 } else { 100 },
            ageing_percent: 100,
            bytes: exported,
            seed: 1,
            verify: false,
        }
    }
}

/// Why nothing was measured.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunError {
    /// The FTL cannot work on the drive.
    Ftl(FtlError),
    /// The workload does not fit onto the drive.
    TooLarge {
        /// Why not.
        reason: String,
    },
    /// The host gave up.
    Host(HostError),
    /// A read returned something else than was last written: the emulator is broken.
    WrongData {
        /// Which block.
        block: u64,
    },
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Ftl(error) => error.fmt(f),
            RunError::TooLarge { reason } => write!(f, "the workload does not fit: {reason}"),
            RunError::Host(error) => error.fmt(f),
            RunError::WrongData { block } => write!(f, "block {block} was read back wrong"),
        }
    }
}

impl std::error::Error for RunError {}

impl From<FtlError> for RunError {
    fn from(error: FtlError) -> RunError {
        RunError::Ftl(error)
    }
}

impl From<HostError> for RunError {
    fn from(error: HostError) -> RunError {
        RunError::Host(error)
    }
}

impl From<CommandError> for RunError {
    fn from(error: CommandError) -> RunError {
        RunError::Host(error.into())
    }
}

/// What was measured. Counters are those of the measured part alone.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunReport {
    /// The profile's name.
    pub profile: String,
    /// The FTL's name.
    pub ftl: &'static str,
    /// The host's name; `none` for device workloads.
    pub host: &'static str,
    /// The workload's name.
    pub workload: String,
    /// Bytes that the drive exports.
    pub exported_bytes: u64,
    /// Virtual time.
    pub virtual_ns: Ns,
    /// Bytes that programs wrote.
    pub user_bytes_written: u64,
    /// Bytes that programs read.
    pub user_bytes_read: u64,
    /// The same per virtual second.
    pub user_bytes_per_second: u64,
    /// Operations of the workload per virtual second.
    pub operations_per_second: u64,
    /// What the host did; zeros for device workloads.
    pub host_counters: HostCounters,
    /// Commands to the drive.
    pub drive: DriveCounters,
    /// What the flash did.
    pub nand: NandCounters,
    /// What the FTL did.
    pub ftl_counters: FtlCounters,
    /// Bytes written to the drive for each byte that programs wrote.
    pub host_write_amplification: f64,
    /// Bytes programmed for each byte written to the drive.
    pub device_write_amplification: f64,
    /// Their product.
    pub total_write_amplification: f64,
    /// Erases for each GiB that programs wrote: what wears the drive.
    pub erases_per_user_gib: f64,
    /// Mean valid share of victims.
    pub victim_valid_share: f64,
    /// Bytes of an average write command.
    pub write_command_bytes_mean: f64,
    /// Latency of the workload's operations.
    pub latency: Latency,
    /// Share of time in which an average die worked.
    pub die_utilisation: f64,
    /// Share of time in which an average channel transferred.
    pub channel_utilisation: f64,
    /// What the map needs.
    pub map_memory: MapMemory,
    /// Wear over the drive's whole life.
    pub wear: Wear,
    /// Reads that were compared with what was last written.
    pub reads_verified: u64,
    /// User bytes per virtual second in 32 parts of equal work, one after the other; empty for
    /// device workloads.
    pub timeline_bytes_per_second: Vec<u64>,
    /// Header blocks that a remapping layer wrote.
    pub remap_header_blocks: u64,
    /// Valid blocks that its cleaning wrote.
    pub remap_relocated_blocks: u64,
}

/// Parts of the timeline.
const TIMELINE_STEPS: u64 = 32;

impl RunReport {
    /// The most important figures, one to a line.
    pub fn table(&self) -> String {
        let merges = &self.ftl_counters;
        let lines = [
            ("drive", format!("{} with {}, host {}", self.profile, self.ftl, self.host)),
            ("workload", self.workload.clone()),
            ("virtual time", format!("{:.3} s", self.virtual_ns as f64 / 1e9)),
            ("written", format!("{:.2} MB/s", self.user_bytes_per_second as f64 / 1e6)),
            ("operations", format!("{} /s", self.operations_per_second)),
            (
                "write amplification",
                format!(
                    "{:.3} = host {:.3} x device {:.3}",
                    self.total_write_amplification,
                    self.host_write_amplification,
                    self.device_write_amplification
                ),
            ),
            ("erases", format!("{:.1} for each GiB", self.erases_per_user_gib)),
            (
                "merges",
                format!(
                    "{} switch, {} partial, {} full",
                    merges.merges_switch, merges.merges_partial, merges.merges_full
                ),
            ),
            (
                "map",
                format!(
                    "{} bytes, {} hits, {} misses",
                    self.map_memory.tables_bytes + self.map_memory.cache_bytes,
                    merges.map_hits,
                    merges.map_misses
                ),
            ),
            (
                "latency",
                format!(
                    "mean {:.1} us, p50 {:.1}, p99 {:.1}, p99.9 {:.1}, most {:.1}",
                    self.latency.mean_ns as f64 / 1e3,
                    self.latency.p50_ns as f64 / 1e3,
                    self.latency.p99_ns as f64 / 1e3,
                    self.latency.p999_ns as f64 / 1e3,
                    self.latency.max_ns as f64 / 1e3
                ),
            ),
            (
                "utilisation",
                format!(
                    "dies {:.0} %, channels {:.0} %",
                    self.die_utilisation * 100.0,
                    self.channel_utilisation * 100.0
                ),
            ),
        ];
        let lines: Vec<_> =
            lines.iter().map(|(name, value)| format!("{name:<20} {value}")).collect();
        lines.join("\n")
    }
}

/// Counters at one moment.
#[derive(Clone, Copy, Debug)]
struct Snapshot {
    at: Ns,
    nand: NandCounters,
    ftl: FtlCounters,
    drive: DriveCounters,
    host: HostCounters,
    busy: (Ns, Ns),
}

impl Snapshot {
    fn of(drive: &Drive, host: HostCounters, at: Ns) -> Snapshot {
        Snapshot {
            at,
            nand: *drive.nand().counters(),
            ftl: *drive.ftl_counters(),
            drive: *drive.counters(),
            host,
            busy: drive.busy_ns(),
        }
    }
}

/// Measures.
///
/// # Errors
/// [`RunError`].
pub fn run(run: &Run) -> Result<RunReport, RunError> {
    let blocks = run.profile.geometry.host_blocks();
    if run.fill_percent == 0 || run.fill_percent > 100 {
        let reason = format!("{} % full is not between 1 and 100", run.fill_percent);
        return Err(RunError::TooLarge { reason });
    }
    let keep = if run.verify { Keep::Tags } else { Keep::Nothing };
    let drive = Drive::new(run.profile.clone(), run.ftl, run.options, keep)?;
    match run.workload {
        Workload::Blocks { pattern, count, reads_percent } => {
            let filled = blocks * u64::from(run.fill_percent) / 100;
            if u64::from(count) > filled {
                let reason = format!("writes of {count} blocks on {filled} blocks");
                return Err(RunError::TooLarge { reason });
            }
            let places = filled / u64::from(count);
            let addresses = pattern.over(places, run.seed);
            let device = Device {
                versions: vec![0; if run.verify { blocks as usize } else { 0 }],
                drive,
                count,
                filled,
                reads_percent,
                addresses,
                random: Random::new(run.seed ^ 0x8e4d),
                verified: 0,
            };
            device.measure(run)
        }
        _ => measure_files(run, drive),
    }
}

/// A bare device under test.
struct Device {
    drive: Drive,
    count: u32,
    filled: u64,
    reads_percent: u8,
    addresses: coulter_workload::Addresses,
    random: Random,
    /// The version of each block that was written last, if reads are verified.
    versions: Vec<u64>,
    verified: u64,
}

impl Device {
    fn measure(mut self, run: &Run) -> Result<RunReport, RunError> {
        let mut now = 0;
        let step = run.profile.command_size_max / BLOCK_SIZE;
        for first in (0..self.filled).step_by(step as usize) {
            let count = u64::from(step).min(self.filled - first) as u32;
            now = self.write(now, Blocks { first, count })?;
        }
        let operation_bytes = u64::from(self.count) * u64::from(BLOCK_SIZE);
        let ageing = self.filled * u64::from(run.ageing_percent) / 100 / u64::from(self.count);
        let (now, _) = self.work(now, ageing)?;
        let before = Snapshot::of(&self.drive, HostCounters::default(), now);
        let count = (run.bytes / operation_bytes).max(1);
        let (end, latency) = self.work(now, count)?;
        let written = self.drive.counters().since(&before.drive).blocks_written;
        let host = HostCounters { user_blocks_written: written, ..HostCounters::default() };
        let after = Snapshot::of(&self.drive, host, end);
        let mut report = report(run, &self.drive, &before, &after, latency);
        report.reads_verified = self.verified;
        Ok(report)
    }

    /// Operations, as many outstanding as the drive takes; then a flush.
    fn work(&mut self, at: Ns, operations: u64) -> Result<(Ns, Histogram), RunError> {
        let mut latency = Histogram::default();
        let mut outstanding = BinaryHeap::new();
        let depth = self.drive.profile().queue_depth as usize;
        let mut now = at;
        for _ in 0..operations {
            if outstanding.len() == depth {
                let Reverse(answer) = outstanding.pop().expect("it is full");
                now = now.max(answer);
            }
            let first = self.addresses.address() * u64::from(self.count);
            let blocks = Blocks { first, count: self.count };
            let reads =
                self.reads_percent > 0 && self.random.below(100) < self.reads_percent.into();
            let answer = if reads { self.read(now, blocks)? } else { self.write(now, blocks)? };
            latency.record(answer - now);
            outstanding.push(Reverse(answer));
        }
        let last = outstanding.into_iter().map(|Reverse(answer)| answer).max().unwrap_or(now);
        Ok((self.drive.flush(last)?, latency))
    }

    fn write(&mut self, at: Ns, blocks: Blocks) -> Result<Ns, RunError> {
        let range = blocks.first as usize..blocks.first as usize + blocks.count as usize;
        let mut content = Vec::new();
        if !self.versions.is_empty() {
            for block in range {
                self.versions[block] += 1;
                content
                    .extend_from_slice(&(self.versions[block] << 32 | block as u64).to_le_bytes());
            }
        }
        Ok(self.drive.write(at, blocks, &content, WriteOptions::default())?)
    }

    fn read(&mut self, at: Ns, blocks: Blocks) -> Result<Ns, RunError> {
        let mut content = vec![0; self.drive.keep().block_bytes() * blocks.count as usize];
        let answer = self.drive.read(at, blocks, &mut content)?;
        for (bytes, block) in content.chunks_exact(8).zip(blocks.first..) {
            let tag = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            if tag != self.versions[block as usize] << 32 | block {
                return Err(RunError::WrongData { block });
            }
            self.verified += 1;
        }
        Ok(answer)
    }
}

/// Blocks that a file system needs at least.
const FILE_SYSTEM_BLOCKS_MIN: u64 = 128;

fn check_files(run: &Run) -> Result<(), RunError> {
    let blocks = run.profile.geometry.host_blocks();
    let needed = match run.remap {
        Some(remap) if remap.spare_percent < RemapOptions::SPARE_PERCENT_MIN => {
            let least = RemapOptions::SPARE_PERCENT_MIN;
            let reason = format!("a remapping layer needs {least} % of spare space");
            return Err(RunError::TooLarge { reason });
        }
        Some(_) => RemapOptions::BLOCKS_MIN,
        None => FILE_SYSTEM_BLOCKS_MIN,
    };
    if blocks < needed || run.profile.geometry.exported_erase_blocks < 8 {
        let reason = format!("a drive of {blocks} blocks; {needed} are needed, in 8 erase blocks");
        return Err(RunError::TooLarge { reason });
    }
    Ok(())
}

fn measure_files(run: &Run, mut drive: Drive) -> Result<RunReport, RunError> {
    check_files(run)?;
    let mut now = 0;
    let trims = run.remap.is_some() || matches!(run.host, HostKind::Log | HostKind::Slfs);
    if !trims {
        let step = run.profile.command_size_max / BLOCK_SIZE;
        let used =
            run.profile.geometry.host_blocks() * u64::from(run.used_before_percent.min(100)) / 100;
        for first in (0..used).step_by(step as usize) {
            let count = u64::from(step).min(used - first) as u32;
            now = drive.write(now, Blocks { first, count }, &[], WriteOptions::default())?;
        }
    }
    let mut host = Host::new(run.host, &drive, run.log, run.page_cache_blocks, run.remap);
    // Equal for every host, so that they are compared at equal load.
    let blocks = run.profile.geometry.host_blocks() * u64::from(run.fill_percent) / 100;
    if blocks > host.capacity() {
        let reason = format!("{blocks} blocks of files, {} can be filled", host.capacity());
        return Err(RunError::TooLarge { reason });
    }
    let mut files = FileLoad::new(run.workload, blocks, run.seed);
    for operation in files.creation() {
        // One after the other, or the page cache would interleave what is written at once.
        now = host.apply(&mut drive, now, operation)?;
    }
    now = host.sync_all(&mut drive, now)?;
    for _ in 0..blocks * u64::from(run.ageing_percent) / 100 {
        let operation = files.ageing();
        now = host.apply(&mut drive, now, operation)?;
    }
    now = host.sync_all(&mut drive, now)?;
    let before = Snapshot::of(&drive, host.counters(), now);
    let remap_before = host.remap_counters();
    let mut timeline = Vec::new();
    let (end, latency) = work_files(run, &mut drive, &mut host, &mut files, now, &mut timeline)?;
    let after = Snapshot::of(&drive, host.counters(), end);
    let mut report = report(run, &drive, &before, &after, latency);
    report.timeline_bytes_per_second = timeline;
    let remap = host.remap_counters();
    report.remap_header_blocks = remap.headers - remap_before.headers;
    report.remap_relocated_blocks = remap.relocated - remap_before.relocated;
    Ok(report)
}

/// All threads do their operations, whoever is earliest first, until enough bytes are written.
fn work_files(
    run: &Run,
    drive: &mut Drive,
    host: &mut Host,
    files: &mut FileLoad,
    at: Ns,
    timeline: &mut Vec<u64>,
) -> Result<(Ns, Histogram), RunError> {
    let mut latency = Histogram::default();
    let mut threads: BinaryHeap<_> =
        (0..files.thread_count()).map(|thread| Reverse((at, thread))).collect();
    let moved = |host: &Host| match run.workload.only_reads() {
        true => host.user_blocks_read(),
        false => host.user_blocks_written(),
    };
    let first = moved(host);
    let due = first + run.bytes / u64::from(BLOCK_SIZE);
    let step = (due - first).div_ceil(TIMELINE_STEPS).max(1);
    let (mut end, mut step_at, mut step_end) = (at, at, first + step);
    while moved(host) < due {
        let Reverse((now, thread)) = threads.pop().expect("threads never end");
        let answer = host.apply(drive, now, files.next(thread))?;
        latency.record(answer - now);
        end = end.max(answer);
        threads.push(Reverse((answer, thread)));
        if moved(host) >= step_end {
            let bytes = u128::from(step) * u128::from(BLOCK_SIZE) * 1_000_000_000;
            timeline.push((bytes / u128::from((end - step_at).max(1))) as u64);
            (step_at, step_end) = (end, step_end + step);
        }
    }
    Ok((host.sync_all(drive, end)?, latency))
}

fn report(
    run: &Run,
    drive: &Drive,
    before: &Snapshot,
    after: &Snapshot,
    latency: Histogram,
) -> RunReport {
    let geometry = &run.profile.geometry;
    let block = u64::from(BLOCK_SIZE);
    let nand = after.nand.since(&before.nand);
    let ftl = after.ftl.since(&before.ftl);
    let commands = after.drive.since(&before.drive);
    let host = after.host.since(&before.host);
    let virtual_ns = after.at - before.at;
    let user_bytes = host.user_blocks_written * block;
    let device_bytes = commands.blocks_written * block;
    let programmed = nand.programs.total() * u64::from(geometry.page_size);
    let latency = Latency::from(&latency);
    let per_second =
        |count: u64| (u128::from(count) * 1_000_000_000 / u128::from(virtual_ns.max(1))) as u64;
    let files = run.workload.is_of_files();
    RunReport {
        profile: run.profile.name.clone(),
        ftl: run.ftl.name(),
        host: if files { run.host.name() } else { "none" },
        workload: run.workload.to_string(),
        exported_bytes: geometry.exported_bytes(),
        virtual_ns,
        user_bytes_written: user_bytes,
        user_bytes_read: host.user_blocks_read * block,
        user_bytes_per_second: per_second(user_bytes),
        operations_per_second: per_second(latency.count),
        host_counters: if files { host } else { HostCounters::default() },
        drive: commands,
        nand,
        ftl_counters: ftl,
        host_write_amplification: ratio(device_bytes, user_bytes),
        device_write_amplification: ratio(programmed, device_bytes),
        total_write_amplification: ratio(programmed, user_bytes),
        erases_per_user_gib: ratio(nand.erases << 30, user_bytes),
        victim_valid_share: ratio(
            ftl.gc_valid_pages,
            ftl.gc_victims * u64::from(geometry.pages_per_block),
        ),
        write_command_bytes_mean: ratio(device_bytes, commands.writes),
        latency,
        die_utilisation: ratio(
            after.busy.0 - before.busy.0,
            virtual_ns * u64::from(geometry.dies()),
        ),
        channel_utilisation: ratio(
            after.busy.1 - before.busy.1,
            virtual_ns * u64::from(geometry.channels),
        ),
        map_memory: drive.map_memory(),
        wear: Wear::of(drive),
        reads_verified: 0,
        timeline_bytes_per_second: Vec::new(),
        remap_header_blocks: 0,
        remap_relocated_blocks: 0,
    }
}
