//! Goal: a store of which something is damaged beyond repair opens if that is asked for. Reads of what is in doubt are
//! errors, and never older data; all else is right.

use coulter_engine::{Config, Degraded, Failure, OpenError, Phase, Request};
use coulter_format::checkpoint::BodyView;
use coulter_format::record::RecordView;
use coulter_format::{BLOCK_SIZE, Pba};
use coulter_sim::device::Device;
use coulter_sim::hand::{Hand, small, store};
use coulter_sim::random::Random;
use coulter_sim::{Outcome, Simulator, lives, ruined, shrink};
use std::collections::BTreeMap;

fn config(degraded: Degraded) -> Config {
    Config { degraded, reference_blocks: 8, ..small() }
}

/// A store that lived, and what it holds.
fn aged(closed: bool) -> (Device, Vec<u8>) {
    let mut hand = Hand::open(store(24, 1024, None, None, 8), config(Degraded::Refused));
    let mut random = Random::new(11);
    let size = hand.engine.geometry().volume_size;
    let mut expected = vec![0; size as usize];
    for round in 0..1500u32 {
        let count = if round % 3 == 0 { 8 } else { 5 };
        let (lba, value) = (random.below(size - 8), 1 + (round % 250) as u8);
        assert!(hand.write(lba, count, value), "{:?}", hand.engine.statistics());
        expected[lba as usize..][..count as usize].fill(value);
    }
    if closed {
        hand.submit(Request::Shutdown).expect("it is always taken");
        hand.run();
    }
    hand.device.flush_all();
    (hand.device, expected)
}

fn body_of(device: &Device) -> Vec<u8> {
    let config = Config { read_only: true, ..small() };
    let place = Hand::open(device.clone(), config).engine.superblock().checkpoint;
    let mut blocks = vec![[0; BLOCK_SIZE]; place.blocks() as usize];
    device.read(place.pba, &mut blocks);
    blocks.as_flattened()[..place.size as usize].to_vec()
}

fn zeroed(device: &Device, places: &[Pba]) -> Device {
    let mut device = device.clone();
    places.iter().for_each(|pba| device.write(*pba, &[[0; BLOCK_SIZE]]));
    device.flush_all();
    device
}

/// Whether a store with this damage is refused unless it may be opened degraded, and then refuses writes.
fn opened(damaged: &Device) -> Hand {
    let phase = Hand::open(damaged.clone(), config(Degraded::Refused)).engine.phase();
    assert!(matches!(phase, Phase::Failed(_)), "{phase:?}");
    let mut hand = Hand::open(damaged.clone(), config(Degraded::ReadOnly));
    assert_eq!(hand.engine.phase(), Phase::Running);
    assert!(hand.engine.degradation().is_some());
    assert_eq!(hand.engine.read_only(), Some(0));
    assert!(!hand.write(3, 1, 77), "it refuses writes");
    hand
}

/// How many blocks are errors; all others are right, and of a block that is in doubt none is given.
fn errors(hand: &mut Hand, expected: &[u8], context: &str) -> u64 {
    let in_doubt = hand.engine.in_doubt().to_vec();
    let mut errors = 0;
    for (lba, value) in (0..).zip(expected) {
        match hand.read(lba).expect("an answer") {
            Ok(found) => assert_eq!(found, *value, "{lba}: {context}"),
            Err(failure) => {
                assert_eq!(failure, Failure::Corrupt(coulter_format::Lba(lba)), "{context}");
                let is_told = in_doubt.iter().any(|range| range.contains(&lba));
                assert!(is_told, "{lba} is an error and not in doubt: {in_doubt:?}, {context}");
                errors += 1;
            }
        }
    }
    errors
}

#[test]
fn with_both_copies_of_a_table_page_damaged_nothing_is_in_doubt() {
    for closed in [true, false] {
        let (device, expected) = aged(closed);
        let bytes = body_of(&device);
        let body = BodyView::decode(&bytes).expect("it is sound");
        let first = body.table().next().expect("there is one").pba;
        let copy = body.copies().nth(body.roots().count()).expect("it has a copy");
        let mut hand = opened(&zeroed(&device, &[first, copy]));
        assert_eq!(errors(&mut hand, &expected, "table"), 0);
        assert_eq!(hand.engine.in_doubt(), []);
    }
}

#[test]
fn with_both_copies_of_a_run_block_damaged_what_it_may_have_said_is_in_doubt() {
    let (device, expected) = aged(false);
    let bytes = body_of(&device);
    let body = BodyView::decode(&bytes).expect("it is sound");
    let skipped = body.roots().count() + body.table().count();
    let runs = body.runs().flat_map(|(_, blocks)| blocks.iter());
    let mut met = 0;
    for (pointer, copy) in runs.zip(body.copies().skip(skipped)) {
        let context = format!("{pointer:?} and {copy:?}");
        let mut hand = opened(&zeroed(&device, &[pointer.pba, copy]));
        let errors = errors(&mut hand, &expected, &context);
        assert!(errors < expected.len() as u64, "what was written later is right: {context}");
        met += u64::from(errors > 0);
    }
    assert!(met > 0, "some run told what nothing else does");
}

