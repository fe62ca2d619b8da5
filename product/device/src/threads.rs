//! A file or a disk through a pool of threads that call pread and pwrite, for systems that refuse
//! io_uring. Slower, the same in all else.
//!
//! Invariants:
//! - a command is with the caller's side, in the queue, with one worker, or among the done; each
//!   hand-over is under that list's lock;
//! - `drop` waits for the workers, so they never outlive memory that they were given.

use crate::aligned::AlignedMemory;
use crate::command::{Command, CommandKind, Completion, Prepare, Properties, Region, Wait};
use crate::contract::Device;
use crate::device_error::DeviceError;
use crate::medium::{Target, TargetKind};
use crate::open_error::OpenError;
use crate::open_options::OpenOptions;
use crate::transfer::{PIECE_SIZE_MAX, Progress, Step, ZEROS_SIZE};
use crate::wake::{Awake, Deadline, Sleeper, Waker};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// The request that discards a range of a disk: `_IO(0x12, 119)`, whose upper bits differ between
/// architectures and are those of any other request of that family.
const BLKDISCARD: libc::Ioctl = (libc::BLKSSZGET & !0xff) | 119;

/// A file or a disk through a pool of threads. Made by [`open_path`](crate::open_path).
#[derive(Debug)]
pub struct ThreadDevice {
    pool: Arc<Pool>,
    workers: Vec<JoinHandle<()>>,
    properties: Properties,
    /// Commands submitted since the last poll.
    queued: Vec<Command>,
    /// Completions of commands that never reached a worker.
    done: Vec<Completion>,
    sleeper: Sleeper,
}

/// What the workers share.
#[derive(Debug)]
struct Pool {
    target: Target,
    jobs: Mutex<Jobs>,
    /// There are jobs, or the pool closes.
    jobs_changed: Condvar,
    done: Mutex<Vec<Completion>>,
    caller: Waker,
    discard_refused: AtomicBool,
}

#[derive(Debug)]
struct Jobs {
    queue: VecDeque<Command>,
    is_closed: bool,
}

impl ThreadDevice {
    pub(crate) fn new(
        target: Target,
        options: &OpenOptions,
        note: Option<String>,
    ) -> Result<ThreadDevice, OpenError> {
        let path = target.path().to_path_buf();
        let properties = target.properties("threads", options.queue_depth, note);
        let sleeper = Sleeper::new();
        let pool = Arc::new(Pool {
            target,
            jobs: Mutex::new(Jobs {
                queue: VecDeque::with_capacity(options.queue_depth),
                is_closed: false,
            }),
            jobs_changed: Condvar::new(),
            done: Mutex::new(Vec::with_capacity(options.queue_depth)),
            caller: sleeper.waker(),
            discard_refused: AtomicBool::new(!properties.discard),
        });
        let mut device = ThreadDevice {
            pool,
            workers: Vec::with_capacity(options.threads),
            properties,
            queued: Vec::with_capacity(options.queue_depth),
            done: Vec::with_capacity(options.queue_depth),
            sleeper,
        };
        for _ in 0..options.threads.min(options.queue_depth) {
            let pool = device.pool.clone();
            let worker = thread::Builder::new().name("coulter-device".to_string());
            match worker.spawn(move || pool.work()) {
                Ok(worker) => device.workers.push(worker),
                // Fewer will do.
                Err(_) if !device.workers.is_empty() => break,
                Err(source) => {
                    return Err(OpenError::Io { path, doing: "start threads for", source });
                }
            }
        }
        Ok(device)
    }

    /// Hands what is queued to the workers.
    fn hand_over(&mut self) {
        if self.queued.is_empty() {
            return;
        }
        let count = self.queued.len();
        lock(&self.pool.jobs).queue.extend(self.queued.drain(..));
        if count == 1 {
            self.pool.jobs_changed.notify_one();
        } else {
            self.pool.jobs_changed.notify_all();
        }
    }

    fn take_done(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.done);
        out.append(&mut lock(&self.pool.done));
        if self.properties.discard && self.pool.discard_refused.load(Ordering::Relaxed) {
            self.properties.discard = false;
        }
    }
}

// SAFETY: a worker has done with a command when it tells its completion; a drop waits for the workers.
unsafe impl Device for ThreadDevice {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    unsafe fn register(&mut self, _regions: &[Region]) -> io::Result<()> {
        Ok(())
    }

    unsafe fn submit(&mut self, command: Command) {
        match self.properties.check(&command) {
            Ok(()) => self.queued.push(command),
            Err(error) => self.done.push(Completion { tag: command.tag, result: Err(error) }),
        }
    }

    fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        self.sleeper.disarm();
        self.hand_over();
        let before = out.len();
        self.take_done(out);
        let deadline = if out.len() == before { Deadline::after(wait) } else { Deadline::Past };
        while out.len() == before {
            let awake = self.sleeper.sleep(deadline.left());
            self.take_done(out);
            // Workers that were ready may have been heard before.
            if awake != Awake::Ready {
                break;
            }
        }
        Ok(())
    }

    fn arm(&mut self) -> io::Result<BorrowedFd<'_>> {
        self.hand_over();
        let call = self.sleeper.arm_event()?;
        // Those that were announced before have no announcer left.
        if !self.done.is_empty() || !lock(&self.pool.done).is_empty() {
            call.ring();
        }
        Ok(call.as_fd())
    }

    fn waker(&self) -> Waker {
        self.sleeper.waker()
    }
}

