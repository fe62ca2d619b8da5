//! An open volume without a thread: the thread that makes requests carries them out.
//!
//! A request costs no hand-over, no wake and no lock. In exchange nothing goes on between calls:
//! cleaning, checkpoints and the requests themselves get further while the owner is in a call of
//! the volume or of one of its sessions, and only then. An owner that waits for other things too
//! sleeps on [`Session::completion_fd`] beside them, and calls when it is readable.
//!
//! # What it does not do
//! Serve other threads. [`Volume`](crate::Volume) does, and has a thread for it.

use crate::calls::{Caller, calls};
use crate::close_error::CloseError;
use crate::event_loop::EventLoop;
use crate::geometry::Geometry;
use crate::local_session::LocalSession;
use crate::memory::Memory;
use crate::message::Ending;
use crate::open_error::{OpenError, OpenErrorKind};
use crate::open_options::OpenOptions;
use crate::service::{
    Change, Completion, Extent, Operation, REQUEST_SIZE_MAX, RequestError, Session,
};
use crate::state::{Shared, State};
use crate::statistics::Statistics;
use crate::validity::ByteRange;
use coulter_device::{Device, Wait};
use coulter_engine::grow::Growth;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// An open volume that belongs to one thread. Dropping it closes it; only [`LocalVolume::close`]
/// says how that went.
///
/// ```
/// use coulter::{CreateOptions, LocalVolume, OpenOptions, create};
/// use coulter_device::MemoryStore;
///
/// let store = MemoryStore::new(64 << 20);
/// let options = CreateOptions { segment_size: Some(2 << 20), ..CreateOptions::default() };
/// create(Box::new(store.open()?), &options)?;
///
/// let volume = LocalVolume::open(Box::new(store.open()?), OpenOptions::default())?;
/// volume.write_at(8192, &[7; 4096])?;
/// volume.flush()?;
/// volume.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Nothing happens between calls: what was acknowledged from memory
/// ([`Acknowledge::Buffered`](crate::Acknowledge::Buffered)) gets no further until the next one.
///
/// It stays where it was opened:
///
/// ```compile_fail
/// fn move_away(volume: coulter::LocalVolume) {
///     std::thread::spawn(move || drop(volume));
/// }
/// ```
pub struct LocalVolume {
    event_loop: Rc<RefCell<EventLoop>>,
    shared: Arc<Shared>,
    geometry: Geometry,
    /// For calls, once there was one.
    caller: RefCell<Option<Caller<LocalSession>>>,
}

calls!(LocalVolume);

impl LocalVolume {
    /// Opens the store on `device` as [`Volume::open`](crate::Volume::open) does, on this thread
    /// and for it.
    ///
    /// # Errors
    /// [`OpenError`]. The device is as it was then.
    pub fn open(device: Box<dyn Device>, options: OpenOptions) -> Result<LocalVolume, OpenError> {
        let description = device.properties().description.clone();
        open(device, options, None).map_err(|kind| OpenError { device: description, kind })
    }

    /// The same for a store that is to take in the rest of the device. It offers the new size only
    /// when it is opened again.
    pub(crate) fn open_growing(
        device: Box<dyn Device>,
        options: OpenOptions,
        growth: Growth,
    ) -> Result<LocalVolume, OpenError> {
        let description = device.properties().description.clone();
        let opened = open(device, options, Some(growth));
        opened.map_err(|kind| OpenError { device: description, kind })
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

    /// Whether writes are refused.
    pub fn read_only(&self) -> bool {
        !self.state().takes_writes()
    }

    /// What it has done so far. Of a volume that has ended: what it had done then.
    pub fn statistics(&self) -> Statistics {
        self.event_loop.borrow().statistics()
    }

    /// A new, independent queue of requests, on this thread. It may outlive the volume; then it
    /// refuses everything.
    pub fn connect(&self) -> Box<dyn Session> {
        Box::new(self.session())
    }

    /// Ends it in order: requests that were handed over are finished, later ones complete with
    /// `Closed`, a checkpoint is written, the device is closed.
    ///
    /// # Errors
    /// [`CloseError`]. It is closed all the same.
    pub fn close(self) -> Result<(), CloseError> {
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
        let mut event_loop = self.event_loop.borrow_mut();
        if event_loop.outcome().is_none() {
            event_loop.begin_end(ending);
        }
        loop {
            event_loop.work();
            if let Some(outcome) = event_loop.outcome() {
                return outcome.clone();
            }
            event_loop.wait(Wait::Forever);
        }
    }

    fn call(
        &self,
        operation: Operation,
        range: ByteRange,
        memory: Memory,
    ) -> Result<Completion, RequestError> {
        let mut caller = self.caller.borrow_mut();
        let caller = caller.get_or_insert_with(|| Caller::new(self.session()));
        caller.call(operation, range, memory)
    }

    fn call_exact(
        &self,
        operation: Operation,
        range: ByteRange,
        memory: Memory,
    ) -> Result<Completion, RequestError> {
        let mut caller = self.caller.borrow_mut();
        let caller = caller.get_or_insert_with(|| Caller::new(self.session()));
        caller.call_exact(operation, range, memory)
    }

    fn call_many(
        &self,
        changes: &[Change],
        fua: bool,
        memory: Memory,
    ) -> Result<Completion, RequestError> {
        let mut caller = self.caller.borrow_mut();
        let caller = caller.get_or_insert_with(|| Caller::new(self.session()));
        caller.call_many(changes, fua, memory)
    }

    fn session(&self) -> LocalSession {
        LocalSession::new(self.event_loop.clone(), self.shared.clone())
    }
}

fn open(
    device: Box<dyn Device>,
    options: OpenOptions,
    growth: Option<Growth>,
) -> Result<LocalVolume, OpenErrorKind> {
    let mut settings = options.settings_for(&*device)?;
    settings.config.growth = growth;
    // Whoever asks is on the loop's own thread.
    settings.read_cache = 0;
    let shared = Arc::new(Shared::new(&*device).map_err(OpenErrorKind::Resources)?);
    let event_loop = EventLoop::open(device, &settings, shared.clone())?;
    let geometry = event_loop.geometry().clone();
    let event_loop = Rc::new(RefCell::new(event_loop));
    Ok(LocalVolume { event_loop, shared, geometry, caller: RefCell::default() })
}

impl Drop for LocalVolume {
    fn drop(&mut self) {
        // Who wants to know how it went calls `close`.
        let _ = self.end(Ending::Orderly);
    }
}

impl std::fmt::Debug for LocalVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalVolume")
            .field("geometry", &self.geometry)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