#[test]
fn with_two_headers_of_a_group_damaged_what_they_may_have_said_is_in_doubt() {
    let (device, expected) = aged(false);
    let bytes = body_of(&device);
    let body = BodyView::decode(&bytes).expect("it is sound");
    let mut groups: BTreeMap<Pba, Vec<Pba>> = BTreeMap::new();
    for (reference, parity) in body.references().zip(body.header_parities()) {
        groups.entry(parity.pba).or_default().push(reference.pba);
    }
    let pairs: Vec<_> = groups.values().filter(|group| group.len() > 1).collect();
    assert!(!pairs.is_empty(), "{groups:?}");
    for group in pairs {
        let mut hand = opened(&zeroed(&device, &group[..2]));
        errors(&mut hand, &expected, &format!("{group:?}"));
    }
}

/// Writes of four blocks, each flushed, in a store that was killed.
const RECORDS: u64 = 6;

fn killed() -> (Device, Vec<u8>) {
    let mut hand = Hand::open(store(24, 1024, None, None, 8), small());
    let size = hand.engine.geometry().volume_size;
    let mut expected = vec![0; size as usize];
    for number in 0..RECORDS {
        // Each overwrites a block of the one before.
        let (lba, value) = (3 * number, 1 + number as u8);
        assert!(hand.write(lba, 4, value), "there is room");
        assert_eq!(hand.flush(), Some(Ok(())));
        expected[lba as usize..][..4].fill(value);
    }
    (hand.device, expected)
}

/// Where the headers behind the checkpoint are, in order.
fn headers(device: &Device) -> Vec<Pba> {
    let hand = Hand::open(device.clone(), Config { read_only: true, ..small() });
    let superblock = hand.engine.superblock();
    let headers = device.written().filter_map(|pba| {
        let mut blocks = [[0; BLOCK_SIZE]];
        device.read(pba, &mut blocks);
        let header = RecordView::decode(&blocks[0], &superblock.store, pba).ok()?.header();
        let is_recent = header.stream == 0 && header.sequence > superblock.checkpoint.sequence;
        is_recent.then_some((header.sequence, pba))
    });
    let headers: BTreeMap<_, _> = headers.collect();
    assert_eq!(headers.len() as u64, RECORDS);
    headers.into_values().collect()
}

#[test]
fn of_a_missing_record_that_is_told_of_only_its_own_addresses_are_in_doubt() {
    let (device, expected) = killed();
    let headers = headers(&device);
    // The last one attests the one before it, and none comes behind it.
    for (number, header) in (0..).zip(&headers[..RECORDS as usize - 2]) {
        let context = format!("record {number}");
        let damaged = zeroed(&device, &[*header, header.plus(2)]);
        let mut hand = opened(&damaged);
        // The last of its blocks was written again.
        assert_eq!(errors(&mut hand, &expected, &context), 3, "{context}");
        assert_eq!(hand.engine.in_doubt_count(), 3, "{context}");
        assert_eq!(hand.read(3 * number).map(|read| read.is_err()), Some(true), "{context}");
    }
}

#[test]
fn a_store_of_which_all_that_is_lost_is_known_takes_writes_and_remembers_what_is_lost() {
    let (device, mut expected) = killed();
    let headers = headers(&device);
    let damaged = zeroed(&device, &[headers[2], headers[2].plus(1)]);
    let mut hand = Hand::open(damaged, config(Degraded::ReadWrite));
    assert_eq!(hand.engine.phase(), Phase::Running);
    assert_eq!(hand.engine.read_only(), None);
    assert!(hand.engine.degradation().is_some());
    assert_eq!(hand.engine.in_doubt(), [const { 6..9 }]);
    assert!(hand.write(6, 1, 99), "it takes writes");
    assert_eq!(hand.engine.in_doubt(), [const { 7..9 }], "what was written is known again");
    expected[6] = 99;
    for opening in 0..3 {
        let lost = (0..).zip(&expected).filter_map(|(lba, value)| match hand.read(lba) {
            Some(Ok(found)) => {
                assert_eq!(found, *value, "{lba} after {opening} openings");
                None
            }
            _ => Some(lba),
        });
        assert_eq!(lost.collect::<Vec<_>>(), [7, 8], "after {opening} openings");
        assert!(hand.engine.statistics().may_have_lost, "after {opening} openings");
        hand.submit(Request::Shutdown).expect("it is always taken");
        hand.run();
        hand = Hand::open(hand.device, config(Degraded::Refused));
        assert_eq!(hand.engine.phase(), Phase::Running);
        assert!(hand.engine.degradation().is_none());
    }
}

