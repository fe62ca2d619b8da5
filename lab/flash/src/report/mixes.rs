//! The experiments with FFSB and PostMark of the remapping papers.

use super::setting::{FILE_SYSTEMS, Setting, bars, gain, measure, remapped};
use super::{Outcome, Plot, Table, Verdict};
use crate::run::{RunError, RunReport};
use crate::workload::Workload;

/// Operations per second of a mix, plain and remapped, on each file system.
fn operations(
    setting: &Setting,
    drive: &str,
    workload: Workload,
) -> Result<(Table, Plot, Vec<f64>), RunError> {
    let mut table = Table::new(&["", "plain operations/s", "remapped operations/s", "gain"]);
    let (mut plain, mut with, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for (host, name) in FILE_SYSTEMS {
        let mut plan = setting.fresh(setting.drive(drive), host, workload);
        if matches!(workload, Workload::Postmark) {
            // One thread that never waits for the drive: what counts is how fast it writes back.
            plan.page_cache_blocks /= 4;
        }
        let (before, after) = (measure(&plan)?, measure(&remapped(plan))?);
        let rate = |report: &RunReport| report.operations_per_second as f64;
        let ratio = rate(&after) / rate(&before);
        table.row(vec![
            name.into(),
            before.operations_per_second.to_string(),
            after.operations_per_second.to_string(),
            gain(ratio),
        ]);
        plain.push(rate(&before));
        with.push(rate(&after));
        ratios.push(ratio);
    }
    let names = FILE_SYSTEMS.map(|(_, name)| name);
    let picture = bars(
        &format!("operations per second, {drive}"),
        &names,
        vec![("plain", plain), ("remapped", with)],
    );
    Ok((table, picture, ratios))
}

const SETUP: &str = "100 files, 4 KiB at random places, eight threads; so many reads in a hundred, the \
    rest overwrites and appends in equal parts. A fresh drive.";

pub(super) fn d4(setting: &Setting) -> Result<Outcome, RunError> {
    let mix = Workload::Ffsb { reads_percent: 20 };
    let (sata, sata_plot, sata_ratios) = operations(setting, "sata-tlc", mix)?;
    let (nvme, nvme_plot, nvme_ratios) = operations(setting, "nvme-tlc", mix)?;
    Ok(Outcome {
        id: "D4".into(),
        title: "FFSB, SATA and NVMe".into(),
        paper: "BL fig. 7: +57.7, 38.3, 11.0, 18.8 % (SATA), +17.1, 10.9, 16.8, 18.3 % (NVMe) for EXT4, \
            XFS, BTRFS, F2FS."
            .into(),
        setup: format!("{SETUP} 20 reads in a hundred."),
        tables: vec![sata, nvme],
        plots: vec![sata_plot, nvme_plot],
        verdict: Verdict::of(&[
            sata_ratios[0] > 1.02,
            nvme_ratios[0] > 1.02,
            sata_ratios[0] > nvme_ratios[0],
        ]),
        reason: "As with plain writes: the in-place layout gains most, and only on the drive with the \
            dearer command. F2FS gained 18 % in the paper; the log here has nothing left to gain."
            .into(),
    })
}

pub(super) fn d5(setting: &Setting) -> Result<Outcome, RunError> {
    let (sata, sata_plot, sata_ratios) = operations(setting, "sata-tlc", Workload::Postmark)?;
    let (nvme, nvme_plot, _) = operations(setting, "nvme-tlc", Workload::Postmark)?;
    Ok(Outcome {
        id: "D5".into(),
        title: "PostMark, SATA and NVMe".into(),
        paper: "BL fig. 8: time −33.9, 18.6, 21.5, 16.4 % (SATA), −33.4, 40, 29.7, 42.8 % (NVMe)."
            .into(),
        setup: "200 files that are read, appended to, deleted and created; one thread, no fsync."
            .into(),
        tables: vec![sata, nvme],
        plots: vec![sata_plot, nvme_plot],
        verdict: Verdict::of(&[sata_ratios[0] > 1.1, sata_ratios[1] > 1.1]),
        reason:
            "Whole files are created at once, so every layout writes them in runs and there are \
            few commands to save; what the papers gained here must come from what the model leaves \
            out (directories, allocation groups, journal threads)."
                .into(),
    })
}

fn mix(
    setting: &Setting,
    id: &str,
    reads_percent: u8,
    paper: &str,
    judge: fn(&[f64]) -> Verdict,
    reason: &str,
) -> Result<Outcome, RunError> {
    let (table, picture, ratios) =
        operations(setting, "nvme-tlc", Workload::Ffsb { reads_percent })?;
    Ok(Outcome {
        id: id.into(),
        title: format!("FFSB with {reads_percent} reads in a hundred, NVMe"),
        paper: paper.into(),
        setup: SETUP.into(),
        tables: vec![table],
        plots: vec![picture],
        verdict: judge(&ratios),
        reason: reason.into(),
    })
}

pub(super) fn d10(setting: &Setting) -> Result<Outcome, RunError> {
    let paper = "NV fig. 10: reads only: −1.4, −0.2, −0.3, −1.1 %.";
    let judge =
        |ratios: &[f64]| Verdict::of(&[ratios.iter().all(|ratio| (0.9..1.1).contains(ratio))]);
    let reason = "Single blocks are read, so it does not matter where they lie; the model charges no \
        time for the lookup. What the papers do not measure is A2: reading in order what was \
        written in disorder.";
    mix(setting, "D10", 100, paper, judge, reason)
}

pub(super) fn d11(setting: &Setting) -> Result<Outcome, RunError> {
    let paper = "NV fig. 11: writes only: +19.4, 16.7, 21.0, 13.7 %.";
    let judge = |ratios: &[f64]| Verdict::of(&[ratios[0] > 1.05, ratios[1] > 1.05]);
    mix(
        setting,
        "D11",
        0,
        paper,
        judge,
        "Writes to many files are scattered in place, and runs in a log.",
    )
}

pub(super) fn d12(setting: &Setting) -> Result<Outcome, RunError> {
    let paper = "NV fig. 12: half reads: +16.9, 15.7, 18.2, 11.0 %.";
    let judge = |ratios: &[f64]| Verdict::of(&[ratios[0] > 1.05, ratios[1] > 1.05]);
    let reason = "Reads wait for the drive and writes do not: with half of them reads, the time is \
        mostly that of reads, which remapping does not change.";
    mix(setting, "D12", 50, paper, judge, reason)
}
