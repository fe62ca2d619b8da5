//! Steps that wait for a device which this process serves, taken by a process of their own.
//!
//! # Why
//! A thread that waits for its own process sleeps until it is answered. If the process is killed meanwhile,
//! nobody answers, and what would tell the kernel so, the last close of the device's end, comes only when
//! the sleeper is gone: neither ever is. The process cannot be killed any more, and its store stays
//! locked until the machine starts anew. A process that holds nothing else may sleep: when the other
//! one is killed, the device fails.
//!
//! # Invariants
//! - The step makes system calls only: it runs in a copy of a process whose other threads may have
//!   held any lock, the allocator's too.
//! - Where no other process can be had, the step is taken here.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

/// Descriptors that a step needs at most.
const KEPT_MAX: usize = 2;

/// How a step ends.
type Outcome = Result<(), Errno>;

/// Takes `step` in another process, which has only the descriptors `kept`, and waits for its end.
pub(crate) fn run(kept: &[BorrowedFd<'_>], step: impl Fn() -> Outcome) -> Outcome {
    match begin(kept, &step) {
        Ok(other) => other.outcome().unwrap_or_else(|_| step()),
        Err(_) => step(),
    }
}

/// Takes `step` in another process, and waits no longer than `patience`; with no other process to be had
/// it is taken here, however long that takes.
///
/// # Errors
/// [`Errno::TIMEDOUT`] when it has not ended by then; it may still have its effect.
pub(crate) fn run_within(patience: Duration, step: &dyn Fn() -> Outcome) -> Outcome {
    let Ok(other) = begin(&[], step) else { return step() };
    let limit = Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: 0 };
    let told = &mut [PollFd::new(&other.outcome, PollFlags::IN)];
    match rustix::io::retry_on_intr(|| poll(told, Some(&limit))) {
        Ok(0) => {
            other.abandon();
            Err(Errno::TIMEDOUT)
        }
        _ => other.outcome().unwrap_or(Err(Errno::INTR)),
    }
}

/// The same for a step that ends with the last close of `device`, which may wait too.
pub(crate) fn run_and_close(device: OwnedFd, step: impl Fn(&OwnedFd) -> Outcome) -> Outcome {
    let begun = begin(&[device.as_fd()], &|| step(&device));
    let Ok(other) = begun else { return step(&device) };
    drop(device);
    other.outcome().unwrap_or(Err(Errno::INTR))
}

/// A process that takes a step.
struct Other {
    process: libc::pid_t,
    /// Readable when it has taken the step, or has ended.
    outcome: OwnedFd,
}

/// Begins `step` in another process.
///
/// # Errors
/// When there is none to be had.
fn begin(kept: &[BorrowedFd<'_>], step: &dyn Fn() -> Outcome) -> io::Result<Other> {
    let (outcome, tell) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let mut keep = [RawFd::MAX; KEPT_MAX + 1];
    keep[0] = tell.as_raw_fd();
    for (place, descriptor) in keep[1..].iter_mut().zip(kept) {
        *place = descriptor.as_raw_fd();
    }
    assert!(kept.len() <= KEPT_MAX, "a step needs few descriptors");
    keep.sort_unstable();
    // SAFETY: the new process makes system calls only, as `step` has to, and never returns.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            block_signals();
            close_all_but(&keep);
            let code = step().map_or_else(Errno::raw_os_error, |()| 0);
            let _ = rustix::io::write(&tell, &code.to_ne_bytes());
            // SAFETY: it ends the process at once, and runs nothing.
            unsafe { libc::_exit(0) }
        }
        process => Ok(Other { process, outcome }),
    }
}

/// A signal to the whole process group must not reach a step that has begun.
fn block_signals() {
    // SAFETY: all that is passed is on the stack, and a set of signals may be any bits.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
}

