//! What the papers do not measure: which cause makes random writes slow, what reads pay later, and
//! what the layers write together.

use super::flash;
use super::setting::{FILE_SYSTEMS, Setting, bars, f1, f2, gain, measure, megabytes, remapped};
use super::{Outcome, Table, Verdict};
use crate::ftl::FtlKind;
use crate::host::HostKind;
use crate::run::{Run, RunError, RunReport};
use crate::workload::Workload;

/// One cause at a time of what random writes lose.
pub(super) fn a1(setting: &Setting) -> Result<Outcome, RunError> {
    let free_commands = |plan: &mut Run| {
        (plan.profile.command_ns, plan.profile.page_ns) = (0, 0);
    };
    let map_cache = |plan: &mut Run| {
        plan.ftl = FtlKind::Dftl;
        plan.profile.map_cache_entries = plan.profile.geometry.logical_pages() / 64;
    };
    let mut table = Table::new(&[
        "what is switched on",
        "sequential MB/s",
        "random MB/s",
        "ratio",
        "random, remapped MB/s",
        "gain",
    ]);
    let mut ratios = Vec::new();
    let cases: [(&str, bool, bool, bool); 5] = [
        ("nothing", false, false, false),
        ("time per command", true, false, false),
        ("map cache of 1/64", false, true, false),
        ("garbage collection", false, false, true),
        ("all three", true, true, true),
    ];
    for (name, commands, cached, collects) in cases {
        let plan = |random| {
            let drive = setting.drive("sata-tlc");
            let workload = Workload::Fio { random };
            let mut plan = match collects {
                true => setting.worn(drive, HostKind::Ext4, workload),
                false => setting.fresh(drive, HostKind::Ext4, workload),
            };
            if !commands {
                free_commands(&mut plan);
            }
            if cached {
                map_cache(&mut plan);
            }
            plan
        };
        let (sequential, random) = (measure(&plan(false))?, measure(&plan(true))?);
        let with = measure(&remapped(plan(true)))?;
        let ratio = megabytes(&sequential) / megabytes(&random);
        table.row(vec![
            name.into(),
            f1(megabytes(&sequential)),
            f1(megabytes(&random)),
            f2(ratio),
            f1(megabytes(&with)),
            gain(megabytes(&with) / megabytes(&random)),
        ]);
        ratios.push(ratio);
    }
    let labels = cases.map(|(name, ..)| name);
    Ok(Outcome {
        id: "A1".into(),
        title: "Why random writes are slower: one cause at a time".into(),
        paper: "Not measured. The papers' drives were fresh and large, so that garbage collection \
            hardly ran; they name it as a cause all the same."
            .into(),
        setup: "EXT4 on the SATA drive. Collection: files on 65 % of a drive that was full before; else \
            a tenth of a fresh one."
            .into(),
        tables: vec![table],
        plots: vec![bars("sequential / random", &labels, vec![("ratio", ratios.clone())])],
        verdict: Verdict::Ours,
        reason: format!(
            "On a fresh drive the time per command alone gives a ratio of {}, a small map cache {}; \
             collection gives {}, and is what remapping helps against most.",
            f2(ratios[1]),
            f2(ratios[2]),
            f2(ratios[3])
        ),
    })
}

