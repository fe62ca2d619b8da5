//! An open volume: a handle on the thread that serves it.

use crate::calls::{Caller, IdleCallers, calls};
use crate::close_error::CloseError;
use crate::event_loop::Outcome;
use crate::failures::Failures;
use crate::geometry::Geometry;
use crate::loop_thread;
use crate::memory::Memory;
use crate::message::{Ending, Message};
use crate::open_error::{OpenError, OpenErrorKind};
use crate::open_options::OpenOptions;
use crate::scrub::{Scrub, ScrubOrder};
use crate::service::{
    BlockService, Change, Completion, Description, Extent, Guest, Identity, Operation,
    REQUEST_SIZE_MAX, RequestError, Session, Watch,
};
use crate::session::VolumeSession;
use crate::state::{Shared, State};
use crate::statistics::Statistics;
use crate::tuning::{Retuning, Tuning};
use crate::validity::ByteRange;
use coulter_device::Device;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// An open volume. Dropping it closes it; only [`Volume::close`] says how that went.
pub struct Volume {
    shared: Arc<Shared>,
    geometry: Geometry,
    callers: IdleCallers<VolumeSession>,
    /// `None` once it has ended.
    running: Mutex<Option<Running>>,
}

/// The loop's thread.
struct Running {
    handle: JoinHandle<()>,
    /// Told how the volume has ended. The thread may stay for a guest.
    ended: Receiver<Outcome>,
}

calls!(Volume);

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

    /// How long requests have been waiting without any being answered; `None` if none waits. It is told
    /// without asking the volume's thread: after seconds, look at the device.
    pub fn unanswered_for(&self) -> Option<Duration> {
        self.shared.unanswered_for()
    }

    /// What has failed so far. It is told without asking the volume's thread.
    pub fn failures(&self) -> Failures {
        self.shared.failures()
    }

    /// What it has done so far. Of a volume that has ended: what it had done then.
    pub fn statistics(&self) -> Statistics {
        self.shared.assert_may_wait();
        let (sender, receiver) = sync_channel(1);
        let sent = self.shared.mailbox.try_send(Message::Statistics(sender));
        let answer = sent.ok().and_then(|()| receiver.recv().ok());
        answer.unwrap_or_else(|| self.shared.last_statistics())
    }

    /// Changes settings, at once, and tells what they are then; `None` if the volume has ended. What
    /// is not named stays, so that naming nothing only asks.
    pub fn tune(&self, retuning: Retuning) -> Option<Tuning> {
        self.shared.assert_may_wait();
        let (sender, receiver) = sync_channel(1);
        let sent = self.shared.mailbox.try_send(Message::Tune(retuning, sender));
        sent.ok().and_then(|()| receiver.recv().ok())
    }

    /// Begins or ends a scrub, at once, and tells how far it is; `None` if the volume has ended. A scrub goes on by
    /// itself, and ends with the volume.
    pub fn scrub(&self, order: ScrubOrder) -> Option<Scrub> {
        self.shared.assert_may_wait();
        let (sender, receiver) = sync_channel(1);
        let sent = self.shared.mailbox.try_send(Message::Scrub(order, sender));
        sent.ok().and_then(|()| receiver.recv().ok())
    }

    /// Refuses writes and flushes with this error number from now on, because something outside has
    /// taken a part of the store. Reads go on.
    pub fn refuse_writes(&self, errno: i32) {
        // A volume that has ended refuses everything.
        let _ = self.shared.mailbox.try_send(Message::RefuseWrites(errno));
    }

    /// Ends it in order: requests that were handed over are finished, later ones complete with
    /// `Closed`, a checkpoint is written, the device is closed. A guest only asks for this: the volume
    /// ends when it has returned.
    ///
    /// # Errors
    /// [`CloseError`]. It is closed all the same.
    pub fn close(self) -> Result<(), CloseError> {
        self.shut_down()
    }

    /// The same for a volume that is shared. A second call does nothing, and does not tell how the first
    /// one went.
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
    /// [`CloseError`] if it had ended before, by a failed device or a bug.
    pub fn abandon(self) -> Result<(), CloseError> {
        self.end(Ending::Abrupt)
    }

    fn end(&self, ending: Ending) -> Result<(), CloseError> {
        if self.shared.is_loop_thread() {
            // A guest's. The volume ends when it has returned; it may not even wait for somebody who waits.
            let _ = self.shared.mailbox.try_send(Message::End(ending));
            return Ok(());
        }
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Running { handle, ended }) = running.take() else { return Ok(()) };
        // Refused only by a loop that has ended; then there is only to be asked why.
        let _ = self.shared.mailbox.try_send(Message::End(ending));
        let died = |_| Err(CloseError::Bug("the loop's thread died".to_string()));
        let outcome = ended.recv().unwrap_or_else(died);
        if !self.shared.has_guest() {
            // What it had to say was said.
            let _ = handle.join();
        }
        outcome
    }

    fn call(
        &self,
        operation: Operation,
        range: ByteRange,
        memory: Memory,
    ) -> Result<Completion, RequestError> {
        let mut caller = self.callers.take().unwrap_or_else(|| Caller::new(self.session()));
        let called = caller.call(operation, range, memory);
        self.callers.give(caller);
        called
    }

    fn call_exact(
        &self,
        operation: Operation,
        range: ByteRange,
        memory: Memory,
    ) -> Result<Completion, RequestError> {
        let mut caller = self.callers.take().unwrap_or_else(|| Caller::new(self.session()));
        let called = caller.call_exact(operation, range, memory);
        self.callers.give(caller);
        called
    }

    fn call_many(
        &self,
        changes: &[Change],
        fua: bool,
        memory: Memory,
    ) -> Result<Completion, RequestError> {
        let mut caller = self.callers.take().unwrap_or_else(|| Caller::new(self.session()));
        let called = caller.call_many(changes, fua, memory);
        self.callers.give(caller);
        called
    }

    fn session(&self) -> VolumeSession {
        VolumeSession::new(self.shared.clone(), self.size())
    }
}

