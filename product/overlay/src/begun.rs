//! What was begun below and goes on while the mount answers others: a sync of the whole file system, and the
//! sync of a file that gets a record.

use crate::lower::{Lower, Outcome};
use crate::mark::Marked;
use crate::overlay::Overlay;
use std::collections::BTreeSet;

/// The name of what was begun is this and a number of its own. No node has such a number, and no file that is
/// settled either.
const TAGS: u64 = 3 << 62;

/// What goes on, and who waits for it.
#[derive(Debug)]
pub(crate) enum Begun {
    /// A file gets a record when its mark is durable (R2).
    Mark(Marked),
    /// Everything is made durable for a request.
    Everything { id: u64 },
    /// Records are forgotten when what makes them unnecessary is durable (R5), and then these are answered.
    Forget { records: BTreeSet<u32>, answered: Vec<u64> },
}

impl<L: Lower> Overlay<L> {
    /// Has the whole lower file system made durable.
    pub(crate) fn begin_sync_all(&mut self, begun: Begun) {
        let tag = self.add_begun(begun);
        if let Some(result) = self.lower.begin_sync_all(tag) {
            self.begun_ended(tag, result);
        }
    }

    /// A name for what begins.
    pub(crate) fn add_begun(&mut self, begun: Begun) -> u64 {
        self.begun_count += 1;
        // Less than 2^62 of them are begun in any life, and none is all ones: that is a name of settling.
        let tag = TAGS | self.begun_count;
        self.begun.insert(tag, begun);
        tag
    }

    /// Something has ended; whether it was one of these.
    pub(crate) fn begun_ended(&mut self, tag: u64, result: Outcome<()>) -> bool {
        if tag & TAGS != TAGS {
            return false;
        }
        match self.begun.remove(&tag) {
            Some(Begun::Mark(marked)) => self.marked_durably(marked, result),
            Some(Begun::Everything { id }) => self.lower_is_durable(id, result),
            Some(Begun::Forget { records, answered }) => self.forget_all(records, answered, result),
            // The end of the mount did not wait for it.
            None => {}
        }
        true
    }
}
