//! The experiments with plain writes of the papers on block-layer transformation (BL: Han and Son
//! 2021) and NVMe remapping (NV: Sung et al. 2022).

use super::setting::{
    FILE_SYSTEMS, Setting, bars, f1, f2, gain, measure, megabytes, plot, remapped,
};
use super::{Outcome, Shape, Table, Verdict};
use crate::host::{Cleaning, HostKind, RemapOptions};
use crate::run::{RunError, RunReport};
use crate::workload::Workload;

const SEQUENTIAL: Workload = Workload::Fio { random: false };
const RANDOM: Workload = Workload::Fio { random: true };

/// What one file system did.
struct Row {
    name: &'static str,
    sequential: RunReport,
    random: RunReport,
}

fn rows(setting: &Setting, drive: &str) -> Result<Vec<Row>, RunError> {
    let mut rows = Vec::new();
    for (host, name) in FILE_SYSTEMS {
        let plan = |workload| setting.fresh(setting.drive(drive), host, workload);
        rows.push(Row {
            name,
            sequential: measure(&plan(SEQUENTIAL))?,
            random: measure(&plan(RANDOM))?,
        });
    }
    Ok(rows)
}

const SETUP: &str = "Eight threads write a file each, 4 KiB at a time, buffered; files on a tenth of \
    a fresh drive, page cache a twelfth of the files, one sync at the end. Page-mapped FTL. XFS is \
    not modelled: at this level it would be the EXT4 model with another journal.";

fn sequential_against_random(
    setting: &Setting,
    id: &str,
    drive: &str,
    paper: &str,
) -> Result<Outcome, RunError> {
    let rows = rows(setting, drive)?;
    let mut table = Table::new(&["", "sequential MB/s", "random MB/s", "ratio"]);
    let mut ratios = Vec::new();
    for row in &rows {
        let (sequential, random) = (megabytes(&row.sequential), megabytes(&row.random));
        ratios.push(sequential / random);
        table.row(vec![row.name.into(), f1(sequential), f1(random), f2(sequential / random)]);
    }
    let names: Vec<_> = rows.iter().map(|row| row.name).collect();
    let values = |of: fn(&Row) -> &RunReport| rows.iter().map(|row| megabytes(of(row))).collect();
    let verdict = Verdict::of(&[ratios[0] > 1.02, ratios[1] > 1.02, ratios[2] < ratios[0]]);
    let kib = |report: &RunReport| report.write_command_bytes_mean as u64 / 1024;
    let commands = format!(
        "In place (EXT4) a random write is a command of {} KiB on average, a sequential one of {} KiB; \
         the copy-on-write model and the log make runs of both.",
        kib(&rows[0].random),
        kib(&rows[0].sequential),
    );
    let why = if ratios[0] > 1.02 {
        "The ratio is smaller than the paper's: only the drive's time per command is charged, not the \
         host's, and the model leaves out BTRFS's checksum and extent trees, which made it the worst."
    } else {
        "On this drive a command costs so little that link and flash are the limit either way. The \
         papers' gap must come from what the model leaves out: the host's time per command, and \
         BTRFS's checksum and extent trees."
    };
    let reason = format!("{commands} {why}");
    Ok(Outcome {
        id: id.into(),
        title: format!("Sequential against random writes, {drive}"),
        paper: paper.into(),
        setup: SETUP.into(),
        tables: vec![table],
        plots: vec![bars(
            "MB/s",
            &names,
            vec![("sequential", values(|row| &row.sequential)), ("random", values(|r| &r.random))],
        )],
        verdict,
        reason,
    })
}

pub(super) fn d1(setting: &Setting) -> Result<Outcome, RunError> {
    let paper = "BL fig. 1, SATA: sequential / random = 2.0 (EXT4), 1.86 (XFS), 2.6 (BTRFS), 1.32 \
        (F2FS). 8 threads × 3 GB on a drive of 250 GB.";
    sequential_against_random(setting, "D1", "sata-tlc", paper)
}

