//! The experiments about maps: their memory, their recovery, their caches.

use super::setting::{REMAP, Scale, Setting, f1, f2, measure, megabytes, plot, remapped};
use super::{Outcome, Shape, Table, Verdict};
use crate::content::Keep;
use crate::drive::{Blocks, Drive, WriteOptions};
use crate::ftl::{FtlKind, FtlOptions};
use crate::host::HostKind;
use crate::run::{Run, RunError};
use crate::units::BLOCK_SIZE;
use crate::workload::Workload;
use coulter_workload::Pattern;

/// Bytes of a map entry on the drive: a place, and the block it belongs to.
const ENTRY_BYTES: u64 = 8;

pub(super) fn d14(setting: &Setting) -> Result<Outcome, RunError> {
    let mut table = Table::new(&["mapped", "entries", "map read, ms", "entries per us"]);
    let mut times = Vec::new();
    let mut labels = Vec::new();
    let most = setting.pick(16, 128);
    let mut mapped_gib = 1;
    while mapped_gib <= most {
        let entries = (mapped_gib << 30) / u64::from(BLOCK_SIZE);
        let profile = setting.drive("nvme-tlc");
        let depth = u64::from(profile.command_size_max / BLOCK_SIZE);
        let mut drive =
            Drive::new(profile, FtlKind::PageMapped, FtlOptions::default(), Keep::Nothing)?;
        let blocks = (entries * ENTRY_BYTES).div_ceil(u64::from(BLOCK_SIZE));
        let mut now = 0;
        let commands = |first: u64| Blocks { first, count: depth.min(blocks - first) as u32 };
        for first in (0..blocks).step_by(depth as usize) {
            now = drive.write(now, commands(first), &[], WriteOptions::default())?;
        }
        now = drive.flush(now)?;
        let mut done = now;
        for first in (0..blocks).step_by(depth as usize) {
            done = done.max(drive.read(now, commands(first), &mut [])?);
        }
        let ns = done - now;
        table.row(vec![
            format!("{mapped_gib} GiB"),
            entries.to_string(),
            f1(ns as f64 / 1e6),
            f1(entries as f64 * 1e3 / ns as f64),
        ]);
        labels.push(mapped_gib.to_string());
        times.push(ns as f64 / 1e6);
        mapped_gib *= 2;
    }
    let last = times.len() - 1;
    let linear = times[last] / times[last - 1];
    Ok(Outcome {
        id: "D14".into(),
        title: "Reading the map after a crash".into(),
        paper: "NV fig. 15: rebuilding the tables takes up to 5.49 s with 256 GB: 82 ns an entry.".into(),
        setup: "Only the drive's part is emulated: reading eight bytes for each mapped 4 KiB block, in \
            commands of 128 KiB. A host's processor time is no virtual time; `coulter-lab bench recovery` \
            measures Coulter's own recovery, which reads neither the whole map nor the whole log."
            .into(),
        tables: vec![table],
        plots: vec![plot(
            "ms over GiB mapped",
            Shape::Lines,
            labels,
            vec![("map read", times.clone())],
        )],
        verdict: Verdict::of(&[(1.6..2.4).contains(&linear)]),
        reason: format!(
            "Twice the data takes {} times the time: linear, as in the paper. With 256 GB it would be a \
             fraction of the paper's time, most of which therefore went into building trees.",
            f2(linear)
        ),
    })
}

pub(super) fn d19(_: &Setting) -> Result<Outcome, RunError> {
    Ok(Outcome {
        id: "D19".into(),
        title: "Remapping file offsets above the file systems".into(),
        paper: "sVFS (abstract only): random writes × 1.27, 1.36, 1.34, 2.35 (EXT4, F2FS, XFS, BTRFS); \
            applications × 1.25, 1.22, 1.20, 3.51."
            .into(),
        setup: "Not run: it remaps above the file system, where this emulator has nothing.".into(),
        tables: Vec::new(),
        plots: Vec::new(),
        verdict: Verdict::Ours,
        reason: "For context: the gains of the block-level experiments above are of the same kind.".into(),
    })
}

