//! What the threads of one controller share: whether it lives, what its host has set, and how to wake
//! each other. Everything is an atomic: the registry's lock is taken when a queue comes or goes, and at
//! no other time.

use super::wake::Wake;
use coulter::service::Watch;
use coulter_nvme::fabrics::Configuration;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};

/// A controller: what a host has of a subsystem.
pub(super) struct Controller {
    pub(super) cntlid: u16,
    pub(super) host: String,
    pub(super) host_id: [u8; 16],
    /// Wakes the admin queue's thread.
    pub(super) wake: Wake,
    alive: AtomicBool,
    settled: AtomicBool,
    changed: AtomicBool,
    configuration: AtomicU32,
    granted: AtomicU16,
}

impl Controller {
    pub(super) fn new(cntlid: u16, host: String, host_id: [u8; 16]) -> io::Result<Controller> {
        Ok(Controller {
            cntlid,
            host,
            host_id,
            wake: Wake::new()?,
            alive: AtomicBool::new(true),
            settled: AtomicBool::new(false),
            changed: AtomicBool::new(false),
            configuration: AtomicU32::new(0),
            granted: AtomicU16::new(0),
        })
    }

    /// Has the admin queue's thread end.
    pub(super) fn end(&self) {
        self.alive.store(false, Ordering::SeqCst);
        self.wake.wake();
    }

    pub(super) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::SeqCst)
    }

    /// The host is the one that it says it is, and has no other controller.
    pub(super) fn settle(&self) {
        self.settled.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_settled(&self) -> bool {
        self.settled.load(Ordering::SeqCst)
    }

    /// Whether commands are carried out.
    pub(super) fn is_enabled(&self) -> bool {
        self.configuration().is_enabled()
    }

    pub(super) fn configuration(&self) -> Configuration {
        Configuration(self.configuration.load(Ordering::SeqCst))
    }

    pub(super) fn configure(&self, configuration: Configuration) {
        self.configuration.store(configuration.0, Ordering::SeqCst);
    }

    /// I/O queues that the host may have.
    pub(super) fn granted_queues(&self) -> u16 {
        self.granted.load(Ordering::SeqCst)
    }

    pub(super) fn grant_queues(&self, count: u16) {
        self.granted.store(count, Ordering::SeqCst);
    }

    /// Whether something has changed since this was asked.
    pub(super) fn take_changed(&self) -> bool {
        self.changed.swap(false, Ordering::SeqCst)
    }
}

impl Watch for Controller {
    fn changed(&self) {
        self.changed.store(true, Ordering::SeqCst);
        self.wake.wake();
    }
}

/// An I/O queue, as others see it.
pub(super) struct Queue {
    pub(super) id: u16,
    /// Wakes the queue's thread.
    pub(super) wake: Wake,
    over: AtomicBool,
}

impl Queue {
    pub(super) fn new(id: u16) -> io::Result<Queue> {
        Ok(Queue { id, wake: Wake::new()?, over: AtomicBool::new(false) })
    }

    /// Has the queue's thread end: it submits nothing more, and goes when every buffer is back.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.wake.wake();
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }
}
