//! What a drive has done: its counters, the ratios that people ask for, and its wear.

use crate::counters::{FtlCounters, NandCounters};
use crate::drive::{Drive, DriveCounters};
use crate::ftl::MapMemory;
use crate::latency::Latency;
use crate::units::{BLOCK_SIZE, EraseBlock, Ns};
use coulter::Histogram;
use serde::Serialize;

/// Wear of the erase blocks over the drive's whole life.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Wear {
    /// The fewest erases of any.
    pub erases_min: u32,
    /// The most erases of any.
    pub erases_max: u32,
    /// The mean.
    pub erases_mean: f64,
    /// The standard deviation.
    pub erases_deviation: f64,
}

impl Wear {
    /// Of a drive.
    pub(crate) fn of(drive: &Drive) -> Wear {
        let count = drive.profile().geometry.erase_blocks;
        let erases = || (0..count).map(|block| drive.nand().erases(EraseBlock(block)));
        let sum: u64 = erases().map(u64::from).sum();
        let mean = sum as f64 / f64::from(count);
        let squares: f64 =
            erases().map(|erases| (f64::from(erases) - mean) * (f64::from(erases) - mean)).sum();
        Wear {
            erases_min: erases().min().unwrap_or(0),
            erases_max: erases().max().unwrap_or(0),
            erases_mean: mean,
            erases_deviation: (squares / f64::from(count)).sqrt(),
        }
    }
}

/// How long commands took, in virtual time.
#[derive(Clone, Debug, Default)]
pub struct CommandLatencies {
    /// Reads.
    pub read: Histogram,
    /// Writes.
    pub write: Histogram,
    /// Trims.
    pub trim: Histogram,
    /// Flushes.
    pub flush: Histogram,
}

/// [`CommandLatencies`] in figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LatencyByCommand {
    /// Reads.
    pub read: Latency,
    /// Writes.
    pub write: Latency,
    /// Trims.
    pub trim: Latency,
    /// Flushes.
    pub flush: Latency,
}

/// What a drive has done since it was made. Counters only grow, so that what happened between two
/// reports is their difference.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DriveReport {
    /// The profile's name.
    pub profile: String,
    /// The FTL's name.
    pub ftl: &'static str,
    /// Bytes that it exports.
    pub exported_bytes: u64,
    /// Bytes of a page: of each read and program that is counted.
    pub page_size_bytes: u32,
    /// Virtual time.
    pub virtual_ns: Ns,
    /// Commands.
    pub drive: DriveCounters,
    /// What the flash did.
    pub nand: NandCounters,
    /// What the FTL did.
    pub ftl_counters: FtlCounters,
    /// Bytes programmed for each byte written to the drive; 0 before the first.
    pub device_write_amplification: f64,
    /// Erases for each GiB written to the drive: what wears it.
    pub erases_per_written_gib: f64,
    /// Mean valid share of victims.
    pub victim_valid_share: f64,
    /// Bytes of an average write command.
    pub write_command_bytes_mean: f64,
    /// How long commands took.
    pub latency: LatencyByCommand,
    /// Time that all dies worked, added up.
    pub die_busy_ns: Ns,
    /// Time that all channels transferred, added up.
    pub channel_busy_ns: Ns,
    /// Share of virtual time in which an average die worked.
    pub die_utilisation: f64,
    /// Share of virtual time in which an average channel transferred.
    pub channel_utilisation: f64,
    /// What the map needs.
    pub map_memory: MapMemory,
    /// Wear.
    pub wear: Wear,
}

impl DriveReport {
    /// Of a drive whose clock is at `virtual_ns`.
    pub fn of(drive: &Drive, virtual_ns: Ns, latencies: &CommandLatencies) -> DriveReport {
        let geometry = &drive.profile().geometry;
        let (commands, nand, ftl) =
            (*drive.counters(), *drive.nand().counters(), *drive.ftl_counters());
        let written = commands.blocks_written * u64::from(BLOCK_SIZE);
        let programmed = nand.programs.total() * u64::from(geometry.page_size);
        let (die_busy_ns, channel_busy_ns) = drive.busy_ns();
        // What was buffered may still be on its way to flash when the last command was answered.
        let end = virtual_ns.max(drive.idle_at());
        DriveReport {
            profile: drive.profile().name.clone(),
            ftl: drive.ftl().kind().name(),
            exported_bytes: geometry.exported_bytes(),
            page_size_bytes: geometry.page_size,
            virtual_ns,
            drive: commands,
            nand,
            ftl_counters: ftl,
            device_write_amplification: ratio(programmed, written),
            erases_per_written_gib: ratio(nand.erases << 30, written),
            victim_valid_share: ratio(
                ftl.gc_valid_pages,
                ftl.gc_victims * u64::from(geometry.pages_per_block),
            ),
            write_command_bytes_mean: ratio(written, commands.writes),
            latency: LatencyByCommand {
                read: Latency::from(&latencies.read),
                write: Latency::from(&latencies.write),
                trim: Latency::from(&latencies.trim),
                flush: Latency::from(&latencies.flush),
            },
            die_busy_ns,
            channel_busy_ns,
            die_utilisation: ratio(die_busy_ns, end * u64::from(geometry.dies())),
            channel_utilisation: ratio(channel_busy_ns, end * u64::from(geometry.channels)),
            map_memory: drive.map_memory(),
            wear: Wear::of(drive),
        }
    }

    /// The most important figures, one to a line.
    pub fn table(&self) -> String {
        let merges = &self.ftl_counters;
        let programs = &self.nand.programs;
        let microseconds = |latency: &Latency| {
            let us = |ns: Ns| ns as f64 / 1e3;
            match latency.count {
                0 => "-".to_owned(),
                _ => format!(
                    "{:.0} / {:.0} / {:.0} us",
                    us(latency.p50_ns),
                    us(latency.p99_ns),
                    us(latency.max_ns)
                ),
            }
        };
        let written = self.drive.blocks_written * u64::from(BLOCK_SIZE);
        let lines = [
            ("drive", format!("emulated {} with {}", self.profile, self.ftl)),
            ("virtual time", format!("{:.3} s", self.virtual_ns as f64 / 1e9)),
            (
                "written",
                format!(
                    "{:.1} MiB in {} commands, amplified {:.3} times",
                    written as f64 / f64::from(1 << 20),
                    self.drive.writes,
                    self.device_write_amplification
                ),
            ),
            (
                "programs",
                format!(
                    "host {}, gc {}, merge {}, pad {}, map {}, rmw {}",
                    programs.host,
                    programs.gc,
                    programs.merge,
                    programs.pad,
                    programs.map,
                    programs.rmw
                ),
            ),
            (
                "erases",
                format!(
                    "{}, {:.1} for each GiB written",
                    self.nand.erases, self.erases_per_written_gib
                ),
            ),
            (
                "merges",
                format!(
                    "{} switch, {} partial, {} full",
                    merges.merges_switch, merges.merges_partial, merges.merges_full
                ),
            ),
            (
                "latency",
                format!(
                    "read {}, write {}, flush {} (half / 99 % / longest)",
                    microseconds(&self.latency.read),
                    microseconds(&self.latency.write),
                    microseconds(&self.latency.flush)
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
            lines.iter().map(|(name, value)| format!("{name:<13} {value}")).collect();
        lines.join("\n")
    }
}

/// A quotient; 0 if there is nothing to divide by.
pub(crate) fn ratio(above: u64, below: u64) -> f64 {
    if below == 0 { 0.0 } else { above as f64 / below as f64 }
}
