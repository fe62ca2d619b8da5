//! A namespace behind which the volume failed: each error has its status, which says whether to try again; others go
//! on, and where there is no volume any more there is no connection.

use coulter::service::RequestError;
use coulter_attach_suite::initiator::is_status;
use coulter_attach_suite::initiator::{Initiator, InitiatorError};
use coulter_attach_suite::loopback::{connect, serve};
use coulter_attach_suite::memory::{Fault, FaultKind, MemoryOptions, MemoryService};
use coulter_nvme::log::{GetLog, page};
use coulter_nvme::opcode::{admin, io};
use coulter_nvme::{Sqe, Status};
use coulter_nvme_target::{Target, TargetOptions};
use std::sync::Arc;

const SIZE: u64 = 8 << 20;

struct Served {
    target: Target,
    service: MemoryService,
}

impl Served {
    fn new() -> Served {
        let service = MemoryService::new(MemoryOptions::new(SIZE));
        Served { target: serve(Arc::new(service.clone()), TargetOptions::default()), service }
    }

    fn connect(&self, host: u8) -> Initiator {
        connect(&self.target, host)
    }

    /// The next `count` requests of this kind to the first block fail.
    fn fail(&self, kind: FaultKind, error: RequestError, count: u32) {
        self.service.inject(Fault { kind, range: 0..4096, error, count });
    }
}

fn at(opcode: u8, slba: u64) -> Sqe {
    Sqe::new(opcode, 1).with_blocks(slba, 1)
}

/// Media errors that the target counted, as its log of health tells them.
fn media_errors(initiator: &mut Initiator) -> u64 {
    let health = GetLog { page: page::SMART, retains_event: false, length: 512, offset: 0 };
    let health = initiator.admin.fetch(health.encode(), 512).expect("the log can be read");
    u64::from_le_bytes(*health[160..].first_chunk().expect("it is there"))
}

#[test]
fn reads_that_fail_say_why_and_harm_no_other() {
    let served = Served::new();
    let mut initiator = served.connect(1);
    let page = [7; 4096];
    initiator.io.send(at(io::WRITE, 0), &page).expect("a write succeeds");
    initiator.io.send(at(io::WRITE, 1), &page).expect("a write succeeds");
    let device = RequestError::Device { errno: libc::EIO };
    let damaged = RequestError::Corrupt { block: 0 };
    for (opcode, error, expected, is_final) in [
        (io::READ, device, Status::INTERNAL_ERROR, false),
        (io::READ, damaged, Status::UNRECOVERED_READ, true),
        (io::COMPARE, device, Status::INTERNAL_ERROR, false),
        (io::COMPARE, damaged, Status::UNRECOVERED_READ, true),
        (io::VERIFY, damaged, Status::UNRECOVERED_READ, true),
    ] {
        served.fail(FaultKind::Read, error, 1);
        let outcome = match opcode {
            io::READ => initiator.io.fetch(at(opcode, 0), 4096).map(drop),
            io::COMPARE => initiator.io.send(at(opcode, 0), &page).map(drop),
            _ => initiator.io.send(at(opcode, 0), &[]).map(drop),
        };
        let Err(InitiatorError::Status(cqe)) = outcome else { panic!("{opcode:#x}: {outcome:?}") };
        assert_eq!(cqe.status.code_and_type(), expected, "{opcode:#x}, {error:?}");
        assert_eq!(cqe.status.is_final(), is_final, "{opcode:#x}, {error:?}");
        let other = initiator.io.fetch(at(io::READ, 1), 4096).expect("the queue goes on");
        assert_eq!(other, page);
        let again = initiator.io.fetch(at(io::READ, 0), 4096).expect("it may be tried again");
        assert_eq!(again, page);
    }
    assert_eq!(media_errors(&mut initiator), 3, "damaged blocks are counted, and nothing else");
    initiator.io.send(at(io::WRITE, 0), &[8; 4096]).expect("a read that fails stops no write");
}

#[test]
fn a_flush_that_fails_is_a_fault_and_a_full_device_says_so() {
    for (opcode, kind, errno, expected) in [
        (io::FLUSH, FaultKind::Flush, libc::EIO, Status::WRITE_FAULT),
        (io::WRITE, FaultKind::Write, libc::EIO, Status::WRITE_FAULT),
        (io::WRITE, FaultKind::Write, libc::ENOSPC, Status::CAPACITY_EXCEEDED),
    ] {
        let served = Served::new();
        let mut initiator = served.connect(1);
        initiator.io.send(at(io::WRITE, 1), &[7; 4096]).expect("a write succeeds");
        served.fail(kind, RequestError::Device { errno }, 1);
        let (sqe, data) = match opcode {
            io::FLUSH => (Sqe::new(opcode, 1), Vec::new()),
            _ => (at(opcode, 0), vec![8; 4096]),
        };
        let outcome = initiator.io.send(sqe, &data);
        assert!(is_status(&outcome, expected), "{opcode:#x}, {errno}: {outcome:?}");
        let Err(InitiatorError::Status(cqe)) = outcome else { unreachable!("it is a status") };
        assert!(cqe.status.is_final(), "{opcode:#x}: trying again would hide what was lost");
        let kept = initiator.io.fetch(at(io::READ, 1), 4096).expect("reads go on");
        assert_eq!(kept, [7; 4096]);
        let mut other = served.connect(2);
        assert_eq!(other.io.fetch(at(io::READ, 1), 4096).expect("so do others'"), [7; 4096]);
    }
}

#[test]
fn where_there_is_no_volume_any_more_a_command_gets_no_answer_and_the_connection_ends() {
    let served = Served::new();
    let mut initiator = served.connect(1);
    initiator.io.send(at(io::WRITE, 0), &[7; 4096]).expect("a write succeeds");
    served.service.close();
    let outcome = initiator.io.send(at(io::WRITE, 0), &[8; 4096]);
    let is_over = matches!(outcome, Err(InitiatorError::Ended(_) | InitiatorError::Io(_)));
    assert!(is_over, "the host is to come back, and hears nothing until then: {outcome:?}");
    let keep_alive = initiator.admin.send(Sqe::new(admin::KEEP_ALIVE, 0), &[]);
    assert!(keep_alive.is_ok(), "the admin queue does not wait for a volume: {keep_alive:?}");
    let log = GetLog { page: page::ERROR, retains_event: false, length: 64, offset: 0 };
    let log = initiator.admin.fetch(log.encode(), 64).expect("the error log can be read");
    assert_eq!(log[..8], [0; 8], "a command that is tried again is no error");
}
