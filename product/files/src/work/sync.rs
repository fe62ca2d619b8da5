//! Durability: the open set goes out, and what was submitted up to then becomes durable.

use crate::parts::Parts;
use crate::request::Reply;
use crate::task::{Progress, Task};

impl Parts {
    pub(crate) fn run_sync(
        &mut self,
        id: usize,
        task: &mut Task,
        target: &mut Option<u64>,
    ) -> Progress {
        let wanted = *target.get_or_insert_with(|| {
            self.submit_set(true);
            self.flushes.order().issued()
        });
        assert!(wanted <= self.flushes.order().issued(), "it waits for what was submitted");
        if self.health.has_failed() {
            return Progress::Ends(Err(libc::EIO));
        }
        if self.flushes.order().is_durable(wanted) {
            // A write that was to be durable has its answer with it.
            return Progress::Ends(Ok(task.reply.take().unwrap_or(Reply::Done)));
        }
        if self.health.is_short_of_space() {
            return Progress::Ends(Err(libc::ENOSPC));
        }
        self.flushes.wait(id, wanted);
        Progress::Waits
    }
}
