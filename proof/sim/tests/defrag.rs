//! Named scenarios: what is scattered is put in the host's order while the host, or a power cut, comes
//! between.

use coulter_engine::{Command, Request, Target};
use coulter_format::Lba;
use coulter_sim::device::Loss;
use coulter_sim::hand::{Hand, small, store};
use coulter_sim::random::Random;
use coulter_sim::scene::Scene;

const BLOCKS: u64 = 2000;

fn expected(lba: u64) -> u8 {
    (lba % 251) as u8 + 1
}

/// A number below `BLOCKS` for each below it, each once, with neighbours far apart.
fn scattered(index: u64) -> u64 {
    index * 733 % BLOCKS
}

fn scattered_hand() -> Hand {
    let mut hand = Hand::open(store(40, 1024, None, None, 8), small());
    for index in 0..BLOCKS {
        let lba = scattered(index);
        assert!(hand.write(lba, 1, expected(lba)), "it takes writes");
    }
    hand
}

fn is_piece(command: &Command) -> bool {
    matches!(command, Command::Read { target: Target::RecordPart { .. }, .. })
}

#[test]
fn scattered_blocks_come_to_lie_in_order_and_stay_so_after_a_crash() {
    let mut scene = Scene::new(40);
    for index in 0..BLOCKS {
        let lba = scattered(index);
        scene.write(lba, 1, expected(lba));
    }
    let (_, pieces) = scene.read(0, 256);
    assert!(pieces.len() > 200, "{} pieces", pieces.len());
    scene.engine.set_defrag(true);
    scene.run();
    assert!(!scene.engine.is_defragmenting(), "it comes to an end");
    let statistics = scene.engine.statistics();
    assert_eq!((statistics.defragmented_blocks, statistics.defrag_passes), (BLOCKS, 1));
    assert_eq!(statistics.defrag_next, scene.volume_size());
    let Scene { device, .. } = scene;
    let mut scene = Scene::open(device);
    for first in (0..BLOCKS - 256).step_by(256) {
        let (bytes, pieces) = scene.read(first, 256);
        assert!(bytes.iter().zip(first..).all(|(byte, lba)| *byte == expected(lba)));
        assert!(pieces.len() <= 3, "{} pieces from {first} on", pieces.len());
    }
    // What lies in order is left alone.
    scene.engine.set_defrag(true);
    scene.run();
    assert!(scene.engine.statistics().defragmented_blocks <= 256);
}

#[test]
fn an_overwrite_meanwhile_wins_whatever_comes_first() {
    // Between looking a range up and reading it, between that and writing it, and while it is written.
    for moment in 0..3 {
        let mut hand = scattered_hand();
        hand.engine.set_defrag(true);
        hand.poll();
        assert!(hand.out.iter().all(|(io, _)| is_piece(&io.command)), "a range is read");
        if moment >= 1 {
            while hand.out.iter().any(|(io, _)| is_piece(&io.command)) {
                hand.complete(0, Ok(()));
                if moment == 1 && hand.out.len() == 1 {
                    break;
                }
                if hand.out.is_empty() {
                    hand.poll();
                }
            }
        }
        for lba in (0..256).step_by(3) {
            assert!(hand.try_write(lba, 1, 255).is_some(), "the host is not kept waiting");
        }
        hand.run();
        for lba in 0..BLOCKS {
            let byte = if lba < 256 && lba % 3 == 0 { 255 } else { expected(lba) };
            assert_eq!(hand.read(lba), Some(Ok(byte)), "block {lba}, moment {moment}");
        }
        assert!(!hand.engine.is_defragmenting());
    }
}

#[test]
fn a_power_cut_at_any_command_loses_nothing_that_was_durable() {
    let mut random = Random::new(3);
    for cut_after in (0..120).step_by(7) {
        let mut hand = scattered_hand();
        assert_eq!(hand.flush(), Some(Ok(())));
        hand.engine.set_defrag(true);
        hand.poll();
        for _ in 0..cut_after * 8 {
            if hand.out.is_empty() {
                break;
            }
            hand.complete(0, Ok(()));
            hand.poll();
        }
        let mut device = hand.device;
        device.cut(Loss::SomeBlocks, &mut random);
        let mut hand = Hand::open(device, small());
        for lba in 0..BLOCKS {
            assert_eq!(hand.read(lba), Some(Ok(expected(lba))), "block {lba} after {cut_after}");
        }
    }
}

#[test]
fn what_cannot_be_read_stays_and_the_rest_goes_on() {
    let mut hand = scattered_hand();
    hand.engine.set_defrag(true);
    hand.poll();
    hand.complete(0, Err(5));
    hand.run();
    let statistics = hand.engine.statistics();
    assert_eq!((statistics.defrag_passes, statistics.defragmented_blocks), (1, BLOCKS - 256));
    for lba in 0..BLOCKS {
        assert_eq!(hand.read(lba), Some(Ok(expected(lba))), "block {lba}");
    }
    let buffer = hand.memory.add_host(vec![[0; 4096]; 256]);
    assert!(hand.submit(Request::Read { lba: Lba(0), count: 256, buffer }).is_some());
    hand.poll();
    assert!(hand.out.len() > 200, "the first range is as scattered as it was");
    hand.run();
}
