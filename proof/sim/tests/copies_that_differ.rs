//! Goal: where both copies of something match their checksum and differ, the first is used, always, and a check and a
//! scrub tell of it and name both.
//!
//! Method: a checksum is linear, so a changed block with the same one can be made. Each copy of each kind of block is
//! changed like that.

use coulter_check::{Finding, Options, check};
use coulter_engine::create::{CreateOptions, Sparse};
use coulter_engine::scrub::{self, Trouble};
use coulter_engine::{Config, Phase, Request};
use coulter_format::checkpoint::BodyView;
use coulter_format::checksum::Kind;
use coulter_format::root_list;
use coulter_format::superblock::{FIRST_SUPERBLOCK, Superblock};
use coulter_format::{BLOCK_SIZE, Block, Pba};
use coulter_sim::device::Device;
use coulter_sim::forge::forge;
use coulter_sim::hand::{Hand, small, small_options, store, store_like};
use coulter_sim::random::Random;
use std::collections::BTreeMap;

const ROOT: u64 = 1 << 18;
const ROOTS: u64 = 300;

fn closed(mut hand: Hand) -> Device {
    hand.submit(Request::Shutdown).expect("it is always taken");
    hand.run();
    hand.device.flush_all();
    hand.device
}

/// A store of which the body lists the roots, with runs.
fn dense() -> Device {
    let config = Config { reference_blocks: 8, ..small() };
    let mut hand = Hand::open(store(24, 1024, None, None, 8), config);
    let mut random = Random::new(11);
    let size = hand.engine.geometry().volume_size;
    for round in 0..1500u32 {
        let count = if round % 3 == 0 { 8 } else { 5 };
        assert!(hand.write(random.below(size - 8), count, 1 + (round % 250) as u8));
    }
    closed(hand)
}

/// A store with a list of roots.
fn sparse() -> Device {
    let device = store_like(&CreateOptions {
        sparse: Some(Sparse {
            address_limit: 1 << 50,
            root_limit: Some(ROOTS as u32),
            root_lists: true,
        }),
        volume_size: Some(4000),
        ..small_options(256 * 65)
    });
    let mut hand = Hand::open(device, small());
    for _ in 0..40 {
        for root in 0..ROOTS {
            assert!(hand.write(root * 7 * ROOT, 1, 1 + (root % 250) as u8));
        }
        if hand.engine.statistics().roots_in_use == ROOTS {
            return closed(hand);
        }
    }
    panic!("{:?}", hand.engine.statistics());
}

fn superblock(device: &Device) -> Superblock {
    let config = Config { read_only: true, ..small() };
    *Hand::open(device.clone(), config).engine.superblock()
}

fn body_of(device: &Device, superblock: &Superblock) -> Vec<u8> {
    let place = superblock.checkpoint;
    let mut blocks = vec![[0; BLOCK_SIZE]; place.blocks() as usize];
    device.read(place.pba, &mut blocks);
    blocks.as_flattened()[..place.size as usize].to_vec()
}

fn block(device: &Device, pba: Pba) -> Block {
    let mut block = [0; BLOCK_SIZE];
    device.read(pba, std::slice::from_mut(&mut block));
    block
}

/// Where both copies lie of everything that is listed, by what it is.
fn pairs(device: &Device) -> BTreeMap<Kind, Vec<[Pba; 2]>> {
    let bytes = body_of(device, &superblock(device));
    let body = BodyView::decode(&bytes).expect("it is sound");
    let kind = if body.counts().root_lists { Kind::RootList } else { Kind::Root };
    let roots = body.roots().map(|(_, pointer)| (Kind::Root, pointer.pba));
    let lists = body.root_lists().map(|pointer| (Kind::RootList, pointer.pba));
    let table = body.table().map(|pointer| (Kind::SegmentTable, pointer.pba));
    let runs = body.runs().flat_map(|(_, blocks)| blocks.iter().map(|at| (Kind::Run, at.pba)));
    let mut pairs: BTreeMap<Kind, Vec<_>> = BTreeMap::new();
    for ((kind, first), copy) in roots.chain(lists).chain(table).chain(runs).zip(body.copies()) {
        pairs.entry(kind).or_default().push([first, copy]);
    }
    if kind == Kind::RootList {
        let pages: Vec<_> = pairs[&kind].iter().map(|[first, _]| block(device, *first)).collect();
        let entries = pages.iter().flat_map(root_list::decode);
        let entries = entries.filter_map(|entry| entry.expect("it is sound"));
        let listed = entries.map(|entry| [entry.pointer.pba, entry.copy]).collect();
        pairs.insert(Kind::Root, listed);
    }
    pairs
}

/// What a check says that they differ in: the copy used, and the other.
fn said(device: &Device) -> Vec<[Pba; 2]> {
    let report = check(&mut device.blocks(), &mut Options { data: true, ..Options::default() });
    let differ = report.findings.iter().filter_map(|finding| match finding {
        Finding::CopiesDiffer { used, other, .. } => {
            let said = finding.to_string();
            assert!(said.contains(&used.0.to_string()) && said.contains(&other.0.to_string()));
            assert!(said.contains("is used") && said.contains("backup"), "{said}");
            Some([*used, *other])
        }
        _ => None,
    });
    let differ: Vec<_> = differ.collect();
    assert!(differ.is_empty() || !report.is_sound(), "{:?}", report.findings);
    differ
}

