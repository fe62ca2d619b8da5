//! Goal: a store whose roots are in a list of their own has every block after a crash, whatever page of the list was
//! damaged in one place; and where a page is gone, reads of what it told of are errors, never zeros.
//!
//! Method: more roots than two pages of the list hold, with one block in each.

use coulter_check::salvage::{self, Salvage, Sink, State, salvage};
use coulter_check::{Finding, Options, check, dump};
use coulter_engine::create::{CreateOptions, Sparse};
use coulter_engine::scrub::ScrubState;
use coulter_engine::tuning::CleaningMode;
use coulter_engine::{Config, Degraded, Failure, Phase, Request};
use coulter_format::checkpoint::BodyView;
use coulter_format::{BLOCK_SIZE, Lba, Pba};
use coulter_sim::device::{Device, Loss};
use coulter_sim::hand::{Hand, small, small_options, store_like};
use coulter_sim::random::Random;
use std::collections::BTreeMap;

const ROOT: u64 = 1 << 18;
const ROOTS: u64 = 400;
/// Roots of a page of the list.
const PER_PAGE: u64 = 186;

fn empty(root_limit: u32, capacity: u64, segments: u64) -> Device {
    store_like(&CreateOptions {
        sparse: Some(Sparse {
            address_limit: 1 << 50,
            root_limit: Some(root_limit),
            root_lists: true,
        }),
        volume_size: Some(capacity),
        ..small_options(256 * (segments + 1))
    })
}

/// Where the block of a root lies, and what it holds. Roots come into use in no order of key.
fn block(root: u64) -> (u64, u8) {
    let key = root * 7919 % 4001 * 1000 + root % 3;
    (key * ROOT + root * 37 % ROOT, 1 + (root % 250) as u8)
}

/// A store with a block in each of its roots.
fn filled() -> Hand {
    let mut hand = Hand::open(empty(ROOTS as u32, 4000, 64), small());
    // Until the sweep and a checkpoint have written all map pages.
    for _ in 0..40 {
        for root in 0..ROOTS {
            let (lba, value) = block(root);
            assert!(hand.write(lba, 1, value), "root {root}: {:?}", hand.engine.statistics());
        }
        if hand.engine.statistics().roots_in_use == ROOTS {
            return hand;
        }
    }
    panic!("{:?}", hand.engine.statistics());
}

fn closed() -> Device {
    let mut hand = filled();
    hand.submit(Request::Shutdown).expect("it is always taken");
    hand.run();
    hand.device.flush_all();
    hand.device
}

fn assert_holds(hand: &mut Hand, context: &str) {
    assert_eq!(hand.engine.phase(), Phase::Running, "{context}");
    for root in 0..ROOTS {
        let (lba, value) = block(root);
        assert_eq!(hand.read(lba), Some(Ok(value)), "root {root}: {context}");
    }
    assert_eq!(hand.read(block(5).0 + 1), Some(Ok(0)), "{context}");
    assert_eq!(hand.read(ROOT * 999), Some(Ok(0)), "{context}");
}

fn assert_sound(device: &Device, context: &str) {
    let mut options = Options { data: true, ..Options::default() };
    let report = check(&mut device.blocks(), &mut options);
    let is_clean = |finding: &Finding| matches!(finding, Finding::NeedsRecovery { .. });
    let is_sound = report.findings.iter().all(is_clean) && report.complete;
    assert!(is_sound, "{context}: {:?}", report.findings);
    assert_eq!(report.counters.mapped_blocks, ROOTS, "{context}");
}

/// Where the pages of the list lie, each with its second copy.
fn pages(device: &Device) -> Vec<[Pba; 2]> {
    let place = Hand::open(device.clone(), Config { read_only: true, ..small() });
    let place = place.engine.superblock().checkpoint;
    let mut blocks = vec![[0; BLOCK_SIZE]; place.blocks() as usize];
    device.read(place.pba, &mut blocks);
    let bytes = &blocks.as_flattened()[..place.size as usize];
    let body = BodyView::decode(bytes).expect("it is sound");
    assert_eq!(body.roots().count(), 0);
    body.root_lists().map(|page| page.pba).zip(body.copies()).map(|(a, b)| [a, b]).collect()
}

fn zeroed(device: &Device, places: &[Pba]) -> Device {
    let mut device = device.clone();
    places.iter().for_each(|pba| device.write(*pba, &[[0; BLOCK_SIZE]]));
    device.flush_all();
    device
}

#[test]
fn a_store_with_more_roots_than_a_page_lists_is_whole_after_a_crash() {
    let mut hand = filled();
    let before = hand.engine.statistics();
    assert!(before.checkpoints > 0);
    assert_eq!(hand.flush(), Some(Ok(())));
    hand.device.cut(Loss::Everything, &mut Random::new(1));
    assert_sound(&hand.device, "crashed");
    let mut hand = Hand::open(hand.device, small());
    let device = hand.device.clone();
    hand.engine.assert_invariants(&|pba| device.block(pba));
    assert_holds(&mut hand, "crashed");
    let device = closed();
    assert_sound(&device, "closed");
    assert_eq!(pages(&device).len() as u64, ROOTS.div_ceil(PER_PAGE));
    let dumped = dump::checkpoint(&mut device.blocks());
    let dumped = dumped.value.expect("it is sound");
    assert_eq!((dumped.roots.len() as u64, dumped.root_lists.len()), (ROOTS, 3));
    let mut hand = Hand::open(device, small());
    assert_holds(&mut hand, "opened again");
    let memory = hand.engine.statistics().map_bytes;
    assert!(memory / ROOTS < 16 << 10, "{memory} bytes of map memory");
}