pub(super) fn d7(setting: &Setting) -> Result<Outcome, RunError> {
    let paper = "NV fig. 2, NVMe: random below sequential by up to 87.4 % (BTRFS). 8 threads × 8 GiB \
        on a drive of 3.2 TB.";
    sequential_against_random(setting, "D7", "nvme-tlc", paper)
}

/// Random writes with and without remapping.
fn remap_gains(
    setting: &Setting,
    drive: &str,
    workload: Workload,
) -> Result<(Table, super::Plot, Vec<f64>), RunError> {
    let mut table = Table::new(&[
        "",
        "plain MB/s",
        "remapped MB/s",
        "gain",
        "plain KiB per command",
        "remapped KiB per command",
    ]);
    let (mut plain, mut with, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for (host, name) in FILE_SYSTEMS {
        let plan = setting.fresh(setting.drive(drive), host, workload);
        let (before, after) = (measure(&plan)?, measure(&remapped(plan))?);
        let kib = |report: &RunReport| f1(report.write_command_bytes_mean / 1024.0);
        let ratio = megabytes(&after) / megabytes(&before);
        table.row(vec![
            name.into(),
            f1(megabytes(&before)),
            f1(megabytes(&after)),
            gain(ratio),
            kib(&before),
            kib(&after),
        ]);
        plain.push(megabytes(&before));
        with.push(megabytes(&after));
        ratios.push(ratio);
    }
    let names = FILE_SYSTEMS.map(|(_, name)| name);
    let picture = bars("MB/s", &names, vec![("plain", plain), ("remapped", with)]);
    Ok((table, picture, ratios))
}

pub(super) fn d2(setting: &Setting) -> Result<Outcome, RunError> {
    let (table, picture, ratios) = remap_gains(setting, "sata-tlc", RANDOM)?;
    Ok(Outcome {
        id: "D2".into(),
        title: "Remapping random writes, SATA".into(),
        paper: "BL fig. 6a: random writes × 2.0 (EXT4), 1.86 (XFS), 2.15 (BTRFS), 1.01 (F2FS)."
            .into(),
        setup: SETUP.into(),
        tables: vec![table],
        plots: vec![picture],
        verdict: Verdict::of(&[ratios[0] > 1.05, ratios[1] > 1.05, ratios[2] < ratios[0]]),
        reason: format!(
            "What remapping saves is commands: it pays where writes were scattered (EXT4 {}), and nothing \
             where they were a log already. The gains are smaller than the paper's for the reasons of \
             D1; where the drive has to collect, they are several times larger: A1.",
            gain(ratios[0])
        ),
    })
}

pub(super) fn d3(setting: &Setting) -> Result<Outcome, RunError> {
    let (_, _, sata) = remap_gains(setting, "sata-tlc", RANDOM)?;
    let (table, picture, nvme) = remap_gains(setting, "nvme-tlc", RANDOM)?;
    Ok(Outcome {
        id: "D3".into(),
        title: "Remapping random writes, NVMe".into(),
        paper: "BL fig. 6b: gains of 21.6, 17.3, 18.9, 1.9 %: smaller than on SATA (D2).".into(),
        setup: SETUP.into(),
        tables: vec![table],
        plots: vec![picture],
        verdict: Verdict::of(&[nvme[0] > 1.02, nvme[0] < sata[0], nvme[2] < 1.05]),
        reason: format!(
            "A command costs {:.1} us on this drive against {:.1} us on the SATA one, so there is less \
             to save: EXT4 gains {} here and {} there.",
            setting.drive("nvme-tlc").command_ns as f64 / 1e3,
            setting.drive("sata-tlc").command_ns as f64 / 1e3,
            gain(nvme[0]),
            gain(sata[0]),
        ),
    })
}

pub(super) fn d8(setting: &Setting) -> Result<Outcome, RunError> {
    let (table, picture, ratios) = remap_gains(setting, "nvme-tlc", SEQUENTIAL)?;
    Ok(Outcome {
        id: "D8".into(),
        title: "Remapping sequential writes, NVMe".into(),
        paper: "NV fig. 8: +11.4, 7.0, 3.1, 7.3 %; eight sequential streams interleave on their way."
            .into(),
        setup: SETUP.into(),
        tables: vec![table],
        plots: vec![picture],
        verdict: Verdict::of(&[ratios.iter().all(|ratio| *ratio > 0.95), ratios[0] < 1.3]),
        reason: "In the model the page cache writes each file back as a run of its own, so streams do \
            not interleave and remapping neither gains nor loses much; the papers' few percent come \
            from interleaving in the block layer."
            .into(),
    })
}

pub(super) fn d9(setting: &Setting) -> Result<Outcome, RunError> {
    let (table, picture, ratios) = remap_gains(setting, "nvme-tlc", RANDOM)?;
    Ok(Outcome {
        id: "D9".into(),
        title: "Remapping random writes in the driver, NVMe".into(),
        paper: "NV fig. 9: +30.4 (EXT4), 11.2 (XFS), 64.1 (BTRFS), 7.1 % (F2FS).".into(),
        setup: format!(
            "{SETUP} The same runs as D3: at this level block layer and driver are one."
        ),
        tables: vec![table],
        plots: vec![picture],
        verdict: Verdict::of(&[ratios[0] > 1.02, ratios[2] < ratios[0], ratios[1] > ratios[2]]),
        reason: format!(
            "The paper's order is copy-on-write, in place, log. The copy-on-write model writes large \
             runs already, and a fresh drive with cheap commands leaves EXT4 {}: see D7. On a drive \
             that collects remapping does gain on NVMe: D15.",
            gain(ratios[0])
        ),
    })
}

/// Throughput over time of three: no remapping, and two ways to clean.
fn cleaning(setting: &Setting, id: &str, drive: &str, paper: &str) -> Result<Outcome, RunError> {
    let plan = setting.worn(setting.drive(drive), HostKind::Ext4, RANDOM);
    let with = |cleaning| {
        let mut plan = plan.clone();
        plan.remap = Some(RemapOptions { cleaning, spare_percent: 20 });
        plan
    };
    // Enough free space that nothing is cleaned while measuring.
    let mut idle = remapped(plan.clone());
    (idle.fill_percent, idle.ageing_percent) = (20, 0);
    let cases = [
        ("no remapping", plan.clone()),
        ("copy-out", with(Cleaning::CopyOut)),
        ("hole filling", with(Cleaning::HoleFill)),
        ("remapped, not cleaning", idle),
    ];
    let mut table = Table::new(&[
        "",
        "MB/s",
        "drop against not cleaning",
        "worst of 32 intervals, MB/s",
        "host amplification",
        "device amplification",
        "total",
    ]);
    let mut reports = Vec::new();
    for (name, plan) in cases {
        reports.push((name, measure(&plan)?));
    }
    let free = megabytes(&reports[3].1);
    for (name, report) in &reports {
        let worst = report.timeline_bytes_per_second.iter().min().copied().unwrap_or(0);
        table.row(vec![
            (*name).into(),
            f1(megabytes(report)),
            gain(megabytes(report) / free),
            f1(worst as f64 / 1e6),
            f2(report.host_write_amplification),
            f2(report.device_write_amplification),
            f2(report.total_write_amplification),
        ]);
    }
    let speeds: Vec<_> = reports.iter().map(|(_, report)| megabytes(report)).collect();
    let steps = reports.iter().map(|(_, r)| r.timeline_bytes_per_second.len()).min().unwrap_or(0);
    let line = |report: &RunReport| {
        let steps = report.timeline_bytes_per_second.iter().take(steps);
        steps.map(|bytes| *bytes as f64 / 1e6).collect::<Vec<_>>()
    };
    let series = reports.iter().map(|(name, report)| (*name, line(report))).collect();
    let labels = (1..=steps).map(|step| step.to_string()).collect();
    Ok(Outcome {
        id: id.into(),
        title: format!("Cleaning under random writes, {drive}"),
        paper: paper.into(),
        setup: "EXT4, files on 65 % of the drive, overwritten once before, then random 4 KiB writes \
            of a quarter of the drive. The drive alone was used before and never trimmed."
            .into(),
        tables: vec![table],
        plots: vec![plot("MB/s over time, 32 parts of equal work", Shape::Lines, labels, series)],
        verdict: Verdict::of(&[speeds[1] < speeds[3], speeds[1] > speeds[0]]),
        reason: "Cleaning takes its share of the bandwidth and remapping stays ahead where the drive \
            alone has to collect. Hole filling writes small pieces in place again: it brings back the \
            commands that remapping saves, and the drive's own copies."
            .into(),
    })
}

pub(super) fn d6(setting: &Setting) -> Result<Outcome, RunError> {
    let paper = "BL fig. 9: while cleaning, throughput drops by up to 62.4 (EXT4), 55.3 (XFS), 89 \
        (BTRFS), 7.5 % (F2FS), and stays above no remapping.";
    cleaning(setting, "D6", "sata-tlc", paper)
}

pub(super) fn d15(setting: &Setting) -> Result<Outcome, RunError> {
    let paper = "NV fig. 16: EXT4 on 256 GB, overwritten while cleaning: −22.1 % against remapping \
        without cleaning, and above the baseline.";
    cleaning(setting, "D15", "nvme-tlc", paper)
}

pub(super) fn d13(setting: &Setting) -> Result<Outcome, RunError> {
    let mut table = Table::new(&[
        "random writes with fsync",
        "plain mean us",
        "remapped mean us",
        "change",
        "plain longest ms",
        "remapped longest ms",
    ]);
    let (mut changes, mut plain, mut with) = (Vec::new(), Vec::new(), Vec::new());
    for (host, name) in FILE_SYSTEMS {
        // Buffered writes end in memory; Tiobench's fsyncs let the drive be seen.
        let plan = setting.fresh(setting.drive("nvme-tlc"), host, Workload::Tiobench);
        let (before, after) = (measure(&plan)?, measure(&remapped(plan))?);
        let us = |ns: u64| f1(ns as f64 / 1e3);
        let change = after.latency.mean_ns as f64 / before.latency.mean_ns as f64;
        table.row(vec![
            name.into(),
            us(before.latency.mean_ns),
            us(after.latency.mean_ns),
            gain(change),
            f2(before.latency.max_ns as f64 / 1e6),
            f2(after.latency.max_ns as f64 / 1e6),
        ]);
        changes.push(change);
        plain.push(before.latency.mean_ns as f64 / 1e3);
        with.push(after.latency.mean_ns as f64 / 1e3);
    }
    let names = FILE_SYSTEMS.map(|(_, name)| name);
    Ok(Outcome {
        id: "D13".into(),
        title: "Latency, NVMe".into(),
        paper: "NV figs. 13 and 14: mean latency of random writes −19.8, 20.9, 24.5, 7.5 %; sequential \
            up to −5.8 %."
            .into(),
        setup: "Four threads, 4 KiB random writes, fsync after 1024 of them; a fresh drive.".into(),
        tables: vec![table],
        plots: vec![bars("mean latency, us", &names, vec![("plain", plain), ("remapped", with)])],
        verdict: Verdict::of(&[changes[0] < 0.98, changes[2] > changes[0]]),
        reason: "Latency follows throughput: where fewer commands bring nothing (D7), it stays. The \
            mean is over writes that end in the page cache and fsyncs that wait for the drive; the \
            longest is an fsync, and the 99.9th percentile still a write to the page cache."
            .into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Scale;

    #[test]
    fn remapping_never_costs_much() {
        let setting = Setting { scale: Scale::Short, seed: 1 };
        for workload in [SEQUENTIAL, RANDOM] {
            let (_, _, ratios) = remap_gains(&setting, "sata-tlc", workload).expect("it works");
            assert!(ratios.iter().all(|ratio| *ratio > 0.9), "{workload}: {ratios:?}");
        }
    }
}
