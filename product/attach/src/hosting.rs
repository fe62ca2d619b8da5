//! A loop that drives a session: on the service's own thread if that takes a guest, else on a
//! thread of its own.
//!
//! As a guest it hands nothing to another thread, which for small requests costs more than the
//! work; see [`BlockService::host`] for what it must not do then.

use coulter::service::{BlockService, Guest, Session};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

/// Where a loop runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopPlace {
    /// On the service's thread: the service gets further only inside calls of the session, so a
    /// sleep has to heed it even with nothing outstanding. Others may use the same service.
    Guest,
    /// On a thread of its own.
    OwnThread,
}

/// What a thread of its own is like.
pub struct ThreadShape {
    /// The name of the thread.
    pub name: &'static str,
    /// Bytes.
    pub stack_size: usize,
}

/// A loop that runs somewhere.
pub struct Hosted {
    ended: Receiver<()>,
}

impl Hosted {
    /// Whether the loop is over.
    pub fn has_ended(&self) -> bool {
        self.ended.try_recv() == Err(TryRecvError::Disconnected)
    }

    /// Waits until the loop is over and all that it owned is gone.
    pub fn await_end(self) {
        // Nothing is ever sent: this waits for the loop to drop its end, as a panic does too.
        let _ = self.ended.recv();
    }
}

/// Runs `work` with a session of `service`. What it captures lives as long as it runs.
///
/// # Errors
/// When there can be no thread.
pub fn host(
    service: &dyn BlockService,
    thread: &ThreadShape,
    work: impl FnOnce(Box<dyn Session>, LoopPlace) + Send + 'static,
) -> io::Result<Hosted> {
    let (ends, ended) = sync_channel::<()>(1);
    let is_guest = Arc::new(AtomicBool::new(true));
    let is_guest_there = is_guest.clone();
    let guest: Guest = Box::new(move |session| {
        // Dropped, and so told, when the work is over.
        let _ends: SyncSender<()> = ends;
        let is_guest = is_guest_there.load(Ordering::SeqCst);
        work(session, if is_guest { LoopPlace::Guest } else { LoopPlace::OwnThread });
    });
    if let Err(refused) = service.host(guest) {
        is_guest.store(false, Ordering::SeqCst);
        let session = service.connect();
        let builder = std::thread::Builder::new().name(thread.name.into());
        builder.stack_size(thread.stack_size).spawn(move || refused(session))?;
    }
    Ok(Hosted { ended })
}

/// Runs `work` on a thread of its own in any case: it sleeps in calls that the service must not wait for.
///
/// # Errors
/// When there can be no thread.
pub fn apart(
    service: &dyn BlockService,
    thread: &ThreadShape,
    work: impl FnOnce(Box<dyn Session>, LoopPlace) + Send + 'static,
) -> io::Result<Hosted> {
    let (ends, ended) = sync_channel::<()>(1);
    let session = service.connect();
    let builder = std::thread::Builder::new().name(thread.name.into());
    builder.stack_size(thread.stack_size).spawn(move || {
        // Dropped, and so told, when the work is over.
        let _ends: SyncSender<()> = ends;
        work(session, LoopPlace::OwnThread);
    })?;
    Ok(Hosted { ended })
}

#[cfg(test)]
mod tests {
    use super::*;
    use coulter::{CreateOptions, OpenOptions, Volume, create};
    use coulter_attach_suite::memory::{MemoryOptions, MemoryService};
    use coulter_device::MemoryStore;
    use std::time::{Duration, Instant};

    const SHAPE: ThreadShape = ThreadShape { name: "own", stack_size: 64 << 10 };

    /// Where work is done for the service, and the name of the thread.
    fn place_and_thread(service: &dyn BlockService) -> (LoopPlace, Option<String>) {
        let (sender, told) = sync_channel(1);
        let hosted = host(service, &SHAPE, move |_, place| {
            let name = std::thread::current().name().map(str::to_owned);
            sender.send((place, name)).expect("somebody listens");
        });
        hosted.expect("threads can be had").await_end();
        told.try_recv().expect("it was sent before the end")
    }

    #[test]
    fn where_no_guest_is_taken_the_work_has_a_thread_of_its_own() {
        let service = MemoryService::new(MemoryOptions::new(1 << 20));
        assert_eq!(place_and_thread(&service), (LoopPlace::OwnThread, Some("own".to_owned())));
    }

    #[test]
    fn a_volume_takes_one_guest_at_a_time() {
        let store = MemoryStore::new(64 << 20);
        let options = CreateOptions { segment_size: Some(2 << 20), ..CreateOptions::default() };
        create(Box::new(store.open().unwrap()), &options).unwrap();
        let volume = Volume::open(Box::new(store.open().unwrap()), OpenOptions::default()).unwrap();
        let on_volume = (LoopPlace::Guest, Some("coulter-volume".to_owned()));
        assert_eq!(place_and_thread(&volume), on_volume);
        let (leave, left) = sync_channel::<()>(1);
        let first = host(&volume, &SHAPE, move |_, _| assert!(left.recv().is_ok())).unwrap();
        assert_eq!(place_and_thread(&volume).0, LoopPlace::OwnThread, "the seat is taken");
        leave.send(()).unwrap();
        first.await_end();
        // The volume sees a little later that its guest has left.
        let limit = Instant::now() + Duration::from_secs(10);
        while place_and_thread(&volume) != on_volume {
            assert!(Instant::now() < limit, "there is room for the next guest");
        }
        host(&volume, &SHAPE, |_, _| panic!("on purpose")).unwrap().await_end();
        volume.close().unwrap();
    }
}
