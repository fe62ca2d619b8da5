//! A loop that drives a session: on the service's own thread if that takes a guest, else on a
//! thread of its own.
//!
//! As a guest it hands nothing to another thread, which for small requests costs more than the
//! work; see [`BlockService::host`] for what it must not do then.

use coulter::service::{BlockService, Guest, Session};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Where a loop runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On the service's thread: the service gets further only inside calls of the session, so a
    /// sleep has to heed it even with nothing outstanding. Others may use the same service.
    Guest,
    /// On a thread of its own.
    OwnThread,
}

/// What a thread of its own is like.
pub(crate) struct ThreadShape {
    pub(crate) name: &'static str,
    /// Bytes.
    pub(crate) stack_size: usize,
}

/// A loop that runs somewhere.
pub(crate) struct Hosted {
    ended: Receiver<()>,
}

impl Hosted {
    /// Waits until the loop is over and all that it owned is gone.
    pub(crate) fn await_end(self) {
        // Nothing is ever sent: this waits for the loop to drop its end, as a panic does too.
        let _ = self.ended.recv();
    }
}

/// Runs `work` with a session of `service`. What it captures lives as long as it runs.
///
/// # Errors
/// When there can be no thread.
pub(crate) fn host(
    service: &dyn BlockService,
    thread: &ThreadShape,
    work: impl FnOnce(Box<dyn Session>, Place) + Send + 'static,
) -> io::Result<Hosted> {
    let (ends, ended) = sync_channel::<()>(1);
    let is_guest = Arc::new(AtomicBool::new(true));
    let is_guest_there = is_guest.clone();
    let guest: Guest = Box::new(move |session| {
        // Dropped, and so told, when the work is over.
        let _ends: SyncSender<()> = ends;
        let is_guest = is_guest_there.load(Ordering::SeqCst);
        work(session, if is_guest { Place::Guest } else { Place::OwnThread });
    });
    if let Err(refused) = service.host(guest) {
        is_guest.store(false, Ordering::SeqCst);
        let session = service.connect();
        let builder = std::thread::Builder::new().name(thread.name.into());
        builder.stack_size(thread.stack_size).spawn(move || refused(session))?;
    }
    Ok(Hosted { ended })
}
