//! A volume that grows behind its target: hosts that have asked for events are told, and then find the new size.

use coulter::service::{BlockService, Description, Session, Watch, Watchers};
use coulter_attach_suite::initiator::Initiator;
use coulter_attach_suite::initiator::is_status;
use coulter_attach_suite::loopback::{connect, serve};
use coulter_attach_suite::memory::{MemoryOptions, MemoryService};
use coulter_nvme::log::{GetLog, page};
use coulter_nvme::opcode::{admin, io};
use coulter_nvme::{DataPointer, Sqe, Status};
use coulter_nvme_target::TargetOptions;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

const BLOCK: u64 = 4096;
const BEFORE: u64 = 8 << 20;
const AFTER: u64 = 16 << 20;

/// A service that says to be as large as it was told to be.
struct Growing {
    below: MemoryService,
    size: AtomicU64,
    watchers: Watchers,
}

impl Growing {
    fn grow(&self, size: u64) {
        self.size.store(size, Ordering::SeqCst);
        self.watchers.notify();
    }
}

impl BlockService for Growing {
    fn size(&self) -> u64 {
        self.size.load(Ordering::SeqCst)
    }

    fn read_only(&self) -> bool {
        false
    }

    fn describe(&self) -> Description {
        Description { size: self.size(), ..self.below.describe() }
    }

    fn watch(&self, watcher: Weak<dyn Watch>) {
        self.watchers.add(watcher);
    }

    fn connect(&self) -> Box<dyn Session + Send> {
        self.below.connect()
    }
}

fn write(block: u64) -> Sqe {
    let data = DataPointer::Transport { length: BLOCK as u32 };
    Sqe::new(io::WRITE, 1).with_blocks(block, 1).with_data_pointer(data)
}

/// Blocks of the namespace, by its Identify.
fn block_count(initiator: &mut Initiator) -> u64 {
    let namespace = initiator.admin.fetch(Sqe::new(admin::IDENTIFY, 1), 4096).expect("it is told");
    u64::from_le_bytes(namespace[..8].try_into().expect("eight bytes"))
}

#[test]
fn a_volume_that_grows_is_told_to_its_hosts_and_its_new_blocks_are_served() {
    let below = MemoryService::new(MemoryOptions::new(AFTER));
    let size = AtomicU64::new(BEFORE);
    let service = Arc::new(Growing { below, size, watchers: Watchers::default() });
    let target = serve(Arc::clone(&service) as _, TargetOptions::default());
    let mut initiator = connect(&target, 1);
    let events = Sqe::new(admin::SET_FEATURES, 0).with_dword(10, 0xb).with_dword(11, 0x100);
    initiator.admin.send(events, &[]).expect("events can be asked for");
    assert_eq!(block_count(&mut initiator), BEFORE / BLOCK);
    let outcome = initiator.io.send(write(BEFORE / BLOCK), &[1; BLOCK as usize]);
    assert!(is_status(&outcome, Status::LBA_OUT_OF_RANGE), "{outcome:?}");
    // More than once: the log must be read before the next event.
    for size in [BEFORE + BLOCK, AFTER] {
        initiator.admin.submit_raw(Sqe::new(admin::ASYNC_EVENT, 0), &[], 0);
        initiator.admin.flush();
        service.grow(size);
        let mut finished = Vec::new();
        initiator.admin.poll(&mut finished, Some(Duration::from_secs(20)));
        let cqe = finished[0].outcome.expect("the event is told");
        assert_eq!(cqe.result32(), 0x0004_0002, "a namespace has changed; the log says which");
        let (page, retains_event) = (page::CHANGED_NAMESPACES, false);
        let log = GetLog { page, retains_event, length: 4096, offset: 0 };
        let changed = initiator.admin.fetch(log.encode(), 4096).expect("the log can be read");
        assert_eq!(changed[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(block_count(&mut initiator), size / BLOCK);
        let last = size / BLOCK - 1;
        initiator.io.send(write(last), &[1; BLOCK as usize]).expect("the new blocks are served");
        let outcome = initiator.io.send(write(last + 1), &[1; BLOCK as usize]);
        assert!(is_status(&outcome, Status::LBA_OUT_OF_RANGE), "{outcome:?}");
    }
}