/// Root pages that are written again move: a page of the list that was not written anew leads nowhere, or to a page of
/// long ago.
#[test]
pub(crate) fn pages_of_the_list_follow_their_roots() {
    let mut hand = Hand::open(closed(), small());
    for round in 0..3u64 {
        for root in (0..ROOTS).step_by(9) {
            let (lba, value) = block(root);
            assert!(hand.write(lba, 1, value));
            // Another leaf, so that the root page says more.
            assert!(hand.write(lba ^ ((1 + round) << 10), 1, value));
        }
    }
    for root in (0..ROOTS).step_by(9) {
        for round in 0..3u64 {
            let (lba, _) = block(root);
            let request =
                Request::Discard { lba: Lba(lba ^ ((1 + round) << 10)), count: 1, fua: false };
            hand.submit(request).expect("it is always taken");
            hand.run();
        }
    }
    let id = hand.submit(Request::Shutdown).expect("it is always taken");
    hand.run();
    assert_eq!(hand.answers.remove(&id), Some(Ok(())), "{:?}", hand.engine.statistics());
    hand.device.flush_all();
    assert_sound(&hand.device, "written again");
    let mut hand = Hand::open(hand.device, small());
    assert_holds(&mut hand, "written again");
}

#[test]
pub(crate) fn a_page_of_the_list_that_is_damaged_in_one_place_costs_nothing() {
    let device = closed();
    for (index, pair) in pages(&device).into_iter().enumerate() {
        assert_ne!(pair[0], pair[1]);
        for (copy, place) in pair.into_iter().enumerate() {
            let context = format!("page {index}, copy {copy}");
            let damaged = zeroed(&device, &[place]);
            let report = check(&mut damaged.blocks(), &mut Options::default());
            assert_eq!(report.findings.len(), 1, "{context}: {:?}", report.findings);
            let mut hand = Hand::open(damaged, small());
            assert_holds(&mut hand, &context);
            let used = hand.engine.statistics().metadata_copies_used;
            assert_eq!(used, u64::from(copy == 0), "{context}");
            // What the first was read for is written anew by the checkpoint of an opening; the second by a scrub.
            assert!(hand.engine.start_scrub(0), "there is memory");
            hand.run();
            assert_eq!(hand.engine.scrub().state, ScrubState::Done, "{context}");
            hand.submit(Request::Shutdown).expect("it is always taken");
            hand.run();
            hand.device.flush_all();
            assert_sound(&hand.device, &context);
            assert!(!pages(&hand.device)[index].contains(&place), "{context}");
        }
    }
}

#[test]
fn a_page_of_the_list_that_is_gone_puts_what_it_told_of_in_doubt() {
    let device = closed();
    let all = pages(&device);
    let mut lost_in_all = 0;
    for (index, pair) in all.into_iter().enumerate() {
        let damaged = zeroed(&device, &pair);
        let config = |degraded| Config { degraded, ..small() };
        let phase = Hand::open(damaged.clone(), config(Degraded::Refused)).engine.phase();
        assert!(matches!(phase, Phase::Failed(_)), "{phase:?}");
        let mut hand = Hand::open(damaged.clone(), config(Degraded::ReadOnly));
        assert_eq!(hand.engine.phase(), Phase::Running);
        assert_eq!(hand.engine.read_only(), Some(0));
        let mut lost = 0;
        for root in 0..ROOTS {
            let (lba, value) = block(root);
            match hand.read(lba) {
                Some(Ok(read)) => assert_eq!(read, value, "root {root}"),
                Some(Err(Failure::Corrupt(_))) => lost += 1,
                other => panic!("root {root}: {other:?}"),
            }
        }
        // What runs tell is known.
        let listed = if index < 2 { PER_PAGE } else { ROOTS - 2 * PER_PAGE };
        assert!(lost <= listed, "page {index}: {lost}");
        lost_in_all += lost;
        assert!(
            matches!(hand.read(ROOT * 999), Some(Err(_))),
            "nobody knows whether it was unmapped"
        );
        let report = check(&mut damaged.blocks(), &mut Options::default());
        assert!(!report.complete && !report.findings.is_empty());
    }
    assert!(lost_in_all > 40, "{lost_in_all}");
}

/// What comes out, by address.
#[derive(Default)]
struct Out(BTreeMap<u64, u8>);

impl Sink for Out {
    fn block(&mut self, lba: Lba, content: &[u8; BLOCK_SIZE]) -> std::io::Result<()> {
        assert_eq!(self.0.insert(lba.0, content[0]), None, "a block comes once");
        Ok(())
    }
}

