//! What is done with a store and its copy while nobody serves the store: it is shipped, or handed
//! over to whichever host attaches it next.

use crate::copy::cache;
use crate::copy::replication::{self, Replication};
use crate::error::{Error, OpenError};
use crate::store;
use crate::store_file::uuid_of;
use coulter_device::Wait;
use coulter_object::bucket::Bucket;
use coulter_object::names::CommitId;
use coulter_object::publish::Briefly;
use coulter_object::{
    Ack, Settings, Url,
    history::{lineage, rollback, takeover},
};
use coulter_terminal as terminal;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the bucket may fail meanwhile.
const OUTAGE_MAX: Duration = Duration::from_secs(30);

/// Ships what is left of the store at `path`, which nobody serves, and ends this host's epoch by a
/// fence. Returns the last commit.
///
/// # Errors
/// [`OpenError::NotMoved`]; then the store is still the one that counts, unless another host has
/// taken over.
pub fn hand_over(path: &Path, url: &Url) -> Result<String, Error> {
    let refused = |reason: String| {
        let (what, url) = (path.display().to_string(), url.to_string());
        let help = format!(
            "this store is still the valid one: `coulter attach {} --replicate {url}` continues",
            terminal::word(path)
        );
        Error::from(OpenError::NotMoved { what, url, reason, help })
    };
    let bucket = find_copy(path, url)?;
    let cache = cache::is_incomplete(path).then_some(cache::Caching { take_over: false });
    let shipped = ship_all(path, &Replication { cache, ..once(url) }, &refused);
    let last = shipped.map_err(|error| match error {
        Error::Open(
            OpenError::NotReplicated { reason, .. } | OpenError::NoBucket { reason, .. },
        ) => refused(reason),
        other => other,
    })?;
    let epoch = last.map_or(0, |last| last.epoch);
    let ended = takeover::give_up(&*bucket, epoch, &Briefly);
    let last = ended.map_err(|error| refused(error.to_string()))?;
    // Without its marks the store is refused as a replica.
    replication::forget(path)?;
    Ok(last.to_string())
}

/// Refuses to hand over what is not the volume of the copy at `url`, while the store may still be
/// served, as the volume `attached`.
///
/// # Errors
/// [`OpenError::NoCopy`], [`OpenError::NotMoved`].
pub fn check(path: &Path, url: &Url, attached: Option<&str>) -> Result<(), Error> {
    let refused = |reason: &str, what_to_do: String| {
        let stays = attached.map(|name| format!("; '{name}' stays attached")).unwrap_or_default();
        let what = attached.map_or_else(|| path.display().to_string(), |name| format!("'{name}'"));
        let (url, reason, help) = (url.to_string(), reason.to_owned(), what_to_do + &stays);
        Err(OpenError::NotMoved { what, url, reason, help }.into())
    };
    let bucket = find_copy(path, url)?;
    let (record, _) = coulter_object::history::record(&*bucket, &Briefly)
        .map_err(|error| no_copy(path, url, error.to_string()))?;
    // A cache has no superblock of its own until that was fetched.
    let store = uuid_of(path).filter(|_| !cache::is_incomplete(path));
    if store.is_some_and(|store| store != record.store) {
        return refused("the copy there is of another store", "check the URL".to_owned());
    }
    match replication::volume_of(path) {
        Some(volume) if volume == record.volume => Ok(()),
        Some(_) => refused("it is shipped to another copy", "check the URL".to_owned()),
        None if matches!(rollback::is_ended(&*bucket, &record, &Briefly), Ok(true)) => refused(
            "it was moved there already, or another host has let go of it",
            format!("on the other host: `coulter attach {url} --cache FILE`"),
        ),
        None => refused(
            "nothing tells that this store was shipped there",
            "run `coulter replicate NAME URL` first".to_owned(),
        ),
    }
}

fn no_copy(path: &Path, url: &Url, reason: String) -> Error {
    OpenError::NoCopy { path: path.to_owned(), url: url.to_string(), reason }.into()
}

/// The copy that the volume of the store at `path` is to be handed over by, if it is one.
///
/// # Errors
/// [`OpenError::NoCopy`].
pub fn find_copy(path: &Path, url: &Url) -> Result<Arc<dyn Bucket>, Error> {
    let missing = |reason: String| no_copy(path, url, reason);
    // A copy is made by attaching, not in passing.
    let bucket = lineage::open(url, false, &Briefly).map_err(|error| missing(error.to_string()))?;
    coulter_object::history::record(&*bucket, &Briefly)
        .map_err(|error| missing(error.to_string()))?;
    Ok(bucket)
}

/// Ships the store at `path`, which nobody serves, to a copy; makes the copy if there is none.
/// Returns its last commit. With `reseed` all of the store is shipped, and counts whatever the copy
/// holds.
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
        match status.health.error {
            None => outage = None,
            Some(error) => {
                if outage.get_or_insert_with(Instant::now).elapsed() > OUTAGE_MAX {
                    return Err(refused(error.to_string()));
                }
            }
        }
    }
}
