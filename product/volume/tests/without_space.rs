//! A device without space: requests that wait for it are refused in time, and later all goes on.

mod common;

use common::{BLOCK, MIB, bare, carry_out, complete_all, read, small_store, write};
use coulter::service::{BlockService, Completion, Operation, RequestError};
use coulter::tuning::{Retuning, SpacePatience};
use coulter::{OpenOptions, State, Volume};
use coulter_device::CommandKind;
use coulter_device::wrap::{Effect, Fault, FaultHandle, FaultyDevice};
use std::thread;
use std::time::{Duration, Instant};

const NO_SPACE: Result<(), RequestError> = Err(RequestError::Device { errno: libc::ENOSPC });
/// The patience, and the time of a machine that has much to do.
const DELAY: Duration = Duration::from_secs(20);

fn full_volume() -> (Volume, FaultHandle) {
    let store = small_store(40 * MIB);
    let inner = store.open().expect("nothing has it open");
    let (device, handle) = FaultyDevice::new(inner, 1);
    let volume = Volume::open(Box::new(device), OpenOptions::default()).expect("intact");
    let space_patience = SpacePatience::of(Duration::from_secs(1)).ok();
    volume.tune(Retuning { space_patience, ..Retuning::default() }).expect("it is open");
    let mut session = volume.connect();
    assert_eq!(carry_out(&mut *session, write(0, 0, &[1; 4096])).result, Ok(()));
    assert_eq!(carry_out(&mut *session, bare(0, Operation::Flush, 0, 0)).result, Ok(()));
    drop(session);
    handle.add(Fault::every(CommandKind::Write, Effect::Fail { errno: libc::ENOSPC }));
    (volume, handle)
}

#[test]
fn every_kind_of_request_is_answered_in_time_and_the_volume_goes_on() {
    let (volume, handle) = full_volume();
    let mut session = volume.connect();
    let begun = Instant::now();
    for round in 0..40 {
        let tag = round * 10;
        let offset = (8 + round % 30) * BLOCK;
        session.submit(write(tag, offset, &vec![2; 5 * 4096]));
        // Parts of blocks, which wait for others.
        session.submit(write(tag + 1, offset + 512, &[3; 512]));
        session.submit(write(tag + 2, offset + 1024, &[4; 4096]));
        session.submit(bare(tag + 3, Operation::WriteZeroes { fua: true }, offset, 3 * BLOCK));
        session.submit(bare(tag + 4, Operation::Discard, offset + BLOCK, 2 * BLOCK));
        session.submit(bare(tag + 5, Operation::Flush, 0, 0));
        session.submit(read(tag + 6, 0, 4096));
        session.kick();
    }
    let completions = complete_all(&mut *session);
    assert!(begun.elapsed() < DELAY, "{:?}", begun.elapsed());
    assert_eq!(completions.len(), 280);
    let of = |kind: u64| completions.iter().filter(move |completion| completion.tag % 10 == kind);
    let is_refused = |completion: &Completion| completion.result == NO_SPACE;
    assert!([0, 1, 2, 3, 5].into_iter().all(|kind| of(kind).all(is_refused)));
    assert!(
        of(6).all(|completion| completion.result == Ok(()) && completion.buffer[..] == [1; 4096])
    );
    assert_eq!(volume.state(), State::Running);
    handle.clear();
    let mut flushed = || carry_out(&mut *session, bare(0, Operation::Flush, 0, 0)).result;
    // The device is asked again from time to time only.
    while flushed() == NO_SPACE {
        assert!(begun.elapsed() < 2 * DELAY, "it is asked again");
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(flushed(), Ok(()));
    assert_eq!(carry_out(&mut *session, write(1, 50 * BLOCK, &[9; 4096])).result, Ok(()));
    let found = carry_out(&mut *session, read(2, 50 * BLOCK, 4096));
    assert_eq!((found.result, &found.buffer[..]), (Ok(()), &[9; 4096][..]));
    drop(session);
    volume.close().expect("there is space");
}

#[test]
fn a_session_whose_writes_are_held_is_told_and_refused_nothing() {
    let (volume, handle) = full_volume();
    let mut session = volume.connect();
    session.hold_writes();
    assert!(!session.lacks_space());
    session.submit(write(1, 8 * BLOCK, &[2; 4096]));
    session.submit(bare(2, Operation::Flush, 0, 0));
    session.kick();
    let begun = Instant::now();
    while !session.lacks_space() {
        assert!(begun.elapsed() < DELAY, "it is told");
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(session.outstanding(), 2);
    handle.clear();
    let completions = complete_all(&mut *session);
    assert!(completions.iter().all(|completion| completion.result == Ok(())));
    while session.lacks_space() {
        assert!(begun.elapsed() < 2 * DELAY, "it is told");
        thread::sleep(Duration::from_millis(10));
    }
    drop(session);
    volume.close().expect("there is space");
}
