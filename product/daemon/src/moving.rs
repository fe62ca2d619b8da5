//! What is done with a store and its copy while nobody serves the store: it is shipped, or handed over to
//! whichever host attaches it next.

use crate::error::{Error, OpenError};
use crate::replication::{self, Replication};
use crate::{cache, store};
use coulter_device::Wait;
use coulter_object::bucket::Bucket;
use coulter_object::names::CommitId;
use coulter_object::publish::Briefly;
use coulter_object::{Ack, Settings, Url, lineage, takeover};
use coulter_terminal as terminal;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the bucket may fail meanwhile.
const OUTAGE_MAX: Duration = Duration::from_secs(30);

/// Ships what is left of the store at `path`, which nobody serves, and ends this host's epoch by a fence. Returns the
/// last commit.
///
/// # Errors
/// [`OpenError::NotReplicated`]; then the store is still the one that counts, unless another host has taken over.
pub fn hand_over(path: &Path, url: &Url) -> Result<String, Error> {
    let refused = |reason: String| {
        let (path, url) = (path.to_owned(), url.to_string());
        Error::from(OpenError::NotReplicated { path, url, reason })
    };
    let bucket = find_copy(path, url)?;
    let cache = cache::is_incomplete(path).then_some(cache::Caching { take_over: false });
    let last = ship_all(path, &Replication { cache, ..once(url) }, &refused)?;
    let epoch = last.map_or(0, |last| last.epoch);
    let ended = takeover::give_up(&*bucket, epoch, &Briefly);
    let last = ended.map_err(|error| refused(error.to_string()))?;
    // Without its marks the store is refused as a replica.
    replication::forget(path)?;
    Ok(last.to_string())
}

/// The copy that the volume of the store at `path` is to be handed over by, if it is one.
///
/// # Errors
/// [`OpenError::NoCopy`].
pub fn find_copy(path: &Path, url: &Url) -> Result<Arc<dyn Bucket>, Error> {
    let missing = |reason: String| {
        let (path, url) = (path.to_owned(), url.to_string());
        Error::from(OpenError::NoCopy { path, url, reason })
    };
    // A copy is made by attaching, not in passing.
    let bucket = lineage::open(url, false, &Briefly).map_err(|error| missing(error.to_string()))?;
    coulter_object::history::record(&*bucket, &Briefly)
        .map_err(|error| missing(error.to_string()))?;
    Ok(bucket)
}

/// Ships the store at `path`, which nobody serves, to a copy; makes the copy if there is none. Returns its last commit.
/// With `reseed` all of the store is shipped, and counts whatever the copy holds.
///
/// # Errors
/// [`OpenError::NotReplicated`], [`OpenError::NoBucket`], and when the store cannot be opened.
pub fn ship(path: &Path, url: &Url, reseed: bool) -> Result<String, Error> {
    let refused = |reason: String| {
        let (path, url) = (path.to_owned(), url.to_string());
        Error::from(OpenError::NotReplicated { path, url, reason })
    };
    cache::refuse_incomplete(path)?;
    let last = ship_all(path, &Replication { reseed, ..once(url) }, &refused)?;
    Ok(last.map_or_else(|| "-".to_owned(), |last| last.to_string()))
}

/// As a store is replicated that does not change meanwhile.
fn once(url: &Url) -> Replication {
    Replication {
        url: url.clone(),
        ack: Ack::Remote,
        every: Settings::DEFAULT.every,
        lag_max: Settings::DEFAULT.lag_max,
        keep_max: Settings::DEFAULT.keep_max,
        reseed: false,
        cache: None,
    }
}

/// Ships what is left, and returns the last commit.
fn ship_all(
    path: &Path,
    replication: &Replication,
    refused: &dyn Fn(String) -> Error,
) -> Result<Option<CommitId>, Error> {
    let device = store::open_device(path, false)?;
    let (mut device, shipped) = replication.wrap(path, device)?;
    let mut outage = None;
    let bar = terminal::progress("shipping", 0);
    loop {
        shipped.replica.commit();
        let polled = device.poll(&mut Vec::new(), Wait::For(Duration::from_millis(10)));
        polled.map_err(|error| refused(error.to_string()))?;
        let status = shipped.replica.status();
        bar.set_length(status.counts.shipped_bytes + status.lag.bytes);
        bar.set_position(status.counts.shipped_bytes);
        if status.is_fenced {
            return Err(refused("another host has taken the volume over".to_owned()));
        }
        if status.has_stopped {
            return Err(refused("the store cannot be read".to_owned()));
        }
        if status.is_idle {
            bar.finish_and_clear();
            return Ok(status.last);
        }
        match status.weather.error {
            None => outage = None,
            Some(error) => {
                if outage.get_or_insert_with(Instant::now).elapsed() > OUTAGE_MAX {
                    return Err(refused(error.to_string()));
                }
            }
        }
    }
}
