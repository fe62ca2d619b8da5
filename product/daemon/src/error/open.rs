//! About opening and closing the stores that are served.

use coulter_terminal::{self as terminal, Report, fault, usage};
use std::path::{Path, PathBuf};

/// When a volume cannot be of a size.
const ANOTHER_SIZE: &str = "name another --size, or none: then it is as large as the store allows";

/// About opening and closing stores.
#[derive(Debug)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what its name says of its variant")]
pub enum OpenError {
    /// Another program has the store; the command that takes it from a daemon of ours.
    InUse { path: PathBuf, reason: String, remedy: Option<String> },
    /// There is nothing at a path where only devices are.
    DeviceMissing { path: PathBuf },
    /// A symbolic link that leads to nothing.
    LinkToNothing { path: PathBuf, target: PathBuf },
    /// A path that is no text, where text is needed.
    PathNotText { path: PathBuf },
    /// There is no store at that path; `make` is the command that makes one, where that would do.
    StoreMissing { path: PathBuf, make: Option<&'static str> },
    /// The library refused to open a store.
    Refused { path: PathBuf, reason: String },
    /// There is no store in a file, nor anything else.
    Blank { path: PathBuf },
    /// There is no store in a file or on a disk, but something else.
    HoldsOther { path: PathBuf, what: &'static str },
    /// Neither a file nor a disk.
    NoStorePath { path: PathBuf },
    /// A file that is too small for a store.
    NoStore { path: PathBuf, size: u64 },
    /// A file without a byte.
    Empty { path: PathBuf },
    /// Its copy cannot be kept.
    NotReplicated { path: PathBuf, url: String, reason: String },
    /// A file that is, or would be, the cache of a copy's volume cannot be.
    NotCached { path: PathBuf, url: String, reason: String, help: &'static str },
    /// A cache in which something is still missing.
    CacheIncomplete { path: PathBuf },
    /// There is no copy to hand a volume over by.
    NoCopy { path: PathBuf, url: String, reason: String },
    /// The bucket for its copy cannot be opened.
    NoBucket { path: PathBuf, url: String, reason: String },
    /// A store was closed in order, and its copy could not be brought up to date.
    CopyBehind { path: PathBuf, url: String, reason: String },
    /// A store that is served does not grow.
    NotGrown { path: PathBuf, reason: String, is_usage: bool },
    /// A volume did not end in order.
    NotClosed { path: PathBuf, reason: String },
}

impl OpenError {
    /// What, why, and what to do.
    pub fn report(&self) -> Report {
        match self {
            OpenError::NotGrown { path, reason, is_usage } => {
                let what = format!("cannot let {} grow", path.display());
                let report = if *is_usage { usage(what).help(ANOTHER_SIZE) } else { fault(what) };
                report.why(reason.as_str())
            }
            OpenError::PathNotText { path } => usage(format!("cannot serve {}", path.display()))
                .why("its path is not UTF-8, and the entry of an attached volume is")
                .help("rename the file, or the directory that it lies in"),
            OpenError::DeviceMissing { path } => fault(format!("cannot use {}", path.display()))
                .why("there is no such device")
                .help("`lsblk` shows the devices that there are"),
            OpenError::LinkToNothing { path, target } => {
                fault(format!("cannot use {}", path.display()))
                    .why(format!(
                        "it is a symbolic link, and there is nothing at {} that it leads to",
                        target.display()
                    ))
                    .help("name the file itself, or make the link lead to it")
            }
            OpenError::StoreMissing { path, make } => missing(path, *make),
            OpenError::Refused { path, reason }
            | OpenError::InUse { path, reason, remedy: None } => {
                cannot_open(path).why(reason.as_str())
            }
            OpenError::InUse { path, reason, remedy: Some(remedy) } => cannot_open(path)
                .why(reason.as_str())
                .help(format!("first run `{remedy}`")),
            OpenError::NoStorePath { path } => no_store_path(path),
            OpenError::NoStore { path, size } => cannot_open(path)
                .why(format!("there is no store here: it has only {size} bytes"))
                .help("check the path"),
            OpenError::NoCopy { path, url, reason } => no_copy(path, url, reason),
            OpenError::Blank { path } => cannot_open(path)
                .why("there is no store here: the file holds nothing but zeros")
                .help(format!("`coulter create {}` makes one", terminal::word(path))),
            OpenError::HoldsOther { path, what } => cannot_open(path)
            .why(format!("there is no store here: it holds {what}"))
            .help(
                "check that the path is right; if a store was here and was overwritten, restore it \
                     from a backup",
            ),
            OpenError::Empty { path } => cannot_open(path)
                .why("there is no store here: it is empty")
                .help(format!("`coulter create {} --size 10G` makes one", terminal::word(path))),
            OpenError::NotReplicated { path, url, reason } => fault(format!(
                "cannot replicate {} to {url}",
                path.display()
            ))
            .why(reason.as_str())
            .help(
                "`coulter restore` brings the copy here; if this store is the one that counts, \
                         `--reseed` ships it anew",
            ),
            OpenError::CopyBehind { path, url, reason } => fault(format!(
                "the copy of {} at {url} is behind",
                path.display()
            ))
            .why(reason.as_str())
            .help(
                "the store is detached and whole; the next attach with `--replicate` ships what \
                         is missing",
            ),
            OpenError::NotCached { path, url, reason, help } => {
                fault(format!("cannot attach {url} with the cache {}", path.display()))
                    .why(reason.as_str())
                    .help(*help)
            }
            OpenError::CacheIncomplete { path } => cannot_open(path)
                .why("it is a cache in which a part of its volume is still missing")
                .help(format!(
                    "attach the volume with it: `coulter attach URL --cache {}`",
                    terminal::word(path)
                )),
            OpenError::NoBucket { path, url, reason } => fault(format!(
                "cannot replicate {} to {url}",
                path.display()
            ))
            .why(reason.as_str())
            .help(
                "check the URL and the access to it; the last directory of a `file://` URL is made",
            ),
            OpenError::NotClosed { path, reason } => {
                fault(format!("{} was not closed in order", path.display())).why(reason.as_str())
            }
        }
    }
}

fn cannot_open(path: &Path) -> Report {
    fault(format!("cannot open {}", path.display()))
}

fn missing(path: &Path, make: Option<&'static str>) -> Report {
    match make {
        None => cannot_open(path)
            .why("there is no such file or disk, and no volume of that name is attached")
            .help("check the path; `coulter list` shows the names of what is attached"),
        Some(make) => cannot_open(path).why("there is no such file or disk").help(format!(
            "check the path; `{make} {} --size 10G` makes a new one",
            terminal::word(path)
        )),
    }
}

fn no_store_path(path: &Path) -> Report {
    usage(format!("cannot open {}", path.display()))
        .why(match path.is_dir() {
            true => "it is a directory, and nothing of Coulter is mounted on it",
            false => "it is neither a file nor a block device",
        })
        .help("name the file or disk of a store")
}

fn no_copy(path: &Path, url: &str, reason: &str) -> Report {
    fault(format!("cannot move {} by {url}", path.display()))
        .why(reason)
        .help("check the URL; `coulter replicate NAME URL` makes a copy first")
}
