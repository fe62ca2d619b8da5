//! Goal: flash pages of which only some blocks are dead are written with what is needed there, and nothing of that
//! is ever lost on a device that writes each page whole or not at all.

use coulter_engine::create::CreateOptions;
use coulter_engine::tuning::CleaningMode;
use coulter_engine::{Command, Config, OpenError, Phase, Target};
use coulter_format::{Block, Pba};
use coulter_sim::device::{Device, Loss};
use coulter_sim::hand::{Hand, small, small_options, store_like};
use coulter_sim::random::Random;
use coulter_sim::{Simulator, generate, lives};

/// Lives whose stores pad, of those that are generated.
fn padding_lives() -> impl Iterator<Item = (u64, coulter_sim::plan::Plan)> {
    let plans = (0..).map(|seed| (seed, generate::plan(seed)));
    plans.filter(|(_, plan)| plan.shape.pads)
}

#[test]
fn lives_that_pad_keep_every_promise() {
    let mut simulator = Simulator::default();
    let (mut padded, mut holes) = (0, 0);
    for (seed, plan) in padding_lives().take(12) {
        let outcome = lives::run(&mut simulator, &plan);
        let outcome = outcome.unwrap_or_else(|what| panic!("seed {seed}: {what}\n{plan}"));
        padded += outcome.padded_blocks;
        holes += outcome.hole_blocks;
    }
    println!("{padded} padded, {holes} in holes");
    assert!(padded > 1000 && holes > 1000, "{padded} blocks padded, {holes} in holes");
}

const PAGE: u32 = 4;

/// Device that says of pages of four blocks that it writes each whole or not at all.
fn padding() -> Config {
    Config { atomic_page_blocks: PAGE, pad_pages: true, ..small() }
}

fn empty_store(page_blocks: Option<u32>) -> Device {
    store_like(&CreateOptions { page_blocks, ..small_options(256 * 27) })
}

/// A store of which a segment has every other block dead, so that no page of it is, and its holes reserved.
fn half_dead() -> Hand {
    let mut hand = Hand::open(empty_store(Some(PAGE)), padding());
    hand.engine.set_cleaning(CleaningMode::Paused);
    assert!(hand.write(0, 250, b'a') && hand.write(250, 250, b'b'));
    (0..250).step_by(2).for_each(|lba| assert!(hand.write(lba, 1, b'A')));
    hand.engine.set_cleaning(CleaningMode::Paced);
    let checkpoints = hand.engine.statistics().checkpoints;
    for round in 0.. {
        assert!(round < 200, "checkpoints are written");
        assert!(hand.write(1_000, 200, b'x'));
        if hand.engine.statistics().checkpoints >= checkpoints + 2 {
            break;
        }
    }
    hand
}

/// Submits writes of single blocks, and lets out what they lead to until something is written.
fn begin_writes(hand: &mut Hand) -> Vec<u64> {
    let ids = (600..620).map(|lba| hand.try_write(lba, 1, b'z').expect("taken")).collect();
    hand.poll();
    ids
}

fn reads_ahead(hand: &Hand) -> Vec<(Pba, u32)> {
    let ahead = hand.out.iter().filter_map(|(io, _)| match io.command {
        Command::Read { pba, count, target: Target::RecordPart { .. } } => Some((pba, count)),
        _ => None,
    });
    ahead.collect()
}

fn writes(hand: &Hand) -> Vec<(Pba, u32)> {
    let writes = hand.out.iter().filter_map(|(io, _)| match io.command {
        Command::Write { pba, count, .. } => Some((pba, count)),
        _ => None,
    });
    writes.collect()
}

/// The record waits until its pages are read, goes out as whole pages, and leaves what it is padded with where it
/// was.
#[test]
fn a_page_with_a_hole_is_read_and_written_as_a_whole() {
    let mut hand = half_dead();
    let ids = begin_writes(&mut hand);
    let ahead = reads_ahead(&hand);
    assert!(!ahead.is_empty() && writes(&hand).is_empty(), "{:?}", hand.out.len());
    let whole =
        |(pba, count): &(Pba, u32)| pba.0.is_multiple_of(PAGE) && count.is_multiple_of(PAGE);
    assert!(ahead.iter().all(whole), "{ahead:?}");
    let before: Vec<_> =
        ahead.iter().flat_map(|(pba, count)| blocks(&hand, *pba, *count)).collect();
    while let Some(read) =
        hand.out.iter().position(|(io, _)| matches!(io.command, Command::Read { .. }))
    {
        hand.complete(read, Ok(()));
    }
    hand.poll();
    let written = writes(&hand);
    assert_eq!(written, ahead, "the same pages, those in a row by one command");
    hand.run();
    assert!(ids.iter().all(|id| hand.answers.get(id) == Some(&Ok(()))));
    let after: Vec<_> =
        written.iter().flat_map(|(pba, count)| blocks(&hand, *pba, *count)).collect();
    let same = before.iter().zip(&after).filter(|(before, after)| before == after).count();
    let padded = hand.engine.statistics().padded_blocks;
    assert!(
        padded > 0 && same as u64 >= padded,
        "{same} of {} stayed, {padded} padded",
        after.len()
    );
    for lba in 1..250 {
        let expected = if lba % 2 == 0 { b'A' } else { b'a' };
        assert_eq!(hand.read(lba), Some(Ok(expected)), "block {lba}");
    }
    for lba in 600..620 {
        assert_eq!(hand.read(lba), Some(Ok(b'z')), "block {lba}");
    }
    assert_eq!(hand.device.check(), Ok(()));
}

