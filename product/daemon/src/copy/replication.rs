//! A store whose device writes are shipped to a bucket.
//!
//! What may differ from the copy is kept in a file of *marks*: beside a store in a file, as
//! `STORE.marks`; for a disk in `/var/lib/coulter`. Without it everything counts as different, and
//! a copy that exists is refused rather than guessed to be of this store.

use crate::copy::cache::{self, Caching};
pub use crate::copy::marks::remembered;
use crate::copy::marks::{beside, existing_marks, marks_path, remember};
pub use crate::copy::owner::{has_ended, owner, owner_in_file, seconds_since_1970};
use crate::error::{Error, OpenError};
use crate::store_file::{size_of, uuid_of};
use coulter_device::Device;
use coulter_format::BLOCK_SIZE;
use coulter_object::bucket::{Bucket, BucketErrorKind, Cause, Meter, MeteredBucket, Prices, Usage};
use coulter_object::fill::Fill;
use coulter_object::history::{self, lineage};
use coulter_object::layout::VolumeId;
use coulter_object::probe;
use coulter_object::publish::Briefly;
use coulter_object::ranges::RangeSet;
use coulter_object::ship::device::{MarkingDevice, Opening};
use coulter_object::ship::marks::{Marks, Owner};
use coulter_object::{Ack, Pace, Replica, ReplicaError, Settings, ShippedDevice, Url};
use coulter_system::{seekable, sparse};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// What is told of a copy whose store's device is gone.
const STOPPED: &str = "the store's device cannot be read any more: the copy stays what it was";

/// What to do when a thread of the copy has ended.
const ENDED: &str =
    "this is a fault of the program; detach and attach again to ship what is missing";

/// How long an outage lasts until the volume counts as held up by it.
const OUTAGE_TOLD_SECONDS: f64 = 10.0;

/// How a store is replicated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replication {
    /// Where the copy is.
    pub url: Url,
    /// What a flush waits for.
    pub ack: Ack,
    /// Time between commits.
    pub every: Duration,
    /// Bytes that may wait to be shipped.
    pub lag_max: u64,
    /// Bytes of memory for what was written and is not sent yet.
    pub keep_max: u64,
    /// Ship everything anew: the local store counts, whatever the copy holds.
    pub reseed: bool,
    /// The store is a cache that is filled from the copy.
    pub cache: Option<Caching>,
}

/// Handles on a store that is shipped.
#[derive(Clone, Debug)]
pub struct Shipped {
    /// How the copy stands.
    pub replica: Replica,
    /// How the cache stands, if something was missing in it at the opening.
    pub fill: Option<Fill>,
    /// What the bucket was asked.
    pub meter: Meter,
    /// What the bucket's owner has set that harms a copy, as it was when the copy was made.
    pub cautions: Vec<String>,
}

/// What a daemon tells of a copy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplicaFacts {
    /// Where it is.
    pub url: String,
    /// `local` or `remote`: what a flush waits for.
    pub ack: String,
    /// Everything that had completed is in a commit.
    #[serde(default)]
    pub is_current: bool,
    /// Bytes that are in no commit yet.
    pub lag_bytes: u64,
    /// For how long something has waited to be in one.
    pub lag_seconds: f64,
    /// The last commit: epoch and number.
    pub commit: String,
    /// Commits since the opening.
    pub commits: u64,
    /// Bytes written to the device since the opening.
    pub written_bytes: u64,
    /// Bytes shipped since the opening.
    pub shipped_bytes: u64,
    /// Bytes that the device could not read back.
    pub unreadable_bytes: u64,
    /// For how long the bucket has not answered; `null` if it does.
    pub outage_seconds: Option<f64>,
    /// What it said last, while it does not; or why nothing is shipped any more.
    pub outage: Option<String>,
    /// Another host has taken the volume over.
    pub is_fenced: bool,
    /// Nothing is shipped any more by this opening; `outage` says why.
    #[serde(default)]
    pub has_stopped: bool,
    /// Flushes that are not answered yet.
    #[serde(default)]
    pub waiting_flushes: u64,
    /// Writes that wait: too much is to be shipped.
    #[serde(default)]
    pub waiting_writes: u64,
    /// Bytes that the cache has still to fetch; 0 of a store that is whole.
    #[serde(default)]
    pub missing_bytes: u64,
    /// Why some of them could not be fetched.
    #[serde(default)]
    pub fill_error: Option<String>,
    /// What the bucket's owner has set that harms a copy, if the copy was made by this opening.
    #[serde(default)]
    pub cautions: Vec<String>,
    /// What the bucket was asked since the opening, by what its objects are for.
    #[serde(default)]
    pub usage: BTreeMap<String, UsageFacts>,
    /// What those requests cost at the list price of S3 Standard, in dollars; without traffic and
    /// space.
    #[serde(default)]
    pub cost_dollars: f64,
}