/// Closes all descriptors but these, which are in order.
fn close_all_but(kept: &[RawFd]) {
    let mut next = 0;
    for &descriptor in kept {
        close_range(next, i64::from(descriptor) - 1);
        next = i64::from(descriptor) + 1;
    }
    close_range(next, i64::from(u32::MAX));
}

fn close_range(first: i64, last: i64) {
    if first <= last {
        // SAFETY: what is closed belongs to this process, which uses none of it.
        unsafe { libc::syscall(libc::SYS_close_range, first as u32, last as u32, 0) };
    }
}

impl Other {
    /// Does not wait for it. If it is within a system call that does not end, it lives on.
    fn abandon(self) {
        // SAFETY: it is our own child, not reaped yet, so the number is no one else's.
        unsafe { libc::kill(self.process, libc::SIGKILL) };
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it ended without having taken the step.
    fn outcome(self) -> io::Result<Outcome> {
        let mut code = [0; 4];
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&self.outcome, &mut code));
        let mut status = 0;
        // A process that ignores its children's ends is not told of this one either.
        // SAFETY: `status` is there to be written to.
        while unsafe { libc::waitpid(self.process, &mut status, 0) } == -1
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
        match (read, i32::from_ne_bytes(code)) {
            (Ok(4), 0) => Ok(Ok(())),
            (Ok(4), code) => Ok(Err(Errno::from_raw_os_error(code))),
            _ => Err(io::ErrorKind::Interrupted.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn pipe() -> (OwnedFd, OwnedFd) {
        rustix::pipe::pipe_with(PipeFlags::CLOEXEC).expect("there are descriptors")
    }

    #[test]
    fn the_outcome_is_that_of_the_step() {
        let file = File::open("/dev/null").expect("it is there");
        assert_eq!(run(&[file.as_fd()], || Ok(())), Ok(()));
        assert_eq!(run(&[file.as_fd()], || Err(Errno::NXIO)), Err(Errno::NXIO));
        let own = rustix::process::getpid();
        let is_apart = || if rustix::process::getpid() == own { Err(Errno::INVAL) } else { Ok(()) };
        assert_eq!(run(&[], is_apart), Ok(()));
    }

    #[test]
    fn a_step_has_the_descriptors_that_it_asked_for_and_no_others() {
        let (others, kept) = (pipe(), pipe());
        let raw = [others.0.as_raw_fd(), others.1.as_raw_fd()];
        let step = || {
            // SAFETY: whether it is open is what is asked.
            let is_open = |raw: &RawFd| unsafe { libc::fcntl(*raw, libc::F_GETFD) } != -1;
            if raw.iter().any(is_open) {
                return Err(Errno::BADF);
            }
            rustix::io::write(&kept.1, b"step").map(|_| ())
        };
        assert_eq!(run(&[kept.1.as_fd()], step), Ok(()));
        let mut bytes = [0; 8];
        assert_eq!(rustix::io::read(&kept.0, &mut bytes), Ok(4));
    }

    #[test]
    fn a_step_that_does_not_end_is_given_up() {
        let begun = std::time::Instant::now();
        let forever = || {
            std::thread::sleep(Duration::from_secs(60));
            Ok(())
        };
        assert_eq!(run_within(Duration::from_secs(1), &forever), Err(Errno::TIMEDOUT));
        assert!(begun.elapsed() < Duration::from_secs(30));
        assert_eq!(run_within(Duration::from_secs(60), &|| Err(Errno::NXIO)), Err(Errno::NXIO));
    }

    #[test]
    fn what_is_closed_apart_is_closed_when_the_step_has_ended() {
        let (read, write) = pipe();
        let step = |write: &OwnedFd| rustix::io::write(write, b"step").map(|_| ());
        assert_eq!(run_and_close(write, step), Ok(()));
        let mut bytes = [0; 8];
        assert_eq!(rustix::io::read(&read, &mut bytes), Ok(4));
        assert_eq!(rustix::io::read(&read, &mut bytes), Ok(0), "nobody can write any more");
    }
}