fn open(device: Box<dyn Device>, options: OpenOptions) -> Result<Volume, OpenErrorKind> {
    let settings = options.settings_for(&*device)?;
    let shared = Arc::new(Shared::new(&*device).map_err(OpenErrorKind::Resources)?);
    let (opened, receiver) = sync_channel(1);
    let (ends, ended) = sync_channel(1);
    let loop_shared = shared.clone();
    let thread = std::thread::Builder::new().name("coulter-volume".to_string());
    let body = move || loop_thread::run(device, &settings, &loop_shared, &opened, ends);
    let handle = thread.spawn(body).map_err(OpenErrorKind::Resources)?;
    match receiver.recv() {
        Ok(Ok(geometry)) => {
            let running = Mutex::new(Some(Running { handle, ended }));
            Ok(Volume { shared, geometry, callers: IdleCallers::default(), running })
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
        !self.state().takes_writes()
    }

    fn describe(&self) -> Description {
        let Geometry { uuid, label, .. } = &self.geometry;
        let identity = Identity::of_store(*uuid, label);
        Description::new(identity, self.size(), self.read_only())
    }

    fn watch(&self, watcher: Weak<dyn Watch>) {
        self.shared.watchers.add(watcher);
    }

    fn connect(&self) -> Box<dyn Session + Send> {
        Box::new(self.session())
    }

    fn host(&self, guest: Guest) -> Result<(), Guest> {
        if !self.shared.try_reserve_guest() {
            return Err(guest);
        }
        let Err(message) = self.shared.mailbox.try_send(Message::Host(guest)) else {
            return Ok(());
        };
        self.shared.release_guest();
        let Message::Host(guest) = message else { unreachable!("what was sent comes back") };
        Err(guest)
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
