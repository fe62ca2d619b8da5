//! `coulter overlay list-orphans` and `adopt-orphan`: blocks in the store whose file below is not theirs any more.

use super::{served, told, told_with_help};
use crate::error::CliError;
use crate::terminal;
use clap::Args;
use coulter_fuse::files::overlay::{self, Fit};
use coulter_overlay::HIDDEN;
use coulter_terminal::Size;
use rustix::fs::{Advice, Timespec, Timestamps, UTIME_OMIT, fadvise, futimens};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// List files in the store that cannot be served: their file below is gone, was replaced or was changed.
///
/// Their blocks stay in the store until `coulter overlay adopt-orphan` gives them to a file.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter overlay list-orphans /srv/data
  coulter overlay list-orphans /srv/data --search    with the files that they may belong to")]
pub(super) struct ListOrphans {
    /// Directory that the overlay is over
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Search the directory for files that have the size and time of those that are gone
    #[arg(long)]
    search: bool,

    /// Print them as JSON
    #[arg(long)]
    json: bool,
}

/// Give the blocks of a file in the store to a file of the directory, which is served then.
///
/// If FILE does not exist it is made; what is not in the store is zeros. If FILE was restored from a backup,
/// the blocks in the store lie over what it holds: its size and time of modification must be those of the file
/// that is gone, unless `--force` is given.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter overlay adopt-orphan /srv/data 3 /srv/data/database    a restored file gets its blocks
  coulter overlay adopt-orphan /srv/data 3 /srv/data/found       a new file gets them; the rest is zeros")]
pub(super) struct AdoptOrphan {
    /// Directory that the overlay is over
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Number of the orphan in `list-orphans`
    #[arg(value_name = "NUMBER", value_parser = parse_number)]
    record: u32,

    /// File in the directory that gets the blocks
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Take FILE whatever its size and time: blocks of two versions may be mixed
    #[arg(long)]
    force: bool,
}

/// A file in the store that cannot be served. Documented in `docs/json.md`.
#[derive(Debug, Serialize, Deserialize)]
struct Orphan {
    record: u32,
    inode: u64,
    bytes: u64,
    size: u64,
    modified_seconds: i64,
    modified_nanoseconds: u32,
    lower_size: u64,
    lower_modified_seconds: i64,
    lower_modified_nanoseconds: u32,
    is_gone: bool,
    why: String,
    /// Files that look like the one below that is gone.
    #[serde(default)]
    candidates: Vec<PathBuf>,
}

/// One answer of the daemon.
#[derive(Deserialize)]
struct Listed {
    orphans: Vec<Orphan>,
    next: Option<u32>,
}

fn parse_number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "it is no number of `coulter overlay list-orphans`".to_owned())
}

fn orphans(directory: &Path) -> Result<Vec<Orphan>, CliError> {
    let failed = |source| CliError::io("list the orphans of", directory, source);
    let (mut all, mut next) = (Vec::new(), Some(0));
    while let Some(first) = next {
        let bytes = overlay::orphans(directory, first).map_err(failed)?;
        let listed: Listed = serde_json::from_slice(&bytes)
            .map_err(|error| failed(std::io::Error::new(ErrorKind::InvalidData, error)))?;
        all.extend(listed.orphans);
        next = listed.next;
    }
    Ok(all)
}

/// What a backup keeps of a file: size and time of modification.
type Likeness = (u64, i64, i64);

/// Files below `directory` that look like the ones that are gone.
fn search(directory: &Path, orphans: &mut [Orphan]) -> Result<(), CliError> {
    let mut wanted: HashMap<Likeness, Vec<usize>> = HashMap::new();
    for (at, orphan) in orphans.iter().enumerate() {
        let time = (orphan.lower_modified_seconds, i64::from(orphan.lower_modified_nanoseconds));
        wanted.entry((orphan.lower_size, time.0, time.1)).or_default().push(at);
    }
    let mut waiting = vec![directory.to_owned()];
    while let Some(place) = waiting.pop() {
        let failed = |source| CliError::io("search", &place, source);
        for entry in fs::read_dir(&place).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // What goes meanwhile is no candidate.
            let Ok(found) = entry.metadata() else { continue };
            if found.is_dir() && entry.file_name() != HIDDEN {
                waiting.push(entry.path());
            } else if found.is_file() {
                let likeness = (found.len(), found.mtime(), found.mtime_nsec());
                for at in wanted.get(&likeness).into_iter().flatten() {
                    orphans[*at].candidates.push(entry.path());
                }
            }
        }
    }
    Ok(())
}

