//! Sleeping outside of `poll`, on the descriptor that [`Device::arm`](crate::Device::arm) gives.

use super::Fixture;
use super::rig::Rig;
use crate::command::{Command, Completion, Wait};
use crate::contract::Device;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Far longer than anything here takes.
const TOO_LONG: Duration = Duration::from_secs(8);

/// Arms the device and sleeps on its descriptor; whether that became readable in time.
fn sleep_elsewhere(device: &mut dyn Device, time: Duration) -> bool {
    let fd = device.arm().expect("a descriptor is left").as_raw_fd();
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry is given, and it lives until the call returns.
    let ready = unsafe { libc::poll(&mut entry, 1, time.as_millis() as libc::c_int) };
    ready == 1
}

/// Takes completions without sleep; how many there were.
fn take(device: &mut dyn Device) -> usize {
    let mut completions: Vec<Completion> = Vec::new();
    device.poll(&mut completions, Wait::No).expect("the device can be polled");
    assert!(completions.iter().all(|completion| completion.result.is_ok()));
    completions.len()
}

/// Whoever sleeps only there sees every completion, be the queue short, full or overfull, and
/// whether the commands were started by a poll or not.
pub fn a_descriptor_tells_of_completions(fixture: &dyn Fixture) {
    let mut rig = Rig::new(fixture, 4096);
    let depth = rig.device.properties().queue_depth.min(64);
    for round in 0..120 {
        let count = [1, 2, 2 * depth + 1][round % 3];
        let address = rig.address(0);
        for number in 0..count {
            let tag = number as u64;
            let command = match round % 5 {
                0 => Command::flush(tag),
                1 | 2 => Command::write(tag, (tag % 64) * 4096, 4096, address),
                // Not from where one is being written: the memory is the same.
                _ => Command::read(tag, 1 << 20, 4096, address),
            };
            // SAFETY: the rig's memory outlives its device, and nobody looks at it.
            unsafe { rig.device.submit(command) };
        }
        let mut left = count;
        if round % 2 == 0 {
            left -= take(&mut *rig.device);
        }
        while left > 0 {
            assert!(sleep_elsewhere(&mut *rig.device, TOO_LONG), "round {round}: {left} left");
            left -= take(&mut *rig.device);
        }
    }
}

/// A device that has nothing to say lets its owner sleep, whatever happened before.
pub fn a_descriptor_is_quiet_when_there_is_nothing(fixture: &dyn Fixture) {
    let mut rig = Rig::new(fixture, 4096);
    let waker = rig.device.waker();
    for round in 0..6 {
        match round % 3 {
            0 => rig.write(0, 0, 4096),
            1 => waker.wake(),
            _ => {}
        }
        let start = Instant::now();
        // Once or twice it may call without a cause.
        while sleep_elsewhere(&mut *rig.device, Duration::from_millis(30)) {
            assert_eq!(take(&mut *rig.device), 0, "all was taken");
            assert!(start.elapsed() < TOO_LONG, "it calls for ever");
        }
    }
    // Sleeping in the device itself is as before.
    let mut completions = Vec::new();
    let wait = Wait::For(Duration::from_millis(1));
    rig.device.poll(&mut completions, wait).expect("the device can be polled");
    rig.write(4096, 0, 4096);
}

/// A wake makes the descriptor readable, be it used before the sleep or during it.
pub fn a_waker_is_heard_through_the_descriptor(fixture: &dyn Fixture) {
    let mut rig = Rig::new(fixture, 1);
    rig.device.waker().wake();
    assert!(sleep_elsewhere(&mut *rig.device, TOO_LONG), "the wake before was lost");
    for round in 0..50 {
        let waker = rig.device.waker();
        while sleep_elsewhere(&mut *rig.device, Duration::ZERO) {}
        let thread = thread::spawn(move || {
            thread::sleep(Duration::from_micros(100 * (round % 5)));
            waker.wake();
        });
        assert!(sleep_elsewhere(&mut *rig.device, TOO_LONG), "round {round}: the wake was lost");
        thread.join().expect("the waking thread ends well");
        assert_eq!(take(&mut *rig.device), 0, "nothing was submitted");
    }
}

/// With commands under way and wakes coming in, neither is lost, however sleeps here and there
/// alternate.
pub fn wakes_and_completions_come_through_one_descriptor(fixture: &dyn Fixture) {
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
            assert_eq!(answered.recv_timeout(TOO_LONG), Ok(round), "a wake was lost");
        }
    });
    let (mut seen, mut in_flight, mut sleeps) = (0, 0, 0u64);
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
        sleeps += 1;
        if sleeps.is_multiple_of(3) {
            let mut completions = Vec::new();
            rig.device.poll(&mut completions, Wait::For(TOO_LONG)).expect("it can be polled");
            in_flight -= completions.len();
        } else {
            assert!(sleep_elsewhere(&mut *rig.device, TOO_LONG), "neither was heard");
            in_flight -= take(&mut *rig.device);
        }
    }
    thread.join().expect("the waking thread ends well");
}