/// Sequential reads after random writes.
pub(super) fn a2(setting: &Setting) -> Result<Outcome, RunError> {
    let mut table = Table::new(&[
        "",
        "written in order, MB/s",
        "then overwritten at random",
        "remapped, in order",
        "remapped, overwritten at random",
        "left of it",
    ]);
    let mut series =
        vec![("in place or as the file system does", Vec::new()), ("remapped", Vec::new())];
    for (host, name) in FILE_SYSTEMS {
        let plan = |ageing| {
            let mut plan = setting.fresh(setting.drive("nvme-tlc"), host, Workload::FioRead);
            plan.ageing_percent = ageing;
            plan
        };
        let rate = |report: &RunReport| {
            report.user_bytes_read as f64 * 1e3 / report.virtual_ns.max(1) as f64
        };
        let ordered = rate(&measure(&plan(0))?);
        let disordered = rate(&measure(&plan(100))?);
        let remapped_ordered = rate(&measure(&remapped(plan(0)))?);
        let remapped_disordered = rate(&measure(&remapped(plan(100)))?);
        table.row(vec![
            name.into(),
            f1(ordered),
            f1(disordered),
            f1(remapped_ordered),
            f1(remapped_disordered),
            format!("{} %", f1(remapped_disordered / ordered * 100.0)),
        ]);
        series[0].1.push(disordered / ordered);
        series[1].1.push(remapped_disordered / ordered);
    }
    let names = FILE_SYSTEMS.map(|(_, name)| name);
    Ok(Outcome {
        id: "A2".into(),
        title: "Reading in order what was written in disorder".into(),
        paper: "Not measured in any of the papers.".into(),
        setup: "Eight threads read 128 KiB at a time; files written in order, or overwritten once at \
            random in blocks of 4 KiB. NVMe drive."
            .into(),
        tables: vec![table],
        plots: vec![bars("read rate against in order", &names, series)],
        verdict: Verdict::Ours,
        reason: "This is the price: a log scatters what the file system keeps together, and each piece \
            is a command. Copy-on-write and log-structured file systems pay it without remapping too."
            .into(),
    })
}

/// What all layers write together.
pub(super) fn a3(setting: &Setting) -> Result<Outcome, RunError> {
    let mut table = Table::new(&["", "MB/s", "host", "× device", "= total", "erases per GiB"]);
    let mut totals = Vec::new();
    let mut add = |name: String, report: &RunReport| {
        table.row(vec![
            name.clone(),
            f1(megabytes(report)),
            f2(report.host_write_amplification),
            f2(report.device_write_amplification),
            f2(report.total_write_amplification),
            f1(report.erases_per_user_gib),
        ]);
        totals.push((name, report.total_write_amplification));
    };
    let random = Workload::Fio { random: true };
    for (host, name) in FILE_SYSTEMS {
        let plan = setting.worn(setting.drive("sata-tlc"), host, random);
        add(format!("{name}, page map"), &measure(&plan)?);
        add(format!("{name}, remapped, page map"), &measure(&remapped(plan))?);
    }
    for ftl in FtlKind::ALL {
        let plan = flash::plan(setting, HostKind::Ext4, ftl, Workload::Tiobench);
        add(format!("board, EXT4, {ftl}"), &measure(&plan)?);
        add(format!("board, EXT4, remapped, {ftl}"), &measure(&remapped(plan))?);
    }
    let total = |name: &str| {
        totals.iter().find(|(known, _)| known == name).map_or(0.0, |(_, total)| *total)
    };
    let reason = format!(
        "What counts for wear is the product. Under EXT4 on a worn page-mapped drive it is {} plain and \
         {} remapped; on the board with S-FTL, which was made for hosts that write in order, {} and {}. \
         Under file systems that write everything to new places themselves, remapping adds cleaning of \
         its own: {} and {} under BTRFS, {} and {} under F2FS.",
        f2(total("EXT4, page map")),
        f2(total("EXT4, remapped, page map")),
        f2(total("board, EXT4, sftl")),
        f2(total("board, EXT4, remapped, sftl")),
        f2(total("BTRFS, page map")),
        f2(total("BTRFS, remapped, page map")),
        f2(total("F2FS, page map")),
        f2(total("F2FS, remapped, page map")),
    );
    let labels: Vec<_> = totals.iter().map(|(name, _)| name.as_str()).collect();
    let values = totals.iter().map(|(_, total)| *total).collect();
    let picture = bars("bytes programmed for each byte written", &labels, vec![("total", values)]);
    Ok(Outcome {
        id: "A3".into(),
        title: "Write amplification of all layers together".into(),
        paper: "Not measured; the S-LFS paper warns of cleaning on both levels.".into(),
        setup:
            "Random 4 KiB writes on worn drives: SATA drive with files on 65 %; the OpenSSD board \
            under Tiobench, with each FTL."
                .into(),
        tables: vec![table],
        plots: vec![picture],
        verdict: Verdict::Ours,
        reason,
    })
}
