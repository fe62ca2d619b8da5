//! `coulter restore`: brings a copy back as a store in a file.

use crate::audibly::{self, Audibly};
use crate::error::{CliError, CopyError};
use crate::interrupt::Left;
use crate::room;
use crate::terminal::{self, BOLD};
use clap::Args;
use coulter_daemon::replication;
use coulter_object::bucket::Bucket;
use coulter_object::history::restore::{self, HalfMade};
use coulter_object::history::takeover::{self, Claim};
use coulter_object::layout::VolumeId;
use coulter_object::pieces::PieceMap;
use coulter_object::{
    ReplicaError, Url,
    history::{self, lineage, snapshot},
};
use coulter_terminal::Size;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Requests at once.
const THREADS: usize = 16;

/// Times that a copy is read anew because its host deleted meanwhile what was to be read.
const ATTEMPTS: usize = 20;

/// Restore a copy as a store in a file: its newest state, or a snapshot.
///
/// The result is a prefix of the writes to the store, with everything that was flushed with `--ack
/// remote`. After --take-over the other host cannot acknowledge requests any more, and `coulter
/// attach FILE --replicate URL` continues on this host.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter restore file:///mnt/backup/vol disk.img           the newest state
  coulter restore s3://bucket/vol@monday disk.img           a snapshot
  coulter restore s3://bucket/vol disk.img --take-over      and continue on this host")]
pub(crate) struct Restore {
    /// Copy to read, with @NAME for a snapshot
    #[arg(value_name = "URL[@SNAPSHOT]", value_parser = CopyName::parse)]
    pub(crate) copy: CopyName,

    /// File to make
    pub(crate) file: PathBuf,

    /// Move the volume to this host; the host that has it now is fenced
    #[arg(long)]
    pub(crate) take_over: bool,

    /// If commits are damaged or missing, go on from the state before them; what follows is given up
    #[arg(long, requires = "take_over")]
    pub(crate) despite_damage: bool,
}

/// A copy, or a snapshot of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CopyName {
    /// Where it is.
    pub(crate) url: Url,
    /// The snapshot.
    pub(crate) snapshot: Option<String>,
}

impl CopyName {
    pub(crate) fn parse(text: &str) -> Result<CopyName, String> {
        let (url, snapshot) = Url::with_snapshot(text).map_err(|error| error.to_string())?;
        let snapshot = snapshot.map(str::to_owned);
        if let Some(name) = &snapshot {
            snapshot::check_name(name).map_err(|error| error.to_string())?;
        }
        Ok(CopyName { url, snapshot })
    }

    /// A copy, without the name of a snapshot.
    pub(crate) fn parse_newest(text: &str) -> Result<CopyName, String> {
        let copy = CopyName::parse(text)?;
        match copy.snapshot {
            None => Ok(copy),
            Some(name) => Err(format!("it names the snapshot '{name}': leave '@{name}' away")),
        }
    }

    /// The state that it names.
    pub(crate) fn state(&self, bucket: &dyn Bucket) -> Result<State, ReplicaError> {
        let (record, pieces, commit) = match &self.snapshot {
            Some(name) => {
                let (record, manifest) = snapshot::read(bucket, name, &Audibly)?;
                (record, manifest.pieces, manifest.commit)
            }
            None => {
                let (record, history) = history::newest(bucket, &Audibly)?;
                history.refuse_nothing()?;
                (record, history.pieces, history.newest_commit)
            }
        };
        let (volume, size, commit) = (record.volume, record.device_size, commit.to_string());
        Ok(State { volume, pieces, size, commit })
    }

    /// Reads again what its host has replaced and deleted meanwhile.
    pub(crate) fn patiently<T>(
        &self,
        read: impl Fn() -> Result<T, ReplicaError>,
    ) -> Result<T, ReplicaError> {
        let mut attempt = 1;
        loop {
            match read() {
                Err(ReplicaError::Missing(_)) if attempt < ATTEMPTS => attempt += 1,
                other => return other,
            }
        }
    }

    /// Opens the bucket.
    pub(crate) fn open(&self) -> Result<std::sync::Arc<dyn Bucket>, CliError> {
        lineage::open(&self.url, false, &Audibly).map_err(|error| self.failed("open", error.into()))
    }

