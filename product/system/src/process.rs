//! Which process is meant, even after its number was given to another one.
//!
//! A pid alone is reused; together with the time at which the process started it is unique until
//! the next boot, and the state directory does not outlive a boot.

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::time::{Duration, Instant};

/// A process, told apart from any later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    #[serde(rename = "process_start_ticks")]
    pub start_ticks: u64,
}

impl Process {
    /// The running process with this number, if there is one.
    pub fn with_pid(pid: u32) -> Option<Process> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (state, start_ticks) = state_and_start(&stat)?;
        // A zombie holds nothing any more, once its last thread has ended: its files are closed and its
        // locks gone.
        (!matches!(state, 'Z' | 'X') || has_threads(&stat)).then_some(Process { pid, start_ticks })
    }

    /// This process.
    pub fn current() -> Process {
        // By its number it might be another's: `/proc` may be that of another namespace.
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let start_ticks = state_and_start(&stat).map_or(0, |(_, start)| start);
        Process { pid: std::process::id(), start_ticks }
    }

    /// Whether it still runs.
    pub fn is_alive(self) -> bool {
        Process::with_pid(self.pid) == Some(self)
    }

    /// Whether it was stopped, by SIGSTOP or a debugger, and waits to be let go on.
    pub fn is_stopped(self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let stopped = |(state, start)| matches!(state, 'T' | 't') && start == self.start_ticks;
        state_and_start(&stat).is_some_and(stopped)
    }

    /// Whether it was killed, or is exiting, and has not ended yet: the kernel closes what it had, which
    /// takes a moment, after `kill -9` has come back.
    pub fn is_dying(self) -> bool {
        // The signal is pending until a thread takes it, and from then on the thread is exiting: looked
        // at in this order, one of both is seen.
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let exits = |(state, start)| {
            let is_exiting = matches!(state, 'Z' | 'X') || is_exiting(&stat);
            start == self.start_ticks && (is_exiting || is_kill_pending(&status))
        };
        state_and_start(&stat).is_some_and(exits)
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// When it has ended, or belongs to another user.
    pub fn signal(self, signal: Signal) -> io::Result<()> {
        let gone = || io::Error::from(rustix::io::Errno::SRCH);
        let pid = Pid::from_raw(self.pid.cast_signed()).ok_or_else(gone)?;
        Ok(kill_process(pid, signal)?)
    }

    /// Waits until it has ended; `false` if it still runs after `limit`.
    pub fn wait_for_end(self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while self.is_alive() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }
}

/// Fields 3 and 22 of `/proc/PID/stat`. The second field is the command in brackets, which may
/// itself hold spaces and brackets, so counting starts behind the last one.
fn state_and_start(stat: &str) -> Option<(char, u64)> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let state = rest.chars().next()?;
    let start = rest.split_ascii_whitespace().nth(19)?.parse().ok()?;
    Some((state, start))
}

/// Whether threads run besides the first one, which is the process to others: field 20.
fn has_threads(stat: &str) -> bool {
    let rest = stat.rsplit_once(") ").map(|(_, rest)| rest).unwrap_or_default();
    let count = rest.split_ascii_whitespace().nth(17).and_then(|count| count.parse::<u32>().ok());
    count.is_some_and(|count| count > 1)
}

/// Whether the first thread is exiting: field 9.
fn is_exiting(stat: &str) -> bool {
    /// The kernel's flag of a task.
    const PF_EXITING: u64 = 4;
    let rest = stat.rsplit_once(") ").map(|(_, rest)| rest).unwrap_or_default();
    let flags = rest.split_ascii_whitespace().nth(6).and_then(|flags| flags.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & PF_EXITING != 0)
}

/// Whether SIGKILL waits to be taken, by the thread or by the process.
fn is_kill_pending(status: &str) -> bool {
    const SIGKILL: u64 = 1 << 8;
    let sets = status.lines().filter_map(|line| {
        let set = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(set.trim(), 16).ok()
    });
    sets.into_iter().any(|set| set & SIGKILL != 0)
}

/// The command of a process as `ps` would print it, or `?` if it has just ended.
pub fn command_of(pid: u32) -> String {
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => name.trim_end().to_owned(),
        Err(_) => "?".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_brackets_does_not_shift_the_fields() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0";
        assert_eq!(state_and_start(stat), Some(('S', 4711)));
        assert_eq!(state_and_start("7 (a"), None);
        assert!(!has_threads(stat) && !has_threads("7 (a"));
        let dying = "7 (a) b) Z 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 3 0 4711 0 0";
        assert!(has_threads(dying), "its files are open as long as one of them runs");
    }

    #[test]
    fn a_process_that_is_killed_or_exits_is_told_from_one_that_runs() {
        let running = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 2 0 4711 0 0";
        let exiting = "7 (a) b) D 1 7 7 0 -1 4194564 1 0 0 0 0 0 0 0 20 0 2 0 4711 0 0";
        assert!(is_exiting(exiting) && !is_exiting(running) && !is_exiting("7 (a"));
        let status = |thread, process| format!("Name:\ta\nSigPnd:\t{thread}\nShdPnd:\t{process}\n");
        let (none, kill, term) = ("0000000000000000", "0000000000000100", "0000000000004000");
        assert!(is_kill_pending(&status(kill, none)) && is_kill_pending(&status(none, kill)));
        assert!(!is_kill_pending(&status(none, none)) && !is_kill_pending(&status(term, term)));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("it can run");
        let process = Process::with_pid(child.id()).expect("it runs");
        assert!(!process.is_dying() && !Process::current().is_dying());
        child.kill().expect("it is our child");
        // Nothing waits for it before the first look: at no moment from now on does it seem to run on.
        let was_seen_to_run = (0..1000).any(|_| process.is_alive() && !process.is_dying());
        child.wait().expect("the child can be reaped");
        assert!(!was_seen_to_run && !process.is_dying());
    }

    #[test]
    fn this_process_is_alive_and_one_with_another_start_is_not() {
        let current = Process::current();
        assert!(current.is_alive());
        assert!(!Process { start_ticks: current.start_ticks + 1, ..current }.is_alive());
    }

    #[test]
    fn a_stopped_process_is_told_from_one_that_sleeps() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("it can run");
        let process = Process::with_pid(child.id()).expect("it runs");
        assert!(!process.is_stopped());
        process.signal(Signal::STOP).expect("it is our child");
        let deadline = Instant::now() + Duration::from_secs(10);
        while !process.is_stopped() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (stopped, alive) = (process.is_stopped(), process.is_alive());
        let other = Process { start_ticks: process.start_ticks + 1, ..process };
        let mistaken = other.is_stopped();
        child.kill().expect("it is our child");
        child.wait().expect("the child can be reaped");
        assert!(stopped && alive && !mistaken);
    }

    #[test]
    fn a_process_that_has_ended_is_not_alive_even_as_a_zombie() {
        let mut child = std::process::Command::new("true").spawn().expect("`true` can be run");
        let process = Process { pid: child.id(), start_ticks: 0 };
        assert!(process.wait_for_end(Duration::from_secs(10)));
        child.wait().expect("the child can be reaped");
    }
}
