//! An admin queue: answered by its own thread from what it knows, without ever waiting for the volume. So
//! a host's sign of life is heard whatever the volume does.
//!
//! # Invariants
//! - A host that gives no sign of life for as long as it has promised loses the controller: all its queues
//!   end, and what they had submitted is complete before the controller is gone.
//! - Events are told once: they are masked until the host has read the log that belongs to them.

use super::answers::Terms;
use super::subsystem::AdminSeat;
use coulter::buffer::Buffer;
use coulter::service::{Completion, Operation, Request, Session};
use coulter_nvme::fabrics::{self, Capabilities, Configuration, csts, property};
use coulter_nvme::identify::{VERSION, event};
use coulter_nvme::log::{self, page};
use coulter_nvme::opcode;
use coulter_nvme::{Sqe, Status};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Event requests that a host may leave here.
pub(super) const EVENT_REQUESTS_MAX: usize = 4;
/// Granularity of the keep-alive timer: in units of 100 ms, and as a time.
pub(super) const KEEP_ALIVE_GRANULARITY: u16 = 10;
const KEEP_ALIVE_TICK: Duration = Duration::from_secs(1);

/// How a command is answered.
pub(super) enum Answer {
    /// It is done, with this result.
    Done(u64),
    /// It is done, with this data.
    Data(Vec<u8>),
    /// It will be.
    Later,
}

pub(super) struct Admin {
    pub(super) terms: Terms,
    /// Time between signs of life; zero if there need be none.
    pub(super) keep_alive: Duration,
    last_sign: Instant,
    /// Identifiers of event requests.
    event_requests: Vec<u16>,
    /// Events that the host wants to hear of.
    pub(super) event_configuration: u32,
    /// Events to be told, and those that were and are masked.
    due: u32,
    masked: u32,
    /// Size of the volume, and whether it refuses writes, as the host knows it.
    known: (u64, bool),
    /// The discovery log as the host began to read it.
    pub(super) discovery: Vec<u8>,
    shutdown: Shutdown,
    pub(super) seat: AdminSeat,
}

enum Shutdown {
    /// Nobody has asked.
    No,
    /// What hosts have written is being made durable.
    Flushing(Box<dyn Session>),
    Done,
}

impl Admin {
    pub(super) fn new(seat: AdminSeat, terms: Terms, keep_alive: Duration) -> Admin {
        let mut admin = Admin {
            terms,
            keep_alive: Duration::ZERO,
            last_sign: Instant::now(),
            event_requests: Vec::with_capacity(EVENT_REQUESTS_MAX),
            event_configuration: 0,
            due: 0,
            masked: 0,
            known: (0, false),
            discovery: Vec::new(),
            shutdown: Shutdown::No,
            seat,
        };
        admin.seat.controller.grant_queues(admin.terms.io_queues_max);
        admin.set_keep_alive(keep_alive);
        admin.known = admin.state();
        admin
    }

    pub(super) fn set_keep_alive(&mut self, time: Duration) {
        let ticks = time.as_millis().div_ceil(KEEP_ALIVE_TICK.as_millis());
        self.keep_alive = KEEP_ALIVE_TICK * u32::try_from(ticks).unwrap_or(u32::MAX);
        self.last_sign = Instant::now();
    }