pub(super) fn d20(setting: &Setting) -> Result<Outcome, RunError> {
    let random = Workload::Fio { random: true };
    let plan = setting.fresh(setting.drive("nvme-tlc"), HostKind::Ext4, random);
    let report = measure(&remapped(plan))?;
    let blocks = report.drive.blocks_written;
    let share = report.remap_header_blocks as f64 / blocks as f64 * 100.0;
    let mut table = Table::new(&["", "the paper", "here"]);
    table.row(vec![
        "memory for each mapped 4 KiB block".into(),
        "12 bytes claimed; a 64-bit tree node takes 48".into(),
        "4 bytes in the model; Coulter 8, its checksum included".into(),
    ]);
    table.row(vec![
        "memory for each mapped GiB".into(),
        "3 MB claimed".into(),
        format!(
            "{} MB; Coulter {} MB",
            f1((1 << 18) as f64 * 4.0 / 1e6),
            f1((1 << 18) as f64 * 8.0 / 1e6)
        ),
    ]);
    table.row(vec![
        "metadata written with the data".into(),
        "4 KiB for 2 MiB: 0.195 %".into(),
        format!("{} % headers", f2(share)),
    ]);
    Ok(Outcome {
        id: "D20".into(),
        title: "What the map costs in memory and in writes".into(),
        paper: "NV: about 3 MB of memory for each GB; a log of 4 KiB for each 2 MiB of data."
            .into(),
        setup: "Random writes of D9, remapped; spare space as everywhere.".into(),
        tables: vec![table],
        plots: Vec::new(),
        verdict: Verdict::of(&[share < 1.0]),
        reason: format!(
            "One header for 255 blocks is 0.39 %; {} % is what short batches make of it. The paper's \
             0.195 % has no room for a checksum of either header or data. Remapping keeps {} % of \
             space for itself here.",
            f2(share),
            REMAP.spare_percent,
        ),
    })
}

pub(super) fn d21(setting: &Setting) -> Result<Outcome, RunError> {
    let mut table = Table::new(&[
        "map cache",
        "share of the map",
        "hits",
        "MB/s",
        "device amplification",
        "read p50 us",
        "read p99 us",
    ]);
    let (mut labels, mut hits, mut speeds) = (Vec::new(), Vec::new(), Vec::new());
    let drive = setting.drive("sata-tlc");
    let entries = drive.geometry.logical_pages();
    for divisor in [256, 64, 16, 4, 1] {
        let plan = |workload| {
            let mut drive = drive.clone();
            drive.map_cache_entries = (entries / divisor).max(1);
            let mut plan = Run::new(drive, FtlKind::Dftl, workload);
            plan.seed = setting.seed;
            plan.fill_percent = 90;
            plan.ageing_percent = 50;
            plan.bytes = plan.profile.geometry.exported_bytes() / setting.pick(8, 16);
            plan
        };
        let zipf = |reads_percent| Workload::Blocks {
            pattern: Pattern::Zipf { theta: 0.9 },
            count: 1,
            reads_percent,
        };
        let writes = measure(&plan(zipf(0)))?;
        let reads = measure(&plan(zipf(100)))?;
        let counters = &writes.ftl_counters;
        let hit_share =
            counters.map_hits as f64 / (counters.map_hits + counters.map_misses).max(1) as f64;
        let bytes = u64::from((entries / divisor).max(1)) * 8;
        table.row(vec![
            format!("{} KiB", bytes / 1024),
            format!("1/{divisor}"),
            format!("{} %", f1(hit_share * 100.0)),
            f1(megabytes(&writes)),
            f2(writes.device_write_amplification),
            f1(reads.latency.p50_ns as f64 / 1e3),
            f1(reads.latency.p99_ns as f64 / 1e3),
        ]);
        labels.push(format!("1/{divisor}"));
        hits.push(hit_share * 100.0);
        speeds.push(megabytes(&writes));
    }
    let scale = if setting.scale == Scale::Short { "short" } else { "full" };
    Ok(Outcome {
        id: "D21".into(),
        title: "A map that is loaded on demand".into(),
        paper: "Future work in both remapping papers; no figures.".into(),
        setup: format!(
            "DFTL, Zipf 0.9, 4 KiB, the drive filled to 90 %, {scale} scale. The whole map is the last row."
        ),
        tables: vec![table],
        plots: vec![
            plot("hits in the map cache, %", Shape::Lines, labels.clone(), vec![("hits", hits)]),
            plot("MB/s", Shape::Lines, labels, vec![("random writes", speeds)]),
        ],
        verdict: Verdict::Ours,
        reason: "A miss costs a page read before the operation, and later a read and a program for the \
            changed entry that has to leave. Skew makes a small cache hit more often than its share. \
            The reads come right after the writes, so that they pay for the changed entries that they \
            push out as well: the more, the more of these a cache holds. A cache of the whole map pushes \
            out none."
            .into(),
    })
}
