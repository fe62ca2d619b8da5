//! An emulated drive behind an attach point, by itself or with a volume on it.

use crate::drive_facts::Flash;
use crate::error::{EmulationError, LabError};
use coulter::service::BlockService;
use coulter::tuning::{Retuning, Tuning};
use coulter::{CreateOptions, Failures, OpenOptions, State, Volume};
use coulter_cli::error::{CliError, StoreError};
use coulter_daemon::error::OpenError;
use coulter_daemon::state::name_of_store;
use coulter_daemon::status::{Facts, Other, Status, facts_of};
use coulter_daemon::{Backing, Entry, Error, Opening, Source};
use coulter_flash::{Drive, DriveService, FlashStore, FtlKind, FtlOptions, Keep, Pacing, Profile};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// What is emulated.
#[derive(Clone, Debug)]
pub(crate) struct Emulation {
    /// The drive.
    pub(crate) profile: Profile,
    /// Its translation layer.
    pub(crate) ftl: FtlKind,
    /// What that is told.
    pub(crate) ftl_options: FtlOptions,
    /// When requests are answered.
    pub(crate) pacing: Pacing,
    /// Segments that are kept apart.
    pub(crate) streams: Option<Streams>,
    /// A volume on it.
    pub(crate) volume: Option<VolumeShape>,
}

/// Segments that the drive keeps apart while they are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams {
    /// How many at a time.
    pub(crate) count: u8,
    /// Segment size for stream detection; `None` if the volume names its streams.
    pub(crate) segment_size: Option<u64>,
}

/// A volume on an emulated drive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VolumeShape {
    /// Space kept free for cleaning, as a share of the volume.
    pub(crate) spare_percent: u32,
    /// Unit of allocation and cleaning; chosen by size if not given.
    pub(crate) segment_size: Option<u64>,
    /// Page size of the flash, if the volume is to know it.
    pub(crate) page_size: Option<u64>,
    /// Whether it pads partly dead pages.
    pub(crate) pad_pages: bool,
    /// What is changed of it from the beginning.
    pub(crate) tuning: Retuning,
}

impl Emulation {
    /// Bytes of memory that it may come to take: every page that is written, and what is known of
    /// every page.
    fn memory_max(&self) -> u64 {
        let shape = &self.profile.geometry;
        u64::from(shape.pages()) * (u64::from(shape.page_size) + 64)
    }
}

impl Source for Emulation {
    /// What stands where the path of a store would.
    fn store(&self) -> PathBuf {
        let volume = if self.volume.is_some() { "+volume" } else { "" };
        PathBuf::from(format!("flash:{}+{}{volume}", self.profile.name, self.ftl))
    }

    fn name(&self) -> String {
        name_of_store(Path::new(&self.profile.name))
    }

    fn is_at_its_path(&self) -> bool {
        false
    }

    fn open(&self, _: &Opening) -> Result<Box<dyn Backing>, Error> {
        Ok(Box::new(EmulatedDrive::start(self)?))
    }
}

/// A drive that is emulated in this process.
pub(crate) struct EmulatedDrive {
    path: PathBuf,
    pacing: Pacing,
    store: FlashStore,
    user: User,
}

/// Who has the drive open.
enum User {
    Host(Arc<DriveService>),
    Volume(Arc<Volume>),
}

impl EmulatedDrive {
    /// Makes the drive, and a volume on it if that is asked for.
    ///
    /// # Errors
    /// A drive that cannot be, or does not fit into memory; a volume that does not fit onto it.
    pub(crate) fn start(emulation: &Emulation) -> Result<EmulatedDrive, LabError> {
        let path = emulation.store();
        let (needed, available) = (emulation.memory_max(), available_memory());
        if available.is_some_and(|available| needed > available) {
            let available = available.unwrap_or(0);
            return Err(EmulationError::NoMemory { drive: path, needed, available }.into());
        }
        let Emulation { profile, ftl, ftl_options, pacing, .. } = emulation.clone();
        let drive = Drive::new(profile, ftl, ftl_options, Keep::Bytes).map_err(|error| {
            EmulationError::Impossible { drive: path.clone(), reason: error.to_string() }
        })?;
        let store = FlashStore::new(drive);
        let failed = |reason: String| OpenError::Refused { path: path.clone(), reason };
        let user = match &emulation.volume {
            None => {
                separate(&store, emulation.streams);
                let service = store.serve(pacing).map_err(|error| failed(error.to_string()))?;
                User::Host(Arc::new(service))
            }
            Some(shape) => User::Volume(Arc::new(volume(&store, emulation, shape, &path)?)),
        };
        Ok(EmulatedDrive { path, pacing, store, user })
    }

