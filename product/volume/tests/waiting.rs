//! A volume whose device is slow to answer says how long its requests have waited.

mod common;

use common::{BLOCK, MIB, carry_out, read, small_store};
use coulter::service::{BlockService, Guest};
use coulter::{OpenOptions, Volume};
use coulter_device::wrap::{SlowDevice, SlowModel};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const LATENCY: Duration = Duration::from_millis(60);
const LONG: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(30);

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn slow_volume() -> Arc<Volume> {
    let store = small_store(48 * MIB);
    let model = SlowModel {
        latency: LATENCY,
        operations_per_second: None,
        operation_size: MIB,
        bytes_per_second: None,
    };
    let device = SlowDevice::new(store.open().expect("nothing has it open"), model);
    let volume = Volume::open(Box::new(device), OpenOptions::default()).expect("intact");
    volume.write_at(0, &[7; BLOCK as usize]).expect("in range");
    // Told when the loop sleeps again.
    wait_until("nothing waits", || volume.unanswered_for().is_none());
    Arc::new(volume)
}

fn says_how_long(volume: &Volume) {
    wait_until("it waits", || volume.unanswered_for().is_some_and(|time| time >= LONG));
    let waiting = volume.statistics().waiting;
    // It may have been answered meanwhile.
    assert!(waiting.requests <= 1, "{waiting:?}");
    assert_eq!(waiting.requests == 1, waiting.oldest_ns > 0, "{waiting:?}");
    wait_until("it is answered", || volume.unanswered_for().is_none());
    assert_eq!(volume.statistics().waiting, Default::default());
}

#[test]
fn a_request_from_another_thread() {
    let volume = slow_volume();
    let other = volume.clone();
    let reader = thread::spawn(move || {
        let mut session = other.connect();
        assert_eq!(carry_out(&mut *session, read(1, 0, BLOCK)).result, Ok(()));
    });
    says_how_long(&volume);
    reader.join().expect("no panic");
}

#[test]
fn a_request_of_a_guest_that_sleeps_by_itself() {
    let volume = slow_volume();
    let guest: Guest = Box::new(|mut session| {
        session.submit(read(1, 0, BLOCK));
        session.kick();
        let mut completions = Vec::new();
        while session.outstanding() > 0 {
            let fd = session.completion_fd();
            let mut sources = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut sources, None).expect("it can be polled");
            session.complete(&mut completions, Some(Duration::ZERO));
        }
        // A guest that has nothing to do sleeps as well.
        let _ = session.completion_fd();
    });
    assert!(volume.host(guest).is_ok());
    says_how_long(&volume);
}