fn blocks(hand: &Hand, pba: Pba, count: u32) -> Vec<Block> {
    (0..count).map(|at| hand.device.block(pba.plus(at)).expect("it is on the device")).collect()
}

/// What is needed there cannot be read: the drive must see to it. Nothing else is written over it.
#[test]
fn a_page_that_cannot_be_read_is_written_in_part() {
    let mut hand = half_dead();
    let ids = begin_writes(&mut hand);
    let ahead = reads_ahead(&hand);
    let pages: Vec<_> = ahead.iter().flat_map(|(pba, count)| blocks(&hand, *pba, *count)).collect();
    while let Some(read) =
        hand.out.iter().position(|(io, _)| matches!(io.command, Command::Read { .. }))
    {
        hand.complete(read, Err(5));
    }
    hand.poll();
    let written = writes(&hand);
    assert!(
        written.len() > ahead.len() && written.iter().all(|(_, count)| *count == 1),
        "{written:?}"
    );
    hand.run();
    assert!(ids.iter().all(|id| hand.answers.get(id) == Some(&Ok(()))));
    let changed: u32 = written.iter().map(|(_, count)| count).sum();
    let now: Vec<_> = ahead.iter().flat_map(|(pba, count)| blocks(&hand, *pba, *count)).collect();
    assert!(pages.iter().zip(&now).filter(|(a, b)| a != b).count() <= changed as usize);
    assert_eq!(hand.engine.statistics().padded_blocks, 0, "nothing was written again");
    for lba in (1..250).step_by(2) {
        assert_eq!(hand.read(lba), Some(Ok(b'a')), "block {lba}");
    }
    assert_eq!(hand.device.check(), Ok(()));
}

/// Power cut after each command of a padded write, the device keeping each page or not: what was needed is there.
#[test]
fn a_cut_after_any_command_leaves_what_a_page_is_padded_with() {
    let commands = {
        let mut hand = half_dead();
        begin_writes(&mut hand);
        let mut count = 0;
        while !hand.out.is_empty() {
            hand.complete(0, Ok(()));
            hand.poll();
            count += 1;
        }
        count
    };
    assert!(commands >= 2, "it is read, and written");
    for cut_after in 0..=commands {
        for seed in 0..8 {
            let mut hand = half_dead();
            hand.device = hand.device.with_pages(PAGE).with_atomic_pages();
            hand.device.flush_all();
            begin_writes(&mut hand);
            for _ in 0..cut_after {
                hand.complete(0, Ok(()));
                hand.poll();
            }
            // What is under way may have arrived.
            let out = std::mem::take(&mut hand.out);
            for (io, data) in out {
                if let Command::Write { pba, .. } = io.command {
                    hand.device.write(pba, &data);
                }
            }
            let mut device = hand.device;
            device.cut(Loss::SomeSectors, &mut Random::new(seed));
            let mut hand = Hand::open(device, padding());
            assert_eq!(hand.engine.phase(), Phase::Running, "it opens");
            for lba in (1..250).step_by(2) {
                assert_eq!(
                    hand.read(lba),
                    Some(Ok(b'a')),
                    "block {lba} after {cut_after} commands"
                );
            }
            assert_eq!(hand.device.check(), Ok(()));
        }
    }
}

/// Without such a device, or on a store that knows no page size, padding is refused.
#[test]
fn padding_is_refused_where_it_is_not_safe_or_means_nothing() {
    for (page_blocks, atomic_page_blocks) in [(Some(PAGE), 1), (Some(PAGE), 2), (None, PAGE)] {
        let config = Config { atomic_page_blocks, ..padding() };
        let hand = Hand::open(empty_store(page_blocks), config);
        let page_blocks = page_blocks.unwrap_or(1);
        let refused = OpenError::Padding { page_blocks, atomic_page_blocks };
        assert_eq!(hand.engine.phase(), Phase::Failed(refused));
    }
    let config = Config { atomic_page_blocks: 8, ..padding() };
    let hand = Hand::open(empty_store(Some(PAGE)), config);
    assert_eq!((hand.engine.phase(), hand.engine.pads_pages()), (Phase::Running, true));
    let config = Config { pad_pages: false, ..padding() };
    let hand = Hand::open(empty_store(Some(PAGE)), config);
    assert!(!hand.engine.pads_pages(), "nobody asked for it");
}

/// Two records over the same holes; the pages of the second are read first. It waits for the first all the same.
#[test]
fn records_over_the_same_holes_go_out_in_the_order_of_their_places() {
    let mut hand = half_dead();
    let mut ids = begin_writes(&mut hand);
    ids.extend((620..640).map(|lba| hand.try_write(lba, 1, b'z').expect("taken")));
    hand.poll();
    let ahead = reads_ahead(&hand);
    assert!(ahead.len() > 1, "two records are sealed: {ahead:?}");
    while reads_ahead(&hand).len() > 1 {
        let last = hand.out.iter().rposition(|(io, _)| matches!(io.command, Command::Read { .. }));
        hand.complete(last.expect("one is out"), Ok(()));
        hand.poll();
        assert_eq!(writes(&hand), [], "the first is still being read");
    }
    let first = hand.out.iter().position(|(io, _)| matches!(io.command, Command::Read { .. }));
    hand.complete(first.expect("it is out"), Ok(()));
    hand.poll();
    let written = writes(&hand);
    assert_eq!(written.len(), ahead.len(), "now all of them");
    assert!(written.is_sorted(), "{written:?}");
    hand.run();
    assert!(ids.iter().all(|id| hand.answers.get(id) == Some(&Ok(()))));
    for lba in 600..640 {
        assert_eq!(hand.read(lba), Some(Ok(b'z')), "block {lba}");
    }
}
