//! `coulter salvage`: takes out of a damaged store what can be taken out.

use super::check;
use crate::error::{CliError, StoreError};
use crate::image::Image;
use crate::interrupt::Interrupt;
use crate::named_store;
use crate::store::{self, LockedBlocks};
use crate::terminal::{self, BOLD};
use clap::Args;
use coulter_check::salvage::{self, Options, Range, Salvage as Outcome, SalvageError, State};
use coulter_check::{Phase, Progress, Report};
use coulter_daemon::state::StateDirectory;
use coulter_system::private;
use coulter_terminal::Size;
use serde::Serialize;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

const BLOCK_SIZE: u64 = coulter::service::BLOCK_SIZE;

/// Extract data from a damaged store, read-only.
///
/// Use it for a store that cannot be attached, or that has unreadable blocks. IMAGE becomes a copy
/// of the volume, byte for byte, as far as its content is known. Where the map is damaged, the
/// records in the log tell the newest version of a block. A block is written to the image only if
/// its checksum, which is bound to its address, is right. Lost blocks are zeros. The exit code is 1
/// if a block is lost or in doubt.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter salvage disk.img volume.img                     to a sparse file
  coulter salvage disk.img volume.img --map volume.map    and map the state of each byte
  coulter salvage /dev/sdb /dev/sdc --force               to another disk
  fsck -n volume.img && mount -o ro,loop volume.img /mnt  then")]
pub(crate) struct Salvage {
    /// Store to read; it must not be attached
    #[arg(value_parser = named_store::parser())]
    pub(crate) path: PathBuf,

    /// File to make, or disk to overwrite
    pub(crate) image: PathBuf,

    /// Write a map of the image in the format of GNU ddrescue: + as it was, ? in doubt, - lost
    #[arg(long, value_name = "FILE")]
    pub(crate) map: Option<PathBuf>,

    /// Overwrite IMAGE even if it holds data
    #[arg(long)]
    pub(crate) force: bool,

    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What `salvage --json` prints.
#[derive(Serialize)]
struct Salvaged<'a> {
    store: PathBuf,
    image: &'a Path,
    whole: bool,
    volume_size_bytes: u64,
    as_it_was_bytes: u64,
    in_doubt_bytes: u64,
    unknown_bytes: u64,
    lost_bytes: u64,
    records_missing: u64,
    stale_max_bytes: u64,
    report: &'a Report,
}

impl Salvage {
    pub(crate) fn run(&self, state: Option<&StateDirectory>) -> Result<(), CliError> {
        let path = store::find(&self.path, state)?;
        let mut blocks = LockedBlocks::open(&path, state)?;
        let size = salvage::volume_blocks(&mut blocks.blocks);
        let size = size.map_err(|error| self.failed(error))? * BLOCK_SIZE;
        let interrupt = Interrupt::take_over()?;
        let map = self.map.as_deref().map(make_map).transpose()?;
        let mut image = Image::make(&self.image, &path, size, self.force, interrupt)?;
        let outcome = take(&mut blocks, &mut image);
        if let Some(refusal) = image.take_refusal() {
            return Err(refusal);
        }
        let outcome = outcome.map_err(|error| self.failed(error))?;
        image.keep()?;
        if let (Some(path), Some(file)) = (&self.map, map) {
            let written = write_map(file, &outcome.ranges, size);
            written.map_err(|source| CliError::io("write", path, source))?;
        }
        self.tell(path, &outcome)
    }

