//! `coulter dump`: prints a structure of a store as it lies on the device.

use super::check;
use crate::error::{CliError, StoreError};
use crate::named_store;
use crate::store::{self, LockedBlocks};
use crate::terminal::{self, Rows};
use clap::{Args, ValueEnum};
use coulter_check::dump::{self, MapRange, Outcome, SuperblockState};
use coulter_check::{FileBlocks, Finding, Severity};
use coulter_daemon::state::StateDirectory;
use serde::Serialize;
use std::fmt::Display;
use std::path::PathBuf;

/// Print the structures of a store, decoded, read-only.
///
/// Damage does not stop it: everything that can be decoded is printed, and the rest is reported on
/// standard error.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter dump disk.img superblock
  coulter dump disk.img map --blocks 0..1024
  coulter dump disk.img records --segment 7 --json | jq '.[-1]'")]
pub(crate) struct Dump {
    /// Store to read
    #[arg(value_parser = named_store::parser())]
    pub(crate) path: PathBuf,

    /// What to print
    #[arg(value_enum)]
    pub(crate) structure: Structure,

    /// Only this part of the map, in host blocks of 4 KiB; END is not included
    #[arg(long, value_name = "FIRST..END", value_parser = parse_range)]
    pub(crate) blocks: Option<MapRange>,

    /// Only the records in this segment
    #[arg(long, value_name = "INDEX")]
    pub(crate) segment: Option<u32>,

    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What can be printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Structure {
    /// Identity, geometry, format version, where the checkpoint is
    Superblock,
    /// The point from which recovery replays
    Checkpoint,
    /// Each segment with its state, stream and valid blocks
    Segments,
    /// Host address to device address, in runs
    Map,
    /// Every record of the log in the order of the device
    Records,
}

impl Structure {
    /// As it is written on the command line.
    fn word(self) -> &'static str {
        match self {
            Structure::Superblock => "superblock",
            Structure::Checkpoint => "checkpoint",
            Structure::Segments => "segments",
            Structure::Map => "map",
            Structure::Records => "records",
        }
    }
}

fn parse_range(text: &str) -> Result<MapRange, String> {
    let (first, end) = text.split_once("..").ok_or("write it as FIRST..END, such as 0..1024")?;
    let number = |text: &str, default| match text {
        "" => Ok(default),
        text => text.parse().map_err(|_| format!("'{text}' is not a block number")),
    };
    let range = MapRange { first: number(first, 0)?, end: number(end, u64::MAX)? };
    if range.first < range.end { Ok(range) } else { Err("the range is empty".to_owned()) }
}

impl Dump {
    pub(crate) fn run(&self, state: Option<&StateDirectory>) -> Result<(), CliError> {
        self.check_parts()?;
        let mut locked = LockedBlocks::open(&store::find(&self.path, state)?, state)?;
        let blocks = &mut locked.blocks;
        match self.structure {
            Structure::Superblock => {
                let Outcome { value, findings } = dump::superblock(blocks);
                let copies = value.unwrap_or_default();
                if self.json {
                    terminal::print_json(&copies)?;
                } else {
                    copies.iter().try_for_each(|copy| terminal::print(&copy.to_string()))?;
                }
                self.conclude(!copies.is_empty(), &findings)
            }
            Structure::Checkpoint => {
                let Outcome { value, findings } = dump::checkpoint(blocks);
                match &value {
                    Some(checkpoint) if self.json => terminal::print_json(checkpoint)?,
                    Some(checkpoint) => terminal::print(&checkpoint.to_string())?,
                    None => {}
                }
                self.conclude(value.is_some(), &findings)
            }
            Structure::Segments => {
                self.rows(blocks, |blocks, rows| dump::segments(blocks, |row| rows.show(row)))
            }
            Structure::Map => {
                let range = self.blocks.unwrap_or(MapRange::ALL);
                self.rows(blocks, |blocks, rows| dump::map(blocks, range, |row| rows.show(row)))
            }
            Structure::Records => {
                self.check_segment(blocks)?;
                self.rows(blocks, |blocks, rows| {
                    dump::records(blocks, self.segment, |row| rows.show(row))
                })
            }
        }
    }

    /// That what is printed has the part that was asked for.
    fn check_parts(&self) -> Result<(), CliError> {
        let parts = [
            ("--blocks", self.blocks.is_some(), Structure::Map),
            ("--segment", self.segment.is_some(), Structure::Records),
        ];
        let misplaced = parts.iter().find(|(_, is_given, of)| *is_given && *of != self.structure);
        misplaced.map_or(Ok(()), |(option, _, of)| {
            let (of, structure) = (of.word(), self.structure.word());
            Err(StoreError::NoSuchPart { option, of, structure }.into())
        })
    }

    /// That there is such a segment. If no superblock tells, what is read next says so.
    fn check_segment(&self, blocks: &mut FileBlocks) -> Result<(), CliError> {
        let Some(segment) = self.segment else { return Ok(()) };
        let copies = dump::superblock(blocks).value.unwrap_or_default();
        let count = copies.iter().find_map(|copy| match &copy.state {
            SuperblockState::Valid(fields) if fields.newest => Some(fields.segments),
            _ => None,
        });
        match count {
            Some(count) if segment >= count => {
                Err(StoreError::NoSuchSegment { path: self.path.clone(), segment, count }.into())
            }
            _ => Ok(()),
        }
    }

    fn rows<R: Serialize + Display>(
        &self,
        blocks: &mut FileBlocks,
        dump: impl FnOnce(&mut FileBlocks, &mut Rows<R>) -> Outcome<()>,
    ) -> Result<(), CliError> {
        let mut rows = Rows::new(self.json);
        let outcome = dump(blocks, &mut rows);
        rows.finish()?;
        self.conclude(outcome.value.is_some(), &outcome.findings)
    }

    /// Tells what was found wrong on the way.
    fn conclude(&self, found: bool, findings: &[Finding]) -> Result<(), CliError> {
        findings.iter().for_each(|finding| terminal::note(&check::line(finding)));
        let count = |severity| findings.iter().filter(|f| f.severity() == severity).count() as u64;
        let (faults, warnings) = (count(Severity::Fault), count(Severity::Warning));
        if found && faults == 0 {
            return Ok(());
        }
        let nothing = |finding: &Finding| {
            use Finding::{NoSuperblock, NotAStore, OtherFeatures, OtherVersion};
            matches!(finding, NoSuperblock | NotAStore | OtherFeatures { .. } | OtherVersion { .. })
        };
        // Where there is no superblock there is nothing more to be found.
        let complete = found || findings.iter().any(nothing);
        Err(StoreError::Faulty { path: self.path.clone(), faults, warnings, complete }.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_called_what_they_are_written_as() {
        for structure in Structure::value_variants() {
            let value = structure.to_possible_value().expect("none is hidden");
            assert_eq!(value.get_name(), structure.word());
        }
    }

    #[test]
    fn ranges_may_be_open_at_either_end_and_never_empty() {
        let range = |text| parse_range(text).map(|range| (range.first, range.end));
        assert_eq!(range("5..10"), Ok((5, 10)));
        assert_eq!(range("..10"), Ok((0, 10)));
        assert_eq!(range("5.."), Ok((5, u64::MAX)));
        for text in ["", "5", "10..5", "5..5", "a..b", "-1..5"] {
            assert!(range(text).is_err(), "{text}");
        }
    }
}
