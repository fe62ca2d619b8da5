//! `coulter flash`: the emulator of flash drives.

use crate::error::{CliError, SystemError};
use crate::size::Size;
use crate::terminal;
use clap::{Args, Subcommand};
use coulter_flash::{
    Cleaning, FtlKind, HostKind, Placement, Profile, ProfileError, RemapOptions, Run, RunError,
    VictimPolicy, Workload,
};

/// Emulate flash drives: what a drive, its translation layer and a file system make of a workload
///
/// Times are virtual: the same command prints the same numbers on every machine. docs/flash.md
/// explains the model and what it cannot tell.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter flash run --ftl page --profile sata-tlc --workload uniform --json
  coulter flash run --ftl sftl --profile openssd --workload varmail --host slfs
  coulter flash run --ftl dftl --profile my-drive.profile --workload zipf:0.99,reads=30")]
pub(crate) struct Flash {
    #[command(subcommand)]
    pub(crate) what: What,
}

/// What to do with an emulated drive.
#[derive(Debug, Subcommand)]
pub(crate) enum What {
    Run(Box<FlashRun>),
}

/// Run a workload on a drive, and print what was counted and how long it took
#[derive(Debug, Args)]
pub(crate) struct FlashRun {
    /// The translation layer: page, dftl, bast, fast, redo or sftl
    #[arg(long, default_value = "page", value_parser = parse::<FtlKind>)]
    pub(crate) ftl: FtlKind,

    /// The drive: sata-tlc, nvme-tlc, qlc-iu16k, sd-card, openssd, tiny, or a file like those in
    /// crates/flash/profiles
    #[arg(long, default_value = "sata-tlc", value_name = "NAME|FILE")]
    pub(crate) profile: String,

    /// What is done: uniform, sequential, zipf:THETA or hot:PERCENT:ACCESS_PERCENT, each with
    /// ,blocks=N and ,reads=PERCENT; or with files fio-seq, fio-rand, fio-read, ffsb:READS, postmark,
    /// tiobench, tpcc or varmail
    #[arg(long, default_value = "uniform", value_parser = parse::<Workload>)]
    pub(crate) workload: Workload,

    /// The file system under workloads with files: ext4, cow, lfs or slfs
    #[arg(long, default_value = "ext4", value_parser = parse::<HostKind>)]
    pub(crate) host: HostKind,

    /// Bytes that the drive exports [default: the profile's]
    #[arg(long)]
    pub(crate) size: Option<Size>,

    /// Spare flash, as a share of what is exported [default: the profile's]
    #[arg(long, value_name = "PERCENT", value_parser = super::create::parse_percent)]
    pub(crate) spare: Option<u32>,

    /// How full the drive is [default: 100% of a bare drive, 75% with files]
    #[arg(long, value_name = "PERCENT", value_parser = super::create::parse_percent)]
    pub(crate) fill: Option<u32>,

    /// Overwrites before measuring, as a share of what is filled
    #[arg(long, default_value = "100%", value_name = "PERCENT")]
    #[arg(value_parser = super::create::parse_percent)]
    pub(crate) ageing: u32,

    /// Bytes to write while measuring [default: as many as the drive exports]
    #[arg(long, value_name = "SIZE")]
    pub(crate) bytes: Option<Size>,

    /// Entries of DFTL's map cache [default: the profile's]
    #[arg(long, value_name = "COUNT")]
    pub(crate) map_cache: Option<u32>,

    /// Log or replacement blocks [default: the profile's]
    #[arg(long, value_name = "COUNT")]
    pub(crate) log_blocks: Option<u32>,

    /// What the page map and DFTL collect first: greedy, cost-benefit or oldest
    #[arg(long, default_value = "greedy", value_parser = parse::<VictimPolicy>)]
    pub(crate) victims: VictimPolicy,

    /// Put a remapping layer under the file system that cleans in this way: copy-out or hole-fill
    #[arg(long, value_name = "CLEANING", value_parser = parse_cleaning)]
    pub(crate) remap: Option<Cleaning>,

    /// Keep first writes and overwrites apart (page map only)
    #[arg(long)]
    pub(crate) hot_cold: bool,

    /// Compare every read with what was last written (bare drives only)
    #[arg(long)]
    pub(crate) verify: bool,

    /// The source of all choices
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

fn parse<T: std::str::FromStr>(text: &str) -> Result<T, String>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error: T::Err| error.to_string())
}

impl Flash {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        match &self.what {
            What::Run(run) => run.run(),
        }
    }
}

impl FlashRun {
    fn run(&self) -> Result<(), CliError> {
        let mut profile = load_profile(&self.profile)?;
        self.adapt(&mut profile).map_err(|error| refused(error.to_string(), true))?;
        let mut run = Run::new(profile, self.ftl, self.workload);
        run.host = self.host;
        run.options.victims = self.victims;
        run.remap = self.remap.map(|cleaning| RemapOptions { cleaning, spare_percent: 20 });
        if self.hot_cold {
            run.options.placement = Placement::HotCold;
        }
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

    fn adapt(&self, profile: &mut Profile) -> Result<(), ProfileError> {
        if let Some(size) = self.size {
            *profile = profile.clone().resized(size.0)?;
        }
        if let Some(percent) = self.spare {
            *profile = profile.clone().with_spare_percent(percent)?;
        }
        profile.map_cache_entries = self.map_cache.unwrap_or(profile.map_cache_entries);
        profile.log_blocks = self.log_blocks.unwrap_or(profile.log_blocks);
        profile.check()
    }
}

/// A profile that comes with the program, or that is in a file.
fn load_profile(name: &str) -> Result<Profile, CliError> {
    let unknown = match Profile::named(name) {
        Ok(profile) => return Ok(profile),
        Err(error) => error,
    };
    let path = std::path::Path::new(name);
    if !path.exists() {
        return Err(refused(unknown.to_string(), true));
    }
    let text = std::fs::read_to_string(path).map_err(|error| CliError::io("read", path, error))?;
    Profile::parse(&text).map_err(|error| refused(format!("{name}: {error}"), true))
}

fn refused(reason: String, is_usage: bool) -> CliError {
    SystemError::Bench { name: "the emulated drive", reason, is_usage }.into()
}
