//! Goal: a record is as long as its header can tell of, only where the superblock says that it may be, and
//! counts as a whole like any other.

use coulter_engine::placement::Placement;
use coulter_engine::{Command, Config, OpenError, Phase};
use coulter_format::record::RecordView;
use coulter_format::superblock::{Superblock, third_superblocks};
use coulter_format::{BLOCK_SIZE, Corrupt, Pba, Reason, Structure};
use coulter_sim::device::Device;
use coulter_sim::hand::{Hand, small, store_of};
use coulter_sim::random::Random;

const SEGMENT: u32 = 1024;
const LONGEST: u64 = 444;

fn config() -> Config {
    Config { placement: Placement::Mixed, ..small() }
}

fn empty() -> Device {
    store_of(24, SEGMENT, 1024, None, None, 8)
}

/// Single blocks that are no neighbours.
fn scattered(index: u64) -> u64 {
    100 + 3 * index
}

/// Writes so many single blocks that are sent off together, behind two records that keep them waiting;
/// the two and the others are still out.
fn gather(hand: &mut Hand, count: u64, byte: u8, lba: impl Fn(u64) -> u64) {
    for first in [0, 1] {
        hand.try_write(first, 1, byte).expect("there is room");
        hand.poll();
    }
    assert_eq!(hand.out.len(), 2, "both are on their way, so the rest gathers");
    for index in 0..count {
        hand.try_write(lba(index), 1, byte).expect("there is room");
    }
    hand.complete(0, Ok(()));
    hand.poll();
}

/// Blocks of the longest write that is out.
fn longest_out(hand: &Hand) -> u32 {
    let counts = hand.out.iter().map(|(io, _)| match io.command {
        Command::Write { count, .. } => count,
        _ => 0,
    });
    counts.max().expect("something is out")
}

/// The longest record on the device, by its blocks of payload: where, and whether it is packed.
fn longest_record(device: &Device, superblock: &Superblock) -> (u16, Pba, bool) {
    let mut longest = (0, Pba::NOWHERE, false);
    for at in superblock.geometry.first_segment.0..device.size() as u32 {
        let mut block = [[0; BLOCK_SIZE]];
        device.read(Pba(at), &mut block);
        if let Ok(view) = RecordView::decode(&block[0], &superblock.store, Pba(at)) {
            longest = longest.max((view.header().payload_size, Pba(at), view.is_packed()));
        }
    }
    longest
}

/// Says in both copies of the superblock that there are no long records.
fn deny_long_records(device: &mut Device) {
    let thirds = third_superblocks(device.size());
    for copy in [Pba(0), Pba(SEGMENT / 2)].into_iter().chain(thirds) {
        let mut block = [[0; BLOCK_SIZE]];
        device.read(copy, &mut block);
        // The third copy lies at one of several places.
        let Ok(superblock) = Superblock::decode(&block[0]) else { continue };
        Superblock { long_records: false, ..superblock }.encode(&mut block[0]);
        device.write(copy, &block);
    }
    device.flush_all();
}

#[test]
fn as_many_single_blocks_as_a_header_can_tell_of_are_one_record_and_come_back() {
    let mut hand = Hand::open(empty(), config());
    gather(&mut hand, LONGEST, 7, scattered);
    assert_eq!(longest_out(&hand), 1 + LONGEST as u32);
    hand.run();
    let longest = longest_record(&hand.device, hand.engine.superblock());
    assert!(matches!(longest, (444, _, true)), "{longest:?}");
    assert_eq!(hand.engine.statistics().long_records, 1);
    let read = |hand: &mut Hand| {
        (0..LONGEST).for_each(|index| assert_eq!(hand.read(scattered(index)), Some(Ok(7))));
        assert_eq!(hand.read(scattered(LONGEST)), Some(Ok(0)));
    };
    read(&mut hand);
    assert_eq!(hand.device.check(), Ok(()));
    let mut hand = Hand::open(hand.device, config());
    assert_eq!(hand.engine.statistics().long_records_replayed, 1);
    read(&mut hand);
}

