//! Checks a new store in memory, damages it, and checks it again.

use coulter_check::{Options, SliceBlocks, check};
use coulter_engine::create::{CreateOptions, create};
use coulter_format::{BLOCK_SIZE, StoreId};

fn main() {
    let options = CreateOptions {
        device_size: (64 << 20) / BLOCK_SIZE as u64,
        volume_size: None,
        sparse: None,
        segment_blocks: 512,
        spare_percent: 20,
        store: StoreId { uuid: [1; 16], salt: 1 },
        label: [0; 64],
        map_size: None,
        journal_size: None,
        run_count_limit: None,
        page_blocks: None,
    };
    let (_, blocks) = create(&options).expect("it fits");
    let mut device = vec![0; options.device_size as usize * BLOCK_SIZE];
    for (pba, block) in blocks {
        device[pba.0 as usize * BLOCK_SIZE..][..BLOCK_SIZE].copy_from_slice(&block);
    }
    let report = check(&mut SliceBlocks(&device), &mut Options::default());
    assert!(report.is_sound(), "{report:?}");

    device[100] ^= 1;
    let report = check(&mut SliceBlocks(&device), &mut Options::default());
    assert!(!report.is_sound(), "the first superblock is damaged");
    println!("{:?}", report.findings);
}
