//! About copies elsewhere.

use coulter_object::ReplicaError;
use coulter_object::bucket::{BucketError, BucketErrorKind};
use coulter_object::names::PINS;
use coulter_terminal::{Size, fault, quoted, usage};
use std::path::{Path, PathBuf};

coulter_terminal::reports! {
    /// About copies elsewhere.
    pub enum CopyError {
        /// What was wanted of a copy failed.
        Failed { action: &'static str, url: String, error: ReplicaError } =>
            by(match error {
                ReplicaError::PinName(_) => usage(format!("cannot {action} {url}")),
                _ => fault(format!("cannot {action} {url}")),
            })
            .why("{error}")
            .maybe_help(advice_on(error, url));
        /// A copy was to be cloned to where one is.
        CloneTaken { from: String, to: String } =>
            fault("cannot clone {from} to {to}")
            .why("there is a volume at {to} already")
            .help("name another URL for the clone");
        /// `restore` was given up by its service, and what was fetched is kept.
        Unfinished { url: String, part: PathBuf, error: BucketError } =>
            fault("cannot restore {url}")
            .why("{error}")
            .maybe_help(Some(advice_on_unfinished(error.kind, url, part)));
        /// `restore` to where something is.
        FileExists { path: PathBuf } =>
            fault("cannot restore to {}", path.display())
            .why("something is there already")
            .help("name a file that is not there yet");
        /// A file of an earlier `restore` to the same place, which was cut short or goes on.
        PartExists { path: PathBuf } =>
            fault("cannot make {}", path.display())
            .why("something is there already: another `restore` writes it, or it is of another \
                copy")
            .help("if no `restore` runs, delete it and try again");
        /// A take-over to a file system that is too full for it.
        NoRoom { url: String, directory: PathBuf, needed: u64, left: u64 } =>
            fault("cannot take over {url}")
            .why("its state takes {}, and the file system of {} has {} left", Size(*needed),
                directory.display(), Size(*left))
            .help("name a file on another file system; the volume is still its host's");
        /// A snapshot was to be named, and was not.
        NoName { url: String } =>
            usage("cannot tell which snapshot of {url} is meant")
            .why("the URL names the copy alone")
            .help("write its name behind the URL: `URL@NAME`");
        /// `replica verify` has found damaged or missing objects.
        Faulty { url: String, faults: usize } =>
            fault("{url} is damaged: {faults} objects are damaged or missing")
            .help("restore a snapshot that is not named above, or ship the store anew with \
                `--replicate URL --reseed`");
        /// States of two copies cannot be compared.
        OtherCopy { one: String, other: String } =>
            usage("cannot compare {one} with {other}")
            .why("they are states of two copies")
            .help("name two states of one copy: `URL@A URL@B`");
        /// The URL of a copy in place of a store, without a cache.
        NoCache { url: String } =>
            usage("cannot attach {url}")
            .why("a volume that is attached from its copy needs a local file as cache")
            .help("add `--cache FILE`");
        /// The URL of a copy in place of a store.
        UrlOfStore { url: String } =>
            usage("cannot use {url} as a store")
            .why("it is the URL of a copy, and the path of a file or disk is needed")
            .help("`coulter restore {0} FILE` makes a store of it, `coulter attach {0} --cache \
                FILE` serves it at once", quoted(url));
        /// A volume was to be named, and a URL was.
        UrlOfVolume { url: String } =>
            usage("cannot tell which volume is to be replicated")
            .why("{url} is a copy")
            .help("write `coulter replicate NAME URL`; of a URL alone there are --status and \
                --verify");
        /// A file system cannot be frozen.
        NotFrozen { directory: PathBuf, reason: String } =>
            fault("cannot freeze the file system at {}", directory.display())
            .why("{reason}")
            .help("without `--freeze` the snapshot is as after a power cut");
        /// A file system that is to be frozen is not on the volume of the copy.
        OtherFileSystem { directory: PathBuf, url: String } =>
            usage("cannot freeze the file system at {}", directory.display())
            .why("it is not on a volume that this host ships to {url}")
            .help("name a directory of a file system on the volume; in a virtual machine use \
                fsfreeze(8) there");
        /// A file system was thawed before the snapshot was made.
        ThawedEarly { directory: PathBuf } =>
            fault("the snapshot was not made, or given up: {} was thawed before",
                directory.display())
            .why("the copy did not have everything in time")
            .help("see `coulter status`, or allow more with `--freeze-max`");
        /// A cache of what is no copy.
        CacheOfStore { path: PathBuf } =>
            usage("cannot attach {} with a cache", path.display())
            .why("it is a store itself, and `--cache` belongs to the URL of a copy")
            .help("leave `--cache` away, or name s3://BUCKET/VOLUME or file:///DIRECTORY/VOLUME");
        /// A copy cannot be attached as it was asked for.
        NotAttached { url: String, reason: String } =>
            usage("cannot attach {url}")
            .why("{reason}")
            .help("name the copy alone; `coulter restore URL@SNAPSHOT FILE` makes a store of a \
                snapshot");
        /// A snapshot cannot be taken over.
        TakesOverSnapshot { url: String } =>
            usage("cannot take over {url}")
            .why("a snapshot is of the past, and only the newest state can go on")
            .help("leave `--take-over` away, or `@NAME`");
    }
}

fn advice_on(error: &ReplicaError, url: &str) -> Option<&'static str> {
    Some(match error {
        ReplicaError::NoVolume => {
            "a copy is made by `coulter attach STORE --replicate URL`; is the URL the same?"
        }
        ReplicaError::Nothing => "wait for the first commit: `coulter status` of its host shows it",
        ReplicaError::NoPin(_) => "`coulter snapshot list URL` names those that there are",
        ReplicaError::PinTaken => {
            "choose another name, or run `coulter snapshot delete URL@NAME` first"
        }
        ReplicaError::PinsFull => {
            "`coulter snapshot prune URL --keep …` or `coulter snapshot delete URL@NAME` makes room"
        }
        ReplicaError::InUse(_) => {
            "detach the volume there; or, if that host is lost or to be fenced, add `--take-over`"
        }
        ReplicaError::Bucket(bucket) => return advice_on_bucket(bucket.kind, url),
        ReplicaError::File(_) => {
            "free space where the file is to be, or name a file on a disk with more"
        }
        ReplicaError::TakenOver => "try again: somebody else was first",
        ReplicaError::Collected => "try again",
        ReplicaError::Unfinished => {
            "run `coulter snapshot rollback` again; or attach the volume: then the newest state is \
             what it was, and snapshots can be made of it"
        }
        ReplicaError::HasClones(_) => "delete the clones first: all objects below their URLs",
        ReplicaError::Missing(name) | ReplicaError::Damaged(name, _) if name == PINS => {
            "the volume goes on, without snapshots; ship it to another URL, and delete this copy \
             then"
        }
        ReplicaError::Gap(..) => {
            "ship the store anew with `--replicate URL --reseed`; if it is lost, restore a \
             snapshot, or with `--take-over --despite-damage` the state before the missing commit"
        }
        error if error.is_of_object() => {
            "restore an older snapshot, or ship the store anew with `--replicate URL --reseed`"
        }
        _ => return None,
    })
}

fn advice_on_unfinished(kind: BucketErrorKind, url: &str, part: &Path) -> String {
    let kept = format!(
        "what was fetched is kept in {}, and the same command goes on from it",
        part.display()
    );
    advice_on_bucket(kind, url).map_or(kept.clone(), |help| format!("{help}; {kept}"))
}

fn advice_on_bucket(kind: BucketErrorKind, url: &str) -> Option<&'static str> {
    match kind {
        BucketErrorKind::Denied if url.starts_with("file://") => {
            Some("run it as the owner of that directory, or as root")
        }
        BucketErrorKind::Busy | BucketErrorKind::Silent if url.starts_with("file://") => {
            Some("check the file system that the directory is on, and try again then")
        }
        BucketErrorKind::NoBucket => {
            Some("check the URL; a directory that serves as the bucket must exist")
        }
        BucketErrorKind::Busy | BucketErrorKind::Silent => Some(
            "check that the service runs and the network reaches it: AWS_ENDPOINT_URL names where \
             it is; try again then",
        ),
        BucketErrorKind::Denied => Some(
            "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, the rights that go with them, and the \
             clock",
        ),
        _ => None,
    }
}
