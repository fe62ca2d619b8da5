//! System calls that `rustix` lacks, behind safe functions: signals, and locks that belong to an
//! open file. They stand together so that the proofs of their safety can be read at once.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

/// A signal that asks a process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndSignal {
    /// `SIGTERM`.
    Terminate,
    /// `SIGINT`.
    Interrupt,
    /// `SIGHUP`.
    HangUp,
}

impl EndSignal {
    const ALL: [EndSignal; 3] = [EndSignal::Terminate, EndSignal::Interrupt, EndSignal::HangUp];

    fn signal(self) -> Signal {
        match self {
            EndSignal::Terminate => Signal::TERM,
            EndSignal::Interrupt => Signal::INT,
            EndSignal::HangUp => Signal::HUP,
        }
    }
}

impl fmt::Display for EndSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EndSignal::Terminate => "SIGTERM",
            EndSignal::Interrupt => "SIGINT",
            EndSignal::HangUp => "SIGHUP",
        })
    }
}

/// The end signals, read from a descriptor instead of having their default effect.
#[derive(Debug)]
pub struct EndSignals {
    descriptor: File,
}

impl EndSignals {
    /// Blocks the end signals in this thread and in all threads that it will start.
    ///
    /// # Errors
    /// When the system refuses a signal descriptor.
    pub fn take_over() -> io::Result<EndSignals> {
        let set = blocked(&EndSignal::ALL.map(EndSignal::signal))?;
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: the kernel reads the set, which is initialised, and makes a descriptor.
        let descriptor = check(unsafe { libc::signalfd(-1, &raw const set, flags) })?;
        // SAFETY: the descriptor is new and open, and nothing else owns it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(EndSignals { descriptor: descriptor.into() })
    }

    /// Takes a signal that has come, if there is one.
    pub fn pending(&self) -> Option<EndSignal> {
        let mut record = [0; mem::size_of::<libc::signalfd_siginfo>()];
        (&self.descriptor).read_exact(&mut record).ok()?;
        // The first field is the number of the signal.
        let number = i32::from_ne_bytes(*record.first_chunk()?);
        EndSignal::ALL.into_iter().find(|signal| signal.signal().as_raw() == number)
    }

    /// Waits for a signal, and takes it.
    ///
    /// # Errors
    /// When the system cannot wait.
    pub fn wait(&self) -> io::Result<EndSignal> {
        loop {
            if let Some(signal) = self.pending() {
                return Ok(signal);
            }
            match poll(&mut [PollFd::new(&self.descriptor, PollFlags::IN)], None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl AsFd for EndSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Blocks `signals` in this thread and in all threads that it will start.
///
/// # Errors
/// When the system refuses.
pub fn block(signals: &[Signal]) -> io::Result<()> {
    blocked(signals).map(drop)
}

fn blocked(signals: &[Signal]) -> io::Result<libc::sigset_t> {
    // SAFETY: a set of signals is plain data, and zeros are the empty set on Linux.
    let mut set: libc::sigset_t = unsafe { mem::zeroed() };
    for signal in signals {
        // SAFETY: the set is initialised and ours.
        check(unsafe { libc::sigaddset(&raw mut set, signal.as_raw()) })?;
    }
    // SAFETY: the set is initialised; the old mask is not asked for.
    let result = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) };
    match result {
        0 => Ok(set),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Makes a write beyond the limit on the size of files (`ulimit -f`, `LimitFSIZE=` of a unit) an
/// error (`EFBIG`) of that write. By default `SIGXFSZ` ends the process without a word.
///
/// The handler does nothing. Programs that are started from here would inherit an ignored signal,
/// but not a handler.
pub fn make_excess_file_size_an_error() {
    extern "C" fn do_nothing(_: libc::c_int) {}
    // SAFETY: the structure is plain data, and zeros are valid in each field.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = do_nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler touches nothing, so it may run at any moment and in any thread.
    let result = unsafe { libc::sigaction(libc::SIGXFSZ, &raw const action, ptr::null_mut()) };
    assert!(result == 0, "SIGXFSZ exists and can be handled");
}

/// Takes an exclusive lock on the whole of `file` without waiting. The lock belongs to the open
/// file: it lasts while any process has that open.
///
/// # Errors
/// `EAGAIN` if another open file has a lock; what the system says.
pub fn lock_open_file(file: &File) -> io::Result<()> {
    open_file_lock(file, libc::F_OFD_SETLK).map(drop)
}

/// True if another open file holds a lock on part of `file`.
///
/// # Errors
/// When the system cannot say.
pub fn is_open_file_locked(file: &File) -> io::Result<bool> {
    open_file_lock(file, libc::F_OFD_GETLK).map(|kind| kind != libc::F_UNLCK)
}

/// Orders something about an exclusive lock on all of `file`; returns the kind of lock that the
/// kernel found.
fn open_file_lock(file: &File, order: libc::c_int) -> io::Result<libc::c_int> {
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open; both orders read and write one `flock`, which is ours.
    check(unsafe { libc::fcntl(file.as_raw_fd(), order, &raw mut lock) })?;
    Ok(lock.l_type.into())
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, kill_process};
    use std::process::Command;

    #[test]
    fn a_lock_of_an_open_file_is_seen_and_refused_by_others_alone() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
        let open = || File::options().write(true).open(file.path()).expect("it is there");
        let (one, other) = (open(), open());
        lock_open_file(&one).expect("it is free");
        assert!(is_open_file_locked(&other).expect("it can be asked"));
        assert!(!is_open_file_locked(&one).expect("its own lock is none to it"));
        let refused = lock_open_file(&other).expect_err("it is held");
        assert_eq!(refused.raw_os_error(), Some(libc::EAGAIN));
        drop(one);
        lock_open_file(&other).expect("it went with its owner");
    }

    #[test]
    fn an_end_signal_is_read_and_does_not_end_the_thread() {
        let thread = std::thread::spawn(|| {
            let signals = EndSignals::take_over().expect("there can be a signal descriptor");
            assert_eq!(signals.pending(), None);
            // SAFETY: the thread is this one, and the signal is blocked in it.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGHUP) };
            assert_eq!(signals.wait().expect("it can be waited for").to_string(), "SIGHUP");
        });
        thread.join().expect("nothing is wrong");
    }

    #[test]
    fn a_blocked_signal_does_not_end_the_thread() {
        let thread = std::thread::spawn(|| {
            block(&[Signal::PIPE, Signal::USR1]).expect("they can be blocked");
            // SAFETY: the thread is this one, and the signal is blocked in it.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1) };
        });
        thread.join().expect("it goes on");
    }

    #[test]
    fn a_file_that_grows_too_large_is_an_error_here_and_the_default_in_programs() {
        make_excess_file_size_an_error();
        let pid = rustix::process::getpid();
        kill_process(pid, Signal::XFSZ).expect("it is this process");
        let mut child = Command::new("sleep").arg("60").spawn().expect("it can run");
        kill_process(Pid::from_child(&child), Signal::XFSZ).expect("it is our child");
        let status = child.wait().expect("the child can be reaped");
        assert!(!status.success(), "the handler is not inherited");
    }
}
