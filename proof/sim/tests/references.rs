//! Goal: what a checkpoint refers to is all that recovery needs, and no longer than it lies there.

use coulter_check::{Finding, dump};
use coulter_engine::reclaim::Reclaim;
use coulter_engine::tuning::CleaningMode;
use coulter_engine::{Config, OpenError, Phase, Request};
use coulter_format::{Pba, Structure};
use coulter_sim::device::Device;
use coulter_sim::hand::{Hand, small, store};
use coulter_sim::random::Random;

/// Records of a request each are referred to.
fn referring() -> Config {
    Config { reference_blocks: 1, ..small() }
}

/// A store that was written all over, eight blocks at a time, and what it holds.
fn written(config: Config, rounds: u8) -> (Hand, Vec<u8>) {
    let mut hand = Hand::open(store(40, 4096, None, None, 8), config);
    let size = hand.engine.geometry().volume_size;
    let mut expected = vec![0; size as usize];
    let mut random = Random::new(9);
    for round in 1..=rounds {
        for _ in 0..200 {
            let lba = random.below(size - 8);
            assert!(hand.write(lba, 8, round), "{:?}", hand.engine.statistics());
            expected[lba as usize..][..8].fill(round);
        }
    }
    (hand, expected)
}

fn shut_down(hand: &mut Hand) {
    hand.submit(Request::Shutdown).expect("it is always taken");
    hand.run();
}

fn assert_holds(hand: &mut Hand, expected: &[u8]) {
    for (lba, byte) in expected.iter().enumerate() {
        assert_eq!(hand.read(lba as u64), Some(Ok(*byte)), "host block {lba}");
    }
}

/// The headers that the newest checkpoint refers to.
fn headers(device: &Device) -> Vec<Pba> {
    let dumped = dump::checkpoint(&mut device.blocks()).value.expect("it is sound");
    dumped.references.iter().map(|reference| Pba(reference.header.block)).collect()
}

/// Where the parity of a header and others lies.
fn parity_of(device: &Device, header: Pba) -> Pba {
    let dumped = dump::checkpoint(&mut device.blocks()).value.expect("it is sound");
    let reference = dumped.references.iter().find(|reference| reference.header.block == header.0);
    Pba(reference.and_then(|reference| reference.parity_block).expect("there is parity"))
}

#[test]
fn what_was_referred_to_is_found_again() {
    let (mut hand, expected) = written(referring(), 3);
    shut_down(&mut hand);
    let before = hand.engine.statistics();
    assert!(before.reference_count > 60, "{before:?}");
    let report = hand.device.report(true);
    assert_eq!(report.counters.references, before.reference_count);
    assert!(report.counters.referred_updates > 100, "{:?}", report.counters);
    assert!(report.is_sound(), "{report:?}");

    // Nothing is to be replayed: all comes from pages, runs and headers.
    assert_eq!(report.recovery.updates_to_replay, 0);
    let mut again = Hand::open(hand.device.clone(), referring());
    assert_holds(&mut again, &expected);
    // A program that refers to nothing itself goes on with what it found.
    let mut never = Hand::open(hand.device, Config { reference_blocks: u32::MAX, ..small() });
    shut_down(&mut never);
    let mut again = Hand::open(never.device, referring());
    assert_holds(&mut again, &expected);
}

/// The header of a record whose blocks have all been written again is gone with its segment.
#[test]
fn what_lay_in_a_segment_that_was_emptied_is_referred_to_no_more() {
    let mut hand = Hand::open(store(40, 4096, None, None, 8), referring());
    let size = hand.engine.geometry().volume_size;
    let mut found = Vec::new();
    for round in 0..60u8 {
        for lba in (0..size / 4).step_by(50) {
            assert!(hand.write(lba, 50, round), "{:?}", hand.engine.statistics());
        }
        let mut device = hand.device.clone();
        device.flush_all();
        found.push(headers(&device).len());
        assert!(device.report(true).is_sound(), "{:?}", device.report(true));
    }
    assert!(hand.engine.statistics().records_referred > 1500, "{:?}", hand.engine.statistics());
    // Of 1900, and no more than would be allowed.
    assert!(found[2..].iter().all(|count| (1..=64).contains(count)), "{found:?}");
    let mut again = Hand::open(hand.device, referring());
    (0..size / 4).for_each(|lba| assert_eq!(again.read(lba), Some(Ok(59)), "host block {lba}"));
}

