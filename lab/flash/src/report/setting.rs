//! What all experiments share: the scale, the drives, and the runs that they vary.

use super::{Plot, Shape};
use crate::ftl::FtlKind;
use crate::host::{Cleaning, HostKind, RemapOptions};
use crate::profile::Profile;
use crate::run::{Run, RunError, RunReport, run};
use crate::workload::Workload;

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Drives of 64 to 192 MiB and a few MiB of writes: seconds, for every change.
    Short,
    /// Drives of 1 to 3 GiB: minutes.
    Full,
}

impl Scale {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Scale::Short => "short",
            Scale::Full => "full",
        }
    }
}

/// The scale and the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// How much is done.
    pub scale: Scale,
    /// The source of all choices.
    pub seed: u64,
}

/// The file systems of the remapping papers that are modelled, with the names that they have there.
pub(super) const FILE_SYSTEMS: [(HostKind, &str); 3] =
    [(HostKind::Ext4, "EXT4"), (HostKind::Cow, "BTRFS"), (HostKind::Log, "F2FS")];

/// A remapping layer as the papers' and Coulter's: a fifth more space than the file system sees.
pub(super) const REMAP: RemapOptions =
    RemapOptions { cleaning: Cleaning::CopyOut, spare_percent: 20 };

/// Programming a page of multi-level flash as one bit a cell. Not more than a cache's worth is
/// written to a fresh drive here, as in the papers.
const SLC_PROGRAM_NS: u64 = 220_000;

impl Setting {
    pub(super) fn pick(&self, short: u64, full: u64) -> u64 {
        match self.scale {
            Scale::Short => short,
            Scale::Full => full,
        }
    }

    /// A profile at this scale. Short ones have small erase blocks, so that there are as many.
    pub(super) fn drive(&self, name: &str) -> Profile {
        let mut profile = Profile::named(name).expect("it comes with the crate");
        if self.scale == Scale::Short {
            profile.geometry.pages_per_block = 16;
            profile.buffer_pages = 256;
        }
        profile.resized(self.pick(128 << 20, 1 << 30)).expect("these sizes are possible")
    }

    /// The S-LFS paper's board; at short scale a sixteenth of it, whose pool of replacements and
    /// spare space shrink less, since eight banks still want to be busy.
    pub(super) fn board(&self) -> Profile {
        let board = Profile::named("openssd").expect("it comes with the crate");
        if self.scale == Scale::Full {
            return board;
        }
        let mut board = board.resized(192 << 20).expect("possible");
        board.log_blocks = 12;
        board.map_cache_entries /= 16;
        board.with_spare_percent(15).expect("possible")
    }

    /// A fresh drive whose writes go to its SLC cache, files on a tenth of it, a page cache of a
    /// twelfth of the files: what the remapping papers measured, in proportion.
    pub(super) fn fresh(&self, drive: Profile, host: HostKind, workload: Workload) -> Run {
        let mut plan = Run::new(drive, FtlKind::PageMapped, workload);
        plan.host = host;
        plan.profile.program_ns = plan.profile.program_ns.min(SLC_PROGRAM_NS);
        plan.used_before_percent = 0;
        plan.fill_percent = 10;
        plan.ageing_percent = 0;
        plan.bytes = plan.profile.geometry.exported_bytes() / 10;
        plan.page_cache_blocks = plan.profile.geometry.host_blocks() / 120;
        // One head: F2FS has a single log for data of one kind.
        plan.log.stripes = 1;
        plan.seed = self.seed;
        plan
    }

    /// A drive in balance: used before and not trimmed, files on most of it, overwritten once.
    pub(super) fn worn(&self, drive: Profile, host: HostKind, workload: Workload) -> Run {
        let program_ns = drive.program_ns;
        let mut plan = self.fresh(drive, host, workload);
        plan.profile.program_ns = program_ns;
        plan.used_before_percent = 100;
        plan.fill_percent = 65;
        plan.ageing_percent = 100;
        plan.bytes = plan.profile.geometry.exported_bytes() / 4;
        plan
    }
}

pub(super) fn remapped(mut plan: Run) -> Run {
    plan.remap = Some(REMAP);
    plan
}

pub(super) fn measure(plan: &Run) -> Result<RunReport, RunError> {
    run(plan)
}

/// Mega (10^6) bytes that programs wrote per second.
pub(super) fn megabytes(report: &RunReport) -> f64 {
    report.user_bytes_per_second as f64 / 1e6
}

pub(super) fn f1(value: f64) -> String {
    format!("{value:.1}")
}

pub(super) fn f2(value: f64) -> String {
    format!("{value:.2}")
}

/// How much more than one, in percent.
pub(super) fn gain(ratio: f64) -> String {
    format!("{:+.1} %", (ratio - 1.0) * 100.0)
}

pub(super) fn bars(title: &str, labels: &[&str], series: Vec<(&str, Vec<f64>)>) -> Plot {
    plot(title, Shape::Bars, labels.iter().map(ToString::to_string).collect(), series)
}

pub(super) fn plot(
    title: &str,
    shape: Shape,
    labels: Vec<String>,
    series: Vec<(&str, Vec<f64>)>,
) -> Plot {
    let series: Vec<_> =
        series.into_iter().map(|(name, values)| (name.to_string(), values)).collect();
    for (_, values) in &series {
        assert_eq!(values.len(), labels.len(), "a value for every label");
    }
    Plot { title: title.to_string(), shape, labels, series }
}
