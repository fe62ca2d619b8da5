//! What each kind of operation does when it is run.

mod allocate;
mod edges;
mod meta;
mod read;
mod reap;
mod resize;
mod sync;
mod write;

use crate::parts::Parts;
use crate::task::{Progress, Task, Work};

impl Parts {
    pub(crate) fn run(&mut self, id: usize, task: &mut Task) -> Progress {
        // What it does is put back where it was, unless it became something else.
        let nothing = Work::FindOrphans;
        let mut work = std::mem::replace(&mut task.work, nothing);
        let progress = match &mut work {
            Work::Meta(request) => self.run_meta(id, task, request),
            Work::Read(read) => match self.run_read(id, task, read) {
                (progress, None) => progress,
                (_, Some(write)) => {
                    work = Work::Write(write);
                    Progress::Yields
                }
            },
            Work::Write(write) => match self.run_write(id, task, write) {
                Progress::Ends(Ok(reply)) if write.sync => {
                    // The answer is given when it is durable.
                    task.reply = Some(reply);
                    work = Work::Sync(None);
                    Progress::Yields
                }
                progress => progress,
            },
            Work::Resize(resize) => self.run_resize(id, task, resize),
            Work::Allocate(allocate) => self.run_allocate(id, task, allocate),
            Work::Sync(target) => self.run_sync(id, task, target),
            Work::Reap(inode) => self.run_reap(id, *inode),
            Work::FindOrphans => self.run_find_orphans(id),
        };
        task.work = work;
        progress
    }
}
