//! What to simulate, step by step: made from a seed, shrunk when it fails, written down as text.
//!
//! A plan says everything; whatever is random while it runs follows from numbers in its steps. So a
//! step can be taken out without changing what the others mean.
//!
//! ```text
//! coulter-sim plan 1
//! store segments=28 segment_blocks=256 volume=900 journal=1024 runs=4 map=0 trim=0 placement=apart reclaim=threaded references=16 spare=20 prepare=space
//! write 12 3
//! write 15 1 fua
//! many 12+3 40-512 99+1 fua   one write of several ranges: + stores blocks, - discards them
//! discard 0 512
//! read 12 4
//! presence 12 4        which of the blocks are mapped
//! flush
//! run 9 4711           nine device commands complete, in an order that follows from 4711
//! drain                all that was begun comes to its end
//! tune idle            see Setting
//! scrub                all that counts is read and compared, while the rest goes on
//! fault rot 3          see Fault
//! reclaim hole-fill    space is reclaimed in another way from now on
//! place mixed          which blocks share segments from now on
//! configure 100 14 greedy 16   from the next opening on: frames of the map besides what recovery may
//!                      need, record buffers, how the cleaner chooses, records that are referred to
//! grow 5               the device gets room for five segments more, taken in at the next opening
//! ruin header-and-payload 7   damages metadata as soon as the store is not open: see Ruin; the store is opened degraded
//!                      from then on
//! shutdown
//! cut sectors 99 17,3  the power goes; again after 17 and after 3 commands of opening
//! ```

use crate::device::Loss;
use coulter_engine::Prepare;
use coulter_engine::many::{self, ChangesError};
use coulter_engine::placement::Placement;
use coulter_engine::policy::VictimPolicy;
use coulter_engine::reclaim::Reclaim;
use coulter_engine::{Change, ChangeKind};
use coulter_format::Lba;
use std::fmt;

/// Spare space of a store, in percent, unless its plan says otherwise.
pub const SPARE_PERCENT: u32 = 20;

/// The version that a plan's first line names.
pub const VERSION: u32 = 1;

/// The store that a plan works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Segments.
    pub segments: u64,
    /// Blocks of a segment.
    pub segment_blocks: u32,
    /// Blocks of the volume; 0 for as many as fit.
    pub volume: u64,
    /// Spare space of a volume that is as large as it can be, in percent of it.
    pub spare: u32,
    /// Updates between checkpoints.
    pub journal: u32,
    /// Runs alive.
    pub runs: u32,
    /// Bytes of map memory; 0 for the default, 1 for the least.
    pub map: u64,
    /// Whether freed segments are discarded on the device.
    pub trim: bool,
    /// Which blocks share segments.
    pub placement: Placement,
    /// How space is reclaimed, at first.
    pub reclaim: Reclaim,
    /// Blocks from which on checkpoints refer to a record; 0 for never.
    pub references: u32,
    /// What the device does for segments before they are written.
    pub prepare: Prepare,
    /// If the volume is sparse: how.
    pub sparse: Option<SparseShape>,
    /// Blocks in a page of the flash below that the store knows of: what is written to one may be lost when the
    /// power goes, with all that lies there. 1 if it knows of none.
    pub page_blocks: u32,
    /// Whether the device writes each page whole or not at all, says so, and partly dead pages are padded.
    pub pads: bool,
}

/// A volume with more addresses than blocks. A plan's addresses go on from 0 to `volume`; in the store
/// each [`WINDOW`] of them lies at a multiple of `spread`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SparseShape {
    /// Addresses from one window to the next.
    pub spread: u64,
    /// Blocks that may be mapped, if they lie densely.
    pub capacity: u64,
    /// Roots that may be in use.
    pub roots: u32,
    /// Checkpoints list pages of the list of roots.
    pub lists: bool,
}

/// Addresses of a sparse volume that lie together.
pub const WINDOW: u64 = 64;

impl Shape {
    /// Where an address of the plan lies in the store.
    pub fn place(&self, lba: u64) -> u64 {
        match self.sparse {
            None => lba,
            Some(sparse) => lba / WINDOW * sparse.spread + lba % WINDOW,
        }
    }

    /// Addresses from here on that lie together in the store, `count` at most.
    pub fn together(&self, lba: u64, count: u64) -> u64 {
        if self.sparse.is_some() { count.min(WINDOW - lba % WINDOW) } else { count }
    }
}