/// Requests to a bucket, and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct UsageFacts {
    /// Creations and swaps of an object.
    pub puts: u64,
    /// Reads of an object or of a part of it.
    pub gets: u64,
    /// Deletions.
    pub deletes: u64,
    /// Lists of names.
    pub lists: u64,
    /// Bytes of objects that were sent.
    pub sent_bytes: u64,
    /// Bytes of objects that were received.
    pub received_bytes: u64,
}

impl From<Usage> for UsageFacts {
    fn from(usage: Usage) -> UsageFacts {
        let Usage { puts, gets, deletes, lists, sent_bytes, received_bytes } = usage;
        UsageFacts { puts, gets, deletes, lists, sent_bytes, received_bytes }
    }
}

impl ReplicaFacts {
    /// What is wrong with a copy that holds the volume up, or that has ceased to follow it.
    pub fn trouble(&self) -> Option<String> {
        let outage = self.outage.as_deref().unwrap_or("the bucket takes nothing");
        if self.has_stopped {
            return Some(format!("its copy does not follow any more: {outage}"));
        }
        let is_long = self.outage_seconds.is_some_and(|seconds| seconds >= OUTAGE_TOLD_SECONDS);
        let waits = self.ack == "remote" || self.waiting_flushes + self.waiting_writes > 0;
        (is_long && waits).then(|| format!("it waits for its copy: {outage}"))
    }
}

/// A bucket that was tried out.
struct OpenBucket {
    bucket: Arc<dyn Bucket>,
    meter: Meter,
    /// Settings of its owner that harm a copy, if the copy is new.
    cautions: Vec<String>,
}

impl Replication {
    /// Wraps the device of the store at `path`.
    ///
    /// # Errors
    /// [`OpenError::NotReplicated`].
    pub fn wrap(
        &self,
        path: &Path,
        device: Box<dyn Device>,
    ) -> Result<(Box<dyn Device>, Shipped), Error> {
        let refused = |reason: String| self.refused(path, reason);
        if self.cache.is_none() {
            cache::refuse_incomplete(path)?;
        }
        let is_filled = !cache::is_incomplete(path);
        self.check_place(path)?;
        let OpenBucket { bucket, meter, cautions } = self.open_bucket(path, is_filled)?;
        let store = match self.cache {
            // The copy says it.
            Some(_) if !is_filled => [0; 16],
            _ => uuid_of(path).ok_or_else(|| refused("the store has no superblock".to_string()))?,
        };
        let place = marks_path(path, &store);
        let is_first = !place.exists();
        let marks = Marks::open(&place)
            .map_err(|error| refused(format!("{}: {error}", place.display())))?;
        let size = device.properties().size;
        let opening = Opening {
            bucket,
            settings: self.settings(),
            marks,
            store,
            owner: owner(),
            content: content_of(path, size),
            reseed: self.reseed,
            has_ended,
        };
        if let Some(caching) = self.cache.filter(|_| !is_filled) {
            let wrapped = cache::wrap(path, caching, device, opening);
            let (device, replica, fill) = wrapped.map_err(&refused)?;
            assert_eq!(device.properties().size, size, "a cache is as large as its volume");
            remember(path, Some(&self.words()));
            return Ok((device, Shipped { replica, fill: Some(fill), meter, cautions }));
        }
        let opened = ShippedDevice::open(device, opening);
        let (device, replica) = opened.map_err(|error| {
            if is_first {
                forget_unclaimed(&place, &error);
            }
            self.unusable(path, error)
        })?;
        assert_eq!(device.properties().size, size, "what is shipped is as large as the store");
        remember(path, Some(&self.words()));
        Ok((Box::new(device), Shipped { replica, fill: None, meter, cautions }))
    }

