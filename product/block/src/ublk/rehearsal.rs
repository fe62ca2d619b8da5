//! The loop of a queue without the driver, to count what it costs on any machine.
//!
//! The commands go to `/dev/null`, which takes ring commands (Linux 6.1) and answers each at once
//! with 0: to the loop, a request is always there. What is requested stands in an anonymous file
//! that is mapped as the driver's memory would be, and the data of writes is read from that file.
//! So everything of this process is as it is with the driver: the ring, its system calls, the
//! translation, the copy, the session. What the kernel does in the driver is not there.

use super::Copy;
use super::abi::{IoDescriptor, OP_WRITE, data_position};
use super::queue::{Descriptors, Lines, Queue, Shape};
use coulter::service::{BLOCK_SIZE, BlockService, Completion, Request, SECTOR_SIZE, Session};
use coulter_attach::hosting::{self, LoopPlace, ThreadShape};
use fastrand::Rng;
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

const THREAD: ThreadShape = ThreadShape { name: "rehearsal", stack_size: 256 << 10 };

/// What is rehearsed.
#[derive(Clone, Copy, Debug)]
pub struct Rehearsal {
    /// Random writes of one block that are to be completed, at least.
    pub count: u64,
    /// Request slots, all of which are always full.
    pub depth: u16,
    /// Who copies. By the driver means here: nobody.
    pub copy: Copy,
}

impl Rehearsal {
    /// Runs the loop on the service's thread, or one of its own, and returns after the last write;
    /// how many there were. `begin` is called between the preparations and the first write.
    ///
    /// # Errors
    /// When the kernel has no ring, or `/dev/null` takes no commands.
    pub fn run(
        self,
        service: &dyn BlockService,
        begin: impl FnOnce() + Send + 'static,
    ) -> io::Result<u64> {
        let block_count = service.size() / BLOCK_SIZE;
        let (sender, outcome) = sync_channel(1);
        let hosted = hosting::host(service, &THREAD, move |session, place| {
            // The other end waits for it.
            let _ = sender.send(self.play(session, place, block_count, begin));
        })?;
        let outcome = outcome.recv().unwrap_or_else(|_| Err(io::Error::other("the loop died")));
        hosted.await_end();
        outcome
    }

    fn play(
        self,
        session: Box<dyn Session>,
        place: LoopPlace,
        block_count: u64,
        begin: impl FnOnce(),
    ) -> io::Result<u64> {
        let file = memfd_create("rehearsal", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, data_position(self.depth))?;
        let commands =
            rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let descriptors = Descriptors::map(&file, self.depth)?;
        let requests = Requests::map(&file, self.depth, block_count)?;
        let completed = Rc::new(Cell::new(0));
        let host = Host { session, requests, completed: completed.clone() };
        let lines = Lines { commands, content: file };
        let shape = Shape { depth: self.depth, io_size_max: super::IO_SIZE_MAX, copy: self.copy };
        let mut queue = Queue::new(lines, descriptors, Box::new(host), place, shape)?;
        begin();
        let mut turn = Ok(());
        while turn.is_ok() && completed.get() < self.count {
            turn = queue.turn();
            if queue.live() < usize::from(self.depth) {
                let words = "/dev/null takes no ring commands here; Linux 6.1 is needed";
                turn = Err(io::Error::new(io::ErrorKind::Unsupported, words));
            }
        }
        queue.finish();
        turn.map(|()| completed.get())
    }
}

/// The session, and the host that has its next request ready as soon as one is complete.
struct Host {
    session: Box<dyn Session>,
    requests: Requests,
    completed: Rc<Cell<u64>>,
}

impl Session for Host {
    fn submit(&mut self, request: Request) {
        self.session.submit(request);
    }

    fn kick(&mut self) {
        self.session.kick();
    }

    fn complete(&mut self, out: &mut Vec<Completion>, timeout: Option<Duration>) {
        let before = out.len();
        self.session.complete(out, timeout);
        for completion in &out[before..] {
            self.requests.renew(completion.tag as u16);
        }
        self.completed.set(self.completed.get() + (out.len() - before) as u64);
    }

    fn completion_fd(&self) -> BorrowedFd<'_> {
        self.session.completion_fd()
    }

    fn outstanding(&self) -> usize {
        self.session.outstanding()
    }
}

/// The descriptors as the driver sees them: to be written.
struct Requests {
    start: *mut IoDescriptor,
    count: u16,
    block_count: u64,
    /// Chooses the addresses.
    random: Rng,
}

impl Requests {
    fn map(file: &OwnedFd, count: u16, block_count: u64) -> io::Result<Requests> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let size = usize::from(count) * size_of::<IoDescriptor>();
        // SAFETY: a new mapping at an address of the kernel's choice harms nobody.
        let start = unsafe { mmap(std::ptr::null_mut(), size, access, MapFlags::SHARED, file, 0)? };
        let random = Rng::with_seed(1);
        let mut requests = Requests { start: start.cast(), count, block_count, random };
        (0..count).for_each(|tag| requests.renew(tag));
        Ok(requests)
    }

    /// Asks for a write of some other block in the slot `tag`.
    fn renew(&mut self, tag: u16) {
        assert!(tag < self.count, "completions name slots that there are");
        let sectors_per_block = BLOCK_SIZE / SECTOR_SIZE;
        let request = IoDescriptor {
            operation_and_flags: OP_WRITE,
            sector_count: sectors_per_block as u32,
            sector: self.random.u64(..self.block_count) * sectors_per_block,
            address: 0,
        };
        // SAFETY: the mapping holds `count` descriptors, and the loop reads this one only after
        // its answer, on this very thread.
        unsafe { self.start.add(usize::from(tag)).write_volatile(request) }
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        let size = usize::from(self.count) * size_of::<IoDescriptor>();
        // SAFETY: mapped in `map` with this size; nothing borrows from it.
        let _ = unsafe { munmap(self.start.cast::<c_void>(), size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coulter_attach_suite::memory::{MemoryOptions, MemoryService};

    #[test]
    fn every_write_of_a_rehearsal_reaches_the_service() {
        for copy in [Copy::ByDriver, Copy::ByDaemon] {
            let service = MemoryService::new(MemoryOptions::new(1 << 20));
            let rehearsal = Rehearsal { count: 1000, depth: 16, copy };
            match rehearsal.run(&service, || {}) {
                // All slots were taken by requests, so up to a depth more come to their end.
                Ok(count) => assert!((1000..1000 + 32).contains(&count), "{count}"),
                Err(error) => eprintln!("SKIPPED: {error}"),
            }
        }
    }
}