    fn flash(&self) -> Map<String, Value> {
        let mut flash = facts_of(&self.store.report());
        let pace = match self.pacing {
            Pacing::Virtual => "virtual",
            Pacing::Real => "real",
        };
        flash.insert("pace".to_owned(), pace.into());
        flash
    }

    fn facts(&self, entry: &Entry, uptime: Duration) -> Facts {
        let flash = Flash(self.flash());
        match &self.user {
            User::Host(_) => {
                let (entry, uptime_seconds) = (entry.clone(), uptime.as_secs_f64());
                let (meters, told) = (flash.meters(uptime), flash.told());
                Facts::Other(Other { entry, uptime_seconds, meters, told })
            }
            User::Volume(volume) => {
                let state = volume.state();
                let (entry, statistics) = (entry.in_state(&state), facts_of(&volume.statistics()));
                let status = Status::new(entry, state.to_string(), uptime, statistics);
                Facts::Volume(status.on(flash.programmed_bytes(), flash.told()))
            }
        }
    }
}

/// A volume on all of the drive.
fn volume(
    store: &FlashStore,
    emulation: &Emulation,
    shape: &VolumeShape,
    path: &Path,
) -> Result<Volume, LabError> {
    let failed =
        |reason: String| LabError::from(OpenError::Refused { path: path.to_owned(), reason });
    let options = CreateOptions {
        segment_size: shape.segment_size,
        spare_percent: shape.spare_percent,
        page_size: shape.page_size,
        ..CreateOptions::default()
    };
    // Nobody waits for the format.
    let device = store.open(Pacing::Virtual).map_err(|error| failed(error.to_string()))?;
    coulter::create(Box::new(device), &options).map_err(|error| {
        let (path, reason) = (path.to_owned(), error.to_string());
        LabError::from(CliError::from(StoreError::Create { path, reason, is_usage: true }))
    })?;
    separate(store, emulation.streams);
    let device = store.open(emulation.pacing).map_err(|error| failed(error.to_string()))?;
    let (tuning, pad_pages) = (shape.tuning, shape.pad_pages);
    let options = OpenOptions { trim: true, tuning, pad_pages, ..OpenOptions::default() };
    Volume::open(Box::new(device), options).map_err(|error| failed(error.kind.to_string()))
}

/// Tells the drive what to keep apart.
fn separate(store: &FlashStore, streams: Option<Streams>) {
    let told = match streams {
        None => Ok(()),
        Some(Streams { count, segment_size: Some(size) }) => store.detect_streams(size, count),
        Some(Streams { count, segment_size: None }) => store.follow_streams(count),
    };
    told.expect("nobody has it open yet");
}

/// Bytes that processes may still take; `None` where the system does not say.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

impl Backing for EmulatedDrive {
    fn service(&self) -> Arc<dyn BlockService> {
        match &self.user {
            User::Host(service) => Arc::clone(service) as _,
            User::Volume(volume) => Arc::clone(volume) as _,
        }
    }

    fn state(&self) -> State {
        match &self.user {
            User::Host(_) => State::Running,
            User::Volume(volume) => volume.state(),
        }
    }

    fn unanswered_for(&self) -> Option<Duration> {
        match &self.user {
            // It has no device below that could keep it waiting.
            User::Host(_) => None,
            User::Volume(volume) => volume.unanswered_for(),
        }
    }

    fn failures(&self) -> Failures {
        match &self.user {
            User::Host(_) => Failures::default(),
            User::Volume(volume) => volume.failures(),
        }
    }

    fn status(&self, entry: &Entry, uptime: Duration) -> Facts {
        self.facts(entry, uptime)
    }

    fn tune(&self, retuning: Retuning) -> Option<Tuning> {
        match &self.user {
            User::Volume(volume) => volume.tune(retuning),
            User::Host(_) => None,
        }
    }

    fn bound_to_the_process(&self) -> Option<&'static str> {
        Some("what it serves is in its memory")
    }

    fn close(self: Box<Self>, entry: &Entry, uptime: Duration) -> Result<Option<Facts>, Error> {
        if let User::Volume(volume) = &self.user {
            volume.shut_down().map_err(|error| OpenError::NotClosed {
                path: self.path.clone(),
                reason: error.to_string(),
            })?;
        }
        Ok(Some(self.facts(entry, uptime)))
    }
}
