//! Stores at a path: found, locked, opened, served, closed.

use crate::backing::{Backing, Source};
use crate::copy::cache;
use crate::copy::marks;
use crate::copy::replication::{self, Replication, Shipped};
use crate::error::{Error, OpenError};
use crate::growth::{self, Grown, Growth};
use crate::life::state::{Entry, StateDirectory, name_of_store};
use crate::opening::{DeviceChoice, Opening, Trim};
use crate::service::status::{Facts, Status, facts_of};
use crate::signatures;
use coulter::scrub::{Scrub, ScrubOrder};
use coulter::service::BlockService;
use coulter::tuning::{Retuning, Tuning};
use coulter::{Failures, OpenErrorKind, State, Volume};
use coulter_device::{Device, Engine, LockedFile, OpenOptions};
use coulter_object::ship::device::LEAVE_AFTER;
use coulter_system::seekable;
use coulter_system::sparse::{self, Content};
use coulter_terminal as terminal;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a file without a store that are read to find out whether it is blank.
const BLANK_READ_MAX: u64 = 1 << 30;

/// That there is nothing at `path`, or nothing that it leads to. Nobody keeps files in `/dev`, save
/// in what it has for them.
pub fn missing(path: &Path) -> OpenError {
    let is_device = |path: PathBuf| path.starts_with("/dev") && !path.starts_with("/dev/shm");
    let path = path.to_owned();
    if let Ok(target) = fs::read_link(&path) {
        return OpenError::LinkToNothing { path, target };
    }
    match std::path::absolute(&path).is_ok_and(is_device) {
        true => OpenError::DeviceMissing { path },
        false => OpenError::StoreMissing { path, make: None },
    }
}

/// The absolute path of the store at `path`.
///
/// # Errors
/// [`missing`] when nothing is there.
pub fn existing(path: &Path) -> Result<PathBuf, Error> {
    path.canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => missing(path).into(),
        _ => Error::io("open", path, error),
    })
}

/// The same of a store that is to be served: what is recorded of it is text.
///
/// # Errors
/// [`OpenError::PathNotText`].
pub fn existing_to_serve(path: &Path) -> Result<PathBuf, Error> {
    existing_to_serve_or_make(path, "coulter create")
}

/// The same with the command that makes a new one.
///
/// # Errors
/// As [`existing_to_serve`].
pub fn existing_to_serve_or_make(path: &Path, command: &'static str) -> Result<PathBuf, Error> {
    let path = existing(path).map_err(|error| match error {
        Error::Open(OpenError::StoreMissing { path, .. }) => {
            OpenError::StoreMissing { path, make: Some(command) }.into()
        }
        other => other,
    })?;
    match path.to_str() {
        Some(_) => Ok(path),
        None => Err(OpenError::PathNotText { path }.into()),
    }
}

/// The file or disk at `path`, locked against others.
///
/// # Errors
/// [`OpenError::Refused`], [`OpenError::InUse`].
pub fn open_device(path: &Path, read_only: bool) -> Result<Box<dyn Device>, Error> {
    let options = OpenOptions { read_only, ..OpenOptions::default() };
    coulter_device::open_path(path, &options).map_err(|error| not_opened(path, &error))
}

/// The file or disk at `path`, driven as it was asked for. Where that cannot be, the log says why.
fn open_as_chosen(path: &Path, opening: &Opening) -> Result<Box<dyn Device>, Error> {
    if opening.device == DeviceChoice::Auto {
        return open_device(path, opening.read_only);
    }
    let engine = Engine::NvmePassthrough;
    let options = OpenOptions { read_only: opening.read_only, engine, ..OpenOptions::default() };
    let device = coulter_device::open_path(path, &options);
    let device = device.map_err(|error| not_opened(path, &error))?;
    match &device.properties().note {
        Some(note) => log::warn!(store:% = path.display(); "{note}"),
        None => log::info!(store:% = path.display(); "NVMe commands are passed through"),
    }
    Ok(device)
}

