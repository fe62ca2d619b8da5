//! About copies elsewhere.

use coulter_object::ReplicaError;
use coulter_object::bucket::BucketErrorKind;
use coulter_object::names::PINS;
use coulter_terminal::{Report, fault, usage};
use std::path::PathBuf;

/// About copies elsewhere.
#[derive(Debug)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what its name says of its variant")]
pub enum CopyError {
    /// What was wanted of a copy failed.
    Failed { action: &'static str, url: String, error: ReplicaError },
    /// `restore` to where something is.
    FileExists { path: PathBuf },
    /// A file of an earlier `restore` to the same place, which was cut short or goes on.
    PartExists { path: PathBuf },
    /// A snapshot was to be named, and was not.
    NoName { url: String },
    /// `replica verify` has found damaged or missing objects.
    Faulty { url: String, faults: usize },
    /// States of two copies cannot be compared.
    OtherCopy { one: String, other: String },
    /// The URL of a copy in place of a store, without a cache.
    NoCache { url: String },
    /// A volume was to be named, and a URL was.
    UrlOfVolume { url: String },
    /// A file system cannot be frozen.
    NotFrozen { directory: PathBuf, reason: String },
    /// A file system that is to be frozen is not on the volume of the copy.
    OtherFileSystem { directory: PathBuf, url: String },
    /// A file system was thawed before the snapshot was made.
    ThawedEarly { directory: PathBuf },
    /// A cache of what is no copy.
    CacheOfStore { path: PathBuf },
    /// A copy cannot be attached as it was asked for.
    NotAttached { url: String, reason: String },
    /// A snapshot cannot be taken over.
    TakesOverSnapshot { url: String },
}

impl CopyError {
    /// What, why, and what to do.
    pub fn report(&self) -> Report {
        match self {
            CopyError::Failed { action, url, error } => {
                let report = match error {
                    ReplicaError::PinName(_) => usage(format!("cannot {action} {url}")),
                    _ => fault(format!("cannot {action} {url}")),
                };
                let report = report.why(error.to_string());
                match error {
                    ReplicaError::NoVolume => report.help(
                        "a copy is made by `coulter attach STORE --replicate URL`; is the URL the same?",
                    ),
                    ReplicaError::Nothing => report.help("wait for the first commit: `coulter status` of its host shows it"),
                    ReplicaError::NoPin(_) => {
                        report.help("`coulter snapshot list URL` names those that there are")
                    }
                    ReplicaError::InUse(_) => report.help(
                        "detach the volume there; or, if that host is lost or to be fenced, add `--take-over`",
                    ),
                    ReplicaError::Bucket(bucket) => report.maybe_help(on_bucket(bucket.kind).as_ref()),
                    ReplicaError::TakenOver => report.help("try again: somebody else was first"),
                    ReplicaError::Collected => report.help("try again"),
                    ReplicaError::Unfinished => report.help(
                        "run `coulter snapshot rollback` again; or attach the volume: then the newest state is what it was, and snapshots can be made of it",
                    ),
                    ReplicaError::HasClones(_) => report.help("delete the clones first: all objects below their URLs"),
                    ReplicaError::Missing(name) | ReplicaError::Damaged(name, _) if name == PINS => report.help(
                        "the volume goes on, without snapshots; ship it to another URL, and delete this copy then",
                    ),
                    ReplicaError::Gap(..) => report.help(
                        "ship the store anew with `--replicate URL --reseed`; if it is lost, restore a snapshot, or with \
                         `--take-over --despite-damage` the state before the missing commit",
                    ),
                    error if error.is_of_object() => report.help(
                        "restore an older snapshot, or ship the store anew with `--replicate URL --reseed`",
                    ),
                    _ => report,
                }
            }
            CopyError::FileExists { path } => {
                usage(format!("cannot restore to {}", path.display()))
                    .why("something is there already")
                    .help("name a file that is not there yet")
            }
            CopyError::PartExists { path } => {
                fault(format!("cannot make {}", path.display()))
                    .why("something is there already: another `restore` writes it, or one was killed")
                    .help("if no `restore` runs, delete it and try again")
            }
            CopyError::NoName { url } => usage(format!("cannot tell which snapshot of {url} is meant"))
                .why("the URL names the copy alone")
                .help("write its name behind the URL: `URL@NAME`"),
            CopyError::Faulty { url, faults } => {
                fault(format!("{url} is damaged: {faults} objects are damaged or missing")).help(
                    "restore a snapshot that is not named above, or ship the store anew with `--replicate URL --reseed`",
                )
            }
            CopyError::OtherCopy { one, other } => {
                usage(format!("cannot compare {one} with {other}"))
                    .why("they are states of two copies")
                    .help("name two states of one copy: `URL@A URL@B`")
            }
            CopyError::NoCache { url } => usage(format!("cannot attach {url}"))
                .why("a volume that is attached from its copy needs a local file as cache")
                .help("add `--cache FILE`"),
            CopyError::UrlOfVolume { url } => {
                usage("cannot tell which volume is to be replicated".to_owned())
                    .why(format!("{url} is a copy"))
                    .help("write `coulter replicate NAME URL`; of a URL alone there are --status and --verify")
            }
            CopyError::NotFrozen { directory, reason } => {
                fault(format!("cannot freeze the file system at {}", directory.display()))
                    .why(reason.as_str())
                    .help("without `--freeze` the snapshot is as after a power cut")
            }
            CopyError::OtherFileSystem { directory, url } => {
                usage(format!("cannot freeze the file system at {}", directory.display()))
                    .why(format!("it is not on a volume that this host ships to {url}"))
                    .help("name a directory of a file system on the volume; in a virtual machine use fsfreeze(8) there")
            }
            CopyError::ThawedEarly { directory } => fault(format!(
                "the snapshot was not made, or given up: {} was thawed before",
                directory.display()
            ))
            .why("the copy did not have everything in time")
            .help("see `coulter status`, or allow more with `--freeze-max`"),
            CopyError::CacheOfStore { path } => {
                usage(format!("cannot attach {} with a cache", path.display()))
                    .why("it is a store itself, and `--cache` belongs to the URL of a copy")
                    .help("leave `--cache` away, or name s3://BUCKET/VOLUME or file:///DIRECTORY/VOLUME")
            }
            CopyError::NotAttached { url, reason } => {
                usage(format!("cannot attach {url}")).why(reason.as_str())
            }
            CopyError::TakesOverSnapshot { url } => usage(format!("cannot take over {url}"))
                .why("a snapshot is of the past, and only the newest state can go on")
                .help("leave `--take-over` away, or `@NAME`"),
        }
    }
}

fn on_bucket(kind: BucketErrorKind) -> Option<String> {
    let help = match kind {
        BucketErrorKind::NoBucket => {
            "check the URL; a directory that serves as the bucket must exist"
        }
        BucketErrorKind::Busy => {
            "check that the service runs and the network reaches it: AWS_ENDPOINT_URL names where \
             it is; try again then"
        }
        BucketErrorKind::Denied => {
            "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, the rights that go with them, and the \
             clock"
        }
        _ => return None,
    };
    Some(help.to_owned())
}
