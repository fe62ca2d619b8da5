//! Stores as the verbs see them: found, made, opened, served, closed.

use crate::backing::Backing;
use crate::error::{CliError, StoreError};
use crate::format_store::Made;
use crate::opening::{Opening, Trim};
use crate::size::Size;
use crate::sparse::{self, Content};
use crate::state::{Entry, StateDirectory};
use crate::status::{Facts, Status, facts_of};
use crate::trace::{Recorder, Side, TracedService};
use crate::verbs::create::Shape;
use coulter::service::BlockService;
use coulter::tuning::{Retuning, Tuning};
use coulter::{CreateError, CreateOptions, Failures, OpenErrorKind, State, Volume};
use coulter_check::FileBlocks;
use coulter_device::wrap::{TraceRecord, TracedDevice};
use coulter_device::{CommandKind, Device, OpenError, OpenOptions};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a file without a store that are read to find out whether it is blank.
const BLANK_READ_MAX: u64 = 1 << 30;

/// That there is nothing at `path`, or nothing that it leads to. Nobody keeps files in `/dev`, save in what it
/// has for them.
pub(crate) fn missing(path: &Path) -> StoreError {
    let is_device = |path: PathBuf| path.starts_with("/dev") && !path.starts_with("/dev/shm");
    let path = path.to_owned();
    if let Ok(target) = fs::read_link(&path) {
        return StoreError::LinkToNothing { path, target };
    }
    match std::path::absolute(&path).is_ok_and(is_device) {
        true => StoreError::DeviceMissing { path },
        false => StoreError::StoreMissing { path },
    }
}

/// The absolute path of the store at `path`.
///
/// # Errors
/// [`missing`] when nothing is there.
pub(crate) fn existing(path: &Path) -> Result<PathBuf, CliError> {
    path.canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => missing(path).into(),
        _ => CliError::io("open", path, error),
    })
}

/// The same of a store that is to be served: what is recorded of it is text.
///
/// # Errors
/// [`StoreError::PathNotText`].
pub(crate) fn existing_to_serve(path: &Path) -> Result<PathBuf, CliError> {
    let path = existing(path)?;
    match path.to_str() {
        Some(_) => Ok(path),
        None => Err(StoreError::PathNotText { path }.into()),
    }
}

/// The file or disk at `path`, locked against others.
///
/// # Errors
/// [`StoreError::Open`].
pub(crate) fn open_device(path: &Path, read_only: bool) -> Result<Box<dyn Device>, CliError> {
    let options = OpenOptions { read_only, ..OpenOptions::default() };
    coulter_device::open_path(path, &options).map_err(|error| not_opened(path, &error))
}

/// The file at `path`, which [`lock_file`] has locked.
///
/// # Errors
/// [`StoreError::Open`].
pub(crate) fn open_locked_device(path: &Path) -> Result<Box<dyn Device>, CliError> {
    let options = OpenOptions { locked: true, ..OpenOptions::default() };
    coulter_device::open_path(path, &options).map_err(|error| not_opened(path, &error))
}

/// Locks the regular file at `path` against others until `file` is closed, as an open store is.
///
/// # Errors
/// [`StoreError::Open`].
pub(crate) fn lock_file(file: &File, path: &Path) -> Result<(), CliError> {
    coulter_device::lock_file(file, path).map_err(|error| not_opened(path, &error))
}

fn not_opened(path: &Path, error: &OpenError) -> CliError {
    // It names the path, as the report around it does.
    let text = error.to_string();
    let reason = text.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&text).to_owned();
    let path = path.to_owned();
    match error {
        OpenError::InUse { .. } => StoreError::InUse { path, reason, name: None }.into(),
        _ => StoreError::Open { path, reason }.into(),
    }
}

/// That no daemon serves the store at `path`, which was just locked: one that becomes another program
/// has it unlocked for a moment.
///
/// # Errors
/// [`StoreError::InUse`].
pub(crate) fn refuse_attached(path: &Path, state: Option<&StateDirectory>) -> Result<(), CliError> {
    attached_as(path, state).map_or(Ok(()), |entry| Err(in_use_as(path, entry)))
}

