//! `coulter-lab flash run`: a workload on an emulated drive, in virtual time.

use super::drive::{DriveOptions, parse, refused};
use crate::error::LabError;
use crate::terminal;
use clap::Args;
use coulter_cli::new_store::parse_percent;
use coulter_flash::{Cleaning, HostKind, RemapOptions, Run, RunError, Workload};
use coulter_terminal::Size;

/// Run a workload on a drive, and print its counters and the time
#[derive(Debug, Args)]
pub(crate) struct FlashRun {
    #[command(flatten)]
    pub(crate) drive: DriveOptions,

    /// The workload: uniform, sequential, zipf:THETA or hot:PERCENT:ACCESS_PERCENT, each with
    /// ,blocks=N and ,reads=PERCENT; or with files fio-seq, fio-rand, fio-read, ffsb:READS,
    /// postmark, tiobench, tpcc or varmail
    #[arg(long, default_value = "uniform", value_parser = parse::<Workload>)]
    pub(crate) workload: Workload,

    /// The file system under workloads with files: ext4, cow, lfs or slfs [default: ext4]
    #[arg(long, value_parser = parse::<HostKind>)]
    pub(crate) host: Option<HostKind>,

    /// Fill level of the drive [default: 100% of a bare drive, 75% with files]
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub(crate) fill: Option<u32>,

    /// Overwrites before measuring, as a share of the filled bytes
    #[arg(long, default_value = "100%", value_name = "PERCENT")]
    #[arg(value_parser = parse_percent)]
    pub(crate) ageing: u32,

    /// Bytes to write while measuring [default: the exported bytes]
    #[arg(long, value_name = "SIZE")]
    pub(crate) bytes: Option<Size>,

    /// Put a remapping layer below the file system, with this kind of cleaning: copy-out or
    /// hole-fill
    #[arg(long, value_name = "CLEANING", value_parser = parse_cleaning)]
    pub(crate) remap: Option<Cleaning>,

    /// Compare every read with the last write (bare drives only)
    #[arg(long)]
    pub(crate) verify: bool,

    /// Seed of the random generator
    #[arg(long, default_value = "1")]
    pub(crate) seed: u64,

    /// Print everything as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn parse_cleaning(text: &str) -> Result<Cleaning, String> {
    match text {
        "copy-out" => Ok(Cleaning::CopyOut),
        "hole-fill" => Ok(Cleaning::HoleFill),
        _ => Err("copy-out or hole-fill".to_owned()),
    }
}

impl FlashRun {
    pub(super) fn run(&self) -> Result<(), LabError> {
        self.check()?;
        let mut run = Run::new(self.drive.profile()?, self.drive.ftl, self.workload);
        run.options = self.drive.options();
        run.host = self.host.unwrap_or(run.host);
        run.remap = self.remap.map(|cleaning| RemapOptions { cleaning, spare_percent: 20 });
        run.fill_percent = self.fill.unwrap_or(run.fill_percent);
        run.ageing_percent = self.ageing;
        run.bytes = self.bytes.map_or(run.bytes, |size| size.0);
        run.seed = self.seed;
        run.verify = self.verify;
        let report = coulter_flash::run(&run).map_err(|error| {
            let is_usage = !matches!(error, RunError::WrongData { .. });
            refused(error.to_string(), is_usage)
        })?;
        if self.json { terminal::print_json(&report) } else { terminal::print(&report.table()) }
    }

    /// Checks that no option would be passed over.
    fn check(&self) -> Result<(), LabError> {
        let is_bare = matches!(self.workload, Workload::Blocks { .. });
        let reason = if is_bare && (self.host.is_some() || self.remap.is_some()) {
            "--host and --remap are for workloads with files, such as --workload postmark"
        } else if !is_bare && self.verify {
            "--verify is for a bare drive, as with --workload uniform"
        } else {
            return Ok(());
        };
        Err(refused(reason.to_owned(), true))
    }
}