#[test]
fn one_more_goes_to_the_next_record() {
    let mut hand = Hand::open(empty(), config());
    gather(&mut hand, LONGEST + 1, 7, scattered);
    assert_eq!(longest_out(&hand), 1 + LONGEST as u32);
    hand.run();
    assert_eq!(hand.read(scattered(LONGEST)), Some(Ok(7)));
}

#[test]
fn neighbours_make_a_record_as_long_that_is_not_packed() {
    let mut hand = Hand::open(empty(), config());
    gather(&mut hand, LONGEST, 7, |index| 100 + index);
    hand.run();
    let longest = longest_record(&hand.device, hand.engine.superblock());
    assert!(matches!(longest, (444, _, false)), "{longest:?}");
    let mut hand = Hand::open(hand.device, config());
    assert_eq!(hand.engine.statistics().long_records_replayed, 1);
    (100..544).for_each(|lba| assert_eq!(hand.read(lba), Some(Ok(7))));
}

/// A record that is packed takes no discard, nor what goes beyond the host addresses that it can name.
#[test]
fn what_cannot_be_packed_goes_to_another_record_and_takes_effect_after_it() {
    let mut hand = Hand::open(empty(), config());
    gather(&mut hand, 300, 7, scattered);
    let request = coulter_engine::Request::Discard {
        lba: coulter_format::Lba(scattered(0)),
        count: 30,
        fua: false,
    };
    hand.submit(request).expect("it is taken");
    hand.run();
    let mut hand = Hand::open(hand.device, config());
    assert_eq!(hand.engine.statistics().long_records_replayed, 1);
    assert_eq!(hand.read(scattered(9)), Some(Ok(0)));
    assert_eq!(hand.read(scattered(10)), Some(Ok(7)));
}

#[test]
fn a_torn_long_record_counts_not_at_all() {
    for torn in [0, 1, 200, 257, 300, 444] {
        let mut hand = Hand::open(empty(), config());
        gather(&mut hand, LONGEST, 7, scattered);
        hand.run();
        let (_, pba, _) = longest_record(&hand.device, hand.engine.superblock());
        let mut device = hand.device;
        device.corrupt(pba.plus(torn), 70);
        assert_eq!(device.check(), Ok(()), "it was never said to be durable");
        let mut hand = Hand::open(device, config());
        assert_eq!(hand.engine.phase(), Phase::Running);
        for index in 0..LONGEST {
            assert_eq!(hand.read(scattered(index)), Some(Ok(0)), "block {torn} is torn");
        }
    }
}

/// Behind a header that is damaged the next one is looked for as far as the longest payload reaches. It tells of the
/// damaged one; with a block of payload damaged as well that is not enough.
#[test]
fn a_damaged_header_of_a_long_record_is_no_torn_tail() {
    for count in [251, 257, 400, LONGEST] {
        let mut hand = Hand::open(empty(), config());
        gather(&mut hand, count, 7, scattered);
        hand.run();
        assert_eq!(hand.flush(), Some(Ok(())));
        let (size, pba, _) = longest_record(&hand.device, hand.engine.superblock());
        assert_eq!(u64::from(size), count);
        assert!(hand.write(0, 2, 8));
        let mut device = hand.device;
        device.flush_all();
        device.corrupt(pba, 70);
        assert!(device.check().is_err(), "the checker misses {count} blocks");
        let mut again = Hand::open(device.clone(), config());
        assert_eq!(again.read(scattered(count - 1)), Some(Ok(7)), "{count} blocks");
        device.corrupt(pba.plus(size.into()), 70);
        let phase = Hand::open(device, config()).engine.phase();
        let is_missed = matches!(phase, Phase::Failed(OpenError::DurableRecordMissing { .. }));
        assert!(is_missed, "{count} blocks were flushed, and are gone without a word: {phase:?}");
    }
}

