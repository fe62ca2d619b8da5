//! Goal: a scrub finds every block that is damaged and none that is not, while the host writes, segments are cleaned
//! and the power goes; and it mends what has another copy.
//!
//! Method: any blocks of the device are damaged. What that costs is then known from reading all of the volume.

use coulter_engine::scrub::{Finding, Part, ScrubState, Trouble};
use coulter_engine::tuning::CleaningMode;
use coulter_engine::{Command, Config, Failure, Io, Phase, Request, Target};
use coulter_format::checkpoint::BodyView;
use coulter_format::superblock::FIRST_SUPERBLOCK;
use coulter_format::{BLOCK_SIZE, Block, Pba, map_page};
use coulter_sim::device::{Device, Loss};
use coulter_sim::hand::{Hand, small, store};
use coulter_sim::random::Random;
use std::collections::BTreeSet;

const EIO: i32 = 5;

fn config() -> Config {
    Config { reference_blocks: 8, ..small() }
}

/// A store in use, a third of which was overwritten.
fn aged(seed: u64) -> Hand {
    let mut hand = Hand::open(store(24, 1024, None, None, 8), config());
    let mut random = Random::new(seed);
    let size = hand.engine.geometry().volume_size;
    for round in 0..1200u32 {
        let count = if round % 3 == 0 { 8 } else { 5 };
        assert!(hand.write(random.below(size - 8), count, 1 + (round % 250) as u8));
    }
    assert_eq!(hand.flush(), Some(Ok(())));
    hand
}

/// Addresses that cannot be read.
fn unreadable(hand: &mut Hand) -> BTreeSet<u64> {
    let size = hand.engine.geometry().volume_size;
    (0..size).filter(|lba| matches!(hand.read(*lba), Some(Err(Failure::Corrupt(_))))).collect()
}

/// Addresses that the scrub has found.
fn found(hand: &Hand) -> BTreeSet<u64> {
    let findings = hand.engine.scrub_findings().iter();
    findings
        .flat_map(|finding| match *finding {
            Finding::Blocks { lba, count, .. } => lba.0..lba.0 + u64::from(count),
            Finding::Metadata { .. } => 0..0,
        })
        .collect()
}

/// Scrubs to the end.
fn scrub(hand: &mut Hand) {
    assert!(hand.engine.start_scrub(0), "there is memory");
    hand.run();
    let report = hand.engine.scrub();
    assert_eq!((report.state, report.next), (ScrubState::Done, report.end));
}

fn damage(device: &mut Device, pba: Pba) {
    let mut block: Block = [0; BLOCK_SIZE];
    device.read(pba, std::slice::from_mut(&mut block));
    block[100] ^= 0x40;
    device.write(pba, &[block]);
    device.flush_all();
}

#[test]
pub(crate) fn every_damaged_block_is_found_and_no_other() {
    let mut lost = 0;
    for seed in 0..6 {
        let mut hand = aged(seed);
        let mut random = Random::new(seed);
        let (first, size) = (hand.engine.geometry().first_segment.0, hand.device.size());
        for _ in 0..40 {
            let at = u64::from(first) + random.below(size - u64::from(first));
            damage(&mut hand.device, Pba(at as u32));
        }
        scrub(&mut hand);
        let expected = unreadable(&mut hand);
        assert_eq!(found(&hand), expected, "seed {seed}");
        assert_eq!(hand.engine.scrub().blocks_damaged, expected.len() as u64);
        lost += expected.len();
    }
    assert!(lost > 20, "{lost}");
}

#[test]
fn a_sound_store_is_read_wholly_and_nothing_is_found() {
    let mut hand = aged(1);
    let size = hand.engine.geometry().volume_size;
    let mapped = (0..size).filter(|lba| hand.engine.is_mapped(coulter_format::Lba(*lba))).count();
    let written = hand.engine.statistics().device_blocks_written();
    scrub(&mut hand);
    let report = hand.engine.scrub();
    assert_eq!(report.blocks_checked, mapped as u64);
    assert!(report.metadata_checked > 10, "{report:?}");
    assert_eq!((report.blocks_damaged, report.metadata_damaged), (0, 0));
    assert!(hand.engine.scrub_findings().is_empty());
    assert_eq!(hand.engine.statistics().device_blocks_written(), written, "it writes nothing");
}

