//! Goal: a damaged header behind the checkpoint is rebuilt from what the next header tells of it, and only if its record
//! is wholly there.

use coulter_check::Finding;
use coulter_engine::{Config, OpenError, Phase, Request};
use coulter_format::record::RecordView;
use coulter_format::{BLOCK_SIZE, Pba};
use coulter_sim::device::Device;
use coulter_sim::hand::{Hand, small, store};

/// Records of a store that was killed: writes of four blocks, each flushed, and a discard of the first two blocks.
const RECORDS: u64 = 5;

fn killed() -> Device {
    let mut hand = Hand::open(store(24, 1024, None, None, 8), small());
    for number in 0..RECORDS - 1 {
        assert!(hand.write(4 * number, 4, 1 + number as u8), "there is room");
        assert_eq!(hand.flush(), Some(Ok(())));
        if number == 0 {
            let discard = Request::Discard { lba: coulter_format::Lba(0), count: 2, fua: false };
            assert!(hand.submit(discard).is_some());
            hand.run();
            assert_eq!(hand.flush(), Some(Ok(())));
        }
    }
    hand.device
}

fn expected(lba: u64) -> u8 {
    if lba < 2 { 0 } else { 1 + (lba / 4) as u8 }
}

/// Where the headers of these records are, in order, with the blocks of their payload.
fn headers(device: &Device) -> Vec<(Pba, u16)> {
    let hand = Hand::open(device.clone(), Config { read_only: true, ..small() });
    let superblock = hand.engine.superblock();
    let headers = device.written().filter_map(|pba| {
        let mut blocks = [[0; BLOCK_SIZE]];
        device.read(pba, &mut blocks);
        let header = RecordView::decode(&blocks[0], &superblock.store, pba).ok()?.header();
        let is_recent = header.stream == 0 && header.sequence > superblock.checkpoint.sequence;
        is_recent.then_some((header.sequence, (pba, header.payload_size)))
    });
    let mut headers: Vec<_> = headers.collect();
    headers.sort_unstable();
    assert_eq!(headers.len() as u64, RECORDS, "{headers:?}");
    headers.into_iter().map(|(_, header)| header).collect()
}

fn zeroed(device: &Device, places: &[Pba]) -> Device {
    let mut device = device.clone();
    places.iter().for_each(|pba| device.write(*pba, &[[0; BLOCK_SIZE]]));
    device.flush_all();
    device
}

fn assert_whole(hand: &mut Hand, context: &str) {
    assert_eq!(hand.engine.phase(), Phase::Running, "{context}");
    assert_eq!(hand.engine.statistics().metadata_copies_used, 1, "{context}");
    for lba in 0..4 * (RECORDS - 1) {
        assert_eq!(hand.read(lba), Some(Ok(expected(lba))), "{lba}: {context}");
    }
}

#[test]
pub(crate) fn each_header_but_the_last_is_rebuilt() {
    let device = killed();
    for (header, _) in &headers(&device)[..RECORDS as usize - 1] {
        let context = format!("{header:?}");
        let damaged = zeroed(&device, &[*header]);
        let report = damaged.report(true);
        let is_it = |finding: &Finding| matches!(finding, Finding::LogHeaderDamaged { pba, .. } if pba == header);
        assert!(report.findings.iter().any(is_it) && report.complete, "{report:?}");
        for read_only in [true, false] {
            let mut hand = Hand::open(damaged.clone(), Config { read_only, ..small() });
            assert_whole(&mut hand, &context);
            if !read_only {
                hand.submit(Request::Shutdown).expect("it is always taken");
                hand.run();
                let sound = hand.device.check();
                assert_eq!(sound, Ok(()), "it was written again: {context}");
                let mut hand = Hand::open(hand.device, small());
                assert_eq!(hand.engine.statistics().metadata_copies_used, 0, "{context}");
                assert_eq!(hand.read(3), Some(Ok(expected(3))), "{context}");
            }
        }
        let mut hand = Hand::begin(device.clone(), small());
        hand.unreadable.insert(*header);
        hand.run();
        assert_whole(&mut hand, &context);
    }
}

/// What is missing was durable: nothing else of the store is believed then.
#[test]
pub(crate) fn a_header_of_which_the_payload_is_damaged_too_is_not_believed() {
    let device = killed();
    for (header, payload) in &headers(&device)[..RECORDS as usize - 1] {
        for offset in 1..=u32::from(*payload) {
            let damaged = zeroed(&device, &[*header, header.plus(offset)]);
            let phase = Hand::open(damaged, small()).engine.phase();
            let is_missing = matches!(phase, Phase::Failed(OpenError::DurableRecordMissing { .. }));
            assert!(is_missing, "{phase:?}");
        }
    }
}

/// The second tells of the first, and is not rebuilt with what it told.
#[test]
fn of_two_headers_in_a_row_the_first_is_missing() {
    let device = killed();
    for pair in headers(&device)[..RECORDS as usize - 1].windows(2) {
        let damaged = zeroed(&device, &[pair[0].0, pair[1].0]);
        let phase = Hand::open(damaged, small()).engine.phase();
        let is_missing = matches!(phase, Phase::Failed(OpenError::DurableRecordMissing { .. }));
        assert!(is_missing, "{phase:?}");
    }
}