/// What goes wrong with the device, besides losing what was not flushed when the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The n-th read from now fails.
    ReadError,
    /// The n-th write from now fails; part of it may have been written.
    WriteError,
    /// The n-th flush from now fails.
    FlushError,
    /// The n-th flush from now fails, and some of what no flush has covered is gone.
    Forgets,
    /// The same, but reads show it until the engine ends.
    ForgetsLater,
    /// The n-th write from now is acknowledged and never arrives: later reads return stale blocks.
    Lost,
    /// The n-th write from now goes to another place.
    Misdirected,
    /// A block rots now, chosen by n.
    Rot,
}

/// What is damaged while the store is not open: of all there is, the one chosen by a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruin {
    /// One copy of a page of the segment table, a block of a run or a root page.
    Copy,
    /// Both copies of a page of the segment table.
    Table,
    /// Both copies of a block of a run.
    Run,
    /// Both copies of a root page.
    Root,
    /// A leaf page.
    Leaf,
    /// A header that the checkpoint refers to.
    Referred,
    /// Two of one group.
    ReferredPair,
    /// The header of a record behind the checkpoint, of which a later one attests that it was durable.
    Header,
    /// The same, with the first block of its payload.
    HeaderAndPayload,
    /// The headers of two records in a row, and the first blocks of their payload.
    Headers,
}

/// What an operator, or a clock, tells the engine about cleaning. An opening begins without any of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Cleaning needs an allowance; a little of one comes when nothing else happens.
    Limited,
    /// It needs none.
    Unlimited,
    /// It waits for as long as the host need not.
    Held,
    /// It no longer does.
    Free,
    /// The host is idle, or so it is said.
    Idle,
    /// It is not.
    Busy,
    /// Cleaning goes on until nothing is worth it.
    Drain,
    /// Nothing is cleaned but what the host needs.
    Paused,
    /// In step with the host's writes.
    Paced,
    /// What is scattered is put in the host's order.
    Defrag,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The host writes.
    Write {
        /// First block.
        lba: u64,
        /// Blocks.
        count: u64,
        /// Durable when answered.
        fua: bool,
    },
    /// The host writes several ranges at once.
    WriteMany {
        /// The ranges.
        changes: Vec<Change>,
        /// Durable when answered.
        fua: bool,
    },
    /// The host discards.
    Discard {
        /// First block.
        lba: u64,
        /// Blocks.
        count: u64,
    },
    /// The host reads.
    Read {
        /// First block.
        lba: u64,
        /// Blocks.
        count: u64,
    },
    /// The host asks which blocks are mapped.
    Presence {
        /// First block.
        lba: u64,
        /// Blocks.
        count: u64,
    },
    /// The host flushes.
    Flush,
    /// Device commands complete.
    Run {
        /// How many at most.
        events: u32,
        /// What their order and delays follow from.
        seed: u64,
    },
    /// Everything that was begun comes to its end.
    Drain,
    /// An operator changes a setting.
    Tune(Setting),
    /// The engine begins to read all that counts and to compare it.
    Scrub,
    /// The device misbehaves.
    Fault(Fault, u64),
    /// Metadata is damaged the next time the store is not open.
    Ruin(Ruin, u64),
    /// Space is reclaimed in another way.
    Reclaim(Reclaim),
    /// Other blocks share segments.
    Place(Placement),
    /// The store is opened otherwise from the next time on.
    Configure {
        /// Frames of map memory beside what recovery may need.
        frames: u64,
        /// Record buffers.
        records: u16,
        /// How the cleaner chooses.
        victims: VictimPolicy,
        /// Blocks from which on checkpoints refer to a record; 0 for never.
        references: u32,
    },
    /// The device becomes larger by so many segments, and the store by as much with the next opening.
    Grow(u64),
    /// A shutdown in order, and opening anew.
    Shutdown,
    /// The power goes, and the store is opened anew.
    Cut {
        /// What is lost.
        loss: Loss,
        /// What the loss follows from.
        seed: u64,
        /// The power goes again after so many commands of opening, each time.
        again: Vec<u32>,
    },
}

impl Step {
    /// Where the blocks end that it asks for; 0 if it asks for none.
    pub fn end(&self) -> u64 {
        let end = |change: &Change| change.lba.0 + u64::from(change.count);
        match self {
            Step::Write { lba, count, .. }
            | Step::Discard { lba, count }
            | Step::Read { lba, count }
            | Step::Presence { lba, count } => lba + count,
            Step::WriteMany { changes, .. } => changes.iter().map(end).max().unwrap_or(0),
            _ => 0,
        }
    }
}