#[test]
fn of_a_missing_record_that_nothing_tells_of_all_that_was_not_written_since_is_in_doubt() {
    let (device, expected) = killed();
    let headers = headers(&device);
    for (number, pair) in (0..).zip(headers[..RECORDS as usize - 2].windows(2)) {
        let context = format!("records {number} and {}", number + 1);
        let damaged = zeroed(&device, pair);
        let mut hand = opened(&damaged);
        let since = 3 * (number + 2)..3 * (RECORDS - 1) + 4;
        let found = errors(&mut hand, &expected, &context);
        assert_eq!(found, expected.len() as u64 - (since.end - since.start), "{context}");
        assert_eq!(hand.engine.in_doubt_count(), found, "it is told how much: {context}");
        let hand = Hand::open(damaged, config(Degraded::ReadWrite));
        assert_eq!(hand.engine.read_only(), Some(0), "nobody knows what is lost: {context}");
    }
}

#[test]
fn what_cannot_be_read_and_may_have_been_durable_puts_all_in_doubt() {
    let (device, expected) = killed();
    let last = *headers(&device).last().expect("there are some");
    let mut hand = Hand::begin(device.clone(), config(Degraded::Refused));
    hand.unreadable.insert(last);
    hand.run();
    assert_eq!(hand.engine.phase(), Phase::Failed(OpenError::Device(5)));
    let mut hand = Hand::begin(device, config(Degraded::ReadOnly));
    hand.unreadable.insert(last);
    hand.run();
    assert_eq!(hand.engine.phase(), Phase::Running);
    assert_eq!(errors(&mut hand, &expected, "all"), expected.len() as u64);
}

/// Lives with damage between openings, some of it beyond repair.
const RUINED_LIVES: u64 = 48;

#[test]
fn whatever_metadata_is_ruined_between_openings_reads_are_right_or_errors_that_the_damage_explains()
{
    let mut simulator = Simulator::default();
    let mut total = Outcome::default();
    for seed in 0..RUINED_LIVES {
        let plan = ruined::plan(seed);
        match lives::run(&mut simulator, &plan) {
            Ok(outcome) => total.add(&outcome),
            Err(what) => {
                let short = shrink::shrink(&plan, 60).map(|(plan, what)| format!("{what}\n{plan}"));
                panic!("seed {seed}: {what}\nshorter: {}", short.unwrap_or_default());
            }
        }
    }
    assert!(total.blocks_ruined > RUINED_LIVES, "{total:?}");
    assert!(total.degraded_openings > RUINED_LIVES, "{total:?}");
    assert!(total.blocks_in_doubt > RUINED_LIVES, "{total:?}");
}

/// Runs a plan.
fn holds(text: &str) {
    let plan = text.parse().expect("a plan of this version");
    if let Err(what) = lives::run(&mut Simulator::default(), &plan) {
        panic!("{what}");
    }
}

/// The opening panicked: a leaf that is not in doubt had an array.
#[test]
fn a_store_with_other_leaves_in_memory_opens_degraded() {
    holds(
        "\
        coulter-sim plan 1
        store segments=280 segment_blocks=256 volume=0 journal=1024 runs=5 map=1 trim=1 placement=apart reclaim=copy-out references=4 spare=20 prepare=never
        write 706 1
        write 1708 1
        write 8223 38
        drain
        write 266 1 fua
        drain
        write 871 39
        drain
        ruin header-and-payload 676160480952
        cut nothing 981542387
",
    );
}

/// The opening never ended: a header was rebuilt again and again, for its record seemed to go on in the rest of its page.
#[test]
fn the_header_of_a_record_that_does_not_fill_its_flash_page_is_rebuilt_once() {
    holds(
        "\
        coulter-sim plan 1
        store segments=292 segment_blocks=256 volume=0 journal=1024 runs=6 map=1 trim=1 placement=scattered reclaim=threaded references=1 spare=20 prepare=never page_blocks=2
        cut sectors 2358507128
        ruin header-and-payload 394643225250
        cut everything 1780623477
",
    );
}

/// It was not opened at all: what the checkpoint lists lies in a segment that nobody had opened.
#[test]
fn a_store_without_the_first_header_of_the_segment_of_its_checkpoint_opens_degraded() {
    holds(
        "\
        coulter-sim plan 1
        store segments=28 segment_blocks=256 volume=972 journal=1024 runs=3 map=0 trim=0 placement=apart reclaim=copy-out references=4 spare=20 prepare=blocks
        run 1 3259363453
        write 499 1 fua
        many 68+1
        run 1 3190092083
        ruin header-and-payload 0
        cut sectors 230680121
",
    );
}
