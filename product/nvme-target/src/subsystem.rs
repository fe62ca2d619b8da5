//! A subsystem: a volume with a name, and the controllers that hosts have of it.
//!
//! # Invariants
//! - A controller is gone when its admin queue and all its I/O queues are: when each of their threads has
//!   had every buffer back. Only then may the same host have another one. So nothing that a host had
//!   given up can be written after what it wrote later.
//! - The number of a controller is not used again soon.
//! - Where hosts must prove who they are, one that has not ends nothing of another: it has a number, and no
//!   more, until [`settle`](Subsystem::settle).

use super::controller::{Controller, Queue};
use super::front::Front;
use super::tally::Tally;
use coulter_nvme::Status;
use coulter_nvme::fabrics::position;
use coulter_nvme::identify::ERROR_LOG_ENTRIES;
use coulter_nvme::log::ErrorEntry;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a host waits for the controller that it had before.
const DRAIN_PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Subsystem {
    pub(super) nqn: String,
    /// The volume; none for a discovery service.
    pub(super) front: Option<Front>,
    pub(super) tally: Tally,
    pub(super) started: Instant,
    errors: Mutex<Errors>,
    next_cntlid: AtomicU16,
    registry: Mutex<Vec<Enrolled>>,
    /// A queue or a controller is gone.
    gone: Condvar,
}

struct Enrolled {
    controller: Arc<Controller>,
    has_admin: bool,
    queues: Vec<Arc<Queue>>,
}

#[derive(Default)]
struct Errors {
    count: u64,
    entries: VecDeque<ErrorEntry>,
}

/// A status, and where a parameter of Connect is wrong.
pub(super) type Refusal = (Status, u32);

/// What an I/O queue asks for.
pub(super) struct Wanted {
    pub(super) cntlid: u16,
    pub(super) host: String,
    pub(super) host_id: [u8; 16],
    pub(super) queue_id: u16,
}

impl Subsystem {
    pub(super) fn new(nqn: String, front: Option<Front>, first_cntlid: u16) -> Subsystem {
        Subsystem {
            nqn,
            front,
            tally: Tally::default(),
            started: Instant::now(),
            errors: Mutex::default(),
            next_cntlid: AtomicU16::new(first_cntlid),
            registry: Mutex::default(),
            gone: Condvar::new(),
        }
    }

    /// A number for a new controller of a host, which it may use once it has [settled](Self::settle).
    pub(super) fn enroll(
        self: &Arc<Self>,
        host: &str,
        host_id: [u8; 16],
    ) -> Result<AdminSeat, Refusal> {
        let mut registry = self.registry();
        let Some(cntlid) = self.free_cntlid(&registry) else {
            return Err((Status::CONNECT_BUSY, 0));
        };
        let made = Controller::new(cntlid, host.to_owned(), host_id);
        let controller = Arc::new(made.map_err(|_| (Status::CONNECT_BUSY, 0))?);
        if let Some(front) = &self.front {
            front.watch(&controller);
        }
        registry.push(Enrolled {
            controller: controller.clone(),
            has_admin: true,
            queues: Vec::new(),
        });
        Ok(AdminSeat { subsystem: self.clone(), controller })
    }

