//! Guests: code that runs on the volume's own thread, with a session there.

mod common;

use common::*;
use coulter::service::{BlockService, Guest, RequestError, Session};
use coulter::{CloseError, State, Volume};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// What must not take for ever.
const PATIENCE: Duration = Duration::from_secs(20);

/// Hosts a guest as soon as there is room for it.
fn host(volume: &dyn BlockService, mut guest: Guest) {
    let begun = Instant::now();
    while let Err(refused) = volume.host(guest) {
        assert!(begun.elapsed() < PATIENCE, "the guest before leaves");
        guest = refused;
        std::thread::yield_now();
    }
}

/// Runs `guest` on the volume's thread and waits for its result.
fn visit<T: Send + 'static>(
    volume: &dyn BlockService,
    guest: impl FnOnce(&mut dyn Session) -> T + Send + 'static,
) -> T {
    let (sender, receiver) = mpsc::channel();
    host(
        volume,
        Box::new(move |mut session| {
            let _ = sender.send(guest(&mut *session));
        }),
    );
    receiver.recv_timeout(PATIENCE).expect("the guest says something")
}

/// Like an attach point without a host: asleep on the session until `stop` is readable.
fn idle_guest(stop: UnixStream) -> Guest {
    Box::new(move |mut session| {
        let mut completions = Vec::new();
        loop {
            let fd = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut entries = [fd(session.completion_fd().as_raw_fd()), fd(stop.as_raw_fd())];
            // SAFETY: two entries are given, and they live until the call returns.
            unsafe { libc::poll(entries.as_mut_ptr(), 2, -1) };
            if entries[1].revents != 0 {
                return;
            }
            session.complete(&mut completions, Some(Duration::ZERO));
        }
    })
}

#[test]
fn a_guest_reads_and_writes_beside_sessions_on_other_threads() {
    let store = small_store(64 * MIB);
    let volume: Arc<Volume> = Arc::new(open(&store));
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (other, stopped) = (volume.clone(), stop.clone());
        let counted = scope.spawn(move || {
            let mut rounds = 0u64;
            while !stopped.load(Ordering::Relaxed) {
                let bytes = [rounds as u8; 4096];
                other.write_at(100 * BLOCK, &bytes).expect("in range");
                let mut found = [0; 4096];
                other.read_at(100 * BLOCK, &mut found).expect("in range");
                assert_eq!(found, bytes);
                rounds += 1;
            }
            rounds
        });
        for round in 0..200u64 {
            let done = visit(&*volume, move |session| {
                for tag in 0..32 {
                    session.submit(write(tag, tag * BLOCK, &[(round + tag) as u8; 4096]));
                }
                let written = complete_all(session).len();
                for tag in 0..32 {
                    session.submit(read(tag, tag * BLOCK, BLOCK));
                }
                let completions = complete_all(session);
                let is_right = completions.iter().all(|completion| {
                    completion.buffer.iter().all(|byte| *byte == (round + completion.tag) as u8)
                });
                (written, completions.len(), is_right)
            });
            assert_eq!(done, (32, 32, true), "round {round}");
        }
        stop.store(true, Ordering::Relaxed);
        assert!(counted.join().expect("the other thread ends well") > 0);
    });
    let mut bytes = [0; 4096];
    volume.read_at(3 * BLOCK, &mut bytes).expect("in range");
    assert_eq!(bytes, [(199 + 3) as u8; 4096]);
}

#[test]
fn a_volume_answers_while_its_guest_sleeps() {
    let store = small_store(48 * MIB);
    let volume: Volume = open(&store);
    let (stop, stopped) = UnixStream::pair().expect("two descriptors");
    assert!(volume.host(idle_guest(stopped)).is_ok());
    for round in 0..300u64 {
        volume.write_at(round * BLOCK, &[7; 4096]).expect("in range");
        assert_eq!(volume.statistics().requests.writes, round + 1);
    }
    assert!(volume.host(Box::new(|_| {})).is_err(), "one guest at a time");
    let before = volume.statistics().event_loop.turns;
    std::thread::sleep(Duration::from_millis(100));
    let turns = volume.statistics().event_loop.turns - before;
    assert!(turns <= 8, "{turns} turns for one question");
    drop(stop);
    visit(&volume, |_| {});
    volume.close().expect("the device works");
}

#[test]
fn a_volume_ends_under_its_guest_and_the_guest_is_told() {
    for ends_abruptly in [false, true] {
        let store = small_store(48 * MIB);
        let volume: Volume = open(&store);
        let (results, received) = mpsc::channel();
        let guest: Guest = Box::new(move |mut session| {
            let mut tag = 0;
            loop {
                tag += 1;
                let result =
                    carry_out(&mut *session, write(tag, tag % 100 * BLOCK, &[1; 512])).result;
                let is_over = result.is_err();
                let _ = results.send(result);
                if is_over {
                    return;
                }
            }
        });
        assert!(volume.host(guest).is_ok());
        assert_eq!(received.recv_timeout(PATIENCE), Ok(Ok(())));
        // It returns although the guest has not.
        if ends_abruptly {
            volume.abandon().expect("nothing failed");
        } else {
            volume.close().expect("the device works");
        }
        let last = received.into_iter().last();
        assert_eq!(last, Some(Err(RequestError::Closed)));
        drop(open::<Volume>(&store));
    }
}

