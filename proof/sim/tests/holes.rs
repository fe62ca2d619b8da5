//! What could go wrong with holes, command by command. `canary-sim` runs these against the engine with
//! the mistakes that they are about.

use coulter_engine::reclaim::Reclaim;
use coulter_engine::tuning::CleaningMode;
use coulter_engine::{Command, Config, Request, Target};
use coulter_format::{BLOCK_SIZE, Lba, Pba};
use coulter_sim::hand::{Hand, small, store};

/// A store whose first segment has every other block dead: those of even addresses below 250. Nothing
/// has been searched for holes yet.
fn half_dead() -> Hand {
    let config = Config { reclaim: Reclaim::Threaded, ..small() };
    let mut hand = Hand::open(store(24, 1024, None, None, 8), config);
    hand.engine.set_cleaning(CleaningMode::Paused);
    assert!(hand.write(0, 250, b'a') && hand.write(250, 250, b'b'));
    (0..250).step_by(2).for_each(|lba| assert!(hand.write(lba, 1, b'A')));
    hand
}

/// Writes what is too large for holes until holes have been reserved by a durable checkpoint.
fn prepare_holes(hand: &mut Hand) {
    hand.engine.set_cleaning(CleaningMode::Paced);
    let checkpoints = hand.engine.statistics().checkpoints;
    for round in 0.. {
        assert!(round < 200, "checkpoints are written");
        assert!(hand.write(1_000, 200, b'x'));
        if hand.engine.statistics().checkpoints >= checkpoints + 2 {
            return;
        }
    }
}

/// Hands a read of a block over. Returns its name, its memory and its place, with the command out.
fn begin_read(hand: &mut Hand, lba: u64) -> (u64, coulter_engine::BufferRef, Pba) {
    let buffer = hand.memory.add_host(vec![[0; BLOCK_SIZE]]);
    let id = hand.submit(Request::Read { lba: Lba(lba), count: 1, buffer }).expect("taken");
    hand.poll();
    let place = |command| match command {
        Command::Read { pba, target: Target::Request { .. }, .. } => Some(pba),
        _ => None,
    };
    let index = hand.out.iter().position(|(io, _)| place(io.command).is_some());
    let read = hand.out.remove(index.expect("it is read from the device"));
    let pba = place(read.0.command).expect("it was found by it");
    hand.out.push(read);
    (id, buffer, pba)
}

fn place(hand: &mut Hand, lba: u64) -> Pba {
    let (_, buffer, pba) = begin_read(hand, lba);
    hand.run();
    hand.memory.take_host(buffer);
    pba
}

/// A read is out while its block dies, the hole is reserved, and the others are there to be filled.
#[test]
pub(crate) fn a_hole_is_not_filled_while_its_old_content_is_read() {
    let mut hand = half_dead();
    let (id, buffer, _) = begin_read(&mut hand, 1);
    let held = hand.out.pop().expect("the read's command");
    assert!(hand.write(1, 1, b'z'));
    prepare_holes(&mut hand);
    for lba in 600..700 {
        assert!(hand.write(lba, 1, b'y'));
    }
    hand.out.push(held);
    hand.run();
    assert_eq!(hand.answers.remove(&id), Some(Ok(())), "what it was when the read began");
    assert_eq!(hand.memory.take_host(buffer)[0][0], b'a');
}

/// New data lies at the very place where the same address lay before, and the old header, which other
/// blocks need, still says so. The cleaner must go by the new one.
#[test]
pub(crate) fn the_header_of_an_older_version_at_the_same_place_is_not_believed() {
    let mut hand = half_dead();
    let old: Vec<Pba> = (1..250).step_by(2).map(|lba| place(&mut hand, lba)).collect();
    let at = |lba: u64| Pba(old[0].0 - 1 + lba as u32);
    prepare_holes(&mut hand);
    // The header goes into the first hole, where block 0 was; the others where they were.
    let ids: Vec<_> = (2..200).step_by(2).map(|lba| hand.try_write(lba, 1, b'n')).collect();
    hand.run();
    assert!(ids.iter().all(Option::is_some));
    assert_eq!(place(&mut hand, 100), at(100), "it is back in its place");
    hand.engine.set_reclaim(Reclaim::CopyOut);
    for lba in (1..250).step_by(4) {
        assert!(hand.write(lba, 1, b'm'));
    }
    // The head over its holes leaves the segment, and the cleaner may have it.
    prepare_holes(&mut hand);
    hand.engine.set_cleaning(CleaningMode::Drain);
    assert!(hand.write(1_000, 1, b'x'));
    assert_ne!(place(&mut hand, 100), at(100), "it was moved");
    for lba in (2..200).step_by(2) {
        assert_eq!(hand.read(lba), Some(Ok(b'n')), "block {lba}");
    }
}
