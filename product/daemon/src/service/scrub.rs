//! What is known of the scrubs of a store: how far the latest one is, and what it has found.
//!
//! It is kept in a file of the store's, so that a scrub goes on where it was when the volume is
//! attached again, after a crash or a boot too.
//!
//! Invariants:
//! - The file is written to a temporary one and renamed: a reader sees all of it or none.
//! - What it says is behind what was read, never ahead: some of it may be read twice.

use crate::error::Error;
use crate::life::state::StateDirectory;
use coulter::scrub::{
    FINDINGS_MAX, Scrub, ScrubFinding, ScrubOrder, ScrubRate, ScrubState, Trouble,
};
use coulter_system::{private, seekable};
use coulter_terminal::Size;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Where the files are if the state directory is root's, which does not outlive a boot.
const KEPT: &str = "/var/lib/coulter";
const NOT_KEPT: &str = "/run/coulter";

/// How often it is written down how far a scrub is.
const SAVED_EVERY: Duration = Duration::from_secs(5);

/// Damaged places that `status` shows; all that are kept are in its JSON.
const DAMAGE_SHOWN: usize = 8;

/// What is asked of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScrubAction {
    /// Begin, or go on with the one that was stopped.
    Start {
        /// Bytes per second; `None` for the default.
        rate: Option<u64>,
        /// From the beginning, whatever was stopped before.
        anew: bool,
    },
    /// End it where it is.
    Stop,
    /// Only tell.
    Tell,
    /// Look at what the newest checkpoint lists, at its body and at the superblocks, and at no
    /// data. The latest scrub stays what it was; one that goes on does this by itself.
    Metadata,
    /// Tell of the last [`ScrubAction::Metadata`].
    TellMetadata,
}

/// What a scrub is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// There was none.
    #[default]
    Never,
    /// It goes on.
    Running,
    /// It was stopped before its end.
    Stopped,
    /// It has gone through everything.
    Done,
}

/// A damaged place. Documented in `docs/json.md`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    /// `data`, or the part of the metadata.
    pub part: String,
    /// Byte of the volume of `data`, else of the store.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// What is wrong.
    pub trouble: String,
    /// Whether it was written anew.
    pub repaired: bool,
}

/// What is known of the latest scrub. Documented in `docs/json.md`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubFacts {
    /// What it is at.
    pub state: Stage,
    /// When it began, in seconds since 1970.
    pub started_at_unix_seconds: u64,
    /// When it had gone through everything; 0 before.
    pub finished_at_unix_seconds: u64,
    /// Bytes per second that it may read; 0 for any number.
    pub rate_bytes_per_second: u64,
    /// Bytes of the volume up to which it has come.
    pub position_bytes: u64,
    /// Bytes of the volume.
    pub volume_size_bytes: u64,
    /// Bytes of the volume that were read and compared.
    pub checked_bytes: u64,
    /// Bytes of metadata that were read and compared.
    pub metadata_checked_bytes: u64,
    /// Bytes of the volume that cannot be read.
    pub damaged_bytes: u64,
    /// Blocks of metadata that were damaged.
    pub metadata_damaged: u64,
    /// Of these, those that were written anew.
    pub metadata_repaired: u64,
    /// Where, the first of them.
    pub damage: Vec<Damage>,
}

impl ScrubFacts {
    /// Whether there is damage that was not repaired.
    pub fn is_damaged(&self) -> bool {
        self.damaged_bytes > 0 || self.metadata_damaged > self.metadata_repaired
    }

    /// The lines of `status`.
    pub(crate) fn write_lines(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  scrub      {self}")?;
        let mut shown = self.damage.iter().take(DAMAGE_SHOWN);
        shown.try_for_each(|damage| writeln!(f, "             {damage}"))
    }

    /// The same with what was read since.
    fn with(&self, scrub: &Scrub) -> ScrubFacts {
        assert!(scrub.metadata_repaired <= scrub.metadata_damaged, "whole blocks were repaired");
        let mut damage = self.damage.clone();
        damage.extend(scrub.findings.iter().map(|finding| Damage::of(*finding)));
        damage.truncate(FINDINGS_MAX);
        ScrubFacts {
            state: match scrub.state {
                ScrubState::Never => self.state,
                ScrubState::Running => Stage::Running,
                ScrubState::Stopped => Stage::Stopped,
                ScrubState::Done => Stage::Done,
            },
            position_bytes: scrub.position_bytes,
            checked_bytes: self.checked_bytes + scrub.checked_bytes,
            metadata_checked_bytes: self.metadata_checked_bytes + scrub.metadata_checked_bytes,
            damaged_bytes: self.damaged_bytes + scrub.damaged_bytes,
            metadata_damaged: self.metadata_damaged + scrub.metadata_damaged,
            metadata_repaired: self.metadata_repaired + scrub.metadata_repaired,
            damage,
            ..*self
        }
    }
}