fn salvaged(device: &Device) -> (BTreeMap<u64, u8>, Salvage) {
    let mut out = Out::default();
    let mut options = salvage::Options::default();
    let salvage = salvage(&mut device.blocks(), &mut out, &mut options).expect("a superblock");
    (out.0, salvage)
}

fn state_of(salvage: &Salvage, lba: u64) -> Option<State> {
    let range = salvage.ranges.iter().find(|it| (it.lba..it.lba + it.blocks).contains(&lba));
    range.map(|range| range.state)
}

/// With one copy of a page everything is as it was; with none everything comes out, and what the page told of is in doubt.
#[test]
fn salvage_gives_back_what_a_lost_page_of_the_list_told_of() {
    let device = closed();
    for (index, pair) in pages(&device).into_iter().enumerate() {
        for lost in [&pair[..1], &pair[1..], &pair[..]] {
            let context = format!("page {index}, {} copies", lost.len());
            let (found, salvage) = salvaged(&zeroed(&device, lost));
            for root in 0..ROOTS {
                let (lba, value) = block(root);
                assert_eq!(found.get(&lba), Some(&value), "root {root}: {context}");
            }
            assert_eq!(found.len() as u64, ROOTS, "{context}");
            assert_eq!(salvage.lost_blocks, 0, "{context}");
            if lost.len() == 1 {
                assert!(salvage.is_whole(), "{context}: {:?}", salvage.ranges);
                assert_eq!(salvage.whole_blocks, ROOTS, "{context}");
                continue;
            }
            let listed = if index < 2 { PER_PAGE } else { ROOTS - 2 * PER_PAGE };
            let in_doubt = |root: &u64| state_of(&salvage, block(*root).0) == Some(State::Found);
            assert!((0..ROOTS).filter(in_doubt).count() as u64 >= listed, "{context}");
            assert_eq!(salvage.whole_blocks + salvage.found_blocks, ROOTS, "{context}");
            assert!(!salvage.is_whole(), "{context}");
            // No record tells of it, and the log is whole: nothing was there.
            assert_eq!(state_of(&salvage, ROOT * 999), None, "{context}");
        }
    }
}

/// A turn takes the images of a few roots only. What the cleaner and the scrub do between the turns changes nothing.
#[test]
pub(crate) fn images_of_root_pages_are_taken_a_few_at_a_time() {
    let mut hand = filled();
    let before = hand.engine.statistics().root_blocks;
    hand.engine.set_cleaning(CleaningMode::Drain);
    for round in 0..30u64 {
        for root in 0..ROOTS {
            let (lba, value) = block(root);
            assert!(hand.write(lba, 1, value));
            if root % 40 == round {
                assert!(hand.engine.start_scrub(0), "there is memory");
            }
        }
        if round % 5 == 0 {
            assert_eq!(hand.flush(), Some(Ok(())));
            let mut crashed = hand.device.clone();
            crashed.cut(Loss::Everything, &mut Random::new(round));
            assert_sound(&crashed, &format!("round {round}"));
        }
    }
    let after = hand.engine.statistics();
    assert!(after.root_blocks - before > 3 * ROOTS, "many are written: {after:?}");
    assert!(after.relocated_blocks > 0, "segments are cleaned meanwhile: {after:?}");
    assert_eq!(after.root_images_at_once, 4, "where the engine is verified");
    hand.submit(Request::Shutdown).expect("it is always taken");
    hand.run();
    hand.device.flush_all();
    assert_sound(&hand.device, "closed");
    assert_holds(&mut Hand::open(hand.device, small()), "closed");
}

/// A table of leaves is for 32 leaves: there are as many as were planned, and a write that would need one more changes
/// nothing.
#[test]
fn tables_of_leaves_are_as_many_as_were_planned() {
    let most = 257 + 15 * 256;
    let mut hand = Hand::open(empty(257, 40_000, 400), small());
    let per_root = 16;
    let place = |table: u64| (table / per_root * 10) * ROOT + table % per_root * 32 * 512;
    for table in 0..most {
        assert!(hand.write(place(table), 1, 1 + (table % 250) as u8), "{table}");
    }
    let beyond = place(most);
    let id = (0..50).find_map(|_| {
        let id = hand.try_write(beyond, 1, 7);
        hand.run();
        id
    });
    let answer = id.and_then(|id| hand.answers.remove(&id));
    assert_eq!(answer, Some(Err(Failure::Full)));
    assert_eq!(hand.read(beyond), Some(Ok(0)));
    assert!(hand.engine.statistics().roots_in_use <= 257);
    assert!(hand.write(place(3), 1, 77), "what is there can be written again");
    hand.submit(Request::Shutdown).expect("it is always taken");
    hand.run();
    hand.device.flush_all();
    let mut hand = Hand::open(hand.device, small());
    for table in (0..most).step_by(97) {
        assert_eq!(hand.read(place(table)), Some(Ok(1 + (table % 250) as u8)), "{table}");
    }
    assert_eq!(hand.read(place(3)), Some(Ok(77)));
}