    /// Ends what the host of a new controller had before, and waits until it is gone.
    pub(super) fn settle(&self, controller: &Controller) -> Result<(), Refusal> {
        let is_former = |enrolled: &&Enrolled| {
            let other = &enrolled.controller;
            let is_same = (&other.host, other.host_id) == (&controller.host, controller.host_id);
            is_same && other.cntlid != controller.cntlid && other.is_settled()
        };
        // Of two that come at the same time the later one ends the other.
        let remains = |registry: &mut Vec<Enrolled>| {
            let former = registry.iter().filter(is_former);
            former.inspect(|enrolled| enrolled.end()).count() > 0
        };
        let mut registry = self.registry();
        // A host may have several controllers of a discovery service, because discovery writes
        // nothing.
        if self.front.is_some() {
            let waited = self.gone.wait_timeout_while(registry, DRAIN_PATIENCE, remains);
            let (left, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            if timeout.timed_out() {
                return Err((Status::CONNECT_BUSY, 0));
            }
            registry = left;
        }
        controller.settle();
        drop(registry);
        Ok(())
    }

    /// A number that no controller has; those above 0xffef have a meaning.
    fn free_cntlid(&self, registry: &[Enrolled]) -> Option<u16> {
        (0..=registry.len() + 1).find_map(|_| {
            let next = self.next_cntlid.fetch_add(1, Ordering::Relaxed);
            let cntlid = next % 0xfff0;
            let is_free = registry.iter().all(|enrolled| enrolled.controller.cntlid != cntlid);
            (is_free && cntlid != 0).then_some(cntlid)
        })
    }

    /// Whether a host may have an I/O queue.
    pub(super) fn check_wanted(&self, wanted: &Wanted) -> Result<(), Refusal> {
        enrolled_for(&self.registry(), wanted).map(drop)
    }

    /// An I/O queue of a controller. One of the same number that is still there ends first: its host has
    /// come back before its end was noticed.
    pub(super) fn join(self: &Arc<Self>, wanted: &Wanted) -> Result<QueueSeat, Refusal> {
        let invalid = |position| (Status::CONNECT_INVALID.final_one(), position);
        let mut registry = self.registry();
        let controller = {
            let enrolled = enrolled_for(&registry, wanted)?;
            for queue in enrolled.queues.iter().filter(|queue| queue.id == wanted.queue_id) {
                queue.end();
            }
            enrolled.controller.clone()
        };
        let of = |registry: &mut Vec<Enrolled>| {
            let same = registry.iter().find(|found| found.controller.cntlid == wanted.cntlid);
            same.is_some_and(|same| same.queues.iter().any(|queue| queue.id == wanted.queue_id))
        };
        let waited = self.gone.wait_timeout_while(registry, DRAIN_PATIENCE, |r| of(r));
        let (left, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        registry = left;
        if timeout.timed_out() {
            return Err((Status::CONNECT_BUSY, 0));
        }
        let found = registry.iter_mut().find(|found| found.controller.cntlid == wanted.cntlid);
        let enrolled = found.filter(|found| found.has_admin && found.controller.is_alive());
        let enrolled = enrolled.ok_or(invalid(position::CNTLID))?;
        let queue = Queue::new(wanted.queue_id).map_err(|_| (Status::CONNECT_BUSY, 0))?;
        let queue = Arc::new(queue);
        enrolled.queues.push(queue.clone());
        Ok(QueueSeat { subsystem: self.clone(), controller, queue })
    }

    /// Ends all I/O queues of a controller, which stays.
    pub(super) fn end_queues(&self, controller: &Controller) {
        let registry = self.registry();
        let found = registry.iter().find(|found| found.controller.cntlid == controller.cntlid);
        for queue in found.iter().flat_map(|found| &found.queues) {
            queue.end();
        }
    }

    /// Whether a controller has I/O queues, or had some that are not quite gone.
    pub(super) fn has_queues(&self, controller: &Controller) -> bool {
        let registry = self.registry();
        let found = registry.iter().find(|found| found.controller.cntlid == controller.cntlid);
        found.is_some_and(|found| !found.queues.is_empty())
    }

    /// Hosts that have a controller.
    pub(super) fn hosts(&self) -> Vec<String> {
        let registry = self.registry();
        let settled = registry.iter().filter(|enrolled| enrolled.controller.is_settled());
        settled.map(|enrolled| enrolled.controller.host.clone()).collect()
    }

    /// Takes note of a command that failed.
    pub(super) fn note_error(&self, mut entry: ErrorEntry) {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        errors.count += 1;
        entry.number = errors.count;
        if errors.entries.len() == usize::from(ERROR_LOG_ENTRIES) {
            errors.entries.pop_back();
        }
        errors.entries.push_front(entry);
    }

    /// The latest errors, and how many there were.
    pub(super) fn errors(&self) -> (Vec<ErrorEntry>, u64) {
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        (errors.entries.iter().copied().collect(), errors.count)
    }

    fn registry(&self) -> MutexGuard<'_, Vec<Enrolled>> {
        // Each change leaves it whole.
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self, cntlid: u16, left: impl FnOnce(&mut Enrolled)) {
        let mut registry = self.registry();
        if let Some(index) = registry.iter().position(|e| e.controller.cntlid == cntlid) {
            left(&mut registry[index]);
            if !registry[index].has_admin && registry[index].queues.is_empty() {
                registry.swap_remove(index);
            }
        }
        self.gone.notify_all();
    }
}

/// The controller of an I/O queue that may be had.
fn enrolled_for<'a>(registry: &'a [Enrolled], wanted: &Wanted) -> Result<&'a Enrolled, Refusal> {
    let invalid = |position| (Status::CONNECT_INVALID.final_one(), position);
    let found = registry.iter().find(|found| found.controller.cntlid == wanted.cntlid);
    let enrolled = found.filter(|found| found.has_admin && found.controller.is_alive());
    let enrolled = enrolled.ok_or(invalid(position::CNTLID))?;
    let controller = &enrolled.controller;
    if (&controller.host, controller.host_id) != (&wanted.host, wanted.host_id) {
        return Err(invalid(position::HOST));
    }
    if !controller.is_settled() || !controller.is_enabled() {
        return Err((Status::SEQUENCE_ERROR.final_one(), 0));
    }
    if wanted.queue_id == 0 || wanted.queue_id > controller.granted_queues() {
        return Err(invalid(position::QUEUE_ID));
    }
    Ok(enrolled)
}

impl Enrolled {
    fn end(&self) {
        self.controller.end();
        self.queues.iter().for_each(|queue| queue.end());
    }
}

/// The place of an admin queue's thread. Dropped when the thread is done, it ends the controller.
pub(super) struct AdminSeat {
    pub(super) subsystem: Arc<Subsystem>,
    pub(super) controller: Arc<Controller>,
}

impl Drop for AdminSeat {
    fn drop(&mut self) {
        self.subsystem.leave(self.controller.cntlid, |enrolled| {
            enrolled.end();
            enrolled.has_admin = false;
        });
    }
}

/// The place of an I/O queue's thread. Dropped when every buffer is back.
pub(super) struct QueueSeat {
    pub(super) subsystem: Arc<Subsystem>,
    pub(super) controller: Arc<Controller>,
    pub(super) queue: Arc<Queue>,
}

impl Drop for QueueSeat {
    fn drop(&mut self) {
        let queue = &self.queue;
        self.subsystem.leave(self.controller.cntlid, |enrolled| {
            enrolled.queues.retain(|other| !Arc::ptr_eq(other, queue));
        });
    }
}