impl Damage {
    fn of(finding: ScrubFinding) -> Damage {
        let words = |trouble| match trouble {
            Trouble::Damaged => "checksum mismatch".to_owned(),
            Trouble::Unreadable(errno) => io::Error::from_raw_os_error(errno).to_string(),
            Trouble::Lost => "its map page is damaged".to_owned(),
            Trouble::Differs { used } => format!(
                "it matches its checksum and differs from the other copy, at byte {} of the store, which matches too and \
                 is used: compare the volume with a backup",
                used.byte_offset()
            ),
        };
        match finding {
            ScrubFinding::Range { offset, length, trouble } => Damage {
                part: "data".to_owned(),
                offset,
                length,
                trouble: words(trouble),
                repaired: false,
            },
            ScrubFinding::Metadata { part, offset, trouble, is_repaired } => Damage {
                part: part.name().to_owned(),
                offset,
                length: coulter::service::BLOCK_SIZE,
                trouble: words(trouble),
                repaired: is_repaired,
            },
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage { part, offset, length, trouble, repaired } = self;
        let place = if part == "data" { "volume" } else { "store" };
        write!(f, "{part} at byte {offset} of the {place}, {}: {trouble}", Size(*length))?;
        if *repaired { write!(f, "; repaired") } else { Ok(()) }
    }
}

impl fmt::Display for ScrubFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = match self.volume_size_bytes {
            0 => 100,
            size => u128::from(self.position_bytes) * 100 / u128::from(size),
        };
        match self.state {
            Stage::Never => return write!(f, "never"),
            Stage::Running => write!(f, "running, {percent}%")?,
            Stage::Stopped => write!(f, "stopped at {percent}%")?,
            Stage::Done => write!(f, "done")?,
        }
        write!(f, ", {} compared", Size(self.checked_bytes + self.metadata_checked_bytes))?;
        match self.damaged_bytes {
            0 => write!(f, ", no data damaged")?,
            damaged => write!(f, ", {} of data damaged", Size(damaged))?,
        }
        if self.metadata_damaged > 0 {
            write!(
                f,
                ", {} of {} damaged metadata blocks repaired",
                self.metadata_repaired, self.metadata_damaged
            )?;
        }
        Ok(())
    }
}

/// What a daemon keeps of the scrubs of its store.
pub(crate) struct Scrubs {
    file: PathBuf,
    /// As it was when the latest one began or went on.
    before: ScrubFacts,
    now: ScrubFacts,
    saved: Option<Instant>,
    /// Whether one has been begun since the store was opened.
    is_begun: bool,
}

/// What a volume answers to an order; `None` if it is none that can be scrubbed.
pub(crate) type Ask<'a> = &'a dyn Fn(ScrubOrder) -> Option<Scrub>;

impl Scrubs {
    /// The scrubs of the store with this UUID. A scrub that the end of its daemon interrupted is
    /// continued.
    pub(crate) fn resume(state: &StateDirectory, uuid: &str, size: u64, ask: Ask<'_>) -> Scrubs {
        assert!(!uuid.contains('/'), "the file of a scrub outside of its directory");
        let file = directory(state.path()).join(format!("{uuid}.scrub"));
        let kept: Option<ScrubFacts> =
            seekable::read(&file).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let mut now = kept.unwrap_or_default();
        now.volume_size_bytes = size;
        let goes_on = now.state == Stage::Running;
        let mut scrubs = Scrubs { file, before: now.clone(), now, saved: None, is_begun: false };
        if goes_on {
            log::info!(position = scrubs.now.position_bytes; "the scrub goes on");
            scrubs.begin(ask);
        }
        scrubs
    }

    /// How far the latest one is.
    pub(crate) fn facts(&self) -> &ScrubFacts {
        &self.now
    }

    /// Does what is asked. `None` if there is nothing that could be scrubbed.
    pub(crate) fn act(&mut self, action: ScrubAction, ask: Ask<'_>) -> Option<ScrubFacts> {
        self.look(ask)?;
        match action {
            ScrubAction::Start { rate, anew } => self.start(rate, anew, ask),
            ScrubAction::Stop => {
                ask(ScrubOrder::Stop)?;
                self.look(ask)?;
                // It was going on when another daemon ended, and could not be begun here.
                if self.now.state == Stage::Running {
                    self.now.state = Stage::Stopped;
                }
                self.save();
            }
            ScrubAction::Tell => {}
            ScrubAction::Metadata | ScrubAction::TellMetadata => {
                return self.look_at_metadata(action == ScrubAction::Metadata, ask);
            }
        }
        Some(self.now.clone())
    }

