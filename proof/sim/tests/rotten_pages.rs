//! Named scenarios: map pages that rot on the device.

use coulter_engine::{Failure, Phase, Request};
use coulter_format::checksum::Kind;
use coulter_format::record::RecordView;
use coulter_format::{BLOCK_SIZE, Lba};
use coulter_sim::device::{Device, Loss};
use coulter_sim::hand::{Hand, small, store};
use coulter_sim::random::Random;

/// A store of 60 segments, written at random until leaf pages are there, and shut down.
fn written(random: &mut Random) -> Hand {
    let mut hand = Hand::open(store(60, 1024, None, None, 4), small());
    let size = hand.engine.geometry().volume_size;
    for round in 0..6000 {
        assert!(hand.write(random.below(size), 1, (round % 200) as u8));
    }
    let shutdown = hand.submit(Request::Shutdown).expect("always taken");
    hand.run();
    assert_eq!(hand.answers.get(&shutdown), Some(&Ok(())));
    assert!(hand.engine.statistics().leaf_blocks > 0);
    hand
}

/// Damages every page of this kind that some record on the device names, and the leaf's key is in
/// `keys`. Returns how many.
fn rot(device: &mut Device, hand: &Hand, kind: Kind, keys: std::ops::Range<u64>) -> usize {
    let geometry = *hand.engine.geometry();
    let id = hand.engine.superblock().store;
    let mut rotten = 0;
    for segment in 0..geometry.segment_count {
        let start = geometry.first_segment.plus(segment * geometry.segment_blocks);
        let mut at = 0;
        while at < geometry.segment_blocks {
            let mut block = [[0; BLOCK_SIZE]];
            device.read(start.plus(at), &mut block);
            let Ok(view) = RecordView::decode(&block[0], &id, start.plus(at)) else { break };
            for entry in view.entries().filter(|entry| entry.kind == kind) {
                if keys.contains(&entry.key) {
                    device.corrupt(entry.pba, 77);
                    rotten += 1;
                }
            }
            at += 1 + u32::from(view.header().payload_size);
        }
    }
    rotten
}

fn reads(hand: &mut Hand, size: u64) -> (usize, usize) {
    let answers: Vec<_> = (0..size).map(|lba| hand.read(lba).expect("an answer")).collect();
    let corrupt = answers.iter().filter(|answer| matches!(answer, Err(Failure::Corrupt(_))));
    let corrupt = corrupt.count();
    (answers.iter().filter(|answer| answer.is_ok()).count(), corrupt)
}

/// What lies on the device if the power goes now.
fn after_a_cut(hand: &Hand) -> Device {
    let mut device = hand.device.clone();
    device.cut(Loss::Nothing, &mut Random::new(1));
    device
}

/// The sweep used to stop at a rotten leaf page, and the volume became read-only for good.
#[test]
fn the_sweep_goes_past_rotten_leaf_pages_and_overwriting_heals_them() {
    let mut random = Random::new(1);
    let hand = written(&mut random);
    let size = hand.engine.geometry().volume_size;
    let mut device = hand.device.clone();
    device.flush_all();
    assert!(rot(&mut device, &hand, Kind::Leaf, 0..u64::MAX) > 0);
    let mut hand = Hand::open(device, small());
    assert_eq!(hand.engine.phase(), Phase::Running);
    for round in 0..4000 {
        assert!(hand.write(random.below(size / 2), 1, (round % 200) as u8), "round {round}");
        if round % 1000 == 0 {
            hand = Hand::open(after_a_cut(&hand), small());
            assert_eq!(hand.engine.phase(), Phase::Running, "its updates are in runs");
        }
    }
    assert_eq!(hand.engine.read_only(), None);
    let (readable, corrupt) = reads(&mut hand, size);
    assert!(readable > 0, "what was written since is known");
    assert!(corrupt > 0, "what only the rotten pages knew is an error");
    assert_eq!(readable + corrupt, size as usize);
    // Half is overwritten, half discarded: all is known again.
    for lba in 0..size / 2 {
        assert!(hand.write(lba, 1, 9), "block {lba}");
    }
    let rest = Request::Discard { lba: Lba(size / 2), count: size - size / 2, fua: true };
    let discard = hand.submit(rest).expect("accepted");
    hand.run();
    assert_eq!(hand.answers.remove(&discard), Some(Ok(())));
    for turn in 0..4 {
        assert_eq!(reads(&mut hand, size), (size as usize, 0), "turn {turn}");
        // Several times over: what the rotten pages counted must not use up the segments.
        for lba in 0..size {
            assert!(hand.write(lba, 1, turn), "turn {turn}, block {lba}");
        }
        hand = Hand::open(after_a_cut(&hand), small());
    }
    assert_eq!(hand.engine.read_only(), None);
    after_a_cut(&hand).check().expect("nothing is left of the damage");
}

/// One leaf of many: the others are swept as ever, and its blocks are errors until written.
#[test]
fn one_rotten_leaf_page_costs_nobody_else() {
    let mut random = Random::new(2);
    let hand = written(&mut random);
    let size = hand.engine.geometry().volume_size;
    let mut device = hand.device.clone();
    device.flush_all();
    assert!(rot(&mut device, &hand, Kind::Leaf, 3..4) > 0);
    let mut hand = Hand::open(device, small());
    for _ in 0..3 * size {
        assert!(hand.write(random.below(size), 1, 5), "the volume takes writes");
    }
    let (readable, corrupt) = reads(&mut hand, size);
    assert_eq!(readable + corrupt, size as usize);
    assert!(corrupt < 512, "of one leaf at most");
    assert_eq!(hand.engine.read_only(), None);
}

/// A rotten root page costs its 1 GiB, which is an error until written; nothing else changes.
#[test]
fn a_rotten_root_page_is_written_anew() {
    let mut random = Random::new(3);
    let hand = written(&mut random);
    let size = hand.engine.geometry().volume_size;
    let mut device = hand.device.clone();
    device.flush_all();
    assert!(rot(&mut device, &hand, Kind::Root, 0..u64::MAX) > 0);
    let mut hand = Hand::open(device, small());
    assert_eq!(hand.engine.phase(), Phase::Running);
    for round in 0..4 * size {
        assert!(hand.write(random.below(size), 1, 5), "stands still in round {round}");
    }
    let (readable, corrupt) = reads(&mut hand, size);
    assert_eq!(readable + corrupt, size as usize);
    let mut hand = Hand::open(after_a_cut(&hand), small());
    assert_eq!(reads(&mut hand, size), (readable, corrupt), "lost is what it stays");
    for lba in 0..size {
        assert!(hand.write(lba, 1, 9), "block {lba}");
    }
    assert_eq!(reads(&mut hand, size), (size as usize, 0));
    assert_eq!(hand.engine.read_only(), None);
}