/// The body of the newest checkpoint.
fn body_of(hand: &Hand) -> Vec<u8> {
    let place = hand.engine.superblock().checkpoint;
    let mut blocks = vec![[0; BLOCK_SIZE]; place.blocks() as usize];
    hand.device.read(place.pba, &mut blocks);
    blocks.as_flattened()[..place.size as usize].to_vec()
}

fn first_root(hand: &Hand) -> Pba {
    let bytes = body_of(hand);
    let body = BodyView::decode(&bytes).expect("it is sound");
    let (_, pointer) = body.roots().next().expect("something is mapped");
    pointer.pba
}

/// Both copies of all that the newest checkpoint lists, and the superblocks.
fn metadata(hand: &Hand) -> Vec<Pba> {
    let superblock = *hand.engine.superblock();
    let place = superblock.checkpoint;
    let bytes = body_of(hand);
    let body = BodyView::decode(&bytes).expect("it is sound");
    let roots = body.roots().map(|(_, pointer)| pointer.pba);
    let table = body.table().map(|pointer| pointer.pba);
    let runs = body.runs().flat_map(|(_, blocks)| blocks.iter().map(|pointer| pointer.pba));
    let headers = body.references().map(|reference| reference.pba);
    let parities = body.header_parities().map(|pointer| pointer.pba);
    let geometry = superblock.geometry;
    let superblocks = [geometry.second_superblock, geometry.third_superblock];
    let all = roots.chain(table).chain(runs).chain(headers).chain(parities);
    let all = all.chain(body.copies()).chain(superblocks).chain([place.pba, place.copy]);
    // Superblock A lies where nothing else does.
    all.filter(|pba| *pba != Pba::NOWHERE).chain([FIRST_SUPERBLOCK]).collect()
}

/// The same store with everything that was damaged written anew is what a checker finds no fault in.
#[test]
pub(crate) fn either_copy_of_any_metadata_is_written_anew_while_the_store_is_in_use() {
    let hand = aged(3);
    let places = metadata(&hand);
    assert!(places.len() > 20, "{}", places.len());
    let device = hand.device;
    let mut repaired = 0;
    for damaged in places {
        // An opening writes a checkpoint: what is damaged then is damaged behind its back.
        let mut hand = Hand::open(device.clone(), config());
        let is_listed = metadata(&hand).contains(&damaged);
        damage(&mut hand.device, damaged);
        scrub(&mut hand);
        let report = hand.engine.scrub();
        let counts = (report.metadata_damaged, report.metadata_repaired);
        assert_eq!(counts, (u64::from(is_listed), u64::from(is_listed)), "{damaged:?}: {report:?}");
        for finding in hand.engine.scrub_findings() {
            assert!(
                matches!(finding, Finding::Metadata { pba, is_repaired: true, trouble: Trouble::Damaged, .. }
                    if *pba == damaged),
                "{finding:?}"
            );
        }
        repaired += report.metadata_repaired;
        assert!(unreadable(&mut hand).is_empty(), "{damaged:?}");
        hand.submit(Request::Shutdown).expect("it is always taken");
        hand.run();
        match hand.device.check() {
            Ok(()) => {}
            // A header stays where its record is, until nothing of that counts. Nothing needs it any more but
            // who would empty its segment.
            Err(what) => assert!(what.contains("RecordMissing"), "{damaged:?}: {what}"),
        }
        assert!(Hand::open(hand.device, config()).engine.statistics().metadata_copies_used == 0);
    }
    assert!(repaired > 15, "{repaired}");
}