    fn look_at_metadata(&mut self, begins: bool, ask: Ask<'_>) -> Option<ScrubFacts> {
        if self.is_begun && self.now.state == Stage::Running {
            return Some(self.now.clone());
        }
        let from_bytes = self.now.volume_size_bytes;
        let scrub = match begins {
            true => {
                // What it does from here on is no part of the latest scrub.
                self.is_begun = false;
                ask(ScrubOrder::Start { from_bytes, rate: ScrubRate::NONE })?
            }
            false => ask(ScrubOrder::Tell)?,
        };
        let nothing = ScrubFacts { volume_size_bytes: from_bytes, ..ScrubFacts::default() };
        Some(nothing.with(&scrub))
    }

    fn start(&mut self, rate: Option<u64>, anew: bool, ask: Ask<'_>) {
        if anew {
            ask(ScrubOrder::Stop);
        }
        let goes_on = self.now.state == Stage::Running && self.is_begun && !anew;
        if !goes_on {
            let resumes = !anew && matches!(self.now.state, Stage::Stopped | Stage::Running);
            if !resumes {
                let volume_size_bytes = self.now.volume_size_bytes;
                let started_at_unix_seconds = unix_seconds();
                self.now = ScrubFacts {
                    volume_size_bytes,
                    started_at_unix_seconds,
                    ..ScrubFacts::default()
                };
            }
            self.before = self.now.clone();
        }
        let rate = rate.or(ScrubRate::default().bytes_per_second()).unwrap_or(0);
        self.before.rate_bytes_per_second = rate;
        self.begin(ask);
    }

    /// Has the volume go on from where the latest one is.
    fn begin(&mut self, ask: Ask<'_>) {
        let rate = match self.before.rate_bytes_per_second {
            0 => ScrubRate::NONE,
            rate => ScrubRate::limited_to(rate).unwrap_or_default(),
        };
        let from_bytes = self.before.position_bytes;
        if let Some(scrub) = ask(ScrubOrder::Start { from_bytes, rate }) {
            self.is_begun = true;
            self.now = self.before.with(&scrub);
            self.save();
        }
    }

    /// Now and then: looks how far it is, and writes it down.
    pub(crate) fn watch(&mut self, ask: Ask<'_>) {
        if self.now.state != Stage::Running || self.look(ask).is_none() {
            return;
        }
        let is_due = self.saved.is_none_or(|saved| saved.elapsed() >= SAVED_EVERY);
        if is_due && self.now.state == Stage::Running {
            self.save();
        }
    }

    fn look(&mut self, ask: Ask<'_>) -> Option<()> {
        let scrub = ask(ScrubOrder::Tell)?;
        if !self.is_begun {
            return Some(());
        }
        let known = self.now.damage.len();
        let was_done = self.now.state == Stage::Done;
        self.now = ScrubFacts {
            finished_at_unix_seconds: self.now.finished_at_unix_seconds,
            ..self.before.with(&scrub)
        };
        for damage in &self.now.damage[known.min(self.now.damage.len())..] {
            log::error!(damage:%; "a scrub has found damage");
        }
        if self.now.state == Stage::Done && !was_done {
            self.now.finished_at_unix_seconds = unix_seconds();
            let facts = &self.now;
            log::info!(facts:%; "the scrub has gone through everything");
            self.save();
        }
        Some(())
    }

    /// Before the volume ends: the next daemon goes on from here.
    pub(crate) fn end(&mut self, ask: Ask<'_>) {
        if self.now.state == Stage::Running {
            self.look(ask);
            self.save();
        }
    }

    fn save(&mut self) {
        self.saved = Some(Instant::now());
        if let Err(error) = self.try_save() {
            log::warn!(error:%; "how far the scrub is cannot be written down");
        }
    }

    fn try_save(&self) -> Result<(), Error> {
        let failed = |source| Error::io("write", &self.file, source);
        if let Some(directory) = self.file.parent() {
            private::create_directories(directory).map_err(failed)?;
        }
        let text = serde_json::to_vec(&self.now).map_err(|error| failed(error.into()))?;
        let temporary = self.file.with_extension("scrub-new");
        let mut file = private::open(&temporary).map_err(failed)?;
        file.set_len(0).and_then(|()| file.write_all(&text)).map_err(failed)?;
        fs::rename(&temporary, &self.file).map_err(failed)
    }
}

/// Where files are that outlive a boot.
fn directory(state: &Path) -> PathBuf {
    PathBuf::from(if state == Path::new(NOT_KEPT) { Path::new(KEPT) } else { state })
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