/// What a scrub says, in the same way. Nothing is written before it: what is to be compared stays where it is.
fn scrubbed(device: &Device) -> Vec<[Pba; 2]> {
    let mut hand = Hand::open(device.clone(), Config { read_only: true, ..small() });
    assert_eq!(hand.engine.phase(), Phase::Running);
    assert!(hand.engine.start_scrub(0), "there is memory");
    hand.run();
    // A root that is lost has many addresses to be gone through.
    for _ in 0..100 {
        if hand.engine.scrub().state == scrub::ScrubState::Running {
            hand.run();
        }
    }
    assert_eq!(hand.engine.scrub().state, scrub::ScrubState::Done, "{:?}", hand.engine.scrub());
    let findings = hand.engine.scrub_findings().iter();
    assert!(findings.len() < scrub::FINDINGS_MAX, "all are told");
    let differ = findings.filter_map(|finding| match *finding {
        scrub::Finding::Metadata {
            pba, trouble: Trouble::Differs { used }, is_repaired, ..
        } => {
            assert!(!is_repaired, "nothing tells which is right");
            Some([used, pba])
        }
        _ => None,
    });
    differ.collect()
}

/// Changes a block so that nothing but its other copy gives it away: bytes that no reader looks at, or entries.
fn forged(device: &Device, kind: Kind, pba: Pba) -> Device {
    let mut content = block(device, pba);
    // What is changed: an entry of a map page; what lies behind the last entry of a list page; a clock of a table page.
    let (at, patch) = match kind {
        Kind::Root => (4092, 8 * 300 + 4),
        Kind::SegmentTable => (16 * 255 + 8, 16 * 254 + 8),
        Kind::RootList => (186 * 22 + 3, 12),
        _ => (4095, 4088),
    };
    forge(&mut content, at, 0x01, patch);
    let mut device = device.clone();
    device.write(pba, &[content]);
    device.flush_all();
    device
}

#[test]
fn what_is_listed_in_two_copies_that_differ() {
    for (device, kinds) in [
        (dense(), vec![Kind::Root, Kind::SegmentTable, Kind::Run]),
        (sparse(), vec![Kind::Root, Kind::SegmentTable, Kind::RootList]),
    ] {
        assert_eq!((said(&device), scrubbed(&device)), (vec![], vec![]));
        let pairs = pairs(&device);
        for kind in kinds {
            for pair in pairs[&kind].iter().step_by(pairs[&kind].len().div_ceil(3)) {
                for place in *pair {
                    let forged = forged(&device, kind, place);
                    assert_eq!(said(&forged), [*pair], "{kind:?} at {place:?}");
                    assert_eq!(scrubbed(&forged), [*pair], "{kind:?} at {place:?}");
                }
            }
        }
    }
}

/// The first copy counts, whatever the other says.
#[test]
fn the_first_copy_of_the_body_counts() {
    let device = dense();
    let superblock = superblock(&device);
    let place = superblock.checkpoint;
    let clock = |device: &Device| {
        let bytes = body_of(device, &superblock);
        BodyView::decode(&bytes).expect("it is sound").header().write_clock
    };
    let count = place.blocks() as usize;
    for (start, is_first) in [(place.pba, true), (place.copy, false)] {
        let mut blocks = vec![[0; BLOCK_SIZE]; count];
        device.read(start, &mut blocks);
        // The lowest byte of the write clock, and the highest bytes that a run's number does not need.
        forge(&mut blocks.as_flattened_mut()[..place.size as usize], 16, 1, 18);
        let mut forged = device.clone();
        forged.write(start, &blocks);
        forged.flush_all();
        assert_eq!(clock(&forged) != clock(&device), is_first);
        let pair = [place.pba, place.copy];
        assert_eq!(said(&forged), [pair], "{start:?}");
        assert_eq!(scrubbed(&forged), [pair], "{start:?}");
    }
}

#[test]
fn superblocks_that_should_say_the_same_and_do_not() {
    let device = dense();
    let newest = superblock(&device);
    let geometry = newest.geometry;
    let third = geometry.third_superblock;
    let places = [FIRST_SUPERBLOCK, geometry.second_superblock, third];
    let places = places.into_iter().filter(|pba| *pba != Pba::NOWHERE || *pba == FIRST_SUPERBLOCK);
    type Change = fn(&mut Superblock);
    let changes: [(&str, Change); 4] = [
        ("checkpoint_copy", |s| s.checkpoint.copy = Pba::NOWHERE),
        ("label", |s| s.label[3] = b'x'),
        ("durable_sequence", |s| s.durable_sequence -= 1),
        ("recovery_map_size", |s| s.budget.map_size += 1),
    ];
    for place in places {
        for (field, change) in changes {
            let mut found = Superblock::decode(&block(&device, place)).expect("it is sound");
            change(&mut found);
            let mut content = [0; BLOCK_SIZE];
            found.encode(&mut content);
            let mut forged = device.clone();
            forged.write(place, &[content]);
            forged.flush_all();
            let context = format!("{field} at {place:?}");
            let report = check(&mut forged.blocks(), &mut Options::default());
            let disagree = report.findings.iter().filter(|finding| {
                let said = finding.to_string();
                matches!(finding, Finding::SuperblocksDisagree { .. })
                    && said.contains(&format!("`{field}`"))
                    && said.contains(&format!("the one at block {} counts", newest.location().0))
            });
            assert!(disagree.count() > 0, "{context}: {:?}", report.findings);
            // Of A and B the one of the higher generation.
            let used = superblock(&forged);
            assert_eq!(used == newest, place != newest.location(), "{context}");
            let mut hand = Hand::open(forged, Config { read_only: true, ..small() });
            assert!(hand.engine.start_scrub(0), "there is memory");
            hand.run();
            assert!(hand.engine.scrub().metadata_damaged > 0, "{context}");
        }
    }
}