/// The same of what could not be opened; if it is in use as a volume of ours, with the name of that.
pub(crate) fn naming_volume(
    error: CliError,
    path: &Path,
    state: Option<&StateDirectory>,
) -> CliError {
    match (&error, attached_as(path, state)) {
        (CliError::Store(StoreError::InUse { .. }), Some(entry)) => in_use_as(path, entry),
        _ => error,
    }
}

fn attached_as(path: &Path, state: Option<&StateDirectory>) -> Option<Entry> {
    let path = path.canonicalize().ok()?;
    let attached = state.and_then(|state| state.attached().ok()).unwrap_or_default();
    attached.into_iter().find(|entry| entry.is_of(&path) == Some(true))
}

fn in_use_as(path: &Path, entry: Entry) -> CliError {
    let Entry { name, process, .. } = entry;
    let reason =
        format!("in use by process {} (coulter), which serves it as '{name}'", process.pid);
    StoreError::InUse { path: path.to_owned(), reason, name: Some(name) }.into()
}

/// What `shape` asks for.
pub(crate) fn create_options(shape: &Shape, map_memory: Option<Size>) -> CreateOptions {
    let default = CreateOptions::default();
    CreateOptions {
        volume_size: shape.volume_size.map(|size| size.0),
        segment_size: shape.segment_size.map(|size| size.0),
        spare_percent: shape.spare.unwrap_or(default.spare_percent),
        map_memory: map_memory.map(|size| size.0),
        label: shape.label.clone(),
        ..default
    }
}

/// Whether `options` make a store of `size` bytes; nothing is touched.
///
/// # Errors
/// [`StoreError::Create`].
pub(crate) fn check_create(
    path: &Path,
    size: u64,
    options: &CreateOptions,
) -> Result<(), CliError> {
    coulter::check_create(size, options).map_err(|error| not_created(path, &error))
}

fn not_created(path: &Path, error: &CreateError) -> CliError {
    let is_usage = !matches!(error, CreateError::Device { .. } | CreateError::NoRandomness);
    StoreError::Create { path: path.to_owned(), reason: error.to_string(), is_usage }.into()
}

/// Makes a store on all of `device`.
///
/// # Errors
/// [`StoreError::Create`].
pub(crate) fn create(
    path: &Path,
    device: Box<dyn Device>,
    options: &CreateOptions,
) -> Result<Made, CliError> {
    let geometry = coulter::create(device, options).map_err(|error| not_created(path, &error))?;
    Ok(Made {
        store: path.to_owned(),
        uuid: geometry.uuid_text(),
        label: geometry.label,
        store_size_bytes: geometry.store_size_bytes,
        volume_size_bytes: geometry.volume_size_bytes,
        segment_size_bytes: geometry.segment_size_bytes,
        segments_total: geometry.segment_count,
        map_memory_bytes: geometry.map_memory_min_bytes,
    })
}

/// A store that is read from outside, locked against whoever would write to it.
pub(crate) struct LockedBlocks {
    /// Its blocks.
    pub(crate) blocks: FileBlocks,
    #[expect(dead_code, reason = "held for its lock")]
    device: Box<dyn Device>,
}

impl LockedBlocks {
    /// Opens the store at `path` for reading only.
    ///
    /// # Errors
    /// [`StoreError::Open`]; [`StoreError::InUse`], for one when it is attached.
    pub(crate) fn open(
        path: &Path,
        state: Option<&StateDirectory>,
    ) -> Result<LockedBlocks, CliError> {
        let device = open_device(path, true).map_err(|error| naming_volume(error, path, state))?;
        refuse_attached(path, state)?;
        let blocks = FileBlocks::open(path).map_err(|e| CliError::io("read", path, e))?;
        Ok(LockedBlocks { blocks, device })
    }
}