impl Drop for ThreadDevice {
    fn drop(&mut self) {
        let mut jobs = lock(&self.pool.jobs);
        jobs.queue.clear();
        jobs.is_closed = true;
        drop(jobs);
        self.pool.jobs_changed.notify_all();
        for worker in self.workers.drain(..) {
            // A worker that panicked has let go of its memory too.
            let _ = worker.join();
        }
    }
}

impl Pool {
    /// A worker's life.
    fn work(&self) {
        while let Some(command) = self.next_job() {
            let result = self.execute(&command);
            lock(&self.done).push(Completion { tag: command.tag, result });
            self.caller.announce();
        }
    }

    fn next_job(&self) -> Option<Command> {
        let mut jobs = lock(&self.jobs);
        loop {
            if jobs.is_closed {
                return None;
            }
            if let Some(command) = jobs.queue.pop_front() {
                return Some(command);
            }
            jobs = self.jobs_changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn execute(&self, command: &Command) -> Result<(), DeviceError> {
        match command.kind {
            CommandKind::Read | CommandKind::Write => self.transfer(command),
            CommandKind::Flush => {
                // SAFETY: no pointers; the descriptor is open.
                checked(unsafe { libc::fdatasync(self.target.fd()) })
            }
            CommandKind::Discard => self.discard(command),
            CommandKind::Prepare => self.prepare(command),
        }
    }

    fn transfer(&self, command: &Command) -> Result<(), DeviceError> {
        let mut progress = Progress::default();
        loop {
            let answer = self.move_piece(command, progress.done);
            let alignment = self.target.alignment();
            match progress.advance(command.kind, command.length, alignment, answer) {
                Step::Finish => return Ok(()),
                Step::Continue => {}
                Step::Fail(error) => return Err(error),
            }
        }
    }

    /// Moves bytes from `done` on, as many as the kernel takes at once.
    fn move_piece(&self, command: &Command, done: u64) -> Result<u64, i32> {
        let fd = self.target.fd();
        let length = (command.length - done).min(PIECE_SIZE_MAX) as usize;
        let memory = command.buffer.wrapping_add(done as usize);
        let offset = (command.offset + done) as i64;
        let moved = if command.kind == CommandKind::Read {
            // SAFETY: the caller of `submit` promised the command's memory until its completion,
            // and `done` lies inside it.
            unsafe { libc::pread64(fd, memory.cast(), length, offset) }
        } else {
            // SAFETY: as above.
            unsafe { libc::pwrite64(fd, memory.cast(), length, offset) }
        };
        u64::try_from(moved).map_err(|_| last_errno())
    }

    fn prepare(&self, command: &Command) -> Result<(), DeviceError> {
        match self.target.prepare() {
            Prepare::Blocks if self.target.has_hole(command.offset, command.length) => {
                let mut zeros = AlignedMemory::zeroed(command.length.min(ZEROS_SIZE) as usize);
                let (mut at, end) = (command.offset, command.offset + command.length);
                while at < end {
                    let length = ZEROS_SIZE.min(end - at);
                    self.transfer(&Command::write(0, at, length, zeros.as_mut_pointer()))?;
                    at += length;
                }
                Ok(())
            }
            Prepare::Space => {
                let (offset, length) = (command.offset as i64, command.length as i64);
                // SAFETY: no pointers; the descriptor is open.
                let result = unsafe {
                    libc::fallocate64(self.target.fd(), libc::FALLOC_FL_KEEP_SIZE, offset, length)
                };
                match checked(result) {
                    // A file system that cannot promise space does not get in the way.
                    Err(error) if error.errno == libc::EOPNOTSUPP => Ok(()),
                    result => result,
                }
            }
            _ => Ok(()),
        }
    }

    fn discard(&self, command: &Command) -> Result<(), DeviceError> {
        if self.discard_refused.load(Ordering::Relaxed) {
            return Ok(());
        }
        let fd = self.target.fd();
        let result = match self.target.kind() {
            TargetKind::Disk => {
                let range = [command.offset, command.length];
                // SAFETY: this request reads two 64-bit numbers from the address.
                unsafe { libc::ioctl(fd, BLKDISCARD, range.as_ptr()) }
            }
            TargetKind::File => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                // SAFETY: no pointers; the descriptor is open.
                unsafe { libc::fallocate64(fd, mode, command.offset as i64, command.length as i64) }
            }
        };
        match checked(result) {
            Err(error) if matches!(error.errno, libc::EOPNOTSUPP | libc::ENOTTY) => {
                self.discard_refused.store(true, Ordering::Relaxed);
                Ok(())
            }
            result => result,
        }
    }
}

fn checked(result: libc::c_int) -> Result<(), DeviceError> {
    if result == 0 { Ok(()) } else { Err(DeviceError::from_errno(last_errno())) }
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each list is whole whenever its lock is free: nothing panics in the middle of a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
