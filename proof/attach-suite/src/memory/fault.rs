//! Errors on demand: which requests of a memory service fail, how, and how often.

use coulter::service::{Operation, RequestError};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The requests that a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Reads.
    Read,
    /// Writes, discards and write-zeroes.
    Write,
    /// Flushes; the range is ignored.
    Flush,
}

/// A failure to be.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Which requests fail.
    pub kind: FaultKind,
    /// Only those that touch these bytes fail.
    pub range: Range<u64>,
    /// What they fail with.
    pub error: RequestError,
    /// How many fail before the fault is gone.
    pub count: u32,
}

#[derive(Default)]
pub(super) struct Faults {
    /// Lets the common case cost one load.
    any: AtomicBool,
    list: Mutex<Vec<Fault>>,
}

impl Faults {
    pub(super) fn inject(&self, fault: Fault) {
        let mut list = self.list.lock().expect("no thread panics with the list");
        list.push(fault);
        self.any.store(true, Ordering::SeqCst);
    }

    /// The error that strikes this request, if any.
    pub(super) fn strike(&self, operation: Operation, range: Range<u64>) -> Option<RequestError> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        let kind = match operation {
            Operation::Read => FaultKind::Read,
            Operation::Write { .. } | Operation::Discard | Operation::WriteZeroes { .. } => {
                FaultKind::Write
            }
            Operation::Flush => FaultKind::Flush,
            Operation::Extents => return None,
        };
        let mut list = self.list.lock().expect("no thread panics with the list");
        let position = list.iter().position(|fault| {
            let touches = fault.range.start < range.end && range.start < fault.range.end;
            fault.kind == kind && (kind == FaultKind::Flush || touches)
        })?;
        let error = list[position].error;
        list[position].count = list[position].count.saturating_sub(1);
        if list[position].count == 0 {
            list.remove(position);
        }
        self.any.store(!list.is_empty(), Ordering::SeqCst);
        Some(error)
    }
}
