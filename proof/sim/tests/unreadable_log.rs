//! Goal: blocks of the log behind the checkpoint that cannot be read cost no more than themselves, and nothing that may
//! have been durable is dropped for them.

use coulter_engine::{OpenError, Phase};
use coulter_format::record::RecordView;
use coulter_format::{BLOCK_SIZE, Pba};
use coulter_sim::device::Device;
use coulter_sim::hand::{Hand, small, store};

/// A store that was killed after it had written and flushed so many records of four blocks, the record of each number
/// at four times that number, full of it and one more.
fn killed(records: u8) -> Device {
    let mut hand = Hand::open(store(24, 1024, None, None, 8), small());
    for number in 0..records {
        assert!(hand.write(4 * u64::from(number), 4, 1 + number), "there is room");
        assert_eq!(hand.flush(), Some(Ok(())));
    }
    hand.device
}

/// Where the headers of these records are, in order.
fn headers(device: &Device) -> Vec<Pba> {
    let hand = Hand::open(device.clone(), small());
    let superblock = hand.engine.superblock();
    let headers = device.written().filter_map(|pba| {
        let mut blocks = [[0; BLOCK_SIZE]];
        device.read(pba, &mut blocks);
        let view = RecordView::decode(&blocks[0], &superblock.store, pba).ok()?;
        let is_host = view.header().stream == 0 && view.header().payload_size == 4;
        is_host.then_some((view.header().sequence, pba))
    });
    let mut headers: Vec<_> = headers.collect();
    headers.sort_unstable();
    headers.into_iter().map(|(_, pba)| pba).collect()
}

fn open_without(device: &Device, block: Pba) -> Hand {
    let mut hand = Hand::begin(device.clone(), small());
    hand.unreadable.insert(block);
    hand.run();
    hand
}

#[test]
fn a_block_of_a_record_that_was_durable_costs_itself() {
    let device = killed(3);
    // The third attests the first two.
    for (number, header) in (0u64..).zip(&headers(&device)[..2]) {
        for index in 0..4u64 {
            let mut hand = open_without(&device, header.plus(1 + index as u32));
            assert_eq!(hand.engine.phase(), Phase::Running);
            for lba in 0..12u64 {
                let expected =
                    if lba == 4 * number + index { None } else { Some(1 + lba as u8 / 4) };
                assert_eq!(hand.read(lba).expect("an answer").ok(), expected, "{lba}");
            }
        }
    }
}

#[test]
fn a_block_behind_the_end_of_the_log_costs_nothing() {
    let device = killed(3);
    let last = headers(&device)[2];
    for offset in 6..12 {
        let mut hand = open_without(&device, last.plus(offset));
        assert_eq!(hand.read(11), Some(Ok(3)), "{offset}");
    }
}

#[test]
pub(crate) fn what_may_have_been_durable_is_not_dropped_because_it_cannot_be_read() {
    let device = killed(3);
    let last = headers(&device)[2];
    // Header and payload of the last one, and the block where the next header would be.
    for offset in 0..6 {
        let hand = open_without(&device, last.plus(offset));
        assert_eq!(hand.engine.phase(), Phase::Failed(OpenError::Device(5)), "{offset}");
    }
}