/// Who knows no long records reads the superblock first, and refuses a store that may have some.
#[test]
fn an_older_store_has_long_records_only_when_both_superblocks_say_so() {
    let mut device = empty();
    deny_long_records(&mut device);
    let mut hand = Hand::begin(device, config());
    let mut announced = [false; 2];
    hand.poll();
    while !hand.out.is_empty() {
        let (io, data) = &hand.out[0];
        if let Command::Write { pba, .. } = io.command {
            match Superblock::decode(&data[0]) {
                Ok(superblock) => {
                    announced[usize::from(pba.0 > 0)] = superblock.long_records;
                }
                // Before the log lies the second copy of the checkpoint's body.
                Err(_) if pba < hand.engine.geometry().first_segment => {}
                Err(_) => {
                    let store = hand.engine.superblock().store;
                    let view = RecordView::decode(&data[0], &store, pba).expect("a record");
                    assert!(!view.is_long(), "nothing may be long before");
                }
            }
        }
        hand.complete(0, Ok(()));
        if hand.engine.phase() == Phase::Running {
            assert_eq!(announced, [true; 2], "the host may write from now on");
        }
        hand.poll();
    }
    assert_eq!(hand.engine.phase(), Phase::Running);
    assert!(hand.engine.superblock().long_records);
    gather(&mut hand, LONGEST, 7, scattered);
    assert_eq!(longest_out(&hand), 1 + LONGEST as u32);
}

#[test]
fn a_long_record_where_there_can_be_none_is_refused() {
    type Address = fn(u64) -> u64;
    let cases: [(&str, Address, u64); 3] = [
        ("flags", scattered, LONGEST),
        ("flags", scattered, 251),
        ("payload_size", |index| 100 + index, 257),
    ];
    for (field, lba, count) in cases {
        let mut hand = Hand::open(empty(), config());
        gather(&mut hand, count, 7, lba);
        hand.run();
        let mut device = hand.device;
        deny_long_records(&mut device);
        assert!(device.check().is_err(), "the checker finds nothing wrong with its {field}");
        let phase = Hand::open(device, config()).engine.phase();
        let Phase::Failed(OpenError::Damaged { corrupt, .. }) = phase else {
            panic!("{field}: {phase:?}");
        };
        let (structure, reason) = (Structure::RecordHeader, Reason::Field(field));
        assert_eq!(corrupt, Corrupt { structure, reason });
    }
    // One that is not long is what it was.
    let mut hand = Hand::open(empty(), config());
    gather(&mut hand, 250, 7, scattered);
    hand.run();
    let mut device = hand.device;
    deny_long_records(&mut device);
    assert_eq!(device.check(), Ok(()));
    let mut hand = Hand::open(device, config());
    assert_eq!(hand.read(scattered(249)), Some(Ok(7)));
}

/// The cleaner packs what it moves, too, and after a crash each block lies where it lay or where it went.
#[test]
fn relocations_are_packed_and_come_back() {
    let mut hand = Hand::open(empty(), config());
    let size = hand.engine.geometry().volume_size;
    let mut random = Random::new(3);
    let mut expected = vec![0; size as usize];
    let mut longest = 0;
    let mut round = 0;
    while longest <= 200 {
        round += 1;
        assert!(round < 2000, "no relocations are packed: {:?}", hand.engine.statistics());
        for _ in 0..100 {
            let (lba, byte) = (random.below(size), 1 + (round % 200) as u8);
            if hand.try_write(lba, 1, byte).is_some() {
                expected[lba as usize] = byte;
            }
            hand.poll();
        }
        while !hand.out.is_empty() {
            let (io, data) = &hand.out[0];
            if let Command::Write { pba, .. } = io.command {
                let store = hand.engine.superblock().store;
                let view = RecordView::decode(&data[0], &store, pba);
                let moved =
                    view.is_ok_and(|view| view.is_packed() && view.entries().all(|e| e.relocated));
                longest = longest.max(if moved { data.len() - 1 } else { 0 });
            }
            hand.complete(0, Ok(()));
            hand.poll();
        }
    }
    assert_eq!(hand.device.check(), Ok(()));
    let mut hand = Hand::open(hand.device, config());
    for (lba, byte) in expected.iter().enumerate() {
        assert_eq!(hand.read(lba as u64), Some(Ok(*byte)), "host block {lba}");
    }
}
