//! About opening and closing the stores that are served.

use coulter_terminal::{Report, fault, usage};
use std::path::PathBuf;

/// About opening and closing stores.
#[derive(Debug)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what its name says of its variant")]
pub enum OpenError {
    /// Somebody else has the store; as the volume of that name, if it is one of ours.
    InUse { path: PathBuf, reason: String, name: Option<String> },
    /// There is nothing at a path where only devices are.
    DeviceMissing { path: PathBuf },
    /// A symbolic link that leads to nothing.
    LinkToNothing { path: PathBuf, target: PathBuf },
    /// A path that is no text, where text is needed.
    PathNotText { path: PathBuf },
    /// There is no store to open at that path.
    StoreMissing { path: PathBuf },
    /// The library refused to open a store.
    Refused { path: PathBuf, reason: String },
    /// There is no store in a file, nor anything else.
    Blank { path: PathBuf },
    /// There is no store in a file or on a disk, but something else.
    HoldsOther { path: PathBuf, what: &'static str },
    /// A file without a byte.
    Empty { path: PathBuf },
    /// Its copy cannot be kept.
    NotReplicated { path: PathBuf, url: String, reason: String },
    /// A file that is, or would be, the cache of a copy's volume cannot be.
    NotCached { path: PathBuf, url: String, reason: String, help: &'static str },
    /// A cache in which something is still missing.
    CacheIncomplete { path: PathBuf },
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
                let report = if *is_usage { usage(what) } else { fault(what) };
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
            OpenError::StoreMissing { path } => fault(format!("cannot open {}", path.display()))
                .why("there is no such file or disk")
                .help(format!("make a store with `coulter create {} --size 10G`", path.display())),
            OpenError::Refused { path, reason } | OpenError::InUse { path, reason, name: None } => {
                fault(format!("cannot open {}", path.display())).why(reason.as_str())
            }
            OpenError::InUse { path, reason, name: Some(name) } => {
                fault(format!("cannot open {}", path.display()))
                    .why(reason.as_str())
                    .help(format!("first run `coulter detach {name}`"))
            }
            OpenError::Blank { path } => fault(format!("cannot open {}", path.display()))
                .why("there is no store here: the file holds nothing but zeros")
                .help(format!("`coulter create {}` makes one", path.display())),
            OpenError::HoldsOther { path, what } => fault(format!(
                "cannot open {}",
                path.display()
            ))
            .why(format!("there is no store here: it holds {what}"))
            .help(
                "check that the path is right; if a store was here and was overwritten, restore it \
                     from a backup",
            ),
            OpenError::Empty { path } => fault(format!("cannot open {}", path.display()))
                .why("there is no store here: it is empty")
                .help(format!("`coulter create {} --size 10G` makes one", path.display())),
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
            OpenError::CacheIncomplete { path } => fault(format!("cannot open {}", path.display()))
                .why("it is a cache in which a part of its volume is still missing")
                .help(format!(
                    "attach the volume with it: `coulter attach URL --cache {}`",
                    path.display()
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
