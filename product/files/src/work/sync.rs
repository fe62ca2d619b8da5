//! Durability: the open set goes out, and what was submitted up to then becomes durable.

use crate::files::Files;
use crate::request::Reply;
use crate::task::{Progress, Task};

impl Files {
    pub(crate) fn run_sync(
        &mut self,
        id: usize,
        task: &mut Task,
        target: &mut Option<u64>,
    ) -> Progress {
        let wanted = *target.get_or_insert_with(|| {
            self.submit_set(true);
            self.order.issued()
        });
        if self.failed.is_some() {
            return Progress::Ends(Err(libc::EIO));
        }
        if self.order.is_durable(wanted) {
            // A write that was to be durable has its answer with it.
            return Progress::Ends(Ok(task.reply.take().unwrap_or(Reply::Done)));
        }
        if self.is_short_of_space {
            return Progress::Ends(Err(libc::ENOSPC));
        }
        if !self.waiting_for_flush.contains(&id) {
            self.waiting_for_flush.push(id);
        }
        self.flush_is_due = true;
        Progress::Waits
    }
}