/// A whole plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The store.
    pub shape: Shape,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

impl Plan {
    /// Segments by which the device grows in all.
    pub fn growth(&self) -> u64 {
        let segments = |step: &Step| if let Step::Grow(segments) = step { *segments } else { 0 };
        self.steps.iter().map(segments).sum()
    }
}

/// Why a text is no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// The first line does not say that it is one.
    NotAPlan,
    /// It is of another version.
    Version {
        /// The version found.
        found: String,
    },
    /// A line cannot be understood.
    Line {
        /// Its number, from 1.
        number: usize,
        /// The line.
        text: String,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::NotAPlan => {
                write!(f, "this is no plan: its first line is not `coulter-sim plan {VERSION}`")
            }
            PlanError::Version { found } => write!(
                f,
                "the plan is of version {found}, and this program runs version {VERSION}: run it with \
                 the program that wrote it"
            ),
            PlanError::Line { number, text } => {
                write!(f, "line {number} of the plan cannot be understood: {text}")
            }
        }
    }
}

impl std::error::Error for PlanError {}

const LOSSES: [(&str, Loss); 5] = [
    ("nothing", Loss::Nothing),
    ("everything", Loss::Everything),
    ("writes", Loss::SomeWrites),
    ("blocks", Loss::SomeBlocks),
    ("sectors", Loss::SomeSectors),
];

const FAULTS: [(&str, Fault); 8] = [
    ("read-error", Fault::ReadError),
    ("write-error", Fault::WriteError),
    ("flush-error", Fault::FlushError),
    ("forgets", Fault::Forgets),
    ("forgets-later", Fault::ForgetsLater),
    ("lost", Fault::Lost),
    ("misdirected", Fault::Misdirected),
    ("rot", Fault::Rot),
];

/// All ways to ruin metadata, each with its name.
pub const RUINS: [(&str, Ruin); 10] = [
    ("copy", Ruin::Copy),
    ("table", Ruin::Table),
    ("run", Ruin::Run),
    ("root", Ruin::Root),
    ("leaf", Ruin::Leaf),
    ("referred", Ruin::Referred),
    ("referred-pair", Ruin::ReferredPair),
    ("header", Ruin::Header),
    ("header-and-payload", Ruin::HeaderAndPayload),
    ("headers", Ruin::Headers),
];

/// All settings, each with its name.
pub const SETTINGS: [(&str, Setting); 10] = [
    ("limited", Setting::Limited),
    ("unlimited", Setting::Unlimited),
    ("held", Setting::Held),
    ("free", Setting::Free),
    ("idle", Setting::Idle),
    ("busy", Setting::Busy),
    ("drain", Setting::Drain),
    ("paused", Setting::Paused),
    ("paced", Setting::Paced),
    ("defrag", Setting::Defrag),
];

const PREPARES: [(&str, Prepare); 3] =
    [("never", Prepare::Never), ("blocks", Prepare::Blocks), ("space", Prepare::Space)];

const PLACEMENTS: [(&str, Placement); 4] = [
    ("mixed", Placement::Mixed),
    ("apart", Placement::Apart),
    ("lifetime", Placement::Lifetime),
    ("scattered", Placement::Scattered),
];