#[test]
fn a_leaf_page_that_memory_knows_is_written_anew() {
    let mut hand = aged(4);
    hand.submit(Request::Shutdown).expect("it is always taken");
    hand.run();
    let mut hand = Hand::open(hand.device, config());
    assert!(unreadable(&mut hand).is_empty(), "all is read, and so in memory");
    let mut root = [0; BLOCK_SIZE];
    hand.device.read(first_root(&hand), std::slice::from_mut(&mut root));
    // The sweep may have written some of them again since.
    let leaves = map_page::decode(&root).filter(|pointer| pointer.is_mapped());
    let leaves: Vec<Pba> = leaves.map(|pointer| pointer.pba).collect();
    leaves.iter().for_each(|leaf| damage(&mut hand.device, *leaf));
    scrub(&mut hand);
    let findings = hand.engine.scrub_findings();
    for finding in findings {
        let Finding::Metadata { part: Part::LeafPage, pba, is_repaired: true, .. } = finding else {
            panic!("{finding:?}")
        };
        assert!(leaves.contains(pba), "{pba:?}");
    }
    assert!(!findings.is_empty(), "{leaves:?}");
    hand.submit(Request::Shutdown).expect("it is always taken");
    hand.run();
    assert_eq!(hand.device.check(), Ok(()));
    let mut hand = Hand::open(hand.device, config());
    assert!(unreadable(&mut hand).is_empty());
}

/// What was damaged before a scrub began, and is when it has ended, it has found; and what it has found was damaged.
#[test]
pub(crate) fn writes_cleaning_and_power_cuts_hide_no_damage_and_make_none_up() {
    let (mut seen, mut cuts) = (0, 0);
    'seeds: for seed in 0..12 {
        let mut hand = aged(seed);
        let mut random = Random::new(seed ^ 0x5c);
        let size = hand.engine.geometry().volume_size;
        let (first, device_size) = (hand.engine.geometry().first_segment.0, hand.device.size());
        for _ in 0..30 {
            let at = u64::from(first) + random.below(device_size - u64::from(first));
            damage(&mut hand.device, Pba(at as u32));
        }
        let before = unreadable(&mut hand);
        hand.engine.set_cleaning(CleaningMode::Drain);
        assert!(hand.engine.start_scrub(0));
        let (mut written, mut all_found) = (BTreeSet::new(), BTreeSet::new());
        while hand.engine.scrub().state == ScrubState::Running {
            let (lba, count) = (random.below(size - 4), 1 + random.below(4));
            hand.try_write(lba, count as u32, 251);
            written.extend(lba..lba + count);
            hand.poll();
            for _ in 0..random.below(8) {
                if !hand.out.is_empty() {
                    hand.complete(random.below(hand.out.len() as u64) as usize, Ok(()));
                }
            }
            if cuts < 4 * (seed + 1) && random.chance(2) {
                // The next one goes on from where this one was.
                let at = hand.engine.scrub().next;
                all_found.extend(found(&hand));
                let mut device = hand.device;
                device.cut(Loss::SomeBlocks, &mut random);
                device.flush_all();
                hand = Hand::open(device, config());
                if hand.engine.phase() != Phase::Running {
                    // What was damaged are records that opening needs.
                    continue 'seeds;
                }
                hand.engine.set_cleaning(CleaningMode::Drain);
                assert!(hand.engine.start_scrub(at));
                cuts += 1;
            }
        }
        hand.run();
        let now = unreadable(&mut hand);
        all_found.extend(found(&hand));
        // A cut may undo a write, behind the scrub.
        let untouched = now.difference(&written).copied().collect::<BTreeSet<_>>();
        assert!(untouched.is_subset(&all_found), "seed {seed}: {untouched:?} {all_found:?}");
        assert!(all_found.is_subset(&before), "seed {seed}: {all_found:?} {before:?}");
        seen += all_found.len();
    }
    assert!(seen > 20 && cuts > 3, "{seen} found, {cuts} cuts");
}