    /// An error about it.
    pub(crate) fn failed(&self, action: &'static str, error: ReplicaError) -> CliError {
        CopyError::Failed { action, url: self.to_string(), error }.into()
    }
}

/// A state of a copy.
pub(crate) struct State {
    pub(crate) volume: VolumeId,
    pub(crate) pieces: PieceMap,
    /// Bytes of the store.
    pub(crate) size: u64,
    /// The commit that it stands at.
    pub(crate) commit: String,
}

impl State {
    /// The state that a host goes on from.
    fn of(claim: &Claim) -> State {
        State {
            volume: claim.record.volume,
            pieces: claim.history.pieces.clone(),
            size: claim.record.device_size,
            commit: claim.after.to_string(),
        }
    }
}

/// Why a file is not made.
enum Unmade {
    /// An error of the copy.
    Copy(ReplicaError),
    /// An error of this host.
    Here(CliError),
}

impl From<CliError> for Unmade {
    fn from(error: CliError) -> Unmade {
        Unmade::Here(error)
    }
}

impl std::fmt::Display for CopyName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.snapshot {
            Some(name) => write!(f, "{}@{name}", self.url),
            None => self.url.fmt(f),
        }
    }
}

impl Restore {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        if self.take_over && self.copy.snapshot.is_some() {
            return Err(CopyError::TakesOverSnapshot { url: self.copy.to_string() }.into());
        }
        if self.file.symlink_metadata().is_ok() {
            return Err(CopyError::FileExists { path: self.file.clone() }.into());
        }
        let part = &part_of(&self.file);
        let why =
            format!("what was fetched by now is in {}, if that is there", terminal::path(part));
        Left::take_over(why, "the same command goes on from there, or begins anew".to_owned())?;
        let bucket = self.copy.open()?;
        let failed = |error| self.copy.failed("restore", error);
        if self.take_over {
            self.check_room(&*bucket, part)?;
        }
        let claim = self.take_over.then(|| self.claim(&*bucket)).transpose().map_err(failed)?;
        let (state, file) = self.make(part, &*bucket, claim.as_ref())?;
        if let Some(claim) = &claim {
            replication::adopt_marks(&self.file, claim).map_err(failed)?;
        }
        file.finish().map_err(|source| CliError::io("remove the notes of", part, source))?;
        self.tell(state.size, &state.commit)
    }

    /// Makes the file of a state, under another name until it is whole.
    fn make(
        &self,
        part: &Path,
        bucket: &dyn Bucket,
        claim: Option<&Claim>,
    ) -> Result<(State, HalfMade), CliError> {
        let failed = |error| self.copy.failed("restore", error);
        let mut half_made = None;
        let mut attempt = 1;
        loop {
            let state = match claim {
                Some(claim) => State::of(claim),
                None => self.copy.state(bucket).map_err(failed)?,
            };
            let file = match half_made.take() {
                Some(file) => file,
                None => open_part(part, state.volume)?,
            };
            let is_newest = self.copy.snapshot.is_none() && claim.is_none();
            match self.fill(part, &file, bucket, &state) {
                Ok(()) => return Ok((state, file)),
                // A newer state is there, and the host has deleted what only this one needed.
                Err(Unmade::Copy(ReplicaError::Missing(_))) if attempt < ATTEMPTS && is_newest => {
                    half_made = Some(file);
                }
                Err(Unmade::Copy(ReplicaError::Bucket(error))) if !file.is_empty() => {
                    let (url, part) = (self.copy.to_string(), part.to_owned());
                    return Err(CopyError::Unfinished { url, part, error }.into());
                }
                Err(error) => {
                    file.discard();
                    return Err(match error {
                        Unmade::Copy(error) => failed(error),
                        Unmade::Here(error) => error,
                    });
                }
            }
            attempt += 1;
        }
    }

    /// The directory of the new file.
    fn directory(&self) -> &Path {
        let parent = self.file.parent().filter(|parent| !parent.as_os_str().is_empty());
        parent.unwrap_or(Path::new("."))
    }

    /// Refuses a take-over whose state has no room here: after it no host could go on. A copy that
    /// cannot be read is looked at by the take-over itself.
    fn check_room(&self, bucket: &dyn Bucket, part: &Path) -> Result<(), CliError> {
        let state = match self.copy.state(bucket) {
            Ok(state) => state,
            Err(error @ ReplicaError::Bucket(_)) => return Err(self.copy.failed("restore", error)),
            Err(_) => return Ok(()),
        };
        let directory = self.directory();
        let Ok(left) = room::bytes_left(directory) else { return Ok(()) };
        let there = fs::metadata(part).map_or(0, |part| room::allocated(&part));
        let needed = state.pieces.total().saturating_sub(there);
        if needed > left {
            let (url, directory) = (self.copy.to_string(), directory.to_owned());
            return Err(CopyError::NoRoom { url, directory, needed, left }.into());
        }
        Ok(())
    }

    /// Takes the volume over.
    fn claim(&self, bucket: &dyn Bucket) -> Result<Claim, ReplicaError> {
        let owner = replication::owner_in_file(&self.file);
        let seen = replication::seconds_since_1970();
        let newest = history::newest(bucket, &Audibly);
        if self.despite_damage && newest.as_ref().is_err_and(ReplicaError::is_of_object) {
            let (claim, why) = takeover::claim_anyway(bucket, &owner, seen, &Audibly)?;
            claim.history.refuse_nothing()?;
            if let Some(why) = why {
                let after = claim.after;
                terminal::note(&format!(
                    "warning: what was written after commit {after} is given up: {why}"
                ));
            }
            return Ok(claim);
        }
        newest?.1.refuse_nothing()?;
        takeover::claim(bucket, &owner, seen, &Audibly)
    }

    /// Fetches what is missing, and gives the file its name.
    fn fill(
        &self,
        part: &Path,
        file: &HalfMade,
        bucket: &dyn Bucket,
        state: &State,
    ) -> Result<(), Unmade> {
        let io = |action| move |source| CliError::io(action, part, source);
        let total = state.pieces.total();
        let noted = file.prepare(&state.pieces, state.size).map_err(io("make"))?;
        if noted > 0 {
            terminal::note(&format!(
                "going on from {}, which an earlier restore has left: {} of {} are there, and are \
                 compared first",
                terminal::path(part),
                Size(noted),
                Size(total)
            ));
        }
        let bar = terminal::progress("restoring", total);
        audibly::beside(&bar);
        let progress = |bytes| bar.set_position(bytes);
        let (volume, pieces) = (state.volume, &state.pieces);
        let restored = restore::restore(bucket, volume, pieces, file, THREADS, &Audibly, &progress);
        bar.finish_and_clear();
        restored.map_err(Unmade::Copy)?;
        file.sync().map_err(io("write"))?;
        rename_new(part, &self.file).map_err(io("rename"))?;
        let directory = self.directory();
        let synced = File::open(directory).and_then(|directory| directory.sync_all());
        Ok(synced.map_err(|source| CliError::io("write", directory, source))?)
    }

    fn tell(&self, size: u64, commit: &str) -> Result<(), CliError> {
        let Restore { copy, file, .. } = self;
        terminal::print(&format!(
            "{BOLD}{}{BOLD:#} of {} from {copy}, commit {commit}",
            terminal::path(file),
            Size(size)
        ))?;
        if self.take_over {
            terminal::print(&format!(
                "The volume is this host's now: coulter attach {} --replicate {}",
                terminal::path(file),
                copy.url
            ))?;
        }
        Ok(())
    }
}

/// Gives a file its name, if nothing has that name by now.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // This file system cannot.
        Err(Errno::INVAL | Errno::NOSYS) => fs::rename(from, to),
        other => Ok(other?),
    }
}

/// The file under the name that it has until all of it is there.
fn open_part(part: &Path, volume: VolumeId) -> Result<HalfMade, CliError> {
    HalfMade::open(part, volume).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => CopyError::PartExists { path: part.to_owned() }.into(),
        _ => CliError::io("make", part, source),
    })
}

fn part_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_stands_behind_the_last_at_sign() {
        let copy = CopyName::parse("file:///a@b/vol@monday").expect("a snapshot");
        assert_eq!(copy.snapshot.as_deref(), Some("monday"));
        assert_eq!(copy.url, Url::Directory("/a@b/vol".into()));
        assert_eq!(copy.to_string(), "file:///a@b/vol@monday");
        assert_eq!(CopyName::parse("s3://one/two").expect("a copy").snapshot, None);
        CopyName::parse("s3://one/two@").expect_err("a snapshot has a name");
        CopyName::parse("nonsense").expect_err("no URL");
    }
}
