//! A descriptor that is readable when a time has come, or when another one is.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Instant;

/// An `epoll` descriptor over a timer and, if there is one, somebody else's descriptor.
#[derive(Debug)]
pub struct Alarm {
    either: OwnedFd,
    timer: OwnedFd,
}

impl Alarm {
    /// An alarm that is not set, beside `other`.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn beside(other: BorrowedFd<'_>) -> io::Result<Alarm> {
        let alarm = Alarm::alone()?;
        watch(&alarm.either, other)?;
        Ok(alarm)
    }

    /// An alarm that is not set, and waits for nothing but its time.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn alone() -> io::Result<Alarm> {
        // SAFETY: no pointers; the result is checked.
        let timer = owned(unsafe {
            libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK)
        })?;
        // SAFETY: no pointers; the result is checked.
        let either = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        watch(&either, timer.as_fd())?;
        Ok(Alarm { either, timer })
    }

    /// Makes the descriptor readable at `due`, or, without one, only when the other is.
    ///
    /// # Errors
    /// As the system reports them.
    pub fn set(&self, due: Option<Instant>) -> io::Result<()> {
        // Zero would switch the timer off, so what is due already is due in a nanosecond.
        let left = due.map_or(0, |due| {
            due.saturating_duration_since(Instant::now()).as_nanos().clamp(1, i64::MAX as u128)
        });
        let value = libc::timespec {
            tv_sec: (left / 1_000_000_000) as _,
            tv_nsec: (left % 1_000_000_000) as libc::c_long,
        };
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let time = libc::itimerspec { it_interval: never, it_value: value };
        // SAFETY: the new time is read before the call returns, and the old one is not asked for.
        let set =
            unsafe { libc::timerfd_settime(self.timer.as_raw_fd(), 0, &time, ptr::null_mut()) };
        checked(set)
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.either.as_fd()
    }
}

fn watch(either: &OwnedFd, fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    let (either, fd) = (either.as_raw_fd(), fd.as_raw_fd());
    // SAFETY: the event lives until the call returns.
    checked(unsafe { libc::epoll_ctl(either, libc::EPOLL_CTL_ADD, fd, &mut event) })
}

fn owned(fd: libc::c_int) -> io::Result<OwnedFd> {
    checked(fd.min(0))?;
    // SAFETY: the system has just made it, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn checked(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
