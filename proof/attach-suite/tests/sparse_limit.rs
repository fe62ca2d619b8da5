//! Requests at the limit of a volume with more addresses than blocks, over each way in: the last block is served, and
//! what begins or ends behind it is refused by the server, whatever its client had sent.

use coulter::buffer::Buffer;
use coulter::service::{BlockService, Completion, Operation, Request, RequestError};
use coulter::{CreateOptions, OpenOptions, Volume, create};
use coulter_attach_suite::initiator::InitiatorError;
use coulter_attach_suite::loopback;
use coulter_attach_suite::raw_nbd::{Raw, serve};
use coulter_device::MemoryStore;
use coulter_net::nbd::ServerOptions;
use coulter_net::nbd::wire::command;
use coulter_nvme::opcode::io;
use coulter_nvme::{DataPointer, Sqe, Status};
use coulter_nvme_target::TargetOptions;
use std::sync::Arc;

const BLOCK: u64 = 4096;
const SPACE: u64 = 1 << 50;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;

/// Where requests begin, and their bytes, that end behind the limit or begin there.
const OUTSIDE: [(u64, u64); 4] = [
    (SPACE - BLOCK, 2 * BLOCK),
    (SPACE, BLOCK),
    (SPACE + (1 << 40), BLOCK),
    ((1 << 62) - BLOCK, BLOCK),
];

fn sparse() -> Arc<Volume> {
    let store = MemoryStore::sparse(64 << 20);
    let options = CreateOptions {
        segment_size: Some(2 << 20),
        address_space: Some(SPACE),
        ..CreateOptions::default()
    };
    create(Box::new(store.open().expect("nothing has it open")), &options).expect("it fits");
    let device = store.open().expect("nothing has it open");
    let volume = Volume::open(Box::new(device), OpenOptions::default()).expect("it is intact");
    assert_eq!(volume.size(), SPACE);
    Arc::new(volume)
}

/// A service that several servers may have.
#[derive(Clone)]
struct Shared(Arc<Volume>);

impl BlockService for Shared {
    fn size(&self) -> u64 {
        BlockService::size(&*self.0)
    }

    fn read_only(&self) -> bool {
        BlockService::read_only(&*self.0)
    }

    fn describe(&self) -> coulter::service::Description {
        self.0.describe()
    }

    fn watch(&self, watcher: std::sync::Weak<dyn coulter::service::Watch>) {
        BlockService::watch(&*self.0, watcher);
    }

    fn connect(&self) -> Box<dyn coulter::service::Session + Send> {
        BlockService::connect(&*self.0)
    }
}

#[test]
fn the_library_refuses_each_request_behind_the_limit() {
    let volume = sparse();
    let mut session = BlockService::connect(&*volume);
    let mut ask = |operation, offset, length: u64| {
        let has_data = matches!(operation, Operation::Read | Operation::Write { .. });
        let buffer = if has_data { Buffer::zeroed(length as usize) } else { Buffer::empty() };
        session.submit(Request { tag: 1, operation, offset, length, buffer });
        let mut completions: Vec<Completion> = Vec::new();
        while completions.is_empty() {
            session.complete(&mut completions, None);
        }
        completions.remove(0).result
    };
    let fua = false;
    for operation in [
        Operation::Write { fua },
        Operation::Read,
        Operation::Discard,
        Operation::WriteZeroes { fua },
        Operation::Extents,
    ] {
        assert_eq!(ask(operation, SPACE - BLOCK, BLOCK), Ok(()), "{operation:?}");
        for (offset, length) in OUTSIDE {
            let answer = ask(operation, offset, length);
            assert_eq!(answer, Err(RequestError::OutOfRange), "{operation:?} at {offset}");
        }
    }
}

#[test]
fn an_nbd_server_refuses_each_request_behind_the_limit() {
    let volume = Shared(sparse());
    let directory = tempfile::tempdir().expect("there is room");
    let server = serve(directory.path(), &volume, ServerOptions::default());
    let mut raw = Raw::entered(&server, true, false);
    let mut ask = |kind: u16, offset, length: u64| {
        raw.request(0, kind, offset, length as u32);
        if kind == command::WRITE {
            raw.send(&vec![7; length as usize]);
        }
        // Only what is read comes with data.
        let data = if kind == command::READ { length as usize } else { 0 };
        raw.reply(data).error
    };
    for (kind, expected) in [
        (command::WRITE, ENOSPC),
        (command::READ, EINVAL),
        (command::TRIM, EINVAL),
        (command::WRITE_ZEROES, ENOSPC),
    ] {
        assert_eq!(ask(kind, SPACE - BLOCK, BLOCK), 0, "{kind}");
        for (offset, length) in OUTSIDE {
            assert_eq!(ask(kind, offset, length), expected, "{kind} at {offset}");
        }
    }
}

#[test]
fn an_nvme_target_refuses_each_command_behind_the_limit() {
    let target = loopback::serve(Arc::new(Shared(sparse())), TargetOptions::default());
    let mut initiator = loopback::connect(&target, 1);
    let mut ask = |opcode, offset: u64, length: u64| {
        let count = (length / BLOCK) as u32;
        let command = Sqe::new(opcode, 1).with_blocks(offset / BLOCK, count);
        let data = vec![7; if opcode == io::WRITE { length as usize } else { 0 }];
        let command = match opcode {
            io::WRITE_ZEROES => command,
            _ => command.with_data_pointer(DataPointer::Transport { length: length as u32 }),
        };
        match opcode {
            io::READ => initiator.io.fetch(command, length as usize).map(drop),
            _ => initiator.io.send(command, &data).map(drop),
        }
    };
    for opcode in [io::WRITE, io::READ, io::WRITE_ZEROES] {
        ask(opcode, SPACE - BLOCK, BLOCK).expect("the last block is served");
        for (offset, length) in OUTSIDE {
            let outcome = ask(opcode, offset, length);
            let is_refused = matches!(&outcome, Err(InitiatorError::Status(cqe))
                if cqe.status.code_and_type() == Status::LBA_OUT_OF_RANGE);
            assert!(is_refused, "{opcode} at {offset}: {outcome:?}");
        }
    }
}