#[test]
fn a_guest_that_stays_keeps_neither_the_store_nor_the_closer() {
    let store = small_store(48 * MIB);
    let volume: Volume = open(&store);
    let (stop, stopped) = UnixStream::pair().expect("two descriptors");
    assert!(volume.host(idle_guest(stopped)).is_ok());
    volume.write_at(0, &[1; 4096]).expect("in range");
    volume.close().expect("the device works");
    drop(open::<Volume>(&store));
    drop(stop);
}

#[test]
fn a_guest_that_panics_leaves_the_volume_as_it_was() {
    let store = small_store(48 * MIB);
    let volume: Volume = open(&store);
    for round in 0..20u64 {
        let guest: Guest = Box::new(move |mut session| {
            for tag in 0..20 {
                session.submit(write(tag, (round + tag) * BLOCK, &[9; 4096]));
                session.submit(write(tag, (round + tag) * BLOCK + SECTOR, &[9; 512]));
            }
            session.kick();
            panic!("the guest's own");
        });
        assert!(volume.host(guest).is_ok());
        visit(&volume, |_| {});
        volume.write_at(0, &[round as u8; 4096]).expect("in range");
    }
    assert_eq!(volume.state(), State::Running);
    volume.close().expect("the device works");
}

#[test]
fn a_guest_that_would_wait_for_its_own_thread_is_stopped() {
    let store = small_store(48 * MIB);
    let volume: Arc<Volume> = Arc::new(open(&store));
    let waits: [fn(&Volume); 2] = [
        |volume| {
            let _ = volume.statistics();
        },
        // Before memory is lent that would be lost with the guest's stack.
        |volume| volume.read_at(0, &mut [0; 4096]).expect("it does not come so far"),
    ];
    for wait in waits {
        let own = volume.clone();
        host(&*volume, Box::new(move |_| wait(&own)));
        visit(&*volume, |_| {});
        assert_eq!(volume.state(), State::Running);
    }
    volume.shut_down().expect("the device works");
}

#[test]
fn a_guest_may_hold_the_last_handle() {
    let store = small_store(48 * MIB);
    let volume: Arc<Volume> = Arc::new(open(&store));
    let (go, told) = mpsc::channel::<()>();
    let own = volume.clone();
    let guest: Guest = Box::new(move |mut session| {
        told.recv().expect("told to go on");
        assert_eq!(carry_out(&mut *session, write(1, 0, &[3; 4096])).result, Ok(()));
        drop(own);
    });
    assert!(volume.host(guest).is_ok());
    drop(volume);
    go.send(()).expect("the guest listens");
    // It closes in order when the guest has returned.
    let begun = Instant::now();
    let device = loop {
        match store.open() {
            Ok(device) => break device,
            Err(_) => assert!(begun.elapsed() < PATIENCE, "the store is free again"),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let volume = Volume::open(Box::new(device), Default::default()).expect("intact");
    assert!(volume.statistics().log.records_replayed < 10, "it was closed in order");
    let mut bytes = [0; 4096];
    volume.read_at(0, &mut bytes).expect("in range");
    assert_eq!(bytes, [3; 4096]);
}

/// Both end the volume, and neither waits for the other.
#[test]
fn a_guest_may_end_the_volume_while_another_thread_waits_for_its_end() {
    let store = small_store(48 * MIB);
    for waits in [true, false] {
        let volume: Arc<Volume> = Arc::new(open(&store));
        let own = volume.clone();
        let (go, told) = mpsc::channel::<()>();
        let (done, ended) = mpsc::channel();
        let guest: Guest = Box::new(move |_| {
            told.recv().expect("told to go on");
            assert_eq!(own.shut_down(), Ok(()));
            done.send(()).expect("somebody waits");
        });
        assert!(volume.host(guest).is_ok());
        let closing = {
            let volume = volume.clone();
            std::thread::spawn(move || volume.shut_down())
        };
        if waits {
            std::thread::sleep(Duration::from_millis(50));
        }
        go.send(()).expect("the guest listens");
        ended.recv_timeout(PATIENCE).expect("the guest does not wait");
        assert_eq!(closing.join().expect("no panic"), Ok(()));
        // Whoever asks from elsewhere waits until it is closed.
        volume.shut_down().expect("the device works");
        assert_eq!(volume.state(), State::Closed);
    }
    drop(open::<Volume>(&store));
}

#[test]
fn a_closed_volume_takes_no_guest() {
    let store = small_store(48 * MIB);
    let volume: Volume = open(&store);
    volume.shut_down().expect("the device works");
    assert!(volume.host(Box::new(|_| {})).is_err());
    assert_eq!(volume.shut_down(), Ok::<(), CloseError>(()));
}