/// A header that is damaged in its place is rebuilt from the parity of its group.
#[test]
fn a_store_with_a_damaged_header_that_is_referred_to_is_opened_and_whole() {
    let (mut hand, expected) = written(referring(), 1);
    shut_down(&mut hand);
    let headers = headers(&hand.device);
    for header in [headers[0], headers[headers.len() / 2], headers[headers.len() - 1]] {
        let mut device = hand.device.clone();
        device.corrupt(header, 44);
        let report = device.report(false);
        let is_it = |finding: &Finding| matches!(finding, Finding::CopyDamaged { pba, whole: Some(_), .. } if *pba == header);
        assert!(report.findings.iter().any(is_it) && report.complete, "{report:?}");
        for read_only in [true, false] {
            let mut again = Hand::open(device.clone(), Config { read_only, ..referring() });
            assert_eq!(again.engine.statistics().metadata_copies_used, 1);
            assert_holds(&mut again, &expected);
        }
    }
}

/// As of a run: nothing else tells where the blocks belong.
#[test]
fn a_store_with_a_damaged_header_that_is_referred_to_is_not_opened_and_the_checker_says_why() {
    let (mut hand, _) = written(referring(), 1);
    shut_down(&mut hand);
    let headers = headers(&hand.device);
    for header in [headers[0], headers[headers.len() / 2], headers[headers.len() - 1]] {
        // In the magic, in the sequence, in an extent.
        for byte in [3, 44, 97] {
            let mut device = hand.device.clone();
            device.corrupt(header, byte);
            device.corrupt(parity_of(&hand.device, header), byte);
            let report = device.report(false);
            let is_it = |finding: &Finding| matches!(finding, Finding::ReferenceDamaged { pba, .. } if *pba == header);
            assert!(report.findings.iter().any(is_it), "{report:?}");
            assert!(!report.complete);
            let again = Hand::open(device, referring());
            let Phase::Failed(OpenError::Damaged { corrupt, pba }) = again.engine.phase() else {
                panic!("{:?}", again.engine.phase());
            };
            assert_eq!((corrupt.structure, pba), (Structure::RecordHeader, header));
        }
    }
}

/// The header that lies there is as good as any, but another one.
#[test]
fn a_header_that_took_the_place_of_the_one_referred_to_is_not_believed() {
    let (mut hand, _) = written(referring(), 1);
    shut_down(&mut hand);
    let header = headers(&hand.device)[5];
    // What another store of the same identity has there.
    let mut random = Random::new(77);
    let size = hand.engine.geometry().volume_size;
    let mut fresh = Hand::open(store(40, 4096, None, None, 8), referring());
    for _ in 0..200 {
        assert!(fresh.write(random.below(size - 8), 8, 1));
    }
    let mut blocks = [[0; coulter_format::BLOCK_SIZE]];
    fresh.device.read(header, &mut blocks);
    let mut device = hand.device.clone();
    device.write(header, &blocks);
    device.corrupt(parity_of(&hand.device, header), 3);
    device.flush_all();
    let report = device.report(false);
    let is_it = |finding: &Finding| matches!(finding, Finding::ReferenceDamaged { pba, .. } if *pba == header);
    assert!(report.findings.iter().any(is_it), "{report:?}");
    assert!(matches!(Hand::open(device, referring()).engine.phase(), Phase::Failed(_)));
}

/// The holes of its segment were reserved; then all that was left in it was overwritten, and the last
/// checkpoint gave the holes up.
#[test]
fn what_lay_in_a_segment_whose_holes_were_given_up_when_it_was_empty_is_referred_to_no_more() {
    let config = Config { reclaim: Reclaim::Threaded, ..referring() };
    let mut hand = Hand::open(store(24, 1024, None, None, 8), config);
    hand.engine.set_cleaning(CleaningMode::Paused);
    assert!(hand.write(0, 250, b'a') && hand.write(250, 250, b'b'));
    (0..250).step_by(2).for_each(|lba| assert!(hand.write(lba, 1, b'A')));
    hand.engine.set_cleaning(CleaningMode::Paced);
    // Too large for holes.
    for _ in 0..200 {
        assert!(hand.write(1_000, 200, b'x'));
        if hand.engine.statistics().segments_patched > 0 {
            break;
        }
    }
    assert!(hand.engine.statistics().segments_patched > 0);
    assert!(hand.write(0, 125, b'c') && hand.write(125, 125, b'c'));
    assert!(hand.engine.statistics().reference_count > 0);
    shut_down(&mut hand);
    assert!(hand.device.report(true).is_sound(), "{:?}", hand.device.report(true));
    let mut again = Hand::open(hand.device, config);
    (0..250).for_each(|lba| assert_eq!(again.read(lba), Some(Ok(b'c')), "host block {lba}"));
}