    /// Opens the bucket and tries it out.
    fn open_bucket(&self, path: &Path, is_filled: bool) -> Result<OpenBucket, Error> {
        let bucket = lineage::open(&self.url, is_filled, &Briefly)
            .map_err(|error| self.unusable(path, error.into()))?;
        let bucket = MeteredBucket::new(bucket);
        let meter = bucket.meter();
        let bucket: Arc<dyn Bucket> = Arc::new(bucket);
        let is_new = match history::record(&*bucket, &Briefly) {
            Ok(_) => false,
            Err(ReplicaError::NoVolume) => true,
            Err(error) => return Err(self.unusable(path, error).into()),
        };
        let probed = if is_new { probe::race(&*bucket) } else { probe::sequence(&*bucket) };
        match probed {
            // A bucket that does not answer now is waited for later, as in every outage; a new copy
            // needs one that does.
            Err(probe::ProbeError::Bucket(error))
                if !is_new
                    && matches!(error.kind, BucketErrorKind::Busy | BucketErrorKind::Silent) => {}
            Err(probe::ProbeError::Bucket(error)) => {
                return Err(self.unusable(path, error.into()).into());
            }
            other => other.map_err(|error| self.refused(path, error.to_string()))?,
        }
        let cautions = if is_new { bucket.cautions() } else { Vec::new() };
        for caution in &cautions {
            log::info!(url:% = self.url; "{caution}");
        }
        Ok(OpenBucket { bucket, meter, cautions })
    }

    fn refused(&self, path: &Path, reason: String) -> OpenError {
        OpenError::NotReplicated { path: path.to_owned(), url: self.url.to_string(), reason }
    }

    /// The error of a bucket or a copy; a bucket that cannot be used is told from the rest.
    fn unusable(&self, path: &Path, error: ReplicaError) -> OpenError {
        match error {
            ReplicaError::Bucket(error) => OpenError::NoBucket {
                path: path.to_owned(),
                url: self.url.to_string(),
                reason: error.to_string(),
            },
            error => self.refused(path, error.to_string()),
        }
    }

    /// That a copy which is to be made is not to lie inside of another one.
    fn check_place(&self, path: &Path) -> Result<(), Error> {
        let record = |bucket: Arc<dyn Bucket>| history::record(&*bucket, &Briefly);
        // What is there has been looked at, and what does not answer is told of below.
        if !matches!(self.url.open(false).map(record), Err(_) | Ok(Err(ReplicaError::NoVolume))) {
            return Ok(());
        }
        lineage::check_place(&self.url, &Briefly).map_err(|error| {
            let (path, url) = (path.to_owned(), self.url.to_string());
            OpenError::NotReplicated { path, url, reason: error.to_string() }.into()
        })
    }

    /// The words of a command line that ask for it.
    pub fn words(&self) -> String {
        let url = self.url.to_string();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._/:@%+=,".contains(c);
        let url = match url.chars().all(is_plain) {
            true => url,
            false => format!("'{}'", url.replace('\'', r"'\''")),
        };
        let mut words = format!("--replicate {url}");
        if self.ack == Ack::Remote {
            words.push_str(" --ack remote");
        }
        if self.every != Settings::DEFAULT.every {
            words.push_str(&format!(" --every {}ms", self.every.as_millis()));
        }
        if self.lag_max != Settings::DEFAULT.lag_max {
            words.push_str(&format!(" --lag-max {}", self.lag_max));
        }
        if self.keep_max != Settings::DEFAULT.keep_max {
            words.push_str(&format!(" --keep-max {}", self.keep_max));
        }
        words
    }

    fn settings(&self) -> Settings {
        Settings { ack: self.ack, ..Settings::DEFAULT }.at(self.pace())
    }

    /// The settings that change without a new opening.
    pub(crate) fn pace(&self) -> Pace {
        let lag_max = self.lag_max.max(Settings::DEFAULT.object_size);
        let Replication { every, keep_max, .. } = *self;
        Pace { every, lag_max, keep_max }
    }

    /// What to tell of the copy now.
    pub fn facts(&self, shipped: &Shipped) -> ReplicaFacts {
        let status = shipped.replica.status();
        let fill = shipped.fill.as_ref().map(Fill::status).unwrap_or_default();
        ReplicaFacts {
            url: self.url.to_string(),
            ack: match status.ack.unwrap_or(self.ack) {
                Ack::Local => "local",
                Ack::Remote => "remote",
            }
            .to_string(),
            is_current: status.is_idle,
            lag_bytes: status.lag.bytes,
            lag_seconds: status.lag.time.as_secs_f64(),
            commit: status.last.map_or_else(|| "-".to_string(), |last| last.to_string()),
            commits: status.counts.commits,
            written_bytes: status.counts.written_bytes,
            shipped_bytes: status.counts.shipped_bytes,
            unreadable_bytes: status.counts.unreadable_bytes,
            outage_seconds: status.health.outage_since.map(|since| since.elapsed().as_secs_f64()),
            outage: match status.health.error {
                _ if status.ended.is_some() => status
                    .ended
                    .map(|worker| format!("the thread {} has ended: {ENDED}", worker.name())),
                _ if status.has_stopped => Some(STOPPED.to_string()),
                error => error.map(|error| error.to_string()),
            },
            is_fenced: status.is_fenced,
            has_stopped: status.has_stopped,
            waiting_flushes: status.waiting.flushes as u64,
            waiting_writes: status.waiting.writes as u64,
            missing_bytes: fill.missing_bytes,
            fill_error: fill.error,
            cautions: shipped.cautions.clone(),
            usage: Cause::ALL
                .iter()
                .map(|(cause, name)| ((*name).to_owned(), shipped.meter.of(*cause).into()))
                .collect(),
            cost_dollars: shipped.meter.total().cost(&Prices::S3_STANDARD),
        }
    }
}

