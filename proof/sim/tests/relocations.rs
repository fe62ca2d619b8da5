//! Named scenarios: relocations that a power cut tears, and cleaning with hardly any room.

use coulter_engine::create::{CreateOptions, plan};
use coulter_engine::{Command, Config, Phase, Request, Target};
use coulter_format::checkpoint::BodyView;
use coulter_format::checksum::{self, Kind};
use coulter_format::record::{self, BlockWord, Extent, RecordHeader, RecordView};
use coulter_format::{BLOCK_SIZE, Block, Lba, Pba, StoreId};
use coulter_sim::device::{Device, Loss};
use coulter_sim::hand::{Hand, small, store};
use coulter_sim::random::Random;

/// Where a block lies, as seen by a read.
fn place(hand: &mut Hand, lba: u64) -> Pba {
    let buffer = hand.memory.add_host(vec![[0xee; BLOCK_SIZE]]);
    hand.submit(Request::Read { lba: Lba(lba), count: 1, buffer }).expect("a read is accepted");
    let mut found = None;
    loop {
        hand.poll();
        let Some((io, _)) = hand.out.first() else { break };
        if let Command::Read { pba, target: Target::Request { .. }, .. } = io.command {
            found = Some(pba);
        }
        hand.complete(0, Ok(()));
    }
    hand.memory.take_host(buffer);
    found.expect("the block is mapped")
}

/// The first segment that the newest checkpoint reserves and nobody has opened since.
fn next_segment(device: &Device, hand: &Hand) -> Pba {
    let superblock = *hand.engine.superblock();
    let geometry = superblock.geometry;
    let size = superblock.checkpoint.size as usize;
    let mut body = vec![[0; BLOCK_SIZE]; size.div_ceil(BLOCK_SIZE)];
    device.read(superblock.checkpoint.pba, &mut body);
    let view = BodyView::decode(&body.as_flattened()[..size]).expect("the body is intact");
    let starts = view.reserved().map(|segment| segment * geometry.segment_blocks);
    let mut starts = starts.map(|offset| geometry.first_segment.plus(offset));
    let unopened = starts.find(|start| {
        let mut block = [[0; BLOCK_SIZE]];
        device.read(*start, &mut block);
        let view = RecordView::decode(&block[0], &superblock.store, *start);
        !view.is_ok_and(|view| view.header().sequence > superblock.checkpoint.sequence)
    });
    unopened.expect("some segment is left")
}

/// A block is relocated twice between two checkpoints, and a power cut tears the first copy. The
/// second was taken for a move from where the block counts, which it never had reached: its old
/// place stayed counted for ever, and the torn one was released without having been counted.
#[test]
fn the_second_of_two_relocations_does_not_miscount() {
    let mut hand = Hand::open(store(60, 1024, None, None, 4), small());
    for lba in 0..6000u64 {
        assert!(hand.write(lba, 1, (lba % 200) as u8));
    }
    let shutdown = hand.submit(Request::Shutdown).expect("always taken");
    hand.run();
    assert_eq!(hand.answers.get(&shutdown), Some(&Ok(())));
    let mut device = hand.device.clone();
    device.flush_all();
    let superblock = *hand.engine.superblock();
    let applied = hand.engine.statistics().applied_sequence;
    let first = place(&mut Hand::open(device.clone(), small()), 100);
    let start = next_segment(&device, &hand);
    let mut content = [[0; BLOCK_SIZE]];
    device.read(first, &mut content);
    let checksum = checksum::block(Kind::Data, 100, &content[0]);
    let torn: Block = [0x55; BLOCK_SIZE];
    let moves = [(first, torn), (start.plus(1), content[0])];
    for (number, (source, payload)) in (0u32..).zip(moves) {
        let pba = start.plus(2 * number);
        let header = RecordHeader {
            stream: 1,
            epoch: superblock.epoch,
            sequence: applied + 1 + u64::from(number),
            durable_sequence: applied,
            generation: superblock.generation,
            cut: applied,
            pba,
            payload_size: 1,
            scattered: None,
            goes_on: false,
            page_bits: 0,
        };
        let extent = Extent { key: 100, count: 1, kind: Kind::Data, relocated: true };
        let word = BlockWord { checksum, address: source };
        let mut block = [0; BLOCK_SIZE];
        record::encode(&header, &superblock.store, &[extent], &[word], &mut block).expect("fits");
        device.write(pba, &[block, payload]);
    }
    device.flush_all();
    let mut hand = Hand::open(device, small());
    assert_eq!(hand.engine.phase(), Phase::Running);
    assert_eq!(hand.engine.statistics().records_replayed, 4);
    assert_eq!(hand.read(100), Some(Ok(100)));
    // Every reference to the old segments goes; then nothing may be left, nor too much released.
    for lba in 0..6000u64 {
        assert!(hand.write(lba, 1, 1), "block {lba} is written");
    }
    hand.flush();
    assert_eq!(hand.engine.read_only(), None);
    let mut device = hand.device.clone();
    device.cut(Loss::Everything, &mut Random::new(1));
    device.check().expect("the counts are right");
}

/// The least spare space that a store may have, all of it written over several times: the cleaner
/// began victims that it had no room for, the sweep took what it needed, and checkpoints were made
/// until the runs were too many while nobody could write the pages that would have retired them.
#[test]
fn a_full_store_with_the_least_spare_space_never_stands_still() {
    for (segments, journal, runs) in [(300, 8192, 128), (100, 4096, 2)] {
        let options = CreateOptions {
            device_size: 256 * (segments + 1),
            sparse: None,
            volume_size: None,
            segment_blocks: 256,
            spare_percent: 0,
            store: StoreId { uuid: [6; 16], salt: 1 },
            label: [0; 64],
            map_size: None,
            journal_size: Some(journal),
            run_count_limit: Some(runs),
            page_blocks: None,
        };
        let volume = plan(&options).expect("it can be laid out").0.volume_size;
        let config = Config { record_count: 24, page_count: 64, ..Config::default() };
        let device = store(segments, journal, Some(volume), None, runs);
        let mut hand = Hand::open(device, config);
        let mut random = Random::new(segments + 10);
        let (mut written, mut refused) = (0, 0);
        while written < 4 * volume {
            let accepted = hand.try_write(random.below(volume), 1, 1).is_some();
            written += u64::from(accepted);
            refused = if accepted { 0 } else { refused + 1 };
            hand.poll();
            assert!(refused < 4 || !hand.out.is_empty(), "{segments}: stands still at {written}");
            if !hand.out.is_empty() && (hand.out.len() > 8 || refused > 0) {
                let index = random.below(hand.out.len() as u64) as usize;
                hand.complete(index, Ok(()));
            }
            hand.answers.clear();
        }
        let statistics = hand.engine.statistics();
        assert!(statistics.segments_cleaned > 100, "the cleaner had to work");
    }
}
