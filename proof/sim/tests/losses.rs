//! Goal: whether blocks are marked lost is known over every opening, until a scrub of all of them has met none.

use coulter_check::Finding;
use coulter_engine::scrub::ScrubState;
use coulter_engine::{Config, Failure, Request};
use coulter_format::checkpoint::BodyView;
use coulter_format::map_page::{self, ENTRIES_PER_PAGE};
use coulter_format::superblock::{FIRST_SUPERBLOCK, Superblock};
use coulter_format::{BLOCK_SIZE, Block, Lba, Pba};
use coulter_sim::device::{Device, Loss};
use coulter_sim::hand::{Hand, small, store};
use coulter_sim::random::Random;

/// The leaf of which the page is damaged.
const LEAF: usize = 3;
const FIRST: u64 = (LEAF * ENTRIES_PER_PAGE) as u64;

fn open(device: Device) -> Hand {
    Hand::open(device, Config { reference_blocks: 8, ..small() })
}

fn shut_down(mut hand: Hand) -> Device {
    hand.submit(Request::Shutdown).expect("it is always taken");
    hand.run();
    hand.device
}

fn block(device: &Device, pba: Pba) -> Block {
    let mut block: Block = [0; BLOCK_SIZE];
    device.read(pba, std::slice::from_mut(&mut block));
    block
}

/// A closed store all of whose blocks were written, and where the page of [`LEAF`] lies.
fn filled() -> (Device, Pba) {
    let mut hand = open(store(24, 1024, None, None, 8));
    let size = hand.engine.geometry().volume_size;
    assert!(size > FIRST + ENTRIES_PER_PAGE as u64, "there is such a leaf: {size}");
    (0..size - 8).step_by(8).for_each(|lba| assert!(hand.write(lba, 8, 7)));
    let hand = open(shut_down(hand));
    assert!(!may_have_lost(&hand), "nothing was damaged");
    let place = hand.engine.superblock().checkpoint;
    let mut body = vec![[0; BLOCK_SIZE]; place.blocks() as usize];
    hand.device.read(place.pba, &mut body);
    let body = BodyView::decode(&body.as_flattened()[..place.size as usize]).expect("it is sound");
    let (_, root) = body.roots().next().expect("something is mapped");
    let leaf = map_page::decode(&block(&hand.device, root.pba)).nth(LEAF).expect("a page has 512");
    (hand.device, leaf.pba)
}

/// A closed store of which a leaf page was lost, and that knows it.
fn with_a_loss() -> Device {
    let (mut device, leaf) = filled();
    device.write(leaf, &[[0x5a; BLOCK_SIZE]]);
    device.flush_all();
    let mut hand = open(device);
    assert!(!may_have_lost(&hand), "nobody has looked at it yet");
    assert_eq!(hand.read(FIRST), Some(Err(Failure::Corrupt(Lba(FIRST)))));
    assert!(may_have_lost(&hand));
    shut_down(hand)
}

fn may_have_lost(hand: &Hand) -> bool {
    hand.engine.statistics().may_have_lost
}

/// Scrubs to the end, from a block on; how many it could not find.
fn scrub(hand: &mut Hand, from: u64) -> u64 {
    assert!(hand.engine.start_scrub(from), "there is memory");
    hand.run();
    assert_eq!(hand.engine.scrub().state, ScrubState::Done);
    hand.engine.scrub().blocks_damaged
}

#[test]
fn what_a_damaged_map_page_took_is_told_of_until_a_scrub_of_all_meets_none() {
    let mut hand = open(with_a_loss());
    let mut random = Random::new(1);
    assert!(may_have_lost(&hand), "closing does not forget it");
    assert_eq!(scrub(&mut hand, 0), ENTRIES_PER_PAGE as u64);
    assert!(may_have_lost(&hand), "it has met some");
    (0..ENTRIES_PER_PAGE as u64).for_each(|index| assert!(hand.write(FIRST + index, 1, 9)));
    assert_eq!(hand.flush(), Some(Ok(())));
    hand.device.cut(Loss::Everything, &mut random);
    let mut hand = open(hand.device);
    assert!(may_have_lost(&hand), "nor does a power cut");
    assert_eq!(scrub(&mut hand, FIRST), 0);
    assert!(may_have_lost(&hand), "it has not gone through all");
    assert_eq!(scrub(&mut hand, 0), 0);
    assert!(!may_have_lost(&hand) && !hand.engine.superblock().may_have_lost);
    let findings = hand.device.report(true).findings;
    // What the page counted is not given up yet.
    assert!(findings.iter().all(|it| matches!(it, Finding::ValidTooHigh { .. })), "{findings:?}");
    hand.device.cut(Loss::Everything, &mut random);
    assert!(!may_have_lost(&open(hand.device)), "a checkpoint has said so");
}

/// The last lost block is written, a scrub meets none, and the power goes before anything of this is durable.
#[test]
fn what_a_power_cut_brings_back_is_told_of() {
    let mut hand = open(with_a_loss());
    let mut random = Random::new(2);
    let all = Request::Discard { lba: Lba(FIRST), count: ENTRIES_PER_PAGE as u64, fua: false };
    hand.submit(all).expect("there is room for it");
    hand.run();
    assert!(hand.engine.start_scrub(0), "there is memory");
    let mut cuts = 0;
    for commands in 0.. {
        let mut device = hand.device.clone();
        device.cut(Loss::Everything, &mut random);
        let mut again = open(device);
        let is_lost = again.read(FIRST) == Some(Err(Failure::Corrupt(Lba(FIRST))));
        assert!(may_have_lost(&again) || !is_lost, "cut after {commands} commands");
        cuts += u64::from(is_lost);
        hand.poll();
        if hand.out.is_empty() {
            break;
        }
        hand.complete(0, Ok(()));
    }
    assert!(!may_have_lost(&hand), "in the end the scrub has met none");
    assert!(cuts > 0, "some cuts bring the loss back");
}

#[test]
fn the_checker_names_a_loss_that_no_superblock_tells_of() {
    let mut hand = open(with_a_loss());
    let lost = |device: &Device| {
        let is_lost = |it: &Finding| matches!(it, Finding::BlocksLost { .. });
        device.report(false).findings.iter().any(is_lost)
    };
    // Until the sweep comes to its leaf, the page is damaged, and not yet written as one that is lost.
    while !lost(&hand.device) {
        (1..ENTRIES_PER_PAGE as u64).for_each(|index| assert!(hand.write(4 * index, 1, 8)));
    }
    let mut device = shut_down(hand);
    let is_untold = |device: &Device| {
        let findings = device.report(false).findings;
        findings.iter().any(|it| matches!(it, Finding::LossUntold { lba } if lba.0 / ENTRIES_PER_PAGE as u64 == LEAF as u64))
    };
    assert!(lost(&device) && !is_untold(&device));
    let newest = open(device.clone()).engine.superblock().geometry;
    for pba in [FIRST_SUPERBLOCK, newest.second_superblock, newest.third_superblock] {
        let superblock = Superblock::decode(&block(&device, pba)).expect("it is whole");
        let mut changed: Block = [0; BLOCK_SIZE];
        Superblock { may_have_lost: false, ..superblock }.encode(&mut changed);
        device.write(pba, &[changed]);
    }
    device.flush_all();
    assert!(is_untold(&device));
}