/// The file at `path`, which [`lock_file`] has locked.
///
/// # Errors
/// [`OpenError::Refused`], [`OpenError::InUse`].
pub fn open_locked_device(path: &Path) -> Result<Box<dyn Device>, Error> {
    let options = OpenOptions { locked: true, ..OpenOptions::default() };
    coulter_device::open_path(path, &options).map_err(|error| not_opened(path, &error))
}

/// Locks `file`, which lies at `path`, against others, as an open store is.
///
/// # Errors
/// [`OpenError::Refused`], [`OpenError::InUse`].
pub fn lock_file(file: File, path: &Path) -> Result<LockedFile, Error> {
    LockedFile::lock(file, path).map_err(|error| not_opened(path, &error))
}

fn not_opened(path: &Path, error: &coulter_device::OpenError) -> Error {
    // It names the path, as the report around it does.
    let text = error.to_string();
    let reason = text.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&text).to_owned();
    let path = path.to_owned();
    match error {
        coulter_device::OpenError::InUse { .. } => {
            OpenError::InUse { path, reason, remedy: None }.into()
        }
        _ if fs::metadata(&path).is_ok_and(|it| it.is_file() && it.len() == 0) => {
            OpenError::Empty { path }.into()
        }
        coulter_device::OpenError::NotABlockDeviceOrFile { .. } => {
            OpenError::NoStorePath { path }.into()
        }
        // No store is so small, and what is there may be anything.
        coulter_device::OpenError::TooSmall { size, .. } => {
            OpenError::NoStore { size: *size, path }.into()
        }
        _ => OpenError::Refused { path, reason }.into(),
    }
}

/// That no daemon serves the store at `path`, which was just locked: one that becomes another
/// program has it unlocked for a moment.
///
/// # Errors
/// [`OpenError::InUse`].
pub fn refuse_attached(path: &Path, state: Option<&StateDirectory>) -> Result<(), Error> {
    attached_as(path, state).map_or(Ok(()), |entry| Err(in_use_as(path, entry)))
}

/// The same of what could not be opened; if it is in use as a volume of ours, with the name of
/// that.
pub fn naming_volume(error: Error, path: &Path, state: Option<&StateDirectory>) -> Error {
    match (&error, attached_as(path, state)) {
        (Error::Open(OpenError::InUse { .. }), Some(entry)) => in_use_as(path, entry),
        _ => error,
    }
}

fn attached_as(path: &Path, state: Option<&StateDirectory>) -> Option<Entry> {
    let found = path.canonicalize();
    let attached = state.and_then(|state| state.attached().ok()).unwrap_or_default();
    // The store of an overlay lies below its mount, where it cannot be looked at.
    let is_it = |entry: &Entry| {
        entry.store == path || found.as_ref().is_ok_and(|found| entry.is_of(found) == Some(true))
    };
    attached.into_iter().find(is_it)
}

fn in_use_as(path: &Path, entry: Entry) -> Error {
    let remedy = match entry.directory() {
        Some(directory) => format!("coulter umount {}", terminal::word(directory)),
        None => format!("coulter detach {}", entry.name),
    };
    let Entry { name, process, .. } = entry;
    let reason =
        format!("in use by process {} (coulter), which serves it as '{name}'", process.pid);
    OpenError::InUse { path: path.to_owned(), reason, remedy: Some(remedy) }.into()
}

/// A store that a daemon can be told to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    path: PathBuf,
}

impl Store {
    /// The one at this absolute path.
    pub fn at(path: PathBuf) -> Store {
        assert!(path.is_absolute(), "a daemon has another working directory");
        Store { path }
    }

