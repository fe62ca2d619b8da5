//! Threads that wait for `fsync` and for a busy disk, so that the mount's own thread does not.
//!
//! Many files are synced at once: then the lower file system makes them durable with one commit, and its device
//! with one flush.
//!
//! # Invariants
//! - Each sync that was begun is told of once, by [`Syncer::next`].
//! - The descriptor is readable from then until it was told of.

use super::errno;
use crate::lower::Outcome;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::Advice;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// What is waited for at once; the next one waits for a thread.
const THREADS: usize = 16;

/// What is to be done with a file.
#[derive(Debug)]
pub(super) enum Work {
    /// It is made durable.
    Sync,
    /// The file system that it is on is.
    SyncAll,
    /// These bytes are written to the disk, which may sleep until that takes them.
    WriteOut(Range<u64>),
}

/// Work, and what its end is called.
pub(super) struct Job {
    pub(super) tag: u64,
    pub(super) file: OwnedFd,
    pub(super) work: Work,
}

impl Work {
    pub(super) fn carry_out(&self, file: &OwnedFd) -> Outcome<()> {
        match self {
            Work::Sync => rustix::fs::fsync(file).map_err(errno),
            Work::SyncAll => rustix::fs::syncfs(file).map_err(errno),
            Work::WriteOut(range) => {
                // Dirty pages are written out then; who says so does not wait for them. Clean ones go, which are in
                // memory as pages of the mount if anybody reads them.
                let length = NonZeroU64::new(range.end - range.start);
                rustix::fs::fadvise(file, range.start, length, Advice::DontNeed).map_err(errno)
            }
        }
    }
}

/// See the module's documentation.
pub(super) struct Syncer {
    jobs: Option<Sender<Job>>,
    ended: Receiver<(u64, Outcome<()>)>,
    /// Counts syncs that have ended and were not told of.
    wake: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl Syncer {
    /// Starts the threads.
    ///
    /// # Errors
    /// When the system has no descriptor or not one thread left.
    pub(super) fn start() -> Outcome<Syncer> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(errno)?;
        let wake = Arc::new(wake);
        let (jobs, waiting) = channel::<Job>();
        let (report, ended) = channel();
        let waiting = Arc::new(Mutex::new(waiting));
        let mut threads = Vec::with_capacity(THREADS);
        for _ in 0..THREADS {
            let (waiting, report, wake) = (waiting.clone(), report.clone(), wake.clone());
            let work = move || serve(&waiting, &report, &wake);
            match thread::Builder::new().name("coulter-sync".to_owned()).spawn(work) {
                Ok(thread) => threads.push(thread),
                Err(_) if !threads.is_empty() => break,
                Err(error) => return Err(error.raw_os_error().unwrap_or(libc::EAGAIN)),
            }
        }
        Ok(Syncer { jobs: Some(jobs), ended, wake, threads })
    }

    /// Begins with it.
    pub(super) fn begin(&self, job: Job) {
        let jobs = self.jobs.as_ref().expect("they are there until this is dropped");
        assert!(jobs.send(job).is_ok(), "the threads wait for work");
    }

    /// The next sync that has ended, and how.
    pub(super) fn next(&self) -> Option<(u64, Outcome<()>)> {
        let ended = self.ended.try_recv().ok();
        if ended.is_none() {
            // What ends from here on makes it readable again; what ended just before is found by looking once more.
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
            return self.ended.try_recv().ok();
        }
        ended
    }

    /// Readable when a sync has ended that [`Syncer::next`] has not told of.
    pub(super) fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // Its panic was told of when it happened.
            let _ = thread.join();
        }
    }
}

/// What one thread does until nobody wants anything any more.
fn serve(waiting: &Mutex<Receiver<Job>>, report: &Sender<(u64, Outcome<()>)>, wake: &OwnedFd) {
    loop {
        let job = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { tag, file, work }) = job else { return };
        let result = work.carry_out(&file);
        // Before anybody hears of it: what is unmounted then must not be in use.
        drop(file);
        if report.send((tag, result)).is_err() {
            return;
        }
        // It fails only when it would overflow, and is readable then.
        let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    #[test]
    fn each_sync_is_told_of_once_and_wakes() {
        let syncer = Syncer::start().expect("there are threads");
        let file = tempfile::tempfile().expect("it can be made");
        for tag in 0..100 {
            let file = file.try_clone().expect("there is a descriptor").into();
            let work = if tag % 2 == 0 { Work::Sync } else { Work::WriteOut(0..8192) };
            syncer.begin(Job { tag, file, work });
        }
        let mut told = Vec::new();
        while told.len() < 100 {
            let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
            let mut fds = [PollFd::from_borrowed_fd(syncer.wake(), PollFlags::IN)];
            assert_eq!(poll(&mut fds, Some(&limit)), Ok(1), "it wakes while one is to be told of");
            while let Some((tag, result)) = syncer.next() {
                assert_eq!(result, Ok(()));
                told.push(tag);
            }
        }
        told.sort_unstable();
        assert!(told.iter().copied().eq(0..100));
        assert_eq!(syncer.next(), None);
    }

    #[test]
    fn an_error_is_told() {
        let syncer = Syncer::start().expect("there are threads");
        let (_reader, writer) = rustix::pipe::pipe().expect("it can be made");
        syncer.begin(Job { tag: 7, file: writer, work: Work::Sync });
        let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
        let mut fds = [PollFd::from_borrowed_fd(syncer.wake(), PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&limit)), Ok(1));
        assert_eq!(syncer.next(), Some((7, Err(libc::EINVAL))));
    }
}
