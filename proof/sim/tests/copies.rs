//! Goal: of what a checkpoint lists no single damaged block costs anything, and opening for writing mends it, whenever
//! that is cut off.

use coulter_engine::{Config, OpenError, Phase, Request};
use coulter_format::checkpoint::BodyView;
use coulter_format::{BLOCK_SIZE, Pba};
use coulter_sim::device::{Device, Loss};
use coulter_sim::hand::{Hand, small, store};
use coulter_sim::random::Random;
use std::collections::BTreeMap;

/// A store that lived and was closed, and what it holds.
fn aged() -> (Device, Vec<u8>) {
    let config = Config { reference_blocks: 8, ..small() };
    let mut hand = Hand::open(store(24, 1024, None, None, 8), config);
    let mut random = Random::new(11);
    let size = hand.engine.geometry().volume_size;
    let mut expected = vec![0; size as usize];
    for round in 0..1500u32 {
        let count = if round % 3 == 0 { 8 } else { 5 };
        let (lba, value) = (random.below(size - 8), 1 + (round % 250) as u8);
        assert!(hand.write(lba, count, value), "{:?}", hand.engine.statistics());
        expected[lba as usize..][..count as usize].fill(value);
    }
    hand.submit(Request::Shutdown).expect("it is always taken");
    hand.run();
    let mut device = hand.device;
    device.flush_all();
    (device, expected)
}

/// Where the two copies lie of each page and of each block of a run; `None` for a second one that there is not.
fn pairs(device: &Device) -> Vec<(Pba, Option<Pba>)> {
    let bytes = body_of(device);
    let body = BodyView::decode(&bytes).expect("it is sound");
    let roots = body.roots().map(|(_, pointer)| pointer.pba);
    let table = body.table().map(|pointer| pointer.pba);
    let runs = body.runs().flat_map(|(_, blocks)| blocks.iter().map(|pointer| pointer.pba));
    let copies = body.copies().map(|pba| (pba != Pba::NOWHERE).then_some(pba));
    roots.chain(table).chain(runs).zip(copies).collect()
}

/// The headers that are referred to, by where their parity lies.
fn groups(device: &Device) -> BTreeMap<Pba, Vec<Pba>> {
    let bytes = body_of(device);
    let body = BodyView::decode(&bytes).expect("it is sound");
    let mut groups: BTreeMap<Pba, Vec<Pba>> = BTreeMap::new();
    for (reference, parity) in body.references().zip(body.header_parities()) {
        assert_ne!(parity.pba, Pba::NOWHERE, "each header is in a group");
        groups.entry(parity.pba).or_default().push(reference.pba);
    }
    groups
}

fn body_of(device: &Device) -> Vec<u8> {
    let config = Config { read_only: true, ..small() };
    let place = Hand::open(device.clone(), config).engine.superblock().checkpoint;
    let mut blocks = vec![[0; BLOCK_SIZE]; place.blocks() as usize];
    device.read(place.pba, &mut blocks);
    blocks.as_flattened()[..place.size as usize].to_vec()
}

fn assert_holds(hand: &mut Hand, expected: &[u8], context: &str) {
    assert_eq!(hand.engine.phase(), Phase::Running, "{context}");
    for (lba, value) in (0..).zip(expected) {
        assert_eq!(hand.read(lba), Some(Ok(*value)), "{lba}: {context}");
    }
}

fn zeroed(device: &Device, places: &[Pba]) -> Device {
    let mut device = device.clone();
    places.iter().for_each(|pba| device.write(*pba, &[[0; BLOCK_SIZE]]));
    device.flush_all();
    device
}

#[test]
pub(crate) fn a_store_with_a_header_that_is_referred_to_or_its_parity_damaged_is_opened_and_whole()
{
    let (device, expected) = aged();
    let groups = groups(&device);
    assert!(groups.values().any(|headers| headers.len() > 2), "{groups:?}");
    for (parity, headers) in groups {
        for damaged in headers.into_iter().chain([parity]) {
            let context = format!("{damaged:?} of the group of {parity:?}");
            let mut hand = Hand::open(zeroed(&device, &[damaged]), small());
            assert_holds(&mut hand, &expected, &context);
            let used = hand.engine.statistics().metadata_copies_used;
            assert_eq!(used, u64::from(damaged != parity), "{context}");
            if damaged != parity {
                // The header was written again, where it lies.
                let again = Hand::open(hand.device, small());
                assert_eq!(again.engine.statistics().metadata_copies_used, 0, "{context}");
            }
        }
    }
}

#[test]
pub(crate) fn a_store_with_either_copy_of_a_listed_block_damaged_is_opened_and_whole() {
    let (device, expected) = aged();
    let pairs = pairs(&device);
    assert!(pairs.len() > 3, "{pairs:?}");
    for (first, second) in pairs {
        let second = second.expect("each has two copies");
        assert_ne!(first, second);
        for damaged in [first, second] {
            let context = format!("{damaged:?} of {first:?} and {second:?}");
            let mut hand = Hand::open(zeroed(&device, &[damaged]), small());
            assert_holds(&mut hand, &expected, &context);
            let used = hand.engine.statistics().metadata_copies_used;
            assert_eq!(used, u64::from(damaged == first), "{context}");
            hand.submit(Request::Shutdown).expect("it is always taken");
            hand.run();
            // What was met is mended.
            if damaged == first {
                assert_eq!(hand.device.check(), Ok(()), "{context}");
            }
        }
    }
}

#[test]
fn with_both_copies_damaged_the_error_tells_of_the_first() {
    let (device, _) = aged();
    let mut refused = 0;
    for (first, second) in pairs(&device) {
        let device = zeroed(&device, &[first, second.expect("each has two copies")]);
        assert!(device.check().is_err(), "the checker misses {first:?}");
        match Hand::open(device, small()).engine.phase() {
            Phase::Failed(OpenError::Damaged { pba, .. }) => {
                assert_eq!(pba, first);
                refused += 1;
            }
            // A root page costs what lies below it.
            phase => assert_eq!(phase, Phase::Running),
        }
    }
    assert!(refused > 2, "{refused}");
}

/// The opening that mends is cut off after any command, and loses any of what it wrote.
#[test]
fn an_opening_that_mends_may_be_cut_off_at_any_time() {
    let (device, expected) = aged();
    let mut cuts = 0;
    for (first, _) in pairs(&device).into_iter().step_by(3) {
        let damaged = zeroed(&device, &[first]);
        let mut random = Random::new(first.0.into());
        for commands in 0.. {
            let mut hand = Hand::begin(damaged.clone(), small());
            let mut done = 0;
            while done < commands {
                hand.poll();
                if hand.out.is_empty() {
                    break;
                }
                hand.complete(0, Ok(()));
                done += 1;
            }
            let is_over = done < commands;
            let mut device = hand.device;
            let losses = [Loss::Everything, Loss::SomeBlocks, Loss::SomeSectors];
            device.cut(losses[commands % losses.len()], &mut random);
            device.flush_all();
            let mut again = Hand::open(device, small());
            assert_holds(&mut again, &expected, &format!("{first:?} after {done} commands"));
            cuts += 1;
            if is_over {
                break;
            }
        }
    }
    assert!(cuts > 30, "{cuts}");
}
