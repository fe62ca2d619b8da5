//! Scenarios of a store with holes on a file system that is full.

use coulter_engine::{Command, Config, Failure, Phase, Prepare, Request};
use coulter_sim::hand::{Hand, small, store};

/// Error number of a device without space.
const ERRNO_NO_SPACE: i32 = 28;

fn sparse() -> Config {
    Config { prepare: Prepare::Space, ..small() }
}

/// Lets everything complete, with space for so many segments.
fn run_with_room(h: &mut Hand, mut room: u32) -> u32 {
    loop {
        h.poll();
        let Some((io, _)) = h.out.first() else { return room };
        let is_refused = matches!(io.command, Command::Prepare { .. }) && room == 0;
        if matches!(io.command, Command::Prepare { .. }) {
            room = room.saturating_sub(1);
        }
        h.complete(0, if is_refused { Err(ERRNO_NO_SPACE) } else { Ok(()) });
    }
}

fn open_with_room(device: coulter_sim::device::Device, room: u32) -> Hand {
    let mut h = Hand::begin(device, sparse());
    run_with_room(&mut h, room);
    h
}

/// Writes as many pieces as the store takes.
fn fill(h: &mut Hand, byte: u8) -> u64 {
    let mut written = 0;
    for lba in (0..4000).step_by(100) {
        let Some(id) = h.try_write(lba, 100, byte) else { break };
        run_with_room(h, 0);
        match h.answers.remove(&id) {
            Some(result) => assert_eq!(result, Ok(()), "a lack of space fails no write"),
            // It waits, taken already.
            None => break,
        }
        written = lba + 100;
    }
    written
}

#[test]
fn when_space_is_short_writes_wait_and_go_on_by_themselves_and_reads_never_wait() {
    let mut h = open_with_room(store(40, 4096, Some(4000), None, 4), 8);
    assert_eq!(h.engine.phase(), Phase::Running);
    let written = fill(&mut h, 7);
    assert!((100..4000).contains(&written), "{written}");
    assert!(h.engine.lacks_space());
    assert_eq!(h.engine.read_only(), None);
    assert_eq!(h.read(0), Some(Ok(7)));
    // Asked again in vain, nothing changes.
    h.engine.try_for_space();
    run_with_room(&mut h, 0);
    assert!(h.engine.lacks_space());
    h.engine.try_for_space();
    run_with_room(&mut h, u32::MAX);
    assert!(!h.engine.lacks_space());
    for lba in (0..4000).step_by(100) {
        let id = h.try_write(lba, 100, 9).expect("there is space");
        run_with_room(&mut h, u32::MAX);
        assert_eq!(h.answers.remove(&id), Some(Ok(())));
    }
    assert_eq!(h.read(3999), Some(Ok(9)));
}

#[test]
fn a_full_store_is_opened_read_and_closed_without_any_space() {
    let mut h = open_with_room(store(40, 4096, Some(4000), None, 4), 8);
    let written = fill(&mut h, 7);
    let flush = h.submit(Request::Flush).expect("a flush needs no space");
    run_with_room(&mut h, 0);
    assert_eq!(h.answers.remove(&flush), Some(Ok(())));
    for life in 0..30 {
        h = open_with_room(h.device.clone(), 0);
        assert!(matches!(h.engine.phase(), Phase::Recovered | Phase::Running), "life {life}");
        assert_eq!(h.engine.read_only(), None);
        for lba in (0..written).step_by(33) {
            assert_eq!(h.read(lba), Some(Ok(7)), "life {life}, block {lba}");
        }
        let end = h.submit(Request::Shutdown).expect("it is always taken");
        run_with_room(&mut h, 0);
        let ended = h.answers.remove(&end).expect("a shutdown ends without space too");
        let is_told = ended == Ok(()) || ended == Err(Failure::Device(ERRNO_NO_SPACE));
        assert!(is_told, "life {life}: {ended:?}");
    }
    let mut h = open_with_room(h.device, u32::MAX);
    assert_eq!(h.engine.phase(), Phase::Running);
    assert_eq!(h.read(0), Some(Ok(7)));
    assert!(h.write(0, 100, 8));
    h.device.check().expect("the checker finds no fault");
}

#[test]
fn what_is_freed_on_a_full_device_is_given_back_and_used_again() {
    let config = Config { trim: true, ..sparse() };
    let mut h = Hand::begin(store(40, 4096, Some(1500), None, 4), config);
    run_with_room(&mut h, 16);
    // Room for half of the segments, and each that is freed is one more.
    let mut room = 0;
    for round in 0..60 {
        for lba in (0..500).step_by(100) {
            for _ in 0..8 {
                let taken = h.try_write(lba, 100, round);
                h.poll();
                while let Some((io, _)) = h.out.first() {
                    let result = match io.command {
                        Command::Prepare { .. } if room == 0 => Err(ERRNO_NO_SPACE),
                        Command::Prepare { .. } => {
                            room -= 1;
                            Ok(())
                        }
                        Command::Discard { .. } => {
                            room += 1;
                            Ok(())
                        }
                        _ => Ok(()),
                    };
                    h.complete(0, result);
                    h.poll();
                }
                if taken.is_some() {
                    break;
                }
                h.engine.try_for_space();
            }
        }
    }
    assert_eq!(h.engine.read_only(), None);
    assert_eq!(h.read(0), Some(Ok(59)), "overwrites go on within the space that there is");
}
