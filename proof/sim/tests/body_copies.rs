//! Goal: no damage to one copy of the checkpoint's body costs anything, and while a checkpoint is written the
//! one before it keeps both of its copies.

use coulter_check::{Finding, Severity};
use coulter_engine::{Command, Config, OpenError, Phase, Request};
use coulter_format::superblock::CheckpointLocation;
use coulter_format::{BLOCK_SIZE, Pba};
use coulter_sim::device::Device;
use coulter_sim::hand::{Hand, small, store};
use coulter_sim::random::Random;

/// A store that lived, closed or killed, and what it should hold.
fn aged(closes: bool, seed: u64) -> (Device, Vec<u8>) {
    let mut hand = Hand::open(store(24, 1024, None, None, 8), small());
    let mut random = Random::new(seed);
    let size = hand.engine.geometry().volume_size;
    let mut expected = vec![0; size as usize];
    for round in 0..1500u32 {
        let (lba, value) = (random.below(size - 8), 1 + (round % 250) as u8);
        assert!(hand.write(lba, 8, value), "{:?}", hand.engine.statistics());
        expected[lba as usize..][..8].fill(value);
    }
    assert!(hand.engine.statistics().checkpoints > 3, "{:?}", hand.engine.statistics());
    if closes {
        hand.submit(Request::Shutdown).expect("it is always taken");
        hand.run();
    }
    let mut device = hand.device;
    device.flush_all();
    (device, expected)
}

fn location(device: &Device) -> CheckpointLocation {
    let config = Config { read_only: true, ..small() };
    Hand::open(device.clone(), config).engine.superblock().checkpoint
}

fn assert_holds(device: Device, config: Config, expected: &[u8], context: &str) -> u64 {
    let mut hand = Hand::open(device, config);
    assert_eq!(hand.engine.phase(), Phase::Running, "{context}");
    for (lba, value) in (0..).zip(expected) {
        assert_eq!(hand.read(lba), Some(Ok(*value)), "{lba}: {context}");
    }
    hand.engine.statistics().body_copies_used
}

/// Each block of either copy in turn is zeroed, torn, or cannot be read.
#[test]
pub(crate) fn a_store_with_either_copy_of_the_body_damaged_is_opened_and_whole() {
    let mut cases = 0;
    for (closes, seed) in [(true, 5), (false, 6), (false, 7)] {
        let (device, expected) = aged(closes, seed);
        let place = location(&device);
        assert_ne!(place.copy, Pba::NOWHERE, "there is a second copy");
        for (first, is_first) in [(place.pba, true), (place.copy, false)] {
            for block in (0..place.blocks()).map(|offset| first.plus(offset)) {
                let mut zeroed = device.clone();
                zeroed.write(block, &[[0; BLOCK_SIZE]]);
                let mut torn = device.clone();
                torn.corrupt(block, 40);
                for mut damaged in [zeroed, torn] {
                    damaged.flush_all();
                    let context = format!("{block:?} of {place:?}, closed: {closes}");
                    let report = damaged.report(true);
                    let named = report.findings.iter().any(|finding| {
                        matches!(finding, Finding::CheckpointCopyDamaged { pba, .. } if *pba == block)
                    });
                    assert!(named, "{context}: {:?}", report.findings);
                    let is_fault = |finding: &Finding| finding.severity() == Severity::Fault;
                    assert!(!report.findings.iter().any(is_fault), "{:?}", report.findings);
                    let read_only = Config { read_only: true, ..small() };
                    for config in [read_only, small()] {
                        let used = assert_holds(damaged.clone(), config, &expected, &context);
                        assert_eq!(used, u64::from(is_first), "{context}");
                    }
                    // The next checkpoint writes both anew.
                    let healed = Hand::open(damaged, small()).device;
                    assert_eq!(healed.check(), Ok(()), "{context}");
                    cases += 1;
                }
            }
        }
    }
    assert!(cases >= 12, "{cases}");
}

/// With neither copy the error tells of the first.
#[test]
fn a_store_without_either_copy_of_the_body_is_refused() {
    let (mut device, _) = aged(true, 5);
    let place = location(&device);
    device.corrupt(place.pba, 40);
    device.corrupt(place.copy, 40);
    device.flush_all();
    assert!(device.check().is_err(), "the checker misses it");
    let phase = Hand::open(device, small()).engine.phase();
    let tells = matches!(phase, Phase::Failed(OpenError::Damaged { pba, .. }) if pba == place.pba);
    assert!(tells, "{phase:?}");
}

/// The first copy cannot be read at all.
#[test]
fn a_body_that_the_device_does_not_give_is_read_from_its_copy() {
    let (device, expected) = aged(true, 5);
    let place = location(&device);
    let mut hand = Hand::begin(device, small());
    let mut is_failed = false;
    while !is_failed {
        hand.poll();
        let (io, _) = hand.out.first().expect("the body is read");
        is_failed = matches!(io.command, Command::Read { pba, .. } if pba == place.pba);
        hand.complete(0, if is_failed { Err(5) } else { Ok(()) });
    }
    hand.run();
    assert_eq!(hand.engine.phase(), Phase::Running);
    assert_eq!(hand.engine.statistics().body_copies_used, 1);
    assert_eq!(hand.read(9), Some(Ok(expected[9])));
}

/// Whatever moment the power goes in, and whichever write of the moment is lost, the newest checkpoint has two
/// whole copies of its body, or the one that it has shall not be overwritten.
#[test]
fn the_copy_that_the_newest_superblock_names_is_never_overwritten() {
    let (device, _) = aged(true, 5);
    let mut named = location(&device).copy;
    let mut hand = Hand::begin(device, small());
    let (mut copies, mut superblocks) = (0, 0);
    for is_closing in [false, true] {
        if is_closing {
            assert!(hand.write(4, 1, 1));
            hand.submit(Request::Shutdown).expect("it is always taken");
        }
        hand.poll();
        while let Some((io, data)) = hand.out.first() {
            match io.command {
                Command::Write { pba, .. } if [0, 128, 255].contains(&pba.0) => {
                    let written = coulter_format::superblock::Superblock::decode(&data[0]);
                    named = written.expect("it is whole").checkpoint.copy;
                    superblocks += 1;
                }
                Command::Write { pba, count, .. } if pba.0 < 256 => {
                    let range = pba.0..pba.0 + count;
                    assert!(!range.contains(&named.0), "{range:?} over {named:?}");
                    copies += 1;
                }
                _ => {}
            }
            hand.complete(0, Ok(()));
            hand.poll();
        }
    }
    assert_eq!((copies, superblocks), (2, 7), "two checkpoints, and an epoch was announced");
}