    fn tell(&self, store: PathBuf, outcome: &Outcome) -> Result<(), CliError> {
        let bytes = |blocks: u64| blocks * BLOCK_SIZE;
        if self.json {
            terminal::print_json(&Salvaged {
                store,
                image: &self.image,
                whole: outcome.is_whole(),
                volume_size_bytes: bytes(outcome.volume_blocks),
                as_it_was_bytes: bytes(outcome.whole_blocks),
                in_doubt_bytes: bytes(outcome.found_blocks),
                unknown_bytes: bytes(outcome.unknown_blocks),
                lost_bytes: bytes(outcome.lost_blocks),
                records_missing: outcome.records_missing,
                stale_max_bytes: bytes(outcome.stale_max),
                report: &outcome.report,
            })?;
        } else {
            for finding in &outcome.report.findings {
                terminal::print(&check::line(finding))?;
            }
            let taken = outcome.whole_blocks + outcome.found_blocks;
            terminal::print(&format!(
                "{BOLD}{}{BOLD:#} taken out to {}: {} as it was, {} in doubt; {} lost",
                Size(bytes(taken)),
                terminal::path(&self.image),
                Size(bytes(outcome.whole_blocks)),
                Size(bytes(outcome.found_blocks)),
                Size(bytes(outcome.lost_blocks)),
            ))?;
        }
        if outcome.is_whole() {
            return Ok(());
        }
        Err(StoreError::NotAllSalvaged {
            path: self.path.clone(),
            in_doubt: bytes(outcome.found_blocks),
            unknown: bytes(outcome.unknown_blocks),
            lost: bytes(outcome.lost_blocks),
            records_missing: outcome.records_missing,
            stale_max: bytes(outcome.stale_max),
        }
        .into())
    }

    fn failed(&self, error: SalvageError) -> CliError {
        let report = match error {
            SalvageError::NoSuperblock(report) => report,
            other => {
                let source = std::io::Error::other(other.to_string());
                return CliError::io("write", &self.image, source);
            }
        };
        let findings = report.findings.iter().map(ToString::to_string).collect();
        StoreError::NothingToSalvage { path: self.path.clone(), findings }.into()
    }
}

fn take(blocks: &mut LockedBlocks, image: &mut Image) -> Result<Outcome, SalvageError> {
    let bar = terminal::progress_of_count("", 1);
    let mut phase = None;
    let mut show = |progress: Progress| {
        let what = match progress.phase {
            Phase::Metadata | Phase::Map => "taking out what the map tells",
            Phase::Log => "reading the log",
            Phase::Detail => "taking out what the log tells",
        };
        if phase.replace(progress.phase) != Some(progress.phase) {
            bar.reset();
            bar.set_length(progress.total);
            bar.set_message(what);
        }
        bar.set_position(progress.done);
    };
    let mut options = Options { progress: Some(&mut show), ..Options::default() };
    let outcome = salvage::salvage(&mut blocks.blocks, image, &mut options);
    bar.finish_and_clear();
    outcome
}

/// Made before anything is taken out: what cannot be written is better known at once.
fn make_map(path: &Path) -> Result<File, CliError> {
    private::create_new(path).map_err(|source| CliError::io("make", path, source))
}

/// Says of each byte of the image what is known of it, as GNU ddrescue does.
fn write_map(file: File, ranges: &[Range], size: u64) -> std::io::Result<()> {
    let mut out = BufWriter::new(&file);
    writeln!(out, "# Mapfile. Created by coulter {}", env!("CARGO_PKG_VERSION"))?;
    writeln!(
        out,
        "# +  as it was    ?  may be outdated, or zeros where data were    -  lost, zeros here"
    )?;
    writeln!(out, "# current_pos  current_status  current_pass")?;
    writeln!(out, "{:#014x}     +               1", 0)?;
    writeln!(out, "#      pos        size  status")?;
    let mut line = |start: u64, end: u64, status: char| match end > start {
        true => writeln!(out, "{start:#014x}  {:#014x}  {status}", end - start),
        false => Ok(()),
    };
    let mut at = 0;
    for range in ranges {
        let (start, end) = (range.lba * BLOCK_SIZE, (range.lba + range.blocks) * BLOCK_SIZE);
        line(at, start, '+')?;
        let status = match range.state {
            State::Found | State::Unknown => '?',
            State::Lost => '-',
        };
        line(start, end, status)?;
        at = end;
    }
    line(at, size, '+')?;
    out.flush()?;
    drop(out);
    file.sync_all()
}