fn name_of<T: PartialEq>(names: &[(&'static str, T)], value: &T) -> &'static str {
    names.iter().find(|(_, named)| named == value).map_or("", |(name, _)| name)
}

fn by_name<T: Copy>(names: &[(&str, T)], name: &str) -> Option<T> {
    names.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { segments, segment_blocks, volume, journal, runs, map, .. } = self;
        let Shape { spare, trim, placement, reclaim, references, prepare, .. } = self;
        let prepare = name_of(&PREPARES, prepare);
        let placement = name_of(&PLACEMENTS, placement);
        let trim = u8::from(*trim);
        write!(
            f,
            "segments={segments} segment_blocks={segment_blocks} volume={volume} journal={journal} \
             runs={runs} map={map} trim={trim} placement={placement} reclaim={reclaim} \
             references={references} spare={spare} prepare={prepare}"
        )?;
        if let Some(SparseShape { spread, capacity, roots, lists }) = self.sparse {
            write!(f, " spread={spread} capacity={capacity} roots={roots}")?;
            if lists {
                write!(f, " lists=1")?;
            }
        }
        if self.page_blocks > 1 {
            write!(f, " page_blocks={}", self.page_blocks)?;
        }
        if self.pads {
            write!(f, " pads=1")?;
        }
        Ok(())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Write { lba, count, fua } => {
                write!(f, "write {lba} {count}{}", if *fua { " fua" } else { "" })
            }
            Step::WriteMany { changes, fua } => {
                f.write_str("many")?;
                for Change { lba, count, kind } in changes {
                    let sign = if *kind == ChangeKind::Write { '+' } else { '-' };
                    write!(f, " {}{sign}{count}", lba.0)?;
                }
                f.write_str(if *fua { " fua" } else { "" })
            }
            Step::Discard { lba, count } => write!(f, "discard {lba} {count}"),
            Step::Read { lba, count } => write!(f, "read {lba} {count}"),
            Step::Presence { lba, count } => write!(f, "presence {lba} {count}"),
            Step::Flush => f.write_str("flush"),
            Step::Run { events, seed } => write!(f, "run {events} {seed}"),
            Step::Drain => f.write_str("drain"),
            Step::Scrub => write!(f, "scrub"),
            Step::Tune(setting) => write!(f, "tune {}", name_of(&SETTINGS, setting)),
            Step::Fault(fault, number) => write!(f, "fault {} {number}", name_of(&FAULTS, fault)),
            Step::Ruin(ruin, number) => write!(f, "ruin {} {number}", name_of(&RUINS, ruin)),
            Step::Reclaim(reclaim) => write!(f, "reclaim {reclaim}"),
            Step::Place(placement) => write!(f, "place {}", name_of(&PLACEMENTS, placement)),
            Step::Configure { frames, records, victims, references } => {
                write!(f, "configure {frames} {records} {victims} {references}")
            }
            Step::Grow(segments) => write!(f, "grow {segments}"),
            Step::Shutdown => f.write_str("shutdown"),
            Step::Cut { loss, seed, again } => {
                write!(f, "cut {} {seed}", name_of(&LOSSES, loss))?;
                let again: Vec<_> = again.iter().map(u32::to_string).collect();
                if again.is_empty() { Ok(()) } else { write!(f, " {}", again.join(",")) }
            }
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "coulter-sim plan {VERSION}\nstore {}", self.shape)?;
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

fn parse_shape(words: &[&str]) -> Option<Shape> {
    let word =
        |name: &str| words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let number = |name: &str| word(name)?.parse::<u64>().ok();
    Some(Shape {
        segments: number("segments")?,
        segment_blocks: number("segment_blocks")?.try_into().ok()?,
        volume: number("volume")?,
        journal: number("journal")?.try_into().ok()?,
        runs: number("runs")?.try_into().ok()?,
        map: number("map")?,
        trim: number("trim")? != 0,
        placement: match word("placement") {
            Some(name) => by_name(&PLACEMENTS, name)?,
            // Plans that are older than the choice.
            None => Placement::Apart,
        },
        reclaim: match word("reclaim") {
            Some(name) => name.parse().ok()?,
            None => Reclaim::CopyOut,
        },
        references: match word("references") {
            Some(blocks) => blocks.parse().ok()?,
            None => 0,
        },
        spare: match word("spare") {
            Some(percent) => percent.parse().ok()?,
            None => SPARE_PERCENT,
        },
        prepare: match word("prepare") {
            Some(name) => by_name(&PREPARES, name)?,
            None => Prepare::Never,
        },
        sparse: match word("spread") {
            Some(spread) => Some(SparseShape {
                spread: spread.parse().ok().filter(|spread| *spread >= WINDOW)?,
                capacity: number("capacity")?,
                roots: number("roots")?.try_into().ok()?,
                lists: word("lists") == Some("1"),
            }),
            None => None,
        },
        page_blocks: match word("page_blocks") {
            Some(blocks) => blocks.parse().ok()?,
            None => 1,
        },
        pads: word("pads") == Some("1"),
    })
}

/// Whether these are ranges that can be written at once.
pub(crate) fn check_changes(changes: &[Change]) -> Result<(), ChangesError> {
    many::check(changes, &mut Vec::new())
}

fn parse_change(word: &str) -> Option<Change> {
    let kind = if word.contains('+') { ChangeKind::Write } else { ChangeKind::Discard };
    let (lba, count) = word.split_once(['+', '-'])?;
    Some(Change { lba: Lba(lba.parse().ok()?), count: count.parse().ok()?, kind })
}

fn parse_step(words: &[&str]) -> Option<Step> {
    let number = |index: usize| words.get(index)?.parse::<u64>().ok();
    let counted = |step| number(2).filter(|count| *count > 0).map(|_| step);
    Some(match *words.first()? {
        "write" => {
            let fua = words.get(3) == Some(&"fua");
            counted(Step::Write { lba: number(1)?, count: number(2)?, fua })?
        }
        "many" => {
            let fua = words.last() == Some(&"fua");
            let changes = &words[1..words.len() - usize::from(fua)];
            let changes: Option<Vec<_>> = changes.iter().map(|word| parse_change(word)).collect();
            let changes = changes.filter(|changes| check_changes(changes).is_ok())?;
            Step::WriteMany { changes, fua }
        }
        "discard" => counted(Step::Discard { lba: number(1)?, count: number(2)? })?,
        "read" => counted(Step::Read { lba: number(1)?, count: number(2)? })?,
        "presence" => counted(Step::Presence { lba: number(1)?, count: number(2)? })?,
        "flush" => Step::Flush,
        "run" => Step::Run { events: number(1)?.try_into().ok()?, seed: number(2)? },
        "drain" => Step::Drain,
        "scrub" => Step::Scrub,
        "tune" => Step::Tune(by_name(&SETTINGS, words.get(1)?)?),
        "fault" => Step::Fault(by_name(&FAULTS, words.get(1)?)?, number(2)?),
        "ruin" => Step::Ruin(by_name(&RUINS, words.get(1)?)?, number(2)?),
        "reclaim" => Step::Reclaim(words.get(1)?.parse().ok()?),
        "place" => Step::Place(by_name(&PLACEMENTS, words.get(1)?)?),
        "configure" => Step::Configure {
            frames: number(1)?,
            records: number(2)?.try_into().ok()?,
            victims: words.get(3)?.parse().ok()?,
            references: words.get(4).map_or(Some(0), |blocks| blocks.parse().ok())?,
        },
        "grow" => Step::Grow(number(1)?),
        "shutdown" => Step::Shutdown,
        "cut" => {
            let again = words.get(3).map_or(Some(Vec::new()), |list| {
                list.split(',').map(|word| word.parse().ok()).collect()
            })?;
            Step::Cut { loss: by_name(&LOSSES, words.get(1)?)?, seed: number(2)?, again }
        }
        _ => return None,
    })
}

impl std::str::FromStr for Plan {
    type Err = PlanError;

    /// Reads a plan. Empty lines and what follows a `#` do not count.
    fn from_str(text: &str) -> Result<Plan, PlanError> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or("").trim());
        let mut lines = (1..).zip(lines).filter(|(_, line)| !line.is_empty());
        let (_, first) = lines.next().ok_or(PlanError::NotAPlan)?;
        let version = first.strip_prefix("coulter-sim plan ").ok_or(PlanError::NotAPlan)?;
        if version != VERSION.to_string() {
            return Err(PlanError::Version { found: version.to_owned() });
        }
        let mut shape = None;
        let mut steps = Vec::new();
        for (number, line) in lines {
            let wrong = || PlanError::Line { number, text: line.to_owned() };
            let words: Vec<_> = line.split_whitespace().collect();
            match (words.first(), &shape) {
                (Some(&"store"), None) => shape = Some(parse_shape(&words).ok_or_else(wrong)?),
                (_, None) => return Err(wrong()),
                (_, Some(_)) => steps.push(parse_step(&words).ok_or_else(wrong)?),
            }
        }
        let wrong = PlanError::Line { number: 2, text: "there is no store".to_owned() };
        Ok(Plan { shape: shape.ok_or(wrong)?, steps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_as_it_was_written() {
        for seed in 0..50 {
            let plan = crate::generate::plan(seed);
            assert_eq!(plan.to_string().parse(), Ok(plan));
        }
    }

    #[test]
    fn other_versions_and_nonsense_are_refused_with_a_reason() {
        let refused = |text: &str| text.parse::<Plan>().expect_err("refused").to_string();
        assert!(refused("").contains("no plan"));
        assert!(refused("coulter-sim plan 7\n").contains("version 7"));
        let start = "coulter-sim plan 1\nstore segments=28 segment_blocks=256 volume=9 journal=1024 \
                     runs=4 map=0 trim=0\n";
        assert!(start.parse::<Plan>().is_ok());
        assert!(refused(&format!("{start}write 3")).contains("line 3"));
        assert!(refused(&format!("{start}many 3+2 4-1")).contains("line 3"), "ranges overlap");
        assert!(refused(&format!("{start}many fua")).contains("line 3"), "there is no range");
        assert!(refused(&format!("{start}fly 3")).contains("fly 3"));
    }
}
