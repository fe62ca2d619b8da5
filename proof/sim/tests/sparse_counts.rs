//! Goal: a sparse store of which the segment table counts more than the store may hold, or less than it does, is opened
//! without a panic, is given nothing on the strength of such counts, and a check tells.
//!
//! Method: the table is changed, with its copy and all checksums above it.

use coulter_check::{Finding, Options, Severity, check};
use coulter_engine::create::{CreateOptions, Sparse};
use coulter_engine::{Failure, Phase, Request};
use coulter_format::checkpoint::BodyView;
use coulter_format::checksum::{self, Kind, crc32c};
use coulter_format::superblock::{CheckpointLocation, Superblock};
use coulter_format::{BLOCK_SIZE, Block, Lba, Pba};
use coulter_sim::device::Device;
use coulter_sim::hand::{Hand, small, small_options, store_like};

const ROOT: u64 = 1 << 18;
const ROOTS: u64 = 20;
const CAPACITY: u64 = 600;
const SEGMENT: u32 = 256;

/// Three hundred blocks in twenty roots.
fn closed(root_lists: bool) -> Device {
    let device = store_like(&CreateOptions {
        sparse: Some(Sparse { address_limit: 1 << 40, root_limit: Some(64), root_lists }),
        volume_size: Some(CAPACITY),
        ..small_options(u64::from(SEGMENT) * 33)
    });
    let mut hand = Hand::open(device, small());
    for round in 0..10 {
        for root in 0..ROOTS {
            assert!(hand.write(root * ROOT, 15, 1 + round));
        }
    }
    hand.submit(Request::Shutdown).expect("it is always taken");
    hand.run();
    hand.device.flush_all();
    hand.device
}

fn block(device: &Device, pba: Pba) -> Block {
    let mut block = [0; BLOCK_SIZE];
    device.read(pba, std::slice::from_mut(&mut block));
    block
}

/// Changes what the table counts in each segment that is in use, and every checksum above it.
fn changed(device: &Device, change: impl Fn(u32) -> u32) -> Device {
    let mut device = device.clone();
    let superblocks =
        [Pba(0), Pba(SEGMENT / 2)].map(|pba| Superblock::decode(&block(&device, pba)));
    let superblocks = superblocks.map(|found| found.expect("it is sound"));
    let location = superblocks[0].checkpoint;
    let mut blocks = vec![[0; BLOCK_SIZE]; location.blocks() as usize];
    device.read(location.pba, &mut blocks);
    let body = blocks.as_flattened()[..location.size as usize].to_vec();
    let view = BodyView::decode(&body).expect("it is sound");
    let table = view.table().next().expect("a page");
    let before = view.roots().count() + view.root_lists().count();
    let copy = view.copies().nth(before).expect("a copy of the table's page");
    let mut page = block(&device, table.pba);
    for entry in page.chunks_exact_mut(16).filter(|entry| entry[4] != 0) {
        let valid = u32::from_le_bytes(entry[..4].try_into().expect("four bytes"));
        entry[..4].copy_from_slice(&change(valid).to_le_bytes());
    }
    let sum = checksum::block(Kind::SegmentTable, 0, &page);
    [table.pba, copy].iter().for_each(|pba| device.write(*pba, &[page]));
    let wanted = [table.pba.0.to_le_bytes(), table.checksum.to_le_bytes()].concat();
    let bytes = &mut blocks.as_flattened_mut()[..location.size as usize];
    let at = bytes.windows(8).position(|window| window == wanted).expect("it is listed");
    bytes[at + 4..at + 8].copy_from_slice(&sum.to_le_bytes());
    let checkpoint = CheckpointLocation { checksum: crc32c(bytes), ..location };
    device.write(location.pba, &blocks);
    device.write(location.copy, &blocks);
    for superblock in superblocks {
        let mut content = [0; BLOCK_SIZE];
        Superblock { checkpoint, ..superblock }.encode(&mut content);
        device.write(superblock.location(), &[content]);
    }
    device.flush_all();
    device
}

/// The worst that a check finds, and whether it says that the store holds more than it may.
fn found(device: &Device) -> (Option<Severity>, bool) {
    let report = check(&mut device.blocks(), &mut Options { data: true, ..Options::default() });
    let exceeded = report.findings.iter().find_map(|finding| match finding {
        Finding::CapacityExceeded { charged, limit } => {
            assert!(charged > limit);
            let said = finding.to_string();
            assert!(said.contains("refused") && said.contains("new store"), "{said}");
            Some(())
        }
        _ => None,
    });
    (report.worst(), exceeded.is_some())
}

#[test]
fn a_table_that_counts_more_than_the_capacity_gives_no_room() {
    for root_lists in [false, true] {
        let device = closed(root_lists);
        assert_eq!(found(&device), (None, false));
        let device = changed(&device, |valid| valid.max(220));
        let report = found(&device);
        assert_eq!(report, (Some(Severity::Fault), true), "lists {root_lists}");
        let mut hand = Hand::open(device, small());
        assert_eq!(hand.engine.phase(), Phase::Running);
        let statistics = hand.engine.statistics();
        assert!(statistics.charged_blocks > statistics.charged_blocks_max, "{statistics:?}");
        let id = (0..50).find_map(|_| {
            let id = hand.try_write(5 * ROOT + 4000, 1, 9);
            hand.run();
            id
        });
        let id = id.expect("it is taken, sooner or later");
        // By such counts no segment can be emptied either: then it is read-only.
        let answer = hand.answers.remove(&id);
        let is_refused = matches!(answer, Some(Err(Failure::Full | Failure::ReadOnly)));
        assert!(is_refused, "there is no room for it: {answer:?}");
        for root in 0..ROOTS {
            assert_eq!(hand.read(root * ROOT + 7), Some(Ok(10)), "root {root}");
        }
        if hand.engine.read_only().is_some() {
            continue;
        }
        for root in 0..ROOTS {
            assert!(hand.write(root * ROOT + 7, 1, 11), "an overwrite takes no room");
        }
        assert_eq!(hand.read(3 * ROOT + 7), Some(Ok(11)));
        let discard = Request::Discard { lba: Lba(0), count: 15, fua: false };
        let id = hand.submit(discard).expect("it is taken");
        hand.run();
        assert_eq!(hand.answers.remove(&id), Some(Ok(())));
        hand.submit(Request::Shutdown).expect("it is always taken");
        hand.run();
    }
}

#[test]
fn a_table_that_counts_less_than_there_is_costs_nothing_that_is_there() {
    for root_lists in [false, true] {
        for most in [0, 1, 40] {
            let device = changed(&closed(root_lists), |valid| valid.min(most));
            let context = format!("lists {root_lists}, {most}");
            assert_eq!(found(&device), (Some(Severity::Fault), false), "{context}");
            let mut hand = Hand::open(device, small());
            if hand.engine.phase() != Phase::Running {
                assert!(matches!(hand.engine.phase(), Phase::Failed(_)), "{context}");
                continue;
            }
            // It goes on until the counts are seen to be wrong, and is read-only then.
            let mut written = [10; ROOTS as usize];
            for round in 11..60u8 {
                for root in 0..ROOTS {
                    if hand.write(root * ROOT, 15, round) {
                        written[root as usize] = round;
                    }
                }
            }
            for root in 0..ROOTS {
                match hand.read(root * ROOT + 7) {
                    Some(Ok(value)) => assert_eq!(value, written[root as usize], "{context}"),
                    other => assert!(hand.engine.read_only().is_some(), "{context}: {other:?}"),
                }
            }
        }
    }
}