/// Removes marks that were just made, if nothing was claimed with them: then nothing needs them.
fn forget_unclaimed(marks: &Path, error: &ReplicaError) {
    if matches!(error, ReplicaError::Diverged(_) | ReplicaError::InUse(_)) {
        let _ = fs::remove_file(marks);
    }
}

/// What of a store may be something other than zeros: the parts of a file that are there.
fn content_of(path: &Path, size: u64) -> RangeSet {
    let all = || std::iter::once(0..size).collect();
    let Ok(file) = seekable::open(path) else { return all() };
    let mut found = RangeSet::new();
    let mut offset = 0;
    while offset < size {
        let Ok(run) = sparse::next_data(&file, offset, size) else { return all() };
        let Some(Range { start, end }) = run else { break };
        assert!(offset <= start && start < end, "data before where it was looked for, or none");
        // In whole units of the largest alignment of a device.
        let unit = BLOCK_SIZE as u64;
        found.insert(start / unit * unit..end.div_ceil(unit).saturating_mul(unit).min(size));
        offset = end;
    }
    found
}

/// Says that the store at `path` is what a claim found, byte for byte.
///
/// # Errors
/// When its marks cannot be kept.
pub fn adopt_marks(
    path: &Path,
    claim: &coulter_object::history::takeover::Claim,
) -> Result<(), ReplicaError> {
    let marks = marks_path(path, &claim.record.store);
    let mut marks = Marks::open(&marks).map_err(ReplicaError::File)?;
    coulter_object::ship::device::adopt(&mut marks, claim, claim.record.device_size, false)
}

/// Removes the marks of the store at `path`: it is refused as a replica from then on, unless it is
/// shipped anew.
///
/// # Errors
/// When they cannot be removed.
pub fn forget(path: &Path) -> Result<(), Error> {
    let marks = match uuid_of(path) {
        Some(store) => marks_path(path, &store),
        None => beside(path, "marks"),
    };
    std::fs::remove_file(&marks).or_else(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(Error::io("remove", &marks, error)),
    })
}

/// The volume as which the store, or the cache, at `path` was shipped last, if that is known.
pub(crate) fn volume_of(path: &Path) -> Option<VolumeId> {
    let place = existing_marks(path).or_else(|| cache::existing_record(path))?;
    Some(Marks::open(&place).ok()?.owner()?.volume)
}

/// The store at `path` is about to change without being shipped: if it ever was, all of it may
/// differ from its copy from then on. Without this the next commit would mix two states.
///
/// # Errors
/// When its marks cannot be kept.
pub fn has_gone_on_alone(path: &Path) -> Result<(), Error> {
    let Some(marks) = existing_marks(path) else { return Ok(()) };
    let failed = |error| Error::io("write", &marks, error);
    let mut kept = Marks::open(&marks).map_err(failed)?;
    let Some(owner) = kept.owner() else { return Ok(()) };
    // It may have grown since it was shipped.
    let size = size_of(path).map_err(|source| Error::io("look at", path, source))?;
    let device_size = size.max(owner.device_size);
    kept.adopt(Owner { device_size, ..owner }, true).map_err(failed)
}

/// The device of the store at `path`, which is about to be changed in a few places without being
/// shipped. If it was ever shipped, these are marked.
///
/// # Errors
/// When its marks cannot be kept, and for a cache in which something is missing.
pub fn marking(path: &Path, device: Box<dyn Device>) -> Result<Box<dyn Device>, Error> {
    cache::refuse_incomplete(path)?;
    let Some(place) = existing_marks(path) else { return Ok(device) };
    let failed = |error| Error::io("write", &place, error);
    let marks = Marks::open(&place).map_err(failed)?;
    let marking = MarkingDevice::new(device, marks);
    let marking = marking.map_err(|error| failed(std::io::Error::other(error)))?;
    Ok(Box::new(marking))
}