#[test]
fn a_scrub_that_was_stopped_goes_on_where_it_was() {
    let mut hand = aged(5);
    scrub(&mut hand);
    let whole = hand.engine.scrub().blocks_checked;
    let (mut next, mut checked, mut parts) = (0, 0, 0);
    loop {
        assert!(hand.engine.start_scrub(next));
        for _ in 0..300 {
            hand.poll();
            if !hand.out.is_empty() {
                hand.complete(0, Ok(()));
            }
        }
        hand.engine.stop_scrub();
        let report = hand.engine.scrub();
        assert!(report.next >= next);
        (next, checked, parts) = (report.next, checked + report.blocks_checked, parts + 1);
        if report.state == ScrubState::Done {
            break;
        }
        assert_eq!(report.state, ScrubState::Stopped);
        hand.run();
    }
    assert_eq!(checked, whole);
    assert!(parts > 1, "{parts}");
}

#[test]
fn a_store_that_is_opened_for_reading_only_is_read_and_left_alone() {
    let mut hand = aged(6);
    hand.submit(Request::Shutdown).expect("it is always taken");
    hand.run();
    let reading = Config { read_only: true, ..config() };
    let mut hand = Hand::open(hand.device, reading);
    let superblock = *hand.engine.superblock();
    let (body, copy) = (superblock.checkpoint.pba, superblock.checkpoint.copy);
    let data = (0..).find(|lba| hand.engine.is_mapped(coulter_format::Lba(*lba)));
    assert!(data.is_some());
    damage(&mut hand.device, copy);
    let before = hand.device.clone();
    scrub(&mut hand);
    let report = hand.engine.scrub();
    assert_eq!((report.metadata_damaged, report.metadata_repaired), (1, 0));
    let expected = Finding::Metadata {
        part: Part::Checkpoint,
        pba: copy,
        trouble: Trouble::Damaged,
        is_repaired: false,
    };
    assert_eq!(hand.engine.scrub_findings(), [expected]);
    assert_ne!(body, copy);
    for pba in (0..before.size() as u32).map(Pba) {
        assert_eq!(before.block(pba), hand.device.block(pba), "{pba:?}");
    }
}

#[test]
fn what_the_device_does_not_give_is_told_with_its_error_and_ends_nothing() {
    let mut hand = aged(7);
    // The first range's commands fail, again and again.
    assert!(hand.engine.start_scrub(0));
    let mut failed = BTreeSet::new();
    loop {
        hand.poll();
        let Some((Io { command, .. }, _)) = hand.out.first() else { break };
        let result = match *command {
            Command::Read { pba, count, target: Target::RecordPart { .. } } if failed.len() < 8 => {
                failed.extend(pba.0..pba.0 + count);
                Err(EIO)
            }
            Command::Read { pba, .. } if failed.contains(&pba.0) => Err(EIO),
            _ => Ok(()),
        };
        hand.complete(0, result);
    }
    let report = hand.engine.scrub();
    assert_eq!(report.state, ScrubState::Done);
    assert!(report.blocks_damaged > 0, "{report:?}");
    let findings = hand.engine.scrub_findings();
    let is_told = |finding: &Finding| {
        matches!(finding, Finding::Blocks { trouble: Trouble::Unreadable(EIO), .. })
    };
    assert!(findings.iter().all(is_told), "{findings:?}");
    assert_eq!(hand.engine.read_only(), None, "a read that fails makes nothing read-only");
    assert!(unreadable(&mut hand).is_empty());
}

#[test]
fn it_reads_no_more_than_it_is_allowed() {
    let mut hand = aged(8);
    hand.engine.limit_scrub(true);
    assert!(hand.engine.start_scrub(0));
    hand.run();
    assert_eq!(hand.engine.scrub().blocks_checked, 0);
    assert!(hand.engine.scrub_waits_for_time());
    let batch = 257;
    for turn in 1..=5 {
        hand.engine.allow_scrub(100, 1000);
        hand.run();
        let report = hand.engine.scrub();
        let read = report.blocks_checked + report.metadata_checked;
        assert!(read <= turn * 100 + batch, "{report:?}");
    }
    assert!(hand.engine.scrub().blocks_checked > 0);
    hand.engine.limit_scrub(false);
    hand.run();
    assert_eq!(hand.engine.scrub().state, ScrubState::Done);
}
