//! What is said on one connection: a greeting, Connect, where hosts have keys a proof, and then an admin queue
//! or an I/O queue.
//!
//! # Invariants
//! - Until Connect has succeeded, and the host is known where it has to be, no command is carried out.
//! - A host that does not get there in time is hung up on.
//! - While more than [`UNSENT_MAX`] bytes of answers are unsent, no command is taken; an I/O queue
//!   has its own limits. So a host that does not listen makes the target hold that much and one
//!   answer.
//! - A connection whose end others have asked for ends, whether or not its host listens.

use super::admin::{Admin, Answer};
use super::answers::{self, Terms};
use super::auth::{Authenticator, Verdict};
use super::discovery;
use super::io::{Io, OF_POOL, QueueTerms};
use super::pdus::{ADMIN_IN_CAPSULE_SIZE, Pdu, Pdus};
use super::subsystem::{AdminSeat, QueueSeat, Refusal, Subsystem, Wanted};
use super::target::Nvme;
use coulter::buffer::Buffer;
use coulter_net::{
    Address, CloseReason, Exchange, Malformed, Outgoing, Receiver, Standing, UNSENT_MAX,
};
use coulter_nvme::fabrics::{CNTLID_ANY, Connect, ConnectData, DISCOVERY_NQN, position};
use coulter_nvme::opcode::{FABRICS, fabrics};
use coulter_nvme::tcp::Fatal;
use coulter_nvme::{Cqe, DataPointer, IDENTIFY_SIZE, Sqe, Status, auth};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a host may take to hear the last of a connection.
const LINGER: Duration = Duration::from_secs(5);
/// How often a queue that holds nothing looks whether other hosts have given memory back.
const WAIT_FOR_OTHERS: Duration = Duration::from_millis(10);
/// Slots that an admin queue may always have, even if I/O queues have fewer: Linux asks for this number.
const ADMIN_QUEUE_SIZE: u32 = 32;
/// The mark of a payload whose buffer is of no pool.
const OF_NOBODY: u64 = 0;
const _: () = assert!(OF_NOBODY != OF_POOL);

pub(super) struct Conversation<'a> {
    nvme: &'a Nvme,
    standing: &'a Standing,
    /// Where the host has come in.
    local: Address,
    pdus: Pdus,
    phase: Phase,
    /// A command whose data is arriving, on any but an I/O queue.
    held: Option<Sqe>,
    /// Commands that have arrived wait until answers are sent.
    blocked: bool,
    /// Nothing more is taken.
    ended: bool,
    reason: Option<CloseReason>,
    /// When the next phase must have begun, or, once it has ended, everything must be sent.
    deadline: Option<Instant>,
}

enum Phase {
    Greeting,
    Connecting,
    Proving(Box<Proving>),
    Admin(Box<Admin>),
    Io(Box<Io>),
}

/// A host that is to prove who it is, and what it gets then.
struct Proving {
    authenticator: Authenticator,
    asked: Connect,
    prize: Prize,
}

/// What a host has connected to.
enum Prize {
    Admin(AdminSeat),
    Io(Arc<Subsystem>, Wanted),
}

/// What the result of Connect says besides the number of the controller: the host is to prove who it is.
const PROOF_REQUIRED: u64 = 1 << 17;