    /// Opens it; what is lost after a crash is recovered here. The volume gets the device that
    /// `wrap` makes of the store's own, for whoever wants to see what reaches it.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_wrapped(
        &self,
        opening: &Opening,
        wrap: &dyn Fn(Box<dyn Device>) -> Box<dyn Device>,
    ) -> Result<OpenStore, Error> {
        let path = self.path.clone();
        let device = open_as_chosen(&path, opening)?;
        // Nothing is shipped of what cannot change.
        let replication = opening.replicate.clone().filter(|_| !opening.read_only);
        let mut left = None;
        let (device, replica) = match replication {
            Some(replication) => {
                let (device, replica) = replication.wrap(&path, device)?;
                (device, Some((replication, replica)))
            }
            None => {
                cache::refuse_incomplete(&path)?;
                left = marks::remembered(&path);
                if let Some(words) = &left {
                    // The command that attaches it tells people.
                    log::info!(words:%; "the store has a copy, which does not follow it");
                }
                if !opening.read_only {
                    replication::has_gone_on_alone(&path)?;
                }
                (device, None)
            }
        };
        assert!(replica.is_none() || !opening.read_only, "what cannot change is not shipped");
        let size = device.properties().size;
        let device = wrap(device);
        assert_eq!(device.properties().size, size, "a wrapped device is as large as the store's");
        let defaults = coulter::OpenOptions::default();
        let options = coulter::OpenOptions {
            map_memory: opening.map_memory,
            read_only: opening.read_only,
            degraded: opening.degraded,
            trim: trims(opening.trim, &path),
            tuning: opening.tuning(),
            acknowledge: opening.acknowledge.into(),
            pad_pages: opening.pad_pages,
            read_cache: opening.read_cache.unwrap_or(defaults.read_cache),
            ..defaults
        };
        match Volume::open(device, options) {
            Ok(volume) => {
                let store_size = volume.geometry().store_size_bytes;
                assert!(store_size <= size, "a store larger than what it lies on");
                Ok(OpenStore { path, volume: Arc::new(volume), replica, left })
            }
            Err(error) => Err(refused(path, &error.kind).into()),
        }
    }
}

impl Source for Store {
    fn store(&self) -> PathBuf {
        self.path.clone()
    }

    fn name(&self) -> String {
        name_of_store(&self.path)
    }

    fn is_at_its_path(&self) -> bool {
        true
    }

    fn grow(&self, growth: Growth) -> Result<Grown, Error> {
        growth::grow(&self.path, open_device(&self.path, false)?, growth)
    }

    fn open(&self, opening: &Opening) -> Result<Box<dyn Backing>, Error> {
        Ok(Box::new(self.open_wrapped(opening, &|device| device)?))
    }
}

/// A store that is open in this process.
pub struct OpenStore {
    path: PathBuf,
    volume: Arc<Volume>,
    replica: Option<(Replication, Shipped)>,
    /// The words that ask for a copy that the store has, and that does not follow it.
    left: Option<String>,
}

impl Backing for OpenStore {
    fn service(&self) -> Arc<dyn BlockService> {
        Arc::clone(&self.volume) as _
    }

    fn store_size(&self) -> Option<u64> {
        Some(self.volume.geometry().store_size_bytes)
    }

    fn state(&self) -> State {
        self.volume.state()
    }

    fn unanswered_for(&self) -> Option<Duration> {
        self.volume.unanswered_for()
    }

    fn failures(&self) -> Failures {
        self.volume.failures()
    }

    fn status(&self, entry: &Entry, uptime: Duration) -> Facts {
        let statistics = facts_of(&self.volume.statistics());
        let state = self.volume.state();
        let entry = entry.in_state(&state);
        let mut status = Status::new(entry, state.to_string(), uptime, statistics);
        let replica = self.replica.as_ref();
        status.replica = replica.map(|(replication, replica)| Box::new(replication.facts(replica)));
        status.left_copy.clone_from(&self.left);
        Facts::Volume(status)
    }

    fn tune(&self, retuning: Retuning) -> Option<Tuning> {
        self.volume.tune(retuning)
    }

    fn refuse_writes(&self) {
        self.volume.refuse_writes(libc::EIO);
    }

