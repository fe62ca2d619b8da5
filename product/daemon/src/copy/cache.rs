//! A volume that is attached straight from its copy: a local file, its *cache*, is filled while it
//! is in use.
//!
//! `FILE.missing` records which chunks are not in the cache yet; it is gone once all are. From then
//! on the file is an ordinary store with a copy. A file with that record is served in no other way,
//! since the ranges that are missing read as zeros.

use crate::copy::marks::beside;
use crate::copy::owner::{has_ended, seconds_since_1970};
use crate::error::{Error, OpenError};
use coulter_device::Device;
use coulter_object::fill::{Fill, FillingDevice};
use coulter_object::publish::Briefly;
use coulter_object::ranges::RangeSet;
use coulter_object::ship::device::{CHUNK_SIZE, Opening, adopt, begin};
use coulter_object::ship::marks::{Marks, Owner};
use coulter_object::{
    Replica, ReplicaError, ShippedDevice, Url,
    history::{self, lineage, rollback, takeover},
};
use coulter_system::private;
use std::fs;
use std::path::{Path, PathBuf};

/// How a volume is attached from its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caching {
    /// Fence the host that has the volume, whether it still runs or not.
    pub take_over: bool,
}

/// The record of what is missing in the cache at `path`.
fn record_path(path: &Path) -> PathBuf {
    beside(path, "missing")
}

/// The same, if there is one.
pub(crate) fn existing_record(path: &Path) -> Option<PathBuf> {
    Some(record_path(path)).filter(|place| place.exists())
}

/// Whether the file at `path` is a cache in which something is missing.
pub fn is_incomplete(path: &Path) -> bool {
    record_path(path).exists()
}

/// Refuses a cache in which something is missing: it is no store by itself.
///
/// # Errors
/// [`OpenError::CacheIncomplete`].
pub fn refuse_incomplete(path: &Path) -> Result<(), Error> {
    match is_incomplete(path) {
        true => Err(OpenError::CacheIncomplete { path: path.to_owned() }.into()),
        false => Ok(()),
    }
}

/// Makes the cache at `path` for the volume at `url`, unless it is there already.
///
/// # Errors
/// [`OpenError::NotCached`]: the file is something else, or there is no space for what it is to
/// hold.
pub fn prepare(url: &Url, path: &Path) -> Result<(), Error> {
    let refused = |reason: String, help: &'static str| {
        let (path, url) = (path.to_owned(), url.to_string());
        Error::from(OpenError::NotCached { path, url, reason, help })
    };
    let of_copy =
        |error: ReplicaError| refused(error.to_string(), "`coulter replica status URL` shows it");
    let bucket = lineage::open(url, false, &Briefly);
    let bucket = bucket.map_err(|error| of_copy(error.into()))?;
    let (record, history) = history::newest(&*bucket, &Briefly).map_err(of_copy)?;
    let io = |action, path: &Path| {
        let path = path.to_owned();
        move |source| Error::io(action, &path, source)
    };
    if path.exists() {
        let owner_of = |path: PathBuf| {
            let marks = path.exists().then(|| Marks::open(&path).ok());
            marks.flatten().and_then(|marks| marks.owner())
        };
        let owner = owner_of(record_path(path)).or_else(|| owner_of(beside(path, "marks")));
        let help =
            "name a file that is not there yet, or the one with which it was attached before";
        return match owner {
            Some(owner) if owner.volume == record.volume => Ok(()),
            Some(_) => Err(refused("the file is of another volume".to_owned(), help)),
            None => Err(refused("something is there that is no cache".to_owned(), help)),
        };
    }
    let shipped = history.refuse_nothing();
    shipped
        .map_err(|error| refused(error.to_string(), "attach the store that is shipped to it"))?;
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let system = rustix::fs::statvfs(folder);
    let system = system.map_err(|error| io("look at", folder)(error.into()))?;
    let left = system.f_bavail * system.f_frsize;
    let needed = history.pieces.total();
    if left < needed {
        let (needed, left) = (coulter_terminal::Size(needed), coulter_terminal::Size(left));
        let reason =
            format!("there is no space for the cache: it takes {needed}, and {left} are left");
        return Err(refused(reason, "name a file on a disk with more space"));
    }
    // It belongs to an earlier file of that name.
    let _ = fs::remove_file(beside(path, "marks"));
    let missing = record_path(path);
    let mut marks = Marks::open(&missing).map_err(io("make", &missing))?;
    let size = record.device_size;
    let owner =
        Owner { volume: record.volume, device_size: size, chunk_size: CHUNK_SIZE, epoch: 0 };
    marks.adopt(owner, true).map_err(io("write", &missing))?;
    // Last: a file without its record would be taken for a blank store.
    let made = private::create_new(path)
        .and_then(|file| file.set_len(size).and_then(|()| file.sync_all()));
    made.map_err(io("make", path))
}

/// Ships and fills the cache `device` at `path`, if something is missing in it.
///
/// # Errors
/// What is wrong, for people.
pub(crate) fn wrap(
    path: &Path,
    caching: Caching,
    device: Box<dyn Device>,
    mut opening: Opening,
) -> Result<(Box<dyn Device>, Replica, Fill), String> {
    let told = |error: ReplicaError| error.to_string();
    let place = record_path(path);
    let mut missing =
        Marks::open(&place).map_err(|error| format!("{}: {error}", place.display()))?;
    let (record, _) = history::record(&*opening.bucket, &Briefly).map_err(told)?;
    let size = device.properties().size;
    let kept = missing
        .owner()
        .ok_or("the record of what is missing in the cache is damaged: delete the cache")?;
    if kept.volume != record.volume || kept.device_size != size || record.device_size != size {
        return Err("the cache is of another volume".to_owned());
    }
    opening.store = record.store;
    let (claim, unsure) = if kept.epoch == 0 {
        let is_free = caching.take_over
            || has_ended(&record.owner)
            || rollback::is_ended(&*opening.bucket, &record, &Briefly).map_err(told)?;
        if !is_free {
            let error = told(ReplicaError::InUse(record.owner));
            return Err(format!("{error}; `--take-over` fences it"));
        }
        let owner = opening.claimant();
        let (bucket, seen) = (&*opening.bucket, seconds_since_1970());
        let claim = match caching.take_over {
            true => takeover::claim(bucket, &owner, seen, &Briefly),
            false => takeover::claim_seen(bucket, &record, &owner, seen, &Briefly),
        };
        let claim = claim.map_err(told)?;
        adopt(&mut opening.marks, &claim, size, false).map_err(told)?;
        (claim, RangeSet::new())
    } else {
        begin(&mut opening, size, &Briefly).map_err(told)?
    };
    let owner = Owner { epoch: claim.epoch, ..kept };
    missing.adopt(owner, false).map_err(|error| format!("{}: {error}", place.display()))?;
    let is_whole = Box::new(move || {
        if let Err(error) = fs::remove_file(&place) {
            log::warn!(error:%; "the record of a cache that is whole stays");
        }
    });
    let pieces = claim.history.pieces.clone();
    let (bucket, record) = (opening.bucket.clone(), &claim.record);
    let filling = FillingDevice::new(device, bucket, record, pieces, missing, is_whole);
    let (device, fill) = filling.map_err(told)?;
    let started = ShippedDevice::start(device, opening, claim, unsure);
    let (device, replica) = started.map_err(told)?;
    Ok((Box::new(device), replica, fill))
}