impl<'a> Conversation<'a> {
    pub(super) fn new(nvme: &'a Nvme, standing: &'a Standing, local: Address) -> Conversation<'a> {
        Conversation {
            nvme,
            standing,
            local,
            pdus: Pdus::new(),
            phase: Phase::Greeting,
            held: None,
            blocked: false,
            ended: false,
            reason: None,
            deadline: Some(Instant::now() + nvme.options.handshake_timeout),
        }
    }

    fn take_input(&mut self) -> Result<(), Fatal> {
        self.blocked = false;
        while !self.ended {
            match &mut self.phase {
                Phase::Greeting => {
                    if !self.pdus.try_greet()? {
                        return Ok(());
                    }
                    self.phase = Phase::Connecting;
                }
                Phase::Connecting | Phase::Proving(_) | Phase::Admin(_) => {
                    if self.pdus.replies.bytes() > UNSENT_MAX {
                        self.blocked = true;
                        return Ok(());
                    }
                    if !self.take_command()? {
                        return Ok(());
                    }
                }
                Phase::Io(io) => {
                    io.handle_input(&mut self.pdus)?;
                    if io.is_over() {
                        self.end(None);
                    }
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Takes a command, or data of one; whether there was any. Data comes in capsules only.
    fn take_command(&mut self) -> Result<bool, Fatal> {
        if !self.pdus.receiver.skipped() {
            return Ok(false);
        }
        if let Some(sqe) = self.held {
            let Some((data, is_right)) = self.pdus.take_data() else { return Ok(false) };
            self.held = None;
            if is_right {
                self.handle(&sqe, &data);
            } else {
                self.answer(&sqe, Err(Status::TRANSIENT_TRANSPORT_ERROR));
            }
            return Ok(true);
        }
        match self.pdus.peek()? {
            None => return Ok(false),
            Some(Pdu::Data(..)) => return Err(Fatal::Sequence),
            Some(Pdu::Term) => self.end(None),
            Some(Pdu::Command(sqe, 0)) => {
                self.pdus.skip_data();
                self.handle(&sqe, &[]);
            }
            Some(Pdu::Command(_, data_size)) if data_size > ADMIN_IN_CAPSULE_SIZE => {
                return Err(Fatal::LimitExceeded);
            }
            Some(Pdu::Command(sqe, data_size)) => {
                let whole = DataPointer::InCapsule { length: data_size, offset: 0 };
                if sqe.data_pointer() == whole {
                    let size = data_size as usize;
                    self.pdus.begin_data(Buffer::zeroed(size), 0..size);
                    self.held = Some(sqe);
                } else {
                    self.pdus.skip_data();
                    self.answer(&sqe, Err(Status::INVALID_SGL_LENGTH.final_one()));
                }
            }
        }
        Ok(true)
    }

    fn handle(&mut self, sqe: &Sqe, data: &[u8]) {
        let is_fabrics = sqe.opcode() == FABRICS;
        let kind = coulter_nvme::fabrics::kind(sqe);
        let outcome = match &mut self.phase {
            Phase::Connecting if is_fabrics && kind == fabrics::CONNECT => {
                return self.connect(sqe, data);
            }
            Phase::Connecting => Err(Status::SEQUENCE_ERROR.final_one()),
            Phase::Proving(_) if is_fabrics && kind == fabrics::AUTH_SEND => {
                return self.take_proof(sqe, data);
            }
            Phase::Proving(_) if is_fabrics && kind == fabrics::AUTH_RECEIVE => {
                return self.tell_proof(sqe);
            }
            Phase::Proving(_) => Err(Status::AUTH_REQUIRED.final_one()),
            Phase::Admin(_) if is_fabrics && kind == fabrics::CONNECT => {
                Err(Status::SEQUENCE_ERROR.final_one())
            }
            Phase::Admin(_) if is_fabrics && kind == fabrics::DISCONNECT => {
                Err(Status::INVALID_QUEUE_TYPE.final_one())
            }
            Phase::Admin(admin) => answers::handle(admin, sqe, data),
            Phase::Greeting | Phase::Io(_) => unreachable!("they take their own"),
        };
        self.answer(sqe, outcome);
        self.tell_events();
    }

    fn answer(&mut self, sqe: &Sqe, outcome: Result<Answer, Status>) {
        let (result, status) = match outcome {
            Ok(Answer::Later) => return,
            Ok(Answer::Done(result)) => (result, Status::SUCCESS),
            Ok(Answer::Data(bytes)) => (0, self.send(sqe, &bytes)),
            Err(status) => (0, status),
        };
        self.respond(sqe.cid(), result, status);
    }

    /// Sends as much data as the host has room for: what lies beyond the end of `bytes` is zero.
    fn send(&mut self, sqe: &Sqe, bytes: &[u8]) -> Status {
        let DataPointer::Transport { length } = sqe.data_pointer() else {
            return Status::INVALID_SGL_TYPE.final_one();
        };
        let length = length as usize;
        if length < bytes.len() || length > bytes.len().max(IDENTIFY_SIZE) {
            return Status::INVALID_SGL_LENGTH.final_one();
        }
        let mut buffer = Buffer::zeroed(length);
        buffer[..bytes.len()].copy_from_slice(bytes);
        self.pdus.push_data(sqe.cid(), buffer, OF_NOBODY, false);
        Status::SUCCESS
    }

    fn respond(&mut self, cid: u16, result: u64, status: Status) {
        // How far the queue is says nothing that the answers do not.
        self.pdus.push_response(&Cqe { result, sq_head: 0, sq_id: 0, cid, status });
    }

    fn tell_events(&mut self) -> bool {
        let Phase::Admin(admin) = &mut self.phase else { return false };
        let events = admin.poll();
        let any = !events.is_empty();
        for (cid, result) in events {
            self.respond(cid, result, Status::SUCCESS);
        }
        any
    }

    fn connect(&mut self, sqe: &Sqe, data: &[u8]) {
        let asked = Connect::decode(sqe);
        match self.admit(&asked, data) {
            Ok((cntlid, phase)) => {
                let is_open = matches!(phase, Phase::Proving(_));
                let result = u64::from(cntlid) | if is_open { PROOF_REQUIRED } else { 0 };
                self.respond(sqe.cid(), result, Status::SUCCESS);
                self.phase = phase;
                if !is_open {
                    self.admitted();
                }
            }
            Err((status, position)) => self.respond(sqe.cid(), position.into(), status),
        }
    }

    /// Takes a message of a host that proves who it is.
    fn take_proof(&mut self, sqe: &Sqe, data: &[u8]) {
        let Phase::Proving(proving) = &mut self.phase else { unreachable!("it was looked at") };
        if auth::length_of(sqe) != u32::try_from(data.len()).ok() {
            return self.answer(sqe, Err(Status::INVALID_FIELD.final_one()));
        }
        let verdict = proving.authenticator.take(data);
        self.respond(sqe.cid(), 0, Status::SUCCESS);
        self.conclude(verdict);
    }

    /// Gives the host the message that is due.
    fn tell_proof(&mut self, sqe: &Sqe) {
        let Phase::Proving(proving) = &mut self.phase else { unreachable!("it was looked at") };
        let DataPointer::Transport { length } = sqe.data_pointer() else {
            return self.answer(sqe, Err(Status::INVALID_SGL_TYPE.final_one()));
        };
        let is_room = (auth::MESSAGE_SIZE_MAX as u32..=IDENTIFY_SIZE as u32).contains(&length);
        if auth::length_of(sqe) != Some(length) || !is_room {
            return self.answer(sqe, Err(Status::INVALID_FIELD.final_one()));
        }
        let (message, verdict) = proving.authenticator.tell();
        self.answer(sqe, Ok(Answer::Data(message)));
        self.conclude(verdict);
    }

    /// Gives a host that has proved who it is what it has connected to, and hangs up on one that has not.
    fn conclude(&mut self, verdict: Verdict) {
        let phase = match (verdict, std::mem::replace(&mut self.phase, Phase::Connecting)) {
            (Verdict::Open, phase) => {
                self.phase = phase;
                return;
            }
            (Verdict::Admitted, Phase::Proving(proving)) => self.give(*proving),
            _ => None,
        };
        match phase {
            Some(phase) => {
                self.phase = phase;
                self.admitted();
            }
            None => self.end(Some(CloseReason::Unproved)),
        }
    }

    /// The host has what it has connected to. One that reads only in the discovery service
    /// still makes room for others.
    fn admitted(&mut self) {
        self.deadline = None;
        let is_discovery =
            matches!(&self.phase, Phase::Admin(admin) if admin.seat.subsystem.front.is_none());
        if !is_discovery {
            self.standing.settle();
        }
    }

    fn give(&self, proving: Proving) -> Option<Phase> {
        match proving.prize {
            Prize::Admin(seat) => {
                seat.subsystem.settle(&seat.controller).ok()?;
                Some(self.admin(seat, &proving.asked))
            }
            Prize::Io(subsystem, wanted) => {
                Some(self.io(subsystem.join(&wanted).ok()?, &proving.asked))
            }
        }
    }

    /// The beginning of a proof, if hosts need one. The discovery service is no exception: what
    /// it tells is for those who may use it.
    fn authenticator(
        &self,
        subsystem: &Subsystem,
        host: &str,
    ) -> Result<Option<Authenticator>, Refusal> {
        let Some(keys) = &self.nvme.options.keys else { return Ok(None) };
        let begun = Authenticator::new(keys, host, &subsystem.nqn);
        begun.map(Some).ok_or((Status::CONNECT_INVALID_HOST.final_one(), position::HOST))
    }

    fn admit(&mut self, asked: &Connect, data: &[u8]) -> Result<(u16, Phase), Refusal> {
        let invalid = |position| (Status::CONNECT_INVALID.final_one(), position);
        if asked.format != 0 {
            return Err((Status::CONNECT_INCOMPATIBLE.final_one(), 0));
        }
        let names = ConnectData::decode(data).map_err(invalid)?;
        let subsystem = self.subsystem(names.subsystem).ok_or(invalid(position::SUBSYSTEM))?;
        let granted = self.nvme.options.queue_size_max;
        let size_max = if asked.queue_id == 0 { granted.max(ADMIN_QUEUE_SIZE) } else { granted };
        if !(2..=size_max).contains(&asked.queue_size) {
            return Err(invalid(position::QUEUE_SIZE));
        }
        if asked.queue_id == 0 {
            if names.cntlid != CNTLID_ANY {
                return Err(invalid(position::CNTLID));
            }
            let authenticator = self.authenticator(&subsystem, names.host)?;
            let seat = subsystem.enroll(names.host, names.host_id)?;
            let cntlid = seat.controller.cntlid;
            let phase = match authenticator {
                Some(authenticator) => {
                    let (asked, prize) = (*asked, Prize::Admin(seat));
                    Phase::Proving(Box::new(Proving { authenticator, asked, prize }))
                }
                None => {
                    subsystem.settle(&seat.controller)?;
                    self.admin(seat, asked)
                }
            };
            return Ok((cntlid, phase));
        }
        if subsystem.front.is_none() {
            return Err(invalid(position::QUEUE_ID));
        }
        let wanted = Wanted {
            cntlid: names.cntlid,
            host: names.host.to_owned(),
            host_id: names.host_id,
            queue_id: asked.queue_id,
        };
        if let Some(authenticator) = self.authenticator(&subsystem, names.host)? {
            subsystem.check_wanted(&wanted)?;
            let (cntlid, asked, prize) = (names.cntlid, *asked, Prize::Io(subsystem, wanted));
            let proving = Proving { authenticator, asked, prize };
            return Ok((cntlid, Phase::Proving(Box::new(proving))));
        }
        let seat = subsystem.join(&wanted)?;
        Ok((seat.controller.cntlid, self.io(seat, asked)))
    }

    fn subsystem(&self, nqn: &str) -> Option<Arc<Subsystem>> {
        if nqn == DISCOVERY_NQN {
            return self.nvme.discovery.clone();
        }
        self.nvme.subsystems.iter().find(|subsystem| subsystem.nqn == nqn).cloned()
    }

    fn admin(&self, seat: AdminSeat, asked: &Connect) -> Phase {
        let options = &self.nvme.options;
        let terms = Terms {
            queue_size_max: options.queue_size_max,
            io_queues_max: options.io_queues_max,
            discovery_log: discovery::log(self.nvme, &self.local),
        };
        let keep_alive = Duration::from_millis(asked.keep_alive_ms.into());
        Phase::Admin(Box::new(Admin::new(seat, terms, keep_alive)))
    }

    fn io(&self, seat: QueueSeat, asked: &Connect) -> Phase {
        let options = &self.nvme.options;
        let terms = QueueTerms {
            size: asked.queue_size,
            flow_control_disabled: asked.flow_control_disabled,
            memory_max: options.queue_memory_max,
            budget: (!options.own_kernel).then(|| self.nvme.budget.clone()),
        };
        Phase::Io(Box::new(Io::new(seat, terms)))
    }

    /// Accepts no more input, and sends the remaining replies while the host reads.
    fn end(&mut self, reason: Option<CloseReason>) {
        if !self.ended {
            self.ended = true;
            self.deadline = Some(Instant::now() + LINGER);
        }
        if self.reason.is_none() {
            self.reason = reason;
        }
    }

    /// Drops all replies, because the host does not read any more.
    fn drop_replies(&mut self) {
        let Conversation { pdus, phase, .. } = self;
        pdus.replies.clear(|mark, buffer| give_back(phase, mark, buffer));
    }

    fn is_overdue(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }
}

fn give_back(phase: &mut Phase, mark: u64, buffer: Buffer) {
    if let (Phase::Io(io), OF_POOL) = (phase, mark) {
        io.give_back(buffer);
    }
}

impl Exchange for Conversation<'_> {
    fn receiver(&mut self) -> &mut Receiver {
        &mut self.pdus.receiver
    }

    fn replies(&self) -> &Outgoing {
        &self.pdus.replies
    }

    fn handle_sent(&mut self, count: usize) {
        let Conversation { pdus, phase, .. } = self;
        pdus.replies.sent(count, |mark, buffer| give_back(phase, mark, buffer));
    }

    fn handle_input(&mut self) -> Result<(), Malformed> {
        self.take_input().map_err(|fatal| {
            self.pdus.push_term(fatal);
            Malformed(fatal.text())
        })
    }

    fn handle_completions(&mut self) -> bool {
        let (is_expired, is_ended) = match &self.phase {
            Phase::Admin(admin) => (admin.is_expired(), admin.is_ended()),
            _ => (false, false),
        };
        if is_expired {
            self.end(Some(CloseReason::Silent));
        }
        let mut any = self.tell_events();
        if let Phase::Io(io) = &mut self.phase {
            any = io.handle_completions(&mut self.pdus);
            if io.was_ended() {
                self.end(None);
                self.drop_replies();
            } else if io.is_over() {
                self.end(None);
            }
        }
        if is_ended {
            self.end(None);
        }
        if is_expired || is_ended {
            self.drop_replies();
        }
        if self.is_overdue() {
            match self.phase {
                Phase::Greeting | Phase::Connecting | Phase::Proving(_) => {
                    self.end(Some(CloseReason::HandshakeTimeout));
                }
                Phase::Admin(_) | Phase::Io(_) => {}
            }
            self.drop_replies();
        }
        any
    }

    fn wants_input(&self) -> bool {
        !self.ended && !self.is_blocked()
    }

    fn is_blocked(&self) -> bool {
        match &self.phase {
            Phase::Io(io) => io.is_blocked(),
            _ => self.blocked,
        }
    }

    fn end_input(&mut self) {
        self.end(None);
        self.held = None;
        match &mut self.phase {
            Phase::Io(io) => io.end_input(&mut self.pdus),
            _ => drop(self.pdus.abandon_data()),
        }
    }

    fn is_finished(&self) -> bool {
        let outstanding = match &self.phase {
            Phase::Io(io) => io.outstanding(),
            _ => 0,
        };
        self.ended && self.pdus.replies.is_empty() && outstanding == 0
    }

    fn end_reason(&mut self) -> CloseReason {
        self.reason.take().unwrap_or(CloseReason::Disconnected)
    }

    fn abandon(&mut self) {
        self.end_input();
        if let Phase::Io(io) = &mut self.phase {
            io.abandon();
        }
        self.drop_replies();
    }

    fn outstanding(&self) -> usize {
        match &self.phase {
            Phase::Io(io) => io.outstanding(),
            _ => 0,
        }
    }

    fn completion_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.phase {
            Phase::Admin(admin) => admin.completion_fd(),
            Phase::Io(io) => io.completion_fd(),
            _ => None,
        }
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.phase {
            Phase::Admin(admin) => admin.wake_fd(),
            Phase::Io(io) => io.wake_fd(),
            _ => None,
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Admin(admin) if !self.ended => admin.deadline(),
            Phase::Io(io) if io.waits_for_others() => Some(Instant::now() + WAIT_FOR_OTHERS),
            _ => self.deadline,
        }
    }
}
