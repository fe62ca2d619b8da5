//! Ctrl-C and TERM: nothing stays behind then either.
//!
//! What runs below this process is ended, and goes on being ended. So whoever waits for it fails, and what he
//! holds goes as after every failure: [`crate::Scratch`] clears its directory when it is dropped. The process
//! ends when no directory is left, or after a while with those that are.

use crate::scratch;
use coulter_system::processes::pids;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long those who hold directories may take to fail.
const PATIENCE: Duration = Duration::from_secs(20);

/// Between two rounds of ending what runs below.
const PAUSE: Duration = Duration::from_millis(20);

static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Whether a signal has come, and nothing is to be begun any more.
pub(crate) fn is_ending() -> bool {
    IS_ENDING.load(Ordering::SeqCst)
}

/// Does not return once a signal has come: what fails by that is nothing to tell of.
pub(crate) fn stay_if_ending() {
    while is_ending() {
        thread::park();
    }
}

/// Has this process clear away its directories before a signal ends it.
pub(crate) fn clear_on_signals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Where it cannot be had, the next owner clears away, as after a kill.
        let Ok(mut signals) = Signals::new([SIGINT, SIGTERM, SIGHUP]) else { return };
        thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                end(signal);
            }
        });
    });
}

fn end(signal: i32) -> ! {
    IS_ENDING.store(true, Ordering::SeqCst);
    eprintln!("ending on a signal; what is mounted is taken away first");
    let deadline = Instant::now() + PATIENCE;
    while scratch::is_any_left() && Instant::now() < deadline {
        end_children();
        thread::sleep(PAUSE);
    }
    scratch::clear_all();
    std::process::exit(128 + signal);
}

/// Ends the processes that this one has begun.
fn end_children() {
    let own = rustix::process::getpid();
    for pid in processes().filter(|pid| parent_of(*pid) == Some(own)) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// All that run.
pub(crate) fn processes() -> impl Iterator<Item = Pid> {
    pids().filter_map(|pid| Pid::from_raw(pid.cast_signed()))
}

fn parent_of(pid: Pid) -> Option<Pid> {
    let text = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // Its name may hold anything, but is the last thing in parentheses.
    let parent = text.rsplit_once(')')?.1.split_whitespace().nth(1)?;
    Pid::from_raw(parent.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_child_has_its_parent_and_other_processes_have_another() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("it can be started");
        let own = rustix::process::getpid();
        assert_eq!(parent_of(Pid::from_child(&child)), Some(own));
        assert_ne!(parent_of(own), Some(own));
        child.kill().and_then(|()| child.wait()).expect("it runs");
        assert_eq!(parent_of(Pid::from_raw(i32::MAX).expect("it is no zero")), None);
    }
}
