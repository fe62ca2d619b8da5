//! Named scenarios: metadata with intact checksums that cannot be true. Only a mistake or malice makes
//! it; it must end in an error and never in a panic.

use coulter_engine::{OpenError, Phase, Request};
use coulter_format::checkpoint::BodyView;
use coulter_format::checksum::{self, Kind, crc32c};
use coulter_format::superblock::Superblock;
use coulter_format::{BLOCK_SIZE, Block, Pba};
use coulter_sim::device::Device;
use coulter_sim::hand::{Hand, small, store};

/// A store with data in it, shut down, and its superblock.
fn shut_down() -> (Device, Superblock) {
    let mut hand = Hand::open(store(60, 1024, None, None, 4), small());
    for lba in 0..3000 {
        assert!(hand.write(lba, 1, 3));
    }
    let shutdown = hand.submit(Request::Shutdown).expect("always taken");
    hand.run();
    assert_eq!(hand.answers.get(&shutdown), Some(&Ok(())));
    let superblock = *hand.engine.superblock();
    let mut device = hand.device.clone();
    device.flush_all();
    (device, superblock)
}

fn write_superblock(device: &mut Device, superblock: &Superblock) {
    let mut block = [0; BLOCK_SIZE];
    superblock.encode(&mut block);
    device.write(superblock.location(), &[block]);
    device.flush_all();
}

/// Changes the first page of the segment table, and every checksum above it.
fn change_table(device: &mut Device, superblock: &Superblock, change: impl Fn(&mut Block)) {
    let location = superblock.checkpoint;
    let mut body = vec![[0; BLOCK_SIZE]; (location.size as usize).div_ceil(BLOCK_SIZE)];
    device.read(location.pba, &mut body);
    let bytes = &body.as_flattened()[..location.size as usize];
    let view = BodyView::decode(bytes).expect("intact");
    let before = 64 + 8 * view.heads().count() + 4 * view.reserved().count();
    let place = before + 16 * view.roots().count();
    let pointer = view.table().next().expect("a page");
    let mut page = [[0; BLOCK_SIZE]];
    device.read(pointer.pba, &mut page);
    change(&mut page[0]);
    device.write(pointer.pba, &page);
    let checksum = checksum::block(Kind::SegmentTable, 0, &page[0]);
    let bytes = &mut body.as_flattened_mut()[..location.size as usize];
    bytes[place + 4..place + 8].copy_from_slice(&checksum.to_le_bytes());
    let checksum = crc32c(bytes);
    for (offset, block) in (0..).zip(&body) {
        device.write(Pba(location.pba.0 + offset), &[*block]);
    }
    let checkpoint = coulter_format::superblock::CheckpointLocation { checksum, ..location };
    write_superblock(device, &Superblock { checkpoint, ..*superblock });
}

#[test]
fn a_segment_table_that_counts_too_little_makes_the_volume_read_only() {
    let (mut device, superblock) = shut_down();
    change_table(&mut device, &superblock, |page| {
        for entry in page.chunks_exact_mut(16) {
            let valid = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
            entry[..4].copy_from_slice(&(valid.min(1)).to_le_bytes());
        }
    });
    let mut hand = Hand::open(device, small());
    assert_eq!(hand.engine.phase(), Phase::Running);
    assert_eq!(hand.read(7), Some(Ok(3)));
    let mut refused = false;
    for lba in 0..3000 {
        refused |= !hand.write(lba, 1, 4);
    }
    assert!(refused, "no segment is freed by such counts");
    assert_eq!(hand.engine.read_only(), Some(117));
    assert_eq!(hand.read(2999), Some(Ok(3)), "reads go on");
}

#[test]
fn a_segment_table_that_counts_too_much_is_refused() {
    let (mut device, superblock) = shut_down();
    change_table(&mut device, &superblock, |page| {
        page.chunks_exact_mut(16).for_each(|entry| entry[..4].copy_from_slice(&[0xff; 4]));
    });
    let hand = Hand::open(device, small());
    assert!(matches!(hand.engine.phase(), Phase::Failed(OpenError::Damaged { .. })));
}

#[test]
fn numbers_that_would_overflow_are_refused() {
    let (device, superblock) = shut_down();
    let largest = u64::MAX;
    let checkpoint = superblock.checkpoint;
    let sequence =
        coulter_format::superblock::CheckpointLocation { sequence: largest, ..checkpoint };
    // In the same copy: it goes by the last bit.
    let generation = largest - 1 + superblock.generation % 2;
    for crafted in [
        Superblock { generation, ..superblock },
        Superblock { epoch: largest, ..superblock },
        Superblock { checkpoint: sequence, ..superblock },
    ] {
        let mut device = device.clone();
        write_superblock(&mut device, &crafted);
        // The other copy counts, and what came after it is replayed.
        let mut hand = Hand::open(device, small());
        assert_eq!(hand.engine.phase(), Phase::Running);
        assert_eq!(hand.read(2999), Some(Ok(3)));
        assert!(hand.write(1, 1, 9));
    }
}
