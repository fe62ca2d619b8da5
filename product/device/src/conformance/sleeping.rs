//! Sleeping in `poll`, and being woken.

use super::Fixture;
use super::rig::Rig;
use crate::command::{Command, Wait};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Far longer than anything here takes, far shorter than for ever.
const TOO_LONG: Duration = Duration::from_secs(8);

/// A sleep ends when its time is over, and not much earlier.
pub fn a_wait_ends_when_its_time_is_over(fixture: &dyn Fixture) {
    let mut rig = Rig::new(fixture, 1);
    let mut completions = Vec::new();
    let time = Duration::from_millis(60);
    // Sleeps may end early, now and then; so the longest of some is looked at.
    let longest = (0..3).map(|_| {
        let start = Instant::now();
        rig.device.poll(&mut completions, Wait::For(time)).expect("the device can be polled");
        assert!(start.elapsed() < TOO_LONG, "the sleep has an end");
        start.elapsed()
    });
    assert!(longest.max() >= Some(time), "the sleep lasts");
    assert!(completions.is_empty(), "nothing was submitted");
}

/// Without leave to sleep `poll` returns at once.
pub fn no_wait_means_no_sleep(fixture: &dyn Fixture) {
    let mut rig = Rig::new(fixture, 1);
    let mut completions = Vec::new();
    let start = Instant::now();
    for wait in [Wait::No, Wait::For(Duration::ZERO)] {
        for _ in 0..100 {
            rig.device.poll(&mut completions, wait).expect("the device can be polled");
        }
    }
    assert!(start.elapsed() < TOO_LONG);
    assert!(completions.is_empty(), "nothing was submitted");
}

/// A waker ends a sleep without end, again and again.
pub fn a_waker_ends_a_sleep_from_another_thread(fixture: &dyn Fixture) {
    let mut rig = Rig::new(fixture, 1);
    let mut completions = Vec::new();
    for round in 0..20 {
        let waker = rig.device.waker();
        let thread = thread::spawn(move || {
            // At times before the sleep begins, at times after.
            thread::sleep(Duration::from_micros(100 * (round % 5)));
            waker.wake();
        });
        rig.device.poll(&mut completions, Wait::Forever).expect("the device can be polled");
        thread.join().expect("the waking thread ends well");
    }
    assert!(completions.is_empty(), "nothing was submitted");
}

/// A wake is kept for the next sleep, even past polls that do not sleep.
pub fn a_wake_before_the_sleep_is_not_lost(fixture: &dyn Fixture) {
    let mut rig = Rig::new(fixture, 1);
    let mut completions = Vec::new();
    let waker = rig.device.waker();
    waker.wake();
    waker.wake();
    rig.device.poll(&mut completions, Wait::No).expect("the device can be polled");
    let start = Instant::now();
    rig.device.poll(&mut completions, Wait::For(TOO_LONG)).expect("the device can be polled");
    assert!(start.elapsed() < TOO_LONG / 2, "the wake ended the sleep");
}

/// With commands under way and wakes coming in, neither is lost: each side waits for the other,
/// and would wait for ever.
pub fn wakes_and_completions_do_not_hide_each_other(fixture: &dyn Fixture) {
    const ROUND_COUNT: u64 = 300;
    let mut rig = Rig::new(fixture, 4096);
    let waker = rig.device.waker();
    let posted = Arc::new(AtomicU64::new(0));
    let (answers, answered) = mpsc::channel();
    let post = posted.clone();
    let thread = thread::spawn(move || {
        for round in 1..=ROUND_COUNT {
            post.store(round, Ordering::Relaxed);
            waker.wake();
            let answer = answered.recv_timeout(TOO_LONG).expect("a wake was lost");
            assert_eq!(answer, round);
        }
    });
    let (mut seen, mut in_flight, mut completed) = (0, 0, 0);
    let mut completions = Vec::new();
    while seen < ROUND_COUNT || in_flight > 0 {
        let now = posted.load(Ordering::Relaxed);
        if now > seen {
            seen = now;
            if answers.send(now).is_err() {
                break;
            }
            for block in 0..now % 3 {
                let address = rig.address(0);
                // SAFETY: the rig's memory outlives its device.
                unsafe { rig.device.submit(Command::write(now, block * 4096, 4096, address)) };
                in_flight += 1;
            }
            continue;
        }
        rig.device.poll(&mut completions, Wait::Forever).expect("the device can be polled");
        in_flight -= completions.len();
        completed += completions.len() as u64;
        assert!(completions.iter().all(|completion| completion.result.is_ok()));
        completions.clear();
    }
    thread.join().expect("the waking thread ends well");
    assert_eq!(completed, ROUND_COUNT / 3 * 3, "every command completes once");
}

/// A waker without a device does nothing.
pub fn a_waker_may_outlive_its_device(fixture: &dyn Fixture) {
    let mut rig = Rig::new(fixture, 1);
    let waker = rig.device.waker();
    let mut completions = Vec::new();
    let wait = Wait::For(Duration::from_millis(1));
    rig.device.poll(&mut completions, wait).expect("the device can be polled");
    let clone = waker.clone();
    drop(rig);
    waker.wake();
    clone.wake();
}
