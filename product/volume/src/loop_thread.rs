//! The thread of a volume that has one: it runs the loop, and a guest on top of it if there is one.
//!
//! A guest has a session on this very thread. Whatever it does with that session drives the loop,
//! so the loop needs nobody else meanwhile.

use crate::event_loop::{EventLoop, Outcome};
use crate::geometry::Geometry;
use crate::local_session::LocalSession;
use crate::open_error::OpenErrorKind;
use crate::open_options::Settings;
use crate::service::Guest;
use crate::state::Shared;
use coulter_device::{Device, Wait};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

/// The thread's body: opens the store, says so, serves until the end, says how that went. A guest
/// that does not leave keeps the thread, but not the volume.
pub(crate) fn run(
    device: Box<dyn Device>,
    settings: &Settings,
    shared: &Arc<Shared>,
    opened: &SyncSender<Result<Geometry, OpenErrorKind>>,
    ended: SyncSender<Outcome>,
) {
    shared.set_thread();
    let mut event_loop = match EventLoop::open(device, settings, shared.clone()) {
        Ok(event_loop) => event_loop,
        Err(kind) => {
            // Nobody waits only if the opening thread has died.
            let _ = opened.send(Err(kind));
            return;
        }
    };
    event_loop.report_to(ended);
    if opened.send(Ok(event_loop.geometry().clone())).is_err() {
        return;
    }
    let event_loop = Rc::new(RefCell::new(event_loop));
    loop {
        let mut running = event_loop.borrow_mut();
        running.work();
        if let Some(guest) = running.take_guest() {
            drop(running);
            host(guest, &event_loop, shared);
        } else if running.outcome().is_some() {
            return;
        } else {
            running.wait(Wait::Forever);
        }
    }
}

fn host(guest: Guest, event_loop: &Rc<RefCell<EventLoop>>, shared: &Arc<Shared>) {
    let session = LocalSession::new(event_loop.clone(), shared.clone());
    // Its panic is its own affair, and was printed. Nothing of the loop is left half done: no call
    // of a session panics because of the loop, and none calls the guest.
    let _ = catch_unwind(AssertUnwindSafe(move || guest(Box::new(session))));
    shared.release_guest();
}
