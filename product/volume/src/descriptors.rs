//! What somebody who waits for other things too sleeps on beside them: a descriptor that is readable
//! when the device has something, and, if the clock has a say, when its time has come.

use coulter_device::alarm::Alarm;
use std::cell::OnceCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// Descriptors of one sleeper, each made when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct Descriptors {
    /// The device's.
    device: OnceCell<OwnedFd>,
    /// The same with an alarm beside it. Apart, so that a sleep without end costs what it did.
    alarm: OnceCell<Alarm>,
}

impl Descriptors {
    /// The descriptor for a sleep until the device, whose own is `device`, has something, or until
    /// `due`.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub(crate) fn armed(
        &self,
        device: BorrowedFd<'_>,
        due: Option<Instant>,
    ) -> io::Result<BorrowedFd<'_>> {
        let own = match self.device.get() {
            Some(own) => own,
            None => {
                let own = device.try_clone_to_owned()?;
                self.device.get_or_init(|| own)
            }
        };
        if due.is_none() {
            return Ok(own.as_fd());
        }
        let alarm = match self.alarm.get() {
            Some(alarm) => alarm,
            None => {
                let alarm = Alarm::beside(own.as_fd())?;
                self.alarm.get_or_init(|| alarm)
            }
        };
        alarm.set(due)?;
        Ok(alarm.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coulter_device::wake::Sleeper;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::time::Duration;

    fn is_readable(fd: BorrowedFd<'_>, millis: i64) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let time = Timespec { tv_sec: 0, tv_nsec: millis * 1_000_000 };
        poll(&mut fds, Some(&time)).expect("a descriptor can be polled") > 0
    }

    #[test]
    fn a_sleep_ends_when_it_is_due_or_when_the_device_has_something() {
        let (sleeper, descriptors) = (Sleeper::new(), Descriptors::default());
        let device = sleeper.arm().expect("a descriptor");
        let due = Instant::now() + Duration::from_millis(30);
        let fd = descriptors.armed(device, Some(due)).expect("a descriptor");
        assert!(!is_readable(fd, 0));
        assert!(is_readable(fd, 900), "its time has come");
        let fd = descriptors.armed(device, None).expect("a descriptor");
        assert!(!is_readable(fd, 0));
        let later = Instant::now() + Duration::from_secs(60);
        let fd = descriptors.armed(device, Some(later)).expect("a descriptor");
        assert!(!is_readable(fd, 0), "the alarm is set anew");
        sleeper.waker().wake();
        assert!(is_readable(fd, 900));
    }
}