impl ListOrphans {
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn run(&self) -> Result<(), CliError> {
        let directory = served(&self.directory)?;
        let mut orphans = orphans(&directory)?;
        if self.search {
            search(&directory, &mut orphans)?;
        }
        if self.json {
            return terminal::print_json(&orphans);
        }
        if orphans.is_empty() {
            return terminal::print("none");
        }
        for orphan in &orphans {
            terminal::print(&format!(
                "{}: {}; {} in the store of a file of {}, inode {}",
                orphan.record,
                orphan.why,
                Size(orphan.bytes),
                Size(orphan.size),
                orphan.inode,
            ))?;
            for path in &orphan.candidates {
                terminal::print(&format!("  may be {}", terminal::path(path)))?;
            }
        }
        Ok(())
    }
}

impl AdoptOrphan {
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn run(&self) -> Result<(), CliError> {
        let directory = served(&self.directory)?;
        let all = orphans(&directory)?;
        let Some(orphan) = all.into_iter().find(|orphan| orphan.record == self.record) else {
            let why = format!("it has no orphan {}", self.record);
            let help = format!("see `coulter overlay list-orphans {}`", terminal::word(&directory));
            return Err(told_with_help("cannot adopt from", &directory, why, help));
        };
        let (file, is_new) = self.open()?;
        let placed = self.check_place(&directory, &file);
        placed.and_then(|()| self.adopt(&file, is_new, &orphan)).inspect_err(|_| {
            if is_new {
                // The first error is the one to tell.
                let _ = fs::remove_file(&self.file);
            }
        })
    }

    /// The file, and whether it is new.
    fn open(&self) -> Result<(File, bool), CliError> {
        let failed = |source| CliError::io("open", &self.file, source);
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NOFOLLOW);
        match options.open(&self.file) {
            Ok(file) => Ok((file, false)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let made = options.mode(0o600).create_new(true).open(&self.file);
                made.map(|file| (file, true)).map_err(failed)
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// That the file is one of the overlay.
    fn check_place(&self, directory: &Path, file: &File) -> Result<(), CliError> {
        let failed = |source| CliError::io("look at", &self.file, source);
        let mount = fs::metadata(directory).map_err(failed)?.dev();
        if file.metadata().map_err(failed)?.dev() != mount {
            let why = format!("it is not below {}", directory.display());
            return Err(told("cannot adopt as", &self.file, why));
        }
        Ok(())
    }

    fn adopt(&self, file: &File, is_new: bool, orphan: &Orphan) -> Result<(), CliError> {
        let failed = |source| CliError::io("adopt as", &self.file, source);
        if is_new {
            file.set_len(orphan.size).map_err(failed)?;
        }
        // The kernel must not keep pages and a size that are the file's no more.
        file.sync_all().and_then(|()| drop_pages(file)).map_err(failed)?;
        let fit = match (is_new, self.force) {
            (true, _) => Fit::New,
            (false, true) => Fit::Any,
            (false, false) => Fit::Same,
        };
        overlay::adopt(file, orphan.record, fit).map_err(|error| self.refused(error))?;
        file.set_len(orphan.size)
            .and_then(|()| drop_pages(file))
            .and_then(|()| set_time(file, orphan.modified_seconds, orphan.modified_nanoseconds))
            .and_then(|()| file.sync_all())
            .map_err(failed)
    }

    fn refused(&self, error: std::io::Error) -> CliError {
        let (why, help) = match error.raw_os_error() {
            Some(libc::ESTALE) => (
                "its size or time of modification is not that of the file that is gone".to_owned(),
                "restore the version that the overlay was over, or mix them with --force"
                    .to_owned(),
            ),
            Some(libc::EEXIST) => (
                "blocks of it are in the store already".to_owned(),
                "name another file, or run `coulter overlay settle` first".to_owned(),
            ),
            _ => return CliError::io("adopt as", &self.file, error),
        };
        told_with_help("cannot adopt as", &self.file, why, help)
    }
}

/// Has the kernel forget what it keeps of a file that is synced.
fn drop_pages(file: &File) -> std::io::Result<()> {
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

fn set_time(file: &File, seconds: i64, nanoseconds: u32) -> std::io::Result<()> {
    let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let last_modification = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    Ok(futimens(file, &Timestamps { last_access, last_modification })?)
}
