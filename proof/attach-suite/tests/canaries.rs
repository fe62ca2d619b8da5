//! The conformance suite catches attach points that are wrong on purpose.
//!
//! Each defect sits between a good server and its service, where a bug of an attach point would.

use coulter::service::{BlockService, Completion, Description, Operation, Request, Session, Watch};
use coulter_attach::point::AttachPoint;
use coulter_attach_suite::conformance::{CASES, Harness, Host, NbdHarness, Traits};
use std::io;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Defect {
    None,
    FlushIsForgotten,
    FuaIsForgotten,
    DiscardIsForgotten,
    ZeroesAreForgotten,
    ReadsAreShifted,
    WritesAreCut,
    ErrorsAreHidden,
}

struct BrokenHarness {
    good: NbdHarness,
    defect: Defect,
}

struct BrokenService(Arc<dyn BlockService>, Defect);

struct BrokenSession(Box<dyn Session + Send>, Defect);

impl Harness for BrokenHarness {
    fn name(&self) -> &'static str {
        "broken"
    }
    fn traits(&self) -> Traits {
        self.good.traits()
    }
    fn attach(&self, service: Arc<dyn BlockService>, read_only: bool) -> Box<dyn AttachPoint> {
        self.good.attach(Arc::new(BrokenService(service, self.defect)), read_only)
    }
    fn connect(&self, point: &dyn AttachPoint) -> io::Result<Box<dyn Host>> {
        self.good.connect(point)
    }
    fn die_in_mid_request(&self, point: &dyn AttachPoint) {
        self.good.die_in_mid_request(point);
    }
    fn assert_nothing_left(&self) {
        self.good.assert_nothing_left();
    }
}

impl BlockService for BrokenService {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn read_only(&self) -> bool {
        self.0.read_only()
    }

    fn describe(&self) -> Description {
        self.0.describe()
    }

    fn watch(&self, watcher: Weak<dyn Watch>) {
        self.0.watch(watcher);
    }
    fn connect(&self) -> Box<dyn Session + Send> {
        Box::new(BrokenSession(self.0.connect(), self.1))
    }
}

impl Session for BrokenSession {
    fn submit(&mut self, mut request: Request) {
        let is_long = request.length >= 8192;
        match (self.1, request.operation) {
            (Defect::FlushIsForgotten, Operation::Flush)
            | (Defect::DiscardIsForgotten, Operation::Discard)
            | (Defect::ZeroesAreForgotten, Operation::WriteZeroes { .. }) => {
                request.operation = Operation::Extents;
                request.length = 4096;
            }
            (Defect::FuaIsForgotten, Operation::Write { .. }) => {
                request.operation = Operation::Write { fua: false };
            }
            (Defect::ReadsAreShifted, Operation::Read) if request.offset >= 512 => {
                request.offset -= 512;
            }
            (Defect::WritesAreCut, Operation::Write { .. }) if is_long => {
                let end = request.buffer.len() - 512;
                request.buffer[end..].fill(0);
            }
            _ => {}
        }
        self.0.submit(request);
    }
    fn kick(&mut self) {
        self.0.kick();
    }
    fn complete(&mut self, out: &mut Vec<Completion>, timeout: Option<Duration>) {
        self.0.complete(out, timeout);
        if self.1 == Defect::ErrorsAreHidden {
            out.iter_mut().for_each(|completion| completion.result = Ok(()));
        }
    }
    fn completion_fd(&self) -> BorrowedFd<'_> {
        self.0.completion_fd()
    }
    fn outstanding(&self) -> usize {
        self.0.outstanding()
    }
}

/// The cases that fail with the defect. Those about life cycles are left out, to save time.
fn failing_cases(defect: Defect) -> Vec<&'static str> {
    let directory = tempfile::tempdir().unwrap();
    let harness = BrokenHarness { good: NbdHarness::unix(directory.path(), true), defect };
    let slow = ["detaching", "shuts down", "dies", "big"];
    let quick = CASES.iter().filter(|(name, _)| !slow.iter().any(|word| name.contains(word)));
    let failing =
        quick.filter(|(_, case)| catch_unwind(AssertUnwindSafe(|| case(&harness))).is_err());
    failing.map(|(name, _)| *name).collect()
}

#[test]
fn every_defect_is_caught_and_none_is_seen_where_none_is() {
    assert_eq!(failing_cases(Defect::None), [] as [&str; 0]);
    std::panic::set_hook(Box::new(|_| {}));
    let caught = [
        Defect::FlushIsForgotten,
        Defect::FuaIsForgotten,
        Defect::DiscardIsForgotten,
        Defect::ZeroesAreForgotten,
        Defect::ReadsAreShifted,
        Defect::WritesAreCut,
        Defect::ErrorsAreHidden,
    ]
    .map(|defect| (defect, failing_cases(defect)));
    let _ = std::panic::take_hook();
    for (defect, cases) in caught {
        assert!(!cases.is_empty(), "{defect:?} is not caught");
    }
}
