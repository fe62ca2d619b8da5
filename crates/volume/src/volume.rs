//! An open volume: a handle on the thread that serves it.

use crate::calls::Callers;
use crate::close_error::CloseError;
use crate::driver::Settings;
use crate::event_loop::{self, Outcome};
use crate::geometry::Geometry;
use crate::message::{Ending, Message};
use crate::open_error::{OpenError, OpenErrorKind};
use crate::service::{BlockService, Session};
use crate::session::VolumeSession;
use crate::state::{Shared, State};
use crate::statistics::Statistics;
use coulter_device::Device;
use coulter_engine::Config;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Fewest requests that the engine has places for.
const REQUEST_COUNT_MIN: u32 = 16;

/// How to open a store. None of it changes what is stored.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Bytes that the map may occupy; `None` for what was decided when the store was made.
    pub map_memory: Option<u64>,
    /// Refuse writes, and leave the device as it is.
    pub read_only: bool,
    /// Discard freed segments on the device.
    pub trim: bool,
    /// Writes of records under way up to which requests are not gathered any longer.
    pub batch_depth: u32,
    /// Buffers for records, of about 1 MiB each.
    pub record_count: u16,
    /// Requests that are worked on at once; others wait.
    pub request_count: u32,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        let config = Config::default();
        OpenOptions {
            map_memory: config.map_size,
            read_only: config.read_only,
            trim: config.trim,
            batch_depth: config.batch_depth,
            record_count: config.record_count,
            request_count: config.request_count,
        }
    }
}

impl OpenOptions {
    fn settings(&self) -> Result<Settings, OpenErrorKind> {
        let least = [
            ("batch_depth", u64::from(self.batch_depth), 1),
            ("record_count", self.record_count.into(), Config::RECORD_COUNT_MIN.into()),
            ("request_count", self.request_count.into(), REQUEST_COUNT_MIN.into()),
        ];
        for (name, value, min) in least {
            if value < min {
                return Err(OpenErrorKind::Option { name, min });
            }
        }
        let config = Config {
            map_size: self.map_memory,
            record_count: self.record_count,
            request_count: self.request_count,
            batch_depth: self.batch_depth,
            trim: self.trim,
            read_only: self.read_only,
            ..Config::default()
        };
        Ok(Settings { config })
    }
}

/// An open volume. Dropping it closes it; only [`Volume::close`] says how that went.
pub struct Volume {
    shared: Arc<Shared>,
    geometry: Geometry,
    pub(crate) callers: Callers,
    /// `None` once it has ended.
    thread: Mutex<Option<JoinHandle<Outcome>>>,
}

impl Volume {
    /// Opens the store on `device`: finds the newest checkpoint and replays what came after it.
    /// Returns as soon as it can be read; writes wait a moment longer, for a first checkpoint.
    ///
    /// # Errors
    /// [`OpenError`]. The device is as it was then.
    pub fn open(device: Box<dyn Device>, options: OpenOptions) -> Result<Volume, OpenError> {
        let description = device.properties().description.clone();
        open(device, options).map_err(|kind| OpenError { device: description, kind })
    }

    /// Bytes that it offers, a multiple of 4096.
    pub fn size(&self) -> u64 {
        self.geometry.volume_size_bytes
    }

    /// Identity and sizes.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// What it can do at the moment.
    pub fn state(&self) -> State {
        self.shared.state()
    }

    /// What it has done so far. Of a volume that has ended: what it had done then.
    pub fn statistics(&self) -> Statistics {
        let (sender, receiver) = sync_channel(1);
        let sent = self.shared.mailbox.try_send(Message::Statistics(sender));
        let answer = sent.ok().and_then(|()| receiver.recv().ok());
        answer.unwrap_or_else(|| self.shared.last_statistics())
    }

    /// Ends it in order: requests that were handed over are finished, later ones complete with
    /// `Closed`, a checkpoint is written, the device is closed.
    ///
    /// # Errors
    /// [`CloseError`]. It is closed all the same.
    pub fn close(self) -> Result<(), CloseError> {
        self.shut_down()
    }

    /// The same for a volume that is shared. A second call does nothing.
    ///
    /// # Errors
    /// As [`Volume::close`].
    pub fn shut_down(&self) -> Result<(), CloseError> {
        self.end(Ending::Orderly)
    }

    /// Ends it at once and without a checkpoint, as if the process had been killed: the next
    /// opening has to replay. Completed writes are not lost.
    ///
    /// # Errors
    /// [`CloseError::Bug`] if it had ended before, by a bug.
    pub fn abandon(self) -> Result<(), CloseError> {
        self.end(Ending::Abrupt)
    }

    fn end(&self, ending: Ending) -> Result<(), CloseError> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(handle) = thread.take() else { return Ok(()) };
        // Refused only by a loop that has ended; then there is only to be asked why.
        let _ = self.shared.mailbox.try_send(Message::End(ending));
        handle.join().unwrap_or_else(|_| Err(CloseError::Bug("the loop's thread died".to_string())))
    }

    pub(crate) fn session(&self) -> VolumeSession {
        VolumeSession::new(self.shared.clone(), self.size())
    }
}

fn open(device: Box<dyn Device>, options: OpenOptions) -> Result<Volume, OpenErrorKind> {
    let settings = options.settings()?;
    if device.properties().read_only && !options.read_only {
        return Err(OpenErrorKind::ReadOnlyDevice);
    }
    let shared = Arc::new(Shared::new(device.waker()).map_err(OpenErrorKind::Resources)?);
    let (sender, receiver) = sync_channel(1);
    let loop_shared = shared.clone();
    let thread = std::thread::Builder::new().name("coulter-volume".to_string());
    let body = move || event_loop::run(device, &settings, &loop_shared, &sender);
    let handle = thread.spawn(body).map_err(OpenErrorKind::Resources)?;
    match receiver.recv() {
        Ok(Ok(geometry)) => {
            let thread = Mutex::new(Some(handle));
            Ok(Volume { shared, geometry, callers: Callers::default(), thread })
        }
        Ok(Err(kind)) => {
            // The device is closed when the thread has ended.
            let _ = handle.join();
            Err(kind)
        }
        Err(_) => Err(OpenErrorKind::Bug("the loop's thread died".to_string())),
    }
}

impl BlockService for Volume {
    fn size(&self) -> u64 {
        Volume::size(self)
    }

    fn read_only(&self) -> bool {
        self.state() != State::Running
    }

    fn connect(&self) -> Box<dyn Session> {
        Box::new(self.session())
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // Who wants to know how it went calls `close`.
        let _ = self.shut_down();
    }
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume")
            .field("geometry", &self.geometry)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