    fn leave(&self, leaves: bool) {
        let Some((_, shipped)) = &self.replica else { return };
        match leaves {
            true => shipped.replica.leave_within(LEAVE_AFTER),
            false => shipped.replica.stay(),
        }
    }

    fn adjust(&self, wanted: &Replication) -> bool {
        let Some((of_start, shipped)) = &self.replica else { return false };
        let status = shipped.replica.status();
        if status.is_fenced || status.has_stopped || of_start.url != wanted.url {
            return false;
        }
        shipped.replica.acknowledge(wanted.ack);
        shipped.replica.adjust(wanted.pace());
        marks::remember(&self.path, Some(&wanted.words()));
        true
    }

    fn commit(&self) -> bool {
        let Some((_, shipped)) = &self.replica else { return false };
        shipped.replica.commit();
        true
    }

    fn scrub(&self, order: ScrubOrder) -> Option<Scrub> {
        self.volume.scrub(order)
    }

    /// What is known at the end can be had again by opening the store.
    fn close(self: Box<Self>, _: &Entry, _: Duration) -> Result<Option<Facts>, Error> {
        self.volume.shut_down().map_err(|error| {
            Error::from(OpenError::NotClosed { path: self.path.clone(), reason: error.to_string() })
        })?;
        // The store is whole. Its copy is behind, and the user must be told.
        match &self.replica {
            Some((replication, shipped)) if shipped.replica.status().has_left => {
                let (path, url) = (self.path.clone(), replication.url.to_string());
                let status = shipped.replica.status();
                let slow = || {
                    let (bytes, seconds) = (status.lag.bytes, LEAVE_AFTER.as_secs());
                    let bytes = terminal::Size(bytes);
                    format!("{bytes} were not shipped within {seconds} s: the line is slow")
                };
                let error = status.health.error.as_ref();
                let reason = error.map_or_else(slow, ToString::to_string);
                Err(OpenError::CopyBehind { path, url, reason }.into())
            }
            _ => Ok(None),
        }
    }
}

/// Why the library did not open the store at `path`; of what is no store with what it is instead.
pub fn refused(path: PathBuf, kind: &OpenErrorKind) -> OpenError {
    if !matches!(kind, OpenErrorKind::NotAStore) {
        return OpenError::Refused { path, reason: kind.to_string() };
    }
    if matches!(is_blank(&path), Ok(true)) {
        return OpenError::Blank { path };
    }
    match what_it_holds(&path) {
        Ok(Some(what)) => OpenError::HoldsOther { path, what },
        Ok(None) | Err(_) => OpenError::NotKnown { path },
    }
}

/// What the file or disk at `path` holds, if its marks tell.
fn what_it_holds(path: &Path) -> io::Result<Option<&'static str>> {
    let mut file = seekable::open(path)?;
    let size = file.seek(SeekFrom::End(0))?;
    let found = signatures::detect(&file, size)?;
    Ok(found.first().map(|signature| signature.what))
}

/// Whether a regular file is at `path` that holds nothing but zeros. Of a disk that is not known:
/// where only its ends are blank, it may have been a store.
///
/// # Errors
/// When it cannot be read.
pub fn is_blank(path: &Path) -> io::Result<bool> {
    // Nothing else is opened: a pipe would wait for somebody to write.
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        return Ok(false);
    }
    let content = sparse::content(&File::open(path)?, metadata.len(), BLANK_READ_MAX)?;
    Ok(content == Content::Zeros)
}

fn trims(trim: Trim, path: &Path) -> bool {
    // A file of which all space is reserved keeps it: its blocks were written once, and are cheap
    // to write again.
    let gains = |metadata: fs::Metadata| {
        let is_sparse = metadata.is_file() && metadata.blocks() * 512 < metadata.len();
        metadata.file_type().is_block_device() || is_sparse
    };
    match trim {
        Trim::Yes => true,
        Trim::No => false,
        Trim::Auto => fs::metadata(path).is_ok_and(gains),
    }
}