    /// When the host must have given a sign of life.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.keep_alive.is_zero()).then(|| self.last_sign + self.keep_alive)
    }

    /// Whether the host has not.
    pub(super) fn is_expired(&self) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= Instant::now())
    }

    pub(super) fn is_ended(&self) -> bool {
        !self.seat.controller.is_alive()
    }

    pub(super) fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.seat.controller.is_alive().then(|| self.seat.controller.wake.fd())
    }

    pub(super) fn completion_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.shutdown {
            Shutdown::Flushing(session) if session.outstanding() > 0 => {
                Some(session.completion_fd())
            }
            _ => None,
        }
    }

    /// Takes note of what has changed; the event requests that are answered by that, with their results.
    pub(super) fn poll(&mut self) -> Vec<(u16, u64)> {
        let controller = &self.seat.controller;
        if controller.take_changed() {
            controller.wake.clear();
            if self.seat.subsystem.front.is_none() {
                self.due |= event::DISCOVERY_CHANGED;
            }
            let state = self.state();
            if state != self.known {
                self.known = state;
                self.due |= event::NAMESPACE_CHANGED;
            }
        }
        self.poll_shutdown();
        self.take_events()
    }

    fn take_events(&mut self) -> Vec<(u16, u64)> {
        let mut answers = Vec::new();
        for (event, information, page) in [
            (event::NAMESPACE_CHANGED, log::NOTICE_NAMESPACE_CHANGED, page::CHANGED_NAMESPACES),
            (event::DISCOVERY_CHANGED, log::NOTICE_DISCOVERY_CHANGED, page::DISCOVERY),
        ] {
            let is_told = self.due & self.event_configuration & !self.masked & event != 0;
            if is_told && let Some(cid) = self.event_requests.pop() {
                self.due &= !event;
                self.masked |= event;
                answers.push((cid, u64::from(log::notice(information, page))));
            }
        }
        answers
    }

    fn state(&self) -> (u64, bool) {
        let front = self.seat.subsystem.front.as_ref();
        front.map_or((0, false), |front| (front.size(), front.refuses_writes()))
    }

    fn poll_shutdown(&mut self) {
        let Shutdown::Flushing(session) = &mut self.shutdown else { return };
        let mut completions: Vec<Completion> = Vec::new();
        if session.outstanding() > 0 {
            session.complete(&mut completions, Some(Duration::ZERO));
        }
        if session.outstanding() == 0 {
            self.shutdown = Shutdown::Done;
        }
    }

    /// Notes a sign of life of the host.
    pub(super) fn hear(&mut self) {
        self.last_sign = Instant::now();
    }

    /// Keeps an event request until there is an event for it.
    pub(super) fn request_event(&mut self, cid: u16) -> Result<Answer, Status> {
        if self.event_requests.len() == EVENT_REQUESTS_MAX {
            return Err(Status::ASYNC_EVENT_LIMIT.final_one());
        }
        self.event_requests.push(cid);
        Ok(Answer::Later)
    }

    /// Lets the event of a log be told again, as the host has read the log.
    pub(super) fn unmask(&mut self, page: u8) {
        match page {
            page::CHANGED_NAMESPACES => self.masked &= !event::NAMESPACE_CHANGED,
            page::DISCOVERY => self.masked &= !event::DISCOVERY_CHANGED,
            _ => {}
        }
    }

    /// Whether the namespace has changed since the host has read the log of that.
    pub(super) fn has_changed_namespace(&self) -> bool {
        (self.due | self.masked) & event::NAMESPACE_CHANGED != 0
    }

    /// Reads or sets a property of the controller.
    pub(super) fn handle_property(&mut self, sqe: &Sqe) -> Result<Answer, Status> {
        let invalid = Err(Status::INVALID_FIELD.final_one());
        let offset = fabrics::property_offset(sqe);
        match fabrics::kind(sqe) {
            opcode::fabrics::PROPERTY_GET => {
                let is_long = offset == property::CAP;
                if is_long != fabrics::property_is_long(sqe) {
                    return invalid;
                }
                match offset {
                    property::CAP => Ok(Answer::Done(self.capabilities().encode())),
                    property::VS => Ok(Answer::Done(VERSION.into())),
                    property::CC => Ok(Answer::Done(self.seat.controller.configuration().0.into())),
                    property::CSTS => Ok(Answer::Done(self.status().into())),
                    property::CRTO => Ok(Answer::Done(0)),
                    _ => invalid,
                }
            }
            opcode::fabrics::PROPERTY_SET => match (offset, fabrics::property_is_long(sqe)) {
                (property::CC, false) => {
                    self.configure(Configuration(fabrics::property_value(sqe) as u32))
                }
                _ => invalid,
            },
            _ => Err(Status::INVALID_OPCODE.final_one()),
        }
    }

    fn capabilities(&self) -> Capabilities {
        // To become ready takes no time; to come to rest, as long as a device may take.
        Capabilities { queue_size_max: self.terms.queue_size_max, timeout: 60 }
    }

    fn status(&self) -> u32 {
        let controller = &self.seat.controller;
        // While queues are ending the controller is not at rest.
        let is_ready = controller.is_enabled() || self.seat.subsystem.has_queues(controller);
        let shutdown = match self.shutdown {
            Shutdown::No => 0,
            Shutdown::Flushing(_) => csts::SHUTDOWN_OCCURRING,
            Shutdown::Done => csts::SHUTDOWN_COMPLETE,
        };
        shutdown | if is_ready { csts::READY } else { 0 }
    }

    fn configure(&mut self, new: Configuration) -> Result<Answer, Status> {
        let controller = self.seat.controller.clone();
        let old = controller.configuration();
        if new.is_enabled() && !new.is_supported() {
            return Err(Status::INVALID_FIELD.final_one());
        }
        controller.configure(new);
        if old.is_enabled() && !new.is_enabled() {
            self.seat.subsystem.end_queues(&controller);
            controller.grant_queues(self.terms.io_queues_max);
            self.event_requests.clear();
            (self.due, self.masked) = (0, 0);
        }
        if new.is_enabled() && !old.is_enabled() {
            self.shutdown = Shutdown::No;
        }
        if new.shuts_down() && matches!(self.shutdown, Shutdown::No) {
            self.shutdown = match &self.seat.subsystem.front {
                Some(front) => {
                    let mut session = front.connect();
                    session.submit(Request {
                        tag: 0,
                        operation: Operation::Flush,
                        offset: 0,
                        length: 0,
                        buffer: Buffer::empty(),
                    });
                    session.kick();
                    Shutdown::Flushing(session)
                }
                None => Shutdown::Done,
            };
        }
        Ok(Answer::Done(0))
    }
}