/// A store that is open in this process.
pub(crate) struct OpenStore {
    path: PathBuf,
    volume: Arc<Volume>,
}

impl OpenStore {
    /// Opens the store at `path`; what is lost after a crash is recovered here. Writes to the device
    /// are recorded in `recorder`.
    ///
    /// # Errors
    /// [`StoreError::Open`].
    pub(crate) fn open(
        path: &Path,
        opening: &Opening,
        recorder: Option<&Arc<Recorder>>,
    ) -> Result<OpenStore, CliError> {
        let path = path.to_owned();
        let device = open_device(&path, opening.read_only)?;
        let device = match recorder {
            Some(recorder) => traced(device, recorder),
            None => device,
        };
        let options = coulter::OpenOptions {
            map_memory: opening.map_memory.map(|size| size.0),
            read_only: opening.read_only,
            trim: trims(opening.trim, &path),
            tuning: opening.tuning(),
            acknowledge: opening.acknowledge.into(),
            ..coulter::OpenOptions::default()
        };
        match Volume::open(device, options) {
            Ok(volume) => Ok(OpenStore { path, volume: Arc::new(volume) }),
            Err(error) if is_blank_file(&error.kind, &path) => {
                Err(StoreError::Blank { path }.into())
            }
            Err(error) => Err(StoreError::Open { path, reason: error.kind.to_string() }.into()),
        }
    }
}

impl Backing for OpenStore {
    fn service(&self, recorder: Option<&Arc<Recorder>>) -> Arc<dyn BlockService> {
        let volume: Arc<dyn BlockService> = Arc::clone(&self.volume) as _;
        match recorder {
            Some(recorder) => Arc::new(TracedService::new(volume, Arc::clone(recorder))),
            None => volume,
        }
    }

    fn uuid(&self) -> String {
        self.volume.geometry().uuid_text()
    }

    fn size(&self) -> u64 {
        self.volume.size()
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
        Facts::Volume(Status::new(entry, state.to_string(), uptime, statistics))
    }

    fn tune(&self, retuning: Retuning) -> Option<Tuning> {
        self.volume.tune(retuning)
    }

    fn outlives_the_process(&self) -> bool {
        true
    }

    /// What is known at the end can be had again by opening the store.
    fn close(self: Box<Self>, _: &Entry, _: Duration) -> Result<Option<Facts>, CliError> {
        self.volume.shut_down().map(|()| None).map_err(|error| {
            StoreError::Close { path: self.path.clone(), reason: error.to_string() }.into()
        })
    }
}

/// Whether there is no store because there is nothing at all.
fn is_blank_file(kind: &OpenErrorKind, path: &Path) -> bool {
    matches!(kind, OpenErrorKind::NotAStore) && matches!(is_blank(path), Ok(true))
}

/// Whether a regular file is at `path` that holds nothing but zeros. Of a disk that is not known:
/// where only its ends are blank, it may have been a store.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn is_blank(path: &Path) -> io::Result<bool> {
    // Nothing else is opened: a pipe would wait for somebody to write.
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        return Ok(false);
    }
    let content = sparse::content(&File::open(path)?, metadata.len(), BLANK_READ_MAX)?;
    Ok(content == Content::Zeros)
}

fn trims(trim: Trim, path: &Path) -> bool {
    let is_disk = || fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device());
    match trim {
        Trim::Yes => true,
        Trim::No => false,
        // Punching holes into a file costs more than it gives: the next segment fills them again.
        Trim::Auto => is_disk(),
    }
}

/// `device`, with its writes recorded.
fn traced(device: Box<dyn Device>, recorder: &Arc<Recorder>) -> Box<dyn Device> {
    let recorder = Arc::clone(recorder);
    let sink = move |record: &TraceRecord| {
        if record.kind == CommandKind::Write {
            let age = Duration::from_nanos(record.latency_ns);
            recorder.record(Side::Device, record.offset, record.length, age);
        }
    };
    Box::new(TracedDevice::new(device, sink))
}
